"""The parts that all jobs on a table share: the parked table, its locks, and its return to apply."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from cdc.base.errors import CdcError, UsageError
from cdc.base.log import get_logger
from cdc.base.targets import split_table
from cdc.batches import parking
from cdc.batches.manifest import TableResult
from cdc.batches.table_batches import TableChangeReader
from cdc.client import open_meta, open_table_batches
from cdc.lake.runtime import session
from cdc.meta import ParkedTable, Subscription, UnknownColumns

if TYPE_CHECKING:
    from cdc.binlog.sql.schemas import TableComments
    from cdc.config import DestinationConfig
    from cdc.lake.runtime.session import TableSessions

SUBSCRIBER = "apply"
_log = get_logger(__name__)


@dataclass(frozen=True)
class Job:
    """The right to work on one parked table."""

    config: DestinationConfig
    table: str
    batches: TableChangeReader

    def subscription(self) -> Subscription:
        """Returns the subscription as a merge of this table alone needs it: with the record of this table only, and
        without parked tables."""
        subscription = self.batches.meta.read().subscription(SUBSCRIBER)
        return subscription.model_copy(
            update={
                "parked": {},
                "tables": {name: text for name, text in subscription.tables.items() if name == self.table},
            }
        )

    def comments(self) -> TableComments | None:
        """Returns the comments that the source's table had when capture read them last; None if they are not known."""
        newest = self.batches.reader.newest_schemas()
        return None if newest is None else newest[1].comments_of(self.table)

    def has_changes(self, after_seq: int, until_seq: int) -> bool:
        """Whether the store has changes of the table after ``after_seq``, up to ``until_seq``."""
        with self.batches.next(self.table, after_seq, until_seq) as manifest:
            return manifest is not None

    def keep_from(self, seq: int) -> None:
        """Lets retention keep the transactions after ``seq`` for this table."""
        parking.keep_from(self.batches.meta, SUBSCRIBER, self.table, seq)

    def mark(
        self,
        due: Literal["snapshot", "retry", "hold"],
        reason: str,
        keep_seq: int | None,
        *,
        loaded: str | None = None,
        columns: UnknownColumns | None = None,
    ) -> None:
        """Changes why the table is parked."""
        record = ParkedTable(
            due=due, reason=reason, since=datetime.now(UTC), keep_seq=keep_seq, loaded=loaded, columns=columns
        )
        parking.park(self.batches.meta, SUBSCRIBER, self.table, record)

    def record(self) -> ParkedTable | None:
        """Returns why the table is parked; None if it is not."""
        return self.batches.meta.read().subscription(SUBSCRIBER).parked.get(self.table)

    def note(self, failure: CdcError) -> None:
        """Records why the table is still parked. What the next try needs stays in the store, if that may help."""
        record = self.record()
        if record is not None:
            is_kept = record.due != "snapshot" or failure.retryable or record.columns is not None
            loaded = record.loaded if failure.retryable else None
            keep_seq = record.keep_seq if is_kept else None
            self.mark(record.due, str(failure), keep_seq, loaded=loaded, columns=record.columns)

    def columns(self) -> UnknownColumns | None:
        """Returns the columns that a snapshot of the table must read; None: all of them."""
        record = self.record()
        return None if record is None else record.columns

    def keep_seq(self) -> int:
        """Returns a seq up to which the table is complete, by its record."""
        record = self.record()
        return 0 if record is None else record.keep_seq or 0

    def end_of_batches(self) -> int:
        """Returns the seq that the table must reach: the end of the last outstanding batch, else the cursor."""
        return self.batches.meta.read().subscription(SUBSCRIBER).end_of_batches()

    def unpark(self, result: TableResult, level_seq: int) -> bool:
        """Lets apply take the table again if it is level. ``level_seq``: it has all changes up to this seq."""
        return parking.unpark(self.batches.meta, SUBSCRIBER, result, level_seq) is None


@contextmanager
def job(config: DestinationConfig, table: str, record: ParkedTable | None, *, archived: bool = False) -> Iterator[Job]:
    """Parks the table, and yields the right to work on it, which ends with the block. The table stays parked unless
    the block unparks it.

    ``record``: why it is parked; None if it must be parked already. ``archived``: whether the job also reads what only
    the archive of the store has. Raises LeaseHeldError if another job works on the
    table, UsageError if it is not parked or not included.
    """
    require_included(config, table)
    batches = open_table_batches(config, archived="release" if archived else "no")
    with parking.job_lock(batches.meta, table):
        if record is not None:
            parking.park(batches.meta, SUBSCRIBER, table, record)
        elif table not in batches.meta.read().subscription(SUBSCRIBER).parked:
            raise UsageError(f"table {table} is not parked", remedy="`cdc status` lists the parked tables.")
        yield Job(config, table, batches)


@contextmanager
def repair_job(config: DestinationConfig, table: str, keep_seq: int, reason: str) -> Iterator[Job]:
    """Parks the table for a job that leaves it usable at any moment. If the job fails or is killed, the next run brings
    the table level again from the position that it has then; a table that waited for something else still does.

    ``keep_seq``: the table is complete up to there, and retention keeps what follows."""
    before = open_meta(config).read().subscription(SUBSCRIBER).parked.get(table)
    now = datetime.now(UTC)
    kept = keep_seq if before is None or before.keep_seq is None else min(keep_seq, before.keep_seq)
    # A table that waits for a snapshot, or was taken back, must not come level by itself if this process is killed.
    due = "retry" if before is None else before.due
    record = ParkedTable(due=due, reason=reason, since=now, keep_seq=kept)
    with job(config, table, record, archived=True) as mine:
        try:
            yield mine
        except CdcError as error:
            mine.note(error)
            raise


def require_included(config: DestinationConfig, table: str) -> None:
    """Raises UsageError if this is not the name of a table that the configuration includes."""
    if not config.tables.includes(*split_table(table)):
        raise UsageError(
            f"table {table} is not among the tables that {config.name} captures",
            remedy="Correct the name, or tables.include and tables.exclude.",
        )


def raise_failure(what: str, failures: Mapping[str, CdcError]) -> None:
    """Raises the first error that a retry does not help, else the first one. Logs all of them if there are several.
    Does nothing if there are none."""
    if len(failures) > 1:
        for table, failure in failures.items():
            _log.error(f"{what} failed", table=table, reason=str(failure))
    if failures:
        raise next((failure for failure in failures.values() if not failure.retryable), next(iter(failures.values())))


def table_sessions(config: DestinationConfig) -> TableSessions:
    """Returns this process's warm Spark sessions."""
    return session.acquire(config.spark).tables
