"""The compiled passes over row events: find and measure the rows, and rewrite partial updates into whole ones.

A row image is a bitmap of NULLs, then the values of the other columns one after another.

A PARTIAL_UPDATE_ROWS event is an UPDATE_ROWS event whose new rows begin with their value options, a packed number. If
its lowest bit is set, a bitmap follows with a bit for each JSON column of the table; a column with its bit set holds
diffs instead of a document. Source: MySQL's ``Update_rows_log_event`` and ``rows_event.h``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cdc.binlog.constants import EventType
from cdc.binlog.row_header import bitmap_size, column_bitmaps, is_insert, is_update
from cdc.decode.kernels import constants as k
from cdc.decode.kernels.constants import ColumnArrays
from cdc.kernels.jit import inlined, njit
from cdc.kernels.memory import bit_is_set, copy_bytes, prefix_value, same_bytes, store_u32, value_bounds

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

_MAX_SIZE = 0xFFFFFFFF


class EventArrays(NamedTuple):
    """Row events of one table and one layout."""

    buf: Bytes
    offset: Longs
    length: Longs
    type: Longs
    ordinal: Longs
    tail: int
    """Bytes of checksum at the end of each event: 4 or 0."""


class RowArrays(NamedTuple):
    """Room for the rows that are found, each (rows,)."""

    at: Longs
    """Offset of the row image."""
    before_at: Longs
    """Offset of the old row's image, -1 for inserts; empty if old rows are not wanted."""
    event: npt.NDArray[np.int32]
    op: npt.NDArray[np.int8]
    number: Longs
    """The ordinal of the event times 2**32, plus the row."""

    def first(self, count: int) -> RowArrays:
        """The first rows."""
        return RowArrays(
            self.at[:count], self.before_at[:count], self.event[:count], self.op[:count], self.number[:count]
        )


class Measured(NamedTuple):
    """The counters of the first pass, and its scratch space."""

    totals: Longs
    """(2, columns): bytes that each column of texts needs, for new and for old rows."""
    saved: Longs
    """(2, columns): ``totals`` before the event that is being read."""
    key_at: Longs
    """(2, columns, 2): begin and end of the key's columns in the old and in the new row."""
    err: Longs
    """(ERR_SIZE,)"""


@inlined
def fault(err: Longs, code: int, column: int, pos: int) -> int:
    """Notes the first fault. Returns -1, which is no position."""
    if err[k.ERR_CODE] == k.OK:
        err[k.ERR_CODE] = code
        err[k.ERR_COLUMN] = column
        err[k.ERR_POS] = pos
    return -1


@inlined
def all_present(buf: Bytes, p: int, columns: int) -> bool:
    """Whether the bitmap of present columns at ``p``, all of it inside the buffer, names all columns."""
    for i in range(columns >> 3):
        if buf[p + i] != 255:
            return False
    rest = columns & 7
    mask = (1 << rest) - 1
    return bool(rest == 0 or (np.int64(buf[p + (columns >> 3)]) & mask) == mask)


@njit
def bitmaps_begin(buf: Bytes, offset: int, end: int, kind: int, columns: int, err: Longs) -> int:
    """Checks the header of the row event at ``offset``. Returns the offset of its bitmaps of present columns, all of
    them inside the event, or -1 with a fault noted."""
    p, count = column_bitmaps(buf, offset, end, kind)
    if p < 0:
        return fault(err, k.BAD_HEADER, -1, offset)
    return p if count == columns else fault(err, k.WRONG_COLUMNS, -1, offset)


@njit
def rows_begin(buf: Bytes, offset: int, end: int, kind: int, columns: int, err: Longs) -> int:
    """Checks the header of the row event at ``offset`` and that its rows hold all columns. Returns the offset of its
    first row, or -1 with a fault noted."""
    p = bitmaps_begin(buf, offset, end, kind, columns, err)
    if p < 0:
        return -1
    for _ in range(2 if is_update(kind) else 1):
        if not all_present(buf, p, columns):
            return fault(err, k.PART_IMAGE, -1, p)
        p += bitmap_size(columns)
    return p


