"""A fake of the jobs on tables, for tests of their operators: it records calls, and returns or raises what a test sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from cdc.config import DestinationConfig
from cdc.lake.second_opinion.report import SecondOpinion


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
    """What a snapshot or a replay would do."""

    tables: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        rows = [{"table": table, "rows": 1000, "bytes": 2048} for table in self.tables]
        replaces = [f"{table}: 7 rows" for table in self.tables]
        return {"tables": rows, "rows": 1000, "bytes": 2048, "seconds": 90.0, "replaces": replaces}


@dataclass
class Report:
    """The report of a verification."""

    state: str = "proved"
    second_opinion: SecondOpinion | None = None

    def document(self) -> dict[str, Any]:
        differs = self.state == "differs"
        differences = [{"key": {"id": "7"}, "source": {"v": "a"}, "delta": None, "note": None}] if differs else []
        table = {
            "table": "shop.orders",
            "ok": self.state == "proved",
            "state": self.state,
            "verdict": {"proved": "equal", "differs": "1 DIFFER", "partial": "equal, except v, not compared"}.get(
                self.state, "not known"
            ),
            "rows": 12345,
            "unknown": ["capture is behind"] if self.state == "unknown" else [],
            "ledger": {"ok": True, "entries": 4, "gaps": [], "accepted": [], "faults": []},
            "checksums": {
                "ok": not differs,
                "chunks": 16,
                "differences": differences,
                "faults": [],
                "left_out": {"v": "it cannot be computed"} if self.state == "partial" else {},
            },
        }
        history = {"ok": True, "faults": [], "unknown": []}
        state, second_opinion = self.state, None if self.second_opinion is None else self.second_opinion.document()
        document = {"ok": state == "proved", "state": state, "history": history, "tables": [table]}
        return {**document, "second_opinion": second_opinion}


@dataclass
class FakeJobs:
    """Takes the place of ``cdc.lake.pipeline`` for the operators of tables."""

    captured: bool = True
    due: list[str] = field(default_factory=list)
    report: Report = field(default_factory=Report)
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
    ) -> Report:
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
