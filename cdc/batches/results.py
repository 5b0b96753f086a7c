"""Results of merges: validated, recorded in the meta, and summed up for the operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from cdc.batches.manifest import Manifest, TableResult
from cdc.errors import UsageError
from cdc.log import get_logger
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


def record_tables(known: Subscription, results: Iterable[TableResult]) -> None:
    """Records the lake's tables, as a merge left them, in the subscription.

    A record never goes back: if two drivers merged the same batch, the slower one may report an older version.
    """
    for result in results:
        if result.delta_id is None or result.delta_version is None:
            continue
        before = known.table(result.table)
        record = TableRecord(result.generation, result.delta_version, result.applied_seq or 0, result.delta_id)
        if before is not None and before.delta_id == record.delta_id:
            is_ahead = (before.generation, before.applied_seq) > (record.generation, record.applied_seq)
            record = before if is_ahead else replace(record, version=max(before.version, record.version))
        known.tables[result.table] = record.text


def history_mark(manifest: Manifest) -> HistoryMark | None:
    """Returns the mark that later shows whether the source still has the history up to the batch's end; None if the
    manifest has nothing to recognise it by."""
    last = manifest.positions.last
    if last.gtid is None and last.file_created_s is None:
        return None
    return HistoryMark(seq=manifest.last_seq, gtid=last.gtid, file_created_s=last.file_created_s)


class RunStats:
    """Statistics of a run: sums over the results of its batches."""

    def __init__(self) -> None:
        self._null_dates: Counter[str] = Counter()

    def add(self, results: Iterable[TableResult]) -> None:
        """Adds the results of a batch."""
        for result in results:
            if result.null_dates:
                self._null_dates[result.table] += result.null_dates

    def log(self) -> None:
        """Logs a warning for each table in which zero or impossible dates became null."""
        for table, values in sorted(self._null_dates.items()):
            _log.warning("zero or impossible dates became null", table=table, values=values)


@contextmanager
def run_stats() -> Iterator[RunStats]:
    """Yields statistics that are logged at the end of the block, even if it fails."""
    stats = RunStats()
    try:
        yield stats
    finally:
        stats.log()
