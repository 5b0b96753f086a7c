"""The framing kernel's steps for statements and transactions: beginning and ending them, and the row of each
transaction.

A transaction's row is written when it ends. A transaction of which nothing is kept has a row without bytes, which only
moves the position; consecutive ones share a row.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc.binlog import frame_state as k
from cdc.binlog.constants import CHECKSUM_SIZE, HEADER_SIZE, MARIADB_GTID_FLAGS_AT, ROWS_STMT_END, EventType
from cdc.binlog.frame_state import FrameState
from cdc.binlog.row_header import FLAGS_AT
from cdc.kernels.crc import crc32
from cdc.kernels.jit import inlined, njit
from cdc.kernels.memory import i64, load_u, store_u32, u32

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

# --- offsets in MySQL's GTID event
_SOURCE_AT, _NUMBER_AT, _CLOCK_TYPE_AT, _TIME_AT = 20, 36, 44, 61
_WITH_TIME = 68
"""The length of an event that has a commit time, without checksum."""
_TIME_BITS = 55
"""The next bit says whether the time on the server where the transaction was executed first follows."""
_LOGICAL_CLOCK = 2
# --- offsets in MariaDB's
_SERVER_AT, _SEQUENCE_AT, _DOMAIN_AT = 5, HEADER_SIZE, HEADER_SIZE + 8


@inlined
def crc_size(st: FrameState) -> int:
    """The bytes of the checksum behind each event of the input."""
    return CHECKSUM_SIZE if st.has_crc == 1 else 0


@inlined
def note_time(st: FrameState) -> None:
    """Takes the current event's time as the commit time, unless the GTID event has told it."""
    if st.tx_time == 0:
        st.tx_time = st.event_time * 1_000_000


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


@inlined
def extended(st: FrameState, at_least: int) -> int:
    """The current event's end_log_pos in the source's file, beyond 32 bits too, where it is at least this one."""
    end = (at_least >> 32 << 32) | st.event_end_pos
    return end + (1 << 32) if end < at_least else end


@njit
def end_transaction(st: FrameState, rows: Longs) -> None:
    """Ends the transaction: writes its row, or extends the row before it if nothing of it is kept."""
    end = extended(st, st.file_pos + st.tx_bytes)  # the sizes that were seen never exceed the real distance
    st.file_pos = end
    end_statement(st)
    st.tx_open = 0
    st.hold = -1
    keeps = st.tx_skip != k.SKIPPED_BY_POSITION and (st.scan == 1 or st.tx_kept == 1)
    if not keeps:
        st.out_pos = st.tx_start - st.out_base
    st.last_tx_end = st.event_in + st.event_length if keeps and st.scan == 1 else st.out_base + st.out_pos
    if st.tx_skip == k.SKIPPED_BY_POSITION:
        st.tx_overrun = 1 if end > st.skip_until else 0
    elif keeps or not extend_row(st, rows, end):
        put_row(st, rows, end, keeps)


@inlined
def row_flags(st: FrameState, keeps: bool) -> int:
    """The flags of the transaction's row."""
    flags = st.tx_flags
    if st.gtid_mariadb == 1:
        flags |= k.FLAG_GTID_MARIADB
    return flags if keeps else flags | k.FLAG_POSITION


@njit
def extend_row(st: FrameState, rows: Longs, end: int) -> bool:
    """Has the last row also stand for the transaction, of which nothing is kept. Returns False if it cannot: it has
    bytes, or the GTIDs do not follow each other."""
    last = st.n_rows - 1
    if last < 0 or rows[last, k.R_FLAGS] != row_flags(st, False):
        return False
    follows = (
        rows[last, k.R_GTID_A] == st.gtid_a
        and rows[last, k.R_GTID_B] == st.gtid_b
        and rows[last, k.R_GTID_NUMBER] + 1 == st.gtid_number
        and rows[last, k.R_GTID_COUNT] > 0
    )
    for i in range(4):
        follows = follows and rows[last, k.R_GTID_TAG + i] == st.gtid_tag[i]
    if not follows and (rows[last, k.R_GTID_COUNT] != 0 or st.gtid_count != 0):
        return False
    rows[last, k.R_SEQ] = st.seq_base | end
    rows[last, k.R_END_POS] = end
    rows[last, k.R_TIME] = max(rows[last, k.R_TIME], st.tx_time)
    if follows:
        rows[last, k.R_GTID_NUMBER] = st.gtid_number
        rows[last, k.R_GTID_COUNT] += 1
    return True


