"""Parses TABLE_MAP events, which describe the columns of the row events after them.

Layout (MySQL's ``Table_map_event``, MariaDB's is the same): table id 6 bytes, flags 2, then database and table as
length, name, NUL; the number of columns; a type byte for each; their type metadata; a bitmap of nullable columns;
and, if ``binlog_row_metadata`` is FULL (in part: MINIMAL), fields of type, length, value that hold names,
signs, character sets, members and the primary key. Lengths are MySQL's packed integers.

Differences between servers, as seen on MySQL 8.0.12, 8.0.33 and 9.7 and MariaDB 10.5 to 11.8: YEAR counts among the
numeric columns, but not on MySQL 8.0.12; BIT never does. The list of character columns counts GEOMETRY on MariaDB and
VECTOR on MySQL, with the binary collation. MySQL 8.0.12 sends no character set of ENUM and SET. MariaDB and MySQL
before 8.0.23 send no VISIBILITY, and on MariaDB UUID, INET4, INET6 and VECTOR look like BINARY and VARBINARY.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from cdc.base.errors import DamagedError, UnsupportedTypeError
from cdc.binlog.constants import CHECKSUM_SIZE, HEADER_SIZE, EventType
from cdc.binlog.events import FormatDescription


class ColumnType(enum.IntEnum):
    """The type byte, after STRING has been resolved into STRING, ENUM and SET."""

    DECIMAL_OLD = 0
    TINY = 1
    SHORT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    NULL = 6
    TIMESTAMP = 7
    LONGLONG = 8
    INT24 = 9
    DATE = 10
    TIME = 11
    DATETIME = 12
    YEAR = 13
    NEWDATE = 14
    VARCHAR = 15
    BIT = 16
    TIMESTAMP2 = 17
    DATETIME2 = 18
    TIME2 = 19
    TYPED_ARRAY = 20
    BLOB_COMPRESSED = 140
    VARCHAR_COMPRESSED = 141
    VECTOR = 242
    JSON = 245
    NEWDECIMAL = 246
    ENUM = 247
    SET = 248
    TINY_BLOB = 249
    MEDIUM_BLOB = 250
    LONG_BLOB = 251
    BLOB = 252
    VAR_STRING = 253
    STRING = 254
    GEOMETRY = 255


class _Field(enum.IntEnum):
    """Types of the optional metadata's fields."""

    SIGNEDNESS = 1
    DEFAULT_CHARSET = 2
    COLUMN_CHARSET = 3
    COLUMN_NAME = 4
    SET_STR_VALUE = 5
    ENUM_STR_VALUE = 6
    GEOMETRY_TYPE = 7
    SIMPLE_PRIMARY_KEY = 8
    PRIMARY_KEY_WITH_PREFIX = 9
    ENUM_AND_SET_DEFAULT_CHARSET = 10
    ENUM_AND_SET_COLUMN_CHARSET = 11
    VISIBILITY = 12


_ONE_BYTE_META = frozenset({4, 5, 17, 18, 19, 140, 242, 245, 249, 250, 251, 252, 255})
_TWO_BYTE_META = frozenset({0, 15, 16, 141, 246, 247, 248, 253, 254})
_NO_META = frozenset({1, 2, 3, 6, 7, 8, 9, 10, 11, 12, 13, 14})
_NUMERIC = frozenset({1, 2, 3, 4, 5, 8, 9, 13, 246})
_YEAR_WITHOUT_SIGN, _YEAR_WITH_SIGN = (8, 0, 12), (8, 0, 33)
_CHARACTER = frozenset({15, 140, 141, 242, 249, 250, 251, 252, 253, 254})


@dataclass(frozen=True)
class ColumnMeta:
    """A column as the table map describes it."""

    name: str
    """Empty without FULL metadata."""
    type: int
    """A :class:`ColumnType`, or an unknown number."""
    length: int = 0
    """STRING, VARCHAR: the maximal size of a value in bytes; BLOB: the bytes of its length; BIT: bits; ENUM, SET: bytes
    of a value."""
    precision: int = 0
    """DECIMAL only."""
    scale: int = 0
    """DECIMAL: digits after the point; DATETIME, TIMESTAMP, TIME: digits of the fraction."""
    nullable: bool = True
    unsigned: bool = False
    collation: int | None = None
    """Collation id of texts, ENUM and SET (63: binary); None for other types and without metadata."""
    members: tuple[bytes, ...] = ()
    """ENUM and SET: members, in the column's character set."""
    visible: bool = True
    of_mysql_5: bool = False
    """JSON: of a MySQL before 8.0."""
    is_sign_unsure: bool = False
    """Whether ``unsigned`` may be that of another column."""

    @property
    def type_name(self) -> str:
        """The type for messages: ``NEWDECIMAL``, or ``type 99`` for an unknown one."""
        try:
            return ColumnType(self.type).name
        except ValueError:
            return f"type {self.type}"


