"""What a table's columns become: Arrow types, and the numbers by which the kernels know each column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.binlog.table_map import ColumnMeta, ColumnType, TableMap
from cdc.decode.charsets.collations import BINARY_COLLATION, LATIN1, charset_of, decode_text
from cdc.decode.kernels import constants as k
from cdc.decode.kernels.single import decimal_size
from cdc.errors import DamagedError, SourceRefusedError, UnsupportedError, UnsupportedTypeError, UsageError

Images = Literal["after", "both"]

META_FIELDS = (
    pa.field("_op", pa.int8()),
    pa.field("_seq", pa.int64()),
    pa.field("_row", pa.int64()),
    pa.field("_commit_time", pa.timestamp("us", tz="UTC")),
    pa.field("_gtid", pa.string()),
)
BEFORE = "_before"
_OWN_NAMES = frozenset(field.name for field in META_FIELDS) | {BEFORE}

_INTEGERS = {
    ColumnType.TINY: (1, (k.I8, pa.int8()), (k.U8, pa.int16())),
    ColumnType.SHORT: (2, (k.I16, pa.int16()), (k.U16, pa.int32())),
    ColumnType.INT24: (3, (k.I24, pa.int32()), (k.U24, pa.int32())),
    ColumnType.LONG: (4, (k.I32, pa.int32()), (k.U32, pa.int64())),
    ColumnType.LONGLONG: (8, (k.I64, pa.int64()), (k.U64, pa.decimal128(20, 0))),
}
_BLOBS = frozenset({ColumnType.TINY_BLOB, ColumnType.BLOB, ColumnType.MEDIUM_BLOB, ColumnType.LONG_BLOB})
_TEXTS = frozenset({ColumnType.STRING, ColumnType.VARCHAR, ColumnType.VAR_STRING}) | _BLOBS
_COPIED = frozenset({"utf8mb4", "utf8mb3", "ascii"})
_DISGUISED = frozenset({"uuid", "inet4", "inet6", "vector"})
_FIXED_UNSUPPORTED = {
    ColumnType.YEAR: 1,
    ColumnType.TIMESTAMP: 4,
    ColumnType.TIME: 3,
    ColumnType.DATETIME: 8,
    ColumnType.NEWDATE: 3,
}


@dataclass(frozen=True)
class _Plan:
    """A column for the kernels."""

    kind: int
    arrow: pa.DataType | None
    """None: the column can be stepped over, but not decoded."""
    width: int = 0
    prefix: int = 0
    a: int = 0
    b: int = 0
    members: tuple[bytes, ...] = ()
    """ENUM: the strings in UTF-8; first the empty one, which stands for a value that was refused."""


@dataclass(frozen=True)
class KernelSpec:
    """A projection of a table's columns as arrays."""

    columns: tuple[int, ...]
    """Ordinals of the wanted columns."""
    fields: tuple[pa.Field, ...]
    spec: npt.NDArray[np.int64]
    member_at: npt.NDArray[np.int64]
    members: npt.NDArray[np.uint8]
    has_key: bool
    min_row_bytes: int
    """No row image is shorter."""


