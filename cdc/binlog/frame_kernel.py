"""The framing kernel: turns a stream of events into kept bytes and one row of numbers for each transaction.

``frame`` is a state machine over two buffers. It reads from ``src`` (either the packets of a replication connection or
the plain bytes of a binlog file), verifies every event's CRC32, drops unwanted events, copies the rest to ``out``, and
writes a row into ``rows`` at the end of each transaction. It runs until it needs something that only Python can give,
returns a status that says so, and continues from there when it is called again. An event of any size passes through in
pieces, so the memory that is needed does not depend on the source.

A compressed transaction that has arrived whole is unpacked here, into the second input ``inner``, if Python has given
the address of zstd's function. A larger or unusual one is unpacked by Python, piece by piece.

All state is in the int64 array ``st``, at the indexes of ``frame_state``. ``frame_events`` decides about each event,
``frame_transactions`` begins and ends transactions; ``cdc.binlog.framer`` is the only caller.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc.binlog.constants import HEADER_SIZE
from cdc.binlog.frame_events import TableIds, start_event
from cdc.binlog.frame_payload import unpack_payload
from cdc.binlog.frame_state import (
    AT_BOUNDARY,
    BAD_CHECKSUM,
    BAD_LENGTH,
    BAD_PACKET,
    END_OF_STREAM,
    EVENT_CRC,
    EVENT_END_POS,
    EVENT_IN,
    EVENT_KEEP,
    EVENT_LEFT,
    EVENT_LENGTH,
    EVENT_OUT,
    EVENT_TAIL,
    EVENT_WANT,
    HAS_CRC,
    IN_BASE,
    IN_END,
    IN_POS,
    INNER,
    INNER_ENDED,
    INPUT_STATE,
    JOINED,
    N_EVENTS,
    N_ROWS,
    NEED_INPUT,
    OUT_BASE,
    OUT_FULL,
    OUT_OF_STEP,
    OUT_POS,
    OVERRUN,
    PACKET_LEFT,
    PACKET_MORE,
    PACKET_NUMBER,
    PACKETS,
    PAYLOAD,
    PAYLOAD_END,
    PAYLOAD_PIECE,
    PAYLOAD_WHOLE,
    PIECE_AT,
    PIECE_LENGTH,
    PREFIX_MAX,
    PREPARING,
    REFUSED_END,
    ROLL_AT,
    ROWS_FULL,
    SAVED,
    SCAN,
    SERVER_ERROR,
    TX_OPEN,
    TX_OVERRUN,
    TX_REFUSED,
    UNPACKED,
    UNZSTD,
    VERIFY,
    WHOLE,
)
from cdc.binlog.frame_transactions import finish_event
from cdc.kernels.crc import crc32, crc32_update
from cdc.kernels.jit import inlined, njit
from cdc.kernels.memory import copy_bytes, load_u, store_u32

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]


_ROOM = 64
_CURRENT = np.array(INPUT_STATE)


@njit
def swap_input(st: Longs) -> None:
    """Makes the other input the current one."""
    for i in range(_CURRENT.shape[0]):
        current = st[_CURRENT[i]]
        st[_CURRENT[i]] = st[SAVED + i]
        st[SAVED + i] = current


@inlined
def is_due(st: Longs, number: np.uint8) -> bool:
    """Whether a packet of this number comes next."""
    return bool(st[PACKET_NUMBER] < 0 or st[PACKET_NUMBER] == np.int64(number))


@inlined
def count_packet(st: Longs, number: np.uint8) -> None:
    """Notes that a packet has been taken."""
    if st[PACKET_NUMBER] >= 0:
        st[PACKET_NUMBER] = (np.int64(number) + 1) & 255


@njit
def frame(
    st: Longs, src: Bytes, inner: Bytes, out: Bytes, rows: Longs, kinds: Longs, tables: TableIds, scratch: Bytes
) -> int:
    """Frames events until it needs something, and returns a status that says what.

    ``src``, or ``inner`` while ``st[INNER]`` is 1, is read from ``st[IN_POS]`` to ``st[IN_END]``; ``out`` is filled
    from ``st[OUT_POS]``; ``rows`` (n, ROW_WIDTH); ``kinds`` (256,): the T_… of each event type; ``scratch`` (16,).
    """
    while True:
        status = frame_input(st, inner if st[INNER] == 1 else src, out, rows, kinds, tables, scratch)
        if status == PAYLOAD_WHOLE and st[UNZSTD] != 0:
            n = unpack_payload(st, src, inner)
            if n <= 0:
                return status
            for i in range(_CURRENT.shape[0]):
                st[SAVED + i] = 0
            swap_input(st)
            st[INNER], st[IN_END], st[UNPACKED] = 1, n, 1
        elif status == NEED_INPUT and st[UNPACKED] == 1 and st[INNER] == 1:
            whole = st[IN_POS] == st[IN_END] and st[EVENT_LEFT] == 0 and st[INNER_ENDED] == 1
            swap_input(st)
            if not whole or st[PREPARING] == 1:
                return PAYLOAD_END
            st[UNPACKED] = 0
        else:
            return status


@njit
def frame_input(st: Longs, src: Bytes, out: Bytes, rows: Longs, kinds: Longs, tables: TableIds, scratch: Bytes) -> int:
    """Frames the events of one input, as :func:`frame` does."""
    packets, scan, has_crc = st[PACKETS] == 1, st[SCAN] == 1, st[HAS_CRC] == 1
    while True:
        pos, end = st[IN_POS], st[IN_END]
        st[WHOLE] = 0
        if st[PAYLOAD] == 2:
            st[PAYLOAD] = 0
            if st[TX_REFUSED] == 1:
                return REFUSED_END
            finish_event(st, rows, 0)
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
                    if not is_due(st, src[pos + 3]):
                        return OUT_OF_STEP
                    count_packet(st, src[pos + 3])
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
                if not is_due(st, src[pos + 3]):
                    return OUT_OF_STEP
                payload -= 1
            if end - at < HEADER_SIZE:
                return NEED_INPUT
            length = load_u(src, at + 9, 4)
            if length < HEADER_SIZE + (4 if has_crc else 0):
                return BAD_LENGTH
            if packets and (payload > length or (payload < length and payload != 0xFFFFFE)):
                return BAD_LENGTH
            st[EVENT_IN] = st[IN_BASE] + at
            have = min(end - at, min(payload, length))
            st[EVENT_LENGTH] = length
            status = start_event(st, src, at, have, kinds, out, tables, scratch)
            if status >= 0:
                if status == NEED_INPUT:
                    st[WHOLE] = length
                return status
            st[N_EVENTS] += 1
            st[JOINED] = 0
            if packets:
                count_packet(st, src[pos + 3])
            st[PACKET_LEFT] = payload if packets else length
            st[PACKET_MORE] = 1 if packets and payload == 0xFFFFFE else 0
            st[EVENT_OUT] = st[OUT_BASE] + st[OUT_POS]
            keep = st[EVENT_KEEP] == 1 and not scan
            # The whole event at once, if it has arrived, which it nearly always has.
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
                finish_event(st, rows, want)
                continue
            if have == length and st[PAYLOAD] == 1:
                stop = at + length - (4 if has_crc else 0)
                if has_crc and st[VERIFY] == 1 and np.int64(crc32(src, at, stop, scratch)) != load_u(src, stop, 4):
                    return BAD_CHECKSUM
                st[IN_POS] = at + length
                st[PACKET_LEFT] = 0
                st[PIECE_AT] = at + HEADER_SIZE
                st[PIECE_LENGTH] = stop - at - HEADER_SIZE
                st[PAYLOAD] = 2
                return PAYLOAD_WHOLE
            st[EVENT_LEFT] = length - HEADER_SIZE
            st[EVENT_WANT] = 0
            st[EVENT_TAIL] = 0
            if keep:
                o = st[OUT_POS]
                copy_bytes(out, o, src, at, HEADER_SIZE)
                if not has_crc:
                    store_u32(out, o + 9, length + 4)
                if st[INNER] == 1:
                    store_u32(out, o + 13, st[EVENT_END_POS])
                st[EVENT_CRC] = np.int64(crc32_update(np.uint32(0xFFFFFFFF), out, o, o + HEADER_SIZE, scratch))
                st[OUT_POS] = o + HEADER_SIZE
            else:
                st[EVENT_CRC] = np.int64(crc32_update(np.uint32(0xFFFFFFFF), src, at, at + HEADER_SIZE, scratch))
            st[IN_POS] = at + HEADER_SIZE
            st[PACKET_LEFT] -= HEADER_SIZE
            if st[EVENT_LEFT] > 0:
                continue
        # Inside an event.
        keep = st[EVENT_KEEP] == 1 and not scan
        pos = st[IN_POS]
        if packets and st[PACKET_LEFT] == 0 and st[EVENT_LEFT] > 0:
            if end - pos < 4:
                return NEED_INPUT
            if st[PACKET_MORE] == 0:
                return BAD_LENGTH
            if not is_due(st, src[pos + 3]):
                return OUT_OF_STEP
            count_packet(st, src[pos + 3])
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
            finish_event(st, rows, crc)
