"""From table map events to layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cdc.binlog.table_map import parse_table_map
from cdc.decode.faults import scan_fault
from cdc.decode.kernels import constants as k
from cdc.decode.kernels.scan import list_table_maps
from cdc.decode.layout import TableLayout
from cdc.decode.plans import DEFAULT_POLICIES, ValuePolicies
from cdc.decode.transactions import ALL_TABLES, Transactions, open_range
from cdc.errors import CdcError, UnsupportedError, UsageError
from cdc.schemas import Schemas, TableSchema

Longs = npt.NDArray[np.int64]


def split_table(table: str) -> tuple[str, str]:
    """``db.table`` → both names. Raises UsageError."""
    db, dot, name = table.partition(".")
    if not dot or not db or not name:
        raise UsageError(f"{table!r} is not the name of a table", remedy="Give it as DB.TABLE.")
    return db, name


def name_pattern(table: str) -> npt.NDArray[np.uint8]:
    """The names as they stand in a table map: length, database, NUL, length, table, NUL. Raises UsageError."""
    parts = [part.encode() for part in split_table(table)]
    if any(len(part) > 255 for part in parts):
        raise UsageError(f"{table!r} is too long for the name of a table")
    return np.frombuffer(b"".join(bytes([len(part)]) + part + b"\0" for part in parts), dtype=np.uint8)


def layout_at(
    transactions: Transactions, names: Longs, schema: TableSchema | None, policies: ValuePolicies
) -> TableLayout:
    """The layout in the table map whose names begin and whose body ends there."""
    return _parse(transactions, int(names[0]) - 27, int(names[1]) + transactions.tail, schema, policies)


def _parse(
    transactions: Transactions, start: int, stop: int, schema: TableSchema | None, policies: ValuePolicies
) -> TableLayout:
    try:
        table_map = parse_table_map(transactions.buf[start:stop].tobytes(), transactions.has_checksum)
        layout = TableLayout.of(table_map, schema, policies)
        layout.kernel_spec([])  # what is wrong with a column shows here, where its place is known
    except CdcError as error:
        place = f"{transactions.path}, position {start}"
        error.place = place if error.place is None else f"{place}, {error.place}"
        raise
    return layout


def range_layouts(
    transactions: Transactions,
    wanted: Mapping[str, TableSchema | None],
    policies: ValuePolicies = DEFAULT_POLICIES,
) -> Iterator[tuple[int, TableLayout, int]]:
    """Position and layout of every distinct table map of the wanted tables, given with their stored schemas, and the
    bytes of the largest row event under it. Raises as :func:`table_events`."""
    begin, end = transactions.bounds()
    room = 256
    while True:
        out = np.empty((room, 3), dtype=np.int64)
        slots = np.full(4 * room, -1, dtype=np.int64)
        ids, scratch = np.zeros((k.MAX_IDS, 2), dtype=np.int64), np.zeros(16, dtype=np.uint8)
        status, count, pos = list_table_maps(transactions.buf, begin, end, transactions.tail, out, slots, ids, scratch)
        if status != k.FULL:
            break
        room *= 8
    if status != k.OK:
        raise scan_fault(status, transactions.path, pos, 0, None)
    patterns = {name_pattern(table).tobytes(): schema for table, schema in wanted.items()}
    for start, length, largest in out[:count].tolist():
        db_length = int(transactions.buf[start + 27])
        table_at = start + 27 + db_length + 2
        if table_at >= start + length:
            raise scan_fault(k.BAD_FRAME, transactions.path, start, 19, None)
        names = transactions.buf[start + 27 : table_at + int(transactions.buf[table_at]) + 2].tobytes()
        if names in patterns:
            yield start, _parse(transactions, start, start + length, patterns[names], policies), largest


@dataclass(frozen=True)
class Survey:
    """What byte ranges hold, as one walk over their events tells."""

    layouts: dict[str, TableLayout]
    """Of each table with a table map there, by ``db.table``."""
    largest_event_bytes: dict[str, int]
    """The size of each one's largest row event: no value of it is larger."""


def survey(
    ranges: Iterable[Any],
    tables: Iterable[str],
    schemas: Schemas | None = None,
    policies: Callable[[str], ValuePolicies] = lambda _: DEFAULT_POLICIES,
    table_mask: int = ALL_TABLES,
) -> Survey:
    """The layouts of these tables in the ranges, and how large row events are there.

    ``ranges``: (path, offset, length), or objects with these attributes. ``schemas``: ``information_schema`` there.
    ``policies`` tells each table's. ``table_mask``: only transactions with one of these bits in their index entry are
    read. Raises DamagedError; SourceRefusedError where names are neither in the table maps
    nor in the schemas; UnsupportedError where a table's columns or key change inside the ranges.
    """
    wanted = {table: None if schemas is None else schemas.tables.get(table) for table in tables}
    found: dict[str, TableLayout] = {}
    sizes: dict[str, int] = {}
    for one in ranges:
        path, offset, length = one if isinstance(one, tuple) else (one.path, one.offset, one.length)
        transactions = open_range(path, offset, length, table_mask).between(0, None)
        for position, layout, largest in range_layouts(transactions, wanted):
            sizes[layout.table] = max(largest, sizes.get(layout.table, 0))
            first = found.setdefault(layout.table, replace(layout, policies=policies(layout.table)))
            if not _alike(first, layout):
                raise UnsupportedError(
                    f"the columns or the key of table {layout.table} change inside the batch",
                    place=f"{path}, position {position}",
                    remedy="Take smaller batches: a DDL statement ends one.",
                )
    return Survey(found, sizes)


def layouts(ranges: Iterable[Any], tables: Iterable[str], schemas: Schemas | None = None) -> dict[str, TableLayout]:
    """The layout of each of the tables that has a table map in the ranges, by ``db.table``; see :func:`survey`."""
    return survey(ranges, tables, schemas).layouts


def _alike(a: TableLayout, b: TableLayout) -> bool:
    """Whether record batches of both look the same."""
    if a.columns == b.columns and a.primary_key == b.primary_key:
        return True
    return a.primary_key == b.primary_key and a.shape == replace(b, policies=a.policies).shape
