"""The compiled writer of Debezium's envelopes: a message for each row, with its key."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc.canal.kernels.texts import put_signed
from cdc.kernels.jit import njit
from cdc.kernels.memory import put_word
from cdc.mq.kernels import rows as r
from cdc.mq.kernels import words as w
from cdc.mq.kernels.rows import Bytes, Definitions, MessageOutput, read_row, read_varint, row_partition
from cdc.mq.kernels.texts import SLACK, put_const, put_null, put_value, room_of

Longs = npt.NDArray[np.int64]
_MESSAGES_OF_ROW = 3


@njit
def put_object(
    buf: Bytes, definitions: Definitions, table: int, output: MessageOutput, base: int, keys: bool, at: int
) -> int:
    """Writes a row, or its key, as an object. Returns the offset behind it; -1: there is no room; -2: a text is not of
    its column's type, which ``numbers[N_ERR]`` names."""
    out, cells, columns = output.out, output.cells, definitions.columns
    first, limit = definitions.tables[table, r.D_FIRST], out.shape[0]
    if limit - at < SLACK:
        return -1
    out[at] = np.uint8(w.OPEN_OBJECT)
    at += 1
    some = False
    for c in range(definitions.tables[table, r.D_COUNT]):
        cell, k = base + c, first + c
        if not cells[cell, r.V_PRESENT] or (keys and not columns[k, r.K_KEY]):
            continue
        p, size, code = cells[cell, r.V_AT], cells[cell, r.V_SIZE], columns[k, r.K_CODE]
        name_size = columns[k, r.K_NAME_SIZE]
        if limit - at < name_size + room_of(buf, code, p, size, columns[k, r.K_A]) + SLACK:
            return -1
        if some:
            out[at] = np.uint8(w.COMMA)
            at += 1
        some = True
        at = put_const(out, at, definitions.consts, columns[k, r.K_NAME], name_size)
        if cells[cell, r.V_NULL]:
            at = put_null(out, at)
        else:
            at = put_value(
                out,
                at,
                buf,
                p,
                size,
                code,
                columns[k, r.K_A],
                columns[k, r.K_B],
                definitions.members,
                definitions.consts,
            )
            if at < 0:
                output.numbers[r.N_ERR] = c
                return -2
    out[at] = np.uint8(w.CLOSE_OBJECT)
    return at + 1


@njit
def put_source(buf: Bytes, entry: Longs, definitions: Definitions, table: int, row: int, out: Bytes, at: int) -> int:
    """Writes the part ``source``, up to its last field. The room was looked at."""
    tables, consts = definitions.tables, definitions.consts
    at = put_const(out, at, consts, tables[table, r.D_HEAD], tables[table, r.D_HEAD_SIZE])
    at = put_signed(out, at, entry[r.E_TIME])
    at = put_const(out, at, consts, tables[table, r.D_TYPES], tables[table, r.D_TYPES_SIZE])
    at = put_signed(out, at, entry[r.E_TIME] * 1000)
    at = put_word(out, at, w.TS_NS)
    at = put_signed(out, at, entry[r.E_TIME] * 1_000_000)
    at = put_const(out, at, consts, tables[table, r.D_TAIL], tables[table, r.D_TAIL_SIZE])
    at = put_signed(out, at, entry[r.E_SERVER])
    if entry[r.E_GTID_SIZE]:
        at = put_word(out, at, w.A_GTID)
        at = put_const(out, at, buf, entry[r.E_GTID], entry[r.E_GTID_SIZE])
        at = put_word(out, at, w.FILE)
    else:
        at = put_word(out, at, w.NO_GTID)
    at = put_const(out, at, buf, entry[r.E_FILE], entry[r.E_FILE_SIZE])
    at = put_word(out, at, w.POS)
    at = put_signed(out, at, entry[r.E_POS])
    at = put_word(out, at, w.ROW)
    at = put_signed(out, at, row)
    at = put_word(out, at, w.THREAD)
    return put_signed(out, at, entry[r.E_THREAD]) if entry[r.E_THREAD] else put_null(out, at)


@njit
def put_message(
    buf: Bytes,
    entry: Longs,
    table: int,
    definitions: Definitions,
    output: MessageOutput,
    change: int,
    row: int,
    now_us: int,
    at: int,
) -> int:
    """Writes the value of one change of the row in the cells. Returns what :func:`put_object` returns."""
    out, count = output.out, definitions.tables[table, r.D_COUNT]
    fixed = (
        definitions.tables[table, r.D_HEAD_SIZE]
        + definitions.tables[table, r.D_TYPES_SIZE]
        + definitions.tables[table, r.D_TAIL_SIZE]
    )
    fixed += entry[r.E_GTID_SIZE] + entry[r.E_FILE_SIZE] + w.MOST_WORDS
    if out.shape[0] - at < fixed:
        return -1
    at = put_word(out, at, w.BEFORE)
    if change == r.INSERT:
        at = put_null(out, at)
    else:
        at = put_object(buf, definitions, table, output, 0, False, at)
        if at < 0:
            return at
    if out.shape[0] - at < fixed:
        return -1
    at = put_word(out, at, w.AFTER)
    if change == r.DELETE:
        at = put_null(out, at)
    else:
        at = put_object(buf, definitions, table, output, count, False, at)
        if at < 0:
            return at
    if out.shape[0] - at < fixed:
        return -1
    at = put_source(buf, entry, definitions, table, row, out, at)
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
    out[at] = np.uint8(w.CLOSE_OBJECT)
    return at + 1


