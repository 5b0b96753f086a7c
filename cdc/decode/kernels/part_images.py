"""The compiled rewriting of row events whose rows lack columns: in the new events the rows have all of them, and those
that were missing are NULL.

Such a row image has a bitmap of NULLs with a bit for each column that it holds, and the values of these columns.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cdc.binlog.row_header import bitmap_size, is_update
from cdc.decode.kernels import constants as k
from cdc.decode.kernels.rows import EventArrays, bitmaps_begin, fault, finished, moved, value_end
from cdc.kernels.jit import njit
from cdc.kernels.memory import bit_is_set

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]


class Filling(NamedTuple):
    """The columns, and the output of :func:`fill_events`."""

    spec: Longs
    """(columns, SPEC_SIZE)"""
    out: Bytes
    """The rewritten events, or an empty array if they are only to be measured."""
    err: Longs
    """(ERR_SIZE,)"""


@njit
def count_held(buf: Bytes, p: int, spec: Longs, err: Longs) -> int:
    """Counts the columns that the bitmap at ``p`` names. Returns -1 with a fault noted if it lacks one that is wanted
    or belongs to the key."""
    held = 0
    for c in range(spec.shape[0]):
        if bit_is_set(buf, p, c):
            held += 1
        elif spec[c, k.SPEC_KIND] != k.SKIP or spec[c, k.SPEC_KEY] == 1:
            return fault(err, k.PART_IMAGE, c, p)
    return held or fault(err, k.PART_IMAGE, -1, p)


@njit
def fill_image(
    buf: Bytes, p: int, end: int, held_at: int, held: int, filling: Filling, at: int, write: bool
) -> tuple[int, int]:
    """Copies the row at ``p``, which holds the ``held`` columns of the bitmap at ``held_at``, with NULL in the others.
    Returns the offsets behind the row and behind its copy, or (-1, 0) with a fault noted."""
    spec, out, err = filling.spec, filling.out, filling.err
    columns = spec.shape[0]
    nulls = p
    p += bitmap_size(held)
    if p > end:
        return fault(err, k.CUT, 0, nulls), 0
    values = p
    size = bitmap_size(columns)
    if write:
        for i in range(at, at + size):
            out[i] = np.uint8(0)
    number = 0
    for c in range(columns):
        is_null = True
        if bit_is_set(buf, held_at, c):
            is_null = bit_is_set(buf, nulls, number)
            number += 1
        if not is_null:
            stop = value_end(buf, p, end, spec[c, k.SPEC_WIDTH], spec[c, k.SPEC_PREFIX])
            if stop < 0:
                return fault(err, k.CUT, c, p), 0
            p = stop
        elif write:
            out[at + (c >> 3)] = np.uint8(np.int64(out[at + (c >> 3)]) | (1 << (c & 7)))
    return p, moved(buf, values, p - values, out, at + size, write)


@njit
def fill_event(events: EventArrays, number: int, filling: Filling, at: int, write: bool) -> int:
    """Rewrites one event to ``out[at:]``, with zeros for its checksum. Returns the offset behind it, or -1 with a fault
    noted."""
    buf, offset, kind, tail = events.buf, events.offset[number], events.type[number], events.tail
    end = offset + events.length[number] - tail
    spec, out, err = filling.spec, filling.out, filling.err
    start = at
    p = bitmaps_begin(buf, offset, end, kind, spec.shape[0], err)
    if p < 0:
        return -1
    update = is_update(kind)
    size = bitmap_size(spec.shape[0])
    first_at, second_at = p, p + size
    first = count_held(buf, first_at, spec, err)
    second = count_held(buf, second_at, spec, err) if update else 0
    if first < 0 or second < 0:
        return -1
    at = moved(buf, offset, p - offset, out, at, write)
    p += size * (2 if update else 1)
    for _ in range(p - first_at):
        if write:
            out[at] = np.uint8(255)
        at += 1
    while p < end:
        p, at = fill_image(buf, p, end, first_at, first, filling, at, write)
        if p >= 0 and update:
            p, at = fill_image(buf, p, end, second_at, second, filling, at, write)
        if p < 0:
            return -1
    return finished(out, start, at, tail, write, offset, err)


@njit
def fill_events(events: EventArrays, filling: Filling, out_offset: Longs, write: bool) -> int:
    """Rewrites the events one behind the other and writes the offset of each to ``out_offset`` (events + 1). Without
    ``write`` they are only measured. Returns the size of all in bytes, or -1 with a fault noted."""
    at = np.int64(0)
    for i in range(events.offset.shape[0]):
        out_offset[i] = at
        at = fill_event(events, i, filling, at, write)
        if at < 0:
            return -1
    out_offset[events.offset.shape[0]] = at
    return at
