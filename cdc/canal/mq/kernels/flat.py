"""The compiled writer of Canal's flat messages: JSON with the rows of one event, or of those in one partition."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc.canal.kernels.texts import put_signed
from cdc.canal.mq.kernels import rows as r
from cdc.canal.mq.kernels import words as w
from cdc.canal.mq.kernels.rows import (
    MessageOutput,
    MessageSource,
    note,
    number_of,
    read_row,
    read_varint,
    row_partition,
)
from cdc.canal.mq.kernels.texts import SLACK, escaped_size, put_const, put_null, put_text
from cdc.kernels.jit import njit
from cdc.kernels.memory import put_word
from cdc.kernels.texts import CLOSE_LIST, CLOSE_OBJECT, COMMA, OPEN_LIST, OPEN_OBJECT

Longs = npt.NDArray[np.int64]

MORE_ROWS = 6
"""The entry has more rows than there is room for in ``parts``; their number is in ``progress.count``, which the
caller restores."""


@njit
def put_columns(source: MessageSource, table: int, output: MessageOutput, base: int, updated: int, at: int) -> int:
    """Writes a row as an object of texts. ``updated`` is the first cell whose columns say which ones are wanted; -1:
    all. Returns the offset behind it; -1: there is no room."""
    buf, definitions = source.buf, source.definitions
    cells, out = output.cells, output.out
    first, limit = definitions.tables[table].first, out.shape[0]
    if limit - at < SLACK:
        return -1
    out[at] = np.uint8(OPEN_OBJECT)
    at += 1
    some = False
    for c in range(definitions.tables[table].count):
        cell = base + c
        if not cells[cell].present or (updated >= 0 and not cells[updated + c].updated):
            continue
        name_size = definitions.columns[first + c].name_length
        if limit - at < name_size + escaped_size(buf, cells[cell].at, cells[cell].length) + SLACK:
            return -1
        if some:
            out[at] = np.uint8(COMMA)
            at += 1
        some = True
        at = put_const(out, at, definitions.consts, definitions.columns[first + c].name, name_size)
        value = cells[cell]
        at = put_null(out, at) if value.null else put_text(out, at, buf, value.at, value.length)
    out[at] = np.uint8(CLOSE_OBJECT)
    return at + 1


@njit
def put_rows(source: MessageSource, table: int, output: MessageOutput, part: int, old: bool, at: int) -> int:
    """Writes the rows of a partition, separated by commas; their old columns if ``old``. Returns the offset behind
    them; -1: there is no room; -2: a column is not in the definition."""
    buf, entry, definitions = source.buf, source.entry, source.definitions
    cells, out = output.cells, output.out
    count = definitions.tables[table].count
    base = 0 if old or entry.change == r.DELETE else count
    p = entry.rows
    number = 0
    some = False
    while p < entry.rows_end:
        size, p = read_varint(buf, p + 1)
        if output.parts[number] == part:
            if not read_row(buf, p, p + size, cells, count):
                return -2
            if some:
                out[at] = np.uint8(COMMA)
                at += 1
            some = True
            at = put_columns(source, table, output, base, count if old else -1, at)
            if at < 0:
                return at
        p += size
        number += 1
    return at


@njit
def find_parts(source: MessageSource, table: int, output: MessageOutput) -> int:
    """Notes the partition of each row. Returns OK or BAD_ENTRY."""
    buf, entry, definitions = source.buf, source.entry, source.definitions
    count = definitions.tables[table].count
    base = 0 if entry.change == r.DELETE else count
    p = entry.rows
    number = 0
    hashed = definitions.tables[table].mode == r.BY_HASH
    while p < entry.rows_end:
        size, p = read_varint(buf, p + 1)
        part = np.int64(0)
        if hashed:
            if not read_row(buf, p, p + size, output.cells, count):
                return r.BAD_ENTRY
            part = row_partition(buf, definitions, table, output.cells, base)
        output.parts[number] = part
        number += 1
        p += size
    return r.OK


@njit
def next_part(parts: Longs, rows: int, before: int) -> int:
    """The least partition above ``before``; -1 if there is none."""
    next_partition = np.int64(-1)
    for i in range(rows):
        if parts[i] > before and (next_partition < 0 or parts[i] < next_partition):
            next_partition = parts[i]
    return next_partition


@njit
def rows_in(parts: Longs, rows: int, part: int) -> int:
    count = 0
    for i in range(rows):
        if parts[i] == part:
            count += 1
    return count


@njit
def put_types(source: MessageSource, table: int, output: MessageOutput, at: int) -> int:
    """Writes the types of the columns in the last row. Returns the offset behind them; -1: there is no room."""
    buf, entry, definitions = source.buf, source.entry, source.definitions
    cells, out = output.cells, output.out
    count, first = definitions.tables[table].count, definitions.tables[table].first
    base = 0 if entry.change == r.DELETE else count
    p = entry.rows
    while p < entry.rows_end:
        size, p = read_varint(buf, p + 1)
        if p + size >= entry.rows_end:
            read_row(buf, p, p + size, cells, count)
        p += size
    some = False
    for c in range(count):
        if cells[base + c].present:
            name_size = definitions.columns[first + c].name_length
            if out.shape[0] - at < name_size + SLACK:
                return -1
            if some:
                out[at] = np.uint8(COMMA)
                at += 1
            some = True
            at = put_const(out, at, definitions.consts, definitions.columns[first + c].name, name_size)
            at = put_signed(out, at, cells[base + c].kind)
    return at


@njit
def put_flat(source: MessageSource, table: int, output: MessageOutput, batch: int, now_ms: int) -> int:
    """Writes the messages of an entry with rows. Returns a status; unless it is OK, nothing is written."""
    buf, entry, definitions = source.buf, source.entry, source.definitions
    out, progress = output.out, output.progress
    rows = number_of(buf, entry)
    if rows > output.parts.shape[0]:
        return MORE_ROWS
    if find_parts(source, table, output) != r.OK:
        return r.BAD_ENTRY
    tables, consts = definitions.tables, definitions.consts
    fixed = tables[table].head_length + tables[table].types_length + tables[table].keys_length
    fixed += tables[table].tail_length + entry.gtid_length + w.MOST_WORDS
    at, count = progress.end, progress.count
    part = next_part(output.parts, rows, -1)
    while part >= 0:
        if out.shape[0] - at < fixed or count >= output.messages.shape[0]:
            return r.FULL
        start = at
        at = put_word(out, at, w.DATA)
        at = put_rows(source, table, output, part, False, at)
        if at < 0:
            return r.FULL if at == -1 else r.BAD_ENTRY
        if out.shape[0] - at < fixed:
            return r.FULL
        at = put_const(out, at, consts, tables[table].head, tables[table].head_length)
        at = put_signed(out, at, entry.time)
        at = put_word(out, at, w.GTID)
        at = put_const(out, at, buf, entry.gtid, entry.gtid_length)
        at = put_word(out, at, w.ID)
        at = put_signed(out, at, batch)
        at = put_const(out, at, consts, tables[table].types, tables[table].types_length)
        if entry.change == r.UPDATE:
            out[at] = np.uint8(OPEN_LIST)
            at = put_rows(source, table, output, part, True, at + 1)
            if at < 0:
                return r.FULL if at == -1 else r.BAD_ENTRY
            if out.shape[0] - at < fixed:
                return r.FULL
            out[at] = np.uint8(CLOSE_LIST)
            at += 1
        else:
            at = put_null(out, at)
        at = put_const(out, at, consts, tables[table].keys, tables[table].keys_length)
        at = put_types(source, table, output, at)
        if at < 0 or out.shape[0] - at < fixed:
            return r.FULL
        at = put_const(out, at, consts, tables[table].tail, tables[table].tail_length)
        at = put_signed(out, at, now_ms)
        if entry.change == r.INSERT:
            at = put_word(out, at, w.INSERTED)
        elif entry.change == r.UPDATE:
            at = put_word(out, at, w.UPDATED)
        else:
            at = put_word(out, at, w.DELETED)
        place = part if definitions.tables[table].mode == r.BY_HASH else definitions.tables[table].partition
        count = note(output, count, entry, table, start, at, -1, -1, place, rows_in(output.parts, rows, part))
        part = next_part(output.parts, rows, part)
    progress.end, progress.count = at, count
    return r.OK
