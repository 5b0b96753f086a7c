"""The framing kernel's steps for statements and transactions: beginning and ending them, and the row of each
transaction.

A transaction's row is written when it ends. A transaction of which nothing is kept has a row without bytes, which only
moves the position; consecutive ones share a row.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc.binlog import frame_state as k
from cdc.binlog.frame_state import FrameState
from cdc.kernels.crc import crc32
from cdc.kernels.jit import njit
from cdc.kernels.memory import load_u, store_u32

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]


@njit
def begin_transaction(st: FrameState) -> None:
    """Begins a transaction at the current event."""
    st.tx_open = 1
    here = st.event_in if st.scan == 1 else st.out_base + st.out_pos
    st.tx_start = here
    st.hold = here
    st.tx_begin = 0
    st.tx_events = 0
    st.tx_row_events = 0
    st.tx_sum = 0
    st.tx_flags = 0
    st.tx_time = 0
    st.tx_kept = 0
    st.tx_mask = 0
    st.tx_bytes = 0
    st.gtid_count = 0
    st.gtid_a = 0
    st.gtid_b = 0
    st.gtid_number = 0
    st.gtid_mariadb = 0
    for i in range(4):
        st.gtid_tag[i] = 0
    st.tx_refused = 0
    st.stmt_open = 0
    st.last_row = -1


@njit
def end_statement(st: FrameState) -> None:
    """Ends the statement, and drops its table maps if none of its row events was kept."""
    if st.stmt_open == 1 and st.stmt_rows == 0 and st.scan == 0:
        st.out_pos = st.stmt_start - st.out_base
        st.tx_events = st.stmt_events
        st.tx_sum = st.stmt_sum
        st.tx_mask = st.stmt_mask
        if st.tx_kept == 1:
            st.hold = -1
    st.stmt_open = 0


@njit
def open_statement(st: FrameState) -> None:
    """Begins a statement at the current event, if none is open."""
    if st.stmt_open == 1:
        return
    st.stmt_open = 1
    st.stmt_start = st.out_base + st.out_pos
    st.stmt_rows = 0
    st.stmt_events = st.tx_events
    st.stmt_sum = st.tx_sum
    st.stmt_mask = st.tx_mask
    if st.hold == -1:
        st.hold = st.stmt_start


@njit
def end_transaction(st: FrameState, rows: Longs) -> None:
    """Ends the transaction: writes its row, or extends the row before it if nothing of it is kept."""
    # The event's own end_log_pos, extended beyond 32 bits by the sizes seen, which never exceed the real distance.
    at_least = st.file_pos + st.tx_bytes
    end = (at_least >> 32 << 32) | st.event_end_pos
    if end < at_least:
        end += 1 << 32
    st.file_pos = end
    end_statement(st)
    if st.tx_skip == 1:
        st.tx_overrun = 1 if end > st.skip_until else 0
        st.out_pos = st.tx_start - st.out_base
        st.tx_open = 0
        st.hold = -1
        st.last_tx_end = st.tx_start
        return
    if st.scan == 1:
        here = st.event_in + st.event_length
        kept = True
    else:
        kept = st.tx_kept == 1
        if not kept:
            st.out_pos = st.tx_start - st.out_base
        here = st.out_base + st.out_pos
    n = st.n_rows
    flags = st.tx_flags
    if st.gtid_mariadb == 1:
        flags |= k.FLAG_GTID_MARIADB
    if not kept:
        flags |= k.FLAG_POSITION
        if n > 0 and rows[n - 1, k.R_FLAGS] == flags:
            same = (
                rows[n - 1, k.R_GTID_A] == st.gtid_a
                and rows[n - 1, k.R_GTID_B] == st.gtid_b
                and rows[n - 1, k.R_GTID_NUMBER] + 1 == st.gtid_number
                and rows[n - 1, k.R_GTID_COUNT] > 0
            )
            for i in range(4):
                same = same and rows[n - 1, k.R_GTID_TAG + i] == st.gtid_tag[i]
            none = rows[n - 1, k.R_GTID_COUNT] == 0 and st.gtid_count == 0
            if same or none:
                rows[n - 1, k.R_SEQ] = st.seq_base | end
                rows[n - 1, k.R_END_POS] = end
                rows[n - 1, k.R_TIME] = max(rows[n - 1, k.R_TIME], st.tx_time)
                if same:
                    rows[n - 1, k.R_GTID_NUMBER] = st.gtid_number
                    rows[n - 1, k.R_GTID_COUNT] += 1
                st.tx_open = 0
                st.hold = -1
                st.last_tx_end = here
                return
    rows[n, k.R_SEQ] = st.seq_base | end
    rows[n, k.R_OFFSET] = st.tx_start
    rows[n, k.R_LENGTH] = here - st.tx_start if kept else 0
    rows[n, k.R_TIME] = st.tx_time
    rows[n, k.R_EVENTS] = st.tx_events if kept else 0
    rows[n, k.R_ROW_EVENTS] = st.tx_row_events
    rows[n, k.R_FLAGS] = flags
    rows[n, k.R_SUM] = st.tx_sum & 0xFFFFFFFF if kept else 0
    rows[n, k.R_GTID_A] = st.gtid_a
    rows[n, k.R_GTID_B] = st.gtid_b
    rows[n, k.R_GTID_NUMBER] = st.gtid_number
    rows[n, k.R_GTID_COUNT] = st.gtid_count
    rows[n, k.R_MASK] = st.tx_mask if kept else 0
    rows[n, k.R_END_POS] = end
    for i in range(4):
        rows[n, k.R_GTID_TAG + i] = st.gtid_tag[i]
    st.n_rows = n + 1
    st.tx_open = 0
    st.hold = -1
    st.last_tx_end = here


@njit
def finish_event(st: FrameState, rows: Longs, crc: int) -> None:
    """Ends an event whose last byte has been read; ``crc`` is its checksum in the output."""
    if st.event_keep == 1 and st.tx_open == 1:
        st.tx_sum += (2 * st.tx_events + 1) * np.int64(crc) & 0xFFFFFFFF
        if st.last_row == st.event_out:
            st.last_row_ordinal = st.tx_events
            st.last_row_crc = crc
        st.tx_events += 1
    ends = st.event_ends
    if st.inner == 1:
        if ends == 2:
            end_statement(st)
        elif ends == 1:
            st.inner_ended = 1  # the TRANSACTION_PAYLOAD event ends the transaction
        return
    st.seen_pos = max(st.seen_pos, st.event_end_pos)
    if st.tx_open == 1 and st.event_type != 27 and st.event_type != 41:
        size = st.event_length
        if st.scan == 1:
            # In a segment it may be four bytes longer than in the source's file, by the checksum that capture added;
            # and the events of a compressed transaction, which share one position, were smaller together.
            size -= 4
            if st.last_end >= 0 and st.event_end_pos > 0:
                size = min(size, (st.event_end_pos - st.last_end) & 0xFFFFFFFF)
        st.tx_bytes += size
        if st.event_end_pos > 0:
            st.last_end = st.event_end_pos
    if ends == 2:
        end_statement(st)
    elif ends == 1:
        end_transaction(st, rows)


@njit
def set_statement_end(st: FrameState, out: Bytes, scratch: Bytes) -> None:
    """Sets STMT_END_F and a new checksum on the last row event that was kept, if the statement's last one is
    dropped."""
    at = st.last_row - st.out_base
    length = st.last_row_length
    out[at + 25] |= np.uint8(1)
    crc = np.int64(crc32(out, at, at + length - 4, scratch))
    store_u32(out, at + length - 4, crc)
    weight = 2 * st.last_row_ordinal + 1
    st.tx_sum += (weight * crc & 0xFFFFFFFF) - (weight * st.last_row_crc & 0xFFFFFFFF)


@njit
def read_gtid(st: FrameState, src: Bytes, at: int, length: int) -> None:
    """Reads MySQL's GTID or anonymous GTID event: UUID, number, commit time (from 8.0.1 on, µs)."""
    if st.event_type == 33:
        st.gtid_a = load_u(src, at + 20, 7) | np.int64(src[at + 27]) << 56
        st.gtid_b = load_u(src, at + 28, 7) | np.int64(src[at + 35]) << 56
        st.gtid_number = load_u(src, at + 36, 7) | np.int64(src[at + 43]) << 56
        st.gtid_count = 1
    body = length - 4 if st.has_crc == 1 else length
    if body >= 68 and src[at + 44] == 2:
        st.tx_time = load_u(src, at + 61, 7) & ((1 << 55) - 1)


