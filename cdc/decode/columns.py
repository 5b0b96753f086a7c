"""A table's columns as the decoder knows them: from the table map, and from the schema that capture stored.

Servers with ``binlog_row_metadata=FULL`` describe columns in the table map, except for MariaDB's UUID, INET4, INET6 and
VECTOR, which look like BINARY and VARBINARY. MySQL 5.6 and 5.7 give only types and lengths; the rest comes from the
stored schema (``information_schema``), and a table map that contradicts it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cdc.base.errors import DamagedError, SourceRefusedError, UnsupportedError, UnsupportedTypeError
from cdc.binlog.sql.schemas import ColumnSchema, TableSchema, quoted_members
from cdc.binlog.sql.tokens import word_set
from cdc.binlog.sql.types import LONGEST_CHARACTER
from cdc.binlog.table_map import ColumnMeta, ColumnType, TableMap
from cdc.decode.charsets.convert import decode_text
from cdc.decode.charsets.tables import BINARY_COLLATION, charset_by_name, charset_of

BINARY = "binary"
METADATA_COLUMNS = frozenset({"_op", "_seq", "_row", "_commit_time", "_gtid", "_before"})
"""The names of the columns that Towpath adds, in lower case."""

BLOBS = frozenset({ColumnType.TINY_BLOB, ColumnType.BLOB, ColumnType.MEDIUM_BLOB, ColumnType.LONG_BLOB})
COMPRESSED = frozenset({ColumnType.BLOB_COMPRESSED, ColumnType.VARCHAR_COMPRESSED})
TEXTS = frozenset({ColumnType.STRING, ColumnType.VARCHAR, ColumnType.VAR_STRING}) | BLOBS | COMPRESSED
MEMBERED = frozenset({ColumnType.ENUM, ColumnType.SET})
_SHOWN_AS_BINARY = {"uuid": 16, "inet4": 4, "inet6": 16, "vector": None}
"""MariaDB's types that a table map calls BINARY(n) with this n, or VARBINARY (None)."""

_BINLOG_TYPES: dict[str, frozenset[int]] = {
    "tinyint": frozenset({ColumnType.TINY}),
    "smallint": frozenset({ColumnType.SHORT}),
    "mediumint": frozenset({ColumnType.INT24}),
    "int": frozenset({ColumnType.LONG}),
    "bigint": frozenset({ColumnType.LONGLONG}),
    "float": frozenset({ColumnType.FLOAT}),
    "double": frozenset({ColumnType.DOUBLE}),
    "decimal": frozenset({ColumnType.NEWDECIMAL}),
    "bit": frozenset({ColumnType.BIT}),
    "year": frozenset({ColumnType.YEAR}),
    "date": frozenset({ColumnType.DATE, ColumnType.NEWDATE}),
    "time": frozenset({ColumnType.TIME, ColumnType.TIME2}),
    "datetime": frozenset({ColumnType.DATETIME, ColumnType.DATETIME2}),
    "timestamp": frozenset({ColumnType.TIMESTAMP, ColumnType.TIMESTAMP2}),
    "char": frozenset({ColumnType.STRING, ColumnType.VAR_STRING}),
    "binary": frozenset({ColumnType.STRING}),
    "varchar": frozenset({ColumnType.VARCHAR, ColumnType.VARCHAR_COMPRESSED}),
    "varbinary": frozenset({ColumnType.VARCHAR, ColumnType.VARCHAR_COMPRESSED}),
    "enum": frozenset({ColumnType.ENUM}),
    "set": frozenset({ColumnType.SET}),
    "json": frozenset({ColumnType.JSON}),
    "vector": frozenset({ColumnType.VECTOR, ColumnType.VARCHAR}),
    "uuid": frozenset({ColumnType.STRING}),
    "inet4": frozenset({ColumnType.STRING}),
    "inet6": frozenset({ColumnType.STRING}),
}
_BLOB_PREFIX = {"tiny": 1, "": 2, "medium": 3, "long": 4}
_NUMERIC = word_set("tinyint smallint mediumint int bigint decimal float double")
_GEOMETRIES = word_set(
    "geometry point linestring polygon multipoint multilinestring multipolygon geometrycollection geomcollection"
)


