"""The compiled second pass: writes Canal's entries, each as a field of the packet ``Messages``.

An entry is written behind room for what precedes it: the lengths and the count of rows are known at its end, and are
then put before it. Field numbers are those of ``canal.proto``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cdc.binlog.constants import HEADER_SIZE, EventType
from cdc.binlog.row_header import TABLE_ID_AT, bitmap_size, column_bitmaps, is_insert, is_update
from cdc.canal.kernels import tags as t
from cdc.canal.kernels.survey import ITEM_BEGIN, ITEM_END, ITEM_STATEMENT
from cdc.canal.kernels.texts import (
    DATE,
    NOT_UTF8,
    SIDE,
    UNSIGNED,
    UTF8,
    most_bytes,
    put_characters,
    put_number,
    put_temporal,
    put_unsigned,
)
from cdc.decode.kernels.constants import BAD_HEADER, BAD_VALUE, CUT, FULL, OK, WRONG_COLUMNS
from cdc.kernels.jit import inlined, njit
from cdc.kernels.memory import (
    bit_is_set,
    copy_bytes,
    i64,
    move_bytes,
    put_word,
    same_bytes,
    u32,
    u48,
    value_bounds,
    word,
)
from cdc.kernels.records import Record, Records

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

STATEMENT = 100
"""The next item is a statement, which the caller writes."""
BAD_UTF8 = 101
"""A text is not UTF-8: its column has to be converted."""


class CanalColumn(Record):
    """A column. What precedes and follows its value is in the constants: the fields before ``updated`` for a value, for
    NULL, and for an unsigned number that the signed type does not hold; and the field behind the value."""

    kind: int
    width: int  # bytes of a value; 0: its length precedes it, in as many bytes as prefix says
    prefix: int
    a: int
    b: int
    plain: int
    plain_length: int
    null: int
    null_length: int
    wide: int
    wide_length: int
    declared: int
    declared_length: int


class CanalTableRow(Record):
    """A table."""

    first: int  # its first column
    count: int  # its columns
    head: int  # the header's fields of schema and table in the constants
    head_length: int
    has_side: int  # 1: columns have texts made before


class EntryProgress(Record):
    """The entries that have been written so far."""

    end: int  # of the entries in the output
    source_bytes: int  # of the events that became entries
    frames: int  # bytes of the tags and lengths of the entries
    err_pos: int  # the place of a fault
    err_column: int


_SLACK = 64
_LARGEST_SIGNED_BYTE = 127
"""The last byte of an unsigned number that the signed type of its size holds."""
_BEGIN, _ROWS, _END = 1, 2, 3
"""Canal's types of entries."""
_INSERT, _UPDATE, _DELETE = 1, 2, 3
"""Canal's types of changes."""
_OLD_ROW, _NEW_ROW, _CHANGED_ROW = 0, 1, 2
_NULL, _ABSENT = -1, -2
"""The size of an old row's value that is NULL, or that the row image does not hold."""
_IS_UPDATED = word(bytes((t.COLUMN_UPDATED, 1)))
_IS_NULL, _IS_VALUE = word(bytes((t.COLUMN_IS_NULL, 1))), word(bytes((t.COLUMN_IS_NULL, 0)))
_IS_NO_DDL = word(bytes((t.CHANGE_IS_DDL, 0)))
_UTF8 = word(bytes((t.HEADER_ENCODING, 5)) + b"UTF-8")
_MYSQL = word(bytes((t.HEADER_SOURCE, 2)))
_CURRENT_GTID = word(bytes((t.PAIR_KEY, 8)) + b"curtGtid" + bytes((t.PAIR_VALUE,)))
_ROWS_COUNT = word(bytes((t.PAIR_KEY, 9)) + b"rowsCount" + bytes((t.PAIR_VALUE,)))


class TableArrays(NamedTuple):
    """The tables and their columns."""

    tables: Records[CanalTableRow]
    columns: Records[CanalColumn]
    """The columns of all tables."""
    consts: Bytes
    latin1: Bytes
    zone_at: Longs
    zone_offset: Longs


