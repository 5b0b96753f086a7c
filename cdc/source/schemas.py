"""The included tables as ``information_schema`` describes them, and the file that keeps this (``schemas/N.json``).

Table maps in the binlog tell a column's type; they do not tell ``tinyint(1)``, defaults, generated columns, or
MariaDB's UUID and INET. This does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import pymysql
from pydantic import BaseModel, ConfigDict, ValidationError

from cdc.config import SYSTEM_SCHEMAS, TablesConfig
from cdc.durable import make_folder, replace_file
from cdc.errors import DamagedError, StorageError, VersionError
from cdc.source.connection import query

FORMAT_VERSION = 1


class ColumnSchema(BaseModel):
    """One column, in the server's own words."""

    model_config = ConfigDict(frozen=True)

    name: str
    data_type: str
    """``int``, ``varchar``, … in lower case."""
    column_type: str
    """``int(10) unsigned``, ``enum('a','b')``, …"""
    nullable: bool
    default: str | None
    """As information_schema shows it; MariaDB quotes texts and writes NULL as text, MySQL does not."""
    extra: str
    """``auto_increment``, ``VIRTUAL GENERATED``, ``INVISIBLE``, …"""
    charset: str | None
    collation: str | None


class TableSchema(BaseModel):
    """One base table; columns in their order."""

    model_config = ConfigDict(frozen=True)

    columns: tuple[ColumnSchema, ...]
    primary_key: tuple[str, ...]
    """Column names in the key's order; empty without a primary key."""

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)


class Schemas(BaseModel):
    """All included tables at one moment."""

    model_config = ConfigDict(frozen=True)

    version: int = FORMAT_VERSION
    tables: dict[str, TableSchema]
    """By ``db.table``."""

    def save(self, path: Path) -> None:
        """Write the file atomically and durably. Raises StorageError, ConfigError."""
        make_folder(path.parent)
        replace_file(path, (self.model_dump_json(indent=1) + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the file. Raises DamagedError, VersionError, StorageError."""
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            raise DamagedError(
                "this file of table schemas is missing", place=str(path), remedy="Restore it from a copy of the store."
            ) from None
        except OSError as error:
            raise StorageError(f"cannot be read: {error.strerror}", place=str(path)) from error
        try:
            found = cls.model_validate_json(text)
        except ValidationError as error:
            version = _version_of(text)
            if version is not None and version > FORMAT_VERSION:
                raise _newer(version, path) from None
            first = error.errors()[0]
            where = ".".join(str(step) for step in first["loc"]) or "the file"
            raise DamagedError(
                f"is not a file of table schemas: {where}: {first['msg'].lower()}",
                place=str(path),
                remedy="Restore it from a copy of the store.",
            ) from None
        if found.version > FORMAT_VERSION:
            raise _newer(found.version, path)
        return found


class _Head(BaseModel):
    version: int


def _version_of(text: bytes) -> int | None:
    try:
        return _Head.model_validate_json(text).version
    except ValidationError:
        return None


def _newer(version: int, path: Path) -> VersionError:
    return VersionError(
        f"has format version {version}; this Towpath knows {FORMAT_VERSION}",
        place=str(path),
        remedy="Update Towpath on this machine.",
    )


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
    return Schemas(
        tables={key: TableSchema(columns=tuple(found), primary_key=tuple(keys[key])) for key, found in visible.items()}
    )


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
