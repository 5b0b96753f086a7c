"""The compiled passes that find the last change of each key: one writes keys as bytes, the other finds equal ones.

A key is written as its columns one after another: a byte that is 1 for a value and 0 for null, then the bytes of the
value, and before those of a text or binary value their number in four bytes. Equal keys have equal bytes, and different
ones different bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cdc.kernels.jit import inlined, njit
from cdc.kernels.memory import copy_bytes, same_bytes, store_u32

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

_DELETE = 0


class WrittenKeys(NamedTuple):
    """Keys as bytes."""

    bytes: Bytes
    begin: Longs
    """(rows + 1,): where each key begins in ``bytes``, and behind the last one."""


class KeyTable(NamedTuple):
    """The hash table that :func:`find_last` fills: open addressing, a power of two of slots, more than half empty."""

    row: npt.NDArray[np.int32]
    """The row whose key is in the slot; -1: none."""
    tag: npt.NDArray[np.uint32]
    """Some bits of that key's hash."""


@njit
def write_fixed(out: Bytes, at: Longs, values: Bytes, width: int, valid: Bytes) -> None:
    """Writes a column of ``width`` bytes a value into the keys at ``at``, which moves behind it. ``valid``: 0 for
    null."""
    for i in range(len(at)):
        here = at[i]
        out[here] = valid[i]
        if valid[i] != 0:
            copy_bytes(out, here + 1, values, i * width, width)
        else:
            for j in range(width):
                out[here + 1 + j] = 0
        at[i] = here + 1 + width


@njit
def write_texts(out: Bytes, at: Longs, values: Bytes, offsets: npt.NDArray[np.int32], valid: Bytes) -> None:
    """Writes a column of texts or binary values into the keys at ``at``, which moves behind it."""
    for i in range(len(at)):
        here = at[i]
        size = np.int64(offsets[i + 1]) - np.int64(offsets[i]) if valid[i] != 0 else np.int64(0)
        out[here] = valid[i]
        store_u32(out, here + 1, size)
        copy_bytes(out, here + 5, values, np.int64(offsets[i]), size)
        at[i] = here + 5 + size


@inlined
def _mixed(value: np.uint64) -> np.uint64:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@njit
def _hash(data: Bytes, begin: int, end: int, seed: np.uint64) -> np.uint64:
    mixed_hash = seed ^ np.uint64(end - begin)
    at = begin
    while at < end:
        word = np.uint64(0)
        for j in range(min(8, end - at)):
            word |= np.uint64(data[at + j]) << np.uint64(8 * j)
        mixed_hash = _mixed(mixed_hash ^ word) + np.uint64(0x9E3779B97F4A7C15)
        at += 8
    return _mixed(mixed_hash)


@njit
def find_last(
    keys: WrittenKeys, op: npt.NDArray[np.int8], seed: np.uint64, table: KeyTable, last: Bytes, seen: Bytes
) -> int:
    """Marks in ``last`` (rows,) the last row of each key, and in ``seen`` those of them whose key has a row that is no
    delete. Returns the number of keys. ``seed`` is random, so that no source can make its keys collide."""
    keys_found = 0
    places = np.uint64(len(table.row) - 1)
    for i in range(len(op) - 1, -1, -1):
        begin, end = keys.begin[i], keys.begin[i + 1]
        hashed = _hash(keys.bytes, begin, end, seed)
        tag = np.uint32(hashed >> np.uint64(32))
        slot = np.int64(hashed & places)
        last[i] = 1
        seen[i] = 0
        owner = i
        while table.row[slot] >= 0:
            other = np.int64(table.row[slot])
            if table.tag[slot] == tag:
                other_begin, behind = keys.begin[other], keys.begin[other + 1]
                if behind - other_begin == end - begin and same_bytes(keys.bytes, other_begin, begin, end - begin):
                    last[i] = 0
                    owner = other
                    break
            slot = np.int64(np.uint64(slot + 1) & places)
        if last[i] != 0:
            table.row[slot] = np.int32(i)
            table.tag[slot] = tag
            keys_found += 1
        if op[i] != _DELETE:
            seen[owner] = 1
    return keys_found