class Sources(NamedTuple):
    """The items and the bytes that they are made of."""

    buf: Bytes
    tail: int
    kind: Longs
    pos: Longs
    length: Longs
    type: Longs
    table: Longs
    tx: Longs
    alt: Bytes
    """Rewritten events."""
    alt_at: Longs
    """(items,): where a rewritten event begins in ``alt``, and behind the last one; -1: the event is as it was."""
    alt_length: Longs
    alt_type: Longs
    side: Bytes
    """Texts made before."""
    side_at: Longs
    """Their offsets; for each column of texts two runs of (rows + 1), for new and for old rows."""
    side_base: Longs
    """(columns of all tables, 2): the begin of these runs; -1: none."""
    gtids: Bytes
    gtid_at: Longs
    """(transactions + 1,)"""
    ends: Longs
    """(transactions,): the offset of each one's end in the source's file."""
    head: Bytes
    """The header's fields that all events share: version and the name of the file."""


class EntryOutput(NamedTuple):
    """The output and scratch space."""

    out: Bytes
    progress: EntryProgress
    side_row: Longs
    """(tables,): the next row of each table among its texts made before."""
    old: Longs
    """(most columns, 2): position and size of the old row's values; the size may be _NULL or _ABSENT."""


@inlined
def varint_size(value: int) -> int:
    """Bytes of a number that is not negative as varint."""
    size = 1
    while value >= 128:
        value >>= 7
        size += 1
    return size


@inlined
def put_varint(out: Bytes, at: int, value: int) -> int:
    while value >= 128:
        out[at] = np.uint8(value & 127 | 128)
        value >>= 7
        at += 1
    out[at] = np.uint8(value)
    return at + 1


@inlined
def put_field(out: Bytes, at: int, tag: int, value: int) -> int:
    """Writes a number's field; nothing for zero, which proto3 leaves out."""
    if value == 0:
        return at
    out[at] = np.uint8(tag)
    return put_varint(out, at + 1, value)


@inlined
def sealed(out: Bytes, body: int, end: int, reserved: int) -> int:
    """Writes the length of ``out[body:end]`` into the ``reserved`` bytes before it, and moves it if the length takes
    more or fewer. Returns the new end."""
    size = end - body
    n = varint_size(size)
    if n != reserved:
        move_bytes(out, body - reserved + n, body, size)
    put_varint(out, body - reserved, size)
    return end - reserved + n


@inlined
def fault(progress: EntryProgress, pos: int, column: int, status: int) -> tuple[int, int, int]:
    """Notes the place of a fault. ``column`` -1: it is none of a column."""
    progress.err_pos = pos
    progress.err_column = column
    return status, 0, 0


@inlined
def is_changed(buf: Bytes, p: int, size: int, old_at: int, old_size: int) -> bool:
    """Whether a value, of which ``size`` may be _NULL, is another one than the old row's."""
    return bool(old_size != size or (size > 0 and not same_bytes(buf, old_at, p, size)))


