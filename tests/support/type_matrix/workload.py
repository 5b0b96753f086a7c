"""Writes the matrix into a server, and keeps SELECT's answers after each step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pymysql

from cdc.base.errors import UsageError
from tests.support.type_matrix.column import Column, Table, answers
from tests.support.type_matrix.special import LARGE
from tests.support.type_matrix.temporal import OLD
from tests.support.type_matrix.texts import FEATURES

Connection: TypeAlias = "pymysql.connections.Connection[Any]"

_STRICT = "SET sql_mode = 'ALLOW_INVALID_DATES,STRICT_ALL_TABLES'"
_LAX = "SET sql_mode = 'ALLOW_INVALID_DATES'"


@dataclass(frozen=True)
class Observed:
    """SELECT's answers for a table, converted to Delta's values: a list of values by column."""

    table: Table
    file: str
    """The binlog file that contains this table's changes only."""
    inserted: dict[str, list[Any]]
    updated: dict[str, list[Any]]
    snapshots: tuple[pa.Table, ...] = ()
    """The same rows as a snapshot reads them, after the inserts and after the updates."""


def create(connection: Connection, database: str, tables: Sequence[Table]) -> None:
    """Creates the tables. Each begins with ``id INT PRIMARY KEY`` and ``turn``, which every update changes."""
    with connection.cursor() as cursor:
        _prepare(cursor, database)
        for table in tables:
            cursor.execute(_LAX if table.group == FEATURES else _STRICT)
            lines = [
                "id INT PRIMARY KEY, turn INT",
                *(f"{quoted(column.name)} {column.sql}" for column in table.columns),
            ]
            # InnoDB of MySQL 5.6 rejects values above a tenth of its log size.
            engine = "MyISAM" if table.group == LARGE else "InnoDB ROW_FORMAT=DYNAMIC"
            with _old_storage(cursor, table.group == OLD):
                cursor.execute(f"CREATE TABLE {table.name} ({', '.join(lines)}) ENGINE={engine} CHARACTER SET utf8mb4")


def fill(connection: Connection, database: str, tables: Sequence[Table]) -> None:
    """Inserts row n with the n-th value of each column."""
    with connection.cursor() as cursor:
        cursor.execute("SET NAMES utf8mb4")
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(f"USE `{database}`")
        for table in tables:
            modes = "ALLOW_INVALID_DATES" if table.group == FEATURES else "ALLOW_INVALID_DATES,STRICT_ALL_TABLES"
            cursor.execute(f"SET sql_mode = '{modes}'")
            written = [column for column in table.columns if column.written]
            names = ", ".join(["id", "turn", *(quoted(column.name) for column in written)])
            cursor.execute("BEGIN")
            for row in range(table.rows):
                values = ", ".join([str(row), "1", *(c.values[row % len(c.values)] for c in written)])
                cursor.execute(f"INSERT INTO {table.name} ({names}) VALUES ({values})")
            cursor.execute("COMMIT")


@contextmanager
def _old_storage(cursor: Any, is_wanted: bool) -> Iterator[None]:
    if not is_wanted:
        yield
        return
    cursor.execute("SET GLOBAL mysql56_temporal_format = OFF")
    try:
        yield
    finally:
        cursor.execute("SET GLOBAL mysql56_temporal_format = ON")


def _prepare(cursor: Any, database: str) -> None:
    cursor.execute("SELECT VERSION()")
    if str(cursor.fetchall()[0][0]).startswith("5.6"):  # needed for rows with many texts
        cursor.execute("SET GLOBAL innodb_file_format = Barracuda")
    cursor.execute("SET NAMES utf8mb4")
    cursor.execute("SET time_zone = '+00:00'")
    cursor.execute(f"USE `{database}`")


def run(
    connection: Connection, database: str, tables: Sequence[Table], snapshot: Callable[[str], pa.Table] | None = None
) -> list[Observed]:
    """Inserts row n with the n-th value of each column, updates it to the next value, and deletes it. The inserts, the
    updates and the deletes of a table are one transaction each, and each table has its own binlog file. ``snapshot``
    reads a table as it is."""
    with connection.cursor() as cursor:
        _prepare(cursor, database)
        seen = [_run(cursor, table, snapshot) for table in tables]
        cursor.execute("FLUSH BINARY LOGS")
        return seen


def _run(cursor: Any, table: Table, snapshot: Callable[[str], pa.Table] | None) -> Observed:
    written = [column for column in table.columns if column.written]
    names = ", ".join(["id", "turn", *(quoted(column.name) for column in written)])
    cursor.execute("FLUSH BINARY LOGS")
    cursor.execute("SHOW BINARY LOGS")
    file = str(cursor.fetchall()[-1][0])
    cursor.execute(_LAX if table.group == FEATURES else _STRICT)
    cursor.execute("BEGIN")
    for row in range(table.rows):
        values = ", ".join([str(row), "1", *(_value(column, row) for column in written)])
        try:
            cursor.execute(f"INSERT INTO {table.name} ({names}) VALUES ({values})")
        except pymysql.MySQLError as error:
            raise UsageError(
                f"the server rejects row {row} of {table.name}: {error}{_culprit(table, row, error)}"
            ) from error
    cursor.execute("COMMIT")
    inserted = _select(cursor, table)
    snapshots = () if snapshot is None else (snapshot(table.name).sort_by("id"),)
    cursor.execute("BEGIN")
    for row in range(table.rows):
        # Generated columns depend on the key, so the update changes the key if the table has any.
        moved = [] if len(written) == len(table.columns) else [f"id = {row + 1000}"]
        changes = ", ".join(
            ["turn = 2", *moved, *(f"{quoted(column.name)} = {_value(column, row + 1)}" for column in written)]
        )
        cursor.execute(f"UPDATE {table.name} SET {changes} WHERE id = {row}")
    cursor.execute("COMMIT")
    updated = _select(cursor, table)
    if snapshot is not None:
        snapshots = (*snapshots, snapshot(table.name).sort_by("id"))
    cursor.execute(f"DELETE FROM {table.name} ORDER BY id")
    return Observed(table, file, inserted, updated, snapshots)


def _culprit(table: Table, row: int, error: pymysql.MySQLError) -> str:
    """Returns the column that the server's message names, and its value, for a message."""
    for column in table.columns:
        if f"'{column.name}'" in str(error) or f"`{column.name}`" in str(error):
            return f"; {column.sql[:100]}: {_value(column, row)[:200]}"
    return ""


def _value(column: Column, row: int) -> str:
    return column.values[row % len(column.values)]


def _select(cursor: Any, table: Table) -> dict[str, list[Any]]:
    asked = ", ".join(column.select.replace("{}", quoted(column.name)) for column in table.columns)
    cursor.execute(f"SELECT id, {asked} FROM {table.name} ORDER BY id")
    rows = cursor.fetchall()
    if len(rows) != table.rows:
        raise AssertionError(f"{table.name} has {len(rows)} rows instead of {table.rows}")
    values: dict[str, list[Any]] = {"id": [row[0] for row in rows]}
    for at, column in enumerate(table.columns, start=1):
        values[column.name] = answers([row[at] for row in rows], column)
    return values


def quoted(name: str) -> str:
    """Quotes an identifier for MySQL."""
    return "`" + name.replace("`", "``") + "`"
