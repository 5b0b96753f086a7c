"""The checksums of index entries: each entry ends with the CRC32 of the bytes before it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc.kernels.crc import crc32
from cdc.kernels.jit import njit
from cdc.kernels.memory import load_u, store_u32

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]


@njit
def seal_entries(entries: Bytes, scratch: Bytes) -> None:
    """Writes each entry's CRC32 into its last four bytes. ``entries``: n entries of 128 bytes, one after another."""
    for k in range(entries.shape[0] // 128):
        at = k * 128
        store_u32(entries, at + 124, np.int64(crc32(entries, at, at + 124, scratch)))


@njit
def first_bad_entry(entries: Bytes, scratch: Bytes) -> int:
    """The number of the first entry with a wrong CRC32, or -1. ``entries``: n entries of 128 bytes, one after
    another."""
    for k in range(entries.shape[0] // 128):
        at = k * 128
        if np.int64(crc32(entries, at, at + 124, scratch)) != load_u(entries, at + 124, 4):
            return k
    return -1


def warm_up() -> None:
    """Loads the kernels from their cache, or compiles them."""
    none, scratch = np.zeros(0, dtype=np.uint8), np.zeros(16, dtype=np.uint8)
    seal_entries(none, scratch)
    first_bad_entry(none, scratch)
