"""Finds the last change of each key among decoded changes, by compiled loops and without Spark.

Keys are equal if Spark takes them for equal: texts by their bytes, floating-point numbers by value (0.0 equals -0.0,
and NaN itself), null with null. The result is exact: hashes only find candidates, whose bytes are then compared.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.decode.kernels.constants import OP_DELETE, OP_INSERT
from cdc.decode.kernels.keys import KeyTable, WrittenKeys, find_last, write_fixed, write_texts

Bools = npt.NDArray[np.bool_]
Longs = npt.NDArray[np.int64]

_ROW_BYTES = 64
"""Memory that planning takes for each row beside its key, at most."""


class UnplannableError(Exception):
    """These changes cannot be reduced here: a key has a type without equality, or the changes are not in order."""


@dataclass(frozen=True)
class ChangeKeys:
    """The keys of some changes, and what orders the changes."""

    op: npt.NDArray[np.int8]
    seq: Longs
    row: Longs
    bytes: npt.NDArray[np.uint8]
    sizes: Longs
    """(rows,): the bytes of each key."""
    bounds: tuple[tuple[Any, Any] | None, ...]
    """For each column the least and the greatest value as Arrow scalars; None for a type without an order, or with
    nulls."""

    @property
    def memory(self) -> int:
        """About the bytes that planning takes for these keys."""
        return len(self.op) * _ROW_BYTES + 2 * len(self.bytes)


@dataclass(frozen=True)
class LastChanges:
    """The last change of each key among changes that were given in parts."""

    last: tuple[Bools, ...]
    """For each part and change: it is the last one of its key."""
    seen: tuple[Bools, ...]
    """For each part and change: it is the last one of a key of which some change is no delete."""
    kept: tuple[Bools, ...]
    """For each part and change: it is no delete."""
    keys: int
    """The number of keys."""
    is_all_new: bool
    """Each key has exactly one change, and that is an insert."""
    bounds: tuple[tuple[Any, Any] | None, ...]
    """The least and the greatest value of each column; see :class:`ChangeKeys`."""


def keys_of(batch: pa.RecordBatch, names: Sequence[str]) -> ChangeKeys:
    """Returns the keys of decoded changes, which have the metadata columns and these. Raises UnplannableError."""
    columns = [_Column.of(batch.column(name)) for name in names]
    sizes = np.full(len(batch), sum(column.fixed_bytes for column in columns), dtype=np.int64)
    for column in columns:
        if column.offsets is not None:
            sizes += np.where(column.valid != 0, np.diff(column.offsets), 0)
    at = np.zeros(len(batch), dtype=np.int64)
    np.cumsum(sizes[:-1], out=at[1:])
    out = np.empty(int(sizes.sum()), dtype=np.uint8)
    for column in columns:
        if column.offsets is None:
            write_fixed(out, at, column.values, column.fixed_bytes - 1, column.valid)
        else:
            write_texts(out, at, column.values, column.offsets, column.valid)
    return ChangeKeys(
        op=batch.column("_op").to_numpy(),
        seq=batch.column("_seq").to_numpy(),
        row=batch.column("_row").to_numpy(),
        bytes=out,
        sizes=sizes,
        bounds=tuple(_bounds(batch.column(name)) for name in names),
    )


def joined(parts: Sequence[ChangeKeys], columns: int) -> ChangeKeys:
    """Returns the keys of several batches as one. ``columns``: the number of key columns."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        longs, none = np.empty(0, np.int64), (None,) * columns
        return ChangeKeys(np.empty(0, np.int8), longs, longs, np.empty(0, np.uint8), longs, none)
    return ChangeKeys(
        op=np.concatenate([part.op for part in parts]),
        seq=np.concatenate([part.seq for part in parts]),
        row=np.concatenate([part.row for part in parts]),
        bytes=np.concatenate([part.bytes for part in parts]),
        sizes=np.concatenate([part.sizes for part in parts]),
        bounds=_all_bounds([part.bounds for part in parts if len(part.op)]),
    )


