"""The second compiled pass: every value at its place in the Arrow buffers.

All columns share one output buffer; ``out16``, ``out32``, ``out64`` are views of it. A column's parts begin at
multiples of 64 bytes, as ``places`` says.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc.binlog.jit import inlined, njit
from cdc.binlog.memory import copy_bytes
from cdc.decode.kernels.constants import (
    BAD_MEMBER,
    BAD_VALUE,
    BIT64,
    BYTES,
    CUT,
    DAMAGED_DATE,
    DATE,
    DATETIME,
    DECIMAL,
    ENUM,
    ERR_CODE,
    ERR_EVENT,
    F32,
    F64,
    I8,
    I16,
    I24,
    I32,
    I64,
    LATIN1,
    NO_DATE,
    NO_ROOM,
    OK,
    OUT_LIMIT,
    OUT_OFFSETS,
    OUT_VALIDITY,
    OUT_VALUES,
    PADDED,
    SKIP,
    SPEC_A,
    SPEC_B,
    SPEC_KIND,
    SPEC_OUT,
    SPEC_PREFIX,
    SPEC_WIDTH,
    TIME,
    TIMESTAMP,
    U8,
    U16,
    U24,
    U32,
    U64,
    YEAR,
    ZERO_DATE,
)
from cdc.decode.kernels.rows import fault, prefix_value
from cdc.decode.kernels.scan import i64, u16, u24, u32
from cdc.decode.kernels.single import date_days, datetime_us, put_decimal, time_us, timestamp_us

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


@njit
def fill_rows(
    buf: Bytes,
    limit: int,
    row_at: Longs,
    spec: Longs,
    places: Longs,
    member_at: Longs,
    members: Bytes,
    latin1: Bytes,
    out8: Bytes,
    out16: npt.NDArray[np.int16],
    out32: npt.NDArray[np.int32],
    out64: Longs,
    cursor: Longs,
    null_dates: Longs,
    err: Longs,
) -> int:
    """Second pass: write the rows whose images begin at ``row_at`` (-1: no row, all columns null).

    ``limit``: where the last event ends; no value may reach beyond. ``cursor``: for each column of texts, where its
    next bytes go. ``null_dates`` counts for each column the dates that became null. The bitmaps come filled with
    ones, and the first offset of each column of texts is zero. Returns OK or the fault, which is noted in ``err``
    with the row in the place of the event.
    """
    columns = spec.shape[0]
    for row in range(row_at.shape[0]):
        nulls = row_at[row]
        p = nulls + ((columns + 7) >> 3)
        if nulls >= 0 and p > limit:
            fault(err, CUT, 0, nulls)
        for c in range(columns):
            kind = spec[c, SPEC_KIND]
            base = places[c, OUT_VALUES]
            if nulls < 0 or buf[nulls + (c >> 3)] >> (c & 7) & 1:
                if kind != SKIP:
                    put_null(out8, places[c, OUT_VALIDITY], base, spec[c, SPEC_OUT], row)
                    if kind >= BYTES:
                        out32[(places[c, OUT_OFFSETS] >> 2) + row + 1] = cursor[c] - base
                continue
            size = spec[c, SPEC_WIDTH]
            if size == 0:
                prefix = spec[c, SPEC_PREFIX]
                if p + prefix > limit:
                    fault(err, CUT, c, p)
                    break
                size = prefix_value(buf, p, prefix)
                p += prefix
            if size > limit - p:
                fault(err, CUT, c, p)
                break
            if kind == SKIP:
                p += size
                continue
            if kind <= F64 or kind == YEAR:
                put_number(buf, p, kind, base, row, out8, out16, out32, out64)
            elif kind <= BIT64:
                put_bits(buf, p, size, kind == BIT64, base, row, out64)
            elif kind == DECIMAL:
                if not put_decimal(buf, p, spec[c, SPEC_A], spec[c, SPEC_B], out64, (base >> 3) + 2 * row):
                    fault(err, BAD_VALUE, c, p)
                    break
            elif kind <= TIME:
                if kind == DATE:
                    value = date_days(buf, p)
                elif kind == DATETIME:
                    value = datetime_us(buf, p, spec[c, SPEC_A])
                elif kind == TIMESTAMP:
                    value = timestamp_us(buf, p, spec[c, SPEC_A])
                else:
                    value = time_us(buf, p, spec[c, SPEC_A])
                if value <= NO_DATE:
                    if value == DAMAGED_DATE:
                        fault(err, BAD_VALUE, c, p)
                        break
                    if spec[c, SPEC_B] == 1:
                        fault(err, ZERO_DATE, c, p)
                        break
                    put_null(out8, places[c, OUT_VALIDITY], base, spec[c, SPEC_OUT], row)
                    null_dates[c] += 1
                elif kind == DATE:
                    out32[(base >> 2) + row] = value
                else:
                    out64[(base >> 3) + row] = value
            else:
                at = cursor[c]
                room = places[c, OUT_LIMIT] - at
                if kind == BYTES:
                    if size > room:
                        fault(err, NO_ROOM, c, p)
                        break
                    copy_bytes(out8, at, buf, p, size)
                    at += size
                elif kind == ENUM:
                    member = prefix_value(buf, p, size)
                    if member > spec[c, SPEC_A]:
                        fault(err, BAD_MEMBER, c, p)
                        break
                    begin = member_at[spec[c, SPEC_B] + member]
                    length = member_at[spec[c, SPEC_B] + member + 1] - begin
                    if length > room:
                        fault(err, NO_ROOM, c, p)
                        break
                    copy_bytes(out8, at, members, begin, length)
                    at += length
                elif kind == PADDED:
                    if size > spec[c, SPEC_A] or spec[c, SPEC_A] > room:
                        fault(err, NO_ROOM, c, p)
                        break
                    copy_bytes(out8, at, buf, p, size)
                    for i in range(size, spec[c, SPEC_A]):
                        out8[at + i] = 0
                    at += spec[c, SPEC_A]
                elif kind == LATIN1:
                    if 3 * size > room:  # the exact need only where it may matter
                        need = np.int64(0)
                        for i in range(size):
                            need += latin1[buf[p + i], 3]
                        if need > room:
                            fault(err, NO_ROOM, c, p)
                            break
                    at = put_latin1(buf, p, size, latin1, out8, at)
                cursor[c] = at
                out32[(places[c, OUT_OFFSETS] >> 2) + row + 1] = at - base
            p += size
        if err[ERR_CODE] != OK:
            err[ERR_EVENT] = row
            return int(err[ERR_CODE])
    return OK
