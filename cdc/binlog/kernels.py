"""The framing kernel: a stream of events becomes kept bytes and one row of numbers for each transaction.

``frame`` is a state machine over two buffers. It reads from ``src`` (either the packets of a replication connection
or the plain bytes of a binlog file), verifies every event's CRC32, drops what is not wanted, copies the rest to
``out`` and writes a row into ``rows`` at each transaction's end. It runs until it needs something that only
Python can give, says so by its status, and goes on from there when it is called again. An event of any size passes
through in pieces, so that the memory needed does not depend on the source.

All state is in the int64 array ``st``, at the indexes below; ``cdc.binlog.framer`` is its only caller.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc.binlog.crc import crc32, crc32_update
from cdc.binlog.jit import njit
from cdc.binlog.memory import copy_bytes, load_u, store_u32

# --- where things stand in st -----------------------------------------------------------------------------------
PACKETS = 0  # 1: src holds MySQL packets; 0: plain events
SCAN = 1  # 1: nothing is copied; offsets in rows are those of the input
HAS_CRC = 2  # 1: events of the source end with a checksum
VERIFY = 3  # 1: check them
IN_POS, IN_END = 4, 5  # unread bytes of src
IN_BASE = 6  # offset in the input of src[0]
OUT_POS = 7  # kept bytes in out
OUT_BASE = 8  # offset in the segment of out[0]
HOLD = 9  # absolute offset from which the output is provisional, or -1
N_ROWS = 10  # rows filled
PACKET_LEFT, PACKET_MORE = 11, 12  # payload left of the current packet; the next one continues it
# the event in hand
EVENT_LEFT = 13  # its bytes not yet read; 0: between events
EVENT_KEEP = 14
EVENT_TYPE = 15
EVENT_END_POS = 16
EVENT_CRC, EVENT_WANT, EVENT_TAIL = 17, 18, 19  # running CRC; the expected one; how many of its bytes were read
EVENT_OUT = 20  # absolute offset where it begins in the output
EVENT_ENDS = 21  # 1: it ends its transaction
EVENT_LENGTH = 22
EVENT_TIME = 23
EVENT_IN = 24  # absolute offset where it begins in the input
# the statement in hand
STMT_OPEN, STMT_START, STMT_ROWS = 25, 26, 27  # open; where it begins in the output; kept row events
STMT_EVENTS, STMT_SUM = 28, 29  # events and checksum sum at its start
LAST_ROW, LAST_ROW_LENGTH, LAST_ROW_ORDINAL, LAST_ROW_CRC = 30, 31, 32, 33  # the last kept row event
# the transaction in hand
TX_OPEN, TX_START, TX_BEGIN = 34, 35, 36  # open; where it begins; 1: ends with XID or COMMIT
TX_EVENTS, TX_ROW_EVENTS, TX_SUM, TX_FLAGS, TX_TIME, TX_KEPT = 37, 38, 39, 40, 41, 42
TX_MASK = 43
GTID_A, GTID_B, GTID_NUMBER, GTID_COUNT, GTID_MARIADB = 44, 45, 46, 47, 48
# the file in hand
FILE_POS = 49  # end of the last transaction in the source's file, not cut to 32 bits
SEQ_BASE = 50  # epoch and file number, shifted
DECISION = 51  # Python's answer to NEED_STATEMENT / NEED_EVENT / NEED_TABLE
DECISION_MASK = 52
LAST_TX_END = 53  # absolute offset of the end of the last finished transaction
N_EVENTS = 54  # events seen
STMT_MASK = 55
TX_BYTES = 56  # size of the transaction's events in the source
ROLL_AT = 57  # at the first transaction boundary with this much in the segment, stop; 0: never
SEEN_POS = 58  # largest end_log_pos (32 bits) in the source's file
SKIP_UNTIL = 59  # transactions that begin before this position of the source's file are in the store already
TX_SKIP = 60  # the transaction in hand is one of them
TX_OVERRUN = 61  # it ended behind SKIP_UNTIL
LAST_END = 62  # end_log_pos (32 bits) of the newest event of a transaction; -1: not known
WHOLE = 63  # length of the event at IN_POS when all of it is needed and not there; else 0
JOINED = 64  # payload of the packet at IN_POS, which Python joined from several; else 0
TX_REFUSED = 80  # 1: the transaction changes captured tables in a way that is not supported; its end stops capture
PAYLOAD = 81  # of a TRANSACTION_PAYLOAD event: 1: its bytes are being handed over; 2: all were, their checksum is right
PIECE_AT, PIECE_LENGTH = 82, 83  # the bytes of it that are handed over
GTID_TAG = 84  # four numbers: the tag's 32 bytes
STATE_SIZE = 96

# --- what frame returns -----------------------------------------------------------------------------------------
NEED_INPUT = 0
OUT_FULL = 1
ROWS_FULL = 2
NEED_TABLE = 3  # the TABLE_MAP event at EVENT_IN has an id that is not in the table of tables
NEED_STATEMENT = 4  # the QUERY event at EVENT_IN has to be judged
NEED_EVENT = 5  # ROTATE, FORMAT_DESCRIPTION, tagged GTID, INCIDENT, XA_PREPARE: Python looks at it
SERVER_ERROR = 6
END_OF_STREAM = 7
BAD_CHECKSUM = 8
BAD_LENGTH = 9
REFUSED = 10
NO_TABLE_MAP = 11
NESTED = 12
XA = 13
PATCH_STORED = 14  # STMT_END_F has to be set on a row event that has left out already
BAD_PACKET = 15
AT_BOUNDARY = 17  # ROLL_AT has been reached
NO_POSITION = 16  # an event that ends a transaction says nothing about where
PART_IMAGE = 18  # a row event that would be kept, whose rows lack columns
COMPRESSED_ROWS = 19  # a compressed row event that would be kept
REFUSED_END = 20  # the end of a transaction with TX_REFUSED
PAYLOAD_PIECE = 21  # some bytes of a compressed transaction, for Python to unpack
PAYLOAD_END = 22  # all of a compressed transaction has been handed over
OUT_OF_ORDER = 23  # an event of a transaction that lies before the one that came before it
OVERRUN = 24  # a transaction that is there already ends behind what is there

# --- DECISION ---------------------------------------------------------------------------------------------------
UNDECIDED, KEEP, DROP, KEEP_DDL = 0, 1, 2, 3
OPENS = 4  # a statement that begins the transaction, as BEGIN does (XA START)
ALONG = 5  # a statement that is kept if the transaction is, and does not end it (XA END)

# --- columns of rows ----------------------------------------------------------------------------------------------
(R_SEQ, R_OFFSET, R_LENGTH, R_TIME, R_EVENTS, R_ROW_EVENTS, R_FLAGS, R_SUM, R_GTID_A, R_GTID_B, R_GTID_NUMBER) = range(
    11
)
R_GTID_COUNT, R_MASK, R_END_POS = 11, 12, 13
R_GTID_TAG = 14  # four columns: 32 bytes
ROW_WIDTH = 18

FLAG_DDL, FLAG_POSITION, FLAG_GTID_MARIADB = 1, 2, 4

# --- what each event type is --------------------------------------------------------------------------------------
T_UNKNOWN, T_SKIP, T_REFUSE, T_ROWS, T_TABLE_MAP, T_QUERY, T_XID, T_GTID, T_MARIADB_GTID, T_PYTHON = range(10)
T_COMPRESSED_ROWS, T_COMPRESSED_QUERY, T_XA_PREPARE, T_GTID_TAGGED, T_PAYLOAD = range(10, 15)

PREFIX_MAX = 1 << 18  # of a large QUERY event only so much is looked at
_HEADER = 19
_BEGIN, _COMMIT = 0x4E49474542, 0x54494D4D4F43  # the words, as little-endian numbers
_ROOM = 64


@njit
def find_table(keys: npt.NDArray[np.int64], table_id: int) -> int:
    """Slot of ``table_id`` in an open-addressed table (power-of-two size, -1 is free), or -1."""
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
def add_table(keys: npt.NDArray[np.int64], values: npt.NDArray[np.int64], table_id: int, value: int) -> None:
    """Enter ``table_id``; the caller keeps the table at most half full."""
    mask = keys.shape[0] - 1
    slot = (table_id * 2654435761 >> 7) & mask
    while keys[slot] != -1 and keys[slot] != table_id:
        slot = (slot + 1) & mask
    keys[slot] = table_id
    values[slot] = value


@njit
def query_verb(src: npt.NDArray[np.uint8], at: int, end: int) -> int:
    """1 for a QUERY event whose text is BEGIN, 2 for COMMIT, 0 for anything else, -1 where its lengths are wrong.
    ``at``: its header; ``end``: the end of its text."""
    if at + _HEADER + 13 > end:
        return -1
    db_length = np.int64(src[at + _HEADER + 8])
    status_length = load_u(src, at + _HEADER + 11, 2)
    text = at + _HEADER + 13 + status_length + db_length + 1
    if text > end:
        return -1
    n = end - text
    if n == 5 and load_u(src, text, 5) == _BEGIN:
        return 1
    if n == 6 and load_u(src, text, 6) == _COMMIT:
        return 2
    return 0


@njit
def _begin(st: npt.NDArray[np.int64]) -> None:
    st[TX_OPEN] = 1
    here = st[EVENT_IN] if st[SCAN] == 1 else st[OUT_BASE] + st[OUT_POS]
    st[TX_START] = here
    st[HOLD] = here
    st[TX_BEGIN] = 0
    st[TX_EVENTS] = 0
    st[TX_ROW_EVENTS] = 0
    st[TX_SUM] = 0
    st[TX_FLAGS] = 0
    st[TX_TIME] = 0
    st[TX_KEPT] = 0
    st[TX_MASK] = 0
    st[TX_BYTES] = 0
    st[GTID_COUNT] = 0
    st[GTID_A] = 0
    st[GTID_B] = 0
    st[GTID_NUMBER] = 0
    st[GTID_MARIADB] = 0
    for k in range(4):
        st[GTID_TAG + k] = 0
    st[TX_REFUSED] = 0
    st[STMT_OPEN] = 0
    st[LAST_ROW] = -1


@njit
def _end_statement(st: npt.NDArray[np.int64]) -> None:
    """Forget the table maps of a statement that changed nothing of ours."""
    if st[STMT_OPEN] == 1 and st[STMT_ROWS] == 0 and st[SCAN] == 0:
        st[OUT_POS] = st[STMT_START] - st[OUT_BASE]
        st[TX_EVENTS] = st[STMT_EVENTS]
        st[TX_SUM] = st[STMT_SUM]
        st[TX_MASK] = st[STMT_MASK]
        if st[TX_KEPT] == 1:
            st[HOLD] = -1
    st[STMT_OPEN] = 0


@njit
def _open_statement(st: npt.NDArray[np.int64]) -> None:
    if st[STMT_OPEN] == 1:
        return
    st[STMT_OPEN] = 1
    st[STMT_START] = st[OUT_BASE] + st[OUT_POS]
    st[STMT_ROWS] = 0
    st[STMT_EVENTS] = st[TX_EVENTS]
    st[STMT_SUM] = st[TX_SUM]
    st[STMT_MASK] = st[TX_MASK]
    if st[HOLD] == -1:
        st[HOLD] = st[STMT_START]


@njit
def _end_transaction(st: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> None:
    # The event's own end_log_pos, extended beyond 32 bits by the sizes seen, which never exceed the real distance.
    at_least = st[FILE_POS] + st[TX_BYTES]
    end = (at_least >> 32 << 32) | st[EVENT_END_POS]
    if end < at_least:
        end += 1 << 32
    st[FILE_POS] = end
    _end_statement(st)
    if st[TX_SKIP] == 1:
        st[TX_OVERRUN] = 1 if end > st[SKIP_UNTIL] else 0
        st[OUT_POS] = st[TX_START] - st[OUT_BASE]
        st[TX_OPEN] = 0
        st[HOLD] = -1
        st[LAST_TX_END] = st[TX_START]
        return
    if st[SCAN] == 1:
        here = st[EVENT_IN] + st[EVENT_LENGTH]
        kept = True
    else:
        kept = st[TX_KEPT] == 1
        if not kept:
            st[OUT_POS] = st[TX_START] - st[OUT_BASE]
        here = st[OUT_BASE] + st[OUT_POS]
    n = st[N_ROWS]
    flags = st[TX_FLAGS]
    if st[GTID_MARIADB] == 1:
        flags |= FLAG_GTID_MARIADB
    if not kept:
        flags |= FLAG_POSITION
        if n > 0 and rows[n - 1, R_FLAGS] == flags:
            same = (
                rows[n - 1, R_GTID_A] == st[GTID_A]
                and rows[n - 1, R_GTID_B] == st[GTID_B]
                and rows[n - 1, R_GTID_NUMBER] + 1 == st[GTID_NUMBER]
                and rows[n - 1, R_GTID_COUNT] > 0
            )
            for k in range(4):
                same = same and rows[n - 1, R_GTID_TAG + k] == st[GTID_TAG + k]
            none = rows[n - 1, R_GTID_COUNT] == 0 and st[GTID_COUNT] == 0
            if same or none:
                rows[n - 1, R_SEQ] = st[SEQ_BASE] | end
                rows[n - 1, R_END_POS] = end
                rows[n - 1, R_TIME] = max(rows[n - 1, R_TIME], st[TX_TIME])
                if same:
                    rows[n - 1, R_GTID_NUMBER] = st[GTID_NUMBER]
                    rows[n - 1, R_GTID_COUNT] += 1
                st[TX_OPEN] = 0
                st[HOLD] = -1
                st[LAST_TX_END] = here
                return
    rows[n, R_SEQ] = st[SEQ_BASE] | end
    rows[n, R_OFFSET] = st[TX_START]
    rows[n, R_LENGTH] = here - st[TX_START] if kept else 0
    rows[n, R_TIME] = st[TX_TIME]
    rows[n, R_EVENTS] = st[TX_EVENTS] if kept else 0
    rows[n, R_ROW_EVENTS] = st[TX_ROW_EVENTS]
    rows[n, R_FLAGS] = flags
    rows[n, R_SUM] = st[TX_SUM] & 0xFFFFFFFF if kept else 0
    rows[n, R_GTID_A] = st[GTID_A]
    rows[n, R_GTID_B] = st[GTID_B]
    rows[n, R_GTID_NUMBER] = st[GTID_NUMBER]
    rows[n, R_GTID_COUNT] = st[GTID_COUNT]
    rows[n, R_MASK] = st[TX_MASK] if kept else 0
    rows[n, R_END_POS] = end
    for k in range(4):
        rows[n, R_GTID_TAG + k] = st[GTID_TAG + k]
    st[N_ROWS] = n + 1
    st[TX_OPEN] = 0
    st[HOLD] = -1
    st[LAST_TX_END] = here


@njit
def _finish_event(st: npt.NDArray[np.int64], rows: npt.NDArray[np.int64], crc: int) -> None:
    """The event's last byte has been read; ``crc`` is its checksum as it stands in the output."""
    if st[EVENT_KEEP] == 1 and st[TX_OPEN] == 1:
        st[TX_SUM] += (2 * st[TX_EVENTS] + 1) * np.int64(crc) & 0xFFFFFFFF
        if st[LAST_ROW] == st[EVENT_OUT]:
            st[LAST_ROW_ORDINAL] = st[TX_EVENTS]
            st[LAST_ROW_CRC] = crc
        st[TX_EVENTS] += 1
    st[SEEN_POS] = max(st[SEEN_POS], st[EVENT_END_POS])
    if st[TX_OPEN] == 1 and st[EVENT_END_POS] > 0 and st[EVENT_TYPE] != 27 and st[EVENT_TYPE] != 41:
        st[LAST_END] = st[EVENT_END_POS]
    if st[TX_OPEN] == 1 and st[EVENT_TYPE] != 27 and st[EVENT_TYPE] != 41:
        # In a segment it may be four bytes longer than in the source's file: the checksum that capture added.
        st[TX_BYTES] += st[EVENT_LENGTH] - (4 if st[SCAN] == 1 else 0)
    ends = st[EVENT_ENDS]
    if ends == 2:
        _end_statement(st)
    elif ends == 1:
        _end_transaction(st, rows)


