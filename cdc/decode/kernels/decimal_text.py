"""Packed decimals as text: DECIMAL columns that are too wide for Arrow's numbers, and decimals inside JSON.

Groups of nine digits (4 bytes, big-endian), the odd digits of either side in shorter groups at the outer ends. The
first bit is the sign, inverted; a negative number has all bits inverted.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc.binlog.jit import njit
from cdc.decode.kernels.single import decimal_size

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

_DIGIT_BYTES = np.array([0, 1, 1, 2, 2, 3, 3, 4, 4, 4], dtype=np.int64)
_POWERS = 10 ** np.arange(10, dtype=np.int64)


@njit
def put_decimal_text(buf: Bytes, p: int, precision: int, scale: int, out: Bytes, at: int, write: bool) -> int:
    """Write the decimal at ``p`` as SELECT prints it (``-0.50``); where the next byte goes, -1 for impossible digits.

    All its bytes (``decimal_size``) are inside ``buf``. Without ``write`` the text is only measured.
    """
    negative = buf[p] < 128
    flip = np.int64(0xFF) if negative else np.int64(0)
    first = np.int64(0x80)
    if negative:
        if write:
            out[at] = np.uint8(45)
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
                    out[at] = np.uint8(48)
                at += 1
            if scale == 0:
                return at
            if write:
                out[at] = np.uint8(46)
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
                out[i] = np.uint8(48 + rest % 10)
                rest //= 10
        at += size
        left -= digits


@njit
def decimal_texts(
    buf: Bytes,
    offsets: npt.NDArray[np.int32],
    nulls: npt.NDArray[np.bool_],
    precision: int,
    scale: int,
    out: Bytes,
    out_offsets: npt.NDArray[np.int32],
    write: bool,
) -> tuple[int, int]:
    """Every value of a column as text: values between ``offsets`` (rows + 1) of ``buf``.

    Without ``write`` the texts are only measured. Returns (bytes of text, -1), or (0, row) of the first value that has
    another size than its column's, or impossible digits.
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
