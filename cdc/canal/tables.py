"""A table's columns as the kernels and Canal's clients see them: kinds, numbers of ``java.sql.Types``, names, types."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cdc.binlog.sql.schemas import TableSchema
from cdc.binlog.table_map import ColumnType, TableMap
from cdc.canal.fields import data, number
from cdc.canal.kernels import entries as e
from cdc.canal.kernels import texts as k
from cdc.canal.kernels.survey import TableMapIndex, body_hash
from cdc.decode.charsets.convert import text_conversion
from cdc.decode.column_types import ValuePolicies, unsupported
from cdc.decode.columns import BINARY, BLOBS, COMPRESSED, TEXTS, Column, describe
from cdc.decode.conversions.temporal import DATE_BYTES, HIRES_BYTES
from cdc.decode.kernels.values import decimal_size
from cdc.decode.layout import LATIN1_TABLE, TableLayout

_BIT, _TINYINT, _BIGINT = -7, -6, -5
_CHAR, _DECIMAL, _INTEGER, _SMALLINT, _REAL, _DOUBLE, _VARCHAR = 1, 3, 4, 5, 7, 8, 12
_DATE, _TIME, _TIMESTAMP, _OTHER, _BLOB, _CLOB = 91, 92, 93, 1111, 2004, 2005
"""Numbers of java.sql.Types."""

_INTEGERS = {
    ColumnType.TINY: (1, _TINYINT, _SMALLINT),
    ColumnType.SHORT: (2, _SMALLINT, _INTEGER),
    ColumnType.INT24: (3, _INTEGER, _INTEGER),
    ColumnType.LONG: (4, _INTEGER, _BIGINT),
    ColumnType.LONGLONG: (8, _BIGINT, _DECIMAL),
}
"""Bytes, type, and the type of an unsigned number that the signed type does not hold."""
_TEMPORAL = {
    ColumnType.DATE: (k.DATE, _DATE),
    ColumnType.NEWDATE: (k.DATE, _DATE),
    ColumnType.DATETIME2: (k.DATETIME, _TIMESTAMP),
    ColumnType.TIMESTAMP2: (k.TIMESTAMP, _TIMESTAMP),
    ColumnType.TIME2: (k.TIME, _TIME),
    ColumnType.DATETIME: (k.OLD_DATETIME, _TIMESTAMP),
    ColumnType.TIMESTAMP: (k.OLD_TIMESTAMP, _TIMESTAMP),
    ColumnType.TIME: (k.OLD_TIME, _TIME),
}
_OLD_BYTES = {ColumnType.DATETIME: 8, ColumnType.TIMESTAMP: 4, ColumnType.TIME: 3}
_DOCUMENTS = (ColumnType.JSON, ColumnType.GEOMETRY, ColumnType.VECTOR)


class ColumnForm(NamedTuple):
    """How a column's bytes become text, and its types."""

    kind: int
    width: int
    """Bytes of a value in the row, 0 if a length precedes it."""
    prefix: int
    """Bytes of that length."""
    a: int
    """DECIMAL: precision; times: digits of the fraction; PADDED: bytes."""
    b: int
    """DECIMAL: scale."""
    java: int
    """The type of a value, in java.sql.Types."""
    null: int
    """The type that Canal gives NULL."""
    wide: int
    """The type of an unsigned number that ``java`` does not hold."""


