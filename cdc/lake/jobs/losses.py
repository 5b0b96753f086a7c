"""Losses that an operator may accept: what would be given up, in words, and the acceptance of exactly that.

There are two: the transactions between a cursor and the store's beginning, and the changes that a Delta table has lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from cdc.base.errors import GapChangedError, UsageError
from cdc.base.units import iso_time_us
from cdc.batches.preconditions import first_seq
from cdc.batches.protocol import Batches
from cdc.batches.subscribers import beginning_gap, require_same, table_gaps
from cdc.binlog.positions import format_seq
from cdc.client import open_batches, open_table_batches
from cdc.config import DestinationConfig
from cdc.lake.delta.log import table_record
from cdc.lake.jobs.job import SUBSCRIBER
from cdc.lake.jobs.plan import count_changes, describe_lake
from cdc.meta import Gap, Subscription, TableRecord
from cdc.store.reader.store import Store

_MOST_NAMES = 50
"""Tables that are named; of more, the number."""


@dataclass(frozen=True)
class Loss:
    """Changes that apply would leave out if an operator accepted it."""

    gaps: tuple[Gap, ...]
    records: Mapping[str, TableRecord | None]
    """The Delta tables that would be taken as they are; None for one that is gone. Empty: the gap is that before the
    store's beginning."""
    lines: tuple[str, ...]
    """Sentences about what is lost, and about both sides of the gap."""

    def as_dict(self) -> dict[str, Any]:
        """Returns the loss for JSON."""
        return {
            "gaps": [gap.model_dump(mode="json") for gap in self.gaps],
            "records": {table: None if record is None else record.text for table, record in self.records.items()},
            "lines": list(self.lines),
        }

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> Self:
        """Returns the loss that :meth:`as_dict` has written."""
        records = document["records"].items()
        return cls(
            tuple(Gap.model_validate(gap) for gap in document["gaps"]),
            {table: None if text is None else TableRecord.of(text) for table, text in records},
            tuple(document["lines"]),
        )


def find_loss(config: DestinationConfig, tables: Sequence[str]) -> Loss:
    """Returns what would be given up: changes of the Delta ``tables``, or, without any, those before the store's
    beginning. Changes nothing.

    Raises UsageError if nothing is lost, and for a table that does not belong to the destination; StorageError without
    a store; TargetError and RetryableError if a Delta table cannot be read.
    """
    batches = open_batches(config)
    subscription = batches.meta.read().subscription(SUBSCRIBER)
    reader = open_table_batches(config).reader
    if tables:
        records = {table: table_record(config, table) for table in dict.fromkeys(tables)}
        lines = [_table_line(config, subscription, reader, table, records[table]) for table in records]
        return Loss(tuple(table_gaps(subscription, records)), records, tuple(lines))
    gap = beginning_gap(subscription, SUBSCRIBER, first_seq(config.name, config.store.place, reader))
    return Loss((gap,), {}, tuple(_beginning_lines(batches, subscription, reader, gap)))


def accept_loss(config: DestinationConfig, loss: Loss) -> list[Gap]:
    """Accepts what :func:`find_loss` has returned, and returns the recorded gaps. Raises GapChangedError if that is no
    longer what would be given up, and then changes nothing; otherwise what :func:`find_loss` raises."""
    try:
        now = find_loss(config, list(loss.records))
    except UsageError as error:
        raise GapChangedError(f"the loss has changed since it was shown: {error}") from error
    require_same(now.gaps, loss.gaps)
    changed = [table for table, record in loss.records.items() if now.records[table] != record]
    if changed:
        raise GapChangedError(
            f"the Delta tables of {', '.join(changed)} have changed since they were shown. Nothing was changed",
            place=config.name,
            remedy="Look at the loss as it is now, and decide again.",
        )
    batches = open_batches(config)
    if loss.records:
        return batches.accept_tables(SUBSCRIBER, loss.records, loss.gaps)
    return [batches.accept_beginning(SUBSCRIBER, loss.gaps[0])]


def _beginning_lines(batches: Batches, subscription: Subscription, reader: Store, gap: Gap) -> Iterator[str]:
    acked = batches.acked_manifests(SUBSCRIBER, after_batch=max(0, subscription.next_batch - 2))
    position = _seq(gap.after_seq)
    if acked and acked[-1].last_seq == gap.after_seq:
        last = acked[-1].positions.last
        gtid = "" if last.gtid is None else f", GTID {last.gtid}"
        position += f", at {last.file}:{last.pos}, committed at {last.time}{gtid}"
    begins = reader.beginning()
    assert begins is not None
    since = f", since {iso_time_us(begins.time_us)}" if begins.time_us else ""
    yield f"Apply has everything up to transaction {position}."
    yield (
        f"The store has everything after transaction {_seq(gap.until_seq)}; it was begun at {begins.file}:{begins.pos} "
        f"({begins.reason}{since})."
    )
    yield (
        "What the source committed between the two is in no store, so that the number of lost transactions and rows is "
        "not known."
    )
    names = sorted(subscription.tables)
    more = f", and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    yield f"Delta tables that may lack changes: {', '.join(names[:_MOST_NAMES]) or 'none'}{more}."
    if subscription.outstanding:
        yield f"Outstanding batches are rolled back: {', '.join(str(o.batch) for o in subscription.outstanding)}."


def _table_line(
    config: DestinationConfig, subscription: Subscription, reader: Store, table: str, record: TableRecord | None
) -> str:
    """Returns what a Delta table was at the last ack, and what it is now."""
    before, position = subscription.table(table), subscription.position()
    text = f"{table}: "
    if before is None:
        text += "The meta has no record of it. "
    else:
        text += f"At the last ack it had version {before.version}, with its changes up to {_seq(before.applied_seq)}. "
    if record is None:
        stored = _stored(reader, table, 0, position)
        return f"{text}Now it is gone: all its rows are lost; its next changes begin an empty table. {stored}"
    now = describe_lake(config, table) or f"version {record.version}"
    if before is not None and record.delta_id != before.delta_id:
        text += "Now another table is in its place: "
    else:
        text += "Now it is: "
    text += f"{now}, with its changes up to {_seq(record.applied_seq)}. "
    if before is not None and record.applied_seq < before.applied_seq:
        return f"{text}It lacks those between. {_stored(reader, table, record.applied_seq, before.applied_seq)}"
    return f"{text}Nothing proves that it has all of these changes: others may have reverted some."


def _stored(reader: Store, table: str, after_seq: int, upto_seq: int) -> str:
    """Returns how many of the lost changes the store has, so that a replay could bring them back."""
    begins = reader.beginning() if reader.exists() else None
    if begins is None:
        return "There is no store."
    first = max(after_seq, begins.seq, reader.removed_seq())
    events, _ = count_changes(reader, table, first, max(first, upto_seq))
    return f"The store still has about {events:,} row events of them."


def _seq(seq: int) -> str:
    return f"{seq} ({format_seq(seq)})"
