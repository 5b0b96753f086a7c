"""What a statement costs the lake: the rows and bytes that are written or read, and the time that this takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdc.base.units import human_bytes, human_seconds

if TYPE_CHECKING:
    from cdc.lake.migration.lake_tables import LakeTable
    from cdc.lake.migration.planner import TableVerdict


@dataclass(frozen=True)
class TableCost:
    """The rows of a table that are written anew, or read by a snapshot."""

    rows: int | None
    """None if the Delta log does not tell."""
    bytes: int
    """The size of the table's files."""
    seconds: float | None
    """At the speed of the table's own last commits; None if they do not tell."""

    def __str__(self) -> str:
        texts = [] if self.rows is None else [f"{self.rows:,} rows"]
        texts.append(human_bytes(self.bytes))
        if self.seconds is not None:
            texts.append(f"about {human_seconds(self.seconds)} at the speed of its last commits")
        return ", ".join(texts)


def cost_of(table: LakeTable | None, verdict: TableVerdict) -> TableCost | None:
    """Returns what a statement costs; None if it writes no rows that were there, or the table is not at hand.
    ``table``: before the migration."""
    if table is None or verdict.gravest not in ("rewrite", "snapshot"):
        return None
    speed = table.rows_per_s
    seconds = None if speed is None or table.rows is None else round(table.rows / speed, 1)
    return TableCost(table.rows, table.bytes, seconds)
