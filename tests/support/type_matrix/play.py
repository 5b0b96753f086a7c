"""Writes the matrix into a server, and keeps what SELECT shows before and after."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import pymysql

from cdc.errors import UsageError
from tests.support.type_matrix.column import Column, Table, answers
from tests.support.type_matrix.special import LARGE
from tests.support.type_matrix.temporal import OLD
from tests.support.type_matrix.texts import FEATURES

Connection: TypeAlias = "pymysql.connections.Connection[Any]"

_STRICT = "SET sql_mode = 'ALLOW_INVALID_DATES,STRICT_ALL_TABLES'"
_LAX = "SET sql_mode = 'ALLOW_INVALID_DATES'"


@dataclass(frozen=True)
class Observed:
    """What SELECT showed of a table, as Delta should hold it: a list of values for each column, by rows."""

    table: Table
    file: str
    """The binlog file that holds its changes, and no others."""
    inserted: dict[str, list[Any]]
    updated: dict[str, list[Any]]


def create(connection: Connection, database: str, tables: Sequence[Table]) -> None:
    """Make the tables, each with ``id INT PRIMARY KEY`` first; then ``turn``, which an update always changes."""
    with connection.cursor() as cursor:
        _prepare(cursor, database)
        for table in tables:
            cursor.execute(_LAX if table.group == FEATURES else _STRICT)
            lines = [
                "id INT PRIMARY KEY, turn INT",
                *(f"{quoted(column.name)} {column.sql}" for column in table.columns),
            ]
            # InnoDB of MySQL 5.6 refuses values above a tenth of its log.
            engine = "MyISAM" if table.group == LARGE else "InnoDB ROW_FORMAT=DYNAMIC"
            with _old_storage(cursor, table.group == OLD):
                cursor.execute(f"CREATE TABLE {table.name} ({', '.join(lines)}) ENGINE={engine} CHARACTER SET utf8mb4")


@contextmanager
def _old_storage(cursor: Any, wanted: bool) -> Iterator[None]:
    if not wanted:
        yield
        return
    cursor.execute("SET GLOBAL mysql56_temporal_format = OFF")
    try:
        yield
    finally:
        cursor.execute("SET GLOBAL mysql56_temporal_format = ON")


def _prepare(cursor: Any, database: str) -> None:
    cursor.execute("SELECT VERSION()")
    if str(cursor.fetchall()[0][0]).startswith("5.6"):  # where rows with many texts need it
        cursor.execute("SET GLOBAL innodb_file_format = Barracuda")
    cursor.execute("SET NAMES utf8mb4")
    cursor.execute("SET time_zone = '+00:00'")
    cursor.execute(f"USE `{database}`")


def play(connection: Connection, database: str, tables: Sequence[Table]) -> list[Observed]:
    """Insert row n with the n-th value of each column, update it to the value after, delete it; each table's inserts,
    updates and deletes are a transaction each. Each table has a binlog file of its own."""
    with connection.cursor() as cursor:
        _prepare(cursor, database)
        seen = [_play(cursor, table) for table in tables]
        cursor.execute("FLUSH BINARY LOGS")
        return seen


def _play(cursor: Any, table: Table) -> Observed:
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
            raise UsageError(f"row {row} of {table.name} is refused: {error}{_blamed(table, row, error)}") from error
    cursor.execute("COMMIT")
    inserted = _select(cursor, table)
    cursor.execute("BEGIN")
    for row in range(table.rows):
        # Generated columns follow the key, so the key is what changes where there are any.
        moved = [] if len(written) == len(table.columns) else [f"id = {row + 1000}"]
        changes = ", ".join(
            ["turn = 2", *moved, *(f"{quoted(column.name)} = {_value(column, row + 1)}" for column in written)]
        )
        cursor.execute(f"UPDATE {table.name} SET {changes} WHERE id = {row}")
    cursor.execute("COMMIT")
    updated = _select(cursor, table)
    cursor.execute(f"DELETE FROM {table.name} ORDER BY id")
    return Observed(table, file, inserted, updated)


def _blamed(table: Table, row: int, error: pymysql.MySQLError) -> str:
    """The column that the server's message names, and its value."""
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
        raise AssertionError(f"{table.name} has {len(rows)} rows, and should have {table.rows}")
    found: dict[str, list[Any]] = {"id": [row[0] for row in rows]}
    for at, column in enumerate(table.columns, start=1):
        found[column.name] = answers([row[at] for row in rows], column)
    return found


def quoted(name: str) -> str:
    """An identifier of MySQL."""
    return "`" + name.replace("`", "``") + "`"
