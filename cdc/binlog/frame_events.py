"""The framing kernel's decision about each event: what it is, whether it is kept, and what it begins or ends."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cdc.binlog import frame_state as k
from cdc.binlog.constants import HEADER_SIZE, MARIADB_GTID_STANDALONE, ROWS_STMT_END
from cdc.binlog.frame_state import EVENT_KINDS, FrameState
from cdc.binlog.frame_transactions import (
    begin_transaction,
    begins_at,
    commit,
    crc_size,
    note_time,
    open_statement,
    out_of_order,
    read_gtid,
    read_mariadb_gtid,
    set_statement_end,
)
from cdc.binlog.row_header import BODY_AT, FLAGS_AT, INCOMPLETE, TABLE_ID_AT, bitmap_size, column_bitmaps, is_update
from cdc.kernels.jit import inlined, njit
from cdc.kernels.memory import load_u, spells, u16, u32, u48, word

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

BEGIN, COMMIT, OTHER, BAD_LENGTHS = 1, 2, 0, -1
"""The verbs of QUERY events, as far as framing tells them apart."""
_BEGIN, _COMMIT = word(b"BEGIN"), word(b"COMMIT")
_DB_LENGTH_AT, _STATUS_LENGTH_AT, _STATUS_AT = HEADER_SIZE + 8, HEADER_SIZE + 11, HEADER_SIZE + 13
"""Offsets in a QUERY event: lengths of the database's name and of the status variables, which are followed by the name,
a NUL and the text."""
_ONE_PHASE_AT = HEADER_SIZE
"""Offset in an XA_PREPARE event: whether it stands for XA COMMIT … ONE PHASE."""
_NO_TABLE = 0xFFFFFF
"""The table id of a row event without rows, which only ends its statement."""
_LEAST_TABLE_MAP, _LEAST_XA_PREPARE, _LEAST_GTID, _LEAST_MARIADB_GTID = 31, 32, 44, 32
"""Lengths of events without checksum."""


class TableIds(NamedTuple):
    """An open-addressed hash table of the known table ids."""

    keys: Longs
    """(a power of two,): table ids; -1 is free."""
    values: Longs
    """The number of the captured table, or -1 for a table that is not captured."""
    lengths: Longs
    """The length of the TABLE_MAP event without its checksum. A server that begins or ceases to name the columns
    (binlog_row_metadata) goes on with the same table id."""
    optional_at: Longs
    """The offset in ``optional`` of what the table's rows may lack, or -1: they hold all columns."""
    optional: Bytes
    """The number of a table's columns (2 bytes) and a bitmap of those that its rows may lack, for one table after
    another."""


@njit
def query_verb(src: Bytes, at: int, end: int) -> int:
    """The verb of the QUERY event at ``at``, whose text ends at ``end``; BAD_LENGTHS if its lengths are impossible."""
    if at + _STATUS_AT > end:
        return BAD_LENGTHS
    text = at + _STATUS_AT + u16(src, at + _STATUS_LENGTH_AT) + np.int64(src[at + _DB_LENGTH_AT]) + 1
    if text > end:
        return BAD_LENGTHS
    if spells(src, text, end, _BEGIN):
        return BEGIN
    return COMMIT if spells(src, text, end, _COMMIT) else OTHER


@njit
def find_table(keys: Longs, table_id: int) -> int:
    """The slot of ``table_id`` in an open-addressed hash table (power-of-two size, -1 is free), or -1."""
    mask = keys.shape[0] - 1
    slot = (table_id * 2654435761 >> 7) & mask
    for _ in range(keys.shape[0]):
        if keys[slot] == table_id:
            return slot
        if keys[slot] == -1:
            return -1
        slot = (slot + 1) & mask
    return -1


@njit
def add_table(tables: TableIds, table_id: int, value: int, length: int, optional_at: int) -> None:
    """Enters ``table_id`` into a hash table, which the caller keeps at most half full, or enters it anew."""
    keys = tables.keys
    mask = keys.shape[0] - 1
    slot = (table_id * 2654435761 >> 7) & mask
    while keys[slot] != -1 and keys[slot] != table_id:
        slot = (slot + 1) & mask
    keys[slot] = table_id
    tables.values[slot] = value
    tables.lengths[slot] = length
    tables.optional_at[slot] = optional_at


