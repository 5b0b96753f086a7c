"""Reads a whole archive and compares it with its checksums."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from cdc.base.errors import DamagedError
from cdc.copies.archive.format import Ref
from cdc.copies.archive.states import Archive


@dataclass
class ArchiveReport:
    """The numbers of objects that were read, and a sentence for each object that is missing or damaged."""

    state: int
    objects: int = 0
    bytes: int = 0
    faults: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def verify(archive: Archive) -> ArchiveReport:
    """Reads every object that the newest state names. Raises ConfigError if the archive is empty, DamagedError if its
    newest state or its list is damaged, RetryableError if it is away."""
    newest = archive.existing()
    report = ArchiveReport(newest.state.number)
    refs: list[Ref] = [*newest.state.files.values()]
    for segment in newest.segments:
        refs += [segment.log, segment.index]
    for ref in refs:
        report.objects += 1
        report.bytes += ref.bytes
        try:
            archive.objects.verify(ref.object, ref.bytes, ref.sha256)
        except DamagedError as error:
            report.faults.append(f"{error.place}: {error.message}")
    return report