@njit
def put_row(st: FrameState, rows: Longs, end: int, keeps: bool) -> None:
    """Writes the transaction's row."""
    n = st.n_rows
    rows[n, k.R_SEQ] = st.seq_base | end
    rows[n, k.R_OFFSET] = st.tx_start
    rows[n, k.R_LENGTH] = st.last_tx_end - st.tx_start if keeps else 0
    rows[n, k.R_TIME] = st.tx_time
    rows[n, k.R_EVENTS] = st.tx_events if keeps else 0
    rows[n, k.R_ROW_EVENTS] = st.tx_row_events
    rows[n, k.R_FLAGS] = row_flags(st, keeps)
    rows[n, k.R_SUM] = st.tx_sum & 0xFFFFFFFF if keeps else 0
    rows[n, k.R_GTID_A] = st.gtid_a
    rows[n, k.R_GTID_B] = st.gtid_b
    rows[n, k.R_GTID_NUMBER] = st.gtid_number
    rows[n, k.R_GTID_COUNT] = st.gtid_count
    rows[n, k.R_MASK] = st.tx_mask if keeps else 0
    rows[n, k.R_END_POS] = end
    for i in range(4):
        rows[n, k.R_GTID_TAG + i] = st.gtid_tag[i]
    st.n_rows = n + 1


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
        if ends == k.ENDS_STATEMENT:
            end_statement(st)
        elif ends == k.ENDS_TRANSACTION:
            st.inner_ended = 1  # the TRANSACTION_PAYLOAD event ends the transaction
        return
    st.seen_pos = max(st.seen_pos, st.event_end_pos)
    if st.tx_open == 1 and st.event_type != EventType.HEARTBEAT and st.event_type != EventType.HEARTBEAT_V2:
        size = st.event_length
        if st.scan == 1:
            # In a segment it may be four bytes longer than in the source's file, by the checksum that capture added;
            # and the events of a compressed transaction, which share one position, were smaller together.
            size -= CHECKSUM_SIZE
            if st.last_end >= 0 and st.event_end_pos > 0:
                size = min(size, (st.event_end_pos - st.last_end) & 0xFFFFFFFF)
        st.tx_bytes += size
        if st.event_end_pos > 0:
            st.last_end = st.event_end_pos
    if ends == k.ENDS_STATEMENT:
        end_statement(st)
    elif ends == k.ENDS_TRANSACTION:
        end_transaction(st, rows)


@njit
def set_statement_end(st: FrameState, out: Bytes, scratch: Bytes) -> None:
    """Sets STMT_END_F and a new checksum on the last row event that was kept, if the statement's last one is
    dropped."""
    at = st.last_row - st.out_base
    stop = at + st.last_row_length - CHECKSUM_SIZE
    out[at + FLAGS_AT] |= np.uint8(ROWS_STMT_END)
    crc = np.int64(crc32(out, at, stop, scratch))
    store_u32(out, stop, crc)
    weight = 2 * st.last_row_ordinal + 1
    st.tx_sum += (weight * crc & 0xFFFFFFFF) - (weight * st.last_row_crc & 0xFFFFFFFF)


@njit
def read_gtid(st: FrameState, src: Bytes, at: int) -> None:
    """Reads MySQL's GTID or anonymous GTID event: UUID, number, commit time (from 8.0.1 on, µs)."""
    if st.event_type == EventType.GTID:
        st.gtid_a = i64(src, at + _SOURCE_AT)
        st.gtid_b = i64(src, at + _SOURCE_AT + 8)
        st.gtid_number = i64(src, at + _NUMBER_AT)
        st.gtid_count = 1
    if st.event_length - crc_size(st) >= _WITH_TIME and src[at + _CLOCK_TYPE_AT] == _LOGICAL_CLOCK:
        st.tx_time = load_u(src, at + _TIME_AT, 7) & ((1 << _TIME_BITS) - 1)


@njit
def read_mariadb_gtid(st: FrameState, src: Bytes, at: int) -> int:
    """Reads MariaDB's GTID event: domain, server and number. Returns its flags."""
    st.gtid_mariadb = 1
    st.gtid_a = u32(src, at + _DOMAIN_AT) | u32(src, at + _SERVER_AT) << 32
    st.gtid_number = i64(src, at + _SEQUENCE_AT)
    st.gtid_count = 1
    return np.int64(src[at + MARIADB_GTID_FLAGS_AT])


@njit
def commit(st: FrameState) -> int:
    """Marks the current event as the end of its transaction. Returns CONTINUE, or a status if it cannot be."""
    if st.tx_open == 0:
        return k.NESTED
    if st.event_end_pos == 0:
        return k.NO_POSITION
    if st.tx_refused == 1 and st.inner == 0:
        return k.REFUSED_END
    st.event_keep = 1
    st.event_ends = k.ENDS_TRANSACTION
    note_time(st)
    return k.CONTINUE


@njit
def begins_at(st: FrameState) -> int:
    """The position of an event between two transactions in the source's file, beyond 32 bits too."""
    return st.file_pos if st.event_end_pos == 0 else extended(st, st.file_pos) - st.event_length


@njit
def out_of_order(st: FrameState, kind: int) -> bool:
    """Whether an event's position lies before that of the previous event. A server leaves events out, but repeats
    none."""
    if st.scan == 1 or st.last_end < 0 or st.event_end_pos == 0 or kind in (k.T_SKIP, k.T_PYTHON, k.T_REFUSE):
        return False
    return (st.event_end_pos - st.event_length - st.last_end) & 0xFFFFFFFF >= 1 << 31
