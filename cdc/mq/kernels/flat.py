"""The compiled writer of Canal's flat messages: JSON with the rows of one event, or of those in one partition."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc.canal.kernels.texts import put_signed
from cdc.kernels.jit import njit
from cdc.kernels.memory import put_word
from cdc.mq.kernels import rows as r
from cdc.mq.kernels import words as w
from cdc.mq.kernels.rows import Bytes, Definitions, MessageOutput, number_of, read_row, read_varint, row_partition
from cdc.mq.kernels.texts import SLACK, escaped_size, put_const, put_null, put_text

Longs = npt.NDArray[np.int64]

MORE_ROWS = 6
"""The entry has more rows than there is room for in ``parts``; their number is in ``numbers[N_COUNT]``, which the
caller restores."""


@njit
def put_columns(
    buf: Bytes, definitions: Definitions, table: int, cells: Longs, base: int, updated: int, out: Bytes, at: int
) -> int:
    """Writes a row as an object of texts. ``updated`` is the first cell whose columns say which ones are wanted; -1:
    all. Returns the offset behind it; -1: there is no room."""
    first, limit = definitions.tables[table, r.D_FIRST], out.shape[0]
    if limit - at < SLACK:
        return -1
    out[at] = np.uint8(w.OPEN_OBJECT)
    at += 1
    some = False
    for c in range(definitions.tables[table, r.D_COUNT]):
        cell = base + c
        if not cells[cell, r.V_PRESENT] or (updated >= 0 and not cells[updated + c, r.V_UPDATED]):
            continue
        name_size = definitions.columns[first + c, r.K_NAME_SIZE]
        if limit - at < name_size + escaped_size(buf, cells[cell, r.V_AT], cells[cell, r.V_SIZE]) + SLACK:
            return -1
        if some:
            out[at] = np.uint8(w.COMMA)
            at += 1
        some = True
        at = put_const(out, at, definitions.consts, definitions.columns[first + c, r.K_NAME], name_size)
        if cells[cell, r.V_NULL]:
            at = put_null(out, at)
        else:
            at = put_text(out, at, buf, cells[cell, r.V_AT], cells[cell, r.V_SIZE])
    out[at] = np.uint8(w.CLOSE_OBJECT)
    return at + 1


@njit
def put_rows(
    buf: Bytes, entry: Longs, table: int, definitions: Definitions, output: MessageOutput, part: int, old: bool, at: int
) -> int:
    """Writes the rows of a partition, separated by commas; their old columns if ``old``. Returns the offset behind
    them; -1: there is no room; -2: a column is not in the definition."""
    cells, out = output.cells, output.out
    count = definitions.tables[table, r.D_COUNT]
    base = 0 if old or entry[r.E_CHANGE] == r.DELETE else count
    p = entry[r.E_ROWS]
    number = 0
    some = False
    while p < entry[r.E_ROWS_END]:
        size, p = read_varint(buf, p + 1)
        if output.parts[number] == part:
            if not read_row(buf, p, p + size, cells, count):
                return -2
            if some:
                out[at] = np.uint8(w.COMMA)
                at += 1
            some = True
            at = put_columns(buf, definitions, table, cells, base, count if old else -1, out, at)
            if at < 0:
                return at
        p += size
        number += 1
    return at


@njit
def find_parts(buf: Bytes, entry: Longs, table: int, definitions: Definitions, output: MessageOutput) -> int:
    """Notes the partition of each row. Returns OK or BAD_ENTRY."""
    count = definitions.tables[table, r.D_COUNT]
    base = 0 if entry[r.E_CHANGE] == r.DELETE else count
    p = entry[r.E_ROWS]
    number = 0
    hashed = definitions.tables[table, r.D_MODE] == r.BY_HASH
    while p < entry[r.E_ROWS_END]:
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
def put_types(buf: Bytes, entry: Longs, table: int, definitions: Definitions, output: MessageOutput, at: int) -> int:
    """Writes the types of the columns in the last row. Returns the offset behind them; -1: there is no room."""
    cells, out = output.cells, output.out
    count, first = definitions.tables[table, r.D_COUNT], definitions.tables[table, r.D_FIRST]
    base = 0 if entry[r.E_CHANGE] == r.DELETE else count
    p = entry[r.E_ROWS]
    while p < entry[r.E_ROWS_END]:
        size, p = read_varint(buf, p + 1)
        if p + size >= entry[r.E_ROWS_END]:
            read_row(buf, p, p + size, cells, count)
        p += size
    some = False
    for c in range(count):
        if cells[base + c, r.V_PRESENT]:
            name_size = definitions.columns[first + c, r.K_NAME_SIZE]
            if out.shape[0] - at < name_size + SLACK:
                return -1
            if some:
                out[at] = np.uint8(w.COMMA)
                at += 1
            some = True
            at = put_const(out, at, definitions.consts, definitions.columns[first + c, r.K_NAME], name_size)
            at = put_signed(out, at, cells[base + c, r.V_TYPE])
    return at


@njit
def put_flat(
    buf: Bytes, entry: Longs, table: int, definitions: Definitions, output: MessageOutput, batch: int, now_ms: int
) -> int:
    """Writes the messages of an entry with rows. Returns a status; unless it is OK, nothing is written."""
    out, numbers, messages = output.out, output.numbers, output.messages
    rows = number_of(buf, entry)
    if rows > output.parts.shape[0]:
        return MORE_ROWS
    if find_parts(buf, entry, table, definitions, output) != r.OK:
        return r.BAD_ENTRY
    tables, consts = definitions.tables, definitions.consts
    fixed = tables[table, r.D_HEAD_SIZE] + tables[table, r.D_TYPES_SIZE] + tables[table, r.D_KEYS_SIZE]
    fixed += tables[table, r.D_TAIL_SIZE] + entry[r.E_GTID_SIZE] + w.MOST_WORDS
    at, count = numbers[r.N_AT], numbers[r.N_COUNT]
    part = next_part(output.parts, rows, -1)
    while part >= 0:
        if out.shape[0] - at < fixed or count >= messages.shape[0]:
            return r.FULL
        start = at
        at = put_word(out, at, w.DATA)
        at = put_rows(buf, entry, table, definitions, output, part, False, at)
        if at < 0:
            return r.FULL if at == -1 else r.BAD_ENTRY
        if out.shape[0] - at < fixed:
            return r.FULL
        at = put_const(out, at, consts, tables[table, r.D_HEAD], tables[table, r.D_HEAD_SIZE])
        at = put_signed(out, at, entry[r.E_TIME])
        at = put_word(out, at, w.GTID)
        at = put_const(out, at, buf, entry[r.E_GTID], entry[r.E_GTID_SIZE])
        at = put_word(out, at, w.ID)
        at = put_signed(out, at, batch)
        at = put_const(out, at, consts, tables[table, r.D_TYPES], tables[table, r.D_TYPES_SIZE])
        if entry[r.E_CHANGE] == r.UPDATE:
            out[at] = np.uint8(w.OPEN_LIST)
            at = put_rows(buf, entry, table, definitions, output, part, True, at + 1)
            if at < 0:
                return r.FULL if at == -1 else r.BAD_ENTRY
            if out.shape[0] - at < fixed:
                return r.FULL
            out[at] = np.uint8(w.CLOSE_LIST)
            at += 1
        else:
            at = put_null(out, at)
        at = put_const(out, at, consts, tables[table, r.D_KEYS], tables[table, r.D_KEYS_SIZE])
        at = put_types(buf, entry, table, definitions, output, at)
        if at < 0 or out.shape[0] - at < fixed:
            return r.FULL
        at = put_const(out, at, consts, tables[table, r.D_TAIL], tables[table, r.D_TAIL_SIZE])
        at = put_signed(out, at, now_ms)
        if entry[r.E_CHANGE] == r.INSERT:
            at = put_word(out, at, w.INSERTED)
        elif entry[r.E_CHANGE] == r.UPDATE:
            at = put_word(out, at, w.UPDATED)
        else:
            at = put_word(out, at, w.DELETED)
        messages[count, r.M_START] = start
        messages[count, r.M_END] = at
        messages[count, r.M_KEY] = -1
        messages[count, r.M_TABLE] = table
        messages[count, r.M_PARTITION] = part if tables[table, r.D_MODE] == r.BY_HASH else tables[table, r.D_PARTITION]
        messages[count, r.M_ROWS] = rows_in(output.parts, rows, part)
        messages[count, r.M_KIND] = 0
        messages[count, r.M_POS] = entry[r.E_POS]
        count += 1
        part = next_part(output.parts, rows, part)
    numbers[r.N_AT], numbers[r.N_COUNT] = at, count
    return r.OK