@dataclass(frozen=True)
class Column:
    """A column with everything that decoding its values needs."""

    name: str
    type: int
    """A :class:`~cdc.binlog.table_map.ColumnType`."""
    length: int = 0
    """STRING, VARCHAR: the maximal size of a value in bytes; BLOB, JSON, GEOMETRY, VECTOR: bytes of its length; BIT:
    bits; ENUM, SET: bytes of a value."""
    precision: int = 0
    scale: int = 0
    """DECIMAL: digits after the point; DATETIME, TIMESTAMP, TIME: digits of the fraction."""
    nullable: bool = True
    unsigned: bool = False
    charset: str | None = None
    """The character set of texts, ENUM and SET; ``binary`` for bytes; None for other types."""
    members: tuple[str, ...] = ()
    """ENUM, SET."""
    declared: str | None = None
    """The data type in ``information_schema`` (``uuid``, ``tinyint``), if it is known."""
    column_type: str = ""
    """The column type in ``information_schema``: ``tinyint(1)``, ``datetime(3) /* mariadb-5.3 */``."""
    of_mysql_5: bool = False
    """JSON: of a MySQL before 8.0, which prints numbers in another way."""

    @property
    def is_text(self) -> bool:
        return self.type in TEXTS and self.charset != BINARY


def resolve(table_map: TableMap, schema: TableSchema | None) -> tuple[tuple[Column, ...], tuple[str, ...]]:
    """The columns of a table, and the names of the primary key's columns. ``schema``: the table in
    ``information_schema`` at that position of the binlog.

    Raises SourceRefusedError if the table map lacks names and the schema is missing or contradicts it; UnsupportedError
    if a column has the name of a metadata column; DamagedError.
    """
    if table_map.has_metadata:
        columns, key = (
            _with_metadata(table_map, schema),
            tuple(table_map.columns[i].name for i in table_map.primary_key),
        )
    else:
        columns, key = _from_schema(table_map, schema)
    for column in columns:
        if column.name.lower() in METADATA_COLUMNS:
            raise UnsupportedError(
                f"the column {column.name} has the name of a column that Towpath adds",
                place=f"table {table_map.full_name}",
                remedy="Rename it on the source, or exclude the table.",
            )
    return columns, key


def _with_metadata(table_map: TableMap, schema: TableSchema | None) -> tuple[Column, ...]:
    declared = {} if schema is None else {column.name: column for column in schema.columns}
    columns = []
    for meta in table_map.columns:
        schema_column = declared.get(meta.name)
        charset = None
        if meta.type in TEXTS or meta.type in MEMBERED:
            charset = BINARY if meta.collation == BINARY_COLLATION else _charset(meta.collation)
        if meta.type in MEMBERED and meta.collation is None:
            charset = _charset_of_members(table_map.full_name, meta, schema_column)
        column = replace(_plain(meta), charset=charset)
        if meta.is_sign_unsure:
            column = replace(column, unsigned=_is_unsigned(table_map.full_name, meta, schema_column))
        if meta.type in MEMBERED:
            column = replace(column, members=_members(table_map.full_name, meta, charset))
        # The schema may be of another time than the row. If the two contradict each other, the table map is right.
        if schema_column is not None and contradiction(meta, schema_column) is None and _is_same(column, schema_column):
            column = replace(column, declared=schema_column.data_type, column_type=schema_column.column_type.lower())
        columns.append(column)
    return tuple(columns)


def _is_same(column: Column, schema_column: ColumnSchema) -> bool:
    """Whether a definition says what a table map with metadata says of NULL, sign, members and character set."""
    full = schema_column.column_type.lower()
    is_unsigned = "unsigned" in full or "zerofill" in full
    if column.nullable != schema_column.nullable or (
        schema_column.data_type in _NUMERIC and column.unsigned != is_unsigned
    ):
        return False
    if column.type in MEMBERED and column.members != quoted_members(schema_column.column_type):
        return False
    return _same_charset(column, schema_column)


def _same_charset(column: Column, schema_column: ColumnSchema) -> bool:
    if not (column.type in TEXTS or column.type in MEMBERED) or schema_column.data_type in _SHOWN_AS_BINARY:
        return True
    return column.charset == _canonical(schema_column.charset)


