"""The compiled scans over events: the row events of one table, the table maps, the number of row events by table."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cdc.binlog.constants import HEADER_SIZE, EventType
from cdc.binlog.row_header import BODY_AT, TABLE_ID_AT, bitmap_size, column_bitmaps, holds_rows, is_packed, is_update
from cdc.decode.kernels.constants import (
    BAD_CRC,
    BAD_EVENT,
    BAD_FRAME,
    FULL,
    MAX_LAYOUTS,
    OK,
    TOO_MANY_LAYOUTS,
)
from cdc.decode.kernels.rows import EventArrays
from cdc.kernels.crc import crc32
from cdc.kernels.jit import inlined, njit
from cdc.kernels.memory import copy_bytes, same_bytes, u32, u48
from cdc.kernels.records import Record

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]


class TransactionBytes(NamedTuple):
    """The transactions to scan."""

    buf: Bytes
    begin: Longs
    """(transactions,): offset in ``buf`` of each one's first event."""
    end: Longs
    """(transactions,): offset behind each one's last event."""
    tail: int
    """Bytes of checksum at the end of each event: 4 or 0."""


class ScanPosition(Record):
    """The numbers of a scan for one table's events."""

    tx: int  # number of the current transaction
    pos: int  # offset of the next event; -1: the transaction's begin
    ordinal: int  # the table's row events in the transaction so far
    ids: int  # table ids in force
    layouts: int  # table maps of the table so far
    bad_pos: int  # the event that has a fault
    bad_type: int
    verified: int  # 1: the checksums were verified before


class ScanState(NamedTuple):
    """The state from which the scan for one table's events continues."""

    at: ScanPosition
    ids: Longs
    """(MAX_IDS, 2): the table ids in force and the layout of each."""
    layouts: Longs
    """(MAX_LAYOUTS, 2): begin of the names and end of the body of each distinct table map of the table."""
    scratch: Bytes
    """(16,): room for checksums."""


class FoundEvents(NamedTuple):
    """Room for the row events that a scan finds, each (events,): offset, length, type, number of the transaction,
    ordinal among the table's row events in its transaction, number of the layout."""

    offset: Longs
    length: Longs
    type: Longs
    tx: Longs
    ordinal: Longs
    layout: Longs


class NameTable(NamedTuple):
    """Room for a hash table of table maps or of table names."""

    rows: Longs
    """(n, 3)"""
    slots: Longs
    """(a power of two larger than n,): filled with -1."""
    ids: Longs
    """(m, 2): room for table ids."""


@inlined
def has_name(buf: Bytes, p: int, end: int, name: Bytes) -> bool:
    """Whether ``name`` (length, database, NUL, length, table, NUL) is at ``p``."""
    if end - p < name.shape[0]:
        return False
    difference = np.uint8(0)
    for i in range(name.shape[0]):
        difference |= buf[p + i] ^ name[i]
    return bool(difference == 0)


@njit
def find_layout(buf: Bytes, start: int, stop: int, layouts: Longs, count: int) -> int:
    """The number of the table map with the bytes of ``buf[start:stop]``, or -1. The newest, the likeliest, is tried
    first."""
    for k in range(count - 1, -1, -1):
        if layouts[k, 1] - layouts[k, 0] == stop - start and same_bytes(buf, layouts[k, 0], start, stop - start):
            return k
    return -1


@inlined
def sound(buf: Bytes, pos: int, stop: int, tail: int, scratch: Bytes) -> bool:
    """Whether an event has no checksum, or the right one at ``stop``."""
    return tail == 0 or np.int64(crc32(buf, pos, stop, scratch)) == u32(buf, stop)


@inlined
def event_length(buf: Bytes, pos: int, end: int, tail: int) -> int:
    """The length of the event at ``pos`` by its header; -1 if the event with its checksum does not fit before
    ``end``."""
    if end - pos < HEADER_SIZE:
        return -1
    length = u32(buf, pos + 9)
    return -1 if length < HEADER_SIZE + tail or length > end - pos else length