@njit
def _set_statement_end(st: npt.NDArray[np.int64], out: npt.NDArray[np.uint8], scratch: npt.NDArray[np.uint8]) -> None:
    """The statement's last row event was dropped: set STMT_END_F on the last one kept, and its checksum anew."""
    at = st[LAST_ROW] - st[OUT_BASE]
    length = st[LAST_ROW_LENGTH]
    out[at + 25] |= np.uint8(1)
    crc = np.int64(crc32(out, at, at + length - 4, scratch))
    store_u32(out, at + length - 4, crc)
    weight = 2 * st[LAST_ROW_ORDINAL] + 1
    st[TX_SUM] += (weight * crc & 0xFFFFFFFF) - (weight * st[LAST_ROW_CRC] & 0xFFFFFFFF)


@njit
def _gtid(st: npt.NDArray[np.int64], src: npt.NDArray[np.uint8], at: int, length: int) -> None:
    """MySQL's GTID or anonymous GTID event: UUID, number, commit time (from 8.0.1 on, µs)."""
    if st[EVENT_TYPE] == 33:
        st[GTID_A] = load_u(src, at + 20, 7) | np.int64(src[at + 27]) << 56
        st[GTID_B] = load_u(src, at + 28, 7) | np.int64(src[at + 35]) << 56
        st[GTID_NUMBER] = load_u(src, at + 36, 7) | np.int64(src[at + 43]) << 56
        st[GTID_COUNT] = 1
    body = length - 4 if st[HAS_CRC] == 1 else length
    if body >= 68 and src[at + 44] == 2:
        st[TX_TIME] = load_u(src, at + 61, 7) & ((1 << 55) - 1)


