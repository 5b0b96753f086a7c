"""Brings parked tables back: applies what the store has of them, and lets apply take them again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from cdc.base.errors import CdcError, LeaseHeldError, NeedsSnapshotError, TablesLeftOutError
from cdc.base.log import get_logger
from cdc.base.targets import split_table
from cdc.batches.manifest import TableResult
from cdc.client import open_meta, open_store
from cdc.lake.jobs.job import SUBSCRIBER, Job, job, table_sessions
from cdc.meta import Subscription, UnknownColumns

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdc.config import DestinationConfig
    from cdc.lake.apply.schema.column_reading import ColumnReading
    from cdc.lake.jobs.catch_up import CatchUp

_log = get_logger(__name__)


def waiting_tables(config: DestinationConfig) -> list[str]:
    """Returns the included tables that are parked because of an error, and may come back when they are tried again."""
    subscription = open_meta(config).read().subscriptions.get(SUBSCRIBER)
    waiting = (
        []
        if subscription is None
        else sorted(table for table, parked in subscription.parked.items() if parked.due == "retry")
    )
    return [table for table in waiting if config.tables.includes(*split_table(table))]


class TableLeftOut(NamedTuple):
    """A table that apply leaves out."""

    table: str
    sentence: str
    """The table, the reason and the way back."""
    fails: bool
    """Whether a run ends as failed because of it, if ``apply.on_parked`` is ``fail``."""


def left_out(config: DestinationConfig) -> list[TableLeftOut]:
    """Returns the included tables that are parked, by name. One that waits for its first snapshot, or was taken back by
    an operator, fails no run."""
    subscription = open_meta(config).read().subscriptions.get(SUBSCRIBER) or Subscription()
    return [
        TableLeftOut(
            table,
            f"{table} is left out: {parked.reason} {way_back(parked.due, config.name, table)}",
            parked.due == "retry" or (parked.due == "snapshot" and subscription.table(table) is not None),
        )
        for table, parked in sorted(subscription.parked.items())
        if config.tables.includes(*split_table(table))
    ]


def way_back(due: str, destination: str, table: str) -> str:
    """Returns what brings a parked table back, as a sentence."""
    if due == "snapshot":
        return f"`cdc snapshot {destination} {table}` brings it back."
    return "Each run tries it again." if due == "retry" else f"`cdc replay {destination} {table}` brings it back."


def require_none_left_out(config: DestinationConfig, say: Callable[[str], object]) -> None:
    """Tells which tables are left out, by ``say``. Raises TablesLeftOutError if that fails the run."""
    tables = left_out(config)
    for table in tables:
        say(table.sentence)
    failing = [table.table for table in tables if table.fails]
    if failing and config.apply.on_parked == "fail":
        raise TablesLeftOutError(
            f"{len(failing)} {'table is' if len(failing) == 1 else 'tables are'} left out: {', '.join(failing)}",
            place=f"destination {config.name}",
            remedy="Everything else is applied and acked. The reasons and the ways back are above; with "
            "apply.on_parked: warn such a run succeeds.",
        )


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
    from cdc.lake.apply.batch import result_of
    from cdc.lake.delta.proof import prove_known
    from cdc.lake.delta.tables import target_of
    from cdc.lake.jobs.catch_up import TransactionRange, catch_up

    config = mine.config
    while True:
        subscription = mine.subscription()
        target = target_of(config, mine.table)
        # A table that failed before it was created has neither rows nor a record: the catch-up creates it.
        is_new = subscription.table(mine.table) is None and target.state() is None
        if not is_new:
            prove_known(target, target.state(), subscription)
        until_seq = mine.end_of_batches()
        sessions = table_sessions(config)
        done = catch_up(
            config,
            mine.table,
            mine.batches,
            subscription,
            sessions,
            TransactionRange(after_seq, until_seq, reading),
            progress=progress,
        )
        state = target.state()
        if is_new and state is None:  # no change in the store makes it, and apply creates it once one does
            result = TableResult(table=mine.table)
        else:
            result = result_of(mine.table, prove_known(target, state, subscription))
        if mine.unpark(result, done.level_seq):
            return done
