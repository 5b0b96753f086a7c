"""Intervals of time, such as an hour, of a destination: when one is complete, and what its transactions changed.

An interval is a range of seqs. Its transactions are those between two positions of the binlog, which the source's clock
gives through the time index (:mod:`cdc.store.formats.time_index`): a transaction belongs to exactly one interval,
whatever its own commit time says, and the ranges do not change any more once the interval is complete.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np

from cdc.base.errors import CutOffError, LakeBehindError
from cdc.base.units import iso_time, iso_time_us, time_us
from cdc.batches.manifest import schemas_of
from cdc.batches.preconditions import incomplete_error
from cdc.batches.table_batches import batches_between
from cdc.binlog.entry import EntryFlag
from cdc.binlog.positions import format_seq
from cdc.client import captured_tables, open_batches, open_meta, open_store, open_table_batches
from cdc.decode.reader import DecodeOptions, DecodeStats, decode_range
from cdc.decode.transactions import ALL_TABLES
from cdc.meta.state import Subscription

if TYPE_CHECKING:
    from cdc.batches.manifest import Manifest
    from cdc.binlog.sql.schemas import Schemas
    from cdc.config import DestinationConfig
    from cdc.store.formats.state import Beginning
    from cdc.store.reader.store import Store

_MANIFESTS = 1000
"""The number of newest batches that are searched for the transactions of an interval."""
_FIRST_START = "first start"
_SKEW_US = 15 * 60 * 1_000_000
"""The time by which the clock of capture's machine may be behind the source's."""


@dataclass(frozen=True)
class Interval:
    """The time from ``start``, inclusive, to ``end``, exclusive. Both are aware."""

    start: datetime
    end: datetime

    def __str__(self) -> str:
        return f"{iso_time(self.start)} to {iso_time(self.end)}"


@dataclass(frozen=True)
class SeqRange:
    """The transactions of an interval: those with ``after_seq`` < seq ≤ ``last_seq``."""

    after_seq: int
    last_seq: int

    def overlaps(self, after_seq: int, last_seq: int) -> bool:
        """Whether both ranges may have a transaction in common."""
        return after_seq < self.last_seq and self.after_seq < last_seq


@dataclass
class TableContent:
    """The changes of an interval's transactions in one table."""

    table: str
    rows: int = 0
    """Rows that were inserted, updated or deleted at the source; a row that changed twice counts twice."""
    transactions: int = 0
    ddl: int = 0
    """DDL statements."""
    delta_version: int | None = None
    """A version of the Delta table that has all of these changes; it may have later ones, too."""
    applied_seq: int | None = None
    """The position of that version."""


@dataclass
class IntervalContent:
    """The changes of an interval's transactions."""

    range: SeqRange
    gtid: str | None = None
    """The GTID of the last transaction up to the interval's end; None if it has none, or there is none."""
    file: str | None = None
    """The binlog file in which that transaction ends,"""
    pos: int | None = None
    """and its end there."""
    batches: list[int] = field(default_factory=list)
    """The batches that brought these transactions into the lake, as far as their manifests are kept."""
    tables: list[TableContent] = field(default_factory=list)
    """All tables of the lake that have every change of the interval, also those that it did not change."""
    left_out: dict[str, str] = field(default_factory=dict)
    """The tables that lack changes of the interval, each with the reason."""


def begins_before_capture(config: DestinationConfig, interval: Interval) -> bool:
    """Whether the interval began before the destination's capture was started for the first time."""
    reader = open_store(config)
    begins = reader.beginning() if reader.exists() else None
    return begins is not None and begins.reason == _FIRST_START and _begins_us(reader, begins) > time_us(interval.start)


