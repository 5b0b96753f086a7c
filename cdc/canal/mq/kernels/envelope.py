"""The compiled writer of Debezium's envelopes: a message for each row, with its key."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc.canal.kernels.texts import put_signed
from cdc.canal.mq.kernels import rows as r
from cdc.canal.mq.kernels import words as w
from cdc.canal.mq.kernels.rows import (
    Bytes,
    Cell,
    Definitions,
    MessageOutput,
    MessageSource,
    note,
    read_row,
    read_varint,
    row_partition,
)
from cdc.canal.mq.kernels.texts import SLACK, put_const, put_null, put_value, room_of
from cdc.kernels.jit import njit
from cdc.kernels.memory import put_word
from cdc.kernels.records import Records
from cdc.kernels.texts import CLOSE_OBJECT, COMMA, OPEN_OBJECT

Longs = npt.NDArray[np.int64]
_MESSAGES_OF_ROW = 3


@njit
def put_object(source: MessageSource, table: int, output: MessageOutput, base: int, keys: bool, at: int) -> int:
    """Writes a row, or its key, as an object. Returns the offset behind it; -1: there is no room; -2: a text is not of
    its column's type, which ``progress.err_column`` names."""
    buf, definitions = source.buf, source.definitions
    out, cells, columns = output.out, output.cells, definitions.columns
    first, limit = definitions.tables[table].first, out.shape[0]
    if limit - at < SLACK:
        return -1
    out[at] = np.uint8(OPEN_OBJECT)
    at += 1
    some = False
    for c in range(definitions.tables[table].count):
        cell, k = base + c, first + c
        if not cells[cell].present or (keys and not columns[k].key):
            continue
        p, size, code = cells[cell].at, cells[cell].length, columns[k].code
        name_size = columns[k].name_length
        if limit - at < name_size + room_of(buf, code, p, size, columns[k].a) + SLACK:
            return -1
        if some:
            out[at] = np.uint8(COMMA)
            at += 1
        some = True
        at = put_const(out, at, definitions.consts, columns[k].name, name_size)
        if cells[cell].null:
            at = put_null(out, at)
        else:
            at = put_value(out, at, buf, p, size, columns[k], definitions.members, definitions.consts)
            if at < 0:
                output.progress.err_column = c
                return -2
    out[at] = np.uint8(CLOSE_OBJECT)
    return at + 1


@njit
def put_source(source: MessageSource, table: int, row: int, out: Bytes, at: int) -> int:
    """Writes the part ``source``, up to its last field. The room was looked at."""
    buf, entry, definitions = source.buf, source.entry, source.definitions
    tables, consts = definitions.tables, definitions.consts
    at = put_const(out, at, consts, tables[table].head, tables[table].head_length)
    at = put_signed(out, at, entry.time)
    at = put_const(out, at, consts, tables[table].types, tables[table].types_length)
    at = put_signed(out, at, entry.time * 1000)
    at = put_word(out, at, w.TS_NS)
    at = put_signed(out, at, entry.time * 1_000_000)
    at = put_const(out, at, consts, tables[table].tail, tables[table].tail_length)
    at = put_signed(out, at, entry.server)
    if entry.gtid_length:
        at = put_word(out, at, w.A_GTID)
        at = put_const(out, at, buf, entry.gtid, entry.gtid_length)
        at = put_word(out, at, w.FILE)
    else:
        at = put_word(out, at, w.NO_GTID)
    at = put_const(out, at, buf, entry.file, entry.file_length)
    at = put_word(out, at, w.POS)
    at = put_signed(out, at, entry.pos)
    at = put_word(out, at, w.ROW)
    at = put_signed(out, at, row)
    at = put_word(out, at, w.THREAD)
    return put_signed(out, at, entry.thread) if entry.thread else put_null(out, at)


