"""Compiled conversions of single values."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc.binlog.jit import inlined, njit
from cdc.decode.kernels.constants import DAMAGED_DATE, NO_DATE
from cdc.decode.kernels.scan import u24

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

_MASK = 0xFFFFFFFF
_DIGIT_BYTES = np.array([0, 1, 1, 2, 2, 3, 3, 4, 4, 4], dtype=np.int64)
"""Bytes of a group of so many decimal digits."""
_POWERS = 10 ** np.arange(10, dtype=np.int64)
_DAY_US = 86_400_000_000


@inlined
def big_endian(buf: Bytes, p: int, size: int) -> int:
    """An unsigned number of up to 7 bytes."""
    value = np.int64(0)
    for i in range(size):
        value = value << 8 | np.int64(buf[p + i])
    return value


@inlined
def days_of(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01; NO_DATE for a zero or impossible date, DAMAGED_DATE for fields no server writes."""
    if year > 9999 or month > 12 or day > 31:
        return DAMAGED_DATE
    if year < 1 or month < 1 or day < 1:
        return NO_DATE
    last = 31
    if month == 4 or month == 6 or month == 9 or month == 11:
        last = 30
    elif month == 2:
        last = 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    if day > last:
        return NO_DATE
    y = year - 1 if month <= 2 else year  # the year begins in March, so that the leap day is its last
    era = y // 400
    of_era = y - era * 400
    of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


@inlined
def date_days(buf: Bytes, p: int) -> int:
    """DATE, 3 bytes: days since 1970, or one of the two marks of :func:`days_of`."""
    value = u24(buf, p)
    return days_of(value >> 9, value >> 5 & 15, value & 31)


@inlined
def fraction_us(buf: Bytes, p: int, size: int) -> int:
    """Fraction of a second in ``size`` (0 to 3) bytes, as microseconds."""
    value = big_endian(buf, p, size)
    if size == 1:
        return value * 10_000
    if size == 2:
        return value * 100
    return value


@inlined
def datetime_us(buf: Bytes, p: int, fraction_size: int) -> int:
    """DATETIME, 5 bytes and the fraction: microseconds since 1970 without a time zone, or a mark of
    :func:`days_of`."""
    value = big_endian(buf, p, 5) - (1 << 39)
    fraction = fraction_us(buf, p + 5, fraction_size)
    hour = value >> 12 & 31
    minute = value >> 6 & 63
    second = value & 63
    if value < 0 or hour > 23 or minute > 59 or second > 59 or fraction > 999_999:
        return DAMAGED_DATE
    year_month = value >> 22
    days = days_of(year_month // 13, year_month % 13, value >> 17 & 31)
    if days <= NO_DATE:
        return days
    return days * _DAY_US + ((hour * 60 + minute) * 60 + second) * 1_000_000 + fraction


@inlined
def timestamp_us(buf: Bytes, p: int, fraction_size: int) -> int:
    """TIMESTAMP, 4 bytes (unsigned, as MariaDB uses them until 2106) and the fraction: microseconds since 1970,
    UTC."""
    seconds = big_endian(buf, p, 4)
    fraction = fraction_us(buf, p + 4, fraction_size)
    if fraction > 999_999:
        return DAMAGED_DATE
    if seconds == 0 and fraction == 0:
        return NO_DATE
    return seconds * 1_000_000 + fraction


@inlined
def time_us(buf: Bytes, p: int, fraction_size: int) -> int:
    """TIME, 3 bytes and the fraction: microseconds with their sign, or DAMAGED_DATE. The whole is one big-endian
    number with an offset, so that a negative time's fraction counts away from zero, too."""
    value = big_endian(buf, p, 3 + fraction_size) - (np.int64(0x800000) << 8 * fraction_size)
    negative = value < 0
    if negative:
        value = -value
    whole = value >> 8 * fraction_size
    fraction = value - (whole << 8 * fraction_size)
    if fraction_size == 1:
        fraction *= 10_000
    elif fraction_size == 2:
        fraction *= 100
    hour = whole >> 12
    minute = whole >> 6 & 63
    second = whole & 63
    if hour > 838 or minute > 59 or second > 59 or fraction > 999_999:
        return DAMAGED_DATE
    us = ((hour * 60 + minute) * 60 + second) * 1_000_000 + fraction
    return -us if negative else us


@njit
def decimal_size(precision: int, scale: int) -> int:
    """Bytes of a DECIMAL(precision, scale) in a row."""
    whole = precision - scale
    return 4 * (whole // 9) + _DIGIT_BYTES[whole % 9] + 4 * (scale // 9) + _DIGIT_BYTES[scale % 9]


@inlined
def put_decimal(buf: Bytes, p: int, precision: int, scale: int, out: Longs, at: int) -> bool:
    """Write a DECIMAL (at most 38 digits) as decimal128 to ``out[at:at + 2]``; False where its digits are impossible.

    Digits stand in groups of nine (4 bytes, big-endian), the odd ones of either side in shorter groups at the outer
    ends. The first bit is the sign, inverted; a negative number has all bits inverted.
    """
    negative = buf[p] < 128
    flip = np.int64(0xFF) if negative else np.int64(0)
    first = np.int64(0x80)
    whole = precision - scale
    # Four limbs of 32 bits: their products with 10**9 never leave 63 bits.
    a0 = np.int64(0)
    a1 = np.int64(0)
    a2 = np.int64(0)
    a3 = np.int64(0)
    digits_left = whole
    in_fraction = False
    while True:
        if digits_left == 0:
            if in_fraction:
                break
            in_fraction = True
            digits_left = scale
            continue
        digits = 9
        if not in_fraction and digits_left % 9 != 0:
            digits = digits_left % 9
        elif digits_left < 9:
            digits = digits_left
        group = np.int64(0)
        for _ in range(_DIGIT_BYTES[digits]):
            group = group << 8 | (np.int64(buf[p]) ^ flip ^ first)
            first = np.int64(0)
            p += 1
        power = _POWERS[digits]
        if group >= power:
            return False
        a0 = a0 * power + group
        if precision > 18:
            a1 = a1 * power + (a0 >> 32)
            a0 &= _MASK
            a2 = a2 * power + (a1 >> 32)
            a1 &= _MASK
            a3 = a3 * power + (a2 >> 32)
            a2 &= _MASK
        digits_left -= digits
    if precision <= 18:
        value = -a0 if negative else a0
        out[at] = value
        out[at + 1] = value >> 63
        return True
    if negative:
        a0 = (a0 ^ _MASK) + 1
        a1 = (a1 ^ _MASK) + (a0 >> 32)
        a2 = (a2 ^ _MASK) + (a1 >> 32)
        a3 = (a3 ^ _MASK) + (a2 >> 32)
    out[at] = (a0 & _MASK) | (a1 & _MASK) << 32
    out[at + 1] = (a2 & _MASK) | (a3 & _MASK) << 32
    return True
