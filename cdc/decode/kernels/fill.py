"""The second compiled pass: writes every value into the Arrow buffers.

All columns share one output buffer; a column's parts begin at multiples of 64 bytes, at the offsets in
``OutputArrays.places``. Rows are written in blocks, and each block column by column: the kind of a column is decided
once for a block, its values go to consecutive places, and the block's bytes stay in the processor's cache while all
columns are read from them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cdc.decode.kernels import constants as k
from cdc.decode.kernels.constants import ColumnArrays
from cdc.decode.kernels.values import date_days, datetime_us, put_decimal, time_us, timestamp_us
from cdc.kernels.jit import inlined, njit
from cdc.kernels.memory import copy_bytes, i64, prefix_value, u16, u24, u32, value_bounds

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

BLOCK_ROWS = 128


class RowsToFill(NamedTuple):
    """The rows to write."""

    buf: Bytes
    limit: int
    """End of the last event; no value may reach beyond it."""
    at: Longs
    """(rows,): offset of each row image; -1 for a row of nulls."""
    block_at: Longs
    """(BLOCK_ROWS,): room for the offsets of a block's next values."""


class OutputArrays(NamedTuple):
    """The output buffer as uint8 and, from the same first byte, as wider integers; and what describes it."""

    bytes: Bytes
    shorts: npt.NDArray[np.int16]
    ints: npt.NDArray[np.int32]
    longs: Longs
    places: Longs
    """(columns, OUT_SIZE): offsets of each column's parts, in bytes. Validity bitmaps come filled with ones, and the
    first offset of each column of texts is zero."""
    text_at: Longs
    """(columns,): where the next bytes of each column of texts go."""
    null_dates: Longs
    """(columns,): counts the dates that became null."""
    err: Longs
    """(ERR_SIZE,): the first fault, with the row in the place of the event."""


# ---------------------------------------------------------------- single values


@inlined
def is_null(buf: Bytes, nulls: int, c: int) -> bool:
    """Whether a column is null in the row whose bitmap is at ``nulls`` (-1: a row of nulls)."""
    return bool(nulls < 0 or buf[nulls + (c >> 3)] >> (c & 7) & 1)


@inlined
def refuse(err: Longs, code: int, c: int, p: int, row: int) -> int:
    """Notes a fault, if none is noted yet, and returns its code."""
    if err[k.ERR_CODE] == k.OK:
        err[k.ERR_CODE] = code
        err[k.ERR_COLUMN] = c
        err[k.ERR_POS] = p
    err[k.ERR_EVENT] = row
    return code


@inlined
def signed(value: int, bits: int) -> int:
    """The two's complement number of this many bits."""
    return value - (1 << bits) if value >> (bits - 1) else value


@inlined
def put_null(out: Bytes, validity: int, values: int, width: int, row: int) -> None:
    """Clears a row's bit in the validity bitmap, and its value, so that no old memory is left in its place."""
    out[validity + (row >> 3)] &= np.uint8(255 ^ (1 << (row & 7)))
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
    """Writes an integer, FLOAT, DOUBLE or YEAR; ``base`` is the offset of the column's values. The output's views are
    separate arguments, because this is compiled into a loop over values."""
    if kind == k.I32:
        out32[(base >> 2) + row] = signed(u32(buf, p), 32)
    elif kind == k.I64:
        out64[(base >> 3) + row] = i64(buf, p)
    elif kind in (k.I8, k.F32):
        for i in range(1 if kind == k.I8 else 4):
            out8[base + (row if kind == k.I8 else 4 * row) + i] = buf[p + i]
    elif kind == k.U8:
        out16[(base >> 1) + row] = np.int16(buf[p])
    elif kind == k.I16:
        out16[(base >> 1) + row] = signed(u16(buf, p), 16)
    elif kind == k.U16:
        out32[(base >> 2) + row] = u16(buf, p)
    elif kind == k.I24:
        out32[(base >> 2) + row] = signed(u24(buf, p), 24)
    elif kind == k.U24:
        out32[(base >> 2) + row] = u24(buf, p)
    elif kind == k.U32:
        out64[(base >> 3) + row] = u32(buf, p)
    elif kind == k.U64:
        out64[(base >> 3) + 2 * row] = i64(buf, p)
        out64[(base >> 3) + 2 * row + 1] = 0
    elif kind == k.F64:
        out64[(base >> 3) + row] = i64(buf, p)
    elif kind == k.YEAR:
        out16[(base >> 1) + row] = np.int16(1900 + np.int64(buf[p])) if buf[p] != 0 else np.int16(0)


@inlined
def put_bits(buf: Bytes, p: int, size: int, wide: bool, base: int, row: int, out64: Longs) -> None:
    """Writes a BIT of ``size`` bytes, which is big-endian; ``wide`` writes it as a decimal128 without a sign."""
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
    """Writes latin1 text as UTF-8. Returns the offset behind it."""
    for i in range(size):
        byte = buf[p + i]
        if byte < 128:
            out[at] = byte
            at += 1
        else:
            for unit in range(latin1[byte, 3]):
                out[at] = latin1[byte, unit]
                at += 1
    return at


