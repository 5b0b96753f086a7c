"""The two compiled passes over the rows of a slice: find and measure them, then write their values.

Both walk a row image in the same way: a bitmap of NULLs, then the values of the other columns one after another.
Nothing outside the event is ever read, and nothing outside the buffer is ever written.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc.binlog.jit import inlined, njit
from cdc.decode.kernels.constants import (
    BAD_HEADER,
    BAD_MEMBER,
    BYTES,
    CUT,
    ENUM,
    ERR_CODE,
    ERR_COLUMN,
    ERR_EVENT,
    ERR_POS,
    LATIN1,
    OK,
    OP_DELETE,
    OP_INSERT,
    OP_UPDATE,
    PADDED,
    PART_IMAGE,
    SPEC_A,
    SPEC_B,
    SPEC_KEY,
    SPEC_KIND,
    SPEC_PREFIX,
    SPEC_WIDTH,
    WRONG_COLUMNS,
)
from cdc.decode.kernels.scan import same_bytes, u16, u24, u32

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]


@inlined
def fault(err: Longs, code: int, column: int, pos: int) -> int:
    """Note the first fault; returns -1, which is no position."""
    if err[ERR_CODE] == OK:
        err[ERR_CODE] = code
        err[ERR_COLUMN] = column
        err[ERR_POS] = pos
    return -1


@inlined
def prefix_value(buf: Bytes, p: int, size: int) -> int:
    """A length of 1 to 4 bytes."""
    if size == 1:
        return np.int64(buf[p])
    if size == 2:
        return u16(buf, p)
    if size == 3:
        return u24(buf, p)
    return u32(buf, p)


@inlined
def all_present(buf: Bytes, p: int, columns: int) -> bool:
    """Whether a bitmap of present columns, inside the buffer, names all of them."""
    for i in range(columns >> 3):
        if buf[p + i] != 255:
            return False
    rest = columns & 7
    mask = (1 << rest) - 1
    return bool(rest == 0 or (np.int64(buf[p + (columns >> 3)]) & mask) == mask)


@njit
def rows_begin(buf: Bytes, offset: int, end: int, kind: int, columns: int, err: Longs) -> int:
    """Check a row event's header; where its first row begins, or -1 with a fault noted."""
    p = offset + 27
    if kind >= 30:
        if end - p < 2:
            return fault(err, BAD_HEADER, -1, p)
        extra = u16(buf, p)
        if extra < 2 or extra > end - p:
            return fault(err, BAD_HEADER, -1, p)
        p += extra
    if p >= end:
        return fault(err, BAD_HEADER, -1, p)
    count = np.int64(buf[p])
    p += 1
    if count == 252:
        if end - p < 2:
            return fault(err, BAD_HEADER, -1, p)
        count = u16(buf, p)
        p += 2
    elif count > 252 or count == 251:
        return fault(err, BAD_HEADER, -1, p - 1)
    if count != columns:
        return fault(err, WRONG_COLUMNS, -1, p)
    bitmap = (columns + 7) >> 3
    images = 2 if kind == 24 or kind == 31 else 1
    if end - p < bitmap * images:
        return fault(err, BAD_HEADER, -1, p)
    for _ in range(images):
        if not all_present(buf, p, columns):
            return fault(err, PART_IMAGE, -1, p)
        p += bitmap
    return p


@njit
def walk_image(
    buf: Bytes,
    p: int,
    end: int,
    spec: Longs,
    measure: bool,
    totals: Longs,
    member_at: Longs,
    latin1: Bytes,
    keys: bool,
    key_at: Longs,
    err: Longs,
) -> int:
    """Step over one row image; where the next begins, or -1 with a fault noted.

    With ``measure`` the bytes that each column of texts will need are added to ``totals``. With ``keys`` the places
    (begin, end) of the key's columns go to ``key_at`` (columns, 2).
    """
    columns = spec.shape[0]
    nulls = p
    p += (columns + 7) >> 3
    if p > end:
        return fault(err, CUT, 0, nulls)
    for c in range(columns):
        if buf[nulls + (c >> 3)] >> (c & 7) & 1:
            if keys:
                key_at[c, 0] = p
                key_at[c, 1] = p
            continue
        begin = p
        width = spec[c, SPEC_WIDTH]
        if width > 0:
            p += width
            if p > end:
                return fault(err, CUT, c, begin)
            if measure and spec[c, SPEC_KIND] >= BYTES:
                if spec[c, SPEC_KIND] == ENUM:
                    member = prefix_value(buf, begin, width)
                    if member > spec[c, SPEC_A]:
                        return fault(err, BAD_MEMBER, c, begin)
                    at = spec[c, SPEC_B] + member
                    totals[c] += member_at[at + 1] - member_at[at]
                else:
                    totals[c] += width
        else:
            prefix = spec[c, SPEC_PREFIX]
            p += prefix
            if p > end:
                return fault(err, CUT, c, begin)
            size = prefix_value(buf, begin, prefix)
            if size > end - p:
                return fault(err, CUT, c, begin)
            if measure:
                kind = spec[c, SPEC_KIND]
                if kind == BYTES:
                    totals[c] += size
                elif kind == LATIN1:
                    for i in range(size):
                        totals[c] += latin1[buf[p + i], 3]
                elif kind == PADDED:
                    if size > spec[c, SPEC_A]:
                        return fault(err, CUT, c, begin)
                    totals[c] += spec[c, SPEC_A]
            p += size
        if keys and spec[c, SPEC_KEY] == 1:
            key_at[c, 0] = begin
            key_at[c, 1] = p
    return p


