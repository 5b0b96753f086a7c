"""What a run tells its operator about the tables, beside the results that the manifests keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from cdc.batches.manifest import TableResult
from cdc.log import get_logger

_log = get_logger(__name__)


class RunReport:
    """Adds up the results of a run's batches."""

    def __init__(self) -> None:
        self._null_dates: Counter[str] = Counter()

    def add(self, results: Iterable[TableResult]) -> None:
        """Count a merged batch in."""
        for result in results:
            if result.null_dates:
                self._null_dates[result.table] += result.null_dates

    def tell(self) -> None:
        """Log a warning for each table of which zero or impossible dates became null."""
        for table, values in sorted(self._null_dates.items()):
            _log.warning("zero or impossible dates became null", table=table, values=values)


@contextmanager
def run_report() -> Iterator[RunReport]:
    """A report that is told at the end of the block, however that ends."""
    report = RunReport()
    try:
        yield report
    finally:
        report.tell()
