"""The columns that rows of a captured table may lack.

MariaDB 11.8.9 leaves generated columns out of the rows of updates and deletes, whatever ``binlog_row_image`` says.

The kernel knows them by table id (:class:`~cdc.binlog.frame_events.TableIds`). It stops at the first row event that
lacks others, so each table id asks once for each set of columns.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from cdc.base.errors import DamagedError, UnsupportedTypeError
from cdc.binlog.frame_events import TableIds, find_table
from cdc.binlog.row_header import column_bitmaps, is_update
from cdc.binlog.table_map import parse_table_map

Columns: TypeAlias = frozenset[str] | frozenset[int]
"""Columns by their names, or by their ordinals if the table map does not name them."""


def lacking_columns(event: bytes) -> tuple[int, frozenset[int]]:
    """Returns the number of a row event's columns, and the ordinals of those that its images lack. The event may be cut
    behind its bitmaps of columns, whose bounds the kernel has checked."""
    raw = np.frombuffer(bytearray(event), dtype=np.uint8)
    at, columns = column_bitmaps(raw, 0, len(raw), event[4])
    lacking: set[int] = set()
    for start in (at, at + (columns + 7) // 8) if is_update.py_func(event[4]) else (at,):
        lacking.update(column for column in range(columns) if not event[start + (column >> 3)] >> (column & 7) & 1)
    return columns, frozenset(lacking)


def named(table_map: bytes, has_checksum: bool, columns: int, ordinals: frozenset[int]) -> Columns:
    """Returns the names of columns by their ordinals in a TABLE_MAP event; the ordinals themselves if it names no
    columns, and nothing if it has another number of them than ``columns``."""
    try:
        parsed = parse_table_map(table_map, has_checksum)
    except (DamagedError, UnsupportedTypeError):
        return frozenset()
    if len(parsed.columns) != columns:
        return frozenset()
    if not parsed.has_metadata:
        return ordinals
    return frozenset(str(parsed.columns[ordinal].name) for ordinal in ordinals)


def let_lack(tables: TableIds, table_id: int, columns: int, ordinals: frozenset[int]) -> TableIds:
    """Lets the rows of a known table id with this number of columns lack some of them, besides those that they may lack
    already."""
    slot = find_table(tables.keys, table_id)
    at = int(tables.optional_at[slot])
    if at < 0:
        at = len(tables.optional)
        room = np.zeros(2 + (columns + 7) // 8, dtype=np.uint8)
        room[:2] = columns & 255, columns >> 8
        tables = tables._replace(optional=np.concatenate([tables.optional, room]))
        tables.optional_at[slot] = at
    for ordinal in ordinals:
        tables.optional[at + 2 + (ordinal >> 3)] |= np.uint8(1 << (ordinal & 7))
    return tables
