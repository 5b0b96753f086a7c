"""Compiled writing of JSON: escaped texts, numbers, base64, and values as Debezium's types."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc.canal.kernels.texts import put_signed
from cdc.canal.mq.kernels import words as w
from cdc.canal.mq.kernels.rows import DefinedColumn
from cdc.kernels.jit import inlined, njit
from cdc.kernels.memory import copy_bytes, put_word, word
from cdc.kernels.texts import BACKSLASH, CLOSE_OBJECT, COLON, COMMA, HEX, MINUS, POINT, QUOTE, ZERO, put_base64_group

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

# How a text becomes a value of Debezium.
TEXT, NUMBER, YEAR, BOOLEAN, BITS, BINARY, DECIMAL, ENUM, SET = 1, 2, 3, 4, 5, 6, 7, 8, 9
DATE, MILLIS, MICROS, INSTANT, TIME, GEOMETRY = 10, 11, 12, 13, 14, 15
_DAY_S = 86_400
_LETTERS = word(bytes(8) + b"btn\0fr" + bytes(18))
"""The letter behind the backslash for each byte below 32; 0: none, so that its code is written."""
_CODE = word(b"\\u00")
_T, _Z = b"TZ"
SLACK = 64


@njit
def escaped_size(buf: Bytes, at: int, size: int) -> int:
    """Bytes that a text needs in JSON at most, with its quotes: exact for large ones."""
    if size < 1024:
        return 6 * size + 2
    most_bytes = 2
    for i in range(at, at + size):
        byte = buf[i]
        if byte < 32:
            most_bytes += 6
        elif byte in (QUOTE, BACKSLASH):
            most_bytes += 2
        else:
            most_bytes += 1
    return most_bytes


@njit
def put_text(out: Bytes, at: int, buf: Bytes, p: int, size: int) -> int:
    """Writes a text in UTF-8 as a JSON string. Returns the offset behind it."""
    out[at] = np.uint8(QUOTE)
    at += 1
    plain = True
    for i in range(p, p + size):
        byte = buf[i]
        if (byte < 32) | (byte == QUOTE) | (byte == BACKSLASH):
            plain = False
    if plain:
        copy_bytes(out, at, buf, p, size)
        at += size
    else:
        for i in range(p, p + size):
            at = put_escaped(out, at, buf[i])
    out[at] = np.uint8(QUOTE)
    return at + 1


@njit
def put_escaped(out: Bytes, at: int, byte: np.uint8) -> int:
    if byte >= 32:
        if byte in (QUOTE, BACKSLASH):
            out[at] = np.uint8(BACKSLASH)
            at += 1
        out[at] = byte
        return at + 1
    letter = _LETTERS[byte]
    if letter:
        out[at] = np.uint8(BACKSLASH)
        out[at + 1] = letter
        return at + 2
    at = put_word(out, at, _CODE)
    out[at] = HEX[byte >> 4]
    out[at + 1] = HEX[byte & 15]
    return at + 2


@inlined
def put_null(out: Bytes, at: int) -> int:
    return put_word(out, at, w.NULL)


@njit
def put_const(out: Bytes, at: int, consts: Bytes, start: int, size: int) -> int:
    copy_bytes(out, at, consts, start, size)
    return at + size


@njit
def put_base64(out: Bytes, at: int, raw: Bytes, p: int, size: int) -> int:
    """Writes bytes as a JSON string in base64."""
    out[at] = np.uint8(QUOTE)
    at += 1
    end = p + size
    while p < end:
        at = put_base64_group(out, at, raw, p, end - p)
        p += 3
    out[at] = np.uint8(QUOTE)
    return at + 1


@njit
def latin_bytes(out: Bytes, at: int, buf: Bytes, p: int, size: int) -> int:
    """Writes the byte of each character of a text of characters below 256. Returns the offset behind them."""
    end = p + size
    while p < end:
        first = buf[p]
        if first < 128:
            out[at] = first
            p += 1
        else:
            out[at] = np.uint8((np.int64(first) & 3) << 6 | np.int64(buf[p + 1]) & 63)
            p += 2
        at += 1
    return at


@njit
def put_binary(out: Bytes, at: int, buf: Bytes, p: int, size: int) -> int:
    """Writes a text of characters below 256 as its bytes in base64. The room is ``2 * size`` and some more: the bytes
    are made at its end."""
    raw = at + size + size // 2 + 16
    stop = latin_bytes(out, raw, buf, p, size)
    return put_base64(out, at, out, raw, stop - raw)


@njit
def digits_of(buf: Bytes, p: int, end: int) -> int:
    """The number of up to 18 digits; -1 for anything else."""
    value = np.int64(0)
    if end - p > 18 or end <= p:
        return -1
    for i in range(p, end):
        digit = np.int64(buf[i]) - ZERO
        if digit < 0 or digit > 9:
            return -1
        value = value * 10 + digit
    return value


@njit
def days_of(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01 in the Gregorian calendar."""
    if month <= 2:
        year -= 1
        month += 9
    else:
        month -= 3
    era = year // 400
    of_era = year - era * 400
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + (153 * month + 2) // 5 + day - 1 - 719468


