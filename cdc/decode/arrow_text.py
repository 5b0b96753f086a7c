"""Between Arrow arrays and the conversions' kernels: raw values as NumPy arrays, and texts made of such."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.errors import UnsupportedError

MAX_TEXT_BYTES = 2**31 - 1
"""An Arrow string column's offsets have 32 bits."""


@dataclass(frozen=True)
class BinaryParts:
    """A binary array's parts: ``data`` (bytes), ``offsets`` (rows + 1) into it, ``nulls`` (rows)."""

    data: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int32]
    nulls: npt.NDArray[np.bool_]


def binary_parts(raw: pa.Array) -> BinaryParts:
    """The parts of a ``binary`` array, which may be a slice of a longer one; nothing but ``nulls`` is copied."""
    if raw.type != pa.binary():
        raise TypeError(f"the raw values must be binary, not {raw.type}")
    rows = len(raw)
    _, offsets, data = raw.buffers()
    if rows == 0 or offsets is None:
        at = np.zeros(rows + 1, dtype=np.int32)
    else:
        at = np.frombuffer(offsets, dtype=np.int32, count=rows + 1, offset=4 * raw.offset)
    values = np.empty(0, dtype=np.uint8) if data is None or data.size == 0 else np.frombuffer(data, dtype=np.uint8)
    # Some of Arrow's buffers may be written to and others not: for the compiler these would be different types.
    at.flags.writeable = values.flags.writeable = False
    nulls = np.zeros(rows, dtype=np.bool_) if raw.null_count == 0 else raw.is_null().to_numpy(zero_copy_only=False)
    return BinaryParts(values, at, nulls)


def fixed_width(raw: pa.Array, width: int) -> npt.NDArray[np.uint8]:
    """(rows, width) bytes of a ``binary`` array, sliced or not, whose values all have that length; nulls are zeros."""
    parts = binary_parts(pc.fill_null(raw, bytes(width)) if raw.null_count else raw)
    begin = int(parts.offsets[0])
    return parts.data[begin : begin + width * len(raw)].reshape(len(raw), width)


class TextBuffers:
    """Room for the texts of some rows: a kernel writes ``data`` (``size`` bytes) and ``offsets`` (rows + 1, the first
    is zero already). Raises UnsupportedError where they do not fit into one Arrow array."""

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
