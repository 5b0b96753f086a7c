"""A table's layout (its columns, their Arrow types and the arrays that describe them to the kernels), and the layouts
and tables that byte ranges and files hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.base.errors import CdcError, DamagedError, UnsupportedError, UsageError
from cdc.base.targets import split_table
from cdc.binlog.constants import EventType
from cdc.binlog.row_header import BODY_AT
from cdc.binlog.sql.schemas import Schemas, TableSchema
from cdc.binlog.table_map import ColumnType, TableMap, parse_table_map
from cdc.decode.charsets.convert import LATIN1
from cdc.decode.column_types import DEFAULT_POLICIES, ColumnDecoding, ValuePolicies, decoding_of, unsupported
from cdc.decode.columns import Column, resolve
from cdc.decode.conversions.base import Conversion
from cdc.decode.faults import scan_fault
from cdc.decode.kernels import constants as k
from cdc.decode.kernels.constants import ColumnArrays
from cdc.decode.kernels.scan import NameTable, count_row_events, list_table_maps
from cdc.decode.transactions import ALL_TABLES, Transactions, open_paths, open_range

Images = Literal["after", "both"]

METADATA_FIELDS = (
    pa.field("_op", pa.int8()),
    pa.field("_seq", pa.int64()),
    pa.field("_row", pa.int64()),
    pa.field("_commit_time", pa.timestamp("us", tz="UTC")),
    pa.field("_gtid", pa.string()),
)
"""The columns that Towpath adds before those of the source."""
DELETE, INSERT, UPDATE = 0, 1, 2
"""Values of ``_op``."""
CASCADED = 1 << 31
"""The bit of ``_row`` that a change by a foreign key has, and no row of an event: see
:mod:`cdc.lake.foreign_keys.actions`."""
BEFORE = "_before"
"""The column of old rows that it adds behind them with ``images="both"``."""
_NAMES_ROOM = 256
"""Table maps or tables that the first attempt to list them has room for."""


@dataclass(frozen=True)
class KernelSpec:
    """A projection of a table's columns, as the kernels need it."""

    columns: tuple[int, ...]
    """The ordinals of the wanted columns."""
    fields: tuple[pa.Field, ...]
    """Their names and final types."""
    raw: tuple[pa.DataType, ...]
    """The types that the kernels write."""
    conversions: tuple[Conversion | None, ...]
    """The conversions from ``raw`` to the final types."""
    arrays: ColumnArrays
    has_key: bool
    min_row_bytes: int
    """No row image is shorter."""


@dataclass(frozen=True)
class TableLayout:
    """The columns of a table as the binlog describes them at one position."""

    table: str
    """``db.table``."""
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...]
    """The names of the key's columns, in the key's order; empty without a key."""
    policies: ValuePolicies = DEFAULT_POLICIES
    hidden: tuple[Column, ...] = ()
    """Columns behind them in the rows that no statement shows (``TableSchema.is_hidden``)."""

    @classmethod
    def of(
        cls, table_map: TableMap, schema: TableSchema | None = None, policies: ValuePolicies = DEFAULT_POLICIES
    ) -> TableLayout:
        """The layout of a table map. ``schema``: the table in ``information_schema`` at that position, if it is known.

        Raises SourceRefusedError if the table map lacks names and the schema is missing or contradicts it;
        UnsupportedError if a column has the name of a metadata column; DamagedError.
        """
        columns, primary_key = resolve(table_map, schema)
        shown = len(columns)
        while schema is not None and shown and schema.is_hidden(columns[shown - 1].name):
            shown -= 1
        return cls(table_map.full_name, columns[:shown], primary_key, policies, columns[shown:])

    @property
    def row_columns(self) -> tuple[Column, ...]:
        """All columns of the rows, hidden ones included."""
        return self.columns + self.hidden

    @cached_property
    def _decodings(self) -> tuple[ColumnDecoding, ...]:
        return tuple(decoding_of(self.table, column, self.policies) for column in self.row_columns)

    @property
    def shape(self) -> tuple[tuple[str, pa.DataType | None], ...]:
        """Names and types of the source columns; None for a column that cannot be decoded."""
        return tuple(
            (column.name, decoding.arrow) for column, decoding in zip(self.columns, self._decodings, strict=False)
        )

    @cached_property
    def json_columns(self) -> npt.NDArray[np.int64]:
        """(row columns,): 1 for those in MySQL's binary JSON, which a partial update may change in part."""
        return np.array([column.type == ColumnType.JSON for column in self.row_columns], dtype=np.int64)

    def wanted(self, columns: Sequence[str] | None) -> tuple[int, ...]:
        """The ordinals of the named columns (None: all), in the table's order. Raises UsageError for an unknown
        name."""
        if columns is None:
            return tuple(range(len(self.columns)))
        names = [column.name for column in self.columns]
        for name in columns:
            if name not in names:
                raise UsageError(f"table {self.table} has no column {name}", remedy=f"It has {', '.join(names)}.")
        return tuple(i for i, name in enumerate(names) if name in columns)

    def source_fields(self, columns: Sequence[str] | None = None) -> tuple[pa.Field, ...]:
        """The fields of the source columns. Raises UnsupportedTypeError for a column that cannot be decoded."""
        fields = []
        for i in self.wanted(columns):
            arrow = self._decodings[i].arrow
            if arrow is None:
                raise unsupported(self.table, self.columns[i])
            # All are nullable: even a NOT NULL date may be a zero date, which becomes null.
            fields.append(pa.field(self.columns[i].name, arrow))
        return tuple(fields)

    def arrow_schema(self, images: Images = "after", columns: Sequence[str] | None = None) -> pa.Schema:
        """The schema of the record batches. Raises UnsupportedTypeError for a column that cannot be decoded."""
        source = self.source_fields(columns)
        extra = (pa.field(BEFORE, pa.struct(source)),) if images == "both" else ()
        return pa.schema([*METADATA_FIELDS, *source, *extra])

    def kernel_spec(self, columns: Sequence[str] | None = None) -> KernelSpec:
        """The projection to these columns (None: all) for the kernels."""
        ordinals = self.wanted(columns)
        fields = self.source_fields(columns)
        spec = np.zeros((len(self.row_columns), k.SPEC_SIZE), dtype=np.int64)
        members = bytearray()
        member_at: list[int] = []
        min_row = (len(self.row_columns) + 7) // 8
        for i, (column, decoding) in enumerate(zip(self.row_columns, self._decodings, strict=True)):
            kind, b = decoding.kind if i in ordinals else k.SKIP, decoding.b
            if kind == k.ENUM:
                b = len(member_at)
                for member in decoding.members:
                    member_at.append(len(members))
                    members += member
                member_at.append(len(members))
            out = value_width(decoding.raw) if i in ordinals and decoding.raw is not None else 0
            spec[i] = (kind, decoding.width, decoding.prefix, decoding.a, b, column.name in self.primary_key, out)
            min_row += 0 if column.nullable else decoding.width or decoding.prefix
        return KernelSpec(
            columns=ordinals,
            fields=fields,
            raw=tuple(self._decodings[i].raw or pa.null() for i in ordinals),
            conversions=tuple(self._decodings[i].conversion for i in ordinals),
            arrays=ColumnArrays(
                spec=spec,
                member_at=np.array([*member_at, 0], dtype=np.int64),
                members=np.frombuffer(bytes(members) + b"\0", dtype=np.uint8),
                latin1=LATIN1_TABLE,
            ),
            has_key=bool(self.primary_key),
            min_row_bytes=min_row,
        )


