"""The compiled rewriting of partial updates into whole ones.

A PARTIAL_UPDATE_ROWS event is an UPDATE_ROWS one whose new rows begin with their value options, a packed number. Where
its lowest bit is set, a bitmap follows with a bit for each JSON column of the table; such a column then holds diffs
instead of a document. Source: MySQL's ``Update_rows_log_event`` and ``rows_event.h``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc.binlog.jit import inlined, njit
from cdc.binlog.memory import copy_bytes, store_u32
from cdc.decode.binary_json.kernels.constants import PARTIAL
from cdc.decode.kernels.constants import BAD_HEADER, BAD_VALUE, CUT, NO_ROOM, SPEC_PREFIX, SPEC_WIDTH
from cdc.decode.kernels.rows import fault, prefix_value, rows_begin

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

UPDATE_ROWS = 31
_MAX_SIZE = 0xFFFFFFFF


@inlined
def value_end(buf: Bytes, p: int, end: int, width: int, prefix: int) -> int:
    """Where the value at ``p`` ends, its length included; -1 beyond ``end``."""
    if width > 0:
        return p + width if width <= end - p else -1
    if prefix > end - p:
        return -1
    size = prefix_value(buf, p, prefix)
    return p + prefix + size if size <= end - p - prefix else -1


@inlined
def is_null(buf: Bytes, nulls: int, column: int) -> bool:
    """Whether a bit of a bitmap is set."""
    return bool(buf[nulls + (column >> 3)] >> (column & 7) & 1)


@inlined
def moved(buf: Bytes, p: int, size: int, out: Bytes, at: int, write: bool) -> int:
    """Copy, or only count; where the next byte goes."""
    if write:
        copy_bytes(out, at, buf, p, size)
    return at + size


@njit
def expand_image(
    buf: Bytes,
    p: int,
    end: int,
    spec: Longs,
    json_columns: Longs,
    partial_bits: int,
    before: Longs,
    out: Bytes,
    at: int,
    write: bool,
    err: Longs,
) -> tuple[int, int]:
    """Copy the new row at ``p``, diffs with the document before in front of them; (next row, next byte), or (-1, 0).

    ``partial_bits`` is where the bitmap of partial columns lies, -1 for none; ``before`` (columns, 2) begin and end of
    the old row's values, equal for NULL.
    """
    columns = spec.shape[0]
    nulls = p
    p += (columns + 7) >> 3
    if p > end:
        return fault(err, CUT, 0, nulls), 0
    at = moved(buf, nulls, p - nulls, out, at, write)
    json = 0
    for c in range(columns):
        in_part = False
        if json_columns[c]:
            in_part = partial_bits >= 0 and is_null(buf, partial_bits, json)
            json += 1
        if is_null(buf, nulls, c):
            continue
        prefix = spec[c, SPEC_PREFIX]
        stop = value_end(buf, p, end, spec[c, SPEC_WIDTH], prefix)
        if stop < 0:
            return fault(err, CUT, c, p), 0
        if not in_part:
            at = moved(buf, p, stop - p, out, at, write)
        else:
            if before[c, 0] == before[c, 1] or prefix != 4:
                return fault(err, BAD_VALUE, c, p), 0
            begin = before[c, 0] + prefix
            document = before[c, 1] - begin
            diffs = stop - p - prefix
            size = 5 + document + diffs
            if size > _MAX_SIZE:
                return fault(err, NO_ROOM, c, p), 0
            if write:
                store_u32(out, at, size)
                out[at + 4] = np.uint8(PARTIAL)
                store_u32(out, at + 5, document)
            at = moved(buf, begin, document, out, at + 9, write)
            at = moved(buf, p + prefix, diffs, out, at, write)
        p = stop
    return p, at


@njit
def old_image(buf: Bytes, p: int, end: int, spec: Longs, before: Longs, err: Longs) -> int:
    """Where the old row at ``p`` ends, its values' places noted in ``before``; -1 with a fault noted."""
    columns = spec.shape[0]
    nulls = p
    p += (columns + 7) >> 3
    if p > end:
        return fault(err, CUT, 0, nulls)
    for c in range(columns):
        before[c, 0] = p
        if not is_null(buf, nulls, c):
            stop = value_end(buf, p, end, spec[c, SPEC_WIDTH], spec[c, SPEC_PREFIX])
            if stop < 0:
                return fault(err, CUT, c, p)
            p = stop
        before[c, 1] = p
    return p


@njit
def expand_event(
    buf: Bytes,
    offset: int,
    length: int,
    tail: int,
    spec: Longs,
    json_columns: Longs,
    before: Longs,
    out: Bytes,
    at: int,
    write: bool,
    err: Longs,
) -> int:
    """Rewrite the event at ``offset`` to ``out[at:]``, without a checksum; where the next one goes, -1 for a fault."""
    end = offset + length - tail
    start = at
    p = rows_begin(buf, offset, end, UPDATE_ROWS, spec.shape[0], err)
    if p < 0:
        return -1
    bitmap = 0
    for c in range(json_columns.shape[0]):
        if json_columns[c]:
            bitmap += 1
    bitmap = (bitmap + 7) >> 3
    at = moved(buf, offset, p - offset, out, at, write)
    while p < end:
        begin = p
        p = old_image(buf, p, end, spec, before, err)
        if p < 0:
            return -1
        at = moved(buf, begin, p - begin, out, at, write)
        # Options that are not known yet would change what follows.
        if p >= end or buf[p] > 1:
            return fault(err, CUT if p >= end else BAD_HEADER, -1, p)
        partial_bits = np.int64(-1)
        if buf[p] == 1:
            partial_bits = p + 1
            p += bitmap
        p += 1
        if p > end:
            return fault(err, CUT, -1, begin)
        p, at = expand_image(buf, p, end, spec, json_columns, partial_bits, before, out, at, write, err)
        if p < 0:
            return -1
    at += tail
    if at - start > _MAX_SIZE:
        return fault(err, NO_ROOM, -1, offset)
    if write:
        out[start + 4] = np.uint8(UPDATE_ROWS)
        store_u32(out, start + 9, at - start)
        for i in range(at - tail, at):
            out[i] = np.uint8(0)
    return at


@njit
def expand_events(
    buf: Bytes,
    offset: Longs,
    length: Longs,
    tail: int,
    spec: Longs,
    json_columns: Longs,
    before: Longs,
    out: Bytes,
    out_offset: Longs,
    write: bool,
    err: Longs,
) -> int:
    """Rewrite events one behind the other; ``out_offset`` (events + 1) says where. Without ``write`` they are only
    measured. ``before`` (columns, 2) is room. Returns the bytes in all, -1 with a fault in ``err``."""
    at = np.int64(0)
    for i in range(offset.shape[0]):
        out_offset[i] = at
        at = expand_event(buf, offset[i], length[i], tail, spec, json_columns, before, out, at, write, err)
        if at < 0:
            return -1
    out_offset[offset.shape[0]] = at
    return at