@njit
def _commit(st: npt.NDArray[np.int64]) -> int:
    """The event in hand ends its transaction. Returns -1, or why it cannot."""
    if st[TX_OPEN] == 0:
        return NESTED
    if st[EVENT_END_POS] == 0:
        return NO_POSITION
    if st[TX_REFUSED] == 1:
        return REFUSED_END
    st[EVENT_KEEP] = 1
    st[EVENT_ENDS] = 1
    if st[TX_TIME] == 0:
        st[TX_TIME] = st[EVENT_TIME] * 1000000
    return -1


@njit
def _begins_at(st: npt.NDArray[np.int64], end_pos: int, length: int) -> int:
    """The position in the source's file, not cut to 32 bits, of an event between two transactions."""
    if end_pos == 0:
        return st[FILE_POS]
    end = (st[FILE_POS] >> 32 << 32) | end_pos
    if end < st[FILE_POS]:
        end += 1 << 32
    return end - length


@njit
def _out_of_order(st: npt.NDArray[np.int64], kind: int, end_pos: int, length: int) -> bool:
    """Does an event lie before the one that came before it? A server leaves events out, but repeats none."""
    if st[SCAN] == 1 or st[LAST_END] < 0 or end_pos == 0 or kind in (T_SKIP, T_PYTHON, T_REFUSE):
        return False
    return (end_pos - length - st[LAST_END]) & 0xFFFFFFFF >= 1 << 31


