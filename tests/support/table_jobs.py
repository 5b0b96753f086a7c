"""A fake of the jobs on tables, for tests of their operators: it records calls, and returns or raises what a test sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from cdc.config import DestinationConfig
from cdc.lake.second_opinion.report import SecondOpinion
from cdc.lake.verify.report import (
    ChecksumResult,
    Difference,
    HistoryReport,
    LedgerResult,
    State,
    TableReport,
    VerificationReport,
)


@dataclass(frozen=True)
class Result:
    """The result of a snapshot or a replay for one table."""

    table: str
    rows: int = 3
    bytes: int = 100

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Plan:
    """The plan of a snapshot or a replay."""

    tables: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        rows = [
            {"table": table, "rows": 1000, "bytes": 2048, "seconds": 75.0, "effect": f"replaces {table}: 7 rows"}
            for table in self.tables
        ]
        return {"tables": rows, "rows": 1000, "bytes": 2048, "seconds": 90.0, "points": ["The store begins."]}


def report_of(state: State = "proved", second_opinion: SecondOpinion | None = None) -> VerificationReport:
    """Returns the report of a verification of one table."""
    differs = [Difference({"id": "7"}, {"v": "a"}, None)] if state == "differs" else []
    left_out = {"v": "it cannot be computed"} if state == "partial" else {}
    table = TableReport(
        "shop.orders",
        "upsert",
        12345,
        4,
        4711,
        LedgerResult(ok=True, entries=4),
        ChecksumResult(not differs, 16, differs, left_out=left_out, seq=4712, gtids="a:1-9", total=99),
        ["capture is behind"] if state == "unknown" else [],
    )
    return VerificationReport("shop", HistoryReport("gtid"), [table], second_opinion=second_opinion)


@dataclass
class FakeJobs:
    """Takes the place of ``cdc.lake.pipeline`` for the operators of tables."""

    captured: bool = True
    due: list[str] = field(default_factory=list)
    report: VerificationReport = field(default_factory=report_of)
    errors: list[Exception] = field(default_factory=list)
    """Raised by the next jobs, one each."""
    calls: list[tuple[Any, ...]] = field(default_factory=list)

    def _step(self, *call: Any) -> None:
        self.calls.append(call)
        if self.errors and not call[0].startswith("plan"):
            raise self.errors.pop(0)

    def has_captured(self, config: DestinationConfig) -> bool:
        return self.captured

    def snapshot(
        self, config: DestinationConfig, tables: Sequence[str] | None = None, *, progress: Any = None
    ) -> list[Result]:
        self._step("snapshot", None if tables is None else list(tables))
        progress("half of it is read")
        return [Result(table) for table in (self.due if tables is None else tables)]

    def replay(
        self, config: DestinationConfig, tables: Sequence[str], *, progress: Any = None, **arguments: Any
    ) -> list[Result]:
        self._step("replay", list(tables), arguments)
        return [Result(table) for table in tables]

    def verify(
        self,
        config: DestinationConfig,
        tables: Sequence[str] | None = None,
        *,
        progress: Any = None,
        second_opinion: int = 0,
    ) -> VerificationReport:
        self._step("verify", None if tables is None else list(tables))
        assert second_opinion == 2000
        return self.report

    def plan_snapshot(self, config: DestinationConfig, tables: Sequence[str]) -> Plan:
        self._step("plan_snapshot", list(tables))
        return Plan(tuple(tables))

    def plan_replay(self, config: DestinationConfig, tables: Sequence[str], **arguments: Any) -> Plan:
        self._step("plan_replay", list(tables), arguments)
        return Plan(tuple(tables))

    def maintain(
        self, config: DestinationConfig, tables: Sequence[str] = (), *, progress: Any = None, **options: bool
    ) -> dict[str, Any]:
        dry_run = options["dry_run"]
        self._step("maintain", list(tables), options)
        return {
            "dry_run": dry_run,
            "removed": [{"segment": "a"}, {"segment": "b"}],
            "removed_bytes": 2048,
            "bytes_left": 4096,
            "snapshots_removed": ["shop.orders"],
            "cut_off": ["audit"],
        }

    def stop(self) -> None:
        self.calls.append(("stop",))
