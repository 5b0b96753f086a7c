"""Coming and going of subscribers, and what their filters leave out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from cdc.batches.lease import iso_time
from cdc.batches.manifest import TableResult
from cdc.errors import LeaseHeldError
from cdc.log import get_logger
from cdc.meta import Meta, TableRecord
from cdc.meta.state import Subscription

if TYPE_CHECKING:
    from cdc.store.reader.batch_builder import TableFilter

_log = get_logger(__name__)


class Passing(Protocol):
    """What is needed of a store; :class:`cdc.store.reader.reader.StoreReader` has it."""

    def skippable_until(self, after_seq: int, table_filter: TableFilter) -> int: ...


def as_filter(pattern: str | None) -> TableFilter | None:
    """The filter of a subscription; None: all tables. Raises UsageError."""
    if pattern is None:
        return None
    from cdc.store.reader.batch_builder import TableFilter  # most have none, and need no NumPy for it

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


def record_tables(known: Subscription, results: Iterable[TableResult]) -> None:
    """Keep what a merge says of the lake's tables. A record never goes back: of two drivers that merged the same batch,
    the slower one may have seen an older version."""
    for result in results:
        if result.delta_id is None or result.delta_version is None:
            continue
        before = known.table(result.table)
        record = TableRecord(result.generation, result.delta_version, result.applied_seq or 0, result.delta_id)
        if before is not None and before.delta_id == record.delta_id:
            ahead = (before.generation, before.applied_seq) > (record.generation, record.applied_seq)
            record = before if ahead else replace(record, version=max(before.version, record.version))
        known.tables[result.table] = record.text


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
    upto = reader.skippable_until(seen.acked_seq, table_filter)
    if upto <= seen.acked_seq:
        return
    with meta.change() as state:
        known = state.subscriptions.get(name)
        if known is not None and known == seen:  # else somebody has got or acked meanwhile; the next get does it
            known.acked_seq = upto