@njit
def put_image(
    sources: Sources,
    tables: TableArrays,
    output: EntryOutput,
    buf: Bytes,
    p: int,
    end: int,
    present: int,
    table: int,
    mode: int,
    side_row: int,
    at: int,
) -> tuple[int, int, int]:
    """Writes the columns of the row image at ``p``. ``mode``: _OLD_ROW, _NEW_ROW, or _CHANGED_ROW, which is an
    update's new row.

    Returns the status, the offset behind the image and the offset behind the output.
    """
    out, progress, old = output.out, output.progress, output.old
    first, count = tables.tables[table].first, tables.tables[table].count
    held = 0
    for c in range(count):
        if bit_is_set(buf, present, c):
            held += 1
    nulls = p
    p += bitmap_size(held)
    if p > end:
        return fault(progress, nulls, 0, CUT)
    number = 0
    limit = out.shape[0]
    for c in range(count):
        if not bit_is_set(buf, present, c):
            if mode == _OLD_ROW:
                old[c, 1] = _ABSENT
            continue
        column = tables.columns[first + c]
        begin = p
        size = np.int64(_NULL)
        side_at = np.int64(0)
        text_size = np.int64(0)
        if not bit_is_set(buf, nulls, number):
            p, size = value_bounds(buf, p, end, column.width, column.prefix)
            if size < 0:
                return fault(progress, begin, c, CUT)
            text_size = size
            if column.kind == SIDE:
                base = sources.side_base[first + c, 1 if mode == _OLD_ROW else 0] + side_row
                side_at = sources.side_at[base]
                text_size = sources.side_at[base + 1] - side_at
        number += 1
        need = most_bytes(column.kind, text_size, column.a) + _SLACK
        need += column.plain_length + column.null_length + column.wide_length + column.declared_length
        if need > limit - at:
            return FULL, 0, 0
        updated = mode == _NEW_ROW
        if mode == _CHANGED_ROW:
            updated = is_changed(buf, p, size, old[c, 0], old[c, 1])
        elif mode == _OLD_ROW:
            old[c, 0] = p
            old[c, 1] = size
        out[at] = np.uint8(t.ROW_BEFORE if mode == _OLD_ROW else t.ROW_AFTER)
        body = at + 2
        at = put_column_head(column, tables.consts, buf, p, size, updated, out, body)
        if size != _NULL:
            out[at] = np.uint8(t.COLUMN_VALUE)
            text = at + 2
            if column.kind < SIDE:
                stop = put_text(column, tables, buf, p, size, out, text)
            else:
                copy_bytes(out, text, sources.side, side_at, text_size)
                stop = text + text_size
            if stop < 0:
                return fault(progress, begin, c, BAD_UTF8 if stop == NOT_UTF8 else BAD_VALUE)
            if stop > text:
                at = sealed(out, text, stop, 1)
            p += size
        copy_bytes(out, at, tables.consts, column.declared, column.declared_length)
        at = sealed(out, body, at + column.declared_length, 1)
    return OK, p, at


@inlined
def put_column_head(
    column: CanalColumn, consts: Bytes, buf: Bytes, p: int, size: int, updated: bool, out: Bytes, at: int
) -> int:
    """Writes what precedes the value at ``p``. Returns the offset behind it."""
    start, length = column.plain, column.plain_length
    if size == _NULL:
        start, length = column.null, column.null_length
    elif column.kind == UNSIGNED and buf[p + size - 1] > _LARGEST_SIGNED_BYTE:
        start, length = column.wide, column.wide_length
    copy_bytes(out, at, consts, start, length)
    at += length
    if updated:
        at = put_word(out, at, _IS_UPDATED)
    return put_word(out, at, _IS_NULL) if size == _NULL else put_word(out, at, _IS_VALUE)


@inlined
def put_text(column: CanalColumn, tables: TableArrays, buf: Bytes, p: int, size: int, out: Bytes, at: int) -> int:
    """Writes the text of the value at ``p``. Returns the offset behind it, or a fault."""
    if column.kind < DATE:
        return put_number(buf, p, size, column.kind, column.a, column.b, out, at)
    if column.kind < UTF8:
        return put_temporal(buf, p, column.kind, column.a, tables.zone_at, tables.zone_offset, out, at)
    return put_characters(buf, p, size, column.kind, column.a, tables.latin1, out, at)


@njit
def put_rows(
    sources: Sources,
    tables: TableArrays,
    output: EntryOutput,
    buf: Bytes,
    offset: int,
    end: int,
    kind: int,
    change: int,
    table: int,
    at: int,
) -> tuple[int, int, int]:
    """Writes the rows of a row event. Returns the status, the number of rows and the offset behind the output."""
    count = tables.tables[table].count
    p, columns = column_bitmaps(buf, offset, end, kind)
    if p < 0 or columns != count:
        return fault(output.progress, offset, -1, BAD_HEADER if p < 0 else WRONG_COLUMNS)
    bitmap = bitmap_size(count)
    present = p
    p += bitmap
    present_new = present
    if change == _UPDATE:
        present_new = p
        p += bitmap
    first = _NEW_ROW if change == _INSERT else _OLD_ROW
    limit = output.out.shape[0]
    has_side = tables.tables[table].has_side == 1
    rows = 0
    while p < end:
        if limit - at < _SLACK:
            return FULL, 0, 0
        output.out[at] = np.uint8(t.CHANGE_ROW)
        body = at + 3
        at = body
        side_row = output.side_row[table]
        before = p
        status, p, at = put_image(sources, tables, output, buf, p, end, present, table, first, side_row, at)
        if status == OK and change == _UPDATE:
            status, p, at = put_image(
                sources, tables, output, buf, p, end, present_new, table, _CHANGED_ROW, side_row, at
            )
        if status != OK:
            return status, 0, 0
        if p == before:  # a row without columns would be there for ever
            return fault(output.progress, p, -1, CUT)
        at = sealed(output.out, body, at, 2)
        rows += 1
        if has_side:
            output.side_row[table] = side_row + 1
    return OK, rows, at