def range_of(
    config: DestinationConfig, interval: Interval, *, after_seq: int | None = None, last_seq: int | None = None
) -> SeqRange:
    """Returns the transactions of an interval that is complete: by the source's clock the store has them all, and all
    are in the lake, except for tables that apply leaves out.

    ``after_seq``, ``last_seq``: where the interval before it ended, and where the one after it began, if they are
    known: each transaction then belongs to exactly one interval, even if the time index was lost in the meantime.

    Raises StoreIncompleteError and LakeBehindError while the interval is not complete; CutOffError if it never will be,
    because the store does not have all of its transactions.
    """
    meta, reader = open_meta(config), open_store(config)
    complete_us = reader.complete_until_us() if reader.exists() else 0
    if complete_us < time_us(interval.end):
        raise incomplete_error(config.name, interval.end, complete_us, reader.capture_state())
    seq_range = SeqRange(
        _begin(config, reader, interval) if after_seq is None else after_seq,
        reader.seq_before(time_us(interval.end)) if last_seq is None else last_seq,
    )
    seq_range = SeqRange(seq_range.after_seq, max(seq_range.after_seq, seq_range.last_seq))
    reader.require_kept(seq_range.after_seq)
    subscription = meta.read().subscriptions.get("apply") or Subscription()
    _require_whole(config, reader, subscription, interval, seq_range)
    if _has_transactions(reader, subscription.acked_seq, seq_range.last_seq):
        raise LakeBehindError(
            f"transactions committed before {iso_time(interval.end)} are not in the lake yet: applied up to "
            f"{subscription.acked_seq} ({format_seq(subscription.acked_seq)}), the interval ends at "
            f"{seq_range.last_seq} ({format_seq(seq_range.last_seq)})",
            place=config.name,
            remedy=f"Wait for the next run of apply_{config.name}, or look at why its runs fail.",
        )
    return seq_range


def _begin(config: DestinationConfig, reader: Store, interval: Interval) -> int:
    """Returns the seq at which an interval begins, exclusive. Raises CutOffError."""
    start_us, begins = time_us(interval.start), reader.beginning()
    if begins is not None and _begins_us(reader, begins) > start_us:
        raise CutOffError(
            f"the interval {interval} cannot be proved complete: the store begins at {begins.file}:{begins.pos}, where "
            f"capture began on {iso_time_us(_begins_us(reader, begins) - _SKEW_US)} ({begins.reason}) by its machine's "
            f"clock, and an interval has to begin {_SKEW_US // 60_000_000} minutes after that at least",
            place=config.name,
            remedy="Choose a later interval.",
        )
    return max(reader.seq_before(start_us), 0 if begins is None else begins.seq)


def _begins_us(reader: Store, begins: Beginning) -> int:
    """Returns the time from which on the store has every transaction. Its beginning is recorded by the clock of the
    machine of capture, which may differ from the source's."""
    if begins.time_us:
        return begins.time_us + _SKEW_US
    first = reader.first_seq()
    entry = None if first is None else reader.entry_at(first)
    return _SKEW_US + (0 if entry is None else int(entry["commit_time_us"]))


def _require_whole(
    config: DestinationConfig, reader: Store, subscription: Subscription, interval: Interval, seq_range: SeqRange
) -> None:
    """Raises CutOffError if transactions of the range were lost, and somebody has accepted that."""
    gap = next(
        (
            accepted
            for accepted in subscription.gaps
            if accepted.table is None and seq_range.overlaps(accepted.after_seq, accepted.until_seq)
        ),
        None,
    )
    lost = "" if gap is None else f"{gap.reason}, accepted on {iso_time(gap.accepted)}"
    if gap is None:
        for entries in reader.all_entries(seq_range.after_seq, seq_range.last_seq):
            at = np.flatnonzero(entries["flags"] & int(EntryFlag.LOST))
            if len(at):
                lost = f"transaction {int(entries['seq'][at[0]])} is damaged, and its loss was accepted"
                break
    if lost:
        raise CutOffError(
            f"the interval {interval} is not complete: transactions of it are lost ({lost})",
            place=config.name,
            remedy="Its consumers have to take the tables as they are, after `cdc snapshot` has brought them level.",
        )