# ---------------------------------------------------------------- one column of a block of rows, from start to stop

# The arrays of the named tuples are separate arguments here: passing the tuples on makes the whole pass 6 % slower.


@njit
def skip_column(
    buf: Bytes, limit: int, row_at: Longs, start: int, stop: int, c: int, spec: Longs, at: Longs, err: Longs
) -> int:
    """Steps over a column's values."""
    width, prefix = spec[c, k.SPEC_WIDTH], spec[c, k.SPEC_PREFIX]
    for row in range(start, stop):
        if is_null(buf, row_at[row], c):
            continue
        p, size = value_bounds(buf, at[row - start], limit, width, prefix)
        if size < 0:
            return refuse(err, k.CUT, c, p, row)
        at[row - start] = p + size
    return k.OK


@njit
def fill_numbers(
    buf: Bytes,
    limit: int,
    row_at: Longs,
    start: int,
    stop: int,
    c: int,
    spec: Longs,
    places: Longs,
    at: Longs,
    out8: Bytes,
    out16: npt.NDArray[np.int16],
    out32: npt.NDArray[np.int32],
    out64: Longs,
    err: Longs,
) -> int:
    """Writes integers, FLOAT, DOUBLE, YEAR and BIT."""
    kind, width, out_width = spec[c, k.SPEC_KIND], spec[c, k.SPEC_WIDTH], spec[c, k.SPEC_OUT]
    base, validity = places[c, k.OUT_VALUES], places[c, k.OUT_VALIDITY]
    bits = kind > k.F64 and kind <= k.BIT64
    for row in range(start, stop):
        if is_null(buf, row_at[row], c):
            put_null(out8, validity, base, out_width, row)
            continue
        p = at[row - start]
        if width > limit - p:
            return refuse(err, k.CUT, c, p, row)
        if bits:
            put_bits(buf, p, width, kind == k.BIT64, base, row, out64)
        else:
            put_number(buf, p, kind, base, row, out8, out16, out32, out64)
        at[row - start] = p + width
    return k.OK


@njit
def fill_decimals(
    buf: Bytes,
    limit: int,
    row_at: Longs,
    start: int,
    stop: int,
    c: int,
    spec: Longs,
    places: Longs,
    at: Longs,
    out8: Bytes,
    out64: Longs,
    err: Longs,
) -> int:
    """Writes DECIMAL of at most 38 digits."""
    width, precision, scale = spec[c, k.SPEC_WIDTH], spec[c, k.SPEC_A], spec[c, k.SPEC_B]
    base, validity = places[c, k.OUT_VALUES], places[c, k.OUT_VALIDITY]
    for row in range(start, stop):
        if is_null(buf, row_at[row], c):
            put_null(out8, validity, base, spec[c, k.SPEC_OUT], row)
            continue
        p = at[row - start]
        if width > limit - p:
            return refuse(err, k.CUT, c, p, row)
        if not put_decimal(buf, p, precision, scale, out64, (base >> 3) + 2 * row):
            return refuse(err, k.BAD_VALUE, c, p, row)
        at[row - start] = p + width
    return k.OK


@njit
def fill_times(
    buf: Bytes,
    limit: int,
    row_at: Longs,
    start: int,
    stop: int,
    c: int,
    spec: Longs,
    places: Longs,
    at: Longs,
    out8: Bytes,
    out32: npt.NDArray[np.int32],
    out64: Longs,
    null_dates: Longs,
    err: Longs,
) -> int:
    """Writes DATE, DATETIME, TIMESTAMP and TIME."""
    kind, width, fraction = spec[c, k.SPEC_KIND], spec[c, k.SPEC_WIDTH], spec[c, k.SPEC_A]
    base, validity = places[c, k.OUT_VALUES], places[c, k.OUT_VALIDITY]
    for row in range(start, stop):
        if is_null(buf, row_at[row], c):
            put_null(out8, validity, base, spec[c, k.SPEC_OUT], row)
            continue
        p = at[row - start]
        if width > limit - p:
            return refuse(err, k.CUT, c, p, row)
        if kind == k.DATE:
            value = date_days(buf, p)
        elif kind == k.DATETIME:
            value = datetime_us(buf, p, fraction)
        elif kind == k.TIMESTAMP:
            value = timestamp_us(buf, p, fraction)
        else:
            value = time_us(buf, p, fraction)
        at[row - start] = p + width
        if value > k.NO_DATE:
            if kind == k.DATE:
                out32[(base >> 2) + row] = value
            else:
                out64[(base >> 3) + row] = value
            continue
        if value == k.DAMAGED_DATE:
            return refuse(err, k.BAD_VALUE, c, p, row)
        if spec[c, k.SPEC_B] == 1:
            return refuse(err, k.ZERO_DATE, c, p, row)
        put_null(out8, validity, base, spec[c, k.SPEC_OUT], row)
        null_dates[c] += 1
    return k.OK


