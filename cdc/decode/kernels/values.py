"""Compiled conversions of single values: times and decimals as numbers, and both as text."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc.decode.kernels.constants import DAMAGED_DATE, NO_DATE
from cdc.kernels.jit import inlined, njit
from cdc.kernels.memory import big_endian, u24
from cdc.kernels.texts import COLON, MINUS, POINT, ZERO

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]

_MASK = 0xFFFFFFFF
_DIGIT_BYTES = np.array([0, 1, 1, 2, 2, 3, 3, 4, 4, 4], dtype=np.int64)
"""Bytes of a group of decimal digits, by the number of digits."""
_POWERS = 10 ** np.arange(10, dtype=np.int64)
_DAY_US = 86_400_000_000


# ---------------------------------------------------------------- dates and times as numbers


@inlined
def days_of(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01; NO_DATE for a zero or impossible date, DAMAGED_DATE for fields that no server writes."""
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
    """The DATE in the 3 bytes at ``p`` as days since 1970, or NO_DATE or DAMAGED_DATE as in :func:`days_of`."""
    value = u24(buf, p)
    return days_of(value >> 9, value >> 5 & 15, value & 31)


@inlined
def fraction_us(buf: Bytes, p: int, size: int) -> int:
    """The fraction of a second in ``size`` (0 to 3) bytes, as microseconds."""
    value = big_endian(buf, p, size)
    if size == 1:
        return value * 10_000
    if size == 2:
        return value * 100
    return value


@inlined
def datetime_us(buf: Bytes, p: int, fraction_size: int) -> int:
    """The DATETIME in 5 bytes and the fraction as microseconds since 1970 without a time zone, or NO_DATE or
    DAMAGED_DATE as in :func:`days_of`."""
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
    """The TIMESTAMP in 4 bytes (unsigned, as MariaDB uses them until 2106) and the fraction as microseconds since 1970
    UTC, or NO_DATE or DAMAGED_DATE."""
    seconds = big_endian(buf, p, 4)
    fraction = fraction_us(buf, p + 4, fraction_size)
    if fraction > 999_999:
        return DAMAGED_DATE
    if seconds == 0 and fraction == 0:
        return NO_DATE
    return seconds * 1_000_000 + fraction


@inlined
def time_us(buf: Bytes, p: int, fraction_size: int) -> int:
    """The TIME in 3 bytes and the fraction as microseconds with their sign, or DAMAGED_DATE. All bytes are one
    big-endian number with an offset, so the fraction of a negative time counts away from zero, too."""
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


# ---------------------------------------------------------------- decimals as numbers