@dataclass(frozen=True)
class TableLayout:
    """The columns of a table as the binlog describes them at one place."""

    table: str
    """``db.table``."""
    columns: tuple[ColumnMeta, ...]
    primary_key: tuple[str, ...]
    """Names of the key's columns, in the key's order; empty without a key."""

    @classmethod
    def of(cls, table_map: TableMap) -> TableLayout:
        """Raises SourceRefusedError where the table map lacks names, and UnsupportedError where a column's name is
        one of ours."""
        if not table_map.has_metadata:
            raise SourceRefusedError(
                "the binlog does not hold the names of its columns",
                place=f"table {table_map.full_name}",
                remedy="Set binlog_row_metadata=FULL on the source, and capture from a position after that.",
            )
        for column in table_map.columns:
            if column.name.lower() in _OWN_NAMES:
                raise UnsupportedError(
                    f"the column {column.name} has a name that Towpath uses itself",
                    place=f"table {table_map.full_name}",
                    remedy="Rename it on the source, or exclude the table.",
                )
        return cls(
            table_map.full_name,
            table_map.columns,
            tuple(table_map.columns[i].name for i in table_map.primary_key),
        )

    def check_declared(self, data_types: Mapping[str, str]) -> None:
        """Compare with ``information_schema``: data types by column name. MariaDB's UUID, INET4, INET6 and VECTOR look
        like BINARY and VARBINARY in the binlog, and would arrive as bytes. Raises UnsupportedTypeError."""
        for column in self.columns:
            declared = data_types.get(column.name, "").lower()
            if declared in _DISGUISED and column.type in (ColumnType.STRING, ColumnType.VARCHAR):
                raise _unsupported(self.table, column.name, declared.upper())

    @cached_property
    def _plans(self) -> tuple[_Plan, ...]:
        return tuple(_plan(self.table, column) for column in self.columns)

    def wanted(self, columns: Sequence[str] | None) -> tuple[int, ...]:
        """Ordinals of the named columns (None: all), in the table's order. Raises UsageError for a name that is
        not there."""
        if columns is None:
            return tuple(range(len(self.columns)))
        names = [column.name for column in self.columns]
        for name in columns:
            if name not in names:
                raise UsageError(f"table {self.table} has no column {name}", remedy=f"It has {', '.join(names)}.")
        return tuple(i for i, name in enumerate(names) if name in columns)

    def own_fields(self, columns: Sequence[str] | None = None) -> tuple[pa.Field, ...]:
        """Fields of the table's own columns. Raises UnsupportedTypeError for a column that cannot be decoded."""
        fields = []
        for i in self.wanted(columns):
            arrow = self._plans[i].arrow
            if arrow is None:
                raise _unsupported(self.table, self.columns[i].name, describe(self.columns[i]))
            # Nullable all: even a NOT NULL date may be a zero date, which has no value here.
            fields.append(pa.field(self.columns[i].name, arrow))
        return tuple(fields)

    def arrow_schema(self, images: Images = "after", columns: Sequence[str] | None = None) -> pa.Schema:
        """Schema of the record batches. Raises UnsupportedTypeError for a column that cannot be decoded."""
        own = self.own_fields(columns)
        extra = (pa.field(BEFORE, pa.struct(own)),) if images == "both" else ()
        return pa.schema([*META_FIELDS, *own, *extra])

    def kernel_spec(self, columns: Sequence[str] | None = None) -> KernelSpec:
        """The arrays that describe the columns to the kernels."""
        wanted = self.wanted(columns)
        fields = self.own_fields(columns)
        spec = np.zeros((len(self.columns), k.SPEC_SIZE), dtype=np.int64)
        blob = bytearray()
        member_at: list[int] = []
        min_row = (len(self.columns) + 7) // 8
        for i, (column, plan) in enumerate(zip(self.columns, self._plans, strict=True)):
            kind, b = plan.kind if i in wanted else k.SKIP, plan.b
            if kind == k.ENUM:
                b = len(member_at)
                for member in plan.members:
                    member_at.append(len(blob))
                    blob += member
                member_at.append(len(blob))
            out = value_width(plan.arrow) if i in wanted and plan.arrow is not None else 0
            spec[i] = (kind, plan.width, plan.prefix, plan.a, b, column.name in self.primary_key, out)
            min_row += 0 if column.nullable else plan.width or plan.prefix
        return KernelSpec(
            columns=wanted,
            fields=fields,
            spec=spec,
            member_at=np.array([*member_at, 0], dtype=np.int64),
            members=np.frombuffer(bytes(blob) + b"\0", dtype=np.uint8),
            has_key=bool(self.primary_key),
            min_row_bytes=min_row,
        )


def value_width(arrow: pa.DataType) -> int:
    """Bytes of a value in the Arrow buffer; 0 for strings and binary."""
    return 0 if arrow in (pa.string(), pa.binary()) else arrow.bit_width // 8


def latin1_table() -> npt.NDArray[np.uint8]:
    """(256, 4): the UTF-8 bytes of each latin1 byte, and in the last place how many they are."""
    table = np.zeros((256, 4), dtype=np.uint8)
    for byte, character in enumerate(LATIN1):
        encoded = character.encode()
        table[byte, : len(encoded)] = list(encoded)
        table[byte, 3] = len(encoded)
    return table


def describe(column: ColumnMeta) -> str:
    """A column's type for people: ``DECIMAL(65,30)``, ``BIT(9)``, ``VARCHAR in sjis``."""
    kind = column.type
    names = {ColumnType.TIME2: "TIME", ColumnType.DATETIME: "DATETIME (old storage)", ColumnType.JSON: "JSON"}
    names |= {ColumnType.TIMESTAMP: "TIMESTAMP (old storage)", ColumnType.TIME: "TIME (old storage)"}
    if kind == ColumnType.NEWDECIMAL:
        return f"DECIMAL({column.precision},{column.scale})"
    if kind == ColumnType.BIT:
        return f"BIT({column.length})"
    name = names[ColumnType(kind)] if kind in names else column.type_name
    if column.collation not in (None, BINARY_COLLATION) and (kind in _TEXTS or kind == ColumnType.ENUM):
        charset = charset_of(column.collation or 0) or f"the unknown collation {column.collation}"
        return f"{'CHAR' if kind == ColumnType.STRING else 'TEXT' if kind in _BLOBS else name} in {charset}"
    return name


