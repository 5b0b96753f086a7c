"""Floating-point numbers as the server lays them out, from the shortest digits that another printer found.

The server (``my_gcvt``) takes the shortest digits that mean the same number, too. It writes an exponent, without a plus
sign, for whole numbers of more than 15 digits and for those with more than 14 zeros behind the decimal point; and
``.0`` behind a whole number without an exponent.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc.binlog.jit import inlined, njit

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]

_MOST_BEFORE = 15
_MOST_ZEROS = 14
MAX_DOUBLE_BYTES = 34
"""Of one number's text: a sign, ``0.``, zeros, and 17 digits."""


@inlined
def put_zeros(out: Bytes, at: int, count: int) -> int:
    """So many zeros."""
    for _ in range(count):
        out[at] = np.uint8(48)
        at += 1
    return at


@inlined
def put_double(text: Bytes, begin: int, end: int, digits: Bytes, out: Bytes, at: int) -> int:
    """Write the number ``text[begin:end]``, in any usual notation; where the next byte goes."""
    count = 0
    point = np.int64(0)  # the decimal point stands behind so many digits
    exponent = np.int64(0)
    seen_point = False
    in_exponent = False
    negative_exponent = False
    for i in range(begin, end):
        byte = np.int64(text[i])
        if byte == 45:
            if in_exponent:
                negative_exponent = True
            else:
                out[at] = np.uint8(45)
                at += 1
        elif byte == 46:
            seen_point = True
        elif byte == 101 or byte == 69:
            in_exponent = True
        elif byte == 43:
            continue
        elif in_exponent:
            exponent = exponent * 10 + byte - 48
        else:
            if count > 0 or byte != 48:
                digits[count] = np.uint8(byte)
                count += 1
                if not seen_point:
                    point += 1
            elif seen_point:
                point -= 1
    point += -exponent if negative_exponent else exponent
    while count > 0 and digits[count - 1] == 48:
        count -= 1
    if count == 0:
        out[at] = np.uint8(48)
        out[at + 1] = np.uint8(46)
        out[at + 2] = np.uint8(48)
        return at + 3
    if (point > _MOST_BEFORE and count <= point) or point < -_MOST_ZEROS:
        for i in range(count):
            out[at] = digits[i]
            at += 1
            if i == 0 and count > 1:
                out[at] = np.uint8(46)
                at += 1
        power = point - 1
        out[at] = np.uint8(101)
        at += 1
        if power < 0:
            out[at] = np.uint8(45)
            at += 1
            power = -power
        size = 3 if power > 99 else (2 if power > 9 else 1)
        for i in range(at + size - 1, at - 1, -1):
            out[i] = np.uint8(48 + power % 10)
            power //= 10
        return at + size
    if point <= 0:
        out[at] = np.uint8(48)
        out[at + 1] = np.uint8(46)
        at = put_zeros(out, at + 2, -point)
        for i in range(count):
            out[at + i] = digits[i]
        return at + count
    for i in range(min(point, count)):
        out[at] = digits[i]
        at += 1
    at = put_zeros(out, at, point - count)
    out[at] = np.uint8(46)
    at += 1
    if count <= point:
        return put_zeros(out, at, 1)
    for i in range(point, count):
        out[at] = digits[i]
        at += 1
    return at


@njit
def put_doubles(offsets: Ints, text: Bytes, digits: Bytes, out_offsets: Ints, out: Bytes) -> int:
    """Lay out the numbers between ``offsets`` (n + 1) of ``text`` anew; returns the bytes written.

    ``digits`` is room for the digits of one number as it is given, ``out`` for MAX_DOUBLE_BYTES of each.
    """
    at = np.int64(0)
    out_offsets[0] = 0
    for i in range(offsets.shape[0] - 1):
        at = put_double(text, np.int64(offsets[i]), np.int64(offsets[i + 1]), digits, out, at)
        out_offsets[i + 1] = at
    return at
