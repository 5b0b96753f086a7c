"""Kernels that read a binlog file's headers: one wraps its events into packets, as a server sends them; one finds the
end of its last whole event.

``pack`` copies, and looks at nothing but headers: capture frames the packets like those of a connection. The state is
an int64 array, at the indexes below. The callers are ``cdc.source.folder_dump`` and ``cdc.source.folder``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc.kernels.jit import njit
from cdc.kernels.memory import copy_bytes, load_u

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

# --- indexes of the state of both kernels
IN_POS, IN_END = 0, 1  # unread bytes of src
FILE_POS = 2  # offset in the file of src[IN_POS]
LIMIT = 3  # bytes that the file has; events that end behind it are not begun
EVENT_LEFT = 4  # unread bytes of the current event; 0: between events
LAST_TIME = 5  # the newest time in a header, seconds since 1970
# --- of ``pack`` alone
OUT_POS = 6
PACKET_LEFT, PACKET_MORE = 7, 8  # payload left of the current packet; 1: another one continues it
PACKETS = 9  # packets written, for their numbers
PASS = 10  # 1: the next event is sent whatever its type
STATE_SIZE = 11

# --- statuses
NEED_INPUT = 0  # all of src was read
OUT_FULL = 1
CUT = 2  # the next event ends behind LIMIT
NO_EVENT = 3  # the next bytes are no header of an event
RARE = 4  # the next event is one that the caller decides about

HEADER = 19
FULL_PACKET = 0xFFFFFF
SMALL = 1 << 16  # events up to this size are never divided between two calls
LARGEST = (1 << 30) + (1 << 20)  # bytes of the largest event, see frame_buffers
_STOP, _ROTATE, _FORMAT_DESCRIPTION, _START_ENCRYPTION = 3, 4, 15, 164


@njit
def next_length(st: Longs, src: Bytes) -> int:
    """Returns the length of the event that begins at the state's position, or the status that says why it cannot begin;
    every status is smaller than a header."""
    if st[IN_END] - st[IN_POS] < HEADER:
        return NEED_INPUT
    length = load_u(src, st[IN_POS] + 9, 4)
    if length < HEADER or length > LARGEST:
        return NO_EVENT
    return CUT if st[FILE_POS] + length > st[LIMIT] else length


@njit
def pack(st: Longs, src: Bytes, out: Bytes) -> int:
    """Wraps whole events of ``src`` into packets in ``out``, until it needs something, and returns a status that says
    what. The body of a large event may come and go in pieces."""
    while True:
        pos, end, o = st[IN_POS], st[IN_END], st[OUT_POS]
        if st[PACKET_LEFT] > 0:
            n = min(min(st[PACKET_LEFT], end - pos), out.shape[0] - o)
            if n == 0:
                return NEED_INPUT if end == pos else OUT_FULL
            copy_bytes(out, o, src, pos, n)
            st[OUT_POS] = o + n
            st[IN_POS] = pos + n
            st[FILE_POS] += n
            st[PACKET_LEFT] -= n
            st[EVENT_LEFT] -= n
            continue
        if out.shape[0] - o < 5:
            return OUT_FULL
        if st[PACKET_MORE] == 1:
            size = min(st[EVENT_LEFT], FULL_PACKET)
            st[PACKET_LEFT] = size
            st[OUT_POS] = o + 4
        else:
            length = next_length(st, src)
            if length < HEADER:
                return length
            if length <= SMALL and end - pos < length:
                return NEED_INPUT
            if o > 0 and length <= SMALL and out.shape[0] - o < length + 5:
                return OUT_FULL
            kind = src[pos + 4]
            if kind in (_STOP, _ROTATE, _FORMAT_DESCRIPTION, _START_ENCRYPTION) and st[PASS] == 0:
                return RARE
            st[PASS] = 0
            st[LAST_TIME] = max(st[LAST_TIME], load_u(src, pos, 4))
            st[EVENT_LEFT] = length
            size = min(length + 1, FULL_PACKET)
            st[PACKET_LEFT] = size - 1
            out[o + 4] = 0
            st[OUT_POS] = o + 5
        st[PACKET_MORE] = 1 if size == FULL_PACKET else 0
        out[o] = size & 255
        out[o + 1] = (size >> 8) & 255
        out[o + 2] = size >> 16
        out[o + 3] = st[PACKETS] & 255
        st[PACKETS] += 1


@njit
def walk(st: Longs, src: Bytes) -> int:
    """Goes from header to header until all of ``src`` was read, and returns a status. With EVENT_LEFT 0 it stands
    between two events."""
    while True:
        pos, end = st[IN_POS], st[IN_END]
        if st[EVENT_LEFT] > 0:
            n = min(st[EVENT_LEFT], end - pos)
            st[IN_POS] = pos + n
            st[FILE_POS] += n
            st[EVENT_LEFT] -= n
            if st[EVENT_LEFT] > 0:
                return NEED_INPUT
            continue
        length = next_length(st, src)
        if length < HEADER:
            return length
        st[LAST_TIME] = max(st[LAST_TIME], load_u(src, pos, 4))
        st[EVENT_LEFT] = length
