"""The compiled rewriting of floating-point numbers into the form of Java's ``Double.toString``."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc.kernels.jit import njit
from cdc.kernels.texts import CAPITAL_E, MINUS, POINT, ZERO, read_digits

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]

MOST_BYTES = 32
"""Of one number's text."""


@njit
def put_java(text: Bytes, begin: int, end: int, digits: Bytes, out: Bytes, at: int) -> int:
    """Writes the number in ``text[begin:end]``, the shortest digits in any form. Returns the offset behind it.

    From 0.001 up to 10,000,000 it has a point and at least one digit on each side, otherwise one digit before the
    point and an exponent. ``digits`` is room for its digits.
    """
    negative, count, point = read_digits(text, begin, end, digits)
    if negative:
        out[at] = np.uint8(MINUS)
        at += 1
    if count == 0:
        out[at] = np.uint8(ZERO)
        out[at + 1] = np.uint8(POINT)
        out[at + 2] = np.uint8(ZERO)
        return at + 3
    plain = point > -3 and point <= 7
    whole = point if plain else 1
    if whole <= 0:
        out[at] = np.uint8(ZERO)
        at += 1
    for k in range(whole):
        out[at] = digits[k] if k < count else np.uint8(ZERO)
        at += 1
    out[at] = np.uint8(POINT)
    at += 1
    for _ in range(-whole):
        out[at] = np.uint8(ZERO)
        at += 1
    if count <= whole:
        out[at] = np.uint8(ZERO)
        at += 1
    for k in range(max(0, whole), count):
        out[at] = digits[k]
        at += 1
    if plain:
        return at
    exponent = point - 1
    out[at] = np.uint8(CAPITAL_E)
    at += 1
    if exponent < 0:
        out[at] = np.uint8(MINUS)
        at += 1
        exponent = -exponent
    if exponent >= 100:
        out[at] = np.uint8(ZERO + exponent // 100)
        at += 1
    if exponent >= 10:
        out[at] = np.uint8(ZERO + exponent // 10 % 10)
        at += 1
    out[at] = np.uint8(ZERO + exponent % 10)
    return at + 1


@njit
def put_javas(offsets: Ints, text: Bytes, digits: Bytes, out_offsets: Ints, out: Bytes) -> int:
    """Writes the numbers between ``offsets`` (n + 1) of ``text``. Returns the bytes written.

    ``out`` has room for MOST_BYTES of each number, ``digits`` for the digits of one.
    """
    at = np.int64(0)
    out_offsets[0] = 0
    for i in range(offsets.shape[0] - 1):
        if offsets[i + 1] > offsets[i]:
            at = put_java(text, np.int64(offsets[i]), np.int64(offsets[i + 1]), digits, out, at)
        out_offsets[i + 1] = at
    return at
