"""The second compiled pass: every value at its place in the Arrow buffers.

Rows are written in blocks, in each of them column by column: what a column is gets decided once for a block, its values
go to one place after another, and the block's bytes stay in the processor's cache while all columns take theirs. A
column's parts begin at multiples of 64 bytes, as ``places`` says.
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
    F64,
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
    YEAR,
    ZERO_DATE,
)
from cdc.decode.kernels.put import put_bits, put_latin1, put_null, put_number
from cdc.decode.kernels.rows import fault, prefix_value
from cdc.decode.kernels.single import date_days, datetime_us, put_decimal, time_us, timestamp_us

Bytes = npt.NDArray[np.uint8]
Shorts = npt.NDArray[np.int16]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]

BLOCK_ROWS = 128


@inlined
def is_null(buf: Bytes, nulls: int, c: int) -> bool:
    """Whether a column is null in the row whose bitmap stands at ``nulls`` (-1: there is no row)."""
    return bool(nulls < 0 or buf[nulls + (c >> 3)] >> (c & 7) & 1)


@njit
def skip_column(
    buf: Bytes, limit: int, row_at: Longs, start: int, stop: int, c: int, spec: Longs, at: Longs, err: Longs
) -> int:
    """Step over a column's values."""
    width, prefix = spec[c, SPEC_WIDTH], spec[c, SPEC_PREFIX]
    for row in range(start, stop):
        if is_null(buf, row_at[row], c):
            continue
        p = at[row - start]
        size = width
        if width == 0:
            if p + prefix > limit:
                return refuse(err, CUT, c, p, row)
            size = prefix_value(buf, p, prefix)
            p += prefix
        if size > limit - p:
            return refuse(err, CUT, c, p, row)
        at[row - start] = p + size
    return OK


