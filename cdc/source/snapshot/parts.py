"""Parts of tables: the rows that a snapshot reads if it does not read all of them.

A part is defined by the values that the lake has: texts are compared by their bytes, whatever the collation. The server
chooses rows by a wider condition, :meth:`PartRecord.sql`, which holds for each row of the part; the loader leaves out
the others. So the server's order and its conversions never decide which rows belong to a part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from cdc.binlog.sql.schemas import ColumnSchema, TableSchema
from cdc.source.connection import quoted
from cdc.source.snapshot.keys import literal

Operator = Literal["=", "<", "<=", ">", ">="]
ValueKind = Literal["number", "time", "bytes", "text", "other"]

_ENCODINGS = {"utf8mb4": "utf-8", "utf8mb3": "utf-8", "utf8": "utf-8", "ascii": "ascii", "latin1": "cp1252"}
"""The character sets whose characters have the same bytes in Python."""
_COMPARED = {
    "number": frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "numeric", "fixed"}),
    "time": frozenset({"date", "datetime", "timestamp"}),
    "bytes": frozenset({"binary", "varbinary"}),
    "text": frozenset({"char", "varchar"}),
    "other": frozenset[str](),
}
"""The source's types by which the server may choose rows, by the kind of the value in the lake. YEAR is none of them,
because servers take a year of two digits for another one."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Comparison(_Record):
    """A comparison of a column with one value, or with several of which one must be equal."""

    column: str
    """The source's name."""
    operator: Operator
    values: tuple[str, ...]
    """As the source prints them: bytes in hexadecimal digits, timestamps in UTC."""
    kind: ValueKind
    """The kind of the values in the lake."""

    def sql(self, column: ColumnSchema) -> str | None:
        """Returns a condition for the server that holds for every row that fulfils the comparison; None if only one
        that holds for all rows is certain. ``column``: the source's."""
        if column.data_type not in _COMPARED[self.kind] or (self.kind == "text" and self.operator != "="):
            return None
        values = []
        for value in self.values:
            raw = _bytes_of(self.kind, value, column)
            if raw is None:
                return None
            values.append(f"{quoted(self.column)} {self.operator} {literal(column, raw.hex())}")
        return f"({' OR '.join(values)})"


class PartRecord(_Record):
    """The rows of a table that a snapshot reads; kept in ``snapshot.json``."""

    comparisons: tuple[Comparison, ...]
    """All of them hold."""
    keys: tuple[tuple[Comparison, ...], ...] = ()
    """Keys of other rows that are read too: those of the lake that fulfil the comparisons there, but not at the
    source."""

    def sql(self, schema: TableSchema) -> str | None:
        """Returns a condition for the server that holds for every row of the part; None if all rows have to be read."""
        conditions = [_all_of(terms, schema) for terms in (self.comparisons, *self.keys)]
        return None if None in conditions else " OR ".join(f"({condition})" for condition in conditions)

    def narrows(self, name: str, schema: TableSchema) -> bool:
        """Whether the server can begin to read an index at this column: each row of the part has one of some values, or
        one of a range."""
        return all(
            any(term.column == name and term.sql(_column(schema, name)) is not None for term in terms)
            for terms in (self.comparisons, *self.keys)
        )


def _all_of(terms: Sequence[Comparison], schema: TableSchema) -> str | None:
    conditions = [condition for term in terms if (condition := term.sql(_column(schema, term.column))) is not None]
    return " AND ".join(conditions) or None


def _column(schema: TableSchema, name: str) -> ColumnSchema:
    return next(column for column in schema.columns if column.name == name)


def _bytes_of(kind: ValueKind, value: str, column: ColumnSchema) -> bytes | None:
    """Returns a value as the server would send it; None if its bytes are not certain."""
    if kind == "bytes":
        raw = bytes.fromhex(value)
        # The server does not fill a shorter literal with zeros, as it fills the values of BINARY.
        is_whole = column.data_type == "varbinary" or column.column_type.lower() == f"binary({len(raw)})"
        return raw if is_whole else None
    if kind != "text":
        return value.encode()
    encoding = _ENCODINGS.get(column.charset or "")
    try:
        return None if encoding is None else value.encode(encoding)
    except UnicodeEncodeError:
        return None  # no row has such a value
