"""Compiled reading of Canal's entries, as :mod:`cdc.canal.kernels.entries` writes them: headers, rows and columns.

The entries were made in this process from verified events, so a length that leaves its message is a fault of ours; the
reads still stay inside the array, because each loop ends at the array's end.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cdc.canal.kernels import tags as t
from cdc.kernels.jit import inlined, njit

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

OK, FULL, NEED_DEFINITION, STATEMENT, BAD_ENTRY, BAD_TEXT = 0, 1, 2, 3, 4, 5
"""FULL: the output has no room for the entry's messages. STATEMENT: the entry has no rows; the caller writes it.
BAD_TEXT: a value's text is not what its type says."""

(
    E_START,
    E_END,
    E_HEADER,
    E_HEADER_SIZE,
    E_KIND,
    E_CHANGE,
    E_TIME,
    E_POS,
    E_SERVER,
    E_FILE,
    E_FILE_SIZE,
    E_GTID,
    E_GTID_SIZE,
    E_NAME,
    E_NAME_SIZE,
    E_VALUE,
    E_VALUE_SIZE,
    E_ROWS,
    E_ROWS_END,
    E_THREAD,
    E_SIZE,
) = range(21)
"""An entry's parts. E_START, E_END: the entry itself; E_NAME: the header's fields of schema and table, which follow
each other; E_ROWS: its rows, in the value; E_THREAD: of the last transaction that began."""
V_AT, V_SIZE, V_NULL, V_UPDATED, V_TYPE, V_PRESENT, V_FIELDS = range(7)
"""A column's value: where its text is, and the type's number in java.sql.Types."""
INSERT, UPDATE, DELETE = 1, 2, 3
BEGIN, ROWS = 1, 2
_WIRE, _BYTES = 7, 2
"""The bits of a tag that say how the field is encoded, and what they are for bytes."""
_DEFINING = (t.COLUMN_INDEX, t.COLUMN_NAME, t.COLUMN_IS_KEY, t.COLUMN_MYSQL_TYPE)
"""The fields of a column by which its table's definition is found."""


class Definitions(NamedTuple):
    """The definitions of tables that were met."""

    hashes: Longs
    """(definitions, 2)"""
    slots: Longs
    """(a power of two,): the number of a definition at its hash; -1: empty."""
    tables: Longs
    """(definitions, D_SIZE)"""
    columns: Longs
    """(columns of all definitions, K_SIZE)"""
    members: Longs
    """(members of all ENUM and SET columns, 2): where a member's text is in ``consts``, and its size."""
    consts: Bytes


(
    D_FIRST,
    D_COUNT,
    D_MODE,
    D_PARTITION,
    D_SEED,
    D_HEAD,
    D_HEAD_SIZE,
    D_TYPES,
    D_TYPES_SIZE,
    D_KEYS,
    D_KEYS_SIZE,
    D_HAS_KEY,
    D_TAIL,
    D_TAIL_SIZE,
    D_SIZE,
) = range(15)
"""D_FIRST: the first of its columns; D_SEED: with which a hash begins; the others are texts in the constants."""
FIXED, BY_HASH, BY_KEY = 0, 1, 2
"""The ways to find a message's partition: D_PARTITION; the hash of values; by the client, from the message's key."""
(K_NAME, K_NAME_SIZE, K_KEY, K_HASHED, K_CODE, K_A, K_B, K_FIELDS) = range(8)
"""K_NAME: ``"name":`` in the constants; K_KEY: in the message's key; K_HASHED: in the hash; K_CODE: how it is
written."""
(M_START, M_END, M_KEY, M_KEY_END, M_TABLE, M_PARTITION, M_ROWS, M_OTHER, M_OTHER_END, M_KIND, M_POS, M_FIELDS) = range(
    12
)
"""A message in the output. M_KEY -1: no key; M_START -1: no value; M_OTHER: the key that its row had or will have."""
PLAIN, HAS_OLD_KEY, HAS_NEW_KEY = 0, 1, 2
N_AT, N_COUNT, N_ERR, N_SIZE = 0, 1, 2, 3


class MessageOutput(NamedTuple):
    """The output and scratch space."""

    out: Bytes
    messages: Longs
    """(room, M_FIELDS)"""
    numbers: Longs
    """(N_SIZE,): the end of the output, the number of messages, the column of an error."""
    cells: Longs
    """(2 * most columns, V_FIELDS): the values of a row, old ones first."""
    parts: Longs
    """(most rows of an event,): the partition of each row."""


