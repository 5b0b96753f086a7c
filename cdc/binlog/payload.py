"""Unpacks MySQL's compressed transactions (TRANSACTION_PAYLOAD events) as they arrive, in bounded memory.

The event's body is a list of fields (type, length, value, all numbers as in the client protocol), ended by a zero, and
then a zstd stream of the transaction's events without checksums. What is unpacked is handed over at once, in pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, cast

import zstandard

_SIZE, _METHOD, _UNPACKED = 1, 2, 3  # fields
_ZSTD, _NONE = 0, 255  # methods
_LARGEST_BYTE = 250  # larger ones say how many bytes a number has
_NUMBER_SIZES = {252: 3, 253: 4, 254: 9}
_LONGEST_HEAD = 256
_PIECE = 1 << 17
_AT_ONCE = 1 << 20
"""A transaction of at most so many bytes is unpacked by one call, which is faster than a stream."""

Unpacked = Callable[[bytes | memoryview], None]
"""Takes the next bytes of the transaction's events. They may end anywhere inside an event."""


class PayloadFault(Exception):
    """The event contradicts itself; the text says how."""


class PayloadReader:
    """Takes the body of a TRANSACTION_PAYLOAD event piece by piece, and hands over what it unpacks.

    Memory is bounded by the window that the server's zstd level needs, 2 MiB by default and 128 MiB at most.
    """

    def __init__(self, unpacked: Unpacked) -> None:
        self._hand_over = unpacked
        self._at_once = zstandard.ZstdDecompressor()
        self.restart()

    def restart(self) -> None:
        """Begins a new event."""
        self._head: bytes | None = b""  # None: the fields have been read
        self._stream: zstandard.ZstdDecompressionWriter | None = None
        self._method: int | None = None
        self._packed = self._unpacked = 0
        self._says_packed: int | None = None
        self._says_unpacked: int | None = None

    def feed(self, piece: memoryview) -> None:
        """Takes the next bytes. Raises PayloadFault, and the errors of the callback."""
        if self._head is not None:
            if self._head:
                piece = memoryview(self._head + piece)
            at = self._read_fields(piece)
            if at is None:
                self._head = bytes(piece)
                if len(self._head) > _LONGEST_HEAD:
                    raise PayloadFault("its fields have no end")
                return
            self._head, piece = None, piece[at:]
        first = not self._packed
        self._packed += len(piece)
        if self._method == _NONE:
            for start in range(0, len(piece), _PIECE):
                self.write(piece[start : start + _PIECE])
        elif not first or not self._unpack_at_once(piece):
            self._unpack_stream(piece)

    def finish(self) -> None:
        """Ends the event. Raises PayloadFault if it is not complete."""
        if self._head is not None:
            raise PayloadFault("its fields have no end" if self._head else "it is empty")
        for what, says, size in (
            ("packed", self._says_packed, self._packed),
            ("unpacked", self._says_unpacked, self._unpacked),
        ):
            if says is not None and says != size:
                raise PayloadFault(f"it says that it has {says} bytes {what}, and has {size}")

    def write(self, unpacked: bytes | memoryview) -> int:
        """Takes the next unpacked bytes; zstandard calls this with at most ``_PIECE`` of them."""
        size = len(unpacked)
        self._unpacked += size
        if self._says_unpacked is not None and self._unpacked > self._says_unpacked:
            raise PayloadFault(f"it says that it has {self._says_unpacked} bytes unpacked, and has more")
        self._hand_over(unpacked)
        return size

    def _unpack_at_once(self, piece: memoryview) -> bool:
        """Unpacks a small transaction that has arrived whole. Returns False if it has to be unpacked as a stream, which
        also finds out what is wrong with a damaged one."""
        size = self._says_unpacked
        if size is None or size > _AT_ONCE or len(piece) != self._says_packed:
            return False
        try:
            if zstandard.frame_content_size(piece) not in (-1, size):  # it is allocated before anything is unpacked
                return False
            data = self._at_once.decompress(piece, max_output_size=size, allow_extra_data=False)
        except zstandard.ZstdError:
            return False
        self.write(data)
        return True

    def _unpack_stream(self, piece: memoryview) -> None:
        if self._stream is None:
            self._stream = zstandard.ZstdDecompressor().stream_writer(
                cast("IO[bytes]", self), write_size=_PIECE, closefd=False
            )
        try:
            self._stream.write(piece)
        except zstandard.ZstdError as error:
            raise PayloadFault(f"it cannot be unpacked: {error}") from None

    def _read_fields(self, piece: memoryview) -> int | None:
        """The offset of the packed bytes, or None while some fields have not arrived."""
        data = bytes(piece[: 2 * _LONGEST_HEAD])
        fields: dict[int, int] = {}
        at = 0
        while True:
            if at >= len(data):
                return None
            kind = data[at]
            if kind == 0:
                break
            if max(data[at : at + 2]) > _LARGEST_BYTE:
                raise PayloadFault("a number in its fields is wrong")
            if at + 2 >= len(data) or at + 2 + data[at + 1] > len(data):
                return None
            begin, end = at + 2, at + 2 + data[at + 1]
            if kind in (_SIZE, _METHOD, _UNPACKED):
                first = data[begin]
                if end - begin != _NUMBER_SIZES.get(first, 1 if first <= _LARGEST_BYTE else 0):
                    raise PayloadFault(f"the length of its field {kind} is wrong")
                fields[kind] = first if end - begin == 1 else int.from_bytes(data[begin + 1 : end], "little")
            at = end
        self._method = fields.get(_METHOD)
        self._says_packed, self._says_unpacked = fields.get(_SIZE), fields.get(_UNPACKED)
        if self._method not in (_ZSTD, _NONE):
            raise PayloadFault(f"its method of compression ({self._method}) is not known")
        if self._method == _ZSTD and not self._says_unpacked:
            raise PayloadFault(
                "it does not say how long it is" if self._says_unpacked is None else "it says that it is empty"
            )
        return at + 1
