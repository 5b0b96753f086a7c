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
from cdc.kernels.memory import bit_is_set, copy_bytes, i64, move_bytes, prefix_value, put_word, u32, u48, word

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

STATEMENT = 100
"""The next item is a statement, which the caller writes."""
BAD_UTF8 = 101
"""A text is not UTF-8: its column has to be converted."""

# Fields of a column's row.
(
    C_KIND,
    C_WIDTH,
    C_PREFIX,
    C_A,
    C_B,
    C_PLAIN,
    C_PLAIN_SIZE,
    C_NULL,
    C_NULL_SIZE,
    C_WIDE,
    C_WIDE_SIZE,
    C_TYPE,
    C_TYPE_SIZE,
    C_SIZE,
) = range(14)
"""C_PLAIN, C_NULL, C_WIDE: where the fields before ``updated`` are in the constants, for a value, for NULL and for an
unsigned number that the signed type does not hold; C_TYPE: the field behind the value."""
T_FIRST, T_COUNT, T_HEAD, T_HEAD_SIZE, T_SIDE, T_SIZE = 0, 1, 2, 3, 4, 5
"""A table's first column and their number; the header's fields of schema and table; 1 if columns have texts made
before."""
N_AT, N_BYTES, N_ERR_POS, N_ERR_COLUMN, N_FRAMES, N_SIZE = 0, 1, 2, 3, 4, 5
"""The offset of the next entry; bytes of the events that became entries; the place of a fault; bytes of the tags and
lengths of the entries."""
_SLACK = 64
_BEGIN, _ROWS, _END = 1, 2, 3
"""Canal's types of entries."""
_INSERT, _UPDATE, _DELETE = 1, 2, 3
"""Canal's types of changes."""
_OLD_ROW, _NEW_ROW, _CHANGED_ROW = 0, 1, 2
_IS_UPDATED = word(bytes((t.COLUMN_UPDATED, 1)))
_IS_NULL, _IS_VALUE = word(bytes((t.COLUMN_IS_NULL, 1))), word(bytes((t.COLUMN_IS_NULL, 0)))
_IS_NO_DDL = word(bytes((t.CHANGE_IS_DDL, 0)))
_UTF8 = word(bytes((t.HEADER_ENCODING, 5)) + b"UTF-8")
_MYSQL = word(bytes((t.HEADER_SOURCE, 2)))
_CURRENT_GTID = word(bytes((t.PAIR_KEY, 8)) + b"curtGtid" + bytes((t.PAIR_VALUE,)))
_ROWS_COUNT = word(bytes((t.PAIR_KEY, 9)) + b"rowsCount" + bytes((t.PAIR_VALUE,)))


