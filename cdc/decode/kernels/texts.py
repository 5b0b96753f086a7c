"""Compiled loops that write texts from numbers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc.binlog.jit import inlined, njit

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]


@inlined
def put_digits(out: Bytes, at: int, value: int, count: int) -> None:
    """Write the last ``count`` decimal digits of a number."""
    for i in range(at + count - 1, at - 1, -1):
        out[i] = np.uint8(48 + value % 10)
        value //= 10


@njit
def measure_times(us: Longs, valid: Bytes, digits: int, offsets: npt.NDArray[np.int32]) -> int:
    """Write where each time's text begins to ``offsets`` (one more than times); the bytes in all.
    ``valid``: 0 is null."""
    total = np.int64(0)
    offsets[0] = 0
    for row in range(us.shape[0]):
        if valid[row]:
            total += 8 + (digits + 1 if digits else 0)
            if us[row] < 0:
                total += 1
            if us[row] >= 360_000_000_000 or us[row] <= -360_000_000_000:
                total += 1
        offsets[row + 1] = total
    return total


@njit
def write_times(us: Longs, valid: Bytes, digits: int, offsets: npt.NDArray[np.int32], out: Bytes) -> None:
    """``-12:34:56.789``: the texts at ``offsets``. Hours have two digits, or three from 100 on."""
    power = np.int64(1)
    for _ in range(6 - digits):
        power *= 10
    for row in range(us.shape[0]):
        if not valid[row]:
            continue
        at = np.int64(offsets[row])
        value = us[row]
        if value < 0:
            out[at] = 45
            at += 1
            value = -value
        seconds = value // 1_000_000
        hours = seconds // 3600
        wide = 3 if hours > 99 else 2
        put_digits(out, at, hours, wide)
        at += wide
        out[at] = 58
        put_digits(out, at + 1, seconds // 60 % 60, 2)
        out[at + 3] = 58
        put_digits(out, at + 4, seconds % 60, 2)
        if digits:
            out[at + 6] = 46
            put_digits(out, at + 7, value % 1_000_000 // power, digits)


@njit
def measure_points(at: npt.NDArray[np.int32], data: Bytes, scale: int, offsets: npt.NDArray[np.int32]) -> int:
    """Where whole numbers, texts that begin ``at`` these places (one more than numbers), will begin once they have a
    point and ``scale`` (not 0) digits behind it: to ``offsets``. The bytes in all; -1 where they pass 31 bits."""
    total = np.int64(0)
    offsets[0] = 0
    for row in range(offsets.shape[0] - 1):
        size = np.int64(at[row + 1]) - np.int64(at[row])
        sign = np.int64(1) if size > 0 and data[at[row]] == 45 else np.int64(0)
        total += sign + max(size - sign, scale + 1) + 1
        if total > 0x7FFFFFFF:
            return -1
        offsets[row + 1] = total
    return total


@njit
def write_points(
    at: npt.NDArray[np.int32], data: Bytes, scale: int, offsets: npt.NDArray[np.int32], out: Bytes
) -> None:
    """``-5`` with a scale of 2 is ``-0.05``: the texts at ``offsets``."""
    for row in range(offsets.shape[0] - 1):
        p = np.int64(at[row])
        end = np.int64(at[row + 1])
        to = np.int64(offsets[row])
        if p < end and data[p] == 45:
            out[to] = 45
            to += 1
            p += 1
        zeros = scale + 1 - (end - p)
        stop = np.int64(offsets[row + 1])
        point = stop - scale - 1
        while to < stop:
            if to == point:
                out[to] = 46
            elif zeros > 0:
                out[to] = 48
                zeros -= 1
            else:
                out[to] = data[p]
                p += 1
            to += 1
