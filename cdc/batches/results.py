"""Results of merges: validated, recorded in the meta, and summed up for the operator."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from cdc.base.errors import UsageError
from cdc.base.log import get_logger
from cdc.batches.manifest import Manifest, TableResult
from cdc.binlog.gtids import Flavor, MariadbGtid, MariadbPosition
from cdc.meta import HistoryMark, Subscription, TableRecord

if TYPE_CHECKING:
    from cdc.store.reader.batch_builder import Selection

_PHASES = {"start": "Spark start", "read": "read", "plan": "plan", "merge": "merge", "commit": "commit"}
"""The words for phases, in their order."""
_SUMMED = ("inserted", "updated", "deleted", "skipped", "files", "null_dates")
_MOST_GTIDS = 32768
"""Characters of GTIDs in a mark; a longer text is left out. A change in ZooKeeper, which takes 1 MiB, may have four
copies of it."""
_RESULTS = TypeAdapter(tuple[TableResult, ...])
_log = get_logger(__name__)


def read_results(results: Any) -> tuple[TableResult, ...]:
    """Validates the results of a merge, given as models, dataclasses or dictionaries. Raises UsageError."""
    if results is None:
        return ()
    try:
        return _RESULTS.validate_python(tuple(results), from_attributes=True)
    except (TypeError, ValidationError) as error:
        raise UsageError(f"these are not the results of a merge: {' '.join(str(error).split())}") from None


def joined(results: Sequence[TableResult]) -> TableResult | None:
    """Returns one result for merges of a table that followed each other; None if there was none."""
    if not results:
        return None
    sums = {name: sum(getattr(result, name) for result in results) for name in _SUMMED}
    return results[-1].model_copy(update=sums)


def record_tables(subscription: Subscription, results: Iterable[TableResult]) -> None:
    """Records the lake's tables, as a merge left them, in the subscription.

    A record never goes back: if two drivers merged the same batch, the slower one may report an older version.
    """
    for result in results:
        if result.delta_id is None or result.delta_version is None:
            continue
        before = subscription.table(result.table)
        record = TableRecord(result.generation, result.delta_version, result.applied_seq or 0, result.delta_id)
        if before is not None and before.delta_id == record.delta_id:
            is_ahead = (before.generation, before.applied_seq) > (record.generation, record.applied_seq)
            record = before if is_ahead else replace(record, version=max(before.version, record.version))
        subscription.tables[result.table] = record.text


def history_mark(selection: Selection, gtids: str | None, flavor: Flavor) -> HistoryMark | None:
    """Returns the mark that later shows whether the source still has the history up to a selection's end; None if there
    is nothing to recognise it by. ``gtids``: all GTIDs of the source up to there; None: they are not known."""
    last = selection.last
    if last.gtid is None and selection.file_created_s is None:
        return None
    shown = _as_canal_writes(gtids, flavor) if gtids else None
    return HistoryMark(
        seq=selection.last_seq,
        gtid=last.gtid,
        file_created_s=selection.file_created_s,
        commit_time_us=last.commit_time_us if last.commit_time_us > 0 else None,
        server_id=selection.server_id,
        gtids=shown if shown is not None and len(shown) <= _MOST_GTIDS else None,
    )


def _as_canal_writes(gtids: str, flavor: Flavor) -> str:
    """Returns the GTIDs as Canal's positions have them: MySQL's set, or the last GTID of each domain of MariaDB."""
    if flavor == "mysql":
        return gtids
    return str(MariadbPosition.of_state(MariadbGtid.parse(gtid) for gtid in gtids.split(",")))


def with_start(result: TableResult, seconds: float) -> TableResult:
    """Returns the result of a table that also waited so long for Spark, before its own time began."""
    started_s = round(seconds + result.phases.get("start", 0.0), 3)
    return result.model_copy(update={"phases": result.phases | {"start": started_s}}) if started_s else result


def add_phases(sums: dict[str, float], phases: Mapping[str, float]) -> None:
    """Adds the seconds of phases to the sums of them."""
    for phase, seconds in phases.items():
        sums[phase] = sums.get(phase, 0.0) + seconds


def phases_of(results: Iterable[TableResult]) -> dict[str, float]:
    """Returns the seconds by phase of a batch: the longest wait for Spark, since the tables wait for the same start,
    and the sums of the other phases, which exceed the time of the clock where tables are merged in parallel."""
    sums: dict[str, float] = {}
    for result in results:
        add_phases(sums, {phase: seconds for phase, seconds in result.phases.items() if phase != "start"})
        if "start" in result.phases:
            sums["start"] = max(sums.get("start", 0.0), result.phases["start"])
    return sums


def phases_text(phases: Mapping[str, float]) -> str:
    """Returns a text like ``Spark start 6.2 s, read 0.3 s, merge 1.4 s``, without phases that round to nothing."""
    shown = {phase: f"{seconds:.1f} s" for phase, seconds in phases.items() if seconds >= 0.05}
    return ", ".join(f"{name} {shown[phase]}" for phase, name in _PHASES.items() if phase in shown)


def counted(count: int, singular: str, plural: str) -> str:
    """Returns a number with its noun."""
    return f"{count:,} {singular if count == 1 else plural}"


def in_brackets(text: str) -> str:
    """Returns the end of a sentence: the text in brackets, or nothing."""
    return f" ({text})" if text else ""


def _log_keys(phases: Mapping[str, float]) -> dict[str, float]:
    return {f"{phase}_s": round(seconds, 3) for phase, seconds in phases.items()}


@dataclass
class TableStats:
    """Statistics of a run for one table: sums over its batches."""

    table: str
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    skipped: int = 0
    null_dates: int = 0
    files: int = 0
    batches: int = 0
    """Batches with a result for the table."""
    seconds: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds by phase."""
    delta_version: int | None = None
    parked: str | None = None
    """The reason, if the run left the table out."""

    @property
    def changes(self) -> int:
        """The rows that the run changed in the Delta table."""
        return self.inserted + self.updated + self.deleted

    def __str__(self) -> str:
        """Returns a text like ``1,203 inserted, 317 updated, 0 deleted in 1 batch; version 4711, 2.1 s``."""
        rows = f"{self.inserted:,} inserted, {self.updated:,} updated, {self.deleted:,} deleted"
        if self.skipped:
            rows += f", {self.skipped:,} skipped"
        version = "no version" if self.delta_version is None else f"version {self.delta_version}"
        where = f"in {counted(self.batches, 'batch', 'batches')}; {version}, {self.seconds:.1f} s"
        return f"{rows} {where}{in_brackets(phases_text(self.phases))}"

    def add(self, result: TableResult) -> None:
        """Adds the result of a batch."""
        if result.parked is not None:
            self.parked = result.parked.reason
            return
        if result.released or result.idle:
            return
        self.batches += 1
        self.inserted += result.inserted
        self.updated += result.updated
        self.deleted += result.deleted
        self.skipped += result.skipped
        self.null_dates += result.null_dates
        self.files += result.files
        self.seconds += result.seconds
        add_phases(self.phases, result.phases)
        if result.delta_version is not None:
            self.delta_version = result.delta_version