def _charset(collation: int | None) -> str | None:
    if collation is None:
        return None
    return charset_of(collation) or f"the unknown collation {collation}"


def _canonical(charset: str | None) -> str:
    return BINARY if charset is None else charset_by_name(charset) or charset


def _plain(meta: ColumnMeta) -> Column:
    return Column(
        name=meta.name,
        type=meta.type,
        length=meta.length,
        precision=meta.precision,
        scale=meta.scale,
        nullable=meta.nullable,
        unsigned=meta.unsigned,
        of_mysql_5=meta.of_mysql_5,
    )


def _charset_of_members(table: str, meta: ColumnMeta, schema_column: ColumnSchema | None) -> str:
    """The character set of an ENUM or SET whose table map does not tell it, as those of MySQL 8.0.12. Raises
    SourceRefusedError."""
    if schema_column is not None and contradiction(meta, schema_column) is None:
        return _canonical(schema_column.charset)
    if all(0 < byte < 128 for member in meta.members for byte in member):
        return "utf8mb4"
    raise _untold(table, f"the character set of the column {meta.name}")


def _is_unsigned(table: str, meta: ColumnMeta, schema_column: ColumnSchema | None) -> bool:
    """The sign of a column that a table map of an early MySQL 8.0 does not tell. Raises SourceRefusedError."""
    if schema_column is None or contradiction(meta, schema_column) is not None:
        raise _untold(table, f"whether the column {meta.name} is unsigned")
    full = schema_column.column_type.lower()
    return "unsigned" in full or "zerofill" in full


def _untold(table: str, what: str) -> SourceRefusedError:
    return SourceRefusedError(
        f"the binlog does not tell {what}, as on early versions of MySQL 8.0, and no schema of it is stored",
        place=f"table {table}",
        remedy="Load the table with `cdc snapshot`, or exclude it (tables.exclude). `cdc decode` takes a definition by "
        "--schema.",
    )


def _members(table: str, meta: ColumnMeta, charset: str | None) -> tuple[str, ...]:
    try:
        return tuple(decode_text(member, charset) for member in meta.members)
    except LookupError:
        raise UnsupportedTypeError(
            f"the column {meta.name} has the type {meta.type_name} in {charset}, which cannot be decoded",
            place=f"table {table}",
            remedy="Exclude the table.",
        ) from None
    except UnicodeDecodeError as error:
        raise DamagedError(
            f"the column {meta.name} has members that are not in its character set {charset}", place=f"table {table}"
        ) from error


# --- servers that give only types and lengths --------------------------------------------------------------------


def _from_schema(table_map: TableMap, schema: TableSchema | None) -> tuple[tuple[Column, ...], tuple[str, ...]]:
    place = f"table {table_map.full_name}"
    if schema is None:
        raise SourceRefusedError(
            "the binlog does not hold the names of its columns, and no schema of it is stored",
            place=place,
            remedy="Set binlog_row_metadata=FULL on the source, and capture from a position after that. If the "
            "server has no such setting, load the table with `cdc snapshot`, or exclude it (tables.exclude) if the "
            "source has it no more. `cdc decode` takes a definition by --schema.",
        )
    if len(schema.columns) != len(table_map.columns):
        raise _contradicted(
            f"the rows have {len(table_map.columns)} columns, the stored schema has {len(schema.columns)}", place
        )
    columns = []
    for number, (meta, schema_column) in enumerate(zip(table_map.columns, schema.columns, strict=True), 1):
        why = contradiction(meta, schema_column)
        if why is not None:
            raise _contradicted(
                f"column {number} is {why}, the stored schema says {schema_column.name} {schema_column.column_type}",
                place,
            )
        full = schema_column.column_type.lower()
        charset = None
        if meta.type in TEXTS or meta.type in MEMBERED:
            charset = _canonical(schema_column.charset)
        columns.append(
            replace(
                _plain(meta),
                name=schema_column.name,
                unsigned="unsigned" in full or "zerofill" in full,
                charset=charset,
                members=quoted_members(schema_column.column_type) if meta.type in MEMBERED else (),
                declared=schema_column.data_type,
                column_type=full,
            )
        )
    return tuple(columns), schema.primary_key


