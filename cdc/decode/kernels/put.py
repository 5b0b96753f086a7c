"""Compiled writers of single values into Arrow buffers.

All columns share one output buffer; ``out16``, ``out32``, ``out64`` are views of it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc.binlog.jit import inlined
from cdc.decode.kernels.constants import F32, F64, I8, I16, I24, I32, I64, U8, U16, U24, U32, U64, YEAR
from cdc.decode.kernels.scan import i64, u16, u24, u32

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]


@inlined
def signed(value: int, bits: int) -> int:
    """Two's complement of so many bits."""
    return value - (1 << bits) if value >> (bits - 1) else value


@inlined
def clear_bit(out: Bytes, base: int, row: int) -> None:
    """Mark a row as null in the validity bitmap at ``base``."""
    out[base + (row >> 3)] &= np.uint8(255 ^ (1 << (row & 7)))


@inlined
def put_null(out: Bytes, validity: int, values: int, width: int, row: int) -> None:
    """Mark a row as null, and leave nothing of old memory in its place."""
    clear_bit(out, validity, row)
    for i in range(values + row * width, values + (row + 1) * width):
        out[i] = 0


@inlined
def put_number(
    buf: Bytes,
    p: int,
    kind: int,
    base: int,
    row: int,
    out8: Bytes,
    out16: npt.NDArray[np.int16],
    out32: npt.NDArray[np.int32],
    out64: Longs,
) -> None:
    """Write an integer, FLOAT or DOUBLE; ``base`` is where the column's values begin."""
    if kind == I32:
        out32[(base >> 2) + row] = signed(u32(buf, p), 32)
    elif kind == I64:
        out64[(base >> 3) + row] = i64(buf, p)
    elif kind in (I8, F32):
        for i in range(1 if kind == I8 else 4):
            out8[base + (row if kind == I8 else 4 * row) + i] = buf[p + i]
    elif kind == U8:
        out16[(base >> 1) + row] = np.int16(buf[p])
    elif kind == I16:
        out16[(base >> 1) + row] = signed(u16(buf, p), 16)
    elif kind == U16:
        out32[(base >> 2) + row] = u16(buf, p)
    elif kind == I24:
        out32[(base >> 2) + row] = signed(u24(buf, p), 24)
    elif kind == U24:
        out32[(base >> 2) + row] = u24(buf, p)
    elif kind == U32:
        out64[(base >> 3) + row] = u32(buf, p)
    elif kind == U64:
        out64[(base >> 3) + 2 * row] = i64(buf, p)
        out64[(base >> 3) + 2 * row + 1] = 0
    elif kind == F64:
        out64[(base >> 3) + row] = i64(buf, p)
    elif kind == YEAR:
        out16[(base >> 1) + row] = np.int16(1900 + np.int64(buf[p])) if buf[p] != 0 else np.int16(0)


@inlined
def put_bits(buf: Bytes, p: int, size: int, wide: bool, base: int, row: int, out64: Longs) -> None:
    """Write a BIT of ``size`` bytes, which is big-endian; ``wide``: as a decimal128 without a sign."""
    value = np.int64(0)
    for i in range(size):
        value = value << 8 | np.int64(buf[p + i])
    if wide:
        out64[(base >> 3) + 2 * row] = value
        out64[(base >> 3) + 2 * row + 1] = 0
    else:
        out64[(base >> 3) + row] = value


@inlined
def put_latin1(buf: Bytes, p: int, size: int, latin1: Bytes, out: Bytes, at: int) -> int:
    """Write latin1 text as UTF-8; where the next one begins."""
    for i in range(size):
        byte = buf[p + i]
        if byte < 128:
            out[at] = byte
            at += 1
        else:
            for k in range(latin1[byte, 3]):
                out[at] = latin1[byte, k]
                at += 1
    return at