def last_changes(parts: Sequence[ChangeKeys]) -> LastChanges:
    """Returns the last change of each key. The parts, and the changes in them, must be in the order of the source.
    Raises UnplannableError if they are not."""
    op = np.concatenate([part.op for part in parts] or [np.empty(0, np.int8)])
    _require_order(parts, op)
    rows = len(op)
    begin = np.zeros(rows + 1, dtype=np.int64)
    np.cumsum(np.concatenate([part.sizes for part in parts] or [np.empty(0, np.int64)]), out=begin[1:])
    places = 1 << max(4, (2 * rows).bit_length())
    table = KeyTable(np.full(places, -1, dtype=np.int32), np.empty(places, dtype=np.uint32))
    last, seen = np.empty(rows, dtype=np.uint8), np.empty(rows, dtype=np.uint8)
    data = np.concatenate([part.bytes for part in parts] or [np.empty(0, np.uint8)])
    count = find_last(WrittenKeys(data, begin), op, np.uint64(secrets.randbits(64)), table, last, seen)
    cuts = np.cumsum([len(part.op) for part in parts])[:-1]
    return LastChanges(
        last=tuple(np.split(last.view(np.bool_), cuts)) if parts else (),
        seen=tuple(np.split(seen.view(np.bool_), cuts)) if parts else (),
        kept=tuple(np.split(op != OP_DELETE, cuts)) if parts else (),
        keys=int(count),
        is_all_new=bool(count == rows and (op == OP_INSERT).all()),
        bounds=_all_bounds([part.bounds for part in parts if len(part.op)]),
    )


def _require_order(parts: Sequence[ChangeKeys], op: npt.NDArray[np.int8]) -> None:
    """Raises UnplannableError unless the changes rise by (``_seq``, ``_row``), and a delete comes before the upsert of
    the same update."""
    seq = np.diff(np.concatenate([part.seq for part in parts] or [np.empty(0, np.int64)]))
    row = np.diff(np.concatenate([part.row for part in parts] or [np.empty(0, np.int64)]))
    moved = (op[:-1] == OP_DELETE) & (op[1:] != OP_DELETE)
    if not ((seq > 0) | ((seq == 0) & ((row > 0) | ((row == 0) & moved)))).all():
        raise UnplannableError("the changes are not in the order of the source")


# ---------------------------------------------------------------- columns


@dataclass(frozen=True)
class _Column:
    """A key column as the kernels take it."""

    values: npt.NDArray[np.uint8]
    valid: npt.NDArray[np.uint8]
    fixed_bytes: int
    """Bytes of each value that do not depend on it, with the one that tells null."""
    offsets: npt.NDArray[np.int32] | None = None

    @classmethod
    def of(cls, array: pa.Array) -> _Column:
        valid = array.is_valid().cast(pa.uint8()).to_numpy(zero_copy_only=False)
        kind = array.type
        if pa.types.is_boolean(kind):
            array = array.cast(pa.uint8())
        elif pa.types.is_floating(kind):
            array = _canonical(array)
        elif pa.types.is_string(kind) or pa.types.is_binary(kind):
            _, where, data = array.buffers()
            offsets = np.frombuffer(where, dtype=np.int32)[array.offset : array.offset + len(array) + 1]
            return cls(_bytes(data), valid, 5, offsets)
        elif not (
            pa.types.is_integer(kind)
            or pa.types.is_date(kind)
            or pa.types.is_timestamp(kind)
            or pa.types.is_decimal128(kind)
        ):
            raise UnplannableError(f"a key of the type {kind}")
        width = array.type.bit_width // 8
        data = _bytes(array.buffers()[1])[array.offset * width : (array.offset + len(array)) * width]
        return cls(data, valid, 1 + width)


def _bytes(buffer: pa.Buffer | None) -> npt.NDArray[np.uint8]:
    return np.frombuffer(buffer, dtype=np.uint8) if buffer is not None else np.frombuffer(b"", dtype=np.uint8)


def _canonical(array: pa.Array) -> pa.Array:
    """Returns floating-point numbers with one zero and one NaN."""
    kind = array.type.to_pandas_dtype()
    values = array.fill_null(0).to_numpy(zero_copy_only=False) + kind(0)
    return pa.array(np.where(np.isnan(values), kind(np.nan), values).astype(kind))


# ---------------------------------------------------------------- bounds


def _bounds(array: pa.Array) -> tuple[Any, Any] | None:
    kind = array.type
    ordered = (
        pa.types.is_integer(kind)
        or pa.types.is_date(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_string(kind)
    )
    if not ordered or array.null_count or not len(array):
        return None
    least_and_greatest = pc.min_max(array)
    return least_and_greatest["min"], least_and_greatest["max"]


def _all_bounds(parts: Sequence[tuple[tuple[Any, Any] | None, ...]]) -> tuple[tuple[Any, Any] | None, ...]:
    bounds: list[tuple[Any, Any] | None] = []
    for column in zip(*parts, strict=True):
        bounds_of_parts = [part_bounds for part_bounds in column if part_bounds is not None]
        if len(bounds_of_parts) < len(column):
            bounds.append(None)
            continue
        low = pc.min(pa.array([part_bounds[0].as_py() for part_bounds in bounds_of_parts], bounds_of_parts[0][0].type))
        high = pc.max(pa.array([part_bounds[1].as_py() for part_bounds in bounds_of_parts], bounds_of_parts[0][0].type))
        bounds.append((low, high))
    return tuple(bounds)
