"""Brings parked tables back: applies what the store has of them, and lets apply take them again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from cdc.base.errors import CdcError, LeaseHeldError, NeedsSnapshotError
from cdc.base.log import get_logger
from cdc.batches.manifest import TableResult
from cdc.client import open_meta, open_store
from cdc.lake.apply.batch import result_of
from cdc.lake.delta.proof import prove_known
from cdc.lake.delta.tables import target_of
from cdc.lake.jobs.catch_up import TransactionRange, catch_up
from cdc.lake.jobs.job import SUBSCRIBER, Job, job, table_sessions
from cdc.lake.jobs.parked import waiting_tables
from cdc.lake.jobs.results import CatchUp
from cdc.meta import Subscription, UnknownColumns

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdc.config import DestinationConfig
    from cdc.lake.apply.schema.column_reading import ColumnReading

_log = get_logger(__name__)


def retry_parked(config: DestinationConfig) -> list[CatchUp]:
    """Tries the tables again that were parked because of an error, each once. Returns the results of the tables that
    came back. A table that fails again stays parked, with the new reason."""
    results = []
    for table in waiting_tables(config):
        try:
            with job(config, table, None, archived=_needs_archive(config, table)) as mine:
                results.append(_retry(mine))
        except LeaseHeldError as error:  # a snapshot or a replay works on it
            _log.info("parked table left alone", table=table, reason=str(error))
        except CdcError as error:
            _log.warning("parked table failed again", table=table, reason=str(error))
    return results


def _needs_archive(config: DestinationConfig, table: str) -> bool:
    """Whether a table waits for changes that retention has removed: a replay that began in the archive was cut off."""
    if config.store.archive.url is None:
        return False
    subscription = open_meta(config).read().subscriptions.get(SUBSCRIBER) or Subscription()
    parked = subscription.parked.get(table)
    return parked is not None and parked.keep_seq is not None and parked.keep_seq < open_store(config).removed_seq()


def _retry(mine: Job) -> CatchUp:
    parked = mine.batches.meta.read().subscription(SUBSCRIBER).parked[mine.table]
    try:
        done = bring_level(mine, parked.keep_seq or 0)
    except CdcError as error:
        due: Literal["snapshot", "retry"] = "snapshot" if isinstance(error, NeedsSnapshotError) else "retry"
        columns = UnknownColumns.of(error)
        is_read = due == "snapshot" and columns is None
        mine.mark(due, str(error), None if is_read else parked.keep_seq, columns=columns)
        raise
    _log.info("parked table came back", table=mine.table, batches=done.batches, row_events=done.row_events)
    return done


def bring_level(
    mine: Job,
    after_seq: int,
    progress: Callable[[CatchUp], object] = lambda _: None,
    reading: ColumnReading | None = None,
) -> CatchUp:
    """Applies the changes of a parked table until it has reached the end of the outstanding batches, and unparks it.

    ``after_seq``: the table is complete up to there, even if its own position lies before. ``reading``: the values that
    only the server knew after one of the statements. Raises what stopped the table.
    """
    target = target_of(mine.config, mine.table)
    while True:
        subscription = mine.subscription()
        # A table that failed before it was created has neither rows nor a record: the catch-up creates it.
        is_new = subscription.table(mine.table) is None and target.state() is None
        done = bring_to(mine, TransactionRange(after_seq, mine.end_of_batches(), reading), progress, is_new=is_new)
        state = target.state()
        if is_new and state is None:  # no change in the store makes it, and apply creates it once one does
            result = TableResult(table=mine.table)
        else:
            result = result_of(mine.table, prove_known(target, state, subscription))
        if mine.unpark(result, done.level_seq):
            return done


def bring_to(
    mine: Job, span: TransactionRange, progress: Callable[[CatchUp], object] = lambda _: None, *, is_new: bool = False
) -> CatchUp:
    """Applies the changes of a parked table in a range, and leaves it parked. ``is_new``: there is no table yet. Raises
    what stopped the table."""
    config, subscription, target = mine.config, mine.subscription(), target_of(mine.config, mine.table)
    if not is_new:
        prove_known(target, target.state(), subscription)
    sessions = table_sessions(config)
    return catch_up(config, mine.table, mine.batches, subscription, sessions, span, progress=progress)