def form_of(table: str, column: Column) -> ColumnForm:
    """Raises UnsupportedTypeError for a column that cannot be decoded."""
    kind = ColumnType(column.type)
    if kind in _INTEGERS:
        width, java, wide = _INTEGERS[kind]
        return ColumnForm(k.UNSIGNED if column.unsigned else k.INTEGER, width, 0, 0, 0, java, java, wide)
    if kind in _TEMPORAL:
        return _temporal(kind, column)
    if kind in (ColumnType.FLOAT, ColumnType.DOUBLE):
        java = _REAL if kind == ColumnType.FLOAT else _DOUBLE
        return _plain(k.SIDE, 4 if kind == ColumnType.FLOAT else 8, 0, java)
    if kind == ColumnType.NEWDECIMAL:
        width = int(decimal_size(column.precision, column.scale))
        return ColumnForm(k.DECIMAL, width, 0, column.precision, column.scale, _DECIMAL, _DECIMAL, _DECIMAL)
    if kind == ColumnType.BIT:
        return _plain(k.BITS, (column.length + 7) // 8, 0, _BIT)
    if kind == ColumnType.YEAR:
        return _plain(k.YEAR, 1, 0, _VARCHAR)
    if kind == ColumnType.ENUM:
        return _plain(k.NUMBER, column.length, 0, _INTEGER)
    if kind == ColumnType.SET:
        return _plain(k.NUMBER, column.length, 0, _BIT)._replace(null=_BLOB)
    if kind == ColumnType.JSON:
        return _plain(k.SIDE, 0, column.length, _VARCHAR)._replace(null=_OTHER)
    if kind in _DOCUMENTS:
        return _plain(k.BINARY, 0, column.length, _BLOB)
    if kind in TEXTS:
        return _text(table, kind, column)
    raise unsupported(table, column)


def _plain(kind: int, width: int, prefix: int, java: int) -> ColumnForm:
    return ColumnForm(kind, width, prefix, 0, 0, java, java, java)


def _temporal(kind: ColumnType, column: Column) -> ColumnForm:
    code, java = _TEMPORAL[kind]
    if kind in _OLD_BYTES:
        if "(" in column.column_type:  # MariaDB's old storage with a fraction
            digits = int(column.column_type[column.column_type.find("(") + 1])
            name = {_TIMESTAMP: "timestamp", _TIME: "time"}[java]
            name = "datetime" if kind == ColumnType.DATETIME else name
            return _plain(k.SIDE, HIRES_BYTES[name][digits], 0, java)
        return _plain(code, _OLD_BYTES[kind], 0, java)
    base = 3 if kind == ColumnType.TIME2 else DATE_BYTES[kind]
    fraction = 0 if code == k.DATE else (column.scale + 1) // 2
    return _plain(code, base + fraction, 0, java)._replace(a=0 if code == k.DATE else column.scale)


def _text(table: str, kind: ColumnType, column: Column) -> ColumnForm:
    blob = kind in BLOBS or kind == ColumnType.BLOB_COMPRESSED
    prefix = column.length if blob else 1 if column.length <= 255 else 2
    if column.declared in ("uuid", "inet4", "inet6"):
        return _plain(k.SIDE, 0, prefix, _CHAR)
    if column.charset == BINARY:
        code = k.SIDE if kind in COMPRESSED else k.PADDED if kind == ColumnType.STRING else k.BINARY
        form = _plain(code, 0, prefix, _BLOB)
        return form._replace(a=column.length) if code == k.PADDED else form
    java = _CLOB if blob else _CHAR if kind == ColumnType.STRING else _VARCHAR
    code = k.SIDE
    if kind not in COMPRESSED:
        if column.charset == "latin1":
            code = k.LATIN1
        else:
            try:
                code = k.UTF8 if column.charset is not None and text_conversion(column.charset) is None else k.SIDE
            except LookupError:
                raise unsupported(table, column) from None
    return _plain(code, 0, prefix, java)


# --- a table for the kernels


@dataclass
class CanalTable:
    """A table map, described for the kernels."""

    body: bytes
    """The bytes of its event from the names to the end."""
    is_wanted: bool
    layout: TableLayout
    forms: tuple[ColumnForm, ...]
    mysql_types: tuple[str, ...]
    keys: frozenset[str]

    @property
    def side_columns(self) -> tuple[int, ...]:
        """The columns whose text a conversion makes."""
        return tuple(i for i, form in enumerate(self.forms) if form.kind == k.SIDE)

    def convert(self, column: int) -> None:
        """Lets a conversion make the column's text from now on: it has bytes that are not UTF-8."""
        forms = list(self.forms)
        forms[column] = forms[column]._replace(kind=k.SIDE)
        self.forms = tuple(forms)


def canal_table(table_map: TableMap, body: bytes, schema: TableSchema | None, is_wanted: bool) -> CanalTable:
    """Describes a table. ``schema``: its definition at that position, if it is known. Raises what
    :meth:`cdc.decode.layout.TableLayout.of` raises, and UnsupportedTypeError."""
    if not is_wanted:
        return CanalTable(body, False, TableLayout(table_map.full_name, (), ()), (), (), frozenset())
    layout = TableLayout.of(table_map, schema)
    old = (ColumnType.DATETIME, ColumnType.TIMESTAMP)
    texts = tuple(
        column.name.lower() for column in layout.row_columns if column.type in old and "(" in column.column_type
    )
    if texts:
        layout = replace(layout, policies=ValuePolicies(as_text=texts))
    declared = {} if schema is None else {column.name: column.column_type for column in schema.columns}
    types = []
    for column in layout.row_columns:
        column_type = declared.get(column.name) if column.declared is not None else None
        types.append(column_type if column_type is not None else _shown_type(column))
    return CanalTable(
        body=body,
        is_wanted=True,
        layout=layout,
        forms=tuple(form_of(layout.table, column) for column in layout.row_columns),
        mysql_types=tuple(types),
        keys=frozenset(layout.primary_key),
    )


_SHOWN = {
    ColumnType.TINY: "tinyint",
    ColumnType.SHORT: "smallint",
    ColumnType.INT24: "mediumint",
    ColumnType.LONG: "int",
    ColumnType.LONGLONG: "bigint",
    ColumnType.DATETIME2: "datetime",
    ColumnType.TIMESTAMP2: "timestamp",
    ColumnType.TIME2: "time",
    ColumnType.STRING: "char",
}
_SIZES = {1: "tiny", 2: "", 3: "medium", 4: "long"}


def _shown_type(column: Column) -> str:
    """The column's type where no schema is known, without what table maps do not tell."""
    kind = ColumnType(column.type)
    if kind in (ColumnType.NEWDECIMAL, ColumnType.BIT):
        return describe(column).lower()
    if kind in BLOBS:
        return _SIZES.get(column.length, "") + ("blob" if column.charset == BINARY else "text")
    name = _SHOWN.get(kind, kind.name.lower())
    if kind in TEXTS and column.charset == BINARY:
        name = name.replace("char", "binary")
    return f"{name} unsigned" if column.unsigned and kind in _INTEGERS else name


class TableSet:
    """The table maps that were met, as arrays for the kernels."""

    def __init__(self, zone_at: npt.NDArray[np.int64], zone_offset: npt.NDArray[np.int64]) -> None:
        self.tables: list[CanalTable] = []
        self._zone = (zone_at, zone_offset)
        self.index = TableMapIndex(
            np.zeros(1, dtype=np.uint8), np.zeros((0, 3), dtype=np.int64), np.full(64, -1, dtype=np.int64)
        )
        self.arrays: e.TableArrays
        self.most_columns = 1
        self.refresh()

    def add(self, table: CanalTable) -> int:
        """Adds a table map. Returns its number."""
        self.tables.append(table)
        self.refresh()
        return len(self.tables) - 1

    def refresh(self) -> None:
        """Makes the arrays anew."""
        bodies = b"".join(table.body for table in self.tables) or b"\0"
        rows = np.zeros((len(self.tables), 3), dtype=np.int64)
        slots = np.full(max(64, 1 << (4 * len(self.tables)).bit_length()), -1, dtype=np.int64)
        buf = np.frombuffer(bodies, dtype=np.uint8)
        at = 0
        for i, table in enumerate(self.tables):
            rows[i] = at, at + len(table.body), table.is_wanted
            slot = int(body_hash(buf, at, at + len(table.body))) & (len(slots) - 1)
            while slots[slot] >= 0:
                slot = (slot + 1) & (len(slots) - 1)
            slots[slot] = i
            at += len(table.body)
        self.index = TableMapIndex(buf, rows, slots)
        self.arrays = self._arrays()

    def _arrays(self) -> e.TableArrays:
        consts = bytearray()
        tables: list[tuple[int, ...]] = []
        columns: list[tuple[int, ...]] = []

        def const(raw: bytes) -> tuple[int, int]:
            consts.extend(raw)
            return len(consts) - len(raw), len(raw)

        for table in self.tables:
            db, _, name = table.layout.table.partition(".")
            head = const(data(8, db) + data(9, name))
            tables.append((len(columns), len(table.forms), *head, int(bool(table.side_columns))))
            for c, (column, form) in enumerate(zip(table.layout.row_columns, table.forms, strict=False)):
                name_and_key = data(3, column.name) + number(4, int(column.name in table.keys))
                plain, null, wide = (
                    const(number(1, c) + number(2, java) + name_and_key) for java in (form.java, form.null, form.wide)
                )
                kind = const(data(10, table.mysql_types[c]))
                columns.append((*form[:5], *plain, *null, *wide, *kind))
        self.most_columns = max([1, *(len(table.forms) for table in self.tables)])
        return e.TableArrays(
            e.CanalTableRow.from_rows(tables),
            e.CanalColumn.from_rows(columns),
            np.frombuffer(bytes(consts) + b"\0", dtype=np.uint8),
            LATIN1_TABLE,
            *self._zone,
        )
