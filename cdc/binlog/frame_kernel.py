"""The framing kernel: turns a stream of events into kept bytes and one row of numbers for each transaction.

``frame`` is a state machine over two buffers. It reads from ``src`` (either the packets of a replication connection or
the plain bytes of a binlog file), verifies every event's CRC32, drops unwanted events, copies the rest to ``out``, and
writes a row into ``rows`` at the end of each transaction. It runs until it needs something that only Python can give,
returns a status that says so, and continues from there when it is called again. An event of any size passes through in
pieces, so the memory that is needed does not depend on the source.

A compressed transaction that has arrived whole is unpacked here, into the second input ``inner``, if Python has given
the address of zstd's function. A larger or unusual one is unpacked by Python, piece by piece.

All state is in the record ``st`` (:class:`~cdc.binlog.frame_state.FrameState`). ``frame_events`` decides about each
event, ``frame_transactions`` begins and ends transactions; ``cdc.binlog.framer`` is the only caller.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc.binlog import frame_state as k
from cdc.binlog.constants import HEADER_SIZE
from cdc.binlog.frame_events import TableIds, start_event
from cdc.binlog.frame_payload import unpack_payload
from cdc.binlog.frame_state import FrameState
from cdc.binlog.frame_transactions import finish_event
from cdc.kernels.crc import crc32, crc32_update
from cdc.kernels.jit import inlined, njit
from cdc.kernels.memory import copy_bytes, load_u, store_u32

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]


_ROOM = 64


@njit
def swap_input(st: FrameState) -> None:
    """Makes the other input the current one."""
    for i in range(k.INPUT_FIELDS):
        current = st.numbers[i]
        st.numbers[i] = st.saved[i]
        st.saved[i] = current


@inlined
def is_due(st: FrameState, number: np.uint8) -> bool:
    """Whether a packet of this number comes next."""
    return bool(st.packet_number < 0 or st.packet_number == np.int64(number))


@inlined
def count_packet(st: FrameState, number: np.uint8) -> None:
    """Notes that a packet has been taken."""
    if st.packet_number >= 0:
        st.packet_number = (np.int64(number) + 1) & 255


@njit
def frame(st: FrameState, src: Bytes, inner: Bytes, out: Bytes, rows: Longs, tables: TableIds, scratch: Bytes) -> int:
    """Frames events until it needs something, and returns a status that says what.

    ``src``, or ``inner`` while ``st.inner`` is 1, is read from ``st.in_pos`` to ``st.in_end``; ``out`` is filled
    from ``st.out_pos``; ``rows`` (n, ROW_WIDTH); ``scratch`` (16,).
    """
    while True:
        status = frame_input(st, inner if st.inner == 1 else src, out, rows, tables, scratch)
        if status == k.PAYLOAD_WHOLE and st.unzstd != 0:
            n = unpack_payload(st, src, inner)
            if n <= 0:
                return status
            for i in range(k.INPUT_FIELDS):
                st.saved[i] = 0
            swap_input(st)
            st.inner, st.in_end, st.unpacked = 1, n, 1
        elif status == k.NEED_INPUT and st.unpacked == 1 and st.inner == 1:
            whole = st.in_pos == st.in_end and st.event_left == 0 and st.inner_ended == 1
            swap_input(st)
            if not whole or st.preparing == 1:
                return k.PAYLOAD_END
            st.unpacked = 0
        else:
            return status


@njit
def frame_input(st: FrameState, src: Bytes, out: Bytes, rows: Longs, tables: TableIds, scratch: Bytes) -> int:
    """Frames the events of one input, as :func:`frame` does."""
    packets, scan, has_crc = st.packets == 1, st.scan == 1, st.has_crc == 1
    while True:
        pos, end = st.in_pos, st.in_end
        st.whole = 0
        if st.payload == 2:
            st.payload = 0
            if st.tx_refused == 1:
                return k.REFUSED_END
            finish_event(st, rows, 0)
        if st.payload == 1 and st.event_left == 0:
            if has_crc and st.verify == 1 and st.event_crc ^ 0xFFFFFFFF != st.event_want:
                return k.BAD_CHECKSUM
            st.payload = 2
            return k.PAYLOAD_END
        if st.event_left == 0:
            # Between two events.
            has_crc = st.has_crc == 1
            if st.n_rows >= rows.shape[0]:
                return k.ROWS_FULL
            if not scan and out.shape[0] - st.out_pos < k.PREFIX_MAX:
                return k.OUT_FULL
            if st.tx_overrun == 1:
                return k.OVERRUN
            if st.roll_at > 0 and st.tx_open == 0 and st.out_base + st.out_pos >= st.roll_at:
                return k.AT_BOUNDARY
            at = pos
            payload = end - pos
            if packets:
                if end - pos < 4 or (end - pos == 4 and load_u(src, pos, 3) != 0):
                    return k.NEED_INPUT
                payload = load_u(src, pos, 3) if st.joined == 0 else st.joined
                if payload == 0:
                    if st.packet_more == 0:
                        return k.BAD_PACKET
                    if not is_due(st, src[pos + 3]):
                        return k.OUT_OF_STEP
                    count_packet(st, src[pos + 3])
                    st.packet_more = 0  # the empty packet after one of exactly 2^24 - 1 bytes
                    st.in_pos = pos + 4
                    continue
                status = src[pos + 4]
                at = pos + 5
                if status == 255:
                    return k.SERVER_ERROR if end - pos >= 4 + payload else k.NEED_INPUT
                if status == 254 and payload < 9:
                    return k.END_OF_STREAM
                if status != 0:
                    return k.BAD_PACKET
                if not is_due(st, src[pos + 3]):
                    return k.OUT_OF_STEP
                payload -= 1
            if end - at < HEADER_SIZE:
                return k.NEED_INPUT
            length = load_u(src, at + 9, 4)
            if length < HEADER_SIZE + (4 if has_crc else 0):
                return k.BAD_LENGTH
            if packets and (payload > length or (payload < length and payload != 0xFFFFFE)):
                return k.BAD_LENGTH
            st.event_in = st.in_base + at
            have = min(end - at, min(payload, length))
            st.event_length = length
            status = start_event(st, src, at, have, out, tables, scratch)
            if status >= 0:
                if status == k.NEED_INPUT:
                    st.whole = length
                return status
            st.joined = 0
            if packets:
                count_packet(st, src[pos + 3])
            st.packet_left = payload if packets else length
            st.packet_more = 1 if packets and payload == 0xFFFFFE else 0
            st.event_out = st.out_base + st.out_pos
            keep = st.event_keep == 1 and not scan
            # The whole event at once, if it has arrived, which it nearly always has.
            room = not keep or out.shape[0] - st.out_pos >= length
            if has_crc and have == length and room and st.payload == 0:
                stop = at + length - 4
                checksum = load_u(src, stop, 4)
                if st.verify == 1 and np.int64(crc32(src, at, stop, scratch)) != checksum:
                    return k.BAD_CHECKSUM
                if keep:
                    copy_bytes(out, st.out_pos, src, at, length)
                    st.out_pos += length
                st.in_pos = at + length
                st.packet_left = 0
                finish_event(st, rows, checksum)
                continue
            if have == length and st.payload == 1:
                stop = at + length - (4 if has_crc else 0)
                if has_crc and st.verify == 1 and np.int64(crc32(src, at, stop, scratch)) != load_u(src, stop, 4):
                    return k.BAD_CHECKSUM
                st.in_pos = at + length
                st.packet_left = 0
                st.piece_at = at + HEADER_SIZE
                st.piece_length = stop - at - HEADER_SIZE
                st.payload = 2
                return k.PAYLOAD_WHOLE
            st.event_left = length - HEADER_SIZE
            st.event_want = 0
            st.event_tail = 0
            if keep:
                o = st.out_pos
                copy_bytes(out, o, src, at, HEADER_SIZE)
                if not has_crc:
                    store_u32(out, o + 9, length + 4)
                if st.inner == 1:
                    store_u32(out, o + 13, st.event_end_pos)
                st.event_crc = np.int64(crc32_update(np.uint32(0xFFFFFFFF), out, o, o + HEADER_SIZE, scratch))
                st.out_pos = o + HEADER_SIZE
            else:
                st.event_crc = np.int64(crc32_update(np.uint32(0xFFFFFFFF), src, at, at + HEADER_SIZE, scratch))
            st.in_pos = at + HEADER_SIZE
            st.packet_left -= HEADER_SIZE
            if st.event_left > 0:
                continue
        # Inside an event.
        keep = st.event_keep == 1 and not scan
        pos = st.in_pos
        if packets and st.packet_left == 0 and st.event_left > 0:
            if end - pos < 4:
                return k.NEED_INPUT
            if st.packet_more == 0:
                return k.BAD_LENGTH
            if not is_due(st, src[pos + 3]):
                return k.OUT_OF_STEP
            count_packet(st, src[pos + 3])
            payload = load_u(src, pos, 3)
            st.packet_left = payload
            st.packet_more = 1 if payload == 0xFFFFFF else 0
            st.in_pos = pos + 4
            continue
        n = min(end - pos, st.event_left)
        if packets:
            n = min(n, st.packet_left)
        if n == 0 and st.event_left > 0:
            return k.NEED_INPUT
        body = st.event_left - (4 if has_crc else 0)
        if body > 0:
            n = min(n, body)
            if keep:
                n = min(n, out.shape[0] - st.out_pos - _ROOM)
                if n <= 0:
                    return k.OUT_FULL
                copy_bytes(out, st.out_pos, src, pos, n)
                st.out_pos += n
            st.event_crc = np.int64(crc32_update(np.uint32(st.event_crc), src, pos, pos + n, scratch))
        else:
            if keep and out.shape[0] - st.out_pos < n:
                return k.OUT_FULL
            for i in range(n):
                st.event_want |= np.int64(src[pos + i]) << (8 * st.event_tail)
                st.event_tail += 1
                if keep:
                    out[st.out_pos] = src[pos + i]
                    st.out_pos += 1
        st.in_pos = pos + n
        st.event_left -= n
        if packets:
            st.packet_left -= n
        if st.payload == 1:
            if body > 0:
                st.piece_at = pos
                st.piece_length = n
                return k.PAYLOAD_PIECE
            continue
        if st.event_left == 0:
            crc = st.event_crc ^ 0xFFFFFFFF
            if has_crc:
                if st.verify == 1 and crc != st.event_want:
                    return k.BAD_CHECKSUM
                crc = st.event_want
            elif keep:
                store_u32(out, st.out_pos, crc)
                st.out_pos += 4
            finish_event(st, rows, crc)
