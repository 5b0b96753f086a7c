"""The report of a verification: what was proved, what differs, and what could not be told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from cdc.lake.second_opinion.report import SecondOpinion

State = Literal["proved", "partial", "differs", "unknown"]
"""``partial``: what was compared is equal, and something could not be compared."""
_WORST_FIRST: tuple[State, ...] = ("differs", "unknown", "partial", "proved")
LONGEST_VALUE = 200
"""Characters of a value that are reported."""


@dataclass(frozen=True)
class Difference:
    """A row that is not the same on both sides."""

    key: dict[str, str | None]
    """The key's columns, or all columns of a table without a key."""
    source: dict[str, str | None] | None
    """The row's values as text; None: the source does not have it."""
    delta: dict[str, str | None] | None
    """None: the Delta table does not have it."""
    note: str | None = None

    @property
    def columns(self) -> list[str]:
        """The columns that differ; all of them if one side lacks the row."""
        if self.source is None or self.delta is None:
            return sorted({*(self.source or {}), *(self.delta or {})})
        return [name for name, value in self.source.items() if self.delta.get(name) != value]


@dataclass
class LedgerResult:
    """The check of a table's commits."""

    ok: bool = False
    entries: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """Missing ranges of seqs (exclusive, inclusive)."""
    accepted: list[tuple[int, int]] = field(default_factory=list)
    """Missing ranges that an operator has accepted."""
    faults: list[str] = field(default_factory=list)


@dataclass
class ChecksumResult:
    """The comparison of a table's rows."""

    ok: bool = False
    chunks: int = 0
    """Buckets of rows that were compared."""
    differences: list[Difference] = field(default_factory=list)
    more: bool = False
    """Whether there are further differences that were not looked for."""
    faults: list[str] = field(default_factory=list)
    """Differences of the whole table, such as missing columns."""
    remarks: list[str] = field(default_factory=list)
    """Sentences about the comparison that are no differences."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Columns that could not be compared, with the reason: the table is not proved as a whole."""
    excepted: dict[str, str] = field(default_factory=dict)
    """Columns that the configuration lets differ, with the setting; ``*``: the whole table."""
    seq: int | None = None
    """The position of the source at which it was compared."""
    gtids: str | None = None
    """The GTIDs that the source had executed before; None without GTIDs. MariaDB: the last one of each domain."""
    total: int | None = None
    """The sum of the CRC32 of all compared rows at the source."""


@dataclass
class TableReport:
    """The result for one table."""

    table: str
    mode: str
    rows: int | None = None
    """Rows at the source; None if they were not counted."""
    delta_version: int | None = None
    applied_seq: int | None = None
    ledger: LedgerResult = field(default_factory=LedgerResult)
    checksums: ChecksumResult = field(default_factory=ChecksumResult)
    unknown: list[str] = field(default_factory=list)
    """Sentences about what could not be compared."""

    @property
    def state(self) -> State:
        faults = [*self.ledger.faults, *self.checksums.faults, *self.checksums.differences]
        if faults or self.ledger.gaps:
            return "differs"
        if self.unknown or not (self.ledger.ok and self.checksums.ok):
            return "unknown"
        return "partial" if self.checksums.left_out else "proved"

    @property
    def ok(self) -> bool:
        """Whether the table is proved to be right, as far as the configuration asks for."""
        return self.state == "proved"

    @property
    def verdict(self) -> str:
        """The result of comparing the rows, in words: ``equal, except a, b, not compared``."""
        checksums = self.checksums
        if checksums.differences:
            return f"{'at least ' if checksums.more else ''}{len(checksums.differences)} DIFFER"
        if checksums.faults:
            return "DIFFERS"
        if not checksums.ok:
            return "not known"
        if "*" in checksums.excepted:
            return "not compared"
        not_compared = ", ".join([*checksums.left_out, *checksums.excepted])
        return f"equal, except {not_compared}, not compared" if not_compared else "equal"


@dataclass
class HistoryReport:
    """The check of the store and the cursor against what the source executed."""

    kind: Literal["gtid", "position", "none"] = "none"
    """The means of the comparison with the source: GTIDs, positions, or none."""
    faults: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    @property
    def state(self) -> State:
        return "differs" if self.faults else "unknown" if self.unknown else "proved"


@dataclass
class VerificationReport:
    """The result of a verification."""

    destination: str
    history: HistoryReport = field(default_factory=HistoryReport)
    tables: list[TableReport] = field(default_factory=list)
    seconds: float = 0.0
    second_opinion: SecondOpinion | None = None
    """The sample of the store that was decoded twice; None if that was not asked for, and in the report of a driver
    under spark-submit: the process that reads that report asks for it."""

    @property
    def state(self) -> State:
        states = {self.history.state, *(table.state for table in self.tables)}
        if self.second_opinion is not None and self.second_opinion.differences:
            states.add("differs")
        return next(state for state in _WORST_FIRST if state in states)

    @property
    def ok(self) -> bool:
        return self.state == "proved"

    @property
    def exit_code(self) -> int:
        """0: all is proved. 2: something differs or is missing. 1: it could not be told, of some columns or at all."""
        return {"proved": 0, "differs": 2, "unknown": 1, "partial": 1}[self.state]

    def document(self) -> dict[str, Any]:
        """Returns the document of ``--json``."""
        return {
            "destination": self.destination,
            "ok": self.ok,
            "state": self.state,
            "history": {
                "ok": self.history.state == "proved",
                "kind": self.history.kind,
                "faults": self.history.faults,
                "remarks": self.history.remarks,
                "unknown": self.history.unknown,
            },
            "tables": [_table_document(table) for table in self.tables],
            "second_opinion": None if self.second_opinion is None else self.second_opinion.document(),
            "seconds": round(self.seconds, 3),
        }


def _table_document(table: TableReport) -> dict[str, Any]:
    ledger, checksums = table.ledger, table.checksums
    return {
        "table": table.table,
        "ok": table.ok,
        "state": table.state,
        "verdict": table.verdict,
        "mode": table.mode,
        "rows": table.rows,
        "delta_version": table.delta_version,
        "applied_seq": table.applied_seq,
        "unknown": table.unknown,
        "ledger": {
            "ok": ledger.ok,
            "entries": ledger.entries,
            "gaps": [{"after_seq": after, "until_seq": until} for after, until in ledger.gaps],
            "accepted": [{"after_seq": after, "until_seq": until} for after, until in ledger.accepted],
            "faults": ledger.faults,
        },
        "checksums": {
            "ok": checksums.ok,
            "chunks": checksums.chunks,
            "differences": [
                {"key": difference.key, "source": difference.source, "delta": difference.delta, "note": difference.note}
                for difference in checksums.differences
            ],
            "more": checksums.more,
            "faults": checksums.faults,
            "remarks": checksums.remarks,
            "left_out": checksums.left_out,
            "excepted": checksums.excepted,
            "seq": checksums.seq,
            "gtids": checksums.gtids,
            "sum": checksums.total,
        },
    }