class TableArrays(NamedTuple):
    """The tables and their columns."""

    tables: Longs
    """(tables, T_SIZE)"""
    columns: Longs
    """(columns of all tables, C_SIZE)"""
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
    numbers: Longs
    """(N_SIZE,)"""
    side_row: Longs
    """(tables,): the next row of each table among its texts made before."""
    old: Longs
    """(most columns, 2): position and size of the old row's values; size -1: NULL, -2: not there."""


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
    out, numbers, old = output.out, output.numbers, output.old
    consts, columns = tables.consts, tables.columns
    first, count = tables.tables[table, T_FIRST], tables.tables[table, T_COUNT]
    held = 0
    for c in range(count):
        if bit_is_set(buf, present, c):
            held += 1
    nulls = p
    p += bitmap_size(held)
    if p > end:
        numbers[N_ERR_POS] = nulls
        numbers[N_ERR_COLUMN] = 0
        return CUT, 0, 0
    number = 0
    limit = out.shape[0]
    for c in range(count):
        if not bit_is_set(buf, present, c):
            if mode == _OLD_ROW:
                old[c, 1] = -2
            continue
        k = first + c
        is_null = bit_is_set(buf, nulls, number)
        number += 1
        kind = columns[k, C_KIND]
        begin = p
        size = np.int64(-1)
        side_begin = np.int64(0)
        text_size = np.int64(0)
        if not is_null:
            size = columns[k, C_WIDTH]
            if size == 0:
                prefix = columns[k, C_PREFIX]
                if p + prefix > end:
                    numbers[N_ERR_POS] = begin
                    numbers[N_ERR_COLUMN] = c
                    return CUT, 0, 0
                size = prefix_value(buf, p, prefix)
                p += prefix
            if size > end - p:
                numbers[N_ERR_POS] = begin
                numbers[N_ERR_COLUMN] = c
                return CUT, 0, 0
            text_size = size
            if kind == SIDE:
                base = sources.side_base[k, 1 if mode == _OLD_ROW else 0] + side_row
                side_begin = sources.side_at[base]
                text_size = sources.side_at[base + 1] - side_begin
        need = most_bytes(kind, text_size, columns[k, C_A]) + _SLACK
        need += columns[k, C_PLAIN_SIZE] + columns[k, C_NULL_SIZE] + columns[k, C_WIDE_SIZE] + columns[k, C_TYPE_SIZE]
        if need > limit - at:
            return FULL, 0, 0
        updated = mode == _NEW_ROW
        if mode == _CHANGED_ROW:
            if old[c, 1] != size:
                updated = True
            elif size > 0:
                old_at = old[c, 0]
                difference = np.uint8(0)
                for i in range(size):
                    difference |= buf[old_at + i] ^ buf[p + i]
                updated = bool(difference != 0)
        elif mode == _OLD_ROW:
            old[c, 0] = p
            old[c, 1] = size
        out[at] = np.uint8(t.ROW_BEFORE if mode == _OLD_ROW else t.ROW_AFTER)
        body = at + 2
        at = body
        if is_null:
            copy_bytes(out, at, consts, columns[k, C_NULL], columns[k, C_NULL_SIZE])
            at += columns[k, C_NULL_SIZE]
        elif kind == UNSIGNED and buf[p + size - 1] > 127:
            copy_bytes(out, at, consts, columns[k, C_WIDE], columns[k, C_WIDE_SIZE])
            at += columns[k, C_WIDE_SIZE]
        else:
            copy_bytes(out, at, consts, columns[k, C_PLAIN], columns[k, C_PLAIN_SIZE])
            at += columns[k, C_PLAIN_SIZE]
        if updated:
            at = put_word(out, at, _IS_UPDATED)
        at = put_word(out, at, _IS_NULL) if is_null else put_word(out, at, _IS_VALUE)
        if not is_null:
            out[at] = np.uint8(t.COLUMN_VALUE)
            text = at + 2
            if kind < DATE:
                stop = put_number(buf, p, size, kind, columns[k, C_A], columns[k, C_B], out, text)
            elif kind < UTF8:
                stop = put_temporal(buf, p, kind, columns[k, C_A], tables.zone_at, tables.zone_offset, out, text)
            elif kind < SIDE:
                stop = put_characters(buf, p, size, kind, columns[k, C_A], tables.latin1, out, text)
            else:
                copy_bytes(out, text, sources.side, side_begin, text_size)
                stop = text + text_size
            if stop < 0:
                numbers[N_ERR_POS] = begin
                numbers[N_ERR_COLUMN] = c
                return BAD_UTF8 if stop == NOT_UTF8 else BAD_VALUE, 0, 0
            if stop > text:
                at = sealed(out, text, stop, 1)
            p += size
        copy_bytes(out, at, consts, columns[k, C_TYPE], columns[k, C_TYPE_SIZE])
        at = sealed(out, body, at + columns[k, C_TYPE_SIZE], 1)
    return OK, p, at


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
    count = tables.tables[table, T_COUNT]
    err = output.numbers[N_ERR_POS:]
    p, columns = column_bitmaps(buf, offset, end, kind)
    if p < 0 or columns != count:
        err[0] = offset
        err[1] = -1
        return BAD_HEADER if p < 0 else WRONG_COLUMNS, 0, 0
    bitmap = bitmap_size(count)
    present = p
    p += bitmap
    present_new = present
    if change == _UPDATE:
        present_new = p
        p += bitmap
    first = _NEW_ROW if change == _INSERT else _OLD_ROW
    limit = output.out.shape[0]
    has_side = tables.tables[table, T_SIDE] == 1
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
            err[0] = p
            err[1] = -1
            return CUT, 0, 0
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
        head_size = tables.tables[table, T_HEAD_SIZE]
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
        copy_bytes(out, at, tables.consts, tables.tables[table, T_HEAD], head_size)
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
        head_size = tables.tables[table, T_HEAD_SIZE]
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
                output.numbers[N_ERR_POS] = pos
                output.numbers[N_ERR_COLUMN] = -1
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
    """Writes entries of items from ``start`` on, behind ``numbers[N_AT]``, until those in the output have more than
    ``max_bytes`` without their tags and lengths.

    Returns the status and the number of the next item: OK: all are written, or a limit is reached; FULL: the output has
    no room for the next one; STATEMENT; BAD_UTF8; or a fault.
    """
    numbers = output.numbers
    at = numbers[N_AT]
    size = numbers[N_BYTES]
    status = OK
    frames = numbers[N_FRAMES]
    while start < stop and at - frames <= max_bytes:
        if sources.kind[start] == ITEM_STATEMENT:
            status = STATEMENT
            break
        status, end = put_item(sources, tables, output, start, at)
        if status != OK:
            break
        frames += frame_bytes(end - at)
        at = end
        size += sources.length[start]
        start += 1
    numbers[N_AT] = at
    numbers[N_BYTES] = size
    numbers[N_FRAMES] = frames
    return status, start