@njit
def step_over_image(
    buf: Bytes,
    p: int,
    end: int,
    spec: Longs,
    member_at: Longs,
    latin1: Bytes,
    measure: bool,
    totals: Longs,
    keys: bool,
    key_at: Longs,
    err: Longs,
) -> int:
    """Steps over the row image at ``p``. Returns the offset behind it, or -1 with a fault noted.

    ``measure`` adds the bytes that each column of texts needs to ``totals`` (columns,). ``keys`` writes the begin and
    end of the key's columns to ``key_at`` (columns, 2). The other arrays are those of :class:`ColumnArrays`; they are
    separate arguments, because this is called for each row, and passing named tuples makes the first pass 30 % slower.
    """
    count = spec.shape[0]
    nulls = p
    p += bitmap_size(count)
    if p > end:
        return fault(err, k.CUT, 0, nulls)
    for c in range(count):
        if buf[nulls + (c >> 3)] >> (c & 7) & 1:
            if keys:
                key_at[c, 0] = p
                key_at[c, 1] = p
            continue
        begin = p
        width = spec[c, k.SPEC_WIDTH]
        if width > 0:
            p += width
            if p > end:
                return fault(err, k.CUT, c, begin)
            if measure and spec[c, k.SPEC_KIND] >= k.BYTES:
                if spec[c, k.SPEC_KIND] == k.ENUM:
                    member = prefix_value(buf, begin, width)
                    if member > spec[c, k.SPEC_A]:
                        return fault(err, k.BAD_MEMBER, c, begin)
                    at = spec[c, k.SPEC_B] + member
                    totals[c] += member_at[at + 1] - member_at[at]
                else:
                    totals[c] += width
        else:
            prefix = spec[c, k.SPEC_PREFIX]
            p += prefix
            if p > end:
                return fault(err, k.CUT, c, begin)
            size = prefix_value(buf, begin, prefix)
            if size > end - p:
                return fault(err, k.CUT, c, begin)
            if measure:
                kind = spec[c, k.SPEC_KIND]
                if kind == k.BYTES:
                    totals[c] += size
                elif kind == k.LATIN1:
                    for i in range(size):
                        totals[c] += latin1[buf[p + i], 3]
                elif kind == k.PADDED:
                    if size > spec[c, k.SPEC_A]:
                        return fault(err, k.CUT, c, begin)
                    totals[c] += spec[c, k.SPEC_A]
            p += size
        if keys and spec[c, k.SPEC_KEY] == 1:
            key_at[c, 0] = begin
            key_at[c, 1] = p
    return p


@njit
def key_changed(buf: Bytes, spec: Longs, key_at: Longs) -> bool:
    """Whether a column of the key has other bytes in the new row than in the old one; ``key_at`` as in
    :class:`Measured`."""
    for c in range(spec.shape[0]):
        if spec[c, k.SPEC_KEY] == 1:
            size = key_at[1, c, 1] - key_at[1, c, 0]
            if key_at[0, c, 1] - key_at[0, c, 0] != size or not same_bytes(buf, key_at[1, c, 0], key_at[0, c, 0], size):
                return True
    return False


