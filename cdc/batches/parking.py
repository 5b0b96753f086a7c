"""Parked tables: apply leaves them out, so that the others go on, until a job has brought them level again.

A table is parked by the ack of a batch that left it out, or by a job (a snapshot, a replay). A job has the parked table
for itself: it holds the table's *job lock* for all of its duration. A merge of rows shares the table's *commit lock*
with other merges from its look at the meta until its commit; parking and schema changes hold it exclusively. So once a
table is parked, no merge of a batch commits to it any more, and parking waits for no more than one commit. Merges do
not wait for each other: an orphan and its successor may run at the same time, as Delta's transaction versions allow.

Apply takes the table again only when its applied position has reached the end of the last outstanding batch. The same
change of the meta that looks at these batches removes the table's record, so a later merge of one of them finds the
table ahead of it and does nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from cdc.base.errors import LeaseHeldError, UsageError
from cdc.base.log import get_logger
from cdc.base.targets import encode_name, split_table
from cdc.batches.results import record_tables
from cdc.meta import Meta, ParkedTable, Subscription

if TYPE_CHECKING:
    from cdc.batches.manifest import TableResult
    from cdc.config import TablesConfig

COMMIT_WAIT_S = 3600.0
"""Longest wait for a commit to a table. An orphan ends at the check of its lease before its next statement, so this is
the longest time of one statement, which may rewrite a whole table. After it the batch fails, and the next run waits
again."""
_EXCLUDED = "tables.include and tables.exclude left the table out, so that it lacks its changes since then."
QUIET_WAIT_S = 10.0
"""A wait that takes longer is logged, with the process that holds the lock."""
_log = get_logger(__name__)


class ParkingRecords(ABC):
    """The records of parked tables: in a meta that this process changes, or behind a server, which alone changes it.
    The functions below describe the methods."""

    @abstractmethod
    def park(self, subscriber: str, table: str, parked: ParkedTable) -> ParkedTable | None: ...

    @abstractmethod
    def keep_from(self, subscriber: str, table: str, keep_seq: Annotated[int, Field(ge=0)] | None = None) -> None: ...

    @abstractmethod
    def unpark(self, subscriber: str, result: TableResult, level_seq: int) -> int | None: ...

    @abstractmethod
    def release_parked(self, subscriber: str, table: str) -> None: ...


class _InMeta(ParkingRecords):
    """Changes the records in a meta."""

    def __init__(self, meta: Meta) -> None:
        self._meta = meta

    def park(self, subscriber: str, table: str, parked: ParkedTable) -> ParkedTable | None:
        with self._meta.change() as state:
            subscription = state.subscription(subscriber)
            before = subscription.parked.get(table)
            since = parked.since if before is None else before.since  # it stands still since then
            subscription.parked[table] = parked.model_copy(update={"since": since})
            return before

    def keep_from(self, subscriber: str, table: str, keep_seq: int | None = None) -> None:
        with self._meta.change() as state:
            subscription = state.subscription(subscriber)
            subscription.parked[table] = _require(subscription, table).model_copy(update={"keep_seq": keep_seq})

    def unpark(self, subscriber: str, result: TableResult, level_seq: int) -> int | None:
        with self._meta.change() as state:
            subscription = state.subscription(subscriber)
            _require(subscription, result.table)
            end_seq = subscription.end_of_batches()
            if level_seq < end_seq:
                return end_seq
            record_tables(subscription, [result])
            del subscription.parked[result.table]
            return None

    def release_parked(self, subscriber: str, table: str) -> None:
        with self._meta.change() as state:
            state.subscription(subscriber).parked.pop(table, None)


def records_of(meta: Meta) -> ParkingRecords:
    """Returns the records of the parked tables in a meta."""
    return meta if isinstance(meta, ParkingRecords) else _InMeta(meta)


def park_left_out(subscription: Subscription, results: Iterable[TableResult], now: datetime) -> None:
    """Parks the tables that a merge left out, and releases those that are gone before they were loaded; for the change
    of the meta that acks the batch."""
    for result in results:
        if result.released and subscription.table(result.table) is None:
            subscription.parked.pop(result.table, None)
            _log.info("parked table released, as the source has dropped or renamed it", table=result.table)
        if result.parked is None:
            continue
        before = subscription.parked.get(result.table)
        table = ParkedTable(
            due=result.parked.due,
            reason=result.parked.reason,
            since=now,
            keep_seq=result.parked.keep_seq,
            columns=result.parked.columns,
        )
        subscription.parked[result.table] = table if before is None else _further(before, table)
        _log.warning("table parked", table=result.table, due=table.due, reason=table.reason)


def excluded_tables(subscription: Subscription, tables: TablesConfig, among: Iterable[str]) -> list[str]:
    """Returns the tables of the lake, among the given ones, that the configuration leaves out and that do not wait for
    a snapshot already."""
    return [
        table
        for table in among
        if table in subscription.tables
        and not tables.includes(*split_table(table))
        and (table not in subscription.parked or subscription.parked[table].due != "snapshot")
    ]


def park_excluded(subscription: Subscription, excluded: Iterable[str], now: datetime) -> None:
    """Parks tables that the configuration leaves out, for a change of the meta. Nobody takes their changes from now on,
    so a table that is included again has to be read from the source."""
    for table in excluded:
        subscription.parked[table] = ParkedTable(due="snapshot", reason=_EXCLUDED, since=now)
        _log.info("table parked, as the configuration leaves it out", table=table)


def _further(before: ParkedTable, now: ParkedTable) -> ParkedTable:
    """Returns the record of a table that is parked again. It keeps what it needs from the store, unless it will be read
    from the source as a whole."""
    if before.due == "snapshot":
        return before
    if now.due == "snapshot" and now.columns is None:
        return now.model_copy(update={"since": before.since})
    return now.model_copy(update={"since": before.since, "keep_seq": before.keep_seq})


def park(meta: Meta, subscriber: str, table: str, parked: ParkedTable) -> ParkedTable | None:
    """Parks a table, and returns its former record. Waits until a running commit to the table is done, so that none
    follows. Raises LeaseHeldError, UsageError."""
    with commit_lock(meta, table, shared=False):
        return record_parked(meta, subscriber, table, parked)


def record_parked(meta: Meta, subscriber: str, table: str, parked: ParkedTable) -> ParkedTable | None:
    """Does what :func:`park` does, for a caller who holds the table's commit lock exclusively."""
    return records_of(meta).park(subscriber, table, parked)