@dataclass(frozen=True)
class TableMap:
    """A whole TABLE_MAP event."""

    table_id: int
    db: str
    table: str
    columns: tuple[ColumnMeta, ...]
    primary_key: tuple[int, ...]
    """Ordinals of the key's columns, in the key's order; empty without a key, and without FULL metadata."""
    has_metadata: bool
    """Whether it holds names and everything else of FULL metadata."""

    @property
    def full_name(self) -> str:
        """``db.table``."""
        return f"{self.db}.{self.table}"


class _Reader:
    """Reads bytes in their order, and never behind their end."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise _Short(self.at)
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "little")

    def packed(self) -> int:
        first = self.number(1)
        if first < 251:
            return first
        if first in (251, 255):
            raise _Short(self.at - 1)
        return self.number({252: 2, 253: 3, 254: 8}[first])

    def text(self) -> bytes:
        return self.take(self.packed())


class _Short(Exception):
    """The event ends, or holds something impossible, at this offset of its body."""


def parse_table_map(
    event: bytes | memoryview, has_checksum: bool, *, writer: FormatDescription | None = None
) -> TableMap:
    """Parses a whole TABLE_MAP event, including its header. ``writer``: the format description of its file; without it,
    the collations of a MySQL before 8.0.23 may be those of other columns. Raises DamagedError if it is cut or
    contradicts itself, UnsupportedTypeError for a type byte that no known server writes."""
    data = bytes(event)
    if len(data) < HEADER_SIZE or data[4] != EventType.TABLE_MAP:
        raise DamagedError("is not a TABLE_MAP event")
    body = _Reader(data[HEADER_SIZE : len(data) - CHECKSUM_SIZE if has_checksum else len(data)])
    try:
        return _parse(body, writer)
    except (_Short, UnicodeDecodeError) as error:
        raise DamagedError(f"the TABLE_MAP event is damaged near byte {HEADER_SIZE + body.at}") from error


_SEQUENCE_COLUMNS = (
    "next_not_cached_value", "minimum_value", "maximum_value", "start_value", "increment", "cache_size", "cycle_option",
    "cycle_count",
)  # fmt: skip
_SEQUENCE_TYPES = (*[ColumnType.LONGLONG] * 6, ColumnType.TINY, ColumnType.LONGLONG)


def may_be_sequence(event: bytes | memoryview, has_checksum: bool, *, is_sequence: bool) -> bool:
    """Whether a TABLE_MAP event is that of a sequence (MariaDB), whose state is a row like one of a table. Without
    names of columns, ``is_sequence`` decides if their types are those of a sequence."""
    try:
        table_map = parse_table_map(event, has_checksum)
    except (DamagedError, UnsupportedTypeError):
        return False
    if tuple(column.type for column in table_map.columns) != _SEQUENCE_TYPES:
        return False
    names = tuple(column.name for column in table_map.columns)
    return names == _SEQUENCE_COLUMNS if table_map.has_metadata else is_sequence


def names_columns(event: bytes | memoryview, has_checksum: bool) -> bool | None:
    """Whether a TABLE_MAP event names the table's columns; None if it cannot be read."""
    try:
        return parse_table_map(event, has_checksum).has_metadata
    except (DamagedError, UnsupportedTypeError):
        return None