@njit
def locate_rows(
    events: EventArrays,
    columns: ColumnArrays,
    both: bool,
    has_key: bool,
    rows: RowArrays,
    measured: Measured,
) -> tuple[int, int]:
    """First pass: finds each output row's image and operation, and the bytes that each column of texts needs.

    With ``both`` the old row's offset goes to ``rows.before_at``, and the old rows are measured as well. Without it an
    update that changes the key gives two rows, a delete and an update.
    Returns (events done, rows). Fewer events than given mean that the next one does not fit into the room for rows, or
    that there is a fault, which is noted in ``measured.err``.
    """
    buf, spec, member_at, latin1 = events.buf, columns.spec, columns.member_at, columns.latin1
    totals, saved, key_at, err = measured.totals, measured.saved, measured.key_at, measured.err
    room = rows.at.shape[0]
    row_count = 0
    count = spec.shape[0]
    for e in range(events.offset.shape[0]):
        kind = events.type[e]
        end = events.offset[e] + events.length[e] - events.tail
        err[k.ERR_EVENT] = e
        p = rows_begin(buf, events.offset[e], end, kind, count, err)
        if p < 0:
            return e, row_count
        update = is_update(kind)
        compare_keys = update and has_key and not both
        op = k.OP_UPDATE if update else (k.OP_INSERT if is_insert(kind) else k.OP_DELETE)
        first_row = row_count
        for c in range(count):
            saved[0, c] = totals[0, c]
            saved[1, c] = totals[1, c]
        number = events.ordinal[e] << 32
        while p < end:
            if row_count + 2 > room:
                for c in range(count):
                    totals[0, c] = saved[0, c]
                    totals[1, c] = saved[1, c]
                return e, first_row
            at = p
            old = np.int64(-1)
            if update:
                old = p
                p = step_over_image(buf, p, end, spec, member_at, latin1, both, totals[1], compare_keys, key_at[1], err)
                if p < 0:
                    return e, row_count
                at = p
            elif both and op == k.OP_DELETE:
                old = p
                if step_over_image(buf, p, end, spec, member_at, latin1, True, totals[1], False, key_at[1], err) < 0:
                    return e, row_count
            p = step_over_image(buf, p, end, spec, member_at, latin1, True, totals[0], compare_keys, key_at[0], err)
            if p < 0:
                return e, row_count
            if compare_keys and key_changed(buf, spec, key_at):
                step_over_image(buf, old, end, spec, member_at, latin1, True, totals[0], False, key_at[0], err)
                if err[k.ERR_CODE] != k.OK:
                    return e, row_count
                rows.at[row_count] = old
                rows.event[row_count] = e
                rows.op[row_count] = k.OP_DELETE
                rows.number[row_count] = number
                row_count += 1
            rows.at[row_count] = at
            rows.event[row_count] = e
            rows.op[row_count] = op
            rows.number[row_count] = number
            if both:
                rows.before_at[row_count] = old
            row_count += 1
            number += 1
    return events.offset.shape[0], row_count


# ---------------------------------------------------------------- partial updates


class Expansion(NamedTuple):
    """The buffer into which partial updates are rewritten, and its scratch space."""

    spec: Longs
    """(columns, SPEC_SIZE)"""
    json_columns: Longs
    """(columns,): 1 for JSON."""
    before: Longs
    """(columns, 2): begin and end of the old row's values, equal for NULL."""
    out: Bytes
    """The rewritten events, or an empty array if they are only to be measured."""
    err: Longs
    """(ERR_SIZE,)"""


@inlined
def value_end(buf: Bytes, p: int, end: int, width: int, prefix: int) -> int:
    """The end of the value at ``p``, its length included; -1 if it lies behind ``end``."""
    p, size = value_bounds(buf, p, end, width, prefix)
    return p + size if size >= 0 else -1


@inlined
def moved(buf: Bytes, p: int, size: int, out: Bytes, at: int, write: bool) -> int:
    """Copies bytes, or only counts them. Returns the offset behind them."""
    if write:
        copy_bytes(out, at, buf, p, size)
    return at + size


@njit
def expand_image(
    buf: Bytes, p: int, end: int, partial_bits: int, expansion: Expansion, at: int, write: bool
) -> tuple[int, int]:
    """Copies the new row at ``p`` and puts the old document before the diffs of each partial column. Returns the
    offsets behind the row and behind its copy, or (-1, 0) with a fault noted.

    ``partial_bits`` is the offset of the bitmap of partial columns, or -1.
    """
    spec, before, out, err = expansion.spec, expansion.before, expansion.out, expansion.err
    columns = spec.shape[0]
    nulls = p
    p += bitmap_size(columns)
    if p > end:
        return fault(err, k.CUT, 0, nulls), 0
    at = moved(buf, nulls, p - nulls, out, at, write)
    json = 0
    for c in range(columns):
        in_part = False
        if expansion.json_columns[c]:
            in_part = partial_bits >= 0 and bit_is_set(buf, partial_bits, json)
            json += 1
        if bit_is_set(buf, nulls, c):
            continue
        prefix = spec[c, k.SPEC_PREFIX]
        stop = value_end(buf, p, end, spec[c, k.SPEC_WIDTH], prefix)
        if stop < 0:
            return fault(err, k.CUT, c, p), 0
        if not in_part:
            at = moved(buf, p, stop - p, out, at, write)
        else:
            if before[c, 0] == before[c, 1] or prefix != 4:
                return fault(err, k.BAD_VALUE, c, p), 0
            begin = before[c, 0] + prefix
            document = before[c, 1] - begin
            diffs = stop - p - prefix
            size = 5 + document + diffs
            if size > _MAX_SIZE:
                return fault(err, k.NO_ROOM, c, p), 0
            if write:
                store_u32(out, at, size)
                out[at + 4] = np.uint8(k.JSON_DIFFS)
                store_u32(out, at + 5, document)
            at = moved(buf, begin, document, out, at + 9, write)
            at = moved(buf, p + prefix, diffs, out, at, write)
        p = stop
    return p, at


