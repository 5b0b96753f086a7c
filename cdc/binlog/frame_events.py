"""The framing kernel's decision about each event: what it is, whether it is kept, and what it begins or ends."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cdc.binlog import frame_state as k
from cdc.binlog.constants import HEADER_SIZE, ROWS_STMT_END
from cdc.binlog.frame_state import EVENT_KINDS, FrameState
from cdc.binlog.frame_transactions import (
    begin_transaction,
    begins_at,
    commit,
    open_statement,
    out_of_order,
    read_gtid,
    set_statement_end,
)
from cdc.binlog.row_header import BODY_AT, FLAGS_AT, INCOMPLETE, TABLE_ID_AT, bitmap_size, column_bitmaps, is_update
from cdc.kernels.jit import njit
from cdc.kernels.memory import load_u

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]


_BEGIN, _COMMIT = 0x4E49474542, 0x54494D4D4F43  # the words, as little-endian numbers


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
    """Reads the verb of the QUERY event at ``at``, whose text ends at ``end``: 1 for BEGIN, 2 for COMMIT, 0 for any
    other text, -1 if its lengths are wrong."""
    if at + HEADER_SIZE + 13 > end:
        return -1
    db_length = np.int64(src[at + HEADER_SIZE + 8])
    status_length = load_u(src, at + HEADER_SIZE + 11, 2)
    text = at + HEADER_SIZE + 13 + status_length + db_length + 1
    if text > end:
        return -1
    n = end - text
    if n == 5 and load_u(src, text, 5) == _BEGIN:
        return 1
    if n == 6 and load_u(src, text, 6) == _COMMIT:
        return 2
    return 0


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
    """Checks that the rows of a row event hold all columns, except those that they may lack. Returns -1 if they do,
    else PART_IMAGE, BAD_LENGTH or NEED_INPUT.

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
    return -1