@inlined
def refuse(err: Longs, code: int, c: int, p: int, row: int) -> int:
    """Note a fault with the row in the place of the event; the code."""
    fault(err, code, c, p)
    err[ERR_EVENT] = row
    return code


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
    out16: Shorts,
    out32: Ints,
    out64: Longs,
    err: Longs,
) -> int:
    """Write integers, FLOAT, DOUBLE, YEAR, BIT."""
    kind, width, out_width = spec[c, SPEC_KIND], spec[c, SPEC_WIDTH], spec[c, SPEC_OUT]
    base, validity = places[c, OUT_VALUES], places[c, OUT_VALIDITY]
    bits = kind > F64 and kind <= BIT64
    for row in range(start, stop):
        if is_null(buf, row_at[row], c):
            put_null(out8, validity, base, out_width, row)
            continue
        p = at[row - start]
        if width > limit - p:
            return refuse(err, CUT, c, p, row)
        if bits:
            put_bits(buf, p, width, kind == BIT64, base, row, out64)
        else:
            put_number(buf, p, kind, base, row, out8, out16, out32, out64)
        at[row - start] = p + width
    return OK


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
    """Write DECIMAL of at most 38 digits."""
    width, precision, scale = spec[c, SPEC_WIDTH], spec[c, SPEC_A], spec[c, SPEC_B]
    base, validity = places[c, OUT_VALUES], places[c, OUT_VALIDITY]
    for row in range(start, stop):
        if is_null(buf, row_at[row], c):
            put_null(out8, validity, base, spec[c, SPEC_OUT], row)
            continue
        p = at[row - start]
        if width > limit - p:
            return refuse(err, CUT, c, p, row)
        if not put_decimal(buf, p, precision, scale, out64, (base >> 3) + 2 * row):
            return refuse(err, BAD_VALUE, c, p, row)
        at[row - start] = p + width
    return OK


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
    out32: Ints,
    out64: Longs,
    null_dates: Longs,
    err: Longs,
) -> int:
    """Write DATE, DATETIME, TIMESTAMP, TIME."""
    kind, width, fraction = spec[c, SPEC_KIND], spec[c, SPEC_WIDTH], spec[c, SPEC_A]
    base, validity = places[c, OUT_VALUES], places[c, OUT_VALIDITY]
    for row in range(start, stop):
        if is_null(buf, row_at[row], c):
            put_null(out8, validity, base, spec[c, SPEC_OUT], row)
            continue
        p = at[row - start]
        if width > limit - p:
            return refuse(err, CUT, c, p, row)
        if kind == DATE:
            value = date_days(buf, p)
        elif kind == DATETIME:
            value = datetime_us(buf, p, fraction)
        elif kind == TIMESTAMP:
            value = timestamp_us(buf, p, fraction)
        else:
            value = time_us(buf, p, fraction)
        at[row - start] = p + width
        if value > NO_DATE:
            if kind == DATE:
                out32[(base >> 2) + row] = value
            else:
                out64[(base >> 3) + row] = value
            continue
        if value == DAMAGED_DATE:
            return refuse(err, BAD_VALUE, c, p, row)
        if spec[c, SPEC_B] == 1:
            return refuse(err, ZERO_DATE, c, p, row)
        put_null(out8, validity, base, spec[c, SPEC_OUT], row)
        null_dates[c] += 1
    return OK


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
    out32: Ints,
    cursor: Longs,
    err: Longs,
) -> int:
    """Write texts and bytes behind what the column has already, and the offsets."""
    kind, width, prefix, most = spec[c, SPEC_KIND], spec[c, SPEC_WIDTH], spec[c, SPEC_PREFIX], spec[c, SPEC_A]
    base, offsets, end = places[c, OUT_VALUES], places[c, OUT_OFFSETS] >> 2, places[c, OUT_LIMIT]
    to = cursor[c]
    for row in range(start, stop):
        if is_null(buf, row_at[row], c):
            put_null(out8, places[c, OUT_VALIDITY], base, 0, row)
            out32[offsets + row + 1] = to - base
            continue
        p = at[row - start]
        size = width
        if width == 0:
            if p + prefix > limit:
                return refuse(err, CUT, c, p, row)
            size = prefix_value(buf, p, prefix)
            p += prefix
        if size > limit - p:
            return refuse(err, CUT, c, p, row)
        room = end - to
        if kind == BYTES:
            if size > room:
                return refuse(err, NO_ROOM, c, p, row)
            copy_bytes(out8, to, buf, p, size)
            to += size
        elif kind == LATIN1:
            if 3 * size > room:  # the exact need only where it may matter
                need = np.int64(0)
                for i in range(size):
                    need += latin1[buf[p + i], 3]
                if need > room:
                    return refuse(err, NO_ROOM, c, p, row)
            to = put_latin1(buf, p, size, latin1, out8, to)
        elif kind == ENUM:
            member = prefix_value(buf, p, size)
            if member > most:
                return refuse(err, BAD_MEMBER, c, p, row)
            begin = member_at[spec[c, SPEC_B] + member]
            length = member_at[spec[c, SPEC_B] + member + 1] - begin
            if length > room:
                return refuse(err, NO_ROOM, c, p, row)
            copy_bytes(out8, to, members, begin, length)
            to += length
        elif kind == PADDED:
            if size > most or most > room:
                return refuse(err, NO_ROOM, c, p, row)
            copy_bytes(out8, to, buf, p, size)
            for i in range(size, most):
                out8[to + i] = 0
            to += most
        at[row - start] = p + size
        out32[offsets + row + 1] = to - base
    cursor[c] = to
    return OK


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
    out16: Shorts,
    out32: Ints,
    out64: Longs,
    cursor: Longs,
    null_dates: Longs,
    at: Longs,
    err: Longs,
) -> int:
    """Second pass: write the rows whose images begin at ``row_at`` (-1: no row, all columns null).

    ``limit``: where the last event ends; no value may reach beyond. ``cursor``: for each column of texts, where its
    next bytes go. ``null_dates`` counts for each column the dates that became null. ``at``: room for a block's
    positions, BLOCK_ROWS. The bitmaps come filled with ones, and the first offset of each column of texts is zero.
    Returns OK or the fault, which is noted in ``err`` with the row in the place of the event.
    """
    columns = spec.shape[0]
    bitmap = (columns + 7) >> 3
    for start in range(0, row_at.shape[0], BLOCK_ROWS):
        stop = min(start + BLOCK_ROWS, row_at.shape[0])
        for row in range(start, stop):
            at[row - start] = row_at[row] + bitmap
            if row_at[row] >= 0 and at[row - start] > limit:
                return refuse(err, CUT, 0, row_at[row], row)
        for c in range(columns):
            kind = spec[c, SPEC_KIND]
            if kind == SKIP:
                skip_column(buf, limit, row_at, start, stop, c, spec, at, err)
            elif kind <= YEAR:
                fill_numbers(buf, limit, row_at, start, stop, c, spec, places, at, out8, out16, out32, out64, err)
            elif kind == DECIMAL:
                fill_decimals(buf, limit, row_at, start, stop, c, spec, places, at, out8, out64, err)
            elif kind <= TIME:
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
            if err[ERR_CODE] != OK:
                return int(err[ERR_CODE])
    return OK