@njit
def decimal_size(precision: int, scale: int) -> int:
    """The size of a DECIMAL(precision, scale) in a row, in bytes."""
    whole = precision - scale
    return 4 * (whole // 9) + _DIGIT_BYTES[whole % 9] + 4 * (scale // 9) + _DIGIT_BYTES[scale % 9]


@inlined
def put_decimal(buf: Bytes, p: int, precision: int, scale: int, out: Longs, at: int) -> bool:
    """Writes a DECIMAL of at most 38 digits as decimal128 to ``out[at:at + 2]``. Returns False if its digits are
    impossible.

    The digits are in groups of nine (4 bytes, big-endian); the remaining digits of either side are in a shorter group
    at its outer end. The first bit is the inverted sign; a negative number has all bits inverted.
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


# ---------------------------------------------------------------- texts


@inlined
def put_digits(out: Bytes, at: int, value: int, count: int) -> None:
    """Writes the last ``count`` decimal digits of a number."""
    for i in range(at + count - 1, at - 1, -1):
        out[i] = np.uint8(ZERO + value % 10)
        value //= 10


@njit
def measure_times(us: Longs, valid: Bytes, digits: int, offsets: Ints) -> int:
    """Writes the offset of each time's text to ``offsets`` (rows + 1) and returns the size of all texts in bytes.
    ``valid`` (rows,) is 0 for null."""
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
def write_times(us: Longs, valid: Bytes, digits: int, offsets: Ints, out: Bytes) -> None:
    """Writes times such as ``-12:34:56.789`` to ``out`` at ``offsets``. Hours have two digits, or three from 100 on."""
    power = np.int64(1)
    for _ in range(6 - digits):
        power *= 10
    for row in range(us.shape[0]):
        if not valid[row]:
            continue
        at = np.int64(offsets[row])
        value = us[row]
        if value < 0:
            out[at] = MINUS
            at += 1
            value = -value
        seconds = value // 1_000_000
        hours = seconds // 3600
        wide = 3 if hours > 99 else 2
        put_digits(out, at, hours, wide)
        at += wide
        out[at] = COLON
        put_digits(out, at + 1, seconds // 60 % 60, 2)
        out[at + 3] = COLON
        put_digits(out, at + 4, seconds % 60, 2)
        if digits:
            out[at + 6] = POINT
            put_digits(out, at + 7, value % 1_000_000 // power, digits)


@njit
def measure_points(at: Ints, data: Bytes, scale: int, offsets: Ints) -> int:
    """Measures whole numbers, given as texts between ``at`` (rows + 1) of ``data``, with a decimal point inserted
    before the last ``scale`` (> 0) digits. Writes the offset of each text to ``offsets`` (rows + 1) and returns the
    size of all texts in bytes, or -1 if it exceeds 31 bits."""
    total = np.int64(0)
    offsets[0] = 0
    for row in range(offsets.shape[0] - 1):
        size = np.int64(at[row + 1]) - np.int64(at[row])
        sign = np.int64(1) if size > 0 and data[at[row]] == MINUS else np.int64(0)
        total += sign + max(size - sign, scale + 1) + 1
        if total > 0x7FFFFFFF:
            return -1
        offsets[row + 1] = total
    return total


@njit
def write_points(at: Ints, data: Bytes, scale: int, offsets: Ints, out: Bytes) -> None:
    """Writes the texts that :func:`measure_points` measured: ``-5`` with a scale of 2 becomes ``-0.05``."""
    for row in range(offsets.shape[0] - 1):
        p = np.int64(at[row])
        end = np.int64(at[row + 1])
        to = np.int64(offsets[row])
        if p < end and data[p] == MINUS:
            out[to] = MINUS
            to += 1
            p += 1
        zeros = scale + 1 - (end - p)
        stop = np.int64(offsets[row + 1])
        point = stop - scale - 1
        while to < stop:
            if to == point:
                out[to] = POINT
            elif zeros > 0:
                out[to] = ZERO
                zeros -= 1
            else:
                out[to] = data[p]
                p += 1
            to += 1


@njit
def put_decimal_text(buf: Bytes, p: int, precision: int, scale: int, out: Bytes, at: int, write: bool) -> int:
    """Writes the decimal at ``p`` (see :func:`put_decimal` for its form) as SELECT prints it, such as ``-0.50``.
    Returns the offset behind its text, or -1 for impossible digits.

    All its bytes (``decimal_size``) are inside ``buf``. Without ``write`` the text is only measured.
    """
    negative = buf[p] < 128
    flip = np.int64(0xFF) if negative else np.int64(0)
    first = np.int64(0x80)
    if negative:
        if write:
            out[at] = np.uint8(MINUS)
        at += 1
    left = precision - scale
    started = False
    in_fraction = False
    while True:
        if left == 0:
            if in_fraction:
                return at
            if not started:
                if write:
                    out[at] = np.uint8(ZERO)
                at += 1
            if scale == 0:
                return at
            if write:
                out[at] = np.uint8(POINT)
            at += 1
            in_fraction = True
            started = True
            left = scale
        digits = 9
        if not in_fraction and left % 9 != 0:
            digits = left % 9
        elif left < 9:
            digits = left
        group = np.int64(0)
        for _ in range(_DIGIT_BYTES[digits]):
            group = group << 8 | (np.int64(buf[p]) ^ flip ^ first)
            first = np.int64(0)
            p += 1
        if group >= _POWERS[digits]:
            return -1
        size = digits
        if not started:  # no leading zeros
            while size > 0 and group < _POWERS[size - 1]:
                size -= 1
            started = size > 0
        if write:
            rest = group
            for i in range(at + size - 1, at - 1, -1):
                out[i] = np.uint8(ZERO + rest % 10)
                rest //= 10
        at += size
        left -= digits


@njit
def decimal_texts(
    buf: Bytes,
    offsets: Ints,
    nulls: npt.NDArray[np.bool_],
    precision: int,
    scale: int,
    out: Bytes,
    out_offsets: Ints,
    write: bool,
) -> tuple[int, int]:
    """Writes every decimal of a column, between ``offsets`` (rows + 1) of ``buf``, as text.

    Without ``write`` the texts are only measured. Returns (bytes of text, -1), or (0, row) of the first value that has
    another size than its column or impossible digits.
    """
    size = decimal_size(precision, scale)
    at = np.int64(0)
    for row in range(nulls.shape[0]):
        if not nulls[row]:
            begin = np.int64(offsets[row])
            if np.int64(offsets[row + 1]) - begin != size:
                return 0, row
            at = put_decimal_text(buf, begin, precision, scale, out, at, write)
            if at < 0:
                return 0, row
        if write:
            out_offsets[row + 1] = at
    return at, -1
