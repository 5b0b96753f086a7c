"""The result of a second opinion, as an object, as JSON and as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MOST_DIFFERENCES = 20
"""Differences that are reported one by one."""
_MOST_NAMES = 5
"""Columns that a line of the report names."""


@dataclass(frozen=True)
class Disagreement:
    """A value on which both decoders differ, or rows that one of them has and the other lacks."""

    file: str
    """The source's binlog file."""
    pos: int
    """The end of the transaction in it."""
    seq: int
    table: str
    column: str | None
    """None: the rows or the columns of a row event differ as a whole."""
    image: str
    """``old`` or ``new``: the row before or after the change; ``event`` for a difference as a whole."""
    ours: str
    library: str

    def __str__(self) -> str:
        name = self.table if self.column is None else f"{self.table}.{self.column}"
        place = f"{self.file}:{self.pos}, seq {self.seq}, {name} ({self.image})"
        return f"{place}: Towpath {self.ours}, mysql-replication {self.library}"


@dataclass
class SecondOpinion:
    """The result of decoding a sample twice."""

    seed: int
    asked: int
    """The rows that were asked for."""
    rows: int = 0
    """Changed rows that were compared."""
    values: int = 0
    """Values that were compared, those of old and new rows."""
    left_out: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """Table, column (empty: the whole table) and reason, with the number of values; 0 if they were not counted."""
    differences: list[Disagreement] = field(default_factory=list)
    more: int = 0
    """Further differences, which are not in the list."""
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """The result in words."""
        if self.differences:
            return f"{len(self.differences) + self.more} DIFFER"
        return "equal" if self.values else "nothing compared"

    def document(self) -> dict[str, Any]:
        """Returns the object ``second_opinion`` of ``--json``."""
        return {
            "verdict": self.verdict,
            "seed": self.seed,
            "asked": self.asked,
            "rows": self.rows,
            "values": self.values,
            "left_out": [
                {"table": table, "column": column or None, "reason": reason, "values": count}
                for (table, column, reason), count in sorted(self.left_out.items())
            ],
            "differences": [vars(difference) for difference in self.differences],
            "more": self.more,
            "seconds": round(self.seconds, 3),
        }

    def leave_out(self, table: str, column: str, reason: str, count: int = 0) -> None:
        """Adds values that are not compared. ``column`` is empty for the whole table; ``count`` is 0 if the values were
        not counted."""
        key = (table, column, reason)
        self.left_out[key] = self.left_out.get(key, 0) + count

    def differ(self, difference: Disagreement) -> None:
        """Adds a difference."""
        if len(self.differences) < MOST_DIFFERENCES:
            self.differences.append(difference)
        else:
            self.more += 1


def report_lines(document: Mapping[str, Any]) -> list[str]:
    """Returns the lines of a report for people, from the object ``second_opinion``."""
    left_out = sum(item["values"] for item in document["left_out"])
    compared = f"{document['values']:,} values of {document['rows']:,} rows compared with mysql-replication"
    lines = [f"second opinion: {document['verdict']}; {compared}, {left_out:,} left out (seed {document['seed']})"]
    if not document["values"]:
        lines.append("  no value was compared, so nothing is proved by it")
    lines += [f"  {Disagreement(**difference)}" for difference in document["differences"]]
    if document["more"]:
        lines.append(f"  … and {document['more']:,} further differences")
    return lines + [f"  not compared: {text}" for text in _left_out(document["left_out"])]


def _left_out(items: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields a line for each reason, with the first columns that it holds for."""
    for reason in sorted({item["reason"] for item in items}):
        those = [item for item in items if item["reason"] == reason]
        names = [".".join(filter(None, (item["table"], item["column"]))) for item in those]
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        count = sum(item["values"] for item in those)
        yield f"{', '.join(names[:_MOST_NAMES])}{more}{f' ({count:,} values)' if count else ''}: {reason}"