@njit
def image_columns(src: Bytes, at: int, have: int, end: int, optional: Bytes, optional_at: int) -> int:
    """Checks that the rows of a row event hold all columns, except those that they may lack. Returns CONTINUE if they
    do, else PART_IMAGE, BAD_LENGTH or NEED_INPUT.

    ``at`` is the offset of the event, of which ``have`` bytes have arrived; ``end`` is the end of its rows.
    ``optional`` and ``optional_at`` are those of :class:`TableIds`.
    """
    kind = np.int64(src[at + 4])
    p, columns = column_bitmaps(src, at, min(at + have, end), kind)
    if p < 0:
        return k.NEED_INPUT if p == INCOMPLETE and at + have < end else k.BAD_LENGTH
    size = bitmap_size(columns)
    if size == 0:
        return k.BAD_LENGTH
    last = (1 << ((columns - 1) & 7) + 1) - 1  # the bits behind the last column have no meaning
    describes_columns = optional_at >= 0 and load_u(optional, optional_at, 2) == columns
    for _ in range(2 if is_update(kind) else 1):
        for i in range(size):
            lacking = ~np.int64(src[p + i]) & (255 if i < size - 1 else last)
            if lacking != 0 and (not describes_columns or lacking & ~np.int64(optional[optional_at + 2 + i]) != 0):
                return k.PART_IMAGE
        p += size
    return k.CONTINUE


@inlined
def may_come_whole(st: FrameState, src: Bytes, have: int) -> bool:
    """Whether the rest of the event has not arrived, and all of it fits into ``src``: then its checksum is verified
    before its bytes are trusted."""
    return bool(have < st.event_length and st.event_length <= src.shape[0] >> 1)


@inlined
def arrived(st: FrameState, have: int, least: int) -> int:
    """CONTINUE if all of the event has arrived, and without checksum it has at least ``least`` bytes; else a status."""
    if have < st.event_length:
        return k.NEED_INPUT
    return k.BAD_LENGTH if st.event_length < least + crc_size(st) else k.CONTINUE


@njit
def start_event(st: FrameState, src: Bytes, at: int, have: int, out: Bytes, tables: TableIds, scratch: Bytes) -> int:
    """Decides about the event at ``at``, of which ``have`` bytes have arrived; ``st.event_length`` is its length.
    Returns CONTINUE, else a status; with NEED_INPUT no transaction or statement has been changed. So do the functions
    for each kind of event."""
    kind = EVENT_KINDS[src[at + 4]]
    status = read_header(st, src, at, have, kind)
    if status != k.CONTINUE:
        return status
    if kind == k.T_ROWS:
        return start_rows(st, src, at, have, out, tables, scratch)
    if kind == k.T_TABLE_MAP:
        return start_table_map(st, src, at, have, tables)
    if kind == k.T_XID:
        return k.NEED_INPUT if have < st.event_length and st.tx_refused == 1 else commit(st)
    if kind == k.T_GTID or kind == k.T_MARIADB_GTID:
        return start_gtid(st, src, at, have, kind)
    if kind == k.T_QUERY or kind == k.T_COMPRESSED_QUERY:
        return start_query(st, src, at, have, kind)
    if kind == k.T_PAYLOAD:
        return start_payload(st, src, have)
    if kind == k.T_XA_PREPARE:
        return start_prepare(st, src, at, have)
    if kind == k.T_GTID_TAGGED:
        return start_tagged_gtid(st, have)
    if kind == k.T_PYTHON:
        return start_rare(st, have)
    st.event_keep = 0
    if kind == k.T_SKIP or st.tx_skip != k.NOT_SKIPPED or (st.inner == 1 and st.tx_refused == 1):
        return k.CONTINUE
    return k.NEED_INPUT if have < st.event_length else k.REFUSED


@njit
def read_header(st: FrameState, src: Bytes, at: int, have: int, kind: int) -> int:
    """Notes an event's type, time and position, and whether a transaction that begins with it is skipped."""
    st.event_type = src[at + 4]
    st.event_time = u32(src, at)
    st.event_end_pos = u32(src, at + 13)
    st.event_ends = k.ENDS_NOTHING
    if st.inner == 1:
        st.event_end_pos = st.inner_end_pos
        if st.inner_ended == 1:
            return k.NESTED
    elif out_of_order(st, kind):
        return k.NEED_INPUT if may_come_whole(st, src, have) else k.OUT_OF_ORDER
    if st.tx_open == 0:
        st.tx_skip = k.SKIPPED_BY_POSITION if begins_at(st) < st.skip_until else k.NOT_SKIPPED
    return k.CONTINUE