@inlined
def cannot_be_decoded(kind: int) -> bool:
    """Whether an event of this type may hold or lose rows in a form that is not supported: row events older than MySQL
    5.1.18, incidents, compressed transactions (which capture unpacks)."""
    return bool(
        (kind >= EventType.PRE_GA_WRITE_ROWS and kind <= EventType.PRE_GA_DELETE_ROWS)
        or kind == EventType.INCIDENT
        or kind == EventType.TRANSACTION_PAYLOAD
    )


@njit
def packed_rows_begin(buf: Bytes, pos: int, stop: int, kind: int) -> int:
    """The offset of the compressed rows in the compressed row event at ``pos``, whose body ends at ``stop``; -1 if its
    header is damaged. The byte there holds the size of the rows' length, which follows."""
    p, columns = column_bitmaps(buf, pos, stop, kind)
    if p < 0:
        return -1
    p += bitmap_size(columns) * (2 if is_update(kind) else 1)
    if p >= stop:
        return -1
    size = np.int64(buf[p]) & 7
    if np.int64(buf[p]) & 0xF8 != 0x80 or size < 1 or size > 4 or stop - p < 1 + size:
        return -1
    return p


@njit
def packed_rows_size(buf: Bytes, p: int) -> int:
    """The number of bytes that the compressed rows at ``p`` have when they are unpacked, as the event says."""
    size = np.int64(0)
    for i in range(np.int64(buf[p]) & 7):
        size = size << 8 | np.int64(buf[p + 1 + i])
    return size


@inlined
def decoded_length(buf: Bytes, pos: int, length: int, tail: int, kind: int) -> int:
    """The length of a row event, of a compressed one when it is unpacked."""
    if not is_packed(kind):
        return length
    p = packed_rows_begin(buf, pos, pos + length - tail, kind)
    return length if p < 0 else p - pos + packed_rows_size(buf, p) + tail


@njit
def locate_packed_rows(events: EventArrays, packed_at: Longs, sizes: Longs) -> int:
    """Writes the offset of the compressed rows of each event, and their size when unpacked; for an event that is not
    compressed its end, and 0. Returns the number of the first event with a damaged header, or -1."""
    for e in range(events.offset.shape[0]):
        p = events.offset[e] + events.length[e] - events.tail
        size = np.int64(0)
        if is_packed(events.type[e]):
            p = packed_rows_begin(events.buf, events.offset[e], p, events.type[e])
            if p < 0:
                return e
            size = packed_rows_size(events.buf, p)
        packed_at[e] = p
        sizes[e] = size
    return -1


@njit
def copy_plain_parts(events: EventArrays, packed_at: Longs, out: Bytes, out_offset: Longs) -> None:
    """Copies each event up to its compressed rows."""
    for e in range(events.offset.shape[0]):
        copy_bytes(out, out_offset[e], events.buf, events.offset[e], packed_at[e] - events.offset[e])


@inlined
def recall(ids: Longs, n_ids: int, table_id: int) -> int:
    """The number stored for a table id, or -1."""
    for i in range(n_ids):
        if ids[i, 0] == table_id:
            return np.int64(ids[i, 1])
    return np.int64(-1)


@inlined
def remember(ids: Longs, n_ids: int, table_id: int, what: int) -> int:
    """Stores a number for a table id and returns the count of ids. If the room is full, the oldest id is dropped: its
    statement ended long ago."""
    for i in range(n_ids):
        if ids[i, 0] == table_id:
            ids[i, 1] = what
            return n_ids
    if n_ids == ids.shape[0]:
        for i in range(1, n_ids):
            ids[i - 1, 0] = ids[i, 0]
            ids[i - 1, 1] = ids[i, 1]
        n_ids -= 1
    ids[n_ids, 0] = table_id
    ids[n_ids, 1] = what
    return n_ids + 1


@inlined
def hash_slot(buf: Bytes, start: int, stop: int, mask: int) -> int:
    """The first slot for ``buf[start:stop]`` in a hash table, by FNV-1a."""
    code = np.uint64(1469598103934665603)
    for i in range(start, stop):
        code = (code ^ np.uint64(buf[i])) * np.uint64(1099511628211)
    return np.int64((code ^ code >> np.uint64(32)) & np.uint64(mask))


