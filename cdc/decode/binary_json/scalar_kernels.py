"""The compiled writers of single values of a JSON document as text, and the numbers of JSON's binary form.

Every function but those of doubles takes ``write``: without it the text is only measured. Each returns the offset
behind the text, or -1 for bytes that no server writes. Source: MySQL's ``json_binary.h``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc.decode.kernels.values import decimal_size, put_decimal_text
from cdc.kernels.jit import inlined, njit
from cdc.kernels.memory import copy_bytes, i64
from cdc.kernels.texts import (
    BACKSLASH,
    COLON,
    HEX,
    LETTER_E,
    LETTER_N,
    LETTER_U,
    MINUS,
    POINT,
    QUOTE,
    SPACE,
    ZERO,
    put_base64_group,
    read_digits,
)

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]

SMALL_OBJECT, LARGE_OBJECT, SMALL_ARRAY, LARGE_ARRAY = 0, 1, 2, 3
LITERAL, INT16, UINT16, INT32, UINT32, INT64, UINT64, DOUBLE, STRING = 4, 5, 6, 7, 8, 9, 10, 11, 12
OPAQUE = 15

MAX_DEPTH = 100
"""Levels of nested arrays and objects; the server neither stores nor prints more."""

# Types of opaque values that are printed in a form of their own.
TYPE_TIMESTAMP, TYPE_DATE, TYPE_TIME, TYPE_DATETIME, TYPE_DECIMAL = 7, 10, 11, 12, 246

# Faults of a document.
CUT, BAD_TYPE, BAD_SCALAR, TOO_DEEP, OVERLAP = 1, 2, 3, 4, 5

ERR_CODE, ERR_ROW, ERR_POS = 0, 1, 2
ERR_SIZE = 3


def _escapes() -> Bytes:
    """(256,): the letter behind the backslash for each byte; 0 for a byte that is not escaped, ``u`` for
    ``\\u00xx``."""
    table = np.zeros(256, dtype=np.uint8)
    table[:32] = ord("u")
    for byte, letter in (("\b", "b"), ("\t", "t"), ("\n", "n"), ("\f", "f"), ("\r", "r"), ('"', '"'), ("\\", "\\")):
        table[ord(byte)] = ord(letter)
    return table


_ESCAPES = _escapes()
_WORDS = np.frombuffer(b"nulltruefalse", dtype=np.uint8).copy()
_POWERS = 10 ** np.arange(19, dtype=np.int64)
_TEN_19 = -8446744073709551616
"""10**19, as the signed number with the same 64 bits."""
_HEAD = np.frombuffer(b'"base64:type', dtype=np.uint8).copy()
_SHORT = 32
"""Texts of this size and more are copied faster by a call than by a loop, in bytes."""


@inlined
def put_word(word: int, out: Bytes, at: int, write: bool) -> int:
    """Writes null (0), true (1) or false (2)."""
    if word < 0 or word > 2:
        return -1
    size = 5 if word == 2 else 4
    if write:
        for i in range(size):
            out[at + i] = _WORDS[4 * word + i]
    return at + size


@inlined
def put_digits(value: int, size: int, out: Bytes, at: int, write: bool) -> int:
    """Writes a number with ``size`` digits, leading zeros included."""
    if write:
        for i in range(at + size - 1, at - 1, -1):
            out[i] = np.uint8(ZERO + value % 10)
            value //= 10
    return at + size


@inlined
def put_unsigned(value: int, out: Bytes, at: int, write: bool) -> int:
    """Writes the unsigned number that has the same 64 bits."""
    if value < 0:
        size = 20 if value >= _TEN_19 else 19
        if write:
            tens = (value >> 1 & 0x7FFFFFFFFFFFFFFF) // 5
            last_digit = (value & 0xF) - (tens * 10 & 0xF)  # the difference is below ten, so four bits tell it
            out[at + size - 1] = np.uint8(ZERO + (last_digit & 0xF))
            put_digits(tens, size - 1, out, at, write)
        return at + size
    size = 1
    while size < 19 and value >= _POWERS[size]:
        size += 1
    return put_digits(value, size, out, at, write)


@njit
def put_signed(value: int, out: Bytes, at: int, write: bool) -> int:
    """Writes a signed 64-bit number."""
    if value >= 0:
        return put_unsigned(value, out, at, write)
    if write:
        out[at] = np.uint8(MINUS)
    return put_unsigned(~value + 1, out, at + 1, write)


@inlined
def put_quoted(buf: Bytes, p: int, size: int, out: Bytes, at: int, write: bool) -> int:
    """Writes text in quotes, with escapes if it needs them."""
    special = False
    for i in range(p, p + size):  # without an early end, so that it is compiled into wide instructions
        special |= (buf[i] < 32) | (buf[i] == QUOTE) | (buf[i] == BACKSLASH)
    if not special:
        if write:
            out[at] = np.uint8(QUOTE)
            if size < _SHORT:
                for i in range(size):
                    out[at + 1 + i] = buf[p + i]
            else:
                copy_bytes(out, at + 1, buf, p, size)
            out[at + 1 + size] = np.uint8(QUOTE)
        return at + size + 2
    return put_escaped(buf, p, size, out, at, write)


@njit
def put_escaped(buf: Bytes, p: int, size: int, out: Bytes, at: int, write: bool) -> int:
    """Writes text in quotes, byte by byte with escapes."""
    if write:
        out[at] = np.uint8(QUOTE)
    at += 1
    for i in range(p, p + size):
        byte = buf[i]
        letter = _ESCAPES[byte]
        if letter == 0:
            if write:
                out[at] = byte
            at += 1
            continue
        if write:
            out[at] = np.uint8(BACKSLASH)
            out[at + 1] = letter
        at += 2
        if letter == LETTER_U:
            if write:
                out[at] = np.uint8(ZERO)
                out[at + 1] = np.uint8(ZERO)
                out[at + 2] = HEX[byte >> 4]
                out[at + 3] = HEX[byte & 15]
            at += 4
    if write:
        out[at] = np.uint8(QUOTE)
    return at + 1


@njit
def put_two(value: int, mark: int, out: Bytes, at: int, write: bool) -> int:
    """Writes two digits and the character ``mark``."""
    if write:
        out[at] = np.uint8(ZERO + value // 10)
        out[at + 1] = np.uint8(ZERO + value % 10)
        out[at + 2] = np.uint8(mark)
    return at + 3


@njit
def put_clock(hour: int, low: int, out: Bytes, at: int, write: bool) -> int:
    """Writes ``hour`` (at least two digits), and minute, second and fraction from the low bits of a packed time."""
    minute = low >> 30 & 63
    second = low >> 24 & 63
    fraction = low & 0xFFFFFF
    if minute > 59 or second > 59 or fraction > 999_999:
        return -1
    if hour > 99:
        at = put_digits(hour // 100, 1, out, at, write)
    at = put_two(hour % 100, COLON, out, at, write)
    at = put_two(minute, COLON, out, at, write)
    at = put_two(second, POINT, out, at, write)
    return put_digits(fraction, 6, out, at, write)


@njit
def put_temporal(kind: int, value: int, out: Bytes, at: int, write: bool) -> int:
    """Writes a packed DATE, TIME, DATETIME or TIMESTAMP (MySQL's ``my_time.cc``) in quotes."""
    if write:
        out[at] = np.uint8(QUOTE)
    at += 1
    if kind == TYPE_TIME:
        if value < 0:
            value = -value
            if write:
                out[at] = np.uint8(MINUS)
            at += 1
        hour = value >> 36
        if hour < 0 or hour > 838:
            return -1
        at = put_clock(hour, value, out, at, write)
    else:
        year_month = value >> 46
        day = value >> 41 & 31
        hour = value >> 36 & 31
        year = year_month // 13
        if value < 0 or year > 9999 or hour > 23:
            return -1
        at = put_digits(year, 4, out, at, write)
        if write:
            out[at] = np.uint8(MINUS)
        at = put_two(year_month % 13, MINUS, out, at + 1, write)
        at = put_digits(day, 2, out, at, write)
        if kind != TYPE_DATE:
            if write:
                out[at] = np.uint8(SPACE)
            at = put_clock(hour, value, out, at + 1, write)
    if at < 0:
        return -1
    if write:
        out[at] = np.uint8(QUOTE)
    return at + 1


@njit
def put_base64(kind: int, buf: Bytes, p: int, size: int, out: Bytes, at: int, write: bool) -> int:
    """Writes bytes as ``"base64:type252:…"``, in lines of 76 characters with escaped line ends."""
    lines = (size - 1) // 57 if size > 0 else 0
    if not write:
        digits = 3 if kind > 99 else (2 if kind > 9 else 1)
        return at + _HEAD.shape[0] + digits + 2 + 4 * ((size + 2) // 3) + 2 * lines
    for i in range(_HEAD.shape[0]):
        out[at + i] = _HEAD[i]
    at = put_unsigned(kind, out, at + _HEAD.shape[0], write)
    out[at] = np.uint8(COLON)
    at += 1
    for i in range(0, size, 3):
        if i > 0 and i % 57 == 0:
            out[at] = np.uint8(BACKSLASH)
            out[at + 1] = np.uint8(LETTER_N)
            at += 2
        at = put_base64_group(out, at, buf, p + i, size - i)
    out[at] = np.uint8(QUOTE)
    return at + 1


@njit
def put_opaque(kind: int, buf: Bytes, p: int, size: int, out: Bytes, at: int, write: bool) -> int:
    """Writes a value of one of the server's other types, of ``size`` bytes at ``p``."""
    if kind == TYPE_DECIMAL:
        if size < 3:
            return -1
        precision = np.int64(buf[p])
        scale = np.int64(buf[p + 1])
        # Calculations leave decimals with more digits than a column may have, of nine groups of nine.
        if precision < 1 or precision > 81 or scale > precision:
            return -1
        if size - 2 != decimal_size(precision, scale):
            return -1
        return put_decimal_text(buf, p + 2, precision, scale, out, at, write)
    if kind in (TYPE_DATE, TYPE_TIME, TYPE_DATETIME, TYPE_TIMESTAMP):
        if size != 8:
            return -1
        return put_temporal(kind, i64(buf, p), out, at, write)
    return put_base64(kind, buf, p, size, out, at, write)


# ---------------------------------------------------------------- floating-point numbers

# The layout is the server's (``my_gcvt``); the shortest digits that mean the same number come from another printer. The
# server writes an exponent, without a plus sign, for whole numbers of more than 15 digits and for numbers with more
# than 14 zeros behind the decimal point, and ``.0`` behind a whole number without an exponent.

_MOST_BEFORE = 15
_MOST_ZEROS = 14
MAX_DOUBLE_BYTES = 34
"""The longest text of one number: a sign, ``0.``, zeros, and 17 digits."""


@inlined
def put_zeros(out: Bytes, at: int, count: int) -> int:
    """Writes zeros. Returns the offset behind them."""
    for _ in range(count):
        out[at] = np.uint8(ZERO)
        at += 1
    return at


@inlined
def put_double(text: Bytes, begin: int, end: int, digits: Bytes, out: Bytes, at: int) -> int:
    """Writes the number ``text[begin:end]``, which may be in any usual notation. Returns the offset behind it."""
    negative, count, point = read_digits(text, begin, end, digits)
    if negative:
        out[at] = np.uint8(MINUS)
        at += 1
    if count == 0:
        out[at] = np.uint8(ZERO)
        out[at + 1] = np.uint8(POINT)
        out[at + 2] = np.uint8(ZERO)
        return at + 3
    if (point > _MOST_BEFORE and count <= point) or point < -_MOST_ZEROS:
        for i in range(count):
            out[at] = digits[i]
            at += 1
            if i == 0 and count > 1:
                out[at] = np.uint8(POINT)
                at += 1
        power = point - 1
        out[at] = np.uint8(LETTER_E)
        at += 1
        if power < 0:
            out[at] = np.uint8(MINUS)
            at += 1
            power = -power
        size = 3 if power > 99 else (2 if power > 9 else 1)
        for i in range(at + size - 1, at - 1, -1):
            out[i] = np.uint8(ZERO + power % 10)
            power //= 10
        return at + size
    if point <= 0:
        out[at] = np.uint8(ZERO)
        out[at + 1] = np.uint8(POINT)
        at = put_zeros(out, at + 2, -point)
        for i in range(count):
            out[at + i] = digits[i]
        return at + count
    for i in range(min(point, count)):
        out[at] = digits[i]
        at += 1
    at = put_zeros(out, at, point - count)
    out[at] = np.uint8(POINT)
    at += 1
    if count <= point:
        return put_zeros(out, at, 1)
    for i in range(point, count):
        out[at] = digits[i]
        at += 1
    return at


@njit
def put_doubles(offsets: Ints, text: Bytes, digits: Bytes, out_offsets: Ints, out: Bytes) -> int:
    """Writes the numbers between ``offsets`` (n + 1) of ``text`` in the server's layout and returns the bytes written.

    ``digits`` is room for the digits of one given number, ``out`` for MAX_DOUBLE_BYTES of each number.
    """
    at = np.int64(0)
    out_offsets[0] = 0
    for i in range(offsets.shape[0] - 1):
        at = put_double(text, np.int64(offsets[i]), np.int64(offsets[i + 1]), digits, out, at)
        out_offsets[i + 1] = at
    return at