@inlined
def source_position(low: int, end: int) -> int:
    """An event's end in the source's file, from its 32 bits and the end of its transaction."""
    if low == 0:
        return end
    position = end >> 32 << 32 | low
    return position - (1 << 32) if position > end and position >= 1 << 32 else position


@njit
def put_entry(
    sources: Sources,
    tables: TableArrays,
    out: Bytes,
    number: int,
    entry_type: int,
    change: int,
    rows: int,
    start: int,
    body: int,
    end: int,
) -> int:
    """Puts before the value at ``out[body:end]`` what makes it an entry in ``Messages``, from ``start`` on. Returns the
    offset behind the entry. The room before ``body`` suffices."""
    buf, pos = sources.buf, sources.pos[number]
    tx, table = sources.tx[number], sources.table[number]
    head_size = np.int64(0)
    if table >= 0:
        head_size = tables.tables[table].head_length
    gtid = sources.gtid_at[tx]
    gtid_size = sources.gtid_at[tx + 1] - gtid
    length = sources.length[number]
    # The header is written before the body, and then moved to where it belongs: its size decides that.
    h = start + 16
    at = h
    copy_bytes(out, at, sources.head, 0, sources.head.shape[0])
    at += sources.head.shape[0]
    at = put_field(out, at, t.HEADER_OFFSET, max(0, source_position(u32(buf, pos + 13), sources.ends[tx]) - length))
    at = put_field(out, at, t.HEADER_SERVER, u32(buf, pos + 5))
    at = put_word(out, at, _UTF8)
    at = put_field(out, at, t.HEADER_TIME, u32(buf, pos) * 1000)
    at = put_word(out, at, _MYSQL)
    if head_size:
        copy_bytes(out, at, tables.consts, tables.tables[table].head, head_size)
        at += head_size
    at = put_field(out, at, t.HEADER_LENGTH, length)
    if change:
        out[at] = np.uint8(t.HEADER_CHANGE)
        out[at + 1] = np.uint8(change)
        at += 2
    if gtid_size:
        out[at] = np.uint8(t.HEADER_PROPS)
        out[at + 1] = np.uint8(_CURRENT_GTID.shape[0] + 1 + gtid_size)
        at = put_word(out, at + 2, _CURRENT_GTID)
        out[at] = np.uint8(gtid_size)
        copy_bytes(out, at + 1, sources.gtids, gtid, gtid_size)
        at += 1 + gtid_size
    if rows:
        out[at] = np.uint8(t.HEADER_PROPS)
        prop = at + 2
        text = put_word(out, prop, _ROWS_COUNT) + 1
        at = put_unsigned(out, text, np.uint64(rows))
        out[text - 1] = np.uint8(at - text)
        out[prop - 1] = np.uint8(at - prop)
    if gtid_size:
        out[at] = np.uint8(t.HEADER_GTID)
        out[at + 1] = np.uint8(gtid_size)
        copy_bytes(out, at + 2, sources.gtids, gtid, gtid_size)
        at += 2 + gtid_size
    header_size = at - h
    size = end - body
    entry_size = 1 + varint_size(header_size) + header_size + 2
    if size:
        entry_size += 1 + varint_size(size) + size
    out[start] = np.uint8(t.MESSAGES)
    at = put_varint(out, start + 1, entry_size)
    out[at] = np.uint8(t.ENTRY_HEADER)
    at = put_varint(out, at + 1, header_size)
    move_bytes(out, at, h, header_size)
    at += header_size
    out[at] = np.uint8(t.ENTRY_TYPE)
    out[at + 1] = np.uint8(entry_type)
    at += 2
    if size:
        out[at] = np.uint8(t.ENTRY_VALUE)
        at = put_varint(out, at + 1, size)
        move_bytes(out, at, body, size)
    return at + size


