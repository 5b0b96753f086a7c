"""The buffers of the framing kernel: its input, its output, and the rows of finished transactions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cdc.binlog import frame_state as k
from cdc.binlog.constants import FULL_PACKET, LARGEST_EVENT

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]

ROWS_CAPACITY = 65536
_INNER_BYTES = 1 << 18
_NOTHING: Bytes = np.empty(0, dtype=np.uint8)
_SAVED_AT = k.FrameState.index_of("saved")
_CURRENT, _SAVED = slice(0, k.INPUT_FIELDS), slice(_SAVED_AT, _SAVED_AT + k.INPUT_FIELDS)
_UNDONE = np.array(
    [
        k.FrameState.index_of(name)
        for name in (
            "tx_events", "tx_row_events", "tx_sum", "tx_flags", "tx_kept", "tx_mask",
            "last_row", "last_row_length", "last_row_ordinal", "last_row_crc",
        )
    ]
)  # fmt: skip


class BadLengthError(Exception):
    """The length of an event or packet is impossible."""


class OutOfStepError(Exception):
    """A packet has another number than the one that is due."""


class OutputTooLargeError(Exception):
    """The start of a transaction does not fit into memory."""


class SavepointMark(NamedTuple):
    """The state of a transaction at a savepoint."""

    offset: int
    """The end of the output."""
    row_events: int
    numbers: Numbers
    """The fields of the state that a rollback restores."""


class FrameBuffers:
    """The kernel's state and buffers.

    ``src`` is read in place: put bytes behind :attr:`end`, or into :meth:`room`, and announce them by :meth:`fed`;
    :meth:`compact` moves unread bytes to the front. ``src`` grows for an event that has to be seen whole, ``out`` for a
    statement that is undecided for long; both shrink afterwards.
    """

    def __init__(self, src: Bytes, out_bytes: int) -> None:
        self.src = self._first_src = src
        self.st = k.FrameState.new(hold=-1)
        self.out: Bytes = np.empty(out_bytes, dtype=np.uint8)
        self._first_out = self.out
        self.rows: Numbers = np.zeros((ROWS_CAPACITY, k.ROW_WIDTH), dtype=np.int64)
        self.reads_inner = False
        """Whether the second input is the current one."""
        self._other_src: tuple[Bytes, Bytes] | None = None  # ``src`` and its first one, of the input not being read

    @property
    def end(self) -> int:
        """The index in ``src`` at which the next input byte belongs."""
        return int(self.st.in_end)

    def fed(self, n: int) -> None:
        """Announces ``n`` bytes that the caller has put behind ``end``."""
        self.st.in_end += n

    def compact(self) -> None:
        """Moves unread bytes to the front of ``src``."""
        pos, end = int(self.st.in_pos), int(self.st.in_end)
        first = self._first_src
        if self.src is not first and end - pos < len(first):
            first[: end - pos] = self.src[pos:end]
            self.src = first
        elif pos == 0:
            return
        else:
            self.src[: end - pos] = self.src[pos:end].copy() if end - pos > pos else self.src[pos:end]
        self.st.in_base += pos
        self.st.in_pos, self.st.in_end = 0, end - pos

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
        self.st.saved[:] = 0
        self.st.saved[k.FrameState.index_of("inner")] = 1

    def swap_input(self) -> None:
        """Makes the other input the current one. The event that is being read from this one waits."""
        numbers = self.st.numbers
        numbers[_CURRENT], numbers[_SAVED] = numbers[_SAVED].copy(), numbers[_CURRENT].copy()
        self.follow_input()

    def inputs(self) -> tuple[Bytes, Bytes]:
        """The two inputs."""
        other = _NOTHING if self._other_src is None else self._other_src[0]
        return (other, self.src) if self.reads_inner else (self.src, other)

    def follow_input(self) -> None:
        """Makes ``src`` the input that the kernel reads, after it has changed between the two."""
        if self.reads_inner != bool(self.st.inner):
            assert self._other_src is not None
            (self.src, self._first_src), self._other_src = self._other_src, (self.src, self._first_src)
            self.reads_inner = not self.reads_inner

    def inner_rest(self) -> bool:
        """Whether the second input, which is not the current one, ends inside an event."""
        at, end, left = (int(self.st.saved[k.FrameState.index_of(name)]) for name in ("in_pos", "in_end", "event_left"))
        return bool(at < end or left > 0)

    # --- output

    def take_output(self) -> memoryview:
        """The bytes that are definitely kept. Use them before calling :meth:`drop_output`."""
        return self.out.data[: self.definite()]

    def drop_output(self) -> None:
        """Removes the bytes that :meth:`take_output` returned."""
        n, pos = self.definite(), int(self.st.out_pos)
        if n == 0:
            return
        first = self._first_out
        if self.out is not first and pos - n <= len(first) >> 1:
            first[: pos - n] = self.out[n:pos]
            self.out = first
        else:
            self.out[: pos - n] = self.out[n:pos].copy()
        self.st.out_pos = pos - n
        self.st.out_base += n

    def open_output(self) -> memoryview:
        """The bytes of the open transaction, except those that were taken already."""
        return self.out.data[max(0, int(self.st.tx_start - self.st.out_base)) : int(self.st.out_pos)]

    def drop_open_output(self) -> None:
        """Removes the bytes of the open transaction, of which nothing is kept. If some of them were taken, the caller
        has cut the output at the transaction's start."""
        st = self.st
        st.out_pos = max(0, int(st.tx_start - st.out_base))
        st.out_base = min(int(st.out_base), int(st.tx_start))
        st.tx_kept = st.tx_row_events = st.stmt_open = 0
        st.hold = st.tx_start
        st.last_row = -1

    def mark(self) -> SavepointMark:
        """The content of the open transaction so far."""
        st = self.st
        return SavepointMark(int(st.out_base + st.out_pos), int(st.tx_row_events), st.numbers[_UNDONE])

    def undo(self, mark: SavepointMark | None) -> int | None:
        """Removes what the open transaction got after the mark; without a mark, everything. Returns the offset at which
        the caller has to cut the output if some of that was taken already."""
        st = self.st
        base, start = int(st.out_base), int(st.tx_start)
        if mark is None:
            self.drop_open_output()
            return start if start < base else None
        st.numbers[_UNDONE] = mark.numbers
        st.out_pos = max(0, mark.offset - base)
        st.out_base = min(base, mark.offset)
        if start < base:
            st.tx_kept = 1  # its beginning was taken, so it stays, perhaps without rows
        st.hold = -1 if st.tx_kept else start
        return mark.offset if mark.offset < base else None

    def take_rows(self) -> Numbers:
        """Removes the rows of the finished transactions and returns a copy, (n, ROW_WIDTH)."""
        rows = self.rows[: int(self.st.n_rows)].copy()
        self.st.n_rows = 0
        return rows

    def definite(self) -> int:
        """The number of bytes at the front of ``out`` that are definitely kept."""
        hold = int(self.st.hold)
        return int(self.st.out_pos) if hold < 0 else hold - int(self.st.out_base)

    def cut_transaction(self) -> int:
        """Removes an unfinished transaction. Returns the offset at which the caller has to cut the output."""
        self.st.tx_open = 0
        self.st.hold = self.st.last_end = -1
        self.st.event_left = 0
        self.st.tx_refused = self.st.payload = self.st.unpacked = self.st.preparing = 0
        end = int(self.st.last_tx_end)
        self.st.out_pos = max(0, end - int(self.st.out_base))
        self.st.out_base = min(end, int(self.st.out_base))
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
        length, at = int(self.st.whole), int(self.st.in_pos)
        if not length or not self.st.packets or self.st.joined:
            return False
        if int.from_bytes(self.src[at : at + 3].tobytes(), "little") < FULL_PACKET:
            return False
        if length > LARGEST_EVENT:
            raise BadLengthError
        payload = 1 + length
        count = payload // FULL_PACKET + 1
        end = at + payload + 4 * count
        if int(self.st.in_end) < end:
            return False
        sizes = [FULL_PACKET] * (count - 1) + [payload % FULL_PACKET]
        parts: list[Bytes] = []
        number = int(self.src[at + 3])
        for n, size in enumerate(sizes):
            if int.from_bytes(self.src[at : at + 3].tobytes(), "little") != size:
                raise BadLengthError
            if self.st.packet_number >= 0 and int(self.src[at + 3]) != (number + n) & 255:
                raise OutOfStepError
            parts.append(self.src[at + 4 : at + 4 + size])
            at += 4 + size
        self.src[end - payload : end] = np.concatenate(parts)
        begin = end - payload - 4
        self.src[begin : begin + 4] = 255
        if self.st.packet_number >= 0 and self.st.packet_number != number:
            raise OutOfStepError
        self.src[begin + 3] = last = (number + count - 1) & 255
        if self.st.packet_number >= 0:
            self.st.packet_number = last
        self.st.in_pos = begin
        self.st.joined = payload
        return True

    def event(self) -> bytes:
        """The current event, or as much of it as has arrived."""
        at = int(self.st.event_in - self.st.in_base)
        n = min(int(self.st.event_length), int(self.st.in_end) - at)
        return self.src[at : at + n].tobytes()
