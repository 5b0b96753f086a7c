"""What a removal removes, what stays, and what prevents it: the answer of ``cdc remove`` before it does anything."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from cdc.base.errors import CdcError


@dataclass(frozen=True)
class Options:
    """What an operator has asked for beyond what a removal always does."""

    lake: bool = False
    """Whether the Delta tables of the destination are removed."""
    archive: bool = False
    """Whether its archive is removed."""
    dags: bool = False
    """Whether Airflow forgets the DAGs, by the program ``airflow`` of this environment."""
    incomplete: bool = False
    """Whether store or meta may be missing."""


@dataclass(frozen=True)
class Part:
    """One thing that belongs to the destination."""

    kind: str
    """The kind in words: ``store``, ``subscription``, ``catalog entry``."""
    place: str
    files: int | None = None
    bytes: int | None = None
    detail: str = ""
    stays: str = ""
    """Why it is not removed; empty: it is."""


@dataclass
class Plan:
    """Everything that belongs to a destination."""

    destination: str
    begun: bool
    """Whether an earlier removal was cut off."""
    parts: list[Part] = field(default_factory=list)
    obstacles: list[CdcError] = field(default_factory=list)
    """What prevents the removal; empty: nothing does."""
    commands: list[str] = field(default_factory=list)
    """What is left to a person, as commands."""
    remarks: list[str] = field(default_factory=list)

    @property
    def removed(self) -> list[Part]:
        return [part for part in self.parts if not part.stays]

    @property
    def staying(self) -> list[Part]:
        return [part for part in self.parts if part.stays]

    def document(self, *, removed: bool) -> dict[str, Any]:
        """Returns the answer of ``cdc remove --json``. ``removed``: whether the parts are gone by now."""
        return {
            "destination": self.destination,
            "removed": removed,
            "begun": self.begun,
            "parts": [{**asdict(part), "stays": part.stays or None} for part in self.parts],
            "obstacles": [str(obstacle) for obstacle in self.obstacles],
            "commands": self.commands,
            "remarks": self.remarks,
        }