@njit
def fill_texts(
    buf: Bytes,
    limit: int,
    row_at: Longs,
    start: int,
    stop: int,
    c: int,
    spec: Longs,
    places: Longs,
    at: Longs,
    member_at: Longs,
    members: Bytes,
    latin1: Bytes,
    out8: Bytes,
    out32: npt.NDArray[np.int32],
    cursor: Longs,
    err: Longs,
) -> int:
    """Appends texts and bytes to those of the column, and writes their offsets."""
    kind, width, prefix, most = spec[c, k.SPEC_KIND], spec[c, k.SPEC_WIDTH], spec[c, k.SPEC_PREFIX], spec[c, k.SPEC_A]
    base, offsets, end = places[c, k.OUT_VALUES], places[c, k.OUT_OFFSETS] >> 2, places[c, k.OUT_LIMIT]
    to = cursor[c]
    for row in range(start, stop):
        if is_null(buf, row_at[row], c):
            put_null(out8, places[c, k.OUT_VALIDITY], base, 0, row)
            out32[offsets + row + 1] = to - base
            continue
        p, size = value_bounds(buf, at[row - start], limit, width, prefix)
        if size < 0:
            return refuse(err, k.CUT, c, p, row)
        room = end - to
        if kind == k.BYTES:
            if size > room:
                return refuse(err, k.NO_ROOM, c, p, row)
            copy_bytes(out8, to, buf, p, size)
            to += size
        elif kind == k.LATIN1:
            if 3 * size > room:  # the exact need is counted only if it may matter
                need = np.int64(0)
                for i in range(size):
                    need += latin1[buf[p + i], 3]
                if need > room:
                    return refuse(err, k.NO_ROOM, c, p, row)
            to = put_latin1(buf, p, size, latin1, out8, to)
        elif kind == k.ENUM:
            member = prefix_value(buf, p, size)
            if member > most:
                return refuse(err, k.BAD_MEMBER, c, p, row)
            begin = member_at[spec[c, k.SPEC_B] + member]
            length = member_at[spec[c, k.SPEC_B] + member + 1] - begin
            if length > room:
                return refuse(err, k.NO_ROOM, c, p, row)
            copy_bytes(out8, to, members, begin, length)
            to += length
        elif kind == k.PADDED:
            if size > most or most > room:
                return refuse(err, k.NO_ROOM, c, p, row)
            copy_bytes(out8, to, buf, p, size)
            for i in range(size, most):
                out8[to + i] = 0
            to += most
        at[row - start] = p + size
        out32[offsets + row + 1] = to - base
    cursor[c] = to
    return k.OK


@njit
def fill_rows(rows: RowsToFill, columns: ColumnArrays, out: OutputArrays) -> int:
    """Second pass: writes all rows. Returns OK, or the code of the fault that ``out.err`` describes."""
    buf, limit, row_at, at = rows.buf, rows.limit, rows.at, rows.block_at
    spec, member_at, members, latin1 = columns.spec, columns.member_at, columns.members, columns.latin1
    out8, out16, out32, out64 = out.bytes, out.shorts, out.ints, out.longs
    places, cursor, null_dates, err = out.places, out.text_at, out.null_dates, out.err
    count = spec.shape[0]
    bitmap = (count + 7) >> 3
    for start in range(0, row_at.shape[0], BLOCK_ROWS):
        stop = min(start + BLOCK_ROWS, row_at.shape[0])
        for row in range(start, stop):
            at[row - start] = row_at[row] + bitmap
            if row_at[row] >= 0 and at[row - start] > limit:
                return refuse(err, k.CUT, 0, row_at[row], row)
        for c in range(count):
            kind = spec[c, k.SPEC_KIND]
            if kind == k.SKIP:
                skip_column(buf, limit, row_at, start, stop, c, spec, at, err)
            elif kind <= k.YEAR:
                fill_numbers(buf, limit, row_at, start, stop, c, spec, places, at, out8, out16, out32, out64, err)
            elif kind == k.DECIMAL:
                fill_decimals(buf, limit, row_at, start, stop, c, spec, places, at, out8, out64, err)
            elif kind <= k.TIME:
                fill_times(buf, limit, row_at, start, stop, c, spec, places, at, out8, out32, out64, null_dates, err)
            else:
                fill_texts(
                    buf,
                    limit,
                    row_at,
                    start,
                    stop,
                    c,
                    spec,
                    places,
                    at,
                    member_at,
                    members,
                    latin1,
                    out8,
                    out32,
                    cursor,
                    err,
                )
            if err[k.ERR_CODE] != k.OK:
                return int(err[k.ERR_CODE])
    return k.OK