@njit
def old_image(buf: Bytes, p: int, end: int, spec: Longs, before: Longs, err: Longs) -> int:
    """Notes the begin and end of the values of the old row at ``p`` in ``before``. Returns the offset behind the row,
    or -1 with a fault noted."""
    columns = spec.shape[0]
    nulls = p
    p += bitmap_size(columns)
    if p > end:
        return fault(err, k.CUT, 0, nulls)
    for c in range(columns):
        before[c, 0] = p
        if not bit_is_set(buf, nulls, c):
            stop = value_end(buf, p, end, spec[c, k.SPEC_WIDTH], spec[c, k.SPEC_PREFIX])
            if stop < 0:
                return fault(err, k.CUT, c, p)
            p = stop
        before[c, 1] = p
    return p


@njit
def expand_event(events: EventArrays, number: int, expansion: Expansion, at: int, write: bool) -> int:
    """Rewrites one event to ``out[at:]``, with zeros for its checksum. Returns the offset behind it, or -1 with a fault
    noted."""
    buf, offset, tail = events.buf, events.offset[number], events.tail
    end = offset + events.length[number] - tail
    spec, json_columns, out, err = expansion.spec, expansion.json_columns, expansion.out, expansion.err
    start = at
    p = rows_begin(buf, offset, end, EventType.UPDATE_ROWS, spec.shape[0], err)
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
        p = old_image(buf, p, end, spec, expansion.before, err)
        if p < 0:
            return -1
        at = moved(buf, begin, p - begin, out, at, write)
        # Unknown options would change the bytes that follow.
        if p >= end or buf[p] > 1:
            return fault(err, k.CUT if p >= end else k.BAD_HEADER, -1, p)
        partial_bits = np.int64(-1)
        if buf[p] == 1:
            partial_bits = p + 1
            p += bitmap
        p += 1
        if p > end:
            return fault(err, k.CUT, -1, begin)
        p, at = expand_image(buf, p, end, partial_bits, expansion, at, write)
        if p < 0:
            return -1
    if write:
        out[start + 4] = np.uint8(EventType.UPDATE_ROWS)
    return finished(out, start, at, tail, write, offset, err)


@njit
def finished(out: Bytes, start: int, at: int, tail: int, write: bool, offset: int, err: Longs) -> int:
    """Ends the rewritten event ``out[start:at]``: writes its length, and zeros for a checksum of ``tail`` bytes.
    Returns the offset behind it, or -1 with a fault noted at ``offset``, where the original begins."""
    at += tail
    if at - start > _MAX_SIZE:
        return fault(err, k.NO_ROOM, -1, offset)
    if write:
        store_u32(out, start + 9, at - start)
        for i in range(at - tail, at):
            out[i] = np.uint8(0)
    return at


@njit
def expand_events(events: EventArrays, expansion: Expansion, out_offset: Longs, write: bool) -> int:
    """Rewrites the events one behind the other and writes the offset of each to ``out_offset`` (events + 1). Without
    ``write`` they are only measured. Returns the size of all in bytes, or -1 with a fault noted."""
    at = np.int64(0)
    for i in range(events.offset.shape[0]):
        out_offset[i] = at
        at = expand_event(events, i, expansion, at, write)
        if at < 0:
            return -1
    out_offset[events.offset.shape[0]] = at
    return at
