"""The compiled first pass: lists the events of a byte range that become entries.

A transaction's begin is listed once the first event behind it is wanted, so that a transaction without rows of wanted
tables leaves nothing. The scan stops at a table map that it does not know; the caller describes the table, and the scan
continues.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cdc.binlog.constants import HEADER_SIZE, MARIADB_GTID_STANDALONE, EventType
from cdc.binlog.frame_events import BAD_LENGTHS, BEGIN, COMMIT, query_verb
from cdc.binlog.row_header import BODY_AT, TABLE_ID_AT, holds_rows
from cdc.decode.kernels.constants import BAD_CRC, BAD_EVENT, BAD_FRAME, FULL, OK
from cdc.decode.kernels.scan import TransactionBytes, cannot_be_decoded, event_length, sound
from cdc.kernels.jit import inlined, njit
from cdc.kernels.memory import equal_bytes, u48

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

NEED_TABLE = 100
"""The table map at S_BAD_POS is not known."""
TOO_MANY_TABLES = 101
"""One transaction has more than MOST_IDS table maps."""

ITEM_BEGIN, ITEM_ROWS, ITEM_END, ITEM_STATEMENT = 1, 2, 3, 4
"""A BEGIN (QUERY or MariaDB's GTID event), a row event, an end (XID, or COMMIT as QUERY), any other QUERY event."""

ID_SLOTS, MOST_IDS = 4096, 2048
S_TX, S_POS, S_BEGIN_POS, S_BEGIN_KIND, S_BEGUN, S_IDS, S_BAD_POS, S_BAD_TYPE, STATE_SIZE = 0, 1, 2, 3, 4, 5, 6, 7, 8


class SurveyState(NamedTuple):
    """The state from which the scan continues."""

    numbers: Longs
    """(STATE_SIZE,)"""
    ids: Longs
    """(ID_SLOTS, 2): a hash table of the table ids in force and the number of each one's table; -1: empty."""
    scratch: Bytes
    """(16,): room for checksums."""


class TableMapIndex(NamedTuple):
    """The table maps that are described."""

    bodies: Bytes
    """Their bytes from the names to the end, one behind the other."""
    rows: Longs
    """(tables, 3): start and stop in ``bodies``, and 1 if rows of the table are wanted."""
    slots: Longs
    """(a power of two,): the number of a table at the hash of its bytes; -1: empty."""


class Items(NamedTuple):
    """Room for the events that are found, each (items,)."""

    kind: Longs
    pos: Longs
    length: Longs
    type: Longs
    table: Longs
    tx: Longs


@njit
def body_hash(buf: Bytes, start: int, stop: int) -> int:
    """A hash of ``buf[start:stop]``, not negative."""
    value = np.int64(1469598103934665603)
    for i in range(start, stop):
        value = (value ^ np.int64(buf[i])) * np.int64(1099511628211)
    return value & np.int64(0x7FFFFFFFFFFFFFFF)


@njit
def find_table(buf: Bytes, start: int, stop: int, tables: TableMapIndex) -> int:
    """The number of the table map with the bytes of ``buf[start:stop]``; -1 if it is not known."""
    mask = tables.slots.shape[0] - 1
    slot = body_hash(buf, start, stop) & mask
    while tables.slots[slot] >= 0:
        table = tables.slots[slot]
        at = tables.rows[table, 0]
        if tables.rows[table, 1] - at == stop - start and equal_bytes(buf, start, tables.bodies, at, stop - start):
            return table
        slot = (slot + 1) & mask
    return -1


@njit
def table_of(ids: Longs, table_id: int) -> int:
    """The number of the table with this id; -1 if none is in force."""
    slot = table_id & (ID_SLOTS - 1)
    while ids[slot, 0] >= 0:
        if ids[slot, 0] == table_id:
            return ids[slot, 1]
        slot = (slot + 1) & (ID_SLOTS - 1)
    return -1


@njit
def remember(ids: Longs, count: int, table_id: int, table: int) -> int:
    """Notes the table of an id. Returns the number of ids in the hash table; -1 if it is full."""
    slot = table_id & (ID_SLOTS - 1)
    while ids[slot, 0] >= 0:
        if ids[slot, 0] == table_id:
            ids[slot, 1] = table
            return count
        slot = (slot + 1) & (ID_SLOTS - 1)
    if count >= MOST_IDS:
        return -1
    ids[slot, 0] = table_id
    ids[slot, 1] = table
    return count + 1


@njit
def query_kind(buf: Bytes, pos: int, stop: int) -> int:
    """ITEM_BEGIN for ``BEGIN``, ITEM_END for ``COMMIT``, else ITEM_STATEMENT; -1 for impossible lengths."""
    verb = query_verb(buf, pos, stop)
    if verb == BAD_LENGTHS:
        return -1
    if verb == BEGIN:
        return ITEM_BEGIN
    return ITEM_END if verb == COMMIT else ITEM_STATEMENT


@inlined
def note(out: Items, count: int, kind: int, pos: int, length: int, type_: int, table: int, tx: int) -> int:
    """Appends an item. Returns the number of items."""
    out.kind[count] = kind
    out.pos[count] = pos
    out.length[count] = length
    out.type[count] = type_
    out.table[count] = table
    out.tx[count] = tx
    return count + 1


@njit
def survey(
    source: TransactionBytes, state: SurveyState, tables: TableMapIndex, out: Items, max_bytes: int
) -> tuple[int, int]:
    """Lists events until ``out`` has no more room or their bytes reach ``max_bytes``.

    Returns the status (OK: all transactions are listed; FULL; NEED_TABLE; or a fault) and the number of items.
    """
    buf, tail = source.buf, source.tail
    numbers, ids, scratch = state.numbers, state.ids, state.scratch
    tx, pos = numbers[S_TX], numbers[S_POS]
    begin_pos, begin_kind, begun, n_ids = numbers[S_BEGIN_POS], numbers[S_BEGIN_KIND], numbers[S_BEGUN], numbers[S_IDS]
    room = out.kind.shape[0] - 2
    count = 0
    size = 0
    status = OK
    while tx < source.begin.shape[0]:
        end = source.end[tx]
        if pos < 0:
            pos = source.begin[tx]
            begin_pos = -1
            begun = 0
            if n_ids > MOST_IDS // 2:
                for i in range(ID_SLOTS):
                    ids[i, 0] = -1
                n_ids = 0
        while pos < end:
            length = event_length(buf, pos, end, tail)
            if length < 0:
                status = BAD_FRAME
                break
            kind = np.int64(buf[pos + 4])
            stop = pos + length - tail
            item = 0
            table = -1
            if kind == EventType.TABLE_MAP:
                if stop - pos < BODY_AT + 2:
                    status = BAD_FRAME
                    break
                if not sound(buf, pos, stop, tail, scratch):
                    status = BAD_CRC
                    break
                table = find_table(buf, pos + BODY_AT, stop, tables)
                if table < 0:
                    status = NEED_TABLE
                    break
                n_ids = remember(ids, n_ids, u48(buf, pos + TABLE_ID_AT), table)
                if n_ids < 0:
                    n_ids = MOST_IDS
                    status = TOO_MANY_TABLES
                    break
            elif holds_rows(kind):
                if stop - pos < BODY_AT:
                    status = BAD_FRAME
                    break
                table = table_of(ids, u48(buf, pos + TABLE_ID_AT))
                if table >= 0 and tables.rows[table, 2] == 1:
                    item = ITEM_ROWS
            elif kind == EventType.QUERY:
                item = query_kind(buf, pos, stop)
                if item < 0:
                    status = BAD_FRAME
                    break
            elif kind == EventType.MARIADB_QUERY_COMPRESSED:
                item = ITEM_STATEMENT
            elif kind == EventType.XID:
                item = ITEM_END
            elif kind == EventType.MARIADB_GTID:
                if stop - pos < HEADER_SIZE + 13:
                    status = BAD_FRAME
                    break
                if buf[pos + HEADER_SIZE + 12] & MARIADB_GTID_STANDALONE == 0:
                    item = ITEM_BEGIN
            elif cannot_be_decoded(kind):
                status = BAD_EVENT
                break
            if item == ITEM_BEGIN:
                begin_pos = pos
                begin_kind = kind
            elif item == ITEM_END and begun == 0:
                begin_pos = -1
            elif item != 0:
                if count >= room or (count > 0 and size >= max_bytes):
                    status = FULL
                    break
                if not sound(buf, pos, stop, tail, scratch):
                    status = BAD_CRC
                    break
                if begin_pos >= 0 and item == ITEM_ROWS:
                    begin_length = event_length(buf, begin_pos, end, tail)
                    if not sound(buf, begin_pos, begin_pos + begin_length - tail, tail, scratch):
                        status = BAD_CRC
                        break
                    count = note(out, count, ITEM_BEGIN, begin_pos, begin_length, begin_kind, -1, tx)
                    size += begin_length
                    begin_pos = -1
                    begun = 1
                count = note(out, count, item, pos, length, kind, table, tx)
                size += length
            pos += length
        if status != OK:
            break
        tx += 1
        pos = -1
    numbers[S_TX] = tx
    numbers[S_POS] = pos
    numbers[S_BEGIN_POS] = begin_pos
    numbers[S_BEGIN_KIND] = begin_kind
    numbers[S_BEGUN] = begun
    numbers[S_IDS] = n_ids
    if status > FULL:
        numbers[S_BAD_POS] = pos
        if pos >= 0 and pos + 4 < buf.shape[0]:
            numbers[S_BAD_TYPE] = buf[pos + 4]
    return status, count
