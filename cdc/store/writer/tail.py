"""The end of the log that is being written: which segment a transaction goes into, and where. Knows no threads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cdc.binlog.constants import MAGIC
from cdc.binlog.entry import Entries
from cdc.binlog.events import parse_header, with_checksum
from cdc.errors import UsageError
from cdc.event_store.put import Raw, seal_entry
from cdc.event_store.record_batch import Lot, as_lot, seal_lot
from cdc.positions import MAX_OFFSET, OFFSET_BITS, format_seq, split_file_name
from cdc.store.formats import layout
from cdc.store.formats.state import TableNumbers
from cdc.store.transaction import SourceFile, Transaction
from cdc.store.writer.flush import Flushed, Part, Work
from cdc.store.writer.segment import SegmentWriter, head

_JOIN_BYTES = 1 << 20
"""Transactions of a put are written together up to this size."""


class LogTail:
    """Appends to the newest segment and begins new ones. What it hands out has to be flushed in this order."""

    def __init__(
        self, store: Path, tables: TableNumbers, segment: SegmentWriter | None, last_seq: int | None, segment_bytes: int
    ) -> None:
        self.segment = segment
        self.last_seq = last_seq
        """Of the newest entry."""
        self.published = 0
        """Entries handed out since it was opened."""
        self.written = Flushed("", 0, last_seq or 0)
        """The end of the newest whole transaction."""
        self._store = store
        self._tables = tables
        self._segment_bytes = segment_bytes
        self._source: SourceFile | None = None
        self._masks: dict[tuple[str, ...], int] = {}
        self._finishing: list[SegmentWriter] = []
        if segment is not None:
            self._settle_at(segment)

    # --- segments

    def is_current(self, epoch: int, file: str, data: bytes) -> bool:
        """Can events of this file, in a segment that begins with ``data``, go into the current segment?"""
        segment = self.segment
        return (
            segment is not None
            and segment.file == file
            and layout.segment_epoch(segment.path) == epoch
            and segment.size < self._segment_bytes
            and segment.begins_with(data)
        )

    @property
    def unfinished(self) -> bool:
        """Whether bytes stand behind the newest whole transaction."""
        return self.segment is not None and self.segment.size > self.written.end_offset

    def is_begun_at(self, epoch: int, file: str, pos: int) -> bool:
        """Does the current segment begin there already? It holds nothing then, and has to be forgotten first."""
        return self.segment is not None and self.segment.path.name == _name(epoch, file, pos)

    def forget_segment(self) -> None:
        """Close the current segment, which holds nothing and is about to be begun anew."""
        if self.segment is not None:
            self.segment.close()
            self.segment = None

    def new_segment(self, epoch: int, file: str, pos: int, data: bytes) -> SegmentWriter:
        """Begin a segment; the one before is finished with the next work. Raises StorageError, also where one with
        transactions has that name."""
        path = layout.segments_folder(self._store) / _name(epoch, file, pos)
        new = SegmentWriter.create(path, data, file)
        if self.segment is not None:
            self._finishing.append(self.segment)
        self.segment = new
        self._settle_at(new)
        return new

    def rolled_head(self, pos: int) -> bytes:
        """What a segment begins with that goes on in the same source file. Raises StorageError."""
        assert self.segment is not None
        with open(self.segment.path, "rb") as old:
            return _with_rotate_pos(old.read(self.segment.head_size), pos)

    def take_finished(self) -> tuple[SegmentWriter, ...]:
        finished, self._finishing = tuple(self._finishing), []
        return finished

    def _settle_at(self, segment: SegmentWriter) -> None:
        self.written = Flushed(segment.path.name, segment.size, self.last_seq or 0)

    # --- capture's entries

    def record(self, entries: Entries) -> Work:
        """Entries of bytes that were appended to the current segment, at least one. Raises UsageError where they do not
        come behind the newest one."""
        assert self.segment is not None
        if self.last_seq is not None and int(entries["seq"][0]) <= self.last_seq:
            raise UsageError(
                f"the transaction {format_seq(int(entries['seq'][0]))} does not come behind the newest one, "
                f"{format_seq(self.last_seq)}",
                place=str(self.segment.path),
                remedy="It is there already; nothing of it was made visible. Report this.",
            )
        there = np.flatnonzero(entries["length"])
        size = int(entries["offset"][there[-1]] + entries["length"][there[-1]]) if len(there) else 0
        before = self.written
        self.last_seq = int(entries["seq"][-1])
        self.published += len(entries)
        self.written = Flushed(before.segment, max(size, before.end_offset), self.last_seq)
        return Work(
            (Part(self.segment, size, entries),),
            count=len(entries),
            end=self.written,
            size_bytes=self.written.end_offset - before.end_offset,
        )

    # --- whole transactions

    def write(self, new: list[Raw]) -> Work:
        """Append transactions to the segments that they belong to. After an error some of them may stand there in part:
        nothing may be appended behind them. Raises StorageError."""
        masks = [self._mask(raw.transaction.tables) for raw in new]
        store_time_us = time.time_ns() // 1000
        parts: list[Part] = []
        data: list[bytes] = []
        entries: list[bytearray] = []
        total = 0
        segment, size = self.segment, 0 if self.segment is None else self.segment.size
        for raw, mask in zip(new, masks, strict=True):
            transaction = raw.transaction
            if segment is None or not self._goes_on(transaction.source, raw.seq, size):
                if segment is not None:
                    parts.append(_part(segment, data, entries))
                    entries = []
                segment = self._segment_for(raw)
                size = segment.size
            seal_entry(raw.entry, size, store_time_us, mask)
            entries.append(raw.entry)
            data.append(transaction.data)
            size += len(transaction.data)
            total += len(transaction.data)
            if size - segment.size > _JOIN_BYTES:
                _append(segment, data)
            self.last_seq = raw.seq
        assert segment is not None
        parts.append(_part(segment, data, entries))
        self.published += len(new)
        self.written = end = Flushed(self.written.segment, size, new[-1].seq)
        finished = self.take_finished() if self._finishing else ()
        return Work(tuple(parts), count=len(new), end=end, size_bytes=total, finish=finished)

    def as_lot(self, transactions: Sequence[Transaction]) -> Lot | None:
        """All of them, if they are new and plain, and go into the current segment."""
        lot = as_lot(transactions, -1 if self.last_seq is None else self.last_seq)
        if lot is None or self.segment is None or not self._goes_on(lot.source, lot.first_seq, self.segment.size):
            return None
        return lot if self.segment.size + int(lot.starts[-1]) < self._segment_bytes else None

    def write_lot(self, lot: Lot) -> Work:
        """:meth:`write` of what :meth:`as_lot` has answered just before."""
        segment = self.segment
        assert segment is not None
        same = lot.tables.count(lot.tables[0]) == len(lot.tables)
        masks = np.array([self._mask(tables) for tables in (lot.tables[:1] if same else lot.tables)], dtype=np.uint64)
        entries = seal_lot(lot, segment.size, time.time_ns() // 1000, masks)
        _append(segment, list(lot.data))
        self.last_seq = lot.last_seq
        self.published += len(lot.transactions)
        self.written = Flushed(self.written.segment, segment.size, lot.last_seq)
        return Work(
            (Part(segment, segment.size, entries),),
            count=len(lot.transactions),
            end=self.written,
            size_bytes=lot.size_bytes,
            finish=self.take_finished() if self._finishing else (),
        )

    def _goes_on(self, source: SourceFile, seq: int, size: int) -> bool:
        """Does this transaction go into the current segment, ``size`` bytes long by then?"""
        if source is not self._source and source != self._source:
            return False
        return size < self._segment_bytes and self._near(seq)

    def _near(self, seq: int) -> bool:
        """Is it less than 4 GiB behind the last one, in the same file? Whoever numbers a segment's transactions by
        their 32-bit ``end_log_pos`` would lose a wider gap."""
        last = self.last_seq
        return last is not None and last >> OFFSET_BITS == seq >> OFFSET_BITS and seq - last < 1 << 32

    def _segment_for(self, raw: Raw) -> SegmentWriter:
        """The segment to go on with, perhaps a new one."""
        source = self._source = raw.transaction.source
        near = self._near(raw.seq)
        # Without a neighbour nothing is known of what stands before it in its file.
        pos = (self.last_seq or 0) & MAX_OFFSET if near else max(4, (raw.seq & MAX_OFFSET) - len(raw.transaction.data))
        data = head(source.format_description, source.name, pos, source.server_id)
        if near and self.segment is not None and self.is_current(source.epoch, source.name, data):
            return self.segment
        if self.is_begun_at(source.epoch, source.name, pos):
            self.forget_segment()
        return self.new_segment(source.epoch, source.name, pos, data)

    def _mask(self, tables: tuple[str, ...]) -> int:
        mask = self._masks.get(tables)
        if mask is None:
            mask = 0
            for table in tables:
                mask |= 1 << (self._tables.number(table) & 63)
            self._masks[tables] = mask
        return mask


def _name(epoch: int, file: str, pos: int) -> str:
    return layout.segment_name(epoch, split_file_name(file)[1], pos)


def _part(segment: SegmentWriter, data: list[bytes], entries: list[bytearray]) -> Part:
    _append(segment, data)
    return Part(segment, segment.size, b"".join(entries) if entries else None)


def _append(segment: SegmentWriter, data: list[bytes]) -> None:
    """Write them behind one another, and forget them."""
    if data:
        segment.append(memoryview(data[0] if len(data) == 1 else b"".join(data)))
        data.clear()


def _with_rotate_pos(data: bytes, pos: int) -> bytes:
    """A segment's head with another position in its rotate event."""
    at = len(MAGIC) + parse_header(data[len(MAGIC) :]).length
    rotate = bytearray(data[at:])
    rotate[19:27] = pos.to_bytes(8, "little")
    return data[:at] + with_checksum(bytes(rotate))
