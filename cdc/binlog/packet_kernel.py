"""Kernels that read a binlog file's headers: one wraps its events into packets, as a server sends them; one finds the
end of its last whole event.

``pack`` copies, and looks at nothing but headers: capture frames the packets like those of a connection. The callers
are ``cdc.source.folder_dump`` and ``cdc.source.folder``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc.binlog.constants import FULL_PACKET, HEADER_SIZE, LARGEST_EVENT, EventType
from cdc.kernels.jit import njit
from cdc.kernels.memory import copy_bytes, u32
from cdc.kernels.records import Record

Bytes = npt.NDArray[np.uint8]


class PacketState(Record):
    """The state of both kernels."""

    in_pos: int  # unread bytes of src: from here …
    in_end: int  # … up to here
    file_pos: int  # offset in the file of src[in_pos]
    limit: int  # bytes that the file has; events that end behind it are not begun
    event_left: int  # unread bytes of the current event; 0: between events
    last_time: int  # the newest time in a header, seconds since 1970
    # --- of ``pack`` alone
    out_pos: int
    packet_left: int  # payload left of the current packet
    packet_more: int  # 1: another packet continues the event
    packets: int  # packets written, for their numbers
    passes: int  # 1: the next event is sent whatever its type


# --- statuses
NEED_INPUT = 0  # all of src was read
OUT_FULL = 1
CUT = 2  # the next event ends behind ``limit``
NO_EVENT = 3  # the next bytes are no header of an event
RARE = 4  # the next event is one that the caller decides about

SMALL = 1 << 16  # events up to this size are never divided between two calls
_RARE = (EventType.STOP, EventType.ROTATE, EventType.FORMAT_DESCRIPTION, EventType.MARIADB_START_ENCRYPTION)


@njit
def next_length(st: PacketState, src: Bytes) -> int:
    """Returns the length of the event that begins at the state's position, or the status that says why it cannot begin;
    every status is smaller than a header."""
    if st.in_end - st.in_pos < HEADER_SIZE:
        return NEED_INPUT
    length = u32(src, st.in_pos + 9)
    if length < HEADER_SIZE or length > LARGEST_EVENT:
        return NO_EVENT
    return CUT if st.file_pos + length > st.limit else length


@njit
def pack(st: PacketState, src: Bytes, out: Bytes) -> int:
    """Wraps whole events of ``src`` into packets in ``out``, until it needs something, and returns a status that says
    what. The body of a large event may come and go in pieces."""
    while True:
        pos, end, o = st.in_pos, st.in_end, st.out_pos
        if st.packet_left > 0:
            n = min(min(st.packet_left, end - pos), out.shape[0] - o)
            if n == 0:
                return NEED_INPUT if end == pos else OUT_FULL
            copy_bytes(out, o, src, pos, n)
            st.out_pos = o + n
            st.in_pos = pos + n
            st.file_pos += n
            st.packet_left -= n
            st.event_left -= n
            continue
        if out.shape[0] - o < 5:
            return OUT_FULL
        if st.packet_more == 1:
            size = min(st.event_left, FULL_PACKET)
            st.packet_left = size
            st.out_pos = o + 4
        else:
            length = next_length(st, src)
            if length < HEADER_SIZE:
                return length
            if length <= SMALL and end - pos < length:
                return NEED_INPUT
            if o > 0 and length <= SMALL and out.shape[0] - o < length + 5:
                return OUT_FULL
            kind = src[pos + 4]
            if kind in _RARE and st.passes == 0:
                return RARE
            st.passes = 0
            st.last_time = max(st.last_time, u32(src, pos))
            st.event_left = length
            size = min(length + 1, FULL_PACKET)
            st.packet_left = size - 1
            out[o + 4] = 0
            st.out_pos = o + 5
        st.packet_more = 1 if size == FULL_PACKET else 0
        out[o] = size & 255
        out[o + 1] = (size >> 8) & 255
        out[o + 2] = size >> 16
        out[o + 3] = st.packets & 255
        st.packets += 1


@njit
def walk(st: PacketState, src: Bytes) -> int:
    """Goes from header to header until all of ``src`` was read, and returns a status. With ``event_left`` 0 it stands
    between two events."""
    while True:
        pos, end = st.in_pos, st.in_end
        if st.event_left > 0:
            n = min(st.event_left, end - pos)
            st.in_pos = pos + n
            st.file_pos += n
            st.event_left -= n
            if st.event_left > 0:
                return NEED_INPUT
            continue
        length = next_length(st, src)
        if length < HEADER_SIZE:
            return length
        st.last_time = max(st.last_time, u32(src, pos))
        st.event_left = length