def _has_transactions(reader: Store, after_seq: int, last_seq: int) -> bool:
    if after_seq >= last_seq:
        return False
    return any(bool((entries["length"] > 0).any()) for entries in reader.all_entries(after_seq, last_seq))


def content_of(config: DestinationConfig, seq_range: SeqRange) -> IntervalContent:
    """Reads an interval's changes from the store, and counts them by table.

    Raises CutOffError if retention has removed them, DamagedError, StorageError.
    """
    reader = open_store(config)
    batches = open_batches(config)
    subscription = batches.meta.read().subscriptions.get("apply") or Subscription()
    content = IntervalContent(seq_range)
    last = reader.entry_at(seq_range.last_seq)
    if last is not None:
        end = reader.commit_position(last)
        content.gtid, content.file, content.pos = end.gtid, end.position.file, end.position.pos
    content.batches = [
        manifest.batch
        for manifest in batches.acked_manifests(after_batch=max(0, subscription.next_batch - _MANIFESTS))
        if seq_range.overlaps(manifest.first_seq - 1, manifest.last_seq)
    ]
    changed = _mask(reader, seq_range)
    for table in captured_tables(config, reader):
        table_content = TableContent(table)
        if reader.table_mask(table) & changed:
            table_content = _count(config, table, seq_range)
        record = subscription.table(table)
        reason = _lacking(subscription, table, table_content, seq_range)
        if reason is not None:
            content.left_out[table] = reason
        elif record is not None:
            table_content.delta_version, table_content.applied_seq = record.version, record.applied_seq
            content.tables.append(table_content)
    return content


def _lacking(subscription: Subscription, table: str, content: TableContent, seq_range: SeqRange) -> str | None:
    """Returns why a table in the lake lacks changes of the range; None if it has them all, or is not there yet."""
    record, parked = subscription.table(table), subscription.parked.get(table)
    gap = next(
        (g for g in subscription.gaps if g.table == table and seq_range.overlaps(g.after_seq, g.until_seq)), None
    )
    if gap is not None:
        return f"it lacks transactions ({gap.reason}, accepted on {iso_time(gap.accepted)})"
    if parked is not None and (record is None or record.applied_seq < seq_range.last_seq):
        return f"it is parked since {iso_time(parked.since)}: {parked.reason}"
    if record is None and (content.rows or content.ddl):
        return "it has changes in the store, and no table in the lake"
    return None


def _mask(reader: Store, seq_range: SeqRange) -> int:
    """Returns the bits of the tables that may have changes in the range."""
    mask = 0
    for entries in reader.all_entries(seq_range.after_seq, seq_range.last_seq):
        mask |= int(np.bitwise_or.reduce(entries["table_mask"], initial=np.uint64(0)))
    return mask


def _count(config: DestinationConfig, table: str, seq_range: SeqRange) -> TableContent:
    """Reads a table's changes in the range from the store, and counts them."""
    content = TableContent(table)
    for manifest in batches_between(open_table_batches(config), table, seq_range.after_seq, seq_range.last_seq):
        if manifest.ddl:
            content.ddl += manifest.transactions
        else:
            content.transactions += manifest.transactions
            content.rows += _rows(manifest, table, schemas_of(manifest))
    return content


def _rows(manifest: Manifest, table: str, schemas: Schemas | None) -> int:
    """Returns how many rows of the table the transactions of a manifest have changed."""
    stats = DecodeStats()
    mask = manifest.table_mask(table)
    options = DecodeOptions(
        images="both",
        columns=(),
        after_seq=manifest.after_seq,
        upto_seq=manifest.last_seq,
        table_mask=ALL_TABLES if mask is None else mask,
    )
    schema = None if schemas is None else schemas.tables.get(table)
    for byte_range in manifest.ranges:
        for _ in decode_range(
            byte_range.path,
            byte_range.offset,
            byte_range.length,
            table=table,
            options=options,
            schema=schema,
            stats=stats,
        ):
            pass
    return stats.rows