@njit
def key_changed(buf: Bytes, spec: Longs, before: Longs, after: Longs) -> bool:
    """Whether a column of the key has other bytes in the second image."""
    for c in range(spec.shape[0]):
        if spec[c, SPEC_KEY] == 1:
            size = before[c, 1] - before[c, 0]
            if after[c, 1] - after[c, 0] != size or not same_bytes(buf, before[c, 0], after[c, 0], size):
                return True
    return False


@njit
def locate_rows(
    buf: Bytes,
    event_offset: Longs,
    event_length: Longs,
    event_type: Longs,
    event_ordinal: Longs,
    tail: int,
    spec: Longs,
    both: bool,
    has_key: bool,
    member_at: Longs,
    latin1: Bytes,
    row_at: Longs,
    before_at: Longs,
    row_event: npt.NDArray[np.int32],
    row_op: npt.NDArray[np.int8],
    row_number: Longs,
    totals: Longs,
    saved: Longs,
    key_at: Longs,
    err: Longs,
) -> tuple[int, int]:
    """First pass: where each output row's image lies, what it is, and how many bytes each column of texts needs.

    ``both``: the old row's place goes to ``before_at`` (-1 for inserts; else left alone), and ``totals`` (2, columns)
    counts old rows in its second line. Otherwise an update whose key changes gives two rows, a delete and an update.
    ``key_at`` (2, columns, 2) is room for the keys' places, ``saved`` (2, columns) for totals.
    Returns (events done, rows): fewer events than given mean that the next one does not fit into the room for rows,
    or a fault, noted in ``err``.
    """
    room = row_at.shape[0]
    rows = 0
    columns = spec.shape[0]
    for e in range(event_offset.shape[0]):
        kind = event_type[e]
        end = event_offset[e] + event_length[e] - tail
        err[ERR_EVENT] = e
        p = rows_begin(buf, event_offset[e], end, kind, columns, err)
        if p < 0:
            return e, rows
        update = kind == 24 or kind == 31
        op = OP_UPDATE if update else (OP_INSERT if kind == 23 or kind == 30 else OP_DELETE)
        first_row = rows
        for c in range(columns):
            saved[0, c] = totals[0, c]
            saved[1, c] = totals[1, c]
        number = event_ordinal[e] << 32
        while p < end:
            if rows + 2 > room:
                for c in range(columns):
                    totals[0, c] = saved[0, c]
                    totals[1, c] = saved[1, c]
                return e, first_row
            at = p
            old = np.int64(-1)
            if update:
                old = p
                p = walk_image(
                    buf, p, end, spec, both, totals[1], member_at, latin1, has_key and not both, key_at[0], err
                )
                if p < 0:
                    return e, rows
                at = p
            elif both and op == OP_DELETE:
                old = p
                if walk_image(buf, p, end, spec, True, totals[1], member_at, latin1, False, key_at[0], err) < 0:
                    return e, rows
            p = walk_image(
                buf,
                p,
                end,
                spec,
                True,
                totals[0],
                member_at,
                latin1,
                update and has_key and not both,
                key_at[1],
                err,
            )
            if p < 0:
                return e, rows
            if update and has_key and not both and key_changed(buf, spec, key_at[0], key_at[1]):
                walk_image(buf, old, end, spec, True, totals[0], member_at, latin1, False, key_at[0], err)
                if err[ERR_CODE] != OK:
                    return e, rows
                row_at[rows] = old
                row_event[rows] = e
                row_op[rows] = OP_DELETE
                row_number[rows] = number
                rows += 1
            row_at[rows] = at
            row_event[rows] = e
            row_op[rows] = op
            row_number[rows] = number
            if both:
                before_at[rows] = old
            rows += 1
            number += 1
    return event_offset.shape[0], rows