@njit
def start_event(st: FrameState, src: Bytes, at: int, have: int, out: Bytes, tables: TableIds, scratch: Bytes) -> int:
    """Decides about the event at ``at``, of which ``have`` bytes have arrived; ``st.event_length`` is its length.
    Returns -1 if framing can continue, else a status; with NEED_INPUT no transaction or statement has been changed."""
    length = st.event_length
    keys, values = tables.keys, tables.values
    kind = EVENT_KINDS[src[at + 4]]
    crc_size = 4 if st.has_crc == 1 else 0
    st.event_type = src[at + 4]
    st.event_time = load_u(src, at, 4)
    st.event_end_pos = load_u(src, at + 13, 4)
    st.event_ends = 0
    if st.inner == 1:
        st.event_end_pos = st.inner_end_pos
        if st.inner_ended == 1:
            return k.NESTED
    elif out_of_order(st, kind, st.event_end_pos, length):
        return k.OUT_OF_ORDER if have == length or length > src.shape[0] >> 1 else k.NEED_INPUT
    if st.tx_open == 0:
        st.tx_skip = 1 if begins_at(st, st.event_end_pos, length) < st.skip_until else 0
    if kind == k.T_ROWS:
        if have < BODY_AT:
            return k.BAD_LENGTH if length < BODY_AT else k.NEED_INPUT
        if st.tx_open == 0:
            return k.NO_TABLE_MAP
        table_id = load_u(src, at + TABLE_ID_AT, 6)
        ends = src[at + FLAGS_AT] & ROWS_STMT_END
        st.event_ends = 2 if ends else 0
        optional_at = np.int64(-1)
        if table_id == 0xFFFFFF:  # a row event without rows, which only ends the statement
            value = np.int64(-1)
        else:
            slot = find_table(keys, table_id)
            if slot < 0:
                return k.NO_TABLE_MAP
            value = values[slot]
            optional_at = tables.optional_at[slot]
        if st.scan == 0 and (st.tx_refused == 1 or st.tx_skip != 0):
            value = np.int64(-1)  # nothing of the transaction is kept; if it is refused, capture stops at its end
        elif st.scan == 0 and value >= 0:
            whole = image_columns(src, at, have, at + length - crc_size, tables.optional, optional_at)
            if whole == k.PART_IMAGE and have < length and length <= src.shape[0] >> 1:
                return k.NEED_INPUT  # all of it fits, and its checksum has to be verified before its bytes are trusted
            if whole >= 0:
                return whole
        open_statement(st)
        if value < 0 and st.scan == 0:
            if ends and st.stmt_rows > 0:
                if st.last_row < st.out_base:
                    if st.decision == k.UNDECIDED:
                        return k.PATCH_STORED
                    st.decision = k.UNDECIDED
                else:
                    set_statement_end(st, out, scratch)
            st.event_keep = 0
            return -1
        st.event_keep = 1
        st.tx_kept = 1
        st.tx_row_events += 1
        if value >= 0:
            st.tx_mask |= np.int64(1) << (value & 63)
        st.stmt_rows += 1
        st.hold = -1
        st.last_row = st.out_base + st.out_pos
        st.last_row_length = length + 4 - crc_size
        return -1
    if kind == k.T_TABLE_MAP:
        if have < length:
            return k.NEED_INPUT
        if length < 31 + crc_size:
            return k.BAD_LENGTH
        if st.tx_open == 0:
            begin_transaction(st)
        slot = find_table(keys, load_u(src, at + TABLE_ID_AT, 6))
        if slot < 0 or tables.lengths[slot] != length - crc_size:
            return k.NEED_TABLE
        open_statement(st)
        st.event_keep = 1 if (values[slot] >= 0 and st.tx_skip == 0) or st.scan == 1 else 0
        return -1
    if kind == k.T_XID:
        if have < length and st.tx_refused == 1:
            return k.NEED_INPUT
        return commit(st)
    if kind == k.T_XA_PREPARE:
        if have < length:
            return k.NEED_INPUT
        if length < 32 + crc_size:
            return k.BAD_LENGTH
        if st.tx_open == 0:
            return k.NESTED
        if src[at + 19] != 0 or st.tx_refused == 1 or st.tx_skip != 0:  # XA COMMIT … ONE PHASE, or not kept
            return commit(st)
        if st.scan == 1:
            return k.XA if st.tx_kept == 1 else commit(st)
        if st.event_end_pos == 0:
            return k.NO_POSITION
        if st.decision == k.UNDECIDED:
            return k.NEED_EVENT  # Python puts the transaction aside until its XA COMMIT
        st.decision = k.UNDECIDED
        status = commit(st)
        st.event_keep = 0
        return status
    if kind == k.T_GTID_TAGGED:
        if have < length:
            return k.NEED_INPUT
        if st.decision == k.UNDECIDED:
            if st.tx_open == 1:
                return k.NESTED
            begin_transaction(st)
            return k.NEED_EVENT
        st.decision = k.UNDECIDED
        st.event_keep = 1
        return -1
    if kind == k.T_PAYLOAD:
        if st.scan == 1:
            return k.REFUSED
        if st.inner == 1 or (st.tx_begin == 1 and st.tx_open == 1):
            return k.NESTED
        if have < length and length <= src.shape[0] >> 1:
            return k.NEED_INPUT  # all of it fits, and its checksum has to be verified before its bytes are trusted
        if st.event_end_pos == 0:
            return k.NO_POSITION
        if st.tx_open == 0:
            begin_transaction(st)
        if st.tx_time == 0:
            st.tx_time = st.event_time * 1000000
        st.event_keep = 0
        st.event_ends = 1
        if st.tx_skip == 0:
            st.payload = 1
            st.inner_end_pos = st.event_end_pos
            st.inner_ended = 0
        return -1
    if kind in (k.T_GTID, k.T_MARIADB_GTID):
        if have < length:
            return k.NEED_INPUT
        if length < (44 if kind == k.T_GTID else 32) + crc_size:
            return k.BAD_LENGTH
        if st.decision != k.UNDECIDED:
            st.tx_skip = 2 if st.decision == k.DROP else 0
            st.decision = k.UNDECIDED
            st.event_keep = 1
            return -1
        if st.tx_open == 1:
            return k.NESTED
        begin_transaction(st)
        if kind == k.T_GTID:
            read_gtid(st, src, at, length)
        else:
            st.gtid_mariadb = 1
            st.gtid_a = load_u(src, at + 27, 4) | load_u(src, at + 5, 4) << 32
            st.gtid_number = load_u(src, at + 19, 7) | np.int64(src[at + 26]) << 56
            st.gtid_count = 1
            st.tx_begin = 0 if src[at + 31] & 1 else 1
        st.event_keep = 1
        return k.NEED_GTID if st.ask_gtid == 1 and st.tx_skip == 0 else -1
    if kind in (k.T_QUERY, k.T_COMPRESSED_QUERY):
        if have < min(length, k.PREFIX_MAX):
            return k.NEED_INPUT
        verb = np.int64(0)
        if kind == k.T_QUERY and length <= k.PREFIX_MAX:
            verb = query_verb(src, at, at + length - crc_size)
        if verb < 0:
            return k.BAD_LENGTH
        if verb == 1:
            if st.tx_open == 0:
                begin_transaction(st)
            st.tx_begin = 1
            st.event_keep = 1
            return -1
        if verb == 2:
            return commit(st)
        if st.decision == k.UNDECIDED:
            return k.NEED_STATEMENT
        if st.tx_begin == 0 and st.event_end_pos == 0:
            return k.NO_POSITION
        if st.tx_open == 0:
            begin_transaction(st)
        if st.decision == k.OPENS or st.decision == k.ALONG:
            if st.decision == k.OPENS:
                st.tx_begin = 1
            st.decision = k.UNDECIDED
            st.event_keep = 1
            return -1 if st.tx_begin == 1 else k.NESTED
        if st.decision == k.DROP:
            st.event_keep = 1 if st.scan == 1 else 0
        else:
            st.event_keep = 1
            st.tx_kept = 1
            st.hold = -1
            st.tx_mask |= st.decision_mask
            if st.decision == k.KEEP_DDL:
                st.tx_flags |= k.FLAG_DDL
        st.decision = k.UNDECIDED
        if st.tx_begin == 0:
            st.event_ends = 1
            if st.tx_time == 0:
                st.tx_time = st.event_time * 1000000
        return -1
    if kind == k.T_SKIP:
        st.event_keep = 0
        return -1
    if kind == k.T_PYTHON:
        if st.inner == 1:
            return k.NESTED
        if have < length:
            return k.NEED_INPUT
        if st.decision == k.UNDECIDED:
            return k.NEED_EVENT
        st.event_keep = 1 if st.decision == k.KEEP else 0
        st.decision = k.UNDECIDED
        return -1
    if st.tx_skip != 0 or (st.inner == 1 and st.tx_refused == 1):
        st.event_keep = 0
        return -1
    return k.NEED_INPUT if have < length else k.REFUSED