def _unsupported(table: str, column: str, kind: str) -> UnsupportedTypeError:
    return UnsupportedTypeError(
        f"the column {column} has the type {kind}, which cannot be decoded yet",
        place=f"table {table}",
        remedy="Exclude the table.",
    )


def _plan(table: str, column: ColumnMeta) -> _Plan:
    kind = column.type
    if kind in _INTEGERS:
        width, plain, unsigned = _INTEGERS[ColumnType(kind)]
        code, arrow = unsigned if column.unsigned else plain
        return _Plan(code, arrow, width)
    if kind == ColumnType.FLOAT:
        return _Plan(k.F32, pa.float32(), 4)
    if kind == ColumnType.DOUBLE:
        return _Plan(k.F64, pa.float64(), 8)
    if kind == ColumnType.NEWDECIMAL:
        width = int(decimal_size(column.precision, column.scale))
        arrow = pa.decimal128(column.precision, column.scale) if column.precision <= 38 else None
        return _Plan(k.DECIMAL, arrow, width, a=column.precision, b=column.scale)
    if kind == ColumnType.DATE:
        return _Plan(k.DATE, pa.date32(), 3)
    fraction = (column.scale + 1) // 2
    if kind == ColumnType.DATETIME2:
        return _Plan(k.DATETIME, pa.timestamp("us"), 5 + fraction, a=fraction)
    if kind == ColumnType.TIMESTAMP2:
        return _Plan(k.TIMESTAMP, pa.timestamp("us", tz="UTC"), 4 + fraction, a=fraction)
    if kind in _TEXTS:
        return _text(table, column)
    if kind == ColumnType.ENUM:
        return _enum(table, column)
    return _stepped_over(table, column, fraction)


def _text(table: str, column: ColumnMeta) -> _Plan:
    prefix = column.length if column.type in _BLOBS else 1 if column.length <= 255 else 2
    if not 1 <= prefix <= 4:
        raise _contradiction(table, column)
    if column.collation == BINARY_COLLATION:
        if column.type == ColumnType.STRING:
            return _Plan(k.PADDED, pa.binary(), prefix=prefix, a=column.length)
        return _Plan(k.BYTES, pa.binary(), prefix=prefix)
    charset = charset_of(column.collation) if column.collation is not None else None
    if charset == "latin1":
        return _Plan(k.LATIN1, pa.string(), prefix=prefix)
    return _Plan(k.BYTES, pa.string() if charset in _COPIED else None, prefix=prefix)


def _enum(table: str, column: ColumnMeta) -> _Plan:
    if column.length not in (1, 2):
        raise _contradiction(table, column)
    charset = charset_of(column.collation) if column.collation is not None else None
    try:
        members = tuple(decode_text(member, charset).encode() for member in column.members)
    except LookupError:
        return _Plan(k.SKIP, None, column.length)
    except UnicodeDecodeError as error:
        raise _contradiction(table, column) from error
    return _Plan(k.ENUM, pa.string(), column.length, a=len(members), members=(b"", *members))


def _stepped_over(table: str, column: ColumnMeta, fraction: int) -> _Plan:
    """Types that cannot be decoded, but whose size is known."""
    kind = column.type
    if kind in _FIXED_UNSUPPORTED:
        return _Plan(k.SKIP, None, _FIXED_UNSUPPORTED[ColumnType(kind)])
    if kind == ColumnType.TIME2:
        return _Plan(k.SKIP, None, 3 + fraction)
    if kind == ColumnType.BIT and column.length:
        return _Plan(k.SKIP, None, (column.length + 7) // 8)
    if kind == ColumnType.SET and column.length:
        return _Plan(k.SKIP, None, column.length)
    if kind == ColumnType.VARCHAR_COMPRESSED:
        return _Plan(k.SKIP, None, prefix=1 if column.length <= 255 else 2)
    if 1 <= column.length <= 4:  # JSON, GEOMETRY, VECTOR, compressed BLOB: a length of so many bytes
        return _Plan(k.SKIP, None, prefix=column.length)
    raise _contradiction(table, column)


def _contradiction(table: str, column: ColumnMeta) -> DamagedError:
    return DamagedError(
        f"the column {column.name} of type {column.type_name} is described with impossible numbers",
        place=f"table {table}",
    )
