"""The bytes of characters that kernels write and look for, and texts that several kernels read and write."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc.kernels.jit import inlined
from cdc.kernels.memory import word

Bytes = npt.NDArray[np.uint8]

MINUS, PLUS, POINT, COLON, COMMA, SPACE, ZERO, NINE = b"-+.:, 09"
QUOTE, BACKSLASH, OPEN_LIST, CLOSE_LIST, OPEN_OBJECT, CLOSE_OBJECT = b'"\\[]{}'
LETTER_E, CAPITAL_E, LETTER_N, LETTER_U = b"eEnu"
PADDING = ord("=")
"""Fills up the last group of base64."""

HEX = word(b"0123456789abcdef")
_BASE64 = word(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")


@inlined
def put_base64_group(out: Bytes, at: int, raw: Bytes, p: int, left: int) -> int:
    """Writes the four characters of three bytes, of which ``left`` (1 or more) are there. Returns the offset behind
    them."""
    group = np.int64(raw[p]) << 16
    if left > 1:
        group |= np.int64(raw[p + 1]) << 8
    if left > 2:
        group |= np.int64(raw[p + 2])
    out[at] = _BASE64[group >> 18]
    out[at + 1] = _BASE64[group >> 12 & 63]
    out[at + 2] = _BASE64[group >> 6 & 63] if left > 1 else np.uint8(PADDING)
    out[at + 3] = _BASE64[group & 63] if left > 2 else np.uint8(PADDING)
    return at + 4


@inlined
def read_digits(text: Bytes, begin: int, end: int, digits: Bytes) -> tuple[bool, int, int]:
    """Reads the number ``text[begin:end]``, in any usual notation: whether it has a minus, how many digits were put
    into ``digits``, and how many of them, or zeros before them if it is negative, the decimal point has before it. The
    digits begin and end with another digit than zero; for zero there are none."""
    count = 0
    point = np.int64(0)
    exponent = np.int64(0)
    seen_point = False
    in_exponent = False
    negative = False
    negative_exponent = False
    for i in range(begin, end):
        byte = np.int64(text[i])
        if byte == MINUS:
            if in_exponent:
                negative_exponent = True
            else:
                negative = True
        elif byte == POINT:
            seen_point = True
        elif byte in (LETTER_E, CAPITAL_E):
            in_exponent = True
        elif byte == PLUS:
            continue
        elif in_exponent:
            exponent = exponent * 10 + byte - ZERO
        elif count > 0 or byte != ZERO:
            digits[count] = np.uint8(byte)
            count += 1
            if not seen_point:
                point += 1
        elif seen_point:
            point -= 1
    point += -exponent if negative_exponent else exponent
    while count > 0 and digits[count - 1] == ZERO:
        count -= 1
    return negative, count, point