@njit
def image_columns(src: npt.NDArray[np.uint8], at: int, have: int, end: int) -> int:
    """Do the rows of a row event hold all columns? -1 where they do, else PART_IMAGE, BAD_LENGTH or NEED_INPUT.

    ``at``: the event's header, of which ``have`` bytes are there; ``end``: where its rows end. Behind the flags stand
    (in version 2) extra information, the number of columns, and a bitmap of the columns that the images hold; an
    update has one for the image before and one for the image after.
    """
    stop = at + have
    kind = src[at + 4]
    p = at + 27
    if kind >= 30:
        if p + 2 > end:
            return BAD_LENGTH
        if p + 2 > stop:
            return NEED_INPUT
        p += max(2, load_u(src, p, 2))
    if p >= end:
        return BAD_LENGTH
    if p >= stop:
        return NEED_INPUT
    columns = np.int64(src[p])
    p += 1
    if columns >= 251:
        if columns != 252:  # a table has at most 4096 columns
            return BAD_LENGTH
        if p + 2 > end:
            return BAD_LENGTH
        if p + 2 > stop:
            return NEED_INPUT
        columns = load_u(src, p, 2)
        p += 2
    size = (columns + 7) >> 3
    maps = 2 if kind == 24 or kind == 31 or kind == 39 else 1
    if size == 0 or p + maps * size > end:
        return BAD_LENGTH
    if p + maps * size > stop:
        return NEED_INPUT
    last = (1 << ((columns - 1) & 7) + 1) - 1  # the bits behind the last column mean nothing
    for _ in range(maps):
        for i in range(size - 1):
            if src[p + i] != 255:
                return PART_IMAGE
        p += size
        if np.int64(src[p - 1]) & last != last:
            return PART_IMAGE
    return -1