def value_width(arrow: pa.DataType) -> int:
    """Bytes of a value in the Arrow buffer; 0 for strings and binary."""
    return 0 if arrow in (pa.string(), pa.binary()) else arrow.bit_width // 8


def _latin1_table() -> npt.NDArray[np.uint8]:
    """(256, 4): the UTF-8 bytes of each latin1 byte, and their number in the last place."""
    table = np.zeros((256, 4), dtype=np.uint8)
    for byte, character in enumerate(LATIN1):
        encoded = character.encode()
        table[byte, : len(encoded)] = list(encoded)
        table[byte, 3] = len(encoded)
    return table


LATIN1_TABLE = _latin1_table()


# ---------------------------------------------------------------- table map events


def name_pattern(table: str) -> npt.NDArray[np.uint8]:
    """The names as a table map holds them: length, database, NUL, length, table, NUL. Raises UsageError."""
    parts = [part.encode() for part in split_table(table)]
    if any(len(part) > 255 for part in parts):
        raise UsageError(f"{table!r} is too long for the name of a table")
    return np.frombuffer(b"".join(bytes([len(part)]) + part + b"\0" for part in parts), dtype=np.uint8)


def layout_at(
    transactions: Transactions, start: int, length: int, schema: TableSchema | None, policies: ValuePolicies
) -> TableLayout:
    """The layout in the table map event at ``start``. Raises as :meth:`TableLayout.of`, with the event's position."""
    try:
        event = transactions.buf[start : start + length].tobytes()
        table_map = parse_table_map(event, transactions.has_checksum, writer=transactions.writer)
        layout = TableLayout.of(table_map, schema, policies)
        layout.kernel_spec([])  # raises errors of single columns here, where their position is known
    except CdcError as error:
        place = f"{transactions.path}, position {start}"
        error.place = place if error.place is None else f"{place}, {error.place}"
        raise
    return layout


def range_layouts(
    transactions: Transactions,
    schemas_by_table: Mapping[str, TableSchema | None],
    policies: ValuePolicies = DEFAULT_POLICIES,
) -> Iterator[tuple[int, TableLayout, int]]:
    """Yields the position and the layout of every distinct table map of the wanted tables, which are given with their
    stored schemas, and the size of the largest row event under it. Raises as :func:`~cdc.decode.scan.table_events`."""
    source = transactions.for_kernels()
    scratch = np.zeros(16, dtype=np.uint8)
    room = _NAMES_ROOM
    while True:
        maps = _name_table(room, k.MAX_IDS)
        status, count, pos = list_table_maps(source, maps, scratch)
        if status != k.FULL:
            break
        room *= 8
    if status != k.OK:
        raise scan_fault(status, transactions.path, pos, 0, None)
    patterns = {name_pattern(table).tobytes(): schema for table, schema in schemas_by_table.items()}
    for start, length, largest in maps.rows[:count].tolist():
        names_at = start + BODY_AT
        table_at = names_at + int(transactions.buf[names_at]) + 2
        if table_at >= start + length:
            raise scan_fault(k.BAD_FRAME, transactions.path, start, EventType.TABLE_MAP, None)
        names = transactions.buf[names_at : table_at + int(transactions.buf[table_at]) + 2].tobytes()
        if names in patterns:
            yield start, layout_at(transactions, start, length, patterns[names], policies), largest


