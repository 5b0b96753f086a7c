"""The parts that the conversions share: their type and errors, and the way between Arrow arrays and kernels.

A conversion is the second step of decoding, for types whose bytes the kernels only copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.base.errors import UnsupportedError

Conversion = Callable[[pa.Array], pa.Array]
"""Converts a column's raw values (mostly ``binary``, each with the bytes of the row image, nulls as nulls) to an array
of the same length in the column's final type; raises :class:`BadValueError`."""

MAX_TEXT_BYTES = 2**31 - 1
"""The offsets of an Arrow string column have 32 bits."""


class BadValueError(Exception):
    """A value whose bytes no server writes: its row in the array, and the reason. ``zero_date``: the value is sound,
    but it is a zero or impossible date in a column in which these must not become null. ``lost_bytes``: the value is a
    text of the key, and some of its bytes have no meaning in its character set."""

    def __init__(self, row: int, why: str, *, zero_date: bool = False, lost_bytes: bool = False) -> None:
        super().__init__(f"row {row}: {why}")
        self.row = row
        self.why = why
        self.zero_date = zero_date
        self.lost_bytes = lost_bytes


def by_distinct(raw: pa.Array, convert: Callable[[bytes], object], kind: pa.DataType) -> pa.Array:
    """Converts each distinct value once by a Python function, for types without a kernel; nulls stay nulls. ``convert``
    refuses a value by a ValueError with the reason. Raises BadValueError for the first row with a refused value."""
    encoded = pc.dictionary_encode(raw)
    converted = []
    for number, value in enumerate(encoded.dictionary.to_pylist()):
        try:
            converted.append(convert(value))
        except ValueError as error:
            row = pc.index(encoded.indices, pa.scalar(number, encoded.indices.type)).as_py()
            raise BadValueError(row, str(error)) from None
    return pa.array(converted, kind).take(encoded.indices)


@dataclass(frozen=True)
class BinaryParts:
    """The parts of a binary array: ``data`` (bytes), ``offsets`` (rows + 1) into it, ``nulls`` (rows)."""

    data: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int32]
    nulls: npt.NDArray[np.bool_]


def binary_parts(raw: pa.Array) -> BinaryParts:
    """The parts of a ``binary`` array, which may be a slice of a longer array. Only ``nulls`` is copied."""
    if raw.type != pa.binary():
        raise TypeError(f"the raw values must be binary, not {raw.type}")
    rows = len(raw)
    _, offsets, data = raw.buffers()
    if rows == 0 or offsets is None:
        at = np.zeros(rows + 1, dtype=np.int32)
    else:
        at = np.frombuffer(offsets, dtype=np.int32, count=rows + 1, offset=4 * raw.offset)
    values = np.empty(0, dtype=np.uint8) if data is None or data.size == 0 else np.frombuffer(data, dtype=np.uint8)
    # Only some of Arrow's buffers are writeable, and Numba would compile a kernel for each kind.
    at.flags.writeable = values.flags.writeable = False
    nulls = np.zeros(rows, dtype=np.bool_) if raw.null_count == 0 else raw.is_null().to_numpy(zero_copy_only=False)
    return BinaryParts(values, at, nulls)


def fixed_width(raw: pa.Array, width: int) -> npt.NDArray[np.uint8]:
    """(rows, width): the bytes of a ``binary`` array whose values all have that length; nulls are zeros."""
    parts = binary_parts(pc.fill_null(raw, bytes(width)) if raw.null_count else raw)
    begin = int(parts.offsets[0])
    return parts.data[begin : begin + width * len(raw)].reshape(len(raw), width)


class TextBuffers:
    """Room for the texts of some rows. A kernel writes ``data`` (``size`` bytes) and ``offsets`` (rows + 1; the first
    is zero already). Raises UnsupportedError if the texts do not fit into one Arrow array."""

    def __init__(self, parts: BinaryParts, size: int) -> None:
        if size > MAX_TEXT_BYTES:
            raise UnsupportedError(
                f"the texts of {len(parts.nulls)} rows of one column take {size} bytes, more than 2 GiB",
                remedy="Decode fewer rows at once.",
            )
        rows = len(parts.nulls)
        self._rows = rows
        self._size = size
        self._nulls = parts.nulls
        self._data = pa.allocate_buffer(size)
        self._offsets = pa.allocate_buffer(4 * (rows + 1))
        self.data: npt.NDArray[np.uint8] = np.frombuffer(self._data, dtype=np.uint8)
        self.offsets: npt.NDArray[np.int32] = np.frombuffer(self._offsets, dtype=np.int32)
        self.offsets[0] = 0

    def array(self) -> pa.Array:
        """The texts as a ``string`` array."""
        validity = None
        if self._nulls.any():
            validity = pa.py_buffer(np.packbits(~self._nulls, bitorder="little").tobytes())
        return pa.Array.from_buffers(pa.string(), self._rows, [validity, self._offsets, self._data])