@njit
def _start_event(
    st: npt.NDArray[np.int64],
    src: npt.NDArray[np.uint8],
    at: int,
    have: int,
    length: int,
    kinds: npt.NDArray[np.int64],
    out: npt.NDArray[np.uint8],
    keys: npt.NDArray[np.int64],
    values: npt.NDArray[np.int64],
    scratch: npt.NDArray[np.uint8],
) -> int:
    """Decide about the event at ``at``, of which ``have`` bytes are there. Returns -1 when it can go on, else a status;
    with NEED_INPUT nothing has been changed."""
    kind = kinds[src[at + 4]]
    crc_size = 4 if st[HAS_CRC] == 1 else 0
    st[EVENT_TYPE] = src[at + 4]
    st[EVENT_LENGTH] = length
    st[EVENT_TIME] = load_u(src, at, 4)
    st[EVENT_END_POS] = load_u(src, at + 13, 4)
    st[EVENT_ENDS] = 0
    if _out_of_order(st, kind, st[EVENT_END_POS], length):
        return OUT_OF_ORDER if have == length or length > src.shape[0] >> 1 else NEED_INPUT
    if st[TX_OPEN] == 0:
        st[TX_SKIP] = 1 if _begins_at(st, st[EVENT_END_POS], length) < st[SKIP_UNTIL] else 0
    if kind in (T_ROWS, T_COMPRESSED_ROWS):
        if have < 27:
            return BAD_LENGTH if length < 27 else NEED_INPUT
        if st[TX_OPEN] == 0:
            return NO_TABLE_MAP
        table_id = load_u(src, at + 19, 6)
        ends = src[at + 25] & 1
        st[EVENT_ENDS] = 2 if ends else 0
        if table_id == 0xFFFFFF:  # a row event without rows, which only ends the statement
            value = np.int64(-1)
        else:
            slot = find_table(keys, table_id)
            if slot < 0:
                return NO_TABLE_MAP
            value = values[slot]
        if st[SCAN] == 1:
            if kind == T_COMPRESSED_ROWS:
                return REFUSED
        elif st[TX_REFUSED] == 1 or st[TX_SKIP] == 1:
            value = np.int64(-1)  # nothing of the transaction is kept; where it is refused, capture stops at its end
        elif value >= 0:
            whole = np.int64(COMPRESSED_ROWS)
            if kind == T_ROWS:
                whole = image_columns(src, at, have, at + length - crc_size)
            unsupported = whole in (PART_IMAGE, COMPRESSED_ROWS)
            if unsupported and have < length and length <= src.shape[0] >> 1:
                return NEED_INPUT  # all of it fits, and its checksum is to be verified before this is believed
            if whole >= 0:
                return whole
        _open_statement(st)
        if value < 0 and st[SCAN] == 0:
            if ends and st[STMT_ROWS] > 0:
                if st[LAST_ROW] < st[OUT_BASE]:
                    if st[DECISION] == UNDECIDED:
                        return PATCH_STORED
                    st[DECISION] = UNDECIDED
                else:
                    _set_statement_end(st, out, scratch)
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
            _begin(st)
        slot = find_table(keys, load_u(src, at + 19, 6))
        if slot < 0:
            return NEED_TABLE
        _open_statement(st)
        st[EVENT_KEEP] = 1 if (values[slot] >= 0 and st[TX_SKIP] == 0) or st[SCAN] == 1 else 0
        return -1
    if kind == T_XID:
        if have < length and st[TX_REFUSED] == 1:
            return NEED_INPUT
        return _commit(st)
    if kind == T_XA_PREPARE:
        if have < length:
            return NEED_INPUT
        if length < 32 + crc_size:
            return BAD_LENGTH
        if st[TX_OPEN] == 0:
            return NESTED
        if src[at + 19] == 0 and st[TX_KEPT] == 1 and st[TX_REFUSED] == 0:
            return XA  # rows whose fate is not known; with XA COMMIT … ONE PHASE it is
        if src[at + 19] == 0 and st[SCAN] == 0 and st[TX_REFUSED] == 0:
            if st[DECISION] == UNDECIDED:
                return NEED_EVENT
            st[DECISION] = UNDECIDED
        return _commit(st)
    if kind == T_GTID_TAGGED:
        if have < length:
            return NEED_INPUT
        if st[DECISION] == UNDECIDED:
            if st[TX_OPEN] == 1:
                return NESTED
            _begin(st)
            return NEED_EVENT
        st[DECISION] = UNDECIDED
        st[EVENT_KEEP] = 1
        return -1
    if kind == T_PAYLOAD:
        if st[SCAN] == 1:
            return REFUSED
        if st[TX_BEGIN] == 1 and st[TX_OPEN] == 1:
            return NESTED
        if st[EVENT_END_POS] == 0:
            return NO_POSITION
        if st[TX_OPEN] == 0:
            _begin(st)
        if st[TX_TIME] == 0:
            st[TX_TIME] = st[EVENT_TIME] * 1000000
        st[EVENT_KEEP] = 0
        st[EVENT_ENDS] = 1
        st[PAYLOAD] = 1
        return -1
    if kind in (T_GTID, T_MARIADB_GTID):
        if have < length:
            return NEED_INPUT
        if length < (44 if kind == T_GTID else 32) + crc_size:
            return BAD_LENGTH
        if st[TX_OPEN] == 1:
            return NESTED
        _begin(st)
        if kind == T_GTID:
            _gtid(st, src, at, length)
        else:
            st[GTID_MARIADB] = 1
            st[GTID_A] = load_u(src, at + 27, 4) | load_u(src, at + 5, 4) << 32
            st[GTID_NUMBER] = load_u(src, at + 19, 7) | np.int64(src[at + 26]) << 56
            st[GTID_COUNT] = 1
            st[TX_BEGIN] = 0 if src[at + 31] & 1 else 1
        st[EVENT_KEEP] = 1
        return -1
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
                _begin(st)
            st[TX_BEGIN] = 1
            st[EVENT_KEEP] = 1
            return -1
        if verb == 2:
            return _commit(st)
        if st[DECISION] == UNDECIDED:
            return NEED_STATEMENT
        if st[TX_BEGIN] == 0 and st[EVENT_END_POS] == 0:
            return NO_POSITION
        if st[TX_OPEN] == 0:
            _begin(st)
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
        if have < length:
            return NEED_INPUT
        if st[DECISION] == UNDECIDED:
            return NEED_EVENT
        st[EVENT_KEEP] = 1 if st[DECISION] == KEEP else 0
        st[DECISION] = UNDECIDED
        return -1
    if st[TX_SKIP] == 1:
        st[EVENT_KEEP] = 0
        return -1
    return NEED_INPUT if have < length else REFUSED


