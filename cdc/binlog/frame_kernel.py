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
from cdc.binlog.constants import CHECKSUM_SIZE, FULL_PACKET, HEADER_SIZE
from cdc.binlog.frame_events import TableIds, start_event
from cdc.binlog.frame_payload import unpack_payload
from cdc.binlog.frame_state import FrameState
from cdc.binlog.frame_transactions import crc_size, finish_event
from cdc.kernels.crc import crc32, crc32_update
from cdc.kernels.jit import inlined, njit
from cdc.kernels.memory import copy_bytes, store_u32, u24, u32

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

_ROOM = 64
"""Bytes of the output that stay free behind a piece of an event, for its checksum."""
_PACKET_HEADER = 4
"""The length of the payload (3 bytes) and the number of the packet. A packet that begins an event has a byte of status
behind it: 0."""
_ERROR_PACKET, _END_PACKET, _LEAST_DATA = 255, 254, 9
"""The status of a packet with the server's error; of one that ends the stream, whose payload is shorter than 9."""


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
    """Frames the events of one input, as :func:`frame` does. The functions for its steps return CONTINUE, or the status
    that ends it."""
    while True:
        st.whole = 0
        if st.payload == k.PAYLOAD_READ:
            st.payload = k.NO_PAYLOAD
            if st.tx_refused == 1:
                return k.REFUSED_END
            finish_event(st, rows, 0)
        if st.event_left > 0:
            status = read_piece(st, src, out, rows, scratch)
        elif st.payload == k.PAYLOAD_BEGUN:
            status = end_payload(st)
        else:
            status = boundary_status(st, out, rows)
            if status == k.CONTINUE:
                status = begin_event(st, src, out, rows, tables, scratch)
        if status != k.CONTINUE:
            return status


@inlined
def keeps_event(st: FrameState) -> bool:
    """Whether the current event is copied to the output."""
    return bool(st.event_keep == 1 and st.scan == 0)


@inlined
def is_sound(st: FrameState, src: Bytes, at: int, stop: int, scratch: Bytes) -> bool:
    """Whether the checksum at ``stop`` is that of ``src[at:stop]``, or is not verified."""
    return bool(st.verify == 0 or np.int64(crc32(src, at, stop, scratch)) == u32(src, stop))


# --- between two events


@inlined
def boundary_status(st: FrameState, out: Bytes, rows: Longs) -> int:
    """Returns CONTINUE, or the status that the caller has to see before the next event begins."""
    if st.n_rows >= rows.shape[0]:
        return k.ROWS_FULL
    if st.scan == 0 and out.shape[0] - st.out_pos < k.PREFIX_MAX:
        return k.OUT_FULL
    if st.tx_overrun == 1:
        return k.OVERRUN
    if st.roll_at > 0 and st.tx_open == 0 and st.out_base + st.out_pos >= st.roll_at:
        return k.AT_BOUNDARY
    return k.CONTINUE


@njit
def begin_event(st: FrameState, src: Bytes, out: Bytes, rows: Longs, tables: TableIds, scratch: Bytes) -> int:
    """Begins the event at the start of the unread bytes, and ends it if it has arrived whole, which it nearly always
    has."""
    pos, end = st.in_pos, st.in_end
    at = pos
    payload = end - pos
    packets = st.packets == 1
    if packets:
        if end - pos < _PACKET_HEADER or (end - pos == _PACKET_HEADER and u24(src, pos) != 0):
            return k.NEED_INPUT
        payload = u24(src, pos) if st.joined == 0 else st.joined
        if payload == 0:
            return pass_empty_packet(st, src)
        status = packet_status(st, src, payload)
        if status != k.CONTINUE:
            return status
        at += _PACKET_HEADER + 1
        payload -= 1
    if end - at < HEADER_SIZE:
        return k.NEED_INPUT
    length = u32(src, at + 9)
    if length < HEADER_SIZE + crc_size(st):
        return k.BAD_LENGTH
    if packets and (payload > length or (payload < length and payload != FULL_PACKET - 1)):
        return k.BAD_LENGTH
    st.event_in = st.in_base + at
    st.event_length = length
    have = min(end - at, min(payload, length))
    status = start_event(st, src, at, have, out, tables, scratch)
    if status != k.CONTINUE:
        if status == k.NEED_INPUT:
            st.whole = length
        return status
    st.joined = 0
    if packets:
        count_packet(st, src[pos + 3])
    st.packet_left = payload if packets else length
    st.packet_more = 1 if packets and payload == FULL_PACKET - 1 else 0
    st.event_out = st.out_base + st.out_pos
    if have == length and st.payload == k.PAYLOAD_BEGUN:
        return take_payload(st, src, at, scratch)
    if have == length and st.has_crc == 1 and (not keeps_event(st) or out.shape[0] - st.out_pos >= length):
        return take_event(st, src, at, out, rows, scratch)
    return take_header(st, src, at, out, rows, scratch)