@inlined
def change_of(kind: int) -> int:
    """INSERT, UPDATE or DELETE by the type of a row event."""
    if is_insert(kind):
        return _INSERT
    return _UPDATE if is_update(kind) else _DELETE


@njit
def put_item(sources: Sources, tables: TableArrays, output: EntryOutput, number: int, start: int) -> tuple[int, int]:
    """Writes the entry of one item that is no statement. Returns the status and the offset behind it."""
    out, buf = output.out, sources.buf
    kind, pos = sources.kind[number], sources.pos[number]
    tx, table = sources.tx[number], sources.table[number]
    head_size = np.int64(0)
    if table >= 0:
        head_size = tables.tables[table].head_length
    gtid_size = sources.gtid_at[tx + 1] - sources.gtid_at[tx]
    body = start + 160 + sources.head.shape[0] + head_size + 2 * gtid_size
    if out.shape[0] - body < 2 * _SLACK:
        return FULL, 0
    at = body
    stop = pos + sources.length[number] - sources.tail
    if kind == ITEM_BEGIN:
        if sources.type[number] == EventType.QUERY:
            at = put_field(out, at, t.BEGIN_THREAD, u32(buf, pos + HEADER_SIZE))
        return OK, put_entry(sources, tables, out, number, _BEGIN, 0, 0, start, body, at)
    if kind == ITEM_END:
        out[at] = np.uint8(t.END_TRANSACTION)
        text = at + 2
        xid = np.uint64(0)
        if sources.type[number] == EventType.XID:
            if stop - pos < HEADER_SIZE + 8:
                fault(output.progress, pos, -1, BAD_HEADER)
                return BAD_HEADER, 0
            xid = np.uint64(i64(buf, pos + HEADER_SIZE))
        at = put_unsigned(out, text, xid)
        out[text - 1] = np.uint8(at - text)
        return OK, put_entry(sources, tables, out, number, _END, 0, 0, start, body, at)
    row_type = sources.type[number]
    row_buf, row_pos, row_end = buf, pos, stop
    rewritten = sources.alt_at[number] >= 0
    if rewritten:
        row_type = sources.alt_type[number]
    change = change_of(row_type)
    at = put_field(out, at, t.CHANGE_TABLE_ID, u48(buf, pos + TABLE_ID_AT))
    out[at] = np.uint8(t.CHANGE_TYPE)
    out[at + 1] = np.uint8(change)
    at = put_word(out, at + 2, _IS_NO_DDL)
    side_row = output.side_row[table]
    if rewritten:
        row_buf = sources.alt
        row_pos = sources.alt_at[number]
        row_end = row_pos + sources.alt_length[number] - sources.tail
    status, rows, at = put_rows(sources, tables, output, row_buf, row_pos, row_end, row_type, change, table, at)
    if status != OK:
        output.side_row[table] = side_row
        return status, 0
    return OK, put_entry(sources, tables, out, number, _ROWS, change, rows, start, body, at)


@njit
def frame_bytes(size: int) -> int:
    """How many of the ``size`` bytes of an entry in ``Messages`` are its tag and length."""
    if size == 0:
        return 0
    length_bytes = 1
    while (size - 1 - length_bytes) >> (7 * length_bytes) > 0:
        length_bytes += 1
    return 1 + length_bytes


@njit
def put_items(
    sources: Sources, tables: TableArrays, output: EntryOutput, start: int, stop: int, max_bytes: int
) -> tuple[int, int]:
    """Writes entries of items from ``start`` on, behind ``progress.end``, until those in the output have more than
    ``max_bytes`` without their tags and lengths.

    Returns the status and the number of the next item: OK: all are written, or a limit is reached; FULL: the output has
    no room for the next one; STATEMENT; BAD_UTF8; or a fault.
    """
    progress = output.progress
    status = OK
    while start < stop and progress.end - progress.frames <= max_bytes:
        if sources.kind[start] == ITEM_STATEMENT:
            status = STATEMENT
            break
        status, end = put_item(sources, tables, output, start, progress.end)
        if status != OK:
            break
        progress.frames += frame_bytes(end - progress.end)
        progress.end = end
        progress.source_bytes += sources.length[start]
        start += 1
    return status, start