@njit
def frame(
    st: npt.NDArray[np.int64],
    src: npt.NDArray[np.uint8],
    out: npt.NDArray[np.uint8],
    rows: npt.NDArray[np.int64],
    kinds: npt.NDArray[np.int64],
    keys: npt.NDArray[np.int64],
    values: npt.NDArray[np.int64],
    scratch: npt.NDArray[np.uint8],
) -> int:
    """Frame events until something is needed; returns what.

    ``src`` uint8, read from ``st[IN_POS]`` to ``st[IN_END]``; ``out`` uint8, filled from ``st[OUT_POS]``; ``rows``
    (n, ROW_WIDTH) int64; ``kinds`` (256,) event type → T_…; ``keys``/``values`` the table of table ids (value: number
    of a captured table, -1 for one that is not); ``scratch`` 16 bytes.
    """
    packets, scan, has_crc = st[PACKETS] == 1, st[SCAN] == 1, st[HAS_CRC] == 1
    while True:
        pos, end = st[IN_POS], st[IN_END]
        st[WHOLE] = 0
        if st[PAYLOAD] == 2:
            st[PAYLOAD] = 0
            if st[TX_REFUSED] == 1:
                return REFUSED_END
            _finish_event(st, rows, 0)
        if st[PAYLOAD] == 1 and st[EVENT_LEFT] == 0:
            if has_crc and st[VERIFY] == 1 and st[EVENT_CRC] ^ 0xFFFFFFFF != st[EVENT_WANT]:
                return BAD_CHECKSUM
            st[PAYLOAD] = 2
            return PAYLOAD_END
        if st[EVENT_LEFT] == 0:
            # Between two events.
            has_crc = st[HAS_CRC] == 1
            if st[N_ROWS] >= rows.shape[0]:
                return ROWS_FULL
            if not scan and out.shape[0] - st[OUT_POS] < PREFIX_MAX:
                return OUT_FULL
            if st[TX_OVERRUN] == 1:
                return OVERRUN
            if st[ROLL_AT] > 0 and st[TX_OPEN] == 0 and st[OUT_BASE] + st[OUT_POS] >= st[ROLL_AT]:
                return AT_BOUNDARY
            at = pos
            payload = end - pos
            if packets:
                if end - pos < 4 or (end - pos == 4 and load_u(src, pos, 3) != 0):
                    return NEED_INPUT
                payload = load_u(src, pos, 3) if st[JOINED] == 0 else st[JOINED]
                if payload == 0:
                    if st[PACKET_MORE] == 0:
                        return BAD_PACKET
                    st[PACKET_MORE] = 0  # the empty packet after one of exactly 2^24 - 1 bytes
                    st[IN_POS] = pos + 4
                    continue
                status = src[pos + 4]
                at = pos + 5
                if status == 255:
                    return SERVER_ERROR if end - pos >= 4 + payload else NEED_INPUT
                if status == 254 and payload < 9:
                    return END_OF_STREAM
                if status != 0:
                    return BAD_PACKET
                payload -= 1
            if end - at < _HEADER:
                return NEED_INPUT
            length = load_u(src, at + 9, 4)
            if length < _HEADER + (4 if has_crc else 0):
                return BAD_LENGTH
            if packets and (payload > length or (payload < length and payload != 0xFFFFFE)):
                return BAD_LENGTH
            st[EVENT_IN] = st[IN_BASE] + at
            have = min(end - at, min(payload, length))
            status = _start_event(st, src, at, have, length, kinds, out, keys, values, scratch)
            if status >= 0:
                if status == NEED_INPUT:
                    st[WHOLE] = length
                return status
            st[N_EVENTS] += 1
            st[JOINED] = 0
            st[PACKET_LEFT] = payload if packets else length
            st[PACKET_MORE] = 1 if packets and payload == 0xFFFFFE else 0
            st[EVENT_OUT] = st[OUT_BASE] + st[OUT_POS]
            keep = st[EVENT_KEEP] == 1 and not scan
            # The whole event at once, where it is there: nearly always.
            room = not keep or out.shape[0] - st[OUT_POS] >= length
            if has_crc and have == length and room and st[PAYLOAD] == 0:
                stop = at + length - 4
                want = load_u(src, stop, 4)
                if st[VERIFY] == 1 and np.int64(crc32(src, at, stop, scratch)) != want:
                    return BAD_CHECKSUM
                if keep:
                    copy_bytes(out, st[OUT_POS], src, at, length)
                    st[OUT_POS] += length
                st[IN_POS] = at + length
                st[PACKET_LEFT] = 0
                _finish_event(st, rows, want)
                continue
            st[EVENT_LEFT] = length - _HEADER
            st[EVENT_WANT] = 0
            st[EVENT_TAIL] = 0
            if keep:
                o = st[OUT_POS]
                copy_bytes(out, o, src, at, _HEADER)
                if not has_crc:
                    store_u32(out, o + 9, length + 4)
                st[EVENT_CRC] = np.int64(crc32_update(np.uint32(0xFFFFFFFF), out, o, o + _HEADER, scratch))
                st[OUT_POS] = o + _HEADER
            else:
                st[EVENT_CRC] = np.int64(crc32_update(np.uint32(0xFFFFFFFF), src, at, at + _HEADER, scratch))
            st[IN_POS] = at + _HEADER
            st[PACKET_LEFT] -= _HEADER
            if st[EVENT_LEFT] > 0:
                continue
        # Inside of an event.
        keep = st[EVENT_KEEP] == 1 and not scan
        pos = st[IN_POS]
        if packets and st[PACKET_LEFT] == 0 and st[EVENT_LEFT] > 0:
            if end - pos < 4:
                return NEED_INPUT
            if st[PACKET_MORE] == 0:
                return BAD_LENGTH
            payload = load_u(src, pos, 3)
            st[PACKET_LEFT] = payload
            st[PACKET_MORE] = 1 if payload == 0xFFFFFF else 0
            st[IN_POS] = pos + 4
            continue
        n = min(end - pos, st[EVENT_LEFT])
        if packets:
            n = min(n, st[PACKET_LEFT])
        if n == 0 and st[EVENT_LEFT] > 0:
            return NEED_INPUT
        body = st[EVENT_LEFT] - (4 if has_crc else 0)
        if body > 0:
            n = min(n, body)
            if keep:
                n = min(n, out.shape[0] - st[OUT_POS] - _ROOM)
                if n <= 0:
                    return OUT_FULL
                copy_bytes(out, st[OUT_POS], src, pos, n)
                st[OUT_POS] += n
            st[EVENT_CRC] = np.int64(crc32_update(np.uint32(st[EVENT_CRC]), src, pos, pos + n, scratch))
        else:
            if keep and out.shape[0] - st[OUT_POS] < n:
                return OUT_FULL
            for k in range(n):
                st[EVENT_WANT] |= np.int64(src[pos + k]) << (8 * st[EVENT_TAIL])
                st[EVENT_TAIL] += 1
                if keep:
                    out[st[OUT_POS]] = src[pos + k]
                    st[OUT_POS] += 1
        st[IN_POS] = pos + n
        st[EVENT_LEFT] -= n
        if packets:
            st[PACKET_LEFT] -= n
        if st[PAYLOAD] == 1:
            if body > 0:
                st[PIECE_AT] = pos
                st[PIECE_LENGTH] = n
                return PAYLOAD_PIECE
            continue
        if st[EVENT_LEFT] == 0:
            crc = st[EVENT_CRC] ^ 0xFFFFFFFF
            if has_crc:
                if st[VERIFY] == 1 and crc != st[EVENT_WANT]:
                    return BAD_CHECKSUM
                crc = st[EVENT_WANT]
            elif keep:
                store_u32(out, st[OUT_POS], crc)
                st[OUT_POS] += 4
            _finish_event(st, rows, crc)


@njit
def seal_entries(entries: npt.NDArray[np.uint8], scratch: npt.NDArray[np.uint8]) -> None:
    """Write each entry's CRC32 into its last four bytes. ``entries`` (n, 128) uint8, contiguous."""
    flat = entries.reshape(-1)
    for k in range(entries.shape[0]):
        at = k * 128
        store_u32(flat, at + 124, np.int64(crc32(flat, at, at + 124, scratch)))


@njit
def first_bad_entry(entries: npt.NDArray[np.uint8], scratch: npt.NDArray[np.uint8]) -> int:
    """Number of the first entry whose CRC32 is wrong, or -1."""
    flat = entries.reshape(-1)
    for k in range(entries.shape[0]):
        at = k * 128
        if np.int64(crc32(flat, at, at + 124, scratch)) != load_u(flat, at + 124, 4):
            return k
    return -1