@njit
def pass_empty_packet(st: FrameState, src: Bytes) -> int:
    """Passes the empty packet that follows one of exactly 2^24 - 1 bytes."""
    number = src[st.in_pos + 3]
    if st.packet_more == 0:
        return k.BAD_PACKET
    if not is_due(st, number):
        return k.OUT_OF_STEP
    count_packet(st, number)
    st.packet_more = 0
    st.in_pos += _PACKET_HEADER
    return k.CONTINUE


@inlined
def packet_status(st: FrameState, src: Bytes, payload: int) -> int:
    """Whether the packet with this payload, the next one, begins an event."""
    status = src[st.in_pos + _PACKET_HEADER]
    if status == _ERROR_PACKET:
        return k.SERVER_ERROR if st.in_end - st.in_pos >= _PACKET_HEADER + payload else k.NEED_INPUT
    if status == _END_PACKET and payload < _LEAST_DATA:
        return k.END_OF_STREAM
    if status != 0:
        return k.BAD_PACKET
    return k.CONTINUE if is_due(st, src[st.in_pos + 3]) else k.OUT_OF_STEP


@inlined
def take_event(st: FrameState, src: Bytes, at: int, out: Bytes, rows: Longs, scratch: Bytes) -> int:
    """Takes an event that has arrived whole, and has a checksum."""
    stop = at + st.event_length - CHECKSUM_SIZE
    if not is_sound(st, src, at, stop, scratch):
        return k.BAD_CHECKSUM
    if keeps_event(st):
        copy_bytes(out, st.out_pos, src, at, st.event_length)
        st.out_pos += st.event_length
    st.in_pos = at + st.event_length
    st.packet_left = 0
    finish_event(st, rows, u32(src, stop))
    return k.CONTINUE


@njit
def take_payload(st: FrameState, src: Bytes, at: int, scratch: Bytes) -> int:
    """Hands over a compressed transaction that has arrived whole."""
    stop = at + st.event_length - crc_size(st)
    if st.has_crc == 1 and not is_sound(st, src, at, stop, scratch):
        return k.BAD_CHECKSUM
    st.in_pos = at + st.event_length
    st.packet_left = 0
    st.piece_at = at + HEADER_SIZE
    st.piece_length = stop - at - HEADER_SIZE
    st.payload = k.PAYLOAD_READ
    return k.PAYLOAD_WHOLE


@njit
def take_header(st: FrameState, src: Bytes, at: int, out: Bytes, rows: Longs, scratch: Bytes) -> int:
    """Takes the header of an event that is read in pieces."""
    st.event_left = st.event_length - HEADER_SIZE
    st.event_want = 0
    st.event_tail = 0
    if keeps_event(st):
        o = st.out_pos
        copy_bytes(out, o, src, at, HEADER_SIZE)
        if st.has_crc == 0:
            store_u32(out, o + 9, st.event_length + CHECKSUM_SIZE)
        if st.inner == 1:
            store_u32(out, o + 13, st.event_end_pos)
        st.event_crc = np.int64(crc32_update(np.uint32(0xFFFFFFFF), out, o, o + HEADER_SIZE, scratch))
        st.out_pos = o + HEADER_SIZE
    else:
        st.event_crc = np.int64(crc32_update(np.uint32(0xFFFFFFFF), src, at, at + HEADER_SIZE, scratch))
    st.in_pos = at + HEADER_SIZE
    st.packet_left -= HEADER_SIZE
    return k.CONTINUE if st.event_left > 0 else read_piece(st, src, out, rows, scratch)


