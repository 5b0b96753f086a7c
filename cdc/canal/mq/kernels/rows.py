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
from cdc.kernels.records import Record, Records

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

OK, FULL, NEED_DEFINITION, STATEMENT, BAD_ENTRY, BAD_TEXT = 0, 1, 2, 3, 4, 5
"""FULL: the output has no room for the entry's messages. STATEMENT: the entry has no rows; the caller writes it.
BAD_TEXT: a value's text is not what its type says."""


class EntryParts(Record):
    """Where an entry and its parts are."""

    start: int
    end: int
    header: int
    header_length: int
    kind: int
    change: int
    time: int
    pos: int
    server: int
    file: int
    file_length: int
    gtid: int
    gtid_length: int
    name: int  # the header's fields of schema and table, which follow each other
    name_length: int
    value: int
    value_length: int
    rows: int  # its rows, in the value
    rows_end: int
    thread: int  # of the last transaction that began


class Cell(Record):
    """A column's value."""

    at: int  # its text
    length: int
    null: int
    updated: int
    kind: int  # the type's number in java.sql.Types
    present: int


INSERT, UPDATE, DELETE = 1, 2, 3
BEGIN, ROWS = 1, 2
_WIRE, _BYTES = 7, 2
"""The bits of a tag that say how the field is encoded, and what they are for bytes."""
_DEFINING = (t.COLUMN_INDEX, t.COLUMN_NAME, t.COLUMN_IS_KEY, t.COLUMN_MYSQL_TYPE)
"""The fields of a column by which its table's definition is found."""


class Definition(Record):
    """The definition of a table. The texts are in the constants."""

    first: int  # its first column
    count: int
    mode: int  # FIXED, BY_HASH, BY_KEY
    partition: int
    seed: int  # with which a hash begins
    head: int
    head_length: int
    types: int
    types_length: int
    keys: int
    keys_length: int
    has_key: int
    tail: int
    tail_length: int


FIXED, BY_HASH, BY_KEY = 0, 1, 2
"""The ways to find a message's partition: that of the definition; the hash of values; by the client, from the message's
key."""


class DefinedColumn(Record):
    """A column of a definition."""

    name: int  # ``"name":`` in the constants
    name_length: int
    key: int  # 1: it is in the message's key
    hashed: int  # 1: it is in the hash
    code: int  # how its values are written, and what that needs
    a: int
    b: int


class Definitions(NamedTuple):
    """The definitions of tables that were met."""

    hashes: Longs
    """(definitions, 2)"""
    slots: Longs
    """(a power of two,): the number of a definition at its hash; -1: empty."""
    tables: Records[Definition]
    columns: Records[DefinedColumn]
    """Those of all definitions."""
    members: Longs
    """(members of all ENUM and SET columns, 2): where a member's text is in ``consts``, and its size."""
    consts: Bytes


class Message(Record):
    """A message in the output."""

    start: int  # -1: no value
    end: int
    key: int  # -1: no key
    key_end: int
    table: int
    partition: int
    rows: int
    other: int  # the key that its row had or will have
    other_end: int
    kind: int  # PLAIN, HAS_OLD_KEY, HAS_NEW_KEY
    pos: int


PLAIN, HAS_OLD_KEY, HAS_NEW_KEY = 0, 1, 2


class MessageProgress(Record):
    """The messages that have been written so far."""

    end: int  # of the messages in the output
    count: int  # messages
    err_column: int


class MessageSource(NamedTuple):
    """What messages are made of."""

    buf: Bytes
    entry: EntryParts
    """The current entry in ``buf``."""
    definitions: Definitions


class MessageOutput(NamedTuple):
    """The output and scratch space."""

    out: Bytes
    messages: Records[Message]
    progress: MessageProgress
    cells: Records[Cell]
    """(2 * most columns,): the values of a row, old ones first."""
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
def read_entry(buf: Bytes, at: int, entry: EntryParts) -> int:
    """Reads the field ``messages`` at ``at`` into ``entry``. Returns the offset behind it."""
    size, p = read_varint(buf, at + 1)
    end = p + size
    thread = entry.thread
    for i in range(entry.numbers.shape[0]):
        entry.numbers[i] = 0
    entry.start, entry.end, entry.thread = p, end, thread
    while p < end:
        tag = np.int64(buf[p])
        if tag == t.ENTRY_HEADER:
            size, p = read_varint(buf, p + 1)
            entry.header, entry.header_length = p, size
            read_header(buf, p, p + size, entry)
            p += size
        elif tag == t.ENTRY_TYPE:
            entry.kind, p = read_varint(buf, p + 1)
        elif tag == t.ENTRY_VALUE:
            size, p = read_varint(buf, p + 1)
            entry.value, entry.value_length = p, size
            p += size
        else:
            p = skip(buf, p + 1, tag & _WIRE)
    if entry.kind == BEGIN:
        entry.thread = 0
        if entry.value_length > 1 and buf[entry.value] == t.BEGIN_THREAD:
            entry.thread, p = read_varint(buf, entry.value + 1)
    elif entry.kind == ROWS:
        find_rows(buf, entry)
    return end