@njit
def date_days(buf: Bytes, p: int) -> int:
    """The days of ``YYYY-MM-DD``; -1 << 40 for a date that is none."""
    year, month, day = digits_of(buf, p, p + 4), digits_of(buf, p + 5, p + 7), digits_of(buf, p + 8, p + 10)
    if month < 1 or month > 12 or day < 1 or day > 31 or year < 0:
        return -1 << 40
    if day > 28:
        longest = 31
        if month == 4 or month == 6 or month == 9 or month == 11:
            longest = 30
        elif month == 2:
            longest = 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
        if day > longest:
            return -1 << 40
    return days_of(year, month, day)


@njit
def clock_us(buf: Bytes, p: int, end: int) -> int:
    """The microseconds of ``[-]H…:MM:SS[.f…]``."""
    minus = buf[p] == MINUS
    if minus:
        p += 1
    colon = p
    while colon < end and buf[colon] != COLON:
        colon += 1
    us = (digits_of(buf, p, colon) * 3600 + digits_of(buf, colon + 1, colon + 3) * 60) * 1_000_000
    us += digits_of(buf, colon + 4, colon + 6) * 1_000_000
    at = colon + 7
    scale = np.int64(100_000)
    while at < end:
        us += (np.int64(buf[at]) - ZERO) * scale
        scale //= 10
        at += 1
    return -us if minus else us


@njit
def put_decimal(out: Bytes, at: int, buf: Bytes, p: int, size: int) -> int:
    """Writes the unscaled value of a decimal's text as the fewest bytes of its two's complement, big-endian, in base64:
    Debezium's ``precise``. The room is 128 bytes."""
    raw = at + 64
    used = np.int64(1)
    for i in range(32):
        out[raw + i] = np.uint8(0)
    minus = False
    for i in range(p, p + size):
        if buf[i] == MINUS:
            minus = True
        elif buf[i] != POINT:
            carry = np.int64(buf[i]) - ZERO
            k = 0
            while k < used or carry:
                value = np.int64(out[raw + 31 - k]) * 10 + carry
                out[raw + 31 - k] = np.uint8(value & 255)
                carry = value >> 8
                k += 1
            used = max(used, k)
    if minus:
        carry = np.int64(1)
        for k in range(32):
            value = (np.int64(out[raw + 31 - k]) ^ 255) + carry
            out[raw + 31 - k] = np.uint8(value & 255)
            carry = value >> 8
    start = 0
    while start < 31:
        head, sign = out[raw + start], out[raw + start + 1] >> 7
        if (head == 0 and sign == 0) or (head == 255 and sign == 1):
            start += 1
        else:
            break
    return put_base64(out, at, out, raw + start, 32 - start)


@njit
def room_of(buf: Bytes, code: int, p: int, size: int, a: int) -> int:
    """Bytes that a value needs at most."""
    if code == TEXT:
        return escaped_size(buf, p, size)
    if code in (BINARY, GEOMETRY):
        return 3 * size + 160
    if code in (ENUM, SET):
        return a + 8
    return size + 192


