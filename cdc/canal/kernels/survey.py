"""The compiled first pass: lists the events of a byte range that become entries.

A transaction's begin is listed once the first event behind it is wanted, so that a transaction without rows of wanted
tables leaves nothing. The scan stops at a table map that it does not know; the caller describes the table, and the scan
continues.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cdc.binlog.constants import MARIADB_GTID_FLAGS_AT, MARIADB_GTID_STANDALONE, EventType
from cdc.binlog.frame_events import BAD_LENGTHS, BEGIN, COMMIT, query_verb
from cdc.binlog.row_header import BODY_AT, TABLE_ID_AT, holds_rows
from cdc.decode.kernels.constants import BAD_CRC, BAD_EVENT, BAD_FRAME, FULL, OK
from cdc.decode.kernels.scan import TransactionBytes, cannot_be_decoded, event_length, note_fault, sound
from cdc.kernels.jit import inlined, njit
from cdc.kernels.memory import equal_bytes, u48
from cdc.kernels.records import Record

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

NEED_TABLE = 100
"""The table map at ``bad_pos`` is not known."""
TOO_MANY_TABLES = 101
"""One transaction has more than MOST_IDS table maps."""

NO_ITEM, ITEM_BEGIN, ITEM_ROWS, ITEM_END, ITEM_STATEMENT = 0, 1, 2, 3, 4
"""A BEGIN (QUERY or MariaDB's GTID event), a row event, an end (XID, or COMMIT as QUERY), any other QUERY event."""

ID_SLOTS, MOST_IDS = 4096, 2048


class SurveyPosition(Record):
    """The numbers of a survey."""

    tx: int  # number of the current transaction
    pos: int  # offset of the next event; -1: the transaction's begin
    begin_pos: int  # the transaction's event that begins it, until it is listed; -1: none
    begin_kind: int  # the type of that
    begun: int  # 1: it is listed
    ids: int  # table ids in force
    bad_pos: int  # the event that has a fault, or the table map that is not known
    bad_type: int


class SurveyState(NamedTuple):
    """The state from which the scan continues."""

    at: SurveyPosition
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
def enter_table_map(buf: Bytes, stop: int, state: SurveyState, tables: TableMapIndex) -> int:
    """Puts the table map at the position in force, whose checksum was verified. Returns OK, or why it cannot."""
    at = state.at
    table = find_table(buf, at.pos + BODY_AT, stop, tables)
    if table < 0:
        return NEED_TABLE
    at.ids = remember(state.ids, at.ids, u48(buf, at.pos + TABLE_ID_AT), table)
    if at.ids < 0:
        at.ids = MOST_IDS
        return TOO_MANY_TABLES
    return OK


@njit
def item_of(source: TransactionBytes, stop: int, state: SurveyState, tables: TableMapIndex) -> tuple[int, int, int]:
    """Finds out what the event at the position becomes. Returns OK or a fault, the kind of the item, and the number of
    the table of a row event."""
    buf, pos = source.buf, state.at.pos
    kind = np.int64(buf[pos + 4])
    if kind == EventType.TABLE_MAP:
        if stop - pos < BODY_AT + 2:
            return BAD_FRAME, NO_ITEM, -1
        if not sound(buf, pos, stop, source.tail, state.scratch):
            return BAD_CRC, NO_ITEM, -1
        return enter_table_map(buf, stop, state, tables), NO_ITEM, -1
    if holds_rows(kind):
        if stop - pos < BODY_AT:
            return BAD_FRAME, NO_ITEM, -1
        table = table_of(state.ids, u48(buf, pos + TABLE_ID_AT))
        return OK, ITEM_ROWS if table >= 0 and tables.rows[table, 2] == 1 else NO_ITEM, table
    if kind == EventType.QUERY:
        verb = query_verb(buf, pos, stop)
        if verb == BAD_LENGTHS:
            return BAD_FRAME, NO_ITEM, -1
        return OK, ITEM_BEGIN if verb == BEGIN else ITEM_END if verb == COMMIT else ITEM_STATEMENT, -1
    if kind == EventType.MARIADB_QUERY_COMPRESSED:
        return OK, ITEM_STATEMENT, -1
    if kind == EventType.XID:
        return OK, ITEM_END, -1
    if kind == EventType.MARIADB_GTID:
        if stop - pos <= MARIADB_GTID_FLAGS_AT:
            return BAD_FRAME, NO_ITEM, -1
        stands_alone = buf[pos + MARIADB_GTID_FLAGS_AT] & MARIADB_GTID_STANDALONE != 0
        return OK, NO_ITEM if stands_alone else ITEM_BEGIN, -1
    return BAD_EVENT if cannot_be_decoded(kind) else OK, NO_ITEM, -1


@njit
def list_item(
    source: TransactionBytes, state: SurveyState, out: Items, count: int, item: int, length: int, table: int
) -> tuple[int, int, int]:
    """Lists the event at the position, and before a transaction's first row event its begin. Returns OK or a fault, the
    number of items, and the bytes of the events that were listed."""
    at, buf, tail = state.at, source.buf, source.tail
    pos, begin_pos = at.pos, at.begin_pos
    if not sound(buf, pos, pos + length - tail, tail, state.scratch):
        return BAD_CRC, count, 0
    size = length
    if begin_pos >= 0 and item == ITEM_ROWS:
        begin_length = event_length(buf, begin_pos, source.end[at.tx], tail)
        if not sound(buf, begin_pos, begin_pos + begin_length - tail, tail, state.scratch):
            return BAD_CRC, count, 0
        count = note(out, count, ITEM_BEGIN, begin_pos, begin_length, at.begin_kind, -1, at.tx)
        size += begin_length
        at.begin_pos = -1
        at.begun = 1
    return OK, note(out, count, item, pos, length, np.int64(buf[pos + 4]), table, at.tx), size


@njit
def survey(
    source: TransactionBytes, state: SurveyState, tables: TableMapIndex, out: Items, max_bytes: int
) -> tuple[int, int]:
    """Lists events until ``out`` has no more room or their bytes reach ``max_bytes``.

    Returns the status (OK: all transactions are listed; FULL; NEED_TABLE; or a fault) and the number of items.
    """
    buf, tail, at = source.buf, source.tail, state.at
    room = out.kind.shape[0] - 2
    count = 0
    size = 0
    while at.tx < source.begin.shape[0]:
        end = source.end[at.tx]
        if at.pos < 0:
            at.pos = source.begin[at.tx]
            at.begin_pos = -1
            at.begun = 0
            if at.ids > MOST_IDS // 2:
                for i in range(ID_SLOTS):
                    state.ids[i, 0] = -1
                at.ids = 0
        while at.pos < end:
            length = event_length(buf, at.pos, end, tail)
            if length < 0:
                return note_fault(at, buf, BAD_FRAME), count
            status, item, table = item_of(source, at.pos + length - tail, state, tables)
            if status != OK:
                return note_fault(at, buf, status), count
            if item == ITEM_BEGIN:
                at.begin_pos = at.pos
                at.begin_kind = buf[at.pos + 4]
            elif item == ITEM_END and at.begun == 0:
                at.begin_pos = -1
            elif item != NO_ITEM:
                if count >= room or (count > 0 and size >= max_bytes):
                    return FULL, count
                status, count, listed = list_item(source, state, out, count, item, length, table)
                if status != OK:
                    return note_fault(at, buf, status), count
                size += listed
            at.pos += length
        at.tx += 1
        at.pos = -1
    return OK, count