@njit
def start_rows(st: FrameState, src: Bytes, at: int, have: int, out: Bytes, tables: TableIds, scratch: Bytes) -> int:
    """Decides about a row event: it is kept if its table is captured."""
    length = st.event_length
    if have < BODY_AT:
        return k.BAD_LENGTH if length < BODY_AT else k.NEED_INPUT
    if st.tx_open == 0:
        return k.NO_TABLE_MAP
    table_id = u48(src, at + TABLE_ID_AT)
    ends = src[at + FLAGS_AT] & ROWS_STMT_END
    st.event_ends = k.ENDS_STATEMENT if ends else k.ENDS_NOTHING
    value = np.int64(-1)
    optional_at = np.int64(-1)
    if table_id != _NO_TABLE:
        slot = find_table(tables.keys, table_id)
        if slot < 0:
            return k.NO_TABLE_MAP
        value = tables.values[slot]
        optional_at = tables.optional_at[slot]
    if st.scan == 0 and (st.tx_refused == 1 or st.tx_skip != k.NOT_SKIPPED):
        value = np.int64(-1)  # nothing of the transaction is kept; if it is refused, capture stops at its end
    elif st.scan == 0 and value >= 0:
        status = image_columns(src, at, have, at + length - crc_size(st), tables.optional, optional_at)
        if status == k.PART_IMAGE and may_come_whole(st, src, have):
            return k.NEED_INPUT
        if status != k.CONTINUE:
            return status
    open_statement(st)
    if value < 0 and st.scan == 0:
        return drop_rows(st, ends != 0, out, scratch)
    st.event_keep = 1
    st.tx_kept = 1
    st.tx_row_events += 1
    if value >= 0:
        st.tx_mask |= np.int64(1) << (value & 63)
    st.stmt_rows += 1
    st.hold = -1
    st.last_row = st.out_base + st.out_pos
    st.last_row_length = length + 4 - crc_size(st)
    return k.CONTINUE


@njit
def drop_rows(st: FrameState, ends: bool, out: Bytes, scratch: Bytes) -> int:
    """Drops a row event. If it ends its statement, the last row event that was kept has to end it."""
    if ends and st.stmt_rows > 0:
        if st.last_row >= st.out_base:
            set_statement_end(st, out, scratch)
        elif st.decision == k.UNDECIDED:
            return k.PATCH_STORED
        else:
            st.decision = k.UNDECIDED
    st.event_keep = 0
    return k.CONTINUE


@njit
def start_table_map(st: FrameState, src: Bytes, at: int, have: int, tables: TableIds) -> int:
    """Decides about a TABLE_MAP event, which may begin a transaction and a statement."""
    status = arrived(st, have, _LEAST_TABLE_MAP)
    if status != k.CONTINUE:
        return status
    if st.tx_open == 0:
        begin_transaction(st)
    slot = find_table(tables.keys, u48(src, at + TABLE_ID_AT))
    if slot < 0 or tables.lengths[slot] != st.event_length - crc_size(st):
        return k.NEED_TABLE
    open_statement(st)
    st.event_keep = 1 if (tables.values[slot] >= 0 and st.tx_skip == k.NOT_SKIPPED) or st.scan == 1 else 0
    return k.CONTINUE


@njit
def start_gtid(st: FrameState, src: Bytes, at: int, have: int, kind: int) -> int:
    """Begins a transaction at its GTID event."""
    status = arrived(st, have, _LEAST_GTID if kind == k.T_GTID else _LEAST_MARIADB_GTID)
    if status != k.CONTINUE:
        return status
    if st.decision != k.UNDECIDED:
        st.tx_skip = k.SKIPPED_BY_GTID if st.decision == k.DROP else k.NOT_SKIPPED
        st.decision = k.UNDECIDED
        st.event_keep = 1
        return k.CONTINUE
    if st.tx_open == 1:
        return k.NESTED
    begin_transaction(st)
    if kind == k.T_GTID:
        read_gtid(st, src, at)
    else:
        flags = read_mariadb_gtid(st, src, at)
        st.tx_begin = 0 if flags & MARIADB_GTID_STANDALONE else 1
    st.event_keep = 1
    return k.NEED_GTID if st.ask_gtid == 1 and st.tx_skip == k.NOT_SKIPPED else k.CONTINUE


