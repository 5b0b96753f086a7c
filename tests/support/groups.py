"""Destinations with sources of their own that write one set of Delta tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from cdc.lake import pipeline
from cdc.lake.runtime.session import acquire
from cdc.testing.servers import Server
from tests.support.apply import Loop

Database = Callable[[Server], str]
SHARED = "shared: true, schema_changes: additive"
MODES = "DB.marked: {mode: soft_delete}, DB.history: {mode: scd2}, DB.log: {mode: append}"
TABLES = ("mirror", "marked", "history", "log")


class Member(Loop):
    """One source of a group."""

    def __init__(self, folder: Path, server: Server, db: str, name: str, **settings: str) -> None:
        apply = ", ".join(setting for setting in (SHARED, settings.pop("apply", "")) if setting)
        super().__init__(folder, server, db, name=name, apply=apply, **settings)
        self.name = name

    def own(self, table: str) -> list[dict[str, Any]]:
        """Returns the member's rows that are current, with the source's columns, ordered by their values."""
        return own_rows(rows_of(self, table), self.name, self._names(table))

    def _names(self, table: str) -> list[str]:
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM `{self.db}`.`{table}` LIMIT 0")
            return [column[0] for column in cursor.description]

    def require_own(self, *tables: str) -> None:
        for table in tables or TABLES:
            expected = sorted(self.select(table), key=repr)
            assert self.own(table) == expected, (self.name, table)

    def level(self) -> None:
        self.capture()
        self.apply_all()

    def require_proved(self) -> None:
        report = pipeline.verify(self.config, None, wait_s=10)
        assert report.state == "proved", report.document()


def rows_of(loop: Loop, table: str) -> list[dict[str, Any]]:
    """Returns all rows of a Delta table, by Spark if delta-rs cannot read it."""
    path = str(loop.path(table))
    if "typeWidening" not in (DeltaTable(path).protocol().reader_features or ()):
        return loop.delta(table)
    spark = acquire(loop.config.spark).spark
    return [row.asDict(recursive=True) for row in spark.read.format("delta").load(path).collect()]


def own_rows(rows: list[dict[str, Any]], member: str, names: list[str]) -> list[dict[str, Any]]:
    """Returns a member's rows that are current, with the source's columns, ordered by their values."""
    rows = [row for row in rows if row["_source"] == member]
    rows = [row for row in rows if not row.get("_deleted") and row.get("_current") is not False]
    if "_op" in (rows[0] if rows else {}):
        rows = _replayed(rows)
    return sorted(({name: row[name] for name in names} for row in rows), key=repr)


def _replayed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns what the changes of a changelog add up to. A snapshot is the state after all changes of its seq."""
    state: dict[Any, dict[str, Any]] = {}
    for row in sorted(
        rows,
        key=lambda row_of_table: (row_of_table["_seq"], row_of_table["_op"] == "snapshot", row_of_table["_row"]),
    ):
        if row["_op"] in ("truncate", "snapshot"):
            if row["_op"] == "truncate":
                state = {}
        elif row["_before"] is not None:
            state.pop(row["_before"]["id"], None)
        if row["_op"] in ("insert", "update", "snapshot"):
            assert row["_op"] != "insert" or row["id"] not in state, "an insert is there twice"
            state[row["id"]] = row
    return list(state.values())


def require_own_and_proved(*loops: Member) -> None:
    """Each member's rows are those of its source, and verify says so."""
    for loop in loops:
        loop.require_own()
        loop.require_proved()


def members(
    first: Server,
    other: Server,
    folder: Path,
    database: Database,
    *,
    columns: str = "v INT, note VARCHAR(20)",
    names: tuple[str, str] = ("eu", "us"),
    **settings: str,
) -> tuple[Member, Member]:
    """Returns two destinations for databases of one name, with equal empty tables, on two servers."""
    db = database(first)
    other.execute(f"CREATE DATABASE `{db}`")
    for server in (first, other):
        for table in TABLES:
            server.execute(f"CREATE TABLE `{db}`.{table} (id INT PRIMARY KEY, {columns})")
    settings = {"overrides": MODES, "start": "now", **settings}
    return Member(folder, first, db, names[0], **settings), Member(folder, other, db, names[1], **settings)


def fill(loop: Member) -> None:
    rows = ", ".join(f"({i}, {i}, '{loop.name}')" for i in range(20))
    loop.sql(*[f"INSERT INTO {table} VALUES {rows}" for table in TABLES])
