"""Subscribers: added, removed, moved on, and let go on behind an accepted gap."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from cdc.errors import LeaseHeldError, UsageError
from cdc.log import get_logger
from cdc.meta import Gap, Meta, TableRecord
from cdc.meta.state import Subscription, check_name
from cdc.units import iso_time

if TYPE_CHECKING:
    from cdc.batches.service import BatchService
    from cdc.store.reader.filters import TableFilter


_log = get_logger(__name__)


class Passing(Protocol):
    """What is needed of a store; :class:`cdc.store.reader.reader.StoreReader` has it."""

    def passed(self, after_seq: int, table_filter: TableFilter) -> int: ...


def as_filter(pattern: str | None) -> TableFilter | None:
    """The filter of a subscription; None: all tables. Raises UsageError."""
    if pattern is None:
        return None
    from cdc.store.reader.filters import TableFilter  # most have none, and need no NumPy for it

    return TableFilter(pattern)


def add_subscriber(meta: Meta, name: str, first_batch: int, removed_seq: int, begins_seq: int = 0) -> Subscription:
    """One that is there stays as it is. A new one begins at the store's first transaction, behind ``removed_seq`` and
    the store's beginning, and its record says so; that retention has removed transactions is logged."""
    with meta.change() as state:
        fresh = name not in state.subscriptions
        new = Subscription(next_batch=first_batch, acked_seq=removed_seq, since_seq=max(removed_seq, begins_seq))
        known = state.subscriptions.setdefault(name, new)
        known = known.model_copy(deep=True)
    if fresh and removed_seq:
        _log.warning(
            "retention has removed the store's beginning: the subscriber begins at its first transaction",
            subscriber=name,
            removed_until=removed_seq,
        )
    return known


def unsubscribe(meta: Meta, name: str, now: datetime) -> list[int]:
    """Remove a subscriber; returns the ids of the batches that it had outstanding. Raises UsageError if there is none,
    LeaseHeldError while a lease of it is live."""
    with meta.change() as state:
        known = state.subscription(name)
        for entry in known.outstanding:
            if entry.expires > now:
                raise LeaseHeldError(
                    f"batch {entry.batch} is held by {entry.owner} until {iso_time(entry.expires)}",
                    place=f"subscriber {name}",
                    remedy="Ack it or roll it back first, or wait until its lease has expired.",
                )
        del state.subscriptions[name]
        return [entry.batch for entry in known.outstanding]


def pass_over(meta: Meta, reader: Passing, name: str) -> None:
    """Move a filtered subscriber's cursor over what holds nothing for it: that must not hold the store back, nor be
    looked through again and again."""
    seen = meta.read().subscriptions.get(name)
    if seen is None or seen.filter is None or seen.outstanding:
        return
    table_filter = as_filter(seen.filter)
    assert table_filter is not None
    upto = reader.passed(seen.acked_seq, table_filter)
    if upto <= seen.acked_seq:
        return
    with meta.change() as state:
        known = state.subscriptions.get(name)
        if known is not None and known == seen:  # else somebody has got or acked meanwhile; the next get does it
            known.acked_seq = upto


def accept_beginning(service: BatchService, subscriber: str) -> list[Gap]:
    """Let the subscriber go on at the store's beginning. Outstanding batches are rolled back: their transactions are
    not there any more.

    A cursor that does not lie before the beginning has no gap. Then, as long as no table was merged for this
    subscriber, the gap is the one that tables of an unknown past may have: everything before the subscriber began.
    Raises UsageError where nothing is missing, or that was accepted before.
    """
    begins_seq, removed_seq = service.beginning_seqs()
    with service.meta.change() as state:
        known = state.subscription(check_name(subscriber))
        position, since = known.position(), known.since_seq
        first = max(begins_seq, removed_seq)
        if position < first:
            gap = _gap(position, first, "the store begins behind the cursor")
            for entry in known.outstanding:
                known.remember(entry, "rolled_back")
            gone = [entry.batch for entry in known.outstanding]
            known.outstanding = []
            known.acked_seq = first
        elif since and not known.tables and not known.has_accepted(0, since):
            gap, gone = _gap(0, since, "nothing proves what tables had before the subscriber began"), []
        else:
            raise UsageError(
                f"{subscriber} lacks nothing that was not accepted before: its cursor stands at {position}, and the "
                f"store begins at {first}",
                remedy="For a Delta table that has lost changes, name it with --table.",
            )
        known.gaps = [*known.gaps, gap]
    service.manifests.remove(subscriber, gone)
    return [gap]


def accept_tables(meta: Meta, subscriber: str, tables: Mapping[str, TableRecord | None]) -> list[Gap]:
    """Take Delta tables as they are now, whatever they have lost; None: the table is gone, and is made anew when its
    next changes come. Each lacks an unknown part of the changes up to the cursor."""
    gaps = []
    with meta.change() as state:
        known = state.subscription(check_name(subscriber))
        for name, record in tables.items():
            before = known.table(name)
            if record is not None and before == record:
                raise UsageError(
                    f"the Delta table of {name} is as it was at the last ack", remedy="Nothing of it is to be accepted."
                )
            if record is None:
                known.tables.pop(name, None)
                reason = "the Delta table is gone"
            else:
                known.tables[name] = record.text
                reason = "the Delta table is taken as it is"
            gaps.append(_gap(0, known.position(), reason, name))
        known.gaps = [*known.gaps, *gaps]
    return gaps


def _gap(after_seq: int, until_seq: int, reason: str, table: str | None = None) -> Gap:
    return Gap(after_seq=after_seq, until_seq=until_seq, table=table, reason=reason, accepted=datetime.now(UTC))