def _parse(body: _Reader, writer: FormatDescription | None) -> TableMap:
    table_id = body.number(6)
    body.take(2)
    db = _name(body)
    table = _name(body)
    count = body.packed()
    types = body.take(count)
    meta = _Reader(body.text())
    columns = [_column(kind, meta, f"{db}.{table}") for kind in types]
    if meta.left:
        raise _Short(body.at)
    if writer is not None and writer.is_mysql_5:
        columns = [replace(c, of_mysql_5=True) if c.type == ColumnType.JSON else c for c in columns]
    nullable = body.take((count + 7) // 8)
    columns = [replace(c, nullable=bool(nullable[i >> 3] >> (i & 7) & 1)) for i, c in enumerate(columns)]
    fields: dict[int, bytes] = {}
    while body.left:
        field = body.number(1)
        fields[field] = body.text()
    columns, primary_key = _apply(columns, fields, writer)
    return TableMap(
        table_id=table_id,
        db=db,
        table=table,
        columns=tuple(columns),
        primary_key=primary_key,
        has_metadata=_Field.COLUMN_NAME in fields,
    )


def _name(body: _Reader) -> str:
    name = body.take(body.number(1)).decode("utf-8")
    if body.number(1) != 0:
        raise _Short(body.at)
    return name


def _column(kind: int, meta: _Reader, place: str) -> ColumnMeta:
    """A column's type and type metadata."""
    if kind in _NO_META:
        return ColumnMeta("", kind)
    if kind in _ONE_BYTE_META:
        value = meta.number(1)
        if kind in (ColumnType.TIMESTAMP2, ColumnType.DATETIME2, ColumnType.TIME2):
            if value > 6:
                raise _Short(meta.at)
            return ColumnMeta("", kind, scale=value)
        return ColumnMeta("", kind, length=value)
    if kind in _TWO_BYTE_META:
        first, second = meta.take(2)
        if kind == ColumnType.NEWDECIMAL:
            if not 1 <= first <= 65 or second > min(first, 38):
                raise _Short(meta.at)
            return ColumnMeta("", kind, precision=first, scale=second)
        if kind == ColumnType.BIT:
            return ColumnMeta("", kind, length=second * 8 + first)
        if kind == ColumnType.STRING:
            if first & 0x30 != 0x30:  # two further bits of a CHAR's length, inverted, are in the type
                return ColumnMeta("", first | 0x30, length=second | ((first & 0x30) ^ 0x30) << 4)
            return ColumnMeta("", first, length=second)
        return ColumnMeta("", kind, length=second << 8 | first)
    # The metadata of the following columns cannot be found either, so the whole table is unknown.
    raise UnsupportedTypeError(f"has a column of the unknown type {kind}", place=place)


def _apply(
    columns: list[ColumnMeta], fields: dict[int, bytes], writer: FormatDescription | None
) -> tuple[list[ColumnMeta], tuple[int, ...]]:
    """Adds the optional metadata to the columns. Unknown fields hold nothing that is needed."""
    if (raw := fields.get(_Field.SIGNEDNESS)) is not None:
        _signs(columns, raw, writer)
    if (raw := fields.get(_Field.COLUMN_NAME)) is not None:
        names = list(_texts(raw))
        if len(names) != len(columns):
            raise _Short(0)
        columns = [replace(c, name=name.decode("utf-8")) for c, name in zip(columns, names, strict=True)]
    for field, kind in ((_Field.ENUM_STR_VALUE, ColumnType.ENUM), (_Field.SET_STR_VALUE, ColumnType.SET)):
        if (raw := fields.get(field)) is not None:
            _members(columns, _those(columns, {kind}), raw)
    _charsets(columns, fields, None if writer is None else writer.flavor)
    if (raw := fields.get(_Field.VISIBILITY)) is not None:
        columns = [replace(c, visible=_bit(raw, i)) for i, c in enumerate(columns)]
    return columns, _primary_key(fields, len(columns))


def _signs(columns: list[ColumnMeta], raw: bytes, writer: FormatDescription | None) -> None:
    """MySQL 8.0.12 does not count YEAR among the numeric columns, and 8.0.33 does. Nobody knows which of the versions
    between them was the first, but a YEAR that counts is unsigned."""
    numeric = _those(columns, _NUMERIC)
    without = [i for i in numeric if columns[i].type != ColumnType.YEAR]
    is_unsure = False
    if len(without) < len(numeric) and writer is not None and writer.flavor == "mysql":
        if (8,) < writer.version <= _YEAR_WITHOUT_SIGN or not _are_years_unsigned(columns, numeric, raw):
            numeric = without
        else:
            is_unsure = (8,) < writer.version < _YEAR_WITH_SIGN
    is_behind = False
    for n, i in enumerate(numeric):
        is_year = columns[i].type == ColumnType.YEAR
        columns[i] = replace(columns[i], unsigned=_bit(raw, n), is_sign_unsure=is_unsure and is_behind and not is_year)
        is_behind |= is_year


def _are_years_unsigned(columns: list[ColumnMeta], numeric: list[int], raw: bytes) -> bool:
    """Whether all columns of YEAR are unsigned if they count among the numeric columns."""
    return (len(numeric) + 7) // 8 == len(raw) and all(
        _bit(raw, n) for n, i in enumerate(numeric) if columns[i].type == ColumnType.YEAR
    )