class RunStats:
    """Statistics of a run: sums over its batches, in all and for each table."""

    def __init__(self) -> None:
        self.tables: dict[str, TableStats] = {}
        self.batches = 0
        self.transactions = 0
        self.row_events = 0
        self.bytes = 0
        self.phases: dict[str, float] = {}
        """Seconds by phase, see :func:`phases_of`."""
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """The time since the run began."""
        return time.monotonic() - self._began

    def add(self, results: Iterable[TableResult], manifest: Manifest | None = None) -> None:
        """Adds the results of a batch that was merged."""
        if manifest is not None:
            self.batches += 1
            self.transactions += manifest.transactions
            self.row_events += manifest.row_events
            self.bytes += manifest.bytes
        results = list(results)
        add_phases(self.phases, phases_of(results))
        for result in results:
            self.tables.setdefault(result.table, TableStats(result.table)).add(result)

    def log(self) -> None:
        """Logs a line for each table, and a warning for each one in which dates became null or that was left out. The
        last line has the sums of the run, if it merged a batch."""
        for name, stats in sorted(self.tables.items()):
            if stats.batches:
                _log.say(
                    f"{name}: {stats}.",
                    "table applied",
                    table=name,
                    changes=stats.changes,
                    inserted=stats.inserted,
                    updated=stats.updated,
                    deleted=stats.deleted,
                    skipped=stats.skipped,
                    seconds=round(stats.seconds, 3),
                    files=stats.files,
                    batches=stats.batches,
                    delta_version=stats.delta_version,
                    **_log_keys(stats.phases),
                )
            if stats.parked is not None:
                _log.warning("table left out", table=name, reason=stats.parked)
            if stats.null_dates:
                _log.warning("zero or impossible dates became null", table=name, values=stats.null_dates)
        if self.batches:
            _log.say(
                f"The run merged {counted(self.batches, 'batch', 'batches')} in {self.seconds:.1f} s"
                f"{in_brackets(phases_text(self.phases))}.",
                "run applied",
                batches=self.batches,
                transactions=self.transactions,
                row_events=self.row_events,
                seconds=round(self.seconds, 3),
                **_log_keys(self.phases),
            )


@contextmanager
def run_stats() -> Iterator[RunStats]:
    """Yields statistics that are logged at the end of the block, even if it fails."""
    stats = RunStats()
    try:
        yield stats
    finally:
        stats.log()
