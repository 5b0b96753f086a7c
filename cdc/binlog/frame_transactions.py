"""The framing kernel's steps for statements and transactions: beginning and ending them, and the row of each
transaction.

A transaction's row is written when it ends. A transaction of which nothing is kept has a row without bytes, which only
moves the position; consecutive ones share a row.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc.binlog.frame_state import (
    EVENT_END_POS,
    EVENT_ENDS,
    EVENT_IN,
    EVENT_KEEP,
    EVENT_LENGTH,
    EVENT_OUT,
    EVENT_TIME,
    EVENT_TYPE,
    FILE_POS,
    FLAG_GTID_MARIADB,
    FLAG_POSITION,
    GTID_A,
    GTID_B,
    GTID_COUNT,
    GTID_MARIADB,
    GTID_NUMBER,
    GTID_TAG,
    HAS_CRC,
    HOLD,
    INNER,
    INNER_ENDED,
    LAST_END,
    LAST_ROW,
    LAST_ROW_CRC,
    LAST_ROW_LENGTH,
    LAST_ROW_ORDINAL,
    LAST_TX_END,
    N_ROWS,
    NESTED,
    NO_POSITION,
    OUT_BASE,
    OUT_POS,
    R_END_POS,
    R_EVENTS,
    R_FLAGS,
    R_GTID_A,
    R_GTID_B,
    R_GTID_COUNT,
    R_GTID_NUMBER,
    R_GTID_TAG,
    R_LENGTH,
    R_MASK,
    R_OFFSET,
    R_ROW_EVENTS,
    R_SEQ,
    R_SUM,
    R_TIME,
    REFUSED_END,
    SCAN,
    SEEN_POS,
    SEQ_BASE,
    SKIP_UNTIL,
    STMT_EVENTS,
    STMT_MASK,
    STMT_OPEN,
    STMT_ROWS,
    STMT_START,
    STMT_SUM,
    T_PYTHON,
    T_REFUSE,
    T_SKIP,
    TX_BEGIN,
    TX_BYTES,
    TX_EVENTS,
    TX_FLAGS,
    TX_KEPT,
    TX_MASK,
    TX_OPEN,
    TX_OVERRUN,
    TX_REFUSED,
    TX_ROW_EVENTS,
    TX_SKIP,
    TX_START,
    TX_SUM,
    TX_TIME,
)
from cdc.kernels.crc import crc32
from cdc.kernels.jit import njit
from cdc.kernels.memory import load_u, store_u32

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]


@njit
def begin_transaction(st: Longs) -> None:
    """Begins a transaction at the current event."""
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
def end_statement(st: Longs) -> None:
    """Ends the statement, and drops its table maps if none of its row events was kept."""
    if st[STMT_OPEN] == 1 and st[STMT_ROWS] == 0 and st[SCAN] == 0:
        st[OUT_POS] = st[STMT_START] - st[OUT_BASE]
        st[TX_EVENTS] = st[STMT_EVENTS]
        st[TX_SUM] = st[STMT_SUM]
        st[TX_MASK] = st[STMT_MASK]
        if st[TX_KEPT] == 1:
            st[HOLD] = -1
    st[STMT_OPEN] = 0


@njit
def open_statement(st: Longs) -> None:
    """Begins a statement at the current event, if none is open."""
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
def end_transaction(st: Longs, rows: Longs) -> None:
    """Ends the transaction: writes its row, or extends the row before it if nothing of it is kept."""
    # The event's own end_log_pos, extended beyond 32 bits by the sizes seen, which never exceed the real distance.
    at_least = st[FILE_POS] + st[TX_BYTES]
    end = (at_least >> 32 << 32) | st[EVENT_END_POS]
    if end < at_least:
        end += 1 << 32
    st[FILE_POS] = end
    end_statement(st)
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
def finish_event(st: Longs, rows: Longs, crc: int) -> None:
    """Ends an event whose last byte has been read; ``crc`` is its checksum in the output."""
    if st[EVENT_KEEP] == 1 and st[TX_OPEN] == 1:
        st[TX_SUM] += (2 * st[TX_EVENTS] + 1) * np.int64(crc) & 0xFFFFFFFF
        if st[LAST_ROW] == st[EVENT_OUT]:
            st[LAST_ROW_ORDINAL] = st[TX_EVENTS]
            st[LAST_ROW_CRC] = crc
        st[TX_EVENTS] += 1
    ends = st[EVENT_ENDS]
    if st[INNER] == 1:
        if ends == 2:
            end_statement(st)
        elif ends == 1:
            st[INNER_ENDED] = 1  # the TRANSACTION_PAYLOAD event ends the transaction
        return
    st[SEEN_POS] = max(st[SEEN_POS], st[EVENT_END_POS])
    if st[TX_OPEN] == 1 and st[EVENT_TYPE] != 27 and st[EVENT_TYPE] != 41:
        size = st[EVENT_LENGTH]
        if st[SCAN] == 1:
            # In a segment it may be four bytes longer than in the source's file, by the checksum that capture added;
            # and the events of a compressed transaction, which share one position, were smaller together.
            size -= 4
            if st[LAST_END] >= 0 and st[EVENT_END_POS] > 0:
                size = min(size, (st[EVENT_END_POS] - st[LAST_END]) & 0xFFFFFFFF)
        st[TX_BYTES] += size
        if st[EVENT_END_POS] > 0:
            st[LAST_END] = st[EVENT_END_POS]
    if ends == 2:
        end_statement(st)
    elif ends == 1:
        end_transaction(st, rows)


@njit
def set_statement_end(st: Longs, out: Bytes, scratch: Bytes) -> None:
    """Sets STMT_END_F and a new checksum on the last row event that was kept, if the statement's last one is
    dropped."""
    at = st[LAST_ROW] - st[OUT_BASE]
    length = st[LAST_ROW_LENGTH]
    out[at + 25] |= np.uint8(1)
    crc = np.int64(crc32(out, at, at + length - 4, scratch))
    store_u32(out, at + length - 4, crc)
    weight = 2 * st[LAST_ROW_ORDINAL] + 1
    st[TX_SUM] += (weight * crc & 0xFFFFFFFF) - (weight * st[LAST_ROW_CRC] & 0xFFFFFFFF)


@njit
def read_gtid(st: Longs, src: Bytes, at: int, length: int) -> None:
    """Reads MySQL's GTID or anonymous GTID event: UUID, number, commit time (from 8.0.1 on, µs)."""
    if st[EVENT_TYPE] == 33:
        st[GTID_A] = load_u(src, at + 20, 7) | np.int64(src[at + 27]) << 56
        st[GTID_B] = load_u(src, at + 28, 7) | np.int64(src[at + 35]) << 56
        st[GTID_NUMBER] = load_u(src, at + 36, 7) | np.int64(src[at + 43]) << 56
        st[GTID_COUNT] = 1
    body = length - 4 if st[HAS_CRC] == 1 else length
    if body >= 68 and src[at + 44] == 2:
        st[TX_TIME] = load_u(src, at + 61, 7) & ((1 << 55) - 1)