def _those(columns: list[ColumnMeta], kinds: frozenset[int] | set[ColumnType]) -> list[int]:
    return [i for i, column in enumerate(columns) if column.type in kinds]


def _bit(raw: bytes, n: int) -> bool:
    if n >> 3 >= len(raw):
        raise _Short(0)
    return bool(raw[n >> 3] >> (7 - (n & 7)) & 1)


def _texts(raw: bytes) -> Iterator[bytes]:
    reader = _Reader(raw)
    while reader.left:
        yield reader.text()


def _members(columns: list[ColumnMeta], which: list[int], raw: bytes) -> None:
    reader = _Reader(raw)
    for i in which:
        columns[i] = replace(columns[i], members=tuple(reader.text() for _ in range(reader.packed())))
    if reader.left:
        raise _Short(0)


def _charsets(columns: list[ColumnMeta], fields: dict[int, bytes], flavor: str | None) -> None:
    """Only MariaDB counts GEOMETRY among the texts. Only MySQL sends VISIBILITY, from 8.0.23 on."""
    character = _those(columns, _CHARACTER)
    with_geometry = _those(columns, _CHARACTER | {ColumnType.GEOMETRY})
    is_mysql = _Field.VISIBILITY in fields if flavor is None else flavor == "mysql"
    if (raw := fields.get(_Field.COLUMN_CHARSET)) is not None:
        listed = len(list(_packed(raw)))
        _set_collations(columns, character if listed == len(character) else with_geometry, raw, _list_form)
    elif (raw := fields.get(_Field.DEFAULT_CHARSET)) is not None:
        _set_collations(columns, character if is_mysql else with_geometry, raw, _default_form)
    members = _those(columns, {ColumnType.ENUM, ColumnType.SET})
    if (raw := fields.get(_Field.ENUM_AND_SET_COLUMN_CHARSET)) is not None:
        _set_collations(columns, members, raw, _list_form)
    elif (raw := fields.get(_Field.ENUM_AND_SET_DEFAULT_CHARSET)) is not None:
        _set_collations(columns, members, raw, _default_form)


def _packed(raw: bytes) -> Iterator[int]:
    reader = _Reader(raw)
    while reader.left:
        yield reader.packed()


def _list_form(raw: bytes, count: int) -> list[int]:
    """A collation for each column."""
    collations = list(_packed(raw))
    if len(collations) != count:
        raise _Short(0)
    return collations


def _default_form(raw: bytes, count: int) -> list[int]:
    """The most frequent collation, then pairs of column and collation for the exceptions."""
    numbers = list(_packed(raw))
    if len(numbers) % 2 != 1:
        raise _Short(0)
    collations = [numbers[0]] * count
    for which, collation in zip(numbers[1::2], numbers[2::2], strict=True):
        if which >= count:
            raise _Short(0)
        collations[which] = collation
    return collations


def _set_collations(
    columns: list[ColumnMeta], which: list[int], raw: bytes, form: Callable[[bytes, int], list[int]]
) -> None:
    for i, collation in zip(which, form(raw, len(which)), strict=True):
        columns[i] = replace(columns[i], collation=collation)


def _primary_key(fields: dict[int, bytes], count: int) -> tuple[int, ...]:
    if (raw := fields.get(_Field.SIMPLE_PRIMARY_KEY)) is not None:
        key = tuple(_packed(raw))
    elif (raw := fields.get(_Field.PRIMARY_KEY_WITH_PREFIX)) is not None:
        numbers = tuple(_packed(raw))
        if len(numbers) % 2:
            raise _Short(0)
        key = numbers[::2]
    else:
        return ()
    if any(i >= count for i in key):
        raise _Short(0)
    return key