# --- inside an event


@njit
def read_piece(st: FrameState, src: Bytes, out: Bytes, rows: Longs, scratch: Bytes) -> int:
    """Reads the next bytes of the event: of its body, or of its checksum."""
    pos = st.in_pos
    n = min(st.in_end - pos, st.event_left)
    if st.packets == 1:
        if st.packet_left == 0 and st.event_left > 0:
            return begin_packet(st, src)
        n = min(n, st.packet_left)
    if n == 0 and st.event_left > 0:
        return k.NEED_INPUT
    body = st.event_left - crc_size(st)
    if body > 0:
        n = min(n, body)
        if keeps_event(st):
            n = min(n, out.shape[0] - st.out_pos - _ROOM)
            if n <= 0:
                return k.OUT_FULL
            copy_bytes(out, st.out_pos, src, pos, n)
            st.out_pos += n
        st.event_crc = np.int64(crc32_update(np.uint32(st.event_crc), src, pos, pos + n, scratch))
    elif keeps_event(st) and out.shape[0] - st.out_pos < n:
        return k.OUT_FULL
    else:
        read_checksum(st, src, pos, n, out)
    st.in_pos = pos + n
    st.event_left -= n
    if st.packets == 1:
        st.packet_left -= n
    if st.payload == k.PAYLOAD_BEGUN:
        st.piece_at = pos
        st.piece_length = n
        return k.PAYLOAD_PIECE if body > 0 else k.CONTINUE
    return k.CONTINUE if st.event_left > 0 else end_event(st, out, rows)


@njit
def begin_packet(st: FrameState, src: Bytes) -> int:
    """Begins the packet that continues the current event."""
    pos = st.in_pos
    if st.in_end - pos < _PACKET_HEADER:
        return k.NEED_INPUT
    if st.packet_more == 0:
        return k.BAD_LENGTH
    if not is_due(st, src[pos + 3]):
        return k.OUT_OF_STEP
    count_packet(st, src[pos + 3])
    st.packet_left = u24(src, pos)
    st.packet_more = 1 if st.packet_left == FULL_PACKET else 0
    st.in_pos = pos + _PACKET_HEADER
    return k.CONTINUE


@njit
def read_checksum(st: FrameState, src: Bytes, pos: int, n: int, out: Bytes) -> None:
    """Reads ``n`` bytes of the event's checksum, and keeps them if the event is kept."""
    for i in range(n):
        st.event_want |= np.int64(src[pos + i]) << (8 * st.event_tail)
        st.event_tail += 1
        if keeps_event(st):
            out[st.out_pos] = src[pos + i]
            st.out_pos += 1


@inlined
def is_event_sound(st: FrameState) -> bool:
    """Whether the checksum of the event that was read in pieces is right, or is not verified."""
    return bool(st.has_crc == 0 or st.verify == 0 or st.event_crc ^ 0xFFFFFFFF == st.event_want)


@njit
def end_event(st: FrameState, out: Bytes, rows: Longs) -> int:
    """Ends an event that was read in pieces."""
    if not is_event_sound(st):
        return k.BAD_CHECKSUM
    checksum = st.event_want
    if st.has_crc == 0:
        checksum = st.event_crc ^ 0xFFFFFFFF
        if keeps_event(st):
            store_u32(out, st.out_pos, checksum)
            st.out_pos += CHECKSUM_SIZE
    finish_event(st, rows, checksum)
    return k.CONTINUE


@njit
def end_payload(st: FrameState) -> int:
    """Ends a compressed transaction that was handed over in pieces."""
    if not is_event_sound(st):
        return k.BAD_CHECKSUM
    st.payload = k.PAYLOAD_READ
    return k.PAYLOAD_END