@njit
def commit(st: Longs) -> int:
    """Marks the current event as the end of its transaction. Returns -1, or a status if it cannot be."""
    if st[TX_OPEN] == 0:
        return NESTED
    if st[EVENT_END_POS] == 0:
        return NO_POSITION
    if st[TX_REFUSED] == 1 and st[INNER] == 0:
        return REFUSED_END
    st[EVENT_KEEP] = 1
    st[EVENT_ENDS] = 1
    if st[TX_TIME] == 0:
        st[TX_TIME] = st[EVENT_TIME] * 1000000
    return -1


@njit
def begins_at(st: Longs, end_pos: int, length: int) -> int:
    """The position of an event between two transactions in the source's file, beyond 32 bits too."""
    if end_pos == 0:
        return st[FILE_POS]
    end = (st[FILE_POS] >> 32 << 32) | end_pos
    if end < st[FILE_POS]:
        end += 1 << 32
    return end - length


@njit
def out_of_order(st: Longs, kind: int, end_pos: int, length: int) -> bool:
    """Whether an event's position lies before that of the previous event. A server leaves events out, but repeats
    none."""
    if st[SCAN] == 1 or st[LAST_END] < 0 or end_pos == 0 or kind in (T_SKIP, T_PYTHON, T_REFUSE):
        return False
    return (end_pos - length - st[LAST_END]) & 0xFFFFFFFF >= 1 << 31