def _name_table(room: int, ids: int) -> NameTable:
    return NameTable(
        rows=np.zeros((room, 3), dtype=np.int64),
        slots=np.full(4 * room, -1, dtype=np.int64),
        ids=np.zeros((ids, 2), dtype=np.int64),
    )


@dataclass(frozen=True)
class Survey:
    """The result of one scan over byte ranges for tables, by ``db.table``."""

    layouts: dict[str, TableLayout]
    """The layout of each table with a table map in the ranges."""
    largest_event_bytes: dict[str, int]
    """The size of each table's largest row event, which no value exceeds."""


def survey(
    ranges: Iterable[Any],
    tables: Iterable[str],
    schemas: Schemas | None = None,
    policies: Callable[[str], ValuePolicies] = lambda _: DEFAULT_POLICIES,
    table_mask: int = ALL_TABLES,
) -> Survey:
    """The layouts of these tables in the ranges, and the sizes of their largest row events.

    ``ranges``: (path, offset, length), or objects with these attributes. ``schemas``: ``information_schema`` at that
    position. ``policies`` returns a table's value policies. ``table_mask``: only transactions with one
    of these bits in the table mask of their index entry are read. Raises DamagedError; SourceRefusedError if names are
    neither in the table maps nor in the schemas; UnsupportedError if a table's columns or key change inside the ranges.
    """
    schemas_by_table = {table: None if schemas is None else schemas.tables.get(table) for table in tables}
    layouts: dict[str, TableLayout] = {}
    sizes: dict[str, int] = {}
    for byte_range in ranges:
        path, offset, length = (
            byte_range if isinstance(byte_range, tuple) else (byte_range.path, byte_range.offset, byte_range.length)
        )
        transactions = open_range(path, offset, length, table_mask).between(0, None)
        for position, layout, largest in range_layouts(transactions, schemas_by_table):
            sizes[layout.table] = max(largest, sizes.get(layout.table, 0))
            first = layouts.setdefault(layout.table, replace(layout, policies=policies(layout.table)))
            if not _alike(first, layout):
                raise UnsupportedError(
                    f"the columns or the key of table {layout.table} change inside the batch",
                    place=f"{path}, position {position}",
                    remedy="Take smaller batches: a DDL statement ends a batch.",
                )
    return Survey(layouts, sizes)


def layouts(ranges: Iterable[Any], tables: Iterable[str], schemas: Schemas | None = None) -> dict[str, TableLayout]:
    """The layout of each of the tables with a table map in the ranges, by ``db.table``; see :func:`survey`."""
    return survey(ranges, tables, schemas).layouts


def _alike(a: TableLayout, b: TableLayout) -> bool:
    """Whether record batches of both layouts have the same schema and key."""
    if a.columns == b.columns and a.primary_key == b.primary_key:
        return True
    return a.primary_key == b.primary_key and a.shape == replace(b, policies=a.policies).shape


# ---------------------------------------------------------------- the tables of files


def list_tables(*paths: Path | str) -> dict[str, int]:
    """The tables with rows in binlog files, segments or stores (folders), as ``db.table`` with the number of row
    events, largest first. No row is decoded, and checksums inside indexed segments are not verified.

    What lies behind damage in a file is not counted. Raises UsageError for a path that does not exist, DamagedError,
    StorageError.
    """
    row_events: dict[str, int] = {}
    for transactions, _, _ in open_paths(paths):
        for table, count in _count(transactions.between(0, None)).items():
            row_events[table] = row_events.get(table, 0) + count
    return dict(sorted(row_events.items(), key=lambda item: (-item[1], item[0])))


def _count(transactions: Transactions) -> dict[str, int]:
    source = transactions.for_kernels()
    room = _NAMES_ROOM
    while True:
        tables = _name_table(room, room)
        status, count, pos = count_row_events(source, tables)
        if status != k.FULL:
            break
        room *= 8
    if status != k.OK:
        raise scan_fault(status, transactions.path, pos, 0, None)
    return {_name(transactions, at, size): events for at, size, events in tables.rows[:count].tolist() if events}


def _name(transactions: Transactions, at: int, size: int) -> str:
    raw = transactions.buf[at : at + size].tobytes()
    db, table = raw[1 : 1 + raw[0]], raw[raw[0] + 3 : -1]
    try:
        return f"{db.decode()}.{table.decode()}"
    except UnicodeDecodeError:
        raise DamagedError("a table's name is not UTF-8", place=f"{transactions.path}, position {at}") from None