@njit
def read_varint(buf: Bytes, p: int) -> tuple[int, int]:
    """Returns a number, as int64, and the offset behind it."""
    value = np.int64(0)
    shift = np.int64(0)
    limit = buf.shape[0]
    while p < limit and shift < 64:
        byte = np.int64(buf[p])
        p += 1
        value |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
    return value, p


@njit
def skip(buf: Bytes, p: int, wire: int) -> int:
    """Returns the offset behind a field's value."""
    value, p = read_varint(buf, p)
    if wire == _BYTES:
        return p + value
    return p


@njit
def read_entry(buf: Bytes, at: int, entry: Longs) -> int:
    """Reads the field ``messages`` at ``at`` into ``entry``. Returns the offset behind it."""
    size, p = read_varint(buf, at + 1)
    end = p + size
    thread = entry[E_THREAD]
    for i in range(E_SIZE):
        entry[i] = 0
    entry[E_START], entry[E_END], entry[E_THREAD] = p, end, thread
    while p < end:
        tag = np.int64(buf[p])
        if tag == t.ENTRY_HEADER:
            size, p = read_varint(buf, p + 1)
            entry[E_HEADER], entry[E_HEADER_SIZE] = p, size
            read_header(buf, p, p + size, entry)
            p += size
        elif tag == t.ENTRY_TYPE:
            entry[E_KIND], p = read_varint(buf, p + 1)
        elif tag == t.ENTRY_VALUE:
            size, p = read_varint(buf, p + 1)
            entry[E_VALUE], entry[E_VALUE_SIZE] = p, size
            p += size
        else:
            p = skip(buf, p + 1, tag & _WIRE)
    if entry[E_KIND] == BEGIN:
        entry[E_THREAD] = 0
        if entry[E_VALUE_SIZE] > 1 and buf[entry[E_VALUE]] == t.BEGIN_THREAD:
            entry[E_THREAD], p = read_varint(buf, entry[E_VALUE] + 1)
    elif entry[E_KIND] == ROWS:
        find_rows(buf, entry)
    return end


@njit
def read_header(buf: Bytes, p: int, end: int, entry: Longs) -> None:
    while p < end:
        begin = p
        tag = np.int64(buf[p])
        value, p = read_varint(buf, p + 1)
        if tag == t.HEADER_OFFSET:
            entry[E_POS] = value
        elif tag == t.HEADER_SERVER:
            entry[E_SERVER] = value
        elif tag == t.HEADER_TIME:
            entry[E_TIME] = value
        elif tag == t.HEADER_CHANGE:
            entry[E_CHANGE] = value
        elif tag & _WIRE == _BYTES:
            if tag == t.HEADER_FILE:
                entry[E_FILE], entry[E_FILE_SIZE] = p, value
            elif tag == t.HEADER_SCHEMA or tag == t.HEADER_TABLE:
                if entry[E_NAME] == 0:
                    entry[E_NAME] = begin
                entry[E_NAME_SIZE] = p + value - entry[E_NAME]
            elif tag == t.HEADER_GTID:
                entry[E_GTID], entry[E_GTID_SIZE] = p, value
            p += value


@njit
def find_rows(buf: Bytes, entry: Longs) -> None:
    """Notes where the rows begin and end in the value: they follow each other."""
    p = entry[E_VALUE]
    end = p + entry[E_VALUE_SIZE]
    while p < end:
        begin = p
        tag = np.int64(buf[p])
        p = skip(buf, p + 1, tag & _WIRE)
        if tag == t.CHANGE_ROW:
            if entry[E_ROWS_END] == 0:
                entry[E_ROWS] = begin
            entry[E_ROWS_END] = p


@njit
def definition_of(buf: Bytes, entry: Longs, definitions: Definitions) -> int:
    """The number of the definition of the entry's table: its name, and names, types and key of the columns of the first
    row; -1 if it is not known."""
    a = np.int64(1469598103934665603)
    b = np.int64(7809847782465536322)
    for i in range(entry[E_NAME], entry[E_NAME] + entry[E_NAME_SIZE]):
        a = (a ^ np.int64(buf[i])) * np.int64(1099511628211)
        b = (b + np.int64(buf[i])) * np.int64(6364136223846793005)
    size, p = read_varint(buf, entry[E_ROWS] + 1)
    end = p + size
    row_tag = t.ROW_BEFORE if entry[E_CHANGE] == DELETE else t.ROW_AFTER
    while p < end:
        tag = np.int64(buf[p])
        size, p = read_varint(buf, p + 1)
        stop = p + size
        if tag == row_tag:
            while p < stop:
                field = np.int64(buf[p])
                begin = p
                p = skip(buf, p + 1, field & _WIRE)
                if field in _DEFINING:
                    for i in range(begin, p):
                        a = (a ^ np.int64(buf[i])) * np.int64(1099511628211)
                        b = (b + np.int64(buf[i])) * np.int64(6364136223846793005)
        p = stop
    mask = definitions.slots.shape[0] - 1
    slot = (a ^ a >> np.int64(32)) & mask
    while definitions.slots[slot] >= 0:
        number = definitions.slots[slot]
        if definitions.hashes[number, 0] == a and definitions.hashes[number, 1] == b:
            return number
        slot = (slot + 1) & mask
    definitions.hashes[definitions.hashes.shape[0] - 1, 0] = a
    definitions.hashes[definitions.hashes.shape[0] - 1, 1] = b
    return -1


