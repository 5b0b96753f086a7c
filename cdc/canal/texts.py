"""Values whose text a conversion of the decoder makes: floating-point numbers, JSON, other character sets, compressed
columns, MariaDB's UUID and INET."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.base.errors import UnsupportedTypeError
from cdc.canal.kernels.floats import MOST_BYTES, put_javas
from cdc.decode.conversions.base import binary_parts, by_distinct
from cdc.decode.layout import BEFORE
from cdc.decode.reader import DecodeOptions, Decoder, DecodeStats

if TYPE_CHECKING:
    from cdc.canal.tables import CanalTable
    from cdc.decode.row_events import RowEvents
    from cdc.decode.transactions import Transactions

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]


class SideTexts:
    """Collects the texts of several tables' columns, as the kernels take them."""

    def __init__(self, columns: int) -> None:
        """``columns``: the number of columns of all tables."""
        self._data: list[Bytes] = []
        self._at: list[Longs] = []
        self._bytes = self._offsets = 0
        self.base = np.full((max(1, columns), 2), -1, dtype=np.int64)

    def add(self, table: CanalTable, first: int, events: RowEvents, transactions: Transactions) -> None:
        """Adds the texts of a table's rows; ``first`` is the number of its first column among all. Raises what decoding
        raises."""
        names = [table.layout.row_columns[c].name for c in table.side_columns]
        options = DecodeOptions(images="both", columns=names)
        decoder = Decoder(transactions, table.layout, options, DecodeStats())
        batches = []
        done = 0
        while done < len(events):
            batch, count = decoder.decode(events.slice(done, len(events)))
            batches.append(batch)
            done += count
        for c, name in zip(table.side_columns, names, strict=True):
            new = [batch.column(name) for batch in batches]
            old = [batch.column(BEFORE).field(name) for batch in batches]
            for which, arrays in enumerate((new, old)):
                self.base[first + c, which] = self._offsets
                self._add([as_text(array) for array in arrays])

    def _add(self, arrays: Sequence[pa.Array]) -> None:
        array = pa.chunked_array(arrays, pa.binary()).combine_chunks() if len(arrays) != 1 else arrays[0]
        if isinstance(array, pa.ChunkedArray):
            array = pa.concat_arrays(array.chunks)
        parts = binary_parts(array)
        start, stop = int(parts.offsets[0]), int(parts.offsets[-1])
        self._data.append(parts.data[start:stop])
        self._at.append(parts.offsets.astype(np.int64) - start + self._bytes)
        self._bytes += stop - start
        self._offsets += len(parts.offsets)

    def arrays(self) -> tuple[Bytes, Longs]:
        """All texts one behind the other, and their offsets."""
        if not self._at:
            return np.zeros(1, dtype=np.uint8), np.zeros(2, dtype=np.int64)
        return np.concatenate([*self._data, np.zeros(1, dtype=np.uint8)]), np.concatenate(self._at)


def as_text(array: pa.Array) -> pa.Array:
    """The texts of a column's values in UTF-8, as ``binary``; null stays null. Raises UnsupportedTypeError."""
    kind = array.type
    if pa.types.is_string(kind):
        return array.cast(pa.binary())
    if pa.types.is_floating(kind):
        return _java_numbers(array)
    if pa.types.is_binary(kind):
        return _latin(array)
    raise UnsupportedTypeError(f"a value that is decoded as {kind} has no text in Canal's protocol")


def _java_numbers(array: pa.Array) -> pa.Array:
    """Numbers as Java prints them: the shortest digits, but at least two, that are read as the same number."""
    negative_zero = pc.and_(pc.equal(array, 0), pa.array(np.signbit(array.fill_null(1).to_numpy(zero_copy_only=False))))
    shortest = array.cast(pa.string())
    tiny = pc.fill_null(pc.less(pc.abs(array), 1e-43 if pa.types.is_float32(array.type) else 1e-321), False)
    if pc.any(pc.and_(tiny, pc.not_equal(array, 0))).as_py():
        pairs = zip(array.filter(tiny).to_pylist(), shortest.filter(tiny).to_pylist(), strict=True)
        shortest = pc.replace_with_mask(shortest, tiny, pa.array([_two_digits(*pair) for pair in pairs], pa.string()))
    texts = binary_parts(shortest.cast(pa.binary()))
    offsets = np.zeros(len(array) + 1, dtype=np.int32)
    out = np.empty(MOST_BYTES * max(1, len(array)), dtype=np.uint8)
    size = put_javas(texts.offsets, texts.data, np.empty(400, dtype=np.uint8), offsets, out)
    printed = pa.Array.from_buffers(pa.binary(), len(array), [None, pa.py_buffer(offsets), pa.py_buffer(out[:size])])
    printed = pc.if_else(array.is_valid(), printed, pa.scalar(None, pa.binary()))
    return pc.if_else(pc.fill_null(negative_zero, False), pa.scalar(b"-0.0", pa.binary()), printed)


def _two_digits(value: float, shortest: str) -> str:
    """A number so small that several of one digit are read as it: the two digits that are nearest to it."""
    return f"{value:.1e}" if len(shortest.partition("e")[0].lstrip("-")) == 1 else shortest


def _latin(array: pa.Array) -> pa.Array:
    """A character for each byte."""
    return by_distinct(array, lambda value: value.decode("latin-1").encode(), pa.binary())