@njit
def put_value(
    out: Bytes, at: int, buf: Bytes, p: int, size: int, column: DefinedColumn, members: Longs, consts: Bytes
) -> int:
    """Writes a value's text as Debezium's value. Returns the offset behind it; -1 if the text is not of the type.

    ``column.a``: BITS: the bytes; ENUM, SET: the bytes of all members. ``column.b``: the first one among ``members``,
    followed by their number in the low 16 bits.
    """
    code = column.code
    if code == TEXT:
        return put_text(out, at, buf, p, size)
    if code == NUMBER:
        return put_const(out, at, buf, p, size)
    if code == YEAR:
        return put_signed(out, at, digits_of(buf, p, p + size))
    if code == BOOLEAN:
        return put_word(out, at, w.FALSE) if buf[p] == ZERO else put_word(out, at, w.TRUE)
    if code == DECIMAL:
        return put_decimal(out, at, buf, p, size)
    if code == BINARY:
        return put_binary(out, at, buf, p, size)
    if code in (BITS, ENUM, SET):
        value = np.uint64(0)
        for i in range(p, p + size):
            value = value * np.uint64(10) + np.uint64(np.int64(buf[i]) - ZERO)
        if code == BITS:
            for i in range(column.a):
                out[at + 64 + i] = np.uint8(value & np.uint64(255))
                value >>= np.uint64(8)
            return put_base64(out, at, out, at + 64, column.a)
        return put_members(out, at, value, code, column.b, members, consts)
    if code == GEOMETRY:
        return put_geometry(out, at, buf, p, size)
    return put_moment(out, at, buf, p, size, code)


@njit
def put_members(out: Bytes, at: int, value: np.uint64, code: int, b: int, members: Longs, consts: Bytes) -> int:
    """Writes the texts of an ENUM's or SET's members, which are escaped already."""
    first, count = b >> 16, b & 0xFFFF
    out[at] = np.uint8(QUOTE)
    at += 1
    if code == ENUM:
        number = np.int64(value)
        if number > count:
            return -1
        if number > 0:
            at = put_const(out, at, consts, members[first + number - 1, 0], members[first + number - 1, 1])
    else:
        if count < 64 and value >> np.uint64(count) != np.uint64(0):
            return -1
        some = False
        for i in range(count):
            if value >> np.uint64(i) & np.uint64(1):
                if some:
                    out[at] = np.uint8(COMMA)
                    at += 1
                at = put_const(out, at, consts, members[first + i, 0], members[first + i, 1])
                some = True
    out[at] = np.uint8(QUOTE)
    return at + 1


@njit
def put_geometry(out: Bytes, at: int, buf: Bytes, p: int, size: int) -> int:
    """Writes ``{"wkb": …, "srid": …}`` of a geometry as MySQL keeps it: 4 bytes of the SRID, then WKB."""
    raw = at + 2 * size + 100
    stop = latin_bytes(out, raw, buf, p, size)
    if stop - raw < 4:
        return -1
    srid = np.int64(0)
    for i in range(4):
        srid |= np.int64(out[raw + i]) << 8 * i
    at = put_base64(out, put_word(out, at, w.WKB), out, raw + 4, stop - raw - 4)
    at = put_word(out, at, w.SRID)
    at = put_signed(out, at, srid) if srid else put_null(out, at)
    out[at] = np.uint8(CLOSE_OBJECT)
    return at + 1


@njit
def put_moment(out: Bytes, at: int, buf: Bytes, p: int, size: int, code: int) -> int:
    """Writes a date or time; ``null`` for a date that is none."""
    if code == TIME:
        return put_signed(out, at, clock_us(buf, p, p + size)) if size >= 8 else -1
    if size < 10:
        return -1
    days = date_days(buf, p)
    if days == -1 << 40:
        return put_null(out, at)
    if code == DATE:
        return put_signed(out, at, days)
    if size < 19:
        return -1
    if code == INSTANT:
        out[at] = np.uint8(QUOTE)
        copy_bytes(out, at + 1, buf, p, size)
        out[at + 11] = np.uint8(_T)
        out[at + 1 + size] = np.uint8(_Z)
        out[at + 2 + size] = np.uint8(QUOTE)
        return at + 3 + size
    us = days * _DAY_S * 1_000_000 + clock_us(buf, p + 11, p + size)
    return put_signed(out, at, us // 1000 if code == MILLIS else us)
