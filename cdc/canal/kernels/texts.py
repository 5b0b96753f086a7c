"""The compiled texts of single values, as Canal writes them: numbers, times, texts and bytes of row images."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc.decode.kernels.constants import DAMAGED_DATE
from cdc.decode.kernels.values import fraction_us, put_decimal_text, put_digits, time_us
from cdc.kernels.jit import inlined, njit
from cdc.kernels.memory import big_endian, copy_bytes, i64, prefix_value, u24, u32
from cdc.kernels.texts import COLON, MINUS, POINT, SPACE, ZERO

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

# How a column's bytes become text.
INTEGER, UNSIGNED, YEAR, BITS, NUMBER, DECIMAL = 1, 2, 3, 4, 5, 6
"""BITS is big-endian (BIT), NUMBER little-endian without a sign (ENUM, SET)."""
DATE, DATETIME, TIMESTAMP, TIME = 7, 8, 9, 10
OLD_DATETIME, OLD_TIMESTAMP, OLD_TIME = 11, 12, 13
UTF8, LATIN1, BINARY, PADDED = 14, 15, 16, 17
"""BINARY becomes ISO-8859-1, a character for each byte; PADDED too, filled up with zero bytes."""
SIDE = 18
"""The text was made before, by a conversion of the decoder."""

BAD_TEXT = -1
"""Bytes that no server writes."""
NOT_UTF8 = -2

_TEN = np.uint64(10)
_DAY_S = 86_400


_ZERO = np.uint64(ZERO)


@inlined
def most_bytes(kind: int, size: int, a: int) -> int:
    """The most bytes that the text of a value of ``size`` bytes takes."""
    if kind < UTF8:
        return 96
    if kind in (UTF8, SIDE):
        return size
    if kind == LATIN1:
        return 3 * size
    return 2 * max(size, a)


@njit
def put_unsigned(out: Bytes, at: int, value: np.uint64) -> int:
    """Writes an unsigned number of 64 bits. Returns the offset behind it."""
    digits = 1
    rest = value // _TEN
    while rest != np.uint64(0):
        rest //= _TEN
        digits += 1
    i = at + digits - 1
    rest = value
    while i >= at:
        quotient = rest // _TEN
        out[i] = np.uint8(_ZERO + rest - quotient * _TEN)
        rest = quotient
        i -= 1
    return at + digits


@inlined
def put_signed(out: Bytes, at: int, value: int) -> int:
    """Writes a signed number of 64 bits."""
    if value < 0:
        out[at] = np.uint8(MINUS)
        return put_unsigned(out, at + 1, np.uint64(0) - np.uint64(value))
    return put_unsigned(out, at, np.uint64(value))


@inlined
def integer(buf: Bytes, p: int, size: int) -> int:
    """The signed little-endian number of 1, 2, 3, 4 or 8 bytes."""
    if size == 8:
        return i64(buf, p)
    value = prefix_value(buf, p, size)
    return value - (1 << 8 * size) if value >> (8 * size - 1) else value


@inlined
def put_pair(out: Bytes, at: int, value: int, separator: int) -> int:
    """Writes two digits and a separator (0: none)."""
    out[at] = np.uint8(ZERO + value // 10 % 10)
    out[at + 1] = np.uint8(ZERO + value % 10)
    if separator:
        out[at + 2] = np.uint8(separator)
        return at + 3
    return at + 2


@inlined
def put_date(out: Bytes, at: int, year: int, month: int, day: int) -> int:
    put_digits(out, at, year, 4)
    out[at + 4] = np.uint8(MINUS)
    return put_pair(out, put_pair(out, at + 5, month, MINUS), day, 0)


@inlined
def put_clock(out: Bytes, at: int, hour: int, minute: int, second: int) -> int:
    return put_pair(out, put_pair(out, put_pair(out, at, hour, COLON), minute, COLON), second, 0)


@inlined
def put_fraction(out: Bytes, at: int, us: int, digits: int) -> int:
    """Writes the point and the first ``digits`` digits of a fraction; nothing for no digits."""
    if digits == 0:
        return at
    out[at] = np.uint8(POINT)
    for _ in range(6 - digits):
        us //= 10
    put_digits(out, at + 1, us, digits)
    return at + 1 + digits


@njit
def put_zero_moment(out: Bytes, at: int) -> int:
    """Writes ``0000-00-00 00:00:00``."""
    at = put_date(out, at, 0, 0, 0)
    out[at] = np.uint8(SPACE)
    return put_clock(out, at + 1, 0, 0, 0)


@njit
def put_instant(out: Bytes, at: int, seconds: int, zone_at: Longs, zone_offset: Longs) -> int:
    """Writes the date and the clock of seconds since 1970 in a time zone: ``zone_offset`` in seconds is in force from
    ``zone_at`` on."""
    zone = 0
    if zone_at.shape[0] > 1:
        zone = max(0, np.searchsorted(zone_at, seconds, "right") - 1)
    seconds += zone_offset[zone]
    days = seconds // _DAY_S
    clock = seconds - days * _DAY_S
    days += 719468
    era = days // 146097
    of_era = days - era * 146097
    year_of_era = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    year = year_of_era + era * 400 + (1 if month <= 2 else 0)
    at = put_date(out, at, year, month, day)
    out[at] = np.uint8(SPACE)
    return put_clock(out, at + 1, clock // 3600, clock // 60 % 60, clock % 60)


@njit
def put_temporal(
    buf: Bytes, p: int, kind: int, digits: int, zone_at: Longs, zone_offset: Longs, out: Bytes, at: int
) -> int:
    """Writes a date or time with ``digits`` digits of the fraction, zero and impossible ones as they are stored."""
    fraction = (digits + 1) // 2
    if kind == DATE:
        value = u24(buf, p)
        if value >> 9 > 9999:
            return BAD_TEXT
        return put_date(out, at, value >> 9, value >> 5 & 15, value & 31)
    if kind == DATETIME:
        value = big_endian(buf, p, 5) - (1 << 39)
        us = fraction_us(buf, p + 5, fraction)
        if value < 0 or (value >> 22) // 13 > 9999 or us > 999_999:
            return BAD_TEXT
        at = put_date(out, at, (value >> 22) // 13, (value >> 22) % 13, value >> 17 & 31)
        out[at] = np.uint8(SPACE)
        at = put_clock(out, at + 1, value >> 12 & 31, value >> 6 & 63, value & 63)
        return put_fraction(out, at, us, digits)
    if kind == TIMESTAMP:
        seconds = big_endian(buf, p, 4)
        us = fraction_us(buf, p + 4, fraction)
        if us > 999_999:
            return BAD_TEXT
        if seconds == 0 and us == 0:
            at = put_zero_moment(out, at)
        else:
            at = put_instant(out, at, seconds, zone_at, zone_offset)
        return put_fraction(out, at, us, digits)
    if kind == TIME:
        value = time_us(buf, p, fraction)
        if value == DAMAGED_DATE:
            return BAD_TEXT
        if value < 0:
            out[at] = np.uint8(MINUS)
            at += 1
            value = -value
        seconds = value // 1_000_000
        hours = seconds // 3600
        if hours > 99:
            out[at] = np.uint8(ZERO + hours // 100)
            at += 1
        at = put_clock(out, at, hours % 100, seconds // 60 % 60, seconds % 60)
        return put_fraction(out, at, value % 1_000_000, digits)
    if kind == OLD_TIMESTAMP:
        seconds = u32(buf, p)
        return put_zero_moment(out, at) if seconds == 0 else put_instant(out, at, seconds, zone_at, zone_offset)
    if kind == OLD_DATETIME:
        value = i64(buf, p)
        day, clock = value // 1_000_000, value % 1_000_000
        if value < 0 or day > 99_999_999:
            return BAD_TEXT
        at = put_date(out, at, day // 10_000, day // 100 % 100, day % 100)
        out[at] = np.uint8(SPACE)
        return put_clock(out, at + 1, clock // 10_000, clock // 100 % 100, clock % 100)
    value = integer(buf, p, 3)  # OLD_TIME
    if value < 0:
        out[at] = np.uint8(MINUS)
        at += 1
        value = -value
    if value > 8_385_959:
        return BAD_TEXT
    if value >= 1_000_000:
        out[at] = np.uint8(ZERO + value // 1_000_000)
        at += 1
    return put_clock(out, at, value // 10_000 % 100, value // 100 % 100, value % 100)


@njit
def is_utf8(out: Bytes, at: int, end: int) -> bool:
    """Whether the bytes are UTF-8."""
    high = np.uint8(0)
    for i in range(at, end):
        high |= out[i]
    if high < 128:
        return True
    while at < end:
        first = np.int64(out[at])
        if first < 0x80:
            at += 1
            continue
        more = 1
        if first < 0xC2 or first > 0xF4:
            return False
        if first >= 0xE0:
            more = 2 if first < 0xF0 else 3
        if at + more >= end:
            return False
        second = np.int64(out[at + 1])
        if second >> 6 != 2:
            return False
        if (
            (first == 0xE0 and second < 0xA0)
            or (first == 0xED and second > 0x9F)
            or (first == 0xF0 and second < 0x90)
            or (first == 0xF4 and second > 0x8F)
        ):
            return False
        for i in range(2, more + 1):
            if np.int64(out[at + i]) >> 6 != 2:
                return False
        at += more + 1
    return True


@njit
def put_characters(buf: Bytes, p: int, size: int, kind: int, padded: int, latin1: Bytes, out: Bytes, at: int) -> int:
    """Writes a text or bytes as UTF-8. Returns the offset behind it, or NOT_UTF8."""
    if kind == UTF8:
        copy_bytes(out, at, buf, p, size)
        return at + size if is_utf8(out, at, at + size) else NOT_UTF8
    for i in range(p, p + size):
        byte = np.int64(buf[i])
        if byte < 128:
            out[at] = np.uint8(byte)
            at += 1
        elif kind == LATIN1:
            for k in range(latin1[byte, 3]):
                out[at] = latin1[byte, k]
                at += 1
        else:
            out[at] = np.uint8(0xC0 | byte >> 6)
            out[at + 1] = np.uint8(0x80 | byte & 0x3F)
            at += 2
    if kind == PADDED:
        for _ in range(padded - size):
            out[at] = np.uint8(0)
            at += 1
    return at


@njit
def put_number(buf: Bytes, p: int, size: int, kind: int, a: int, b: int, out: Bytes, at: int) -> int:
    """Writes an integer, YEAR, BIT, ENUM, SET or DECIMAL(a, b)."""
    if kind == INTEGER:
        return put_signed(out, at, integer(buf, p, size))
    if kind in (UNSIGNED, NUMBER):
        value = np.uint64(0)
        for i in range(size - 1, -1, -1):
            value = value << np.uint64(8) | np.uint64(buf[p + i])
        return put_unsigned(out, at, value)
    if kind == BITS:
        value = np.uint64(0)
        for i in range(size):
            value = value << np.uint64(8) | np.uint64(buf[p + i])
        return put_unsigned(out, at, value)
    if kind == DECIMAL:
        return put_decimal_text(buf, p, a, b, out, at, True)
    year = np.int64(buf[p])
    put_digits(out, at, 1900 + year if year else 0, 4)
    return at + 4