@inlined
def find_or_add(buf: Bytes, table: NameTable, count: int, at: int, length: int, key_at: int, key_stop: int) -> int:
    """The row of the bytes ``buf[key_at:key_stop]``. If they are new, they get row ``count``, with this offset and
    length and a third number of 0; -1 if there is no row left. ``key_at - at`` must be the same in all calls."""
    rows, slots = table.rows, table.slots
    mask = slots.shape[0] - 1
    slot = hash_slot(buf, key_at, key_stop, mask)
    while slots[slot] >= 0:
        same_row = slots[slot]
        if rows[same_row, 1] == length and same_bytes(buf, rows[same_row, 0] + key_at - at, key_at, key_stop - key_at):
            return same_row
        slot = (slot + 1) & mask
    if count == rows.shape[0]:
        return -1
    rows[count, 0] = at
    rows[count, 1] = length
    rows[count, 2] = 0
    slots[slot] = count
    return count


@njit
def list_table_maps(transactions: TransactionBytes, table: NameTable, scratch: Bytes) -> tuple[int, int, int]:
    """Lists the distinct table maps, ignoring flags and table ids, in the order of their first appearance.

    Each row of ``table`` gets the offset and length of the event, and the length of the largest row event under it.
    Returns (OK, FULL or a fault, number of table maps, position of the fault). FULL: there are more than n.
    """
    buf, tail = transactions.buf, transactions.tail
    maps, ids = table.rows, table.ids
    count = 0
    for tx in range(transactions.begin.shape[0]):
        pos = transactions.begin[tx]
        end = transactions.end[tx]
        n_ids = 0
        if pos < 0 or end > buf.shape[0]:
            return BAD_FRAME, count, pos
        while pos < end:
            length = event_length(buf, pos, end, tail)
            if length < 0:
                return BAD_FRAME, count, pos
            stop = pos + length - tail
            if buf[pos + 4] == EventType.TABLE_MAP:
                if not sound(buf, pos, stop, tail, scratch):
                    return BAD_CRC, count, pos
                if stop - pos < BODY_AT:
                    return BAD_FRAME, count, pos
                number = find_or_add(buf, table, count, pos, length, pos + BODY_AT, stop)
                if number < 0:
                    return FULL, count, pos
                count = max(count, number + 1)
                n_ids = remember(ids, n_ids, u48(buf, pos + TABLE_ID_AT), number)
            elif holds_rows(np.int64(buf[pos + 4])):
                if stop - pos < BODY_AT:
                    return BAD_FRAME, count, pos
                map_row = recall(ids, n_ids, u48(buf, pos + TABLE_ID_AT))
                if map_row >= 0:
                    maps[map_row, 2] = max(
                        maps[map_row, 2], decoded_length(buf, pos, length, tail, np.int64(buf[pos + 4]))
                    )
            pos += length
    return OK, count, 0


@njit
def count_row_events(transactions: TransactionBytes, table: NameTable) -> tuple[int, int, int]:
    """Finds the tables that have a table map inside the transactions, and counts their row events.

    Each row of ``table`` gets the offset of the names (length, database, NUL, length, table, NUL), their size, and the
    number of row events. Checksums are not verified.
    Returns (OK, FULL or a fault, number of tables, position of the fault). FULL: there are more than n tables.
    """
    buf, tail = transactions.buf, transactions.tail
    tables, ids = table.rows, table.ids
    count = 0
    for tx in range(transactions.begin.shape[0]):
        pos = transactions.begin[tx]
        end = transactions.end[tx]
        n_ids = 0
        if pos < 0 or end > buf.shape[0]:
            return BAD_FRAME, count, pos
        while pos < end:
            length = event_length(buf, pos, end, tail)
            if length < 0:
                return BAD_FRAME, count, pos
            kind = np.int64(buf[pos + 4])
            stop = pos + length - tail
            if kind == EventType.TABLE_MAP:
                p = pos + BODY_AT
                if stop - p < 2 or stop - p < 2 + np.int64(buf[p]) + 2:
                    return BAD_FRAME, count, pos
                size = 2 + np.int64(buf[p])
                size += 2 + np.int64(buf[p + size])
                if stop - p < size:
                    return BAD_FRAME, count, pos
                number = find_or_add(buf, table, count, p, size, p, p + size)
                if number < 0:
                    return FULL, count, pos
                count = max(count, number + 1)
                n_ids = remember(ids, n_ids, u48(buf, pos + TABLE_ID_AT), number)
            elif holds_rows(kind):
                if stop - pos < BODY_AT:
                    return BAD_FRAME, count, pos
                table_row = recall(ids, n_ids, u48(buf, pos + TABLE_ID_AT))
                if table_row >= 0:
                    tables[table_row, 2] += 1
            pos += length
    return OK, count, 0


