"""What a subscription remembers beside its cursor: the lake's tables as of the last ack, and the accepted gaps.

A table's record is one short text (``TableRecord.text``), so that a meta of 5,000 tables stays half a megabyte and is
read in milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

RecordText = Annotated[str, Field(pattern=r"^\d+ \d+ \d+ \S+$")]
"""``GENERATION VERSION APPLIED_SEQ ID``, separated by single blanks."""


@dataclass(frozen=True)
class TableRecord:
    """A Delta table as it was when a batch with changes of it was acked. The lake must never lie behind this."""

    generation: int
    version: int
    """The Delta version of the table's own last commit by then."""
    applied_seq: int
    """The seq up to which changes had been applied; 0: it had been made, and nothing had been applied."""
    delta_id: str
    """The table's id in Delta's metadata, which stays the same until the table is replaced."""

    @property
    def text(self) -> str:
        return f"{self.generation} {self.version} {self.applied_seq} {self.delta_id}"

    @classmethod
    def of(cls, text: str) -> TableRecord:
        """The record that :attr:`text` wrote."""
        generation, version, applied_seq, delta_id = text.split(" ")
        return cls(int(generation), int(version), int(applied_seq), delta_id)


class Gap(BaseModel):
    """Transactions that a subscriber never got, and whose loss an operator has accepted."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    after_seq: int = Field(ge=0)
    """Transactions behind this one are missing…"""
    until_seq: int = Field(ge=0)
    """…up to this one, which is missing as well if it was a transaction."""
    table: str | None = None
    """``db.table`` where one table alone lacks them; None: all of the subscriber's tables."""
    reason: str
    accepted: AwareDatetime

    def covers(self, after_seq: int, until_seq: int, table: str | None = None) -> bool:
        """Whether all transactions in (after_seq, until_seq] of the table (None: of all tables) are in the gap."""
        ours = self.table is None or self.table == table
        return ours and self.after_seq <= after_seq and until_seq <= self.until_seq
