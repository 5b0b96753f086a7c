"""The compiled loops that read values of prepared statements' rows, whose numbers and dates are in binary form.

``at``, ``size`` and the results are those of :mod:`cdc.source.snapshot.kernels`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc.decode.kernels.constants import DAMAGED_DATE, NO_DATE
from cdc.decode.kernels.values import days_of
from cdc.kernels.jit import inlined, njit
from cdc.kernels.memory import i64, u16, u32

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]

_SECOND_US = 1_000_000
_DAY_US = 86_400_000_000


# ---------------------------------------------------------------- numbers


@njit
def fill_integers(buf: Bytes, at: Longs, size: Ints, signed: bool, out: Longs) -> int:
    """Reads whole numbers of 1, 2, 4 or 8 bytes. Those of 8 bytes without a sign appear as if they had one."""
    for row in range(at.shape[0]):
        p = at[row]
        width = size[row]
        value = 0
        if width == 8:
            value = i64(buf, p)
        elif width == 4:
            value = u32(buf, p)
            if signed and value >= 1 << 31:
                value -= 1 << 32
        elif width == 2:
            value = u16(buf, p)
            if signed and value >= 1 << 15:
                value -= 1 << 16
        elif width == 1:
            value = int(buf[p])
            if signed and value >= 1 << 7:
                value -= 1 << 8
        elif width >= 0:
            return row
        out[row] = value
    return -1


@njit
def fill_decimals(buf: Bytes, at: Longs, size: Ints, signed: bool, out: Longs) -> int:
    """Reads whole numbers of 8 bytes as decimal128."""
    for row in range(at.shape[0]):
        value = 0
        if size[row] == 8:
            value = i64(buf, at[row])
        elif size[row] >= 0:
            return row
        out[2 * row] = value
        out[2 * row + 1] = value >> 63 if signed else 0
    return -1


@njit
def fill_doubles(buf: Bytes, at: Longs, size: Ints, out: Longs) -> int:
    """Reads the bits of DOUBLE values."""
    for row in range(at.shape[0]):
        value = 0
        if size[row] == 8:
            value = i64(buf, at[row])
        elif size[row] >= 0:
            return row
        out[row] = value
    return -1


# ---------------------------------------------------------------- dates and times


@inlined
def is_moment(length: int) -> bool:
    """Whether a date, or a date with a time, has values of so many bytes."""
    return length == 0 or length == 4 or length == 7 or length == 11


@inlined
def days_at(buf: Bytes, p: int, length: int) -> int:
    """Days since 1970 of the date at ``p``; as :func:`days_of` has it. Zero dates have no bytes at all."""
    if length == 0:
        return NO_DATE
    return days_of(u16(buf, p), int(buf[p + 2]), int(buf[p + 3]))


@inlined
def clock_us(buf: Bytes, p: int, fraction: bool) -> int:
    """The microseconds of the hour, minute and second at ``p``; negative for others than a day has."""
    hour, minute, second = int(buf[p]), int(buf[p + 1]), int(buf[p + 2])
    us = u32(buf, p + 3) if fraction else 0
    if hour > 23 or minute > 59 or second > 59 or us >= _SECOND_US:
        return -1
    return (hour * 3600 + minute * 60 + second) * _SECOND_US + us


@njit
def fill_dates(buf: Bytes, at: Longs, size: Ints, out: Ints, valid: Bytes) -> int:
    """Reads dates as days since 1970. ``valid`` becomes 0 for NULL and for zero and impossible dates."""
    for row in range(at.shape[0]):
        out[row] = 0
        valid[row] = 0
        length = size[row]
        if length < 0:
            continue
        if not is_moment(length):
            return row
        days = days_at(buf, at[row], length)
        if days == DAMAGED_DATE:
            return row
        if days != NO_DATE:
            out[row] = days
            valid[row] = 1
    return -1


@njit
def fill_datetimes(buf: Bytes, at: Longs, size: Ints, out: Longs, valid: Bytes) -> int:
    """Reads dates with times as microseconds since 1970; otherwise as :func:`fill_dates`."""
    for row in range(at.shape[0]):
        out[row] = 0
        valid[row] = 0
        length = size[row]
        if length < 0:
            continue
        if not is_moment(length):
            return row
        p = at[row]
        days = days_at(buf, p, length)
        us = clock_us(buf, p + 4, length == 11) if length > 4 else 0
        if days == DAMAGED_DATE or us < 0:
            return row
        if days != NO_DATE:
            out[row] = days * _DAY_US + us
            valid[row] = 1
    return -1


@njit
def fill_times(buf: Bytes, at: Longs, size: Ints, out: Longs) -> int:
    """Reads times of up to 838 hours as microseconds."""
    for row in range(at.shape[0]):
        out[row] = 0
        length = size[row]
        if length <= 0:
            continue
        if length != 8 and length != 12:
            return row
        p = at[row]
        days = u32(buf, p + 1)
        us = clock_us(buf, p + 5, length == 12)
        if days > 34 or us < 0:
            return row
        us += days * _DAY_US
        out[row] = -us if buf[p] == 1 else us
    return -1
