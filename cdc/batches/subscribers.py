"""Changes of subscribers: add and remove them, roll back their batches, skip what they filter out, accept a gap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from cdc.base.errors import GapChangedError, LeaseHeldError, UsageError
from cdc.base.log import get_logger
from cdc.base.units import iso_time
from cdc.meta import Gap, Meta, Subscription, TableRecord
from cdc.meta.state import check_name

if TYPE_CHECKING:
    from cdc.store.reader.batch_builder import TableFilter  # loads NumPy

_log = get_logger(__name__)


class SupportsSkipping(Protocol):
    """The part of :class:`cdc.store.reader.reader.StoreReader` that skipping needs."""

    def skippable_until(self, after_seq: int, table_filter: TableFilter | None = None) -> int: ...


def make_filter(pattern: str | None) -> TableFilter | None:
    """Returns the filter of a subscription; None: all tables. Raises UsageError."""
    if pattern is None:
        return None
    from cdc.store.reader.batch_builder import TableFilter  # imports NumPy, which most subscribers do not need

    return TableFilter(pattern)


def add_subscriber(meta: Meta, name: str, first_batch: int, removed_seq: int, begins_seq: int = 0) -> Subscription:
    """Adds a subscriber, and returns it; an existing one stays as it is.

    A new one begins at the store's first transaction, behind ``removed_seq`` and the store's beginning, and its record
    says so. A warning is logged if retention has removed transactions.
    """
    with meta.change() as state:
        is_new = name not in state.subscriptions
        new = Subscription(next_batch=first_batch, acked_seq=removed_seq, since_seq=max(removed_seq, begins_seq))
        subscription = state.subscriptions.setdefault(name, new)
        subscription = subscription.model_copy(deep=True)
    if is_new and removed_seq:
        _log.warning(
            "retention has removed the store's beginning: the new subscriber begins at the first transaction left",
            subscriber=name,
            removed_until=removed_seq,
        )
    return subscription


def remove_subscriber(meta: Meta, name: str, now: datetime) -> list[int]:
    """Removes a subscriber; returns the ids of its outstanding batches.

    Raises UsageError if there is no such subscriber, LeaseHeldError while one of its leases is live.
    """
    with meta.change() as state:
        subscription = state.subscription(name)
        for entry in subscription.outstanding:
            if entry.expires > now:
                raise LeaseHeldError(
                    f"batch {entry.batch} is held by {entry.owner} until {iso_time(entry.expires)}",
                    place=f"subscriber {name}",
                    remedy="Ack it or roll it back first, or wait until its lease has expired.",
                )
        del state.subscriptions[name]
        return [entry.batch for entry in subscription.outstanding]


def roll_back_from(subscription: Subscription, batch: int) -> list[int]:
    """Rolls back an outstanding batch and all later ones; returns their ids."""
    removed = subscription.remove_from(batch)
    for entry in removed:
        subscription.remember(entry, "rolled_back")
    return [entry.batch for entry in removed]


def skip_unwanted(meta: Meta, reader: SupportsSkipping, name: str) -> None:
    """Moves the cursor of a subscriber without outstanding batches over what it does not get: transactions that its
    filter leaves out, and positions. Otherwise they would hold back retention, and be searched again at every get."""
    seen = meta.read().subscriptions.get(name)
    if seen is None or seen.outstanding:
        return
    upto = reader.skippable_until(seen.acked_seq, make_filter(seen.filter))
    if upto <= seen.acked_seq:
        return
    with meta.change() as state:
        subscription = state.subscriptions.get(name)
        if (
            subscription is not None and subscription == seen
        ):  # else there was a get or an ack meanwhile: the next get does it
            subscription.acked_seq = upto


# gaps -------------------------------------------------------------------------------------------------------------


def beginning_gap(subscription: Subscription, subscriber: str, first: int) -> Gap:
    """Returns the gap that :func:`accept_beginning` would accept. Raises UsageError if nothing is missing, or the gap
    was accepted before."""
    position, since = subscription.position(), subscription.since_seq
    if position < first:
        return _gap(position, first, "the store begins behind the cursor")
    if since and not subscription.tables and not subscription.has_accepted(0, since):
        return _gap(0, since, "nothing proves what tables had before the subscriber began")
    raise UsageError(
        f"{subscriber} has no gap that was not accepted before: its cursor is at {position}, and the store begins at "
        f"{first}",
        remedy="For a Delta table that has lost changes, name that table.",
    )


def table_gaps(subscription: Subscription, tables: Mapping[str, TableRecord | None]) -> list[Gap]:
    """Returns the gaps that :func:`accept_tables` would accept. Raises UsageError for a table that has lost nothing
    since the last ack."""
    gaps = []
    for name, record in tables.items():
        if record is not None and subscription.table(name) == record:
            raise UsageError(
                f"the Delta table of {name} is as it was at the last ack",
                remedy="There is nothing to accept: leave it out.",
            )
        reason = "the Delta table is gone" if record is None else "the Delta table is taken as it is"
        gaps.append(_gap(0, subscription.position(), reason, name))
    return gaps


def accept_beginning(meta: Meta, subscriber: str, first: int, expected: Gap | None = None) -> tuple[Gap, list[int]]:
    """Lets a subscriber continue at ``first``, where the store begins, and records the gap before it as accepted.

    Returns the gap, and the ids of outstanding batches: they are rolled back, because their transactions are no longer
    in the store. If the cursor is not before the beginning, and no table was merged for this subscriber yet, the gap is
    the one that existing tables may have: everything before the subscriber began. Raises UsageError if nothing is
    missing, or the gap was accepted before; GapChangedError if it is not the ``expected`` one.
    """
    with meta.change() as state:
        subscription = state.subscription(check_name(subscriber))
        gap, rolled_back = beginning_gap(subscription, subscriber, first), []
        if expected is not None:
            require_same([gap], [expected])
        if subscription.position() < first:
            if subscription.outstanding:
                rolled_back = roll_back_from(subscription, subscription.outstanding[0].batch)
            subscription.acked_seq = first
        subscription.gaps = [*subscription.gaps, gap]
    return gap, rolled_back


def accept_tables(
    meta: Meta, subscriber: str, tables: Mapping[str, TableRecord | None], expected: Sequence[Gap] | None = None
) -> list[Gap]:
    """Accepts Delta tables as they are now, whatever they have lost, and records a gap for each of them.

    The gap reaches up to the cursor. None in ``tables`` stands for a table that is gone; it is created again when its
    next changes come. Raises UsageError for a table that has lost nothing since the last ack, GapChangedError if the
    gaps are not the ``expected`` ones.
    """
    with meta.change() as state:
        subscription = state.subscription(check_name(subscriber))
        gaps = table_gaps(subscription, tables)
        if expected is not None:
            require_same(gaps, expected)
        for name, record in tables.items():
            if record is None:
                subscription.tables.pop(name, None)
            else:
                subscription.tables[name] = record.text
        subscription.gaps = [*subscription.gaps, *gaps]
    return gaps


def require_same(gaps: Sequence[Gap], expected: Sequence[Gap]) -> None:
    """Raises GapChangedError if the gaps are not the expected ones. When they are accepted does not matter."""
    if list(map(_extent, gaps)) == list(map(_extent, expected)):
        return
    now, shown = ("; ".join(map(_in_words, some)) for some in (gaps, expected))
    raise GapChangedError(
        f"the loss has changed since it was shown: {shown}; now it is {now}. Nothing was changed",
        remedy="Look at the loss as it is now, and decide again.",
    )


def _extent(gap: Gap) -> tuple[int, int, str | None, str]:
    return gap.after_seq, gap.until_seq, gap.table, gap.reason


def _in_words(gap: Gap) -> str:
    whose = "all tables" if gap.table is None else gap.table
    return f"the transactions after {gap.after_seq} up to {gap.until_seq} of {whose} ({gap.reason})"


def _gap(after_seq: int, until_seq: int, reason: str, table: str | None = None) -> Gap:
    return Gap(after_seq=after_seq, until_seq=until_seq, table=table, reason=reason, accepted=datetime.now(UTC))
