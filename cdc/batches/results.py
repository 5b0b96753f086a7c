"""Results of merges: validated, recorded in the meta, and summed up for the operator."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from cdc.base.errors import UsageError
from cdc.base.log import get_logger
from cdc.batches.manifest import Manifest, TableResult
from cdc.meta import HistoryMark, Subscription, TableRecord

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


def history_mark(manifest: Manifest) -> HistoryMark | None:
    """Returns the mark that later shows whether the source still has the history up to the batch's end; None if the
    manifest has nothing to recognise it by."""
    last = manifest.positions.last
    if last.gtid is None and last.file_created_s is None:
        return None
    return HistoryMark(seq=manifest.last_seq, gtid=last.gtid, file_created_s=last.file_created_s)


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
    delta_version: int | None = None
    parked: str | None = None
    """The reason, if the run left the table out."""

    @property
    def changes(self) -> int:
        """The rows that the run changed in the Delta table."""
        return self.inserted + self.updated + self.deleted

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
        for result in results:
            self.tables.setdefault(result.table, TableStats(result.table)).add(result)

    def log(self) -> None:
        """Logs a line for each table, and a warning for each one in which dates became null or that was left out."""
        for name, stats in sorted(self.tables.items()):
            if stats.batches:
                _log.info(
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
                )
            if stats.parked is not None:
                _log.warning("table left out", table=name, reason=stats.parked)
            if stats.null_dates:
                _log.warning("zero or impossible dates became null", table=name, values=stats.null_dates)


@contextmanager
def run_stats() -> Iterator[RunStats]:
    """Yields statistics that are logged at the end of the block, even if it fails."""
    stats = RunStats()
    try:
        yield stats
    finally:
        stats.log()