@njit
def note(
    output: MessageOutput, count: int, entry: Longs, table: int, start: int, end: int, key: int, key_end: int, part: int
) -> int:
    """Appends a message. Returns the number of messages."""
    messages = output.messages
    messages[count, r.M_START] = start
    messages[count, r.M_END] = end
    messages[count, r.M_KEY] = key
    messages[count, r.M_KEY_END] = key_end
    messages[count, r.M_TABLE] = table
    messages[count, r.M_PARTITION] = part
    messages[count, r.M_ROWS] = 1 if start >= 0 else 0
    messages[count, r.M_KIND] = r.PLAIN
    messages[count, r.M_POS] = entry[r.E_POS]
    return count + 1


@njit
def moved(definitions: Definitions, table: int, cells: Longs, count: int) -> bool:
    """Whether an update has changed the row's key."""
    first = definitions.tables[table, r.D_FIRST]
    for c in range(count):
        if definitions.columns[first + c, r.K_KEY] and cells[count + c, r.V_PRESENT] and cells[count + c, r.V_UPDATED]:
            return True
    return False


@njit
def place_of(buf: Bytes, definitions: Definitions, table: int, cells: Longs, base: int) -> int:
    """The partition of the row at ``base``; -1: that of the message's key."""
    mode = definitions.tables[table, r.D_MODE]
    if mode == r.BY_HASH:
        return row_partition(buf, definitions, table, cells, base)
    return -1 if mode == r.BY_KEY else definitions.tables[table, r.D_PARTITION]


@njit
def put_envelopes(
    buf: Bytes, entry: Longs, table: int, definitions: Definitions, output: MessageOutput, now_us: int, tombstones: bool
) -> int:
    """Writes the messages of an entry with rows. Returns a status; unless it is OK, nothing is written."""
    cells, numbers = output.cells, output.numbers
    count, has_key = definitions.tables[table, r.D_COUNT], definitions.tables[table, r.D_HAS_KEY] == 1
    at, number = numbers[r.N_AT], numbers[r.N_COUNT]
    change = entry[r.E_CHANGE]
    p = entry[r.E_ROWS]
    row = 0
    while p < entry[r.E_ROWS_END]:
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
            at = put_object(buf, definitions, table, output, base, True, at)
            if at < 0:
                return r.FULL if at == -1 else r.BAD_TEXT
            key_end = at
        part = place_of(buf, definitions, table, cells, base)
        if change == r.UPDATE and has_key and moved(definitions, table, cells, count):
            old = at
            at = put_object(buf, definitions, table, output, 0, True, at)
            if at < 0:
                return r.FULL if at == -1 else r.BAD_TEXT
            old_end = at
            old_part = place_of(buf, definitions, table, cells, 0)
            at = put_message(buf, entry, table, definitions, output, r.DELETE, row, now_us, at)
            if at < 0:
                return r.FULL if at == -1 else r.BAD_TEXT
            number = note(output, number, entry, table, old_end, at, old, old_end, old_part)
            output.messages[number - 1, r.M_KIND] = r.HAS_NEW_KEY
            output.messages[number - 1, r.M_OTHER] = key
            output.messages[number - 1, r.M_OTHER_END] = key_end
            output.messages[number - 1, r.M_ROWS] = 0
            if tombstones:
                number = note(output, number, entry, table, -1, -1, old, old_end, old_part)
            start = at
            at = put_message(buf, entry, table, definitions, output, r.INSERT, row, now_us, at)
            if at < 0:
                return r.FULL if at == -1 else r.BAD_TEXT
            number = note(output, number, entry, table, start, at, key, key_end, part)
            output.messages[number - 1, r.M_KIND] = r.HAS_OLD_KEY
            output.messages[number - 1, r.M_OTHER] = old
            output.messages[number - 1, r.M_OTHER_END] = old_end
        else:
            start = at
            at = put_message(buf, entry, table, definitions, output, change, row, now_us, at)
            if at < 0:
                return r.FULL if at == -1 else r.BAD_TEXT
            number = note(output, number, entry, table, start, at, key, key_end, part)
            if change == r.DELETE and has_key and tombstones:
                number = note(output, number, entry, table, -1, -1, key, key_end, part)
        row += 1
    numbers[r.N_AT], numbers[r.N_COUNT] = at, number
    return r.OK