def _contradicted(why: str, place: str) -> SourceRefusedError:
    return SourceRefusedError(
        f"the rows contradict the stored schema, so their columns have no names: {why}",
        place=place,
        remedy="The table was altered by a statement that capture did not see, or twice in a moment. Reload the "
        "table, or exclude it, and skip the batch.",
    )


_NUMBERS = re.compile(r"\((\d+)(?:,(\d+))?\)")


def contradiction(meta: ColumnMeta, schema_column: ColumnSchema) -> str | None:
    """The type of a table map's column in words if it cannot be the column that ``information_schema`` describes; None
    if it can."""
    kind, full = schema_column.data_type, schema_column.column_type.lower()
    shown = meta.type_name
    if kind in _GEOMETRIES:
        return None if meta.type == ColumnType.GEOMETRY else shown
    if kind.endswith(("text", "blob")):
        if meta.type not in BLOBS and meta.type != ColumnType.BLOB_COMPRESSED:
            return shown
        return None if meta.length == _BLOB_PREFIX.get(kind[:-4]) else f"{shown} with {meta.length} bytes of length"
    if meta.type not in _BINLOG_TYPES.get(kind, frozenset()):
        return shown
    if meta.nullable != schema_column.nullable:
        return f"{shown} {'NULL' if meta.nullable else 'NOT NULL'}"
    match = _NUMBERS.search(full)
    numbers: Sequence[int] = [int(n) for n in match.groups() if n is not None] if match is not None else ()
    if kind == "decimal" and numbers and [meta.precision, meta.scale] != [numbers[0], [*numbers, 0][1]]:
        return f"DECIMAL({meta.precision},{meta.scale})"
    if kind == "bit" and meta.length != (numbers[0] if numbers else 1):
        return f"BIT({meta.length})"
    if meta.type in (ColumnType.TIME2, ColumnType.DATETIME2, ColumnType.TIMESTAMP2):
        return None if meta.scale == (numbers[0] if numbers else 0) else f"{shown}({meta.scale})"
    if kind in _SHOWN_AS_BINARY:
        size = _SHOWN_AS_BINARY[kind]
        return None if size is None or meta.length == size else f"{shown}({meta.length})"
    if kind in ("char", "varchar", "binary", "varbinary") and numbers and meta.type not in COMPRESSED:
        longest = numbers[0] * LONGEST_CHARACTER.get(schema_column.charset or BINARY, 1)
        return None if meta.length == longest else f"{shown} of {meta.length} bytes"
    if kind in ("enum", "set"):
        return _members_size(kind, meta, len(quoted_members(schema_column.column_type)))
    return None


def _members_size(kind: str, meta: ColumnMeta, count: int) -> str | None:
    size = (1 if count < 256 else 2) if kind == "enum" else (count + 7) // 8
    if kind == "set" and size > 4:
        size = 8
    return None if meta.length == size else f"{meta.type_name} with values of {meta.length} bytes"


def describe(column: Column) -> str:
    """A column's type for messages: ``DECIMAL(65,30)``, ``BIT(9)``, ``VARCHAR in sjis``."""
    kind = column.type
    if column.declared in _SHOWN_AS_BINARY:
        return str(column.declared).upper()
    names = {ColumnType.TIME2: "TIME", ColumnType.DATETIME2: "DATETIME", ColumnType.TIMESTAMP2: "TIMESTAMP"}
    names |= {old: f"{old.name} (old storage)" for old in (ColumnType.TIME, ColumnType.DATETIME, ColumnType.TIMESTAMP)}
    if kind == ColumnType.NEWDECIMAL:
        return f"DECIMAL({column.precision},{column.scale})"
    if kind == ColumnType.BIT:
        return f"BIT({column.length})"
    try:
        name = names.get(ColumnType(kind), ColumnType(kind).name)
    except ValueError:
        return f"type {kind}"
    if column.charset not in (None, BINARY):
        return f"{'CHAR' if kind == ColumnType.STRING else 'TEXT' if kind in BLOBS else name} in {column.charset}"
    return name