@inlined
def note_fault(at: Any, buf: Bytes, status: int) -> int:
    """Notes the event at which a scan stops with a fault. Returns the status."""
    at.bad_pos = at.pos
    if at.pos >= 0 and at.pos + 4 < buf.shape[0]:
        at.bad_type = buf[at.pos + 4]
    return status


@njit
def enter_table_map(buf: Bytes, stop: int, name: Bytes, state: ScanState) -> int:
    """Puts the table map at the scan's position in force. Returns OK or a fault."""
    at, ids, layouts = state.at, state.ids, state.layouts
    start = at.pos + BODY_AT
    if stop < start:
        return BAD_FRAME
    table_id = u48(buf, at.pos + TABLE_ID_AT)
    for i in range(at.ids):
        if ids[i, 0] == table_id:
            at.ids -= 1
            ids[i, 0] = ids[at.ids, 0]
            ids[i, 1] = ids[at.ids, 1]
            break
    if has_name(buf, start, stop, name):
        layout = find_layout(buf, start, stop, layouts, at.layouts)
        if layout < 0:
            if at.layouts == MAX_LAYOUTS:
                return TOO_MANY_LAYOUTS
            layout = at.layouts
            layouts[layout, 0] = start
            layouts[layout, 1] = stop
            at.layouts += 1
        at.ids = remember(ids, at.ids, table_id, layout)
    return OK


@njit
def scan_events(
    transactions: TransactionBytes, name: Bytes, state: ScanState, out: FoundEvents, max_bytes: int
) -> tuple[int, int]:
    """Lists the row events of the table called ``name`` (see :func:`has_name`), continuing from ``state``.

    The checksum of every event is verified, unless the state says that they were. Returns (OK, FULL or a fault, number
    of events listed). FULL: ``out`` is full, or the next event would exceed ``max_bytes`` in all, unpacked.
    """
    buf, tail = transactions.buf, transactions.tail
    at = state.at
    count = 0
    size = 0
    while at.tx < transactions.begin.shape[0]:
        if at.pos < 0:
            at.pos = transactions.begin[at.tx]
            at.ordinal = 0
            at.ids = 0
        end = transactions.end[at.tx]
        if at.pos < 0 or end > buf.shape[0]:
            return note_fault(at, buf, BAD_FRAME), count
        while at.pos < end:
            pos = at.pos
            length = event_length(buf, pos, end, tail)
            if length < 0:
                return note_fault(at, buf, BAD_FRAME), count
            kind = np.int64(buf[pos + 4])
            stop = pos + length - tail
            # Events of other tables are verified, too: a flipped bit in a type, an id or a name would make an event of
            # this table look like one of them.
            if at.verified == 0 and not sound(buf, pos, stop, tail, state.scratch):
                return note_fault(at, buf, BAD_CRC), count
            if kind == EventType.TABLE_MAP:
                status = enter_table_map(buf, stop, name, state)
                if status != OK:
                    return note_fault(at, buf, status), count
            elif holds_rows(kind):
                if stop - pos < BODY_AT:
                    return note_fault(at, buf, BAD_FRAME), count
                layout = recall(state.ids, at.ids, u48(buf, pos + TABLE_ID_AT))
                if layout >= 0:
                    decoded = decoded_length(buf, pos, length, tail, kind)
                    if count == out.offset.shape[0] or (count > 0 and size + decoded > max_bytes):
                        return FULL, count
                    out.offset[count] = pos
                    out.length[count] = length
                    out.type[count] = kind
                    out.tx[count] = at.tx
                    out.ordinal[count] = at.ordinal
                    out.layout[count] = layout
                    count += 1
                    at.ordinal += 1
                    size += decoded
            elif cannot_be_decoded(kind):
                return note_fault(at, buf, BAD_EVENT), count
            at.pos += length
        at.tx += 1
        at.pos = -1
    return OK, count