@njit
def read_header(buf: Bytes, p: int, end: int, entry: EntryParts) -> None:
    while p < end:
        begin = p
        tag = np.int64(buf[p])
        value, p = read_varint(buf, p + 1)
        if tag == t.HEADER_OFFSET:
            entry.pos = value
        elif tag == t.HEADER_SERVER:
            entry.server = value
        elif tag == t.HEADER_TIME:
            entry.time = value
        elif tag == t.HEADER_CHANGE:
            entry.change = value
        elif tag & _WIRE == _BYTES:
            if tag == t.HEADER_FILE:
                entry.file, entry.file_length = p, value
            elif tag == t.HEADER_SCHEMA or tag == t.HEADER_TABLE:
                if entry.name == 0:
                    entry.name = begin
                entry.name_length = p + value - entry.name
            elif tag == t.HEADER_GTID:
                entry.gtid, entry.gtid_length = p, value
            p += value


@njit
def find_rows(buf: Bytes, entry: EntryParts) -> None:
    """Notes where the rows begin and end in the value: they follow each other."""
    p = entry.value
    end = p + entry.value_length
    while p < end:
        begin = p
        tag = np.int64(buf[p])
        p = skip(buf, p + 1, tag & _WIRE)
        if tag == t.CHANGE_ROW:
            if entry.rows_end == 0:
                entry.rows = begin
            entry.rows_end = p


@njit
def definition_of(buf: Bytes, entry: EntryParts, definitions: Definitions) -> int:
    """The number of the definition of the entry's table: its name, and names, types and key of the columns of the first
    row; -1 if it is not known."""
    a = np.int64(1469598103934665603)
    b = np.int64(7809847782465536322)
    for i in range(entry.name, entry.name + entry.name_length):
        a = (a ^ np.int64(buf[i])) * np.int64(1099511628211)
        b = (b + np.int64(buf[i])) * np.int64(6364136223846793005)
    size, p = read_varint(buf, entry.rows + 1)
    end = p + size
    row_tag = t.ROW_BEFORE if entry.change == DELETE else t.ROW_AFTER
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


@inlined
def read_column_index(buf: Bytes, p: int, stop: int) -> tuple[int, int]:
    """The index of the column ``buf[p:stop]``, its first field, which is left out if it is 0; and the offset behind
    it."""
    if p < stop and buf[p] == t.COLUMN_INDEX:
        return read_varint(buf, p + 1)
    return np.int64(0), p


@inlined
def read_cell(buf: Bytes, p: int, stop: int, cell: Cell) -> None:
    """Reads the other fields of a column."""
    cell.at = cell.length = cell.null = cell.updated = cell.kind = 0
    cell.present = 1
    while p < stop:
        field = np.int64(buf[p])
        value, p = read_varint(buf, p + 1)
        if field == t.COLUMN_TYPE:
            cell.kind = value
        elif field == t.COLUMN_UPDATED:
            cell.updated = value
        elif field == t.COLUMN_IS_NULL:
            cell.null = value
        elif field & _WIRE == _BYTES:
            if field == t.COLUMN_VALUE:
                cell.at, cell.length = p, value
            p += value


@njit
def read_row(buf: Bytes, p: int, end: int, cells: Records[Cell], count: int) -> bool:
    """Reads the columns of the row ``buf[p:end]``: old ones into the first ``count`` cells, new ones into the next.
    Returns False for a column that is not in the definition."""
    for i in range(2 * count):
        cells[i].present = 0
    while p < end:
        tag = np.int64(buf[p])
        size, p = read_varint(buf, p + 1)
        stop = p + size
        if tag == t.ROW_BEFORE or tag == t.ROW_AFTER:
            index, p = read_column_index(buf, p, stop)
            if index >= count:
                return False
            read_cell(buf, p, stop, cells[index if tag == t.ROW_BEFORE else index + count])
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
def row_partition(buf: Bytes, definitions: Definitions, table: int, cells: Records[Cell], base: int) -> int:
    """The partition of the row whose cells begin at ``base``."""
    code = definitions.tables[table].seed
    first = definitions.tables[table].first
    for c in range(definitions.tables[table].count):
        cell = base + c
        if definitions.columns[first + c].hashed and cells[cell].present and not cells[cell].null:
            code ^= java_hash(buf, cells[cell].at, cells[cell].length)
    return partition_of(code, definitions.tables[table].partition)


@njit
def note(
    output: MessageOutput,
    count: int,
    entry: EntryParts,
    table: int,
    start: int,
    end: int,
    key: int,
    key_end: int,
    part: int,
    rows: int,
) -> int:
    """Appends a message to the first ``count`` ones. Returns their number."""
    message = output.messages[count]
    message.start = start
    message.end = end
    message.key = key
    message.key_end = key_end
    message.table = table
    message.partition = part
    message.rows = rows
    message.kind = PLAIN
    message.pos = entry.pos
    return count + 1


@njit
def number_of(buf: Bytes, entry: EntryParts) -> int:
    """The number of rows of an entry."""
    rows = 0
    p = entry.rows
    while p < entry.rows_end:
        size, p = read_varint(buf, p + 1)
        p += size
        rows += 1
    return rows