@njit
def put_message(
    source: MessageSource, table: int, output: MessageOutput, change: int, row: int, now_us: int, at: int
) -> int:
    """Writes the value of one change of the row in the cells. Returns what :func:`put_object` returns."""
    entry, definitions = source.entry, source.definitions
    out, count = output.out, definitions.tables[table].count
    fixed = (
        definitions.tables[table].head_length
        + definitions.tables[table].types_length
        + definitions.tables[table].tail_length
    )
    fixed += entry.gtid_length + entry.file_length + w.MOST_WORDS
    if out.shape[0] - at < fixed:
        return -1
    at = put_word(out, at, w.BEFORE)
    if change == r.INSERT:
        at = put_null(out, at)
    else:
        at = put_object(source, table, output, 0, False, at)
        if at < 0:
            return at
    if out.shape[0] - at < fixed:
        return -1
    at = put_word(out, at, w.AFTER)
    if change == r.DELETE:
        at = put_null(out, at)
    else:
        at = put_object(source, table, output, count, False, at)
        if at < 0:
            return at
    if out.shape[0] - at < fixed:
        return -1
    at = put_source(source, table, row, out, at)
    if change == r.INSERT:
        at = put_word(out, at, w.CREATED)
    elif change == r.UPDATE:
        at = put_word(out, at, w.CHANGED)
    else:
        at = put_word(out, at, w.REMOVED)
    at = put_signed(out, at, now_us // 1000)
    at = put_word(out, at, w.TS_US)
    at = put_signed(out, at, now_us)
    at = put_word(out, at, w.TS_NS)
    at = put_signed(out, at, now_us * 1000)
    out[at] = np.uint8(CLOSE_OBJECT)
    return at + 1


@njit
def moved(definitions: Definitions, table: int, cells: Records[Cell], count: int) -> bool:
    """Whether an update has changed the row's key."""
    first = definitions.tables[table].first
    for c in range(count):
        if definitions.columns[first + c].key and cells[count + c].present and cells[count + c].updated:
            return True
    return False


@njit
def place_of(buf: Bytes, definitions: Definitions, table: int, cells: Records[Cell], base: int) -> int:
    """The partition of the row at ``base``; -1: that of the message's key."""
    mode = definitions.tables[table].mode
    if mode == r.BY_HASH:
        return row_partition(buf, definitions, table, cells, base)
    return -1 if mode == r.BY_KEY else definitions.tables[table].partition


@njit
def put_envelopes(source: MessageSource, table: int, output: MessageOutput, now_us: int, tombstones: bool) -> int:
    """Writes the messages of an entry with rows. Returns a status; unless it is OK, nothing is written."""
    buf, entry, definitions = source.buf, source.entry, source.definitions
    cells, progress = output.cells, output.progress
    count, has_key = definitions.tables[table].count, definitions.tables[table].has_key == 1
    at, number = progress.end, progress.count
    change = entry.change
    p = entry.rows
    row = 0
    while p < entry.rows_end:
        size, p = read_varint(buf, p + 1)
        if number + _MESSAGES_OF_ROW > output.messages.shape[0]:
            return r.FULL
        if not read_row(buf, p, p + size, cells, count):
            return r.BAD_ENTRY
        p += size
        base = 0 if change == r.DELETE else count
        key = np.int64(-1)
        key_end = np.int64(-1)
        if has_key:
            key = at
            at = put_object(source, table, output, base, True, at)
            if at < 0:
                return r.FULL if at == -1 else r.BAD_TEXT
            key_end = at
        part = place_of(buf, definitions, table, cells, base)
        if change == r.UPDATE and has_key and moved(definitions, table, cells, count):
            old = at
            at = put_object(source, table, output, 0, True, at)
            if at < 0:
                return r.FULL if at == -1 else r.BAD_TEXT
            old_end = at
            old_part = place_of(buf, definitions, table, cells, 0)
            at = put_message(source, table, output, r.DELETE, row, now_us, at)
            if at < 0:
                return r.FULL if at == -1 else r.BAD_TEXT
            number = note(output, number, entry, table, old_end, at, old, old_end, old_part, 1)
            output.messages[number - 1].kind = r.HAS_NEW_KEY
            output.messages[number - 1].other = key
            output.messages[number - 1].other_end = key_end
            output.messages[number - 1].rows = 0
            if tombstones:
                number = note(output, number, entry, table, -1, -1, old, old_end, old_part, 0)
            start = at
            at = put_message(source, table, output, r.INSERT, row, now_us, at)
            if at < 0:
                return r.FULL if at == -1 else r.BAD_TEXT
            number = note(output, number, entry, table, start, at, key, key_end, part, 1)
            output.messages[number - 1].kind = r.HAS_OLD_KEY
            output.messages[number - 1].other = old
            output.messages[number - 1].other_end = old_end
        else:
            start = at
            at = put_message(source, table, output, change, row, now_us, at)
            if at < 0:
                return r.FULL if at == -1 else r.BAD_TEXT
            number = note(output, number, entry, table, start, at, key, key_end, part, 1)
            if change == r.DELETE and has_key and tombstones:
                number = note(output, number, entry, table, -1, -1, key, key_end, part, 0)
        row += 1
    progress.end, progress.count = at, number
    return r.OK