@njit
def commit(st: FrameState) -> int:
    """Marks the current event as the end of its transaction. Returns -1, or a status if it cannot be."""
    if st.tx_open == 0:
        return k.NESTED
    if st.event_end_pos == 0:
        return k.NO_POSITION
    if st.tx_refused == 1 and st.inner == 0:
        return k.REFUSED_END
    st.event_keep = 1
    st.event_ends = 1
    if st.tx_time == 0:
        st.tx_time = st.event_time * 1000000
    return -1


@njit
def begins_at(st: FrameState, end_pos: int, length: int) -> int:
    """The position of an event between two transactions in the source's file, beyond 32 bits too."""
    if end_pos == 0:
        return st.file_pos
    end = (st.file_pos >> 32 << 32) | end_pos
    if end < st.file_pos:
        end += 1 << 32
    return end - length


@njit
def out_of_order(st: FrameState, kind: int, end_pos: int, length: int) -> bool:
    """Whether an event's position lies before that of the previous event. A server leaves events out, but repeats
    none."""
    if st.scan == 1 or st.last_end < 0 or end_pos == 0 or kind in (k.T_SKIP, k.T_PYTHON, k.T_REFUSE):
        return False
    return (end_pos - length - st.last_end) & 0xFFFFFFFF >= 1 << 31