def keep_from(meta: Meta, subscriber: str, table: str, keep_seq: int | None) -> None:
    """Changes what a parked table needs from the store. Raises UsageError if it is not parked."""
    records_of(meta).keep_from(subscriber, table, keep_seq)


def unpark(meta: Meta, subscriber: str, result: TableResult, level_seq: int) -> int | None:
    """Lets apply take a table again if it has reached the end of all outstanding batches, and records it in the meta.

    ``result`` has the table's state. ``level_seq``: the table has all changes up to this seq; that may be more than its
    applied position if the store has no later changes of it. Returns None if the table was unparked, else the seq that
    it must reach first. Raises UsageError if the table is not parked.
    """
    return records_of(meta).unpark(subscriber, result, level_seq)


def release_parked(meta: Meta, subscriber: str, table: str) -> None:
    """Removes the record of a table that does not exist any more. Does nothing if there is none."""
    records_of(meta).release_parked(subscriber, table)


def _require(subscription: Subscription, table: str) -> ParkedTable:
    parked = subscription.parked.get(table)
    if parked is None:
        raise UsageError(f"table {table} is not parked", remedy="`cdc status` lists the parked tables.")
    return parked


# --- locks -----------------------------------------------------------------------------------------------------------


@contextmanager
def commit_lock(meta: Meta, table: str, *, shared: bool) -> Iterator[None]:
    """Holds the lock that merges share from their look at the meta until their commit to a table. Raises LeaseHeldError
    after COMMIT_WAIT_S."""
    name, what = _name("commit", table), f"a commit to table {table}"
    with ExitStack() as held:
        try:
            held.enter_context(meta.lock(name, what, wait_s=QUIET_WAIT_S, shared=shared))
        except LeaseHeldError as error:
            _log.info("waiting for another commit to the table", table=table, reason=error.message)
            held.enter_context(meta.lock(name, what, wait_s=COMMIT_WAIT_S - QUIET_WAIT_S, shared=shared))
        yield


def job_lock(meta: Meta, table: str) -> AbstractContextManager[None]:
    """Returns the lock of the one job (snapshot, replay, catch-up) that may work on a table. Entering it raises
    LeaseHeldError, naming the process, if another one has it."""
    return meta.lock(_name("job", table), f"another snapshot or replay of table {table}")


def _name(kind: str, table: str) -> str:
    db, name = split_table(table)
    return f"{kind}-{encode_name(db)}.{encode_name(name)}"


class TableGate:
    """Apply's way to a table: no merge of a parked one."""

    def __init__(self, meta: Meta, subscriber: str) -> None:
        self._meta = meta
        self._subscriber = subscriber

    def has_job(self, table: str) -> bool:
        """Whether a snapshot or a replay works on the table."""
        try:
            with job_lock(self._meta, table):
                return False
        except LeaseHeldError:
            return True

    @contextmanager
    def enter(self, table: str, *, alone: bool = False) -> Iterator[ParkedTable | None]:
        """Holds the table's commit lock while the block runs, shared unless ``alone``, for schema changes of several
        commits. Yields the record of a parked table, which the block must leave alone, else None."""
        with commit_lock(self._meta, table, shared=not alone):
            yield self._meta.read().subscription(self._subscriber).parked.get(table)
