"""The compiled splitter of Canal's entries: an entry whole, or one for the rows of each partition."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc.canal.kernels import tags as t
from cdc.canal.kernels.entries import put_varint, varint_size
from cdc.kernels.jit import njit
from cdc.mq.kernels import rows as r
from cdc.mq.kernels.flat import MORE_ROWS, find_parts, next_part, rows_in
from cdc.mq.kernels.rows import Bytes, Definitions, MessageOutput, number_of, read_varint
from cdc.mq.kernels.texts import put_const

Longs = npt.NDArray[np.int64]


@njit
def rows_bytes(buf: Bytes, entry: Longs, parts: Longs, part: int) -> int:
    """The bytes of the rows of a partition, with their fields' beginnings."""
    p = entry[r.E_ROWS]
    number = 0
    row_bytes = 0
    while p < entry[r.E_ROWS_END]:
        begin = p
        size, p = read_varint(buf, p + 1)
        p += size
        if parts[number] == part:
            row_bytes += p - begin
        number += 1
    return row_bytes


@njit
def put_entries(buf: Bytes, entry: Longs, table: int, definitions: Definitions, output: MessageOutput) -> int:
    """Writes the field ``messages`` for each partition that rows of an entry belong to. Returns a status; unless it is
    OK, nothing is written."""
    out, numbers, messages = output.out, output.numbers, output.messages
    rows = number_of(buf, entry)
    if rows > output.parts.shape[0]:
        return MORE_ROWS
    if find_parts(buf, entry, table, definitions, output) != r.OK:
        return r.BAD_ENTRY
    at, count = numbers[r.N_AT], numbers[r.N_COUNT]
    rest = entry[r.E_VALUE_SIZE] - (entry[r.E_ROWS_END] - entry[r.E_ROWS])
    part = next_part(output.parts, rows, -1)
    while part >= 0:
        of_rows = rows_bytes(buf, entry, output.parts, part)
        value = rest + of_rows
        size = 1 + varint_size(entry[r.E_HEADER_SIZE]) + entry[r.E_HEADER_SIZE] + 2 + 1 + varint_size(value) + value
        if out.shape[0] - at < size + 64 or count >= messages.shape[0]:
            return r.FULL
        start = at
        out[at] = np.uint8(t.MESSAGES)
        at = put_varint(out, at + 1, size)
        out[at] = np.uint8(t.ENTRY_HEADER)
        at = put_varint(out, at + 1, entry[r.E_HEADER_SIZE])
        at = put_const(out, at, buf, entry[r.E_HEADER], entry[r.E_HEADER_SIZE])
        out[at] = np.uint8(t.ENTRY_TYPE)
        out[at + 1] = np.uint8(entry[r.E_KIND])
        out[at + 2] = np.uint8(t.ENTRY_VALUE)
        at = put_varint(out, at + 3, value)
        at = put_const(out, at, buf, entry[r.E_VALUE], entry[r.E_ROWS] - entry[r.E_VALUE])
        p = entry[r.E_ROWS]
        number = 0
        while p < entry[r.E_ROWS_END]:
            begin = p
            row, p = read_varint(buf, p + 1)
            p += row
            if output.parts[number] == part:
                at = put_const(out, at, buf, begin, p - begin)
            number += 1
        at = put_const(out, at, buf, p, entry[r.E_VALUE] + entry[r.E_VALUE_SIZE] - p)
        messages[count, r.M_START] = start
        messages[count, r.M_END] = at
        messages[count, r.M_KEY] = -1
        messages[count, r.M_TABLE] = table
        messages[count, r.M_PARTITION] = (
            part if definitions.tables[table, r.D_MODE] == r.BY_HASH else definitions.tables[table, r.D_PARTITION]
        )
        messages[count, r.M_ROWS] = rows_in(output.parts, rows, part)
        messages[count, r.M_KIND] = 0
        messages[count, r.M_POS] = entry[r.E_POS]
        count += 1
        part = next_part(output.parts, rows, part)
    numbers[r.N_AT], numbers[r.N_COUNT] = at, count
    return r.OK