@njit
def read_row(buf: Bytes, p: int, end: int, cells: Longs, count: int) -> bool:
    """Reads the columns of the row ``buf[p:end]``: old ones into the first ``count`` cells, new ones into the next.
    Returns False for a column that is not in the definition."""
    for i in range(2 * count):
        cells[i, V_PRESENT] = 0
    while p < end:
        tag = np.int64(buf[p])
        size, p = read_varint(buf, p + 1)
        stop = p + size
        if tag == t.ROW_BEFORE or tag == t.ROW_AFTER:
            index = np.int64(0)
            kind = np.int64(0)
            updated = np.int64(0)
            null = np.int64(0)
            text = np.int64(0)
            text_size = np.int64(0)
            while p < stop:
                field = np.int64(buf[p])
                value, p = read_varint(buf, p + 1)
                if field == t.COLUMN_INDEX:
                    index = value
                elif field == t.COLUMN_TYPE:
                    kind = value
                elif field == t.COLUMN_UPDATED:
                    updated = value
                elif field == t.COLUMN_IS_NULL:
                    null = value
                elif field & _WIRE == _BYTES:
                    if field == t.COLUMN_VALUE:
                        text, text_size = p, value
                    p += value
            if index >= count:
                return False
            if tag == t.ROW_AFTER:
                index += count
            cells[index, V_AT] = text
            cells[index, V_SIZE] = text_size
            cells[index, V_NULL] = null
            cells[index, V_UPDATED] = updated
            cells[index, V_TYPE] = kind
            cells[index, V_PRESENT] = 1
        p = stop
    return True


@njit
def java_hash(buf: Bytes, at: int, size: int) -> int:
    """``String.hashCode()`` of a text in UTF-8: over its units of UTF-16, as a signed number of 32 bits."""
    value = np.int64(0)
    end = at + size
    while at < end:
        first = np.int64(buf[at])
        if first < 0x80:
            value = value * 31 + first & 0xFFFFFFFF
            at += 1
        elif first < 0xE0:
            value = value * 31 + ((first & 31) << 6 | np.int64(buf[at + 1]) & 63) & 0xFFFFFFFF
            at += 2
        elif first < 0xF0:
            unit = (first & 15) << 12 | (np.int64(buf[at + 1]) & 63) << 6 | np.int64(buf[at + 2]) & 63
            value = value * 31 + unit & 0xFFFFFFFF
            at += 3
        else:
            point = (first & 7) << 18 | (np.int64(buf[at + 1]) & 63) << 12
            point |= (np.int64(buf[at + 2]) & 63) << 6 | np.int64(buf[at + 3]) & 63
            point -= 0x10000
            value = value * 31 + (0xD800 | point >> 10) & 0xFFFFFFFF
            value = value * 31 + (0xDC00 | point & 0x3FF) & 0xFFFFFFFF
            at += 4
    return value - (1 << 32) if value >> 31 else value


@inlined
def partition_of(code: int, partitions: int) -> int:
    """The partition of a hash, as Canal finds it with Java's Math.abs: also for the least number."""
    return abs(code) % partitions


@njit
def row_partition(buf: Bytes, definitions: Definitions, table: int, cells: Longs, base: int) -> int:
    """The partition of the row whose cells begin at ``base``."""
    code = definitions.tables[table, D_SEED]
    first = definitions.tables[table, D_FIRST]
    for c in range(definitions.tables[table, D_COUNT]):
        cell = base + c
        if definitions.columns[first + c, K_HASHED] and cells[cell, V_PRESENT] and not cells[cell, V_NULL]:
            code ^= java_hash(buf, cells[cell, V_AT], cells[cell, V_SIZE])
    return partition_of(code, definitions.tables[table, D_PARTITION])


@njit
def number_of(buf: Bytes, entry: Longs) -> int:
    """The number of rows of an entry."""
    rows = 0
    p = entry[E_ROWS]
    while p < entry[E_ROWS_END]:
        size, p = read_varint(buf, p + 1)
        p += size
        rows += 1
    return rows
