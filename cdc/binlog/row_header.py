"""The header of a row event, as compiled kernels read it.

Behind the header of every event (19 bytes) come the table id (6) and flags (2); in version 2 extra information, whose
length (2 bytes) counts itself; the number of columns, packed; and a bitmap of the columns that the row images hold. An
update has two bitmaps: for the old rows and for the new ones. The rows follow.

Sources: MySQL's ``mysql::binlog::event::Rows_event``, MariaDB's ``Rows_log_event``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc.binlog.constants import EventType
from cdc.kernels.jit import inlined, njit
from cdc.kernels.memory import prefix_value, u16

Bytes = npt.NDArray[np.uint8]

TABLE_ID_AT, FLAGS_AT, BODY_AT = 19, 25, 27
"""Offsets in a row event and in a table map event. A table map's body begins with its names."""
INCOMPLETE, DAMAGED = -1, -2
"""The header goes on behind the given end; its numbers are impossible."""
_TWO_BYTES = 252
"""The first byte of a packed number whose value is in the next two bytes; smaller ones are the value."""


@inlined
def holds_rows(kind: int) -> bool:
    """Whether an event of this type is a row event."""
    return bool(
        (kind >= EventType.WRITE_ROWS_V1 and kind <= EventType.DELETE_ROWS_V1)
        or (kind >= EventType.WRITE_ROWS and kind <= EventType.DELETE_ROWS)
        or kind == EventType.PARTIAL_UPDATE_ROWS
        or (is_packed(kind) and kind <= EventType.MARIADB_DELETE_ROWS_COMPRESSED)
    )


@inlined
def is_packed(kind: int) -> bool:
    """Whether a row event of this type is one of MariaDB's compressed ones."""
    return bool(kind >= EventType.MARIADB_WRITE_ROWS_COMPRESSED_V1)


@inlined
def is_insert(kind: int) -> bool:
    """Whether a row event of this type, which is not compressed, holds inserted rows."""
    return bool(kind == EventType.WRITE_ROWS_V1 or kind == EventType.WRITE_ROWS)


@inlined
def is_update(kind: int) -> bool:
    """Whether a row event of this type has an old and a new image of each row, and a bitmap for each of the two."""
    return bool(
        kind == EventType.UPDATE_ROWS_V1
        or kind == EventType.UPDATE_ROWS
        or kind == EventType.PARTIAL_UPDATE_ROWS
        or kind == EventType.MARIADB_UPDATE_ROWS_COMPRESSED_V1
        or kind == EventType.MARIADB_UPDATE_ROWS_COMPRESSED
    )


@inlined
def has_extra_information(kind: int) -> bool:
    """Whether a row event of this type is one of version 2."""
    if is_packed(kind):
        return bool(kind >= EventType.MARIADB_WRITE_ROWS_COMPRESSED)
    return bool(kind >= EventType.WRITE_ROWS)


@njit
def column_bitmaps(buf: Bytes, at: int, end: int, kind: int) -> tuple[int, int]:
    """Reads the header of the row event at ``at``, of which the bytes before ``end`` can be read. Returns the offset of
    its bitmaps, all of them before ``end``, and the number of columns; or INCOMPLETE or DAMAGED, and 0."""
    p = at + BODY_AT
    if has_extra_information(kind):
        if end - p < 2:
            return INCOMPLETE, 0
        size = u16(buf, p)
        if size < 2:
            return DAMAGED, 0
        p += size
    if p >= end:
        return INCOMPLETE, 0
    columns = prefix_value(buf, p, 1)
    p += 1
    if columns == _TWO_BYTES:
        if end - p < 2:
            return INCOMPLETE, 0
        columns = u16(buf, p)
        p += 2
    elif columns >= _TWO_BYTES - 1:  # a table has at most 4096 columns
        return DAMAGED, 0
    if end - p < bitmap_size(columns) * (2 if is_update(kind) else 1):
        return INCOMPLETE, 0
    return p, columns


@inlined
def bitmap_size(columns: int) -> int:
    """Bytes of a bitmap with a bit for each column."""
    return (columns + 7) >> 3