@njit
def start_tagged_gtid(st: FrameState, have: int) -> int:
    """Begins a transaction at its tagged GTID, which Python reads."""
    if have < st.event_length:
        return k.NEED_INPUT
    if st.decision == k.UNDECIDED:
        if st.tx_open == 1:
            return k.NESTED
        begin_transaction(st)
        return k.NEED_EVENT
    st.decision = k.UNDECIDED
    st.event_keep = 1
    return k.CONTINUE


@njit
def start_query(st: FrameState, src: Bytes, at: int, have: int, kind: int) -> int:
    """Decides about a statement: BEGIN, COMMIT, or one that Python decides about."""
    length = st.event_length
    if have < min(length, k.PREFIX_MAX):
        return k.NEED_INPUT
    verb = np.int64(OTHER)
    if kind == k.T_QUERY and length <= k.PREFIX_MAX:
        verb = query_verb(src, at, at + length - crc_size(st))
    if verb == BAD_LENGTHS:
        return k.BAD_LENGTH
    if verb == BEGIN:
        if st.tx_open == 0:
            begin_transaction(st)
        st.tx_begin = 1
        st.event_keep = 1
        return k.CONTINUE
    if verb == COMMIT:
        return commit(st)
    if st.decision == k.UNDECIDED:
        return k.NEED_STATEMENT
    if st.tx_begin == 0 and st.event_end_pos == 0:
        return k.NO_POSITION
    if st.tx_open == 0:
        begin_transaction(st)
    decision = st.decision
    st.decision = k.UNDECIDED
    if decision == k.OPENS or decision == k.ALONG:
        if decision == k.OPENS:
            st.tx_begin = 1
        st.event_keep = 1
        return k.CONTINUE if st.tx_begin == 1 else k.NESTED
    if decision == k.DROP:
        st.event_keep = 1 if st.scan == 1 else 0
    else:
        st.event_keep = 1
        st.tx_kept = 1
        st.hold = -1
        st.tx_mask |= st.decision_mask
        if decision == k.KEEP_DDL:
            st.tx_flags |= k.FLAG_DDL
    if st.tx_begin == 0:
        st.event_ends = k.ENDS_TRANSACTION
        note_time(st)
    return k.CONTINUE


@njit
def start_payload(st: FrameState, src: Bytes, have: int) -> int:
    """Begins to hand over a compressed transaction, whose events are framed in its place."""
    if st.scan == 1:
        return k.REFUSED
    if st.inner == 1 or (st.tx_begin == 1 and st.tx_open == 1):
        return k.NESTED
    if may_come_whole(st, src, have):
        return k.NEED_INPUT
    if st.event_end_pos == 0:
        return k.NO_POSITION
    if st.tx_open == 0:
        begin_transaction(st)
    note_time(st)
    st.event_keep = 0
    st.event_ends = k.ENDS_TRANSACTION
    if st.tx_skip == k.NOT_SKIPPED:
        st.payload = k.PAYLOAD_BEGUN
        st.inner_end_pos = st.event_end_pos
        st.inner_ended = 0
    return k.CONTINUE


@njit
def start_prepare(st: FrameState, src: Bytes, at: int, have: int) -> int:
    """Ends a prepared XA transaction, which Python puts aside until its XA COMMIT."""
    status = arrived(st, have, _LEAST_XA_PREPARE)
    if status != k.CONTINUE:
        return status
    if st.tx_open == 0:
        return k.NESTED
    if src[at + _ONE_PHASE_AT] != 0 or st.tx_refused == 1 or st.tx_skip != k.NOT_SKIPPED:
        return commit(st)
    if st.scan == 1:
        return k.XA if st.tx_kept == 1 else commit(st)
    if st.event_end_pos == 0:
        return k.NO_POSITION
    if st.decision == k.UNDECIDED:
        return k.NEED_EVENT
    st.decision = k.UNDECIDED
    status = commit(st)
    st.event_keep = 0
    return status


@njit
def start_rare(st: FrameState, have: int) -> int:
    """Has Python decide about an event."""
    if st.inner == 1:
        return k.NESTED
    if have < st.event_length:
        return k.NEED_INPUT
    if st.decision == k.UNDECIDED:
        return k.NEED_EVENT
    st.event_keep = 1 if st.decision == k.KEEP else 0
    st.decision = k.UNDECIDED
    return k.CONTINUE
