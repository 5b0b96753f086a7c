"""The buffers of the framing kernel: its input, its output, and the rows of finished transactions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cdc.binlog import frame_state as k

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]

ROWS_CAPACITY = 65536
FULL_PACKET = 0xFFFFFF
_INNER_BYTES = 1 << 18
_NOTHING: Bytes = np.empty(0, dtype=np.uint8)
_CURRENT = np.array(k.INPUT_STATE)
_SAVED_REST = np.array([k.SAVED + k.INPUT_STATE.index(one) for one in (k.IN_POS, k.IN_END, k.EVENT_LEFT)])
_SAVED = slice(k.SAVED, k.SAVED + len(k.INPUT_STATE))
_UNDONE = np.array(
    (
        k.TX_EVENTS, k.TX_ROW_EVENTS, k.TX_SUM, k.TX_FLAGS, k.TX_KEPT, k.TX_MASK,
        k.LAST_ROW, k.LAST_ROW_LENGTH, k.LAST_ROW_ORDINAL, k.LAST_ROW_CRC,
    )
)  # fmt: skip
LARGEST_EVENT = (1 << 30) + (1 << 20)
"""The protocol limits an event to 1 GiB (``max_allowed_packet``), plus its headers, in bytes."""


class BadLengthError(Exception):
    """The length of an event or packet is impossible."""


class OutOfStepError(Exception):
    """A packet has another number than the one that is due."""


class OutputTooLargeError(Exception):
    """The start of a transaction does not fit into memory."""


class Mark(NamedTuple):
    """What a transaction had at a savepoint."""

    offset: int
    """The end of the output."""
    row_events: int
    numbers: Numbers
    """Of the state, those that a rollback takes back."""


class FrameBuffers:
    """The kernel's state and buffers.

    ``src`` is read in place: put bytes behind :attr:`end`, or into :meth:`room`, and announce them by :meth:`fed`;
    :meth:`compact` moves unread bytes to the front. ``src`` grows for an event that has to be seen whole, ``out`` for a
    statement that is undecided for long; both shrink afterwards.
    """

    def __init__(self, src: Bytes, out_bytes: int) -> None:
        self.src = self._first_src = src
        self.st: Numbers = np.zeros(k.STATE_SIZE, dtype=np.int64)
        self.st[k.HOLD] = -1
        self.out: Bytes = np.empty(out_bytes, dtype=np.uint8)
        self._first_out = self.out
        self.rows: Numbers = np.zeros((ROWS_CAPACITY, k.ROW_WIDTH), dtype=np.int64)
        self.reads_inner = False
        """Whether the second input is the current one."""
        self._other_src: tuple[Bytes, Bytes] | None = None  # ``src`` and its first one, of the input not being read

    @property
    def end(self) -> int:
        """The index in ``src`` at which the next input byte belongs."""
        return int(self.st[k.IN_END])

    def fed(self, n: int) -> None:
        """Announces ``n`` bytes that the caller has put behind ``end``."""
        self.st[k.IN_END] += n

    def compact(self) -> None:
        """Moves unread bytes to the front of ``src``."""
        pos, end = int(self.st[k.IN_POS]), int(self.st[k.IN_END])
        first = self._first_src
        if self.src is not first and end - pos < len(first):
            first[: end - pos] = self.src[pos:end]
            self.src = first
        elif pos == 0:
            return
        else:
            self.src[: end - pos] = self.src[pos:end].copy() if end - pos > pos else self.src[pos:end]
        self.st[k.IN_BASE] += pos
        self.st[k.IN_POS], self.st[k.IN_END] = 0, end - pos

    def room(self) -> memoryview:
        """The room for the next input: at least one byte, in a larger buffer if an event has to be seen whole. Raises
        BadLengthError for an event that is larger than any can be."""
        if self.end == len(self.src):
            self.compact()
        if self.end == len(self.src):
            if self.end > 2 * LARGEST_EVENT:
                raise BadLengthError
            larger: Bytes = np.empty(2 * len(self.src), dtype=np.uint8)
            larger[: self.end] = self.src
            self.src = larger
        return self.src.data[self.end :]

    # --- the events of a compressed transaction, which are an input inside the input

    def begin_inner(self) -> None:
        """Begins the second input, which :meth:`swap_input` makes the current one."""
        if self._other_src is None:
            first: Bytes = np.empty(_INNER_BYTES, dtype=np.uint8)
            self._other_src = first, first
        self.st[_SAVED] = 0
        self.st[k.SAVED + k.INPUT_STATE.index(k.INNER)] = 1

    def swap_input(self) -> None:
        """Makes the other input the current one. The event that is being read from this one waits."""
        st = self.st
        st[_CURRENT], st[_SAVED] = st[_SAVED].copy(), st[_CURRENT]
        self.follow_input()

    def inputs(self) -> tuple[Bytes, Bytes]:
        """The two inputs."""
        other = _NOTHING if self._other_src is None else self._other_src[0]
        return (other, self.src) if self.reads_inner else (self.src, other)

    def follow_input(self) -> None:
        """Makes ``src`` the input that the kernel reads, after it has changed between the two."""
        if self.reads_inner != bool(self.st[k.INNER]):
            assert self._other_src is not None
            (self.src, self._first_src), self._other_src = self._other_src, (self.src, self._first_src)
            self.reads_inner = not self.reads_inner

    def inner_rest(self) -> bool:
        """Whether the second input, which is not the current one, ends inside an event."""
        at, end, left = self.st[_SAVED_REST].tolist()
        return bool(at < end or left > 0)

    # --- output

    def take_output(self) -> memoryview:
        """The bytes that are definitely kept. Use them before calling :meth:`drop_output`."""
        return self.out.data[: self.definite()]

    def drop_output(self) -> None:
        """Removes the bytes that :meth:`take_output` returned."""
        n, pos = self.definite(), int(self.st[k.OUT_POS])
        if n == 0:
            return
        first = self._first_out
        if self.out is not first and pos - n <= len(first) >> 1:
            first[: pos - n] = self.out[n:pos]
            self.out = first
        else:
            self.out[: pos - n] = self.out[n:pos].copy()
        self.st[k.OUT_POS] = pos - n
        self.st[k.OUT_BASE] += n

    def open_output(self) -> memoryview:
        """The bytes of the open transaction, except those that were taken already."""
        return self.out.data[max(0, int(self.st[k.TX_START] - self.st[k.OUT_BASE])) : int(self.st[k.OUT_POS])]

    def drop_open_output(self) -> None:
        """Removes the bytes of the open transaction, of which nothing is kept. If some of them were taken, the caller
        has cut the output at the transaction's start."""
        st = self.st
        st[k.OUT_POS] = max(0, int(st[k.TX_START] - st[k.OUT_BASE]))
        st[k.OUT_BASE] = min(int(st[k.OUT_BASE]), int(st[k.TX_START]))
        st[k.TX_KEPT] = st[k.TX_ROW_EVENTS] = st[k.STMT_OPEN] = 0
        st[k.HOLD] = st[k.TX_START]
        st[k.LAST_ROW] = -1

    def mark(self) -> Mark:
        """What the open transaction has so far."""
        st = self.st
        return Mark(int(st[k.OUT_BASE] + st[k.OUT_POS]), int(st[k.TX_ROW_EVENTS]), st[_UNDONE].copy())

    def undo(self, mark: Mark | None) -> int | None:
        """Removes what the open transaction got after the mark; without a mark, everything. Returns the offset at which
        the caller has to cut the output if some of that was taken already."""
        st = self.st
        base, start = int(st[k.OUT_BASE]), int(st[k.TX_START])
        if mark is None:
            self.drop_open_output()
            return start if start < base else None
        st[_UNDONE] = mark.numbers
        st[k.OUT_POS] = max(0, mark.offset - base)
        st[k.OUT_BASE] = min(base, mark.offset)
        if start < base:
            st[k.TX_KEPT] = 1  # its beginning was taken, so it stays, perhaps without rows
        st[k.HOLD] = -1 if st[k.TX_KEPT] else start
        return mark.offset if mark.offset < base else None

    def take_rows(self) -> Numbers:
        """Removes the rows of the finished transactions and returns a copy, (n, ROW_WIDTH)."""
        rows = self.rows[: int(self.st[k.N_ROWS])].copy()
        self.st[k.N_ROWS] = 0
        return rows

    def definite(self) -> int:
        """The number of bytes at the front of ``out`` that are definitely kept."""
        hold = int(self.st[k.HOLD])
        return int(self.st[k.OUT_POS]) if hold < 0 else hold - int(self.st[k.OUT_BASE])

    def cut_transaction(self) -> int:
        """Removes an unfinished transaction. Returns the offset at which the caller has to cut the output."""
        self.st[k.TX_OPEN] = 0
        self.st[k.HOLD] = self.st[k.LAST_END] = -1
        self.st[k.EVENT_LEFT] = 0
        self.st[k.TX_REFUSED] = self.st[k.PAYLOAD] = self.st[k.UNPACKED] = self.st[k.PREPARING] = 0
        end = int(self.st[k.LAST_TX_END])
        self.st[k.OUT_POS] = max(0, end - int(self.st[k.OUT_BASE]))
        self.st[k.OUT_BASE] = min(end, int(self.st[k.OUT_BASE]))
        return end

    def grow_output(self) -> None:
        """Enlarges ``out`` for table maps whose fate is undecided until the first row event of their statement. Raises
        OutputTooLargeError."""
        if len(self.out) > 2 * LARGEST_EVENT:
            raise OutputTooLargeError
        larger: Bytes = np.empty(max(2 * len(self.out), 2 * k.PREFIX_MAX), dtype=np.uint8)
        larger[: len(self.out)] = self.out
        self.out = larger

    def join_packets(self) -> bool:
        """Makes one packet of the several that hold an event which has to be seen whole. Returns False while some of
        them have not arrived. Raises BadLengthError, OutOfStepError."""
        length, at = int(self.st[k.WHOLE]), int(self.st[k.IN_POS])
        if not length or not self.st[k.PACKETS] or self.st[k.JOINED]:
            return False
        if int.from_bytes(self.src[at : at + 3].tobytes(), "little") < FULL_PACKET:
            return False
        if length > LARGEST_EVENT:
            raise BadLengthError
        payload = 1 + length
        count = payload // FULL_PACKET + 1
        end = at + payload + 4 * count
        if int(self.st[k.IN_END]) < end:
            return False
        sizes = [FULL_PACKET] * (count - 1) + [payload % FULL_PACKET]
        parts: list[Bytes] = []
        number = int(self.src[at + 3])
        for n, size in enumerate(sizes):
            if int.from_bytes(self.src[at : at + 3].tobytes(), "little") != size:
                raise BadLengthError
            if self.st[k.PACKET_NUMBER] >= 0 and int(self.src[at + 3]) != (number + n) & 255:
                raise OutOfStepError
            parts.append(self.src[at + 4 : at + 4 + size])
            at += 4 + size
        self.src[end - payload : end] = np.concatenate(parts)
        begin = end - payload - 4
        self.src[begin : begin + 4] = 255
        if self.st[k.PACKET_NUMBER] >= 0 and self.st[k.PACKET_NUMBER] != number:
            raise OutOfStepError
        self.src[begin + 3] = last = (number + count - 1) & 255
        if self.st[k.PACKET_NUMBER] >= 0:
            self.st[k.PACKET_NUMBER] = last
        self.st[k.IN_POS] = begin
        self.st[k.JOINED] = payload
        return True

    def event(self) -> bytes:
        """The current event, or as much of it as has arrived."""
        at = int(self.st[k.EVENT_IN] - self.st[k.IN_BASE])
        n = min(int(self.st[k.EVENT_LENGTH]), int(self.st[k.IN_END]) - at)
        return self.src[at : at + n].tobytes()
