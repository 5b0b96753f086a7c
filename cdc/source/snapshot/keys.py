"""The key by which a table is read in chunks: which key, and the conditions on it. The server alone compares keys.

A key's value is kept as the bytes that the server sent, in hexadecimal. It goes back to the server as a literal of the
column's type: digits, a quoted date, or a binary literal with the column's character set and collation. So the server
compares it as it compares the rows, and no text of a row becomes SQL.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cdc.base.errors import DamagedError
from cdc.binlog.sql.schemas import ColumnSchema, TableSchema
from cdc.binlog.sql.tokens import word_set
from cdc.source.connection import query, quoted
from cdc.source.server import Connection

Key = tuple[str, ...]
"""The values of a key's columns: the bytes that the server sent for each, in hexadecimal."""

_NUMBERS = word_set("tinyint smallint mediumint int bigint decimal numeric fixed year")
_TIMES = word_set("date datetime timestamp time")
_TEXTS = word_set("char varchar")
_BYTES = word_set("binary varbinary")
_ADDRESSES = word_set("uuid inet4 inet6")
_PAGEABLE = _NUMBERS | _TIMES | _TEXTS | _BYTES | _ADDRESSES
"""Types whose order is the one of their comparisons with literals. ENUM and SET are sorted by number and compared as
text; FLOAT has no literals that are equal to its values; BIT and JSON are converted before they are compared."""
_NUMBER = re.compile(rb"-?[0-9]{1,65}(\.[0-9]{1,38})?")
_TIME = re.compile(rb"-?[0-9: .-]{2,26}")
_ADDRESS = re.compile(rb"[0-9a-fA-F:.-]{2,45}")

_UNIQUE = """
SELECT INDEX_NAME AS name, COLUMN_NAME AS col, SUB_PART AS part FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND NON_UNIQUE = 0 ORDER BY INDEX_NAME, SEQ_IN_INDEX
"""


@dataclass(frozen=True)
class PagingKey:
    """A unique index without NULLs, in whose order a table is read."""

    index: str
    columns: tuple[ColumnSchema, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def order(self) -> str:
        """The list behind ORDER BY."""
        return ", ".join(quoted(name) for name in self.names)

    def after(self, key: Key) -> str:
        """Returns the condition for rows behind a key."""
        return self._expanded(key, ">", ">", ">=")

    def upto(self, key: Key) -> str:
        """Returns the condition for rows up to a key, with it."""
        return self._expanded(key, "<", "<=", "<=")

    def _expanded(self, key: Key, sign: str, last: str, first: str) -> str:
        # a > x OR (a = x AND (b > y OR (b = y AND c > z))). Servers find no range in (a, b, c) > (x, y, z). The
        # condition on the first column alone is implied; the optimizer then has a range whatever it makes of the rest.
        terms = [(quoted(column.name), literal(column, value)) for column, value in zip(self.columns, key, strict=True)]
        name, value = terms[-1]
        condition = f"{name} {last} {value}"
        for name, value in reversed(terms[:-1]):
            condition = f"({name} {sign} {value} OR ({name} = {value} AND {condition}))"
        name, value = terms[0]
        return condition if len(terms) == 1 else f"({name} {first} {value} AND {condition})"


def literal(column: ColumnSchema, value: str) -> str:
    """Returns a key's value as a literal of the column's type. Raises DamagedError for bytes that no server sends."""
    try:
        raw = bytes.fromhex(value)
    except ValueError:
        raise _damaged(column, value) from None
    kind = column.data_type
    if kind in _NUMBERS and _NUMBER.fullmatch(raw):
        return raw.decode()
    if (kind in _TIMES and _TIME.fullmatch(raw)) or (kind in _ADDRESSES and _ADDRESS.fullmatch(raw)):
        return f"'{raw.decode()}'"
    if kind in _BYTES or (kind in _TEXTS and column.charset in (None, "binary")):
        return f"x'{raw.hex()}'"
    if kind in _TEXTS and _is_word(column.charset) and _is_word(column.collation):
        return f"_{column.charset} x'{raw.hex()}' COLLATE {column.collation}"
    raise _damaged(column, value)


def _is_word(name: str | None) -> bool:
    return name is not None and re.fullmatch(r"[A-Za-z0-9_]+", name) is not None


def _damaged(column: ColumnSchema, value: str) -> DamagedError:
    return DamagedError(f"{value!r} is not a value of the key's column {column.name} ({column.column_type})")


def can_page(column: ColumnSchema) -> bool:
    """Whether a key may have this column."""
    if column.column_type.lower().startswith("year(2)"):
        return False
    return column.data_type in _PAGEABLE and not column.nullable


def paging_key(conn: Connection, table: tuple[str, str], schema: TableSchema, keys: Sequence[str]) -> PagingKey | None:
    """Returns the primary key, else the unique index that consists of the configured ``keys``; None if there is no
    such index, or its order is not that of its comparisons."""
    indexes: dict[str, list[tuple[str, bool]]] = {}
    for row in query(conn, _UNIQUE, table):
        indexes.setdefault(str(row["name"]), []).append((str(row["col"]), row["part"] is None))
    by_name = {column.name.lower(): column for column in schema.columns}
    key_names = {key.lower() for key in keys}
    for name, parts in sorted(indexes.items(), key=lambda item: item[0] != "PRIMARY"):
        columns = [by_name.get(column.lower()) for column, whole in parts if whole]
        key_columns = [column for column in columns if column is not None and can_page(column)]
        is_wanted = name == "PRIMARY" or {column.name.lower() for column in key_columns} == key_names
        if is_wanted and len(key_columns) == len(parts):
            return PagingKey(name, tuple(key_columns))
    return None
