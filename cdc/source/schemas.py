"""Asking ``information_schema`` for the included tables."""

from __future__ import annotations

from typing import Any

import pymysql

from cdc.config import SYSTEM_SCHEMAS, TablesConfig
from cdc.schemas import ColumnSchema, Schemas, TableSchema
from cdc.source.connection import query
from cdc.source.members import with_members

_TABLES = """
SELECT TABLE_SCHEMA AS db, TABLE_NAME AS tab FROM information_schema.TABLES
WHERE TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED') AND TABLE_SCHEMA NOT IN ({marks})
"""
_COLUMNS = """
SELECT TABLE_SCHEMA AS db, TABLE_NAME AS tab, COLUMN_NAME AS name, DATA_TYPE AS data_type, COLUMN_TYPE AS column_type,
    IS_NULLABLE AS nullable, COLUMN_DEFAULT AS def, EXTRA AS extra,
    CHARACTER_SET_NAME AS charset, COLLATION_NAME AS coll
FROM information_schema.COLUMNS WHERE TABLE_SCHEMA IN ({marks})
ORDER BY TABLE_SCHEMA, TABLE_NAME, ORDINAL_POSITION
"""
_KEYS = """
SELECT TABLE_SCHEMA AS db, TABLE_NAME AS tab, COLUMN_NAME AS name FROM information_schema.STATISTICS
WHERE INDEX_NAME = 'PRIMARY' AND TABLE_SCHEMA IN ({marks}) ORDER BY TABLE_SCHEMA, TABLE_NAME, SEQ_IN_INDEX
"""


def list_tables(conn: pymysql.connections.Connection[Any], tables: TablesConfig) -> list[tuple[str, str]]:
    """``(db, table)`` of the included base tables that the user can see, sorted."""
    system = sorted(SYSTEM_SCHEMAS)
    rows = query(conn, _TABLES.format(marks=_marks(system)), system)
    names = ((str(row["db"]), str(row["tab"])) for row in rows)
    return sorted((db, table) for db, table in names if tables.includes(db, table))


def read_schemas(conn: pymysql.connections.Connection[Any], tables: TablesConfig) -> Schemas:
    """Describe the included base tables (no views). Tables and columns that the user may not read are not there."""
    names = list_tables(conn, tables)
    if not names:
        return Schemas(tables={})
    databases = sorted({db for db, _ in names})
    wanted = {name: f"{name[0]}.{name[1]}" for name in names}
    columns: dict[str, list[ColumnSchema]] = {key: [] for key in wanted.values()}
    keys: dict[str, list[str]] = {key: [] for key in wanted.values()}
    for row in query(conn, _COLUMNS.format(marks=_marks(databases)), databases):
        key = wanted.get((str(row["db"]), str(row["tab"])))
        if key is not None:
            columns[key].append(_column(row))
    for row in query(conn, _KEYS.format(marks=_marks(databases)), databases):
        key = wanted.get((str(row["db"]), str(row["tab"])))
        if key is not None:
            keys[key].append(str(row["name"]))
    visible = {key: found for key, found in columns.items() if found}
    schemas = Schemas(
        tables={key: TableSchema(columns=tuple(found), primary_key=tuple(keys[key])) for key, found in visible.items()}
    )
    return with_members(tables, schemas)


def _column(row: dict[str, Any]) -> ColumnSchema:
    return ColumnSchema(
        name=str(row["name"]),
        data_type=_text(row["data_type"]).lower(),
        column_type=_text(row["column_type"]),
        nullable=row["nullable"] == "YES",
        default=None if row["def"] is None else _text(row["def"]),
        extra=_text(row["extra"] or ""),
        charset=row["charset"],
        collation=row["coll"],
    )


def _text(value: Any) -> str:
    # MySQL 8+ types some of these columns as blobs.
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _marks(values: list[str]) -> str:
    return ", ".join(["%s"] * len(values))
