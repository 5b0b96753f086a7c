"""The compiled splitter of Canal's entries: an entry whole, or one for the rows of each partition."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc.canal.kernels import tags as t
from cdc.canal.kernels.entries import put_varint, varint_size
from cdc.canal.mq.kernels import rows as r
from cdc.canal.mq.kernels.flat import MORE_ROWS, find_parts, next_part, rows_in
from cdc.canal.mq.kernels.rows import (
    Bytes,
    EntryParts,
    MessageOutput,
    MessageSource,
    note,
    number_of,
    read_varint,
)
from cdc.canal.mq.kernels.texts import put_const
from cdc.kernels.jit import njit

Longs = npt.NDArray[np.int64]


@njit
def rows_bytes(buf: Bytes, entry: EntryParts, parts: Longs, part: int) -> int:
    """The bytes of the rows of a partition, with their fields' beginnings."""
    p = entry.rows
    number = 0
    row_bytes = 0
    while p < entry.rows_end:
        begin = p
        size, p = read_varint(buf, p + 1)
        p += size
        if parts[number] == part:
            row_bytes += p - begin
        number += 1
    return row_bytes


@njit
def put_entries(source: MessageSource, table: int, output: MessageOutput) -> int:
    """Writes the field ``messages`` for each partition that rows of an entry belong to. Returns a status; unless it is
    OK, nothing is written."""
    buf, entry, definitions = source.buf, source.entry, source.definitions
    out, progress = output.out, output.progress
    rows = number_of(buf, entry)
    if rows > output.parts.shape[0]:
        return MORE_ROWS
    if find_parts(source, table, output) != r.OK:
        return r.BAD_ENTRY
    at, count = progress.end, progress.count
    rest = entry.value_length - (entry.rows_end - entry.rows)
    part = next_part(output.parts, rows, -1)
    while part >= 0:
        of_rows = rows_bytes(buf, entry, output.parts, part)
        value = rest + of_rows
        size = 1 + varint_size(entry.header_length) + entry.header_length + 2 + 1 + varint_size(value) + value
        if out.shape[0] - at < size + 64 or count >= output.messages.shape[0]:
            return r.FULL
        start = at
        out[at] = np.uint8(t.MESSAGES)
        at = put_varint(out, at + 1, size)
        out[at] = np.uint8(t.ENTRY_HEADER)
        at = put_varint(out, at + 1, entry.header_length)
        at = put_const(out, at, buf, entry.header, entry.header_length)
        out[at] = np.uint8(t.ENTRY_TYPE)
        out[at + 1] = np.uint8(entry.kind)
        out[at + 2] = np.uint8(t.ENTRY_VALUE)
        at = put_varint(out, at + 3, value)
        at = put_const(out, at, buf, entry.value, entry.rows - entry.value)
        p = entry.rows
        number = 0
        while p < entry.rows_end:
            begin = p
            row, p = read_varint(buf, p + 1)
            p += row
            if output.parts[number] == part:
                at = put_const(out, at, buf, begin, p - begin)
            number += 1
        at = put_const(out, at, buf, p, entry.value + entry.value_length - p)
        place = part if definitions.tables[table].mode == r.BY_HASH else definitions.tables[table].partition
        count = note(output, count, entry, table, start, at, -1, -1, place, rows_in(output.parts, rows, part))
        part = next_part(output.parts, rows, part)
    progress.end, progress.count = at, count
    return r.OK
