"""The framing kernel's decision about each event: what it is, whether it is kept, and what it begins or ends."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cdc.binlog.constants import HEADER_SIZE, ROWS_STMT_END
from cdc.binlog.frame_state import (
    ALONG,
    ASK_GTID,
    BAD_LENGTH,
    DECISION,
    DECISION_MASK,
    DROP,
    EVENT_END_POS,
    EVENT_ENDS,
    EVENT_KEEP,
    EVENT_LENGTH,
    EVENT_TIME,
    EVENT_TYPE,
    FLAG_DDL,
    GTID_A,
    GTID_COUNT,
    GTID_MARIADB,
    GTID_NUMBER,
    HAS_CRC,
    HOLD,
    INNER,
    INNER_END_POS,
    INNER_ENDED,
    KEEP,
    KEEP_DDL,
    LAST_ROW,
    LAST_ROW_LENGTH,
    NEED_EVENT,
    NEED_GTID,
    NEED_INPUT,
    NEED_STATEMENT,
    NEED_TABLE,
    NESTED,
    NO_POSITION,
    NO_TABLE_MAP,
    OPENS,
    OUT_BASE,
    OUT_OF_ORDER,
    OUT_POS,
    PART_IMAGE,
    PATCH_STORED,
    PAYLOAD,
    PREFIX_MAX,
    REFUSED,
    SCAN,
    SKIP_UNTIL,
    STMT_ROWS,
    T_COMPRESSED_QUERY,
    T_GTID,
    T_GTID_TAGGED,
    T_MARIADB_GTID,
    T_PAYLOAD,
    T_PYTHON,
    T_QUERY,
    T_ROWS,
    T_SKIP,
    T_TABLE_MAP,
    T_XA_PREPARE,
    T_XID,
    TX_BEGIN,
    TX_FLAGS,
    TX_KEPT,
    TX_MASK,
    TX_OPEN,
    TX_REFUSED,
    TX_ROW_EVENTS,
    TX_SKIP,
    TX_TIME,
    UNDECIDED,
    XA,
)
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
        return NEED_INPUT if p == INCOMPLETE and at + have < end else BAD_LENGTH
    size = bitmap_size(columns)
    if size == 0:
        return BAD_LENGTH
    last = (1 << ((columns - 1) & 7) + 1) - 1  # the bits behind the last column have no meaning
    known = optional_at >= 0 and load_u(optional, optional_at, 2) == columns
    for _ in range(2 if is_update(kind) else 1):
        for i in range(size):
            lacking = ~np.int64(src[p + i]) & (255 if i < size - 1 else last)
            if lacking != 0 and (not known or lacking & ~np.int64(optional[optional_at + 2 + i]) != 0):
                return PART_IMAGE
        p += size
    return -1


@njit
def start_event(
    st: Longs, src: Bytes, at: int, have: int, kinds: Longs, out: Bytes, tables: TableIds, scratch: Bytes
) -> int:
    """Decides about the event at ``at``, of which ``have`` bytes have arrived; ``st[EVENT_LENGTH]`` is its length.
    Returns -1 if framing can continue, else a status; with NEED_INPUT no transaction or statement has been changed."""
    length = st[EVENT_LENGTH]
    keys, values = tables.keys, tables.values
    kind = kinds[src[at + 4]]
    crc_size = 4 if st[HAS_CRC] == 1 else 0
    st[EVENT_TYPE] = src[at + 4]
    st[EVENT_TIME] = load_u(src, at, 4)
    st[EVENT_END_POS] = load_u(src, at + 13, 4)
    st[EVENT_ENDS] = 0
    if st[INNER] == 1:
        st[EVENT_END_POS] = st[INNER_END_POS]
        if st[INNER_ENDED] == 1:
            return NESTED
    elif out_of_order(st, kind, st[EVENT_END_POS], length):
        return OUT_OF_ORDER if have == length or length > src.shape[0] >> 1 else NEED_INPUT
    if st[TX_OPEN] == 0:
        st[TX_SKIP] = 1 if begins_at(st, st[EVENT_END_POS], length) < st[SKIP_UNTIL] else 0
    if kind == T_ROWS:
        if have < BODY_AT:
            return BAD_LENGTH if length < BODY_AT else NEED_INPUT
        if st[TX_OPEN] == 0:
            return NO_TABLE_MAP
        table_id = load_u(src, at + TABLE_ID_AT, 6)
        ends = src[at + FLAGS_AT] & ROWS_STMT_END
        st[EVENT_ENDS] = 2 if ends else 0
        optional_at = np.int64(-1)
        if table_id == 0xFFFFFF:  # a row event without rows, which only ends the statement
            value = np.int64(-1)
        else:
            slot = find_table(keys, table_id)
            if slot < 0:
                return NO_TABLE_MAP
            value = values[slot]
            optional_at = tables.optional_at[slot]
        if st[SCAN] == 0 and (st[TX_REFUSED] == 1 or st[TX_SKIP] != 0):
            value = np.int64(-1)  # nothing of the transaction is kept; if it is refused, capture stops at its end
        elif st[SCAN] == 0 and value >= 0:
            whole = image_columns(src, at, have, at + length - crc_size, tables.optional, optional_at)
            if whole == PART_IMAGE and have < length and length <= src.shape[0] >> 1:
                return NEED_INPUT  # all of it fits, and its checksum has to be verified before its bytes are trusted
            if whole >= 0:
                return whole
        open_statement(st)
        if value < 0 and st[SCAN] == 0:
            if ends and st[STMT_ROWS] > 0:
                if st[LAST_ROW] < st[OUT_BASE]:
                    if st[DECISION] == UNDECIDED:
                        return PATCH_STORED
                    st[DECISION] = UNDECIDED
                else:
                    set_statement_end(st, out, scratch)
            st[EVENT_KEEP] = 0
            return -1
        st[EVENT_KEEP] = 1
        st[TX_KEPT] = 1
        st[TX_ROW_EVENTS] += 1
        if value >= 0:
            st[TX_MASK] |= np.int64(1) << (value & 63)
        st[STMT_ROWS] += 1
        st[HOLD] = -1
        st[LAST_ROW] = st[OUT_BASE] + st[OUT_POS]
        st[LAST_ROW_LENGTH] = length + 4 - crc_size
        return -1
    if kind == T_TABLE_MAP:
        if have < length:
            return NEED_INPUT
        if length < 31 + crc_size:
            return BAD_LENGTH
        if st[TX_OPEN] == 0:
            begin_transaction(st)
        slot = find_table(keys, load_u(src, at + TABLE_ID_AT, 6))
        if slot < 0 or tables.lengths[slot] != length - crc_size:
            return NEED_TABLE
        open_statement(st)
        st[EVENT_KEEP] = 1 if (values[slot] >= 0 and st[TX_SKIP] == 0) or st[SCAN] == 1 else 0
        return -1
    if kind == T_XID:
        if have < length and st[TX_REFUSED] == 1:
            return NEED_INPUT
        return commit(st)
    if kind == T_XA_PREPARE:
        if have < length:
            return NEED_INPUT
        if length < 32 + crc_size:
            return BAD_LENGTH
        if st[TX_OPEN] == 0:
            return NESTED
        if src[at + 19] != 0 or st[TX_REFUSED] == 1 or st[TX_SKIP] != 0:  # XA COMMIT … ONE PHASE, or not kept
            return commit(st)
        if st[SCAN] == 1:
            return XA if st[TX_KEPT] == 1 else commit(st)
        if st[EVENT_END_POS] == 0:
            return NO_POSITION
        if st[DECISION] == UNDECIDED:
            return NEED_EVENT  # Python puts the transaction aside until its XA COMMIT
        st[DECISION] = UNDECIDED
        status = commit(st)
        st[EVENT_KEEP] = 0
        return status
    if kind == T_GTID_TAGGED:
        if have < length:
            return NEED_INPUT
        if st[DECISION] == UNDECIDED:
            if st[TX_OPEN] == 1:
                return NESTED
            begin_transaction(st)
            return NEED_EVENT
        st[DECISION] = UNDECIDED
        st[EVENT_KEEP] = 1
        return -1
    if kind == T_PAYLOAD:
        if st[SCAN] == 1:
            return REFUSED
        if st[INNER] == 1 or (st[TX_BEGIN] == 1 and st[TX_OPEN] == 1):
            return NESTED
        if have < length and length <= src.shape[0] >> 1:
            return NEED_INPUT  # all of it fits, and its checksum has to be verified before its bytes are trusted
        if st[EVENT_END_POS] == 0:
            return NO_POSITION
        if st[TX_OPEN] == 0:
            begin_transaction(st)
        if st[TX_TIME] == 0:
            st[TX_TIME] = st[EVENT_TIME] * 1000000
        st[EVENT_KEEP] = 0
        st[EVENT_ENDS] = 1
        if st[TX_SKIP] == 0:
            st[PAYLOAD] = 1
            st[INNER_END_POS] = st[EVENT_END_POS]
            st[INNER_ENDED] = 0
        return -1
    if kind in (T_GTID, T_MARIADB_GTID):
        if have < length:
            return NEED_INPUT
        if length < (44 if kind == T_GTID else 32) + crc_size:
            return BAD_LENGTH
        if st[DECISION] != UNDECIDED:
            st[TX_SKIP] = 2 if st[DECISION] == DROP else 0
            st[DECISION] = UNDECIDED
            st[EVENT_KEEP] = 1
            return -1
        if st[TX_OPEN] == 1:
            return NESTED
        begin_transaction(st)
        if kind == T_GTID:
            read_gtid(st, src, at, length)
        else:
            st[GTID_MARIADB] = 1
            st[GTID_A] = load_u(src, at + 27, 4) | load_u(src, at + 5, 4) << 32
            st[GTID_NUMBER] = load_u(src, at + 19, 7) | np.int64(src[at + 26]) << 56
            st[GTID_COUNT] = 1
            st[TX_BEGIN] = 0 if src[at + 31] & 1 else 1
        st[EVENT_KEEP] = 1
        return NEED_GTID if st[ASK_GTID] == 1 and st[TX_SKIP] == 0 else -1
    if kind in (T_QUERY, T_COMPRESSED_QUERY):
        if have < min(length, PREFIX_MAX):
            return NEED_INPUT
        verb = np.int64(0)
        if kind == T_QUERY and length <= PREFIX_MAX:
            verb = query_verb(src, at, at + length - crc_size)
        if verb < 0:
            return BAD_LENGTH
        if verb == 1:
            if st[TX_OPEN] == 0:
                begin_transaction(st)
            st[TX_BEGIN] = 1
            st[EVENT_KEEP] = 1
            return -1
        if verb == 2:
            return commit(st)
        if st[DECISION] == UNDECIDED:
            return NEED_STATEMENT
        if st[TX_BEGIN] == 0 and st[EVENT_END_POS] == 0:
            return NO_POSITION
        if st[TX_OPEN] == 0:
            begin_transaction(st)
        if st[DECISION] == OPENS or st[DECISION] == ALONG:
            if st[DECISION] == OPENS:
                st[TX_BEGIN] = 1
            st[DECISION] = UNDECIDED
            st[EVENT_KEEP] = 1
            return -1 if st[TX_BEGIN] == 1 else NESTED
        if st[DECISION] == DROP:
            st[EVENT_KEEP] = 1 if st[SCAN] == 1 else 0
        else:
            st[EVENT_KEEP] = 1
            st[TX_KEPT] = 1
            st[HOLD] = -1
            st[TX_MASK] |= st[DECISION_MASK]
            if st[DECISION] == KEEP_DDL:
                st[TX_FLAGS] |= FLAG_DDL
        st[DECISION] = UNDECIDED
        if st[TX_BEGIN] == 0:
            st[EVENT_ENDS] = 1
            if st[TX_TIME] == 0:
                st[TX_TIME] = st[EVENT_TIME] * 1000000
        return -1
    if kind == T_SKIP:
        st[EVENT_KEEP] = 0
        return -1
    if kind == T_PYTHON:
        if st[INNER] == 1:
            return NESTED
        if have < length:
            return NEED_INPUT
        if st[DECISION] == UNDECIDED:
            return NEED_EVENT
        st[EVENT_KEEP] = 1 if st[DECISION] == KEEP else 0
        st[DECISION] = UNDECIDED
        return -1
    if st[TX_SKIP] != 0 or (st[INNER] == 1 and st[TX_REFUSED] == 1):
        st[EVENT_KEEP] = 0
        return -1
    return NEED_INPUT if have < length else REFUSED
