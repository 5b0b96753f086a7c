"""The application on the source: random transactions that can be repeated with other values.

The shape of everything (which statement, which keys, how long each value is) comes from the seed; the values come from a
salt. Two workloads of the same seed with different salts therefore write binlogs with events at the same offsets and
with other rows. Such a history looks like the former one.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import pymysql

from cdc.testing.servers import Server

_ITEMS = "id INT PRIMARY KEY, note TEXT CHARACTER SET utf8mb4, n BIGINT UNSIGNED, at DATETIME(3) NULL"
_LINES = (
    "account INT, line VARCHAR(12) CHARACTER SET latin1 COLLATE latin1_bin, note TEXT CHARACTER SET utf8mb4,"
    " PRIMARY KEY (account, line)"
)
_JOURNAL = "id INT PRIMARY KEY, note VARCHAR(20)"

APPEND = "journal"
"""The table in mode ``append``; all others are in mode ``upsert``."""
MIRRORS = {"items": _ITEMS, "lines": _LINES}
"""A workload has one of these, by its seed: each table costs a statement of Spark in each batch."""
_KEYS = 60
_FAR = 1_000_000
"""A key beyond all others, where a swap puts a row for a moment."""
_LARGE_NOTE = 60_000
"""Letters in a note of a large transaction."""


@dataclass
class History:
    """The history so far. A plain value, so that a copy of the source's data can have a copy of it."""

    shape: Any
    """State of the random numbers."""
    values: int = 0
    fresh_key: int = 1000
    tables: list[str] = field(default_factory=list)
    changes: Counter[str] = field(default_factory=Counter)
    """Committed changes of the table :data:`APPEND` by kind."""
    actions: list[tuple[str, int]] = field(default_factory=list)
    """Everything that went into the binlog, so that it can be repeated."""

    def copy(self) -> History:
        return replace(self, tables=list(self.tables), changes=Counter(self.changes), actions=list(self.actions))


class Workload:
    """Random transactions in the tables of one database."""

    def __init__(self, server: Server, database: str, seed: str, salt: int = 0) -> None:
        self.server, self.database, self.seed, self.salt = server, database, seed, salt
        self._rng = random.Random(seed)
        self._values = 0
        self.mirror = self._rng.choice(tuple(MIRRORS))
        self.history = History(self._rng.getstate(), tables=[self.mirror, APPEND])

    @property
    def upsert_tables(self) -> list[str]:
        return [table for table in self.history.tables if table != APPEND]

    def create(self) -> None:
        """Creates the database and its tables."""
        self.server.execute(
            f"CREATE DATABASE `{self.database}`",
            f"CREATE TABLE `{self.database}`.`{self.mirror}` ({MIRRORS[self.mirror]})",
            f"CREATE TABLE `{self.database}`.`{APPEND}` ({_JOURNAL})",
        )

    def with_salt(self, salt: int) -> Workload:
        """Returns a new workload of the same shape with other values; see :meth:`repeat`."""
        return Workload(self.server, self.database, self.seed, salt)

    def repeat(self, actions: list[tuple[str, int]]) -> None:
        """Repeats the actions of another workload of this seed."""
        for name, number in actions:
            getattr(self, name)(number)

    # ------------------------------------------------------------ actions

    def run(self, transactions: int) -> None:
        """Commits this many transactions."""
        self._begin("run", transactions)
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"USE `{self.database}`")
            connection.autocommit(False)
            for _ in range(transactions):
                changes: Counter[str] = Counter()
                for _ in range(self._rng.choice((1, 1, 1, 2, 4, 12))):
                    self._change(cursor, changes)
                if self._rng.random() < 0.05:
                    connection.rollback()
                    continue
                connection.commit()
                self.history.changes += changes
        self._end()

    def touch(self, rows: int = 1) -> None:
        """Changes every table in one transaction: inserts rows with new keys and updates the others."""
        self._begin("touch", rows)
        history = self.history
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"USE `{self.database}`")
            connection.autocommit(False)
            for _ in range(rows):
                history.fresh_key += 1
                for table in history.tables:
                    cursor.execute(f"INSERT INTO `{table}` VALUES ({self._row(table, history.fresh_key)})")
                history.changes["insert"] += 1
            for table in self.upsert_tables:
                key = "account" if table == "lines" else "id"
                cursor.execute(f"UPDATE `{table}` SET note = '{self._value()}' WHERE {key} <> {history.fresh_key}")
            connection.commit()
        self._end()

    def large(self, rows: int) -> None:
        """Commits one transaction of this many rows of 60 kB, which is larger than capture's read buffer."""
        self._begin("large", rows)
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"USE `{self.database}`")
            connection.autocommit(False)
            for _ in range(rows):
                self.history.fresh_key += 1
                cursor.execute(f"INSERT INTO `{self.mirror}` VALUES ({self._row(self.mirror, self.history.fresh_key)})")
                key, note = "account" if self.mirror == "lines" else "id", self._value() * (_LARGE_NOTE // 10)
                cursor.execute(f"UPDATE `{self.mirror}` SET note = '{note}' WHERE {key} = {self.history.fresh_key}")
            connection.commit()
        self._end()

    def flush(self, times: int = 1) -> None:
        """Rotates the binlog."""
        self._begin("flush", times)
        self.server.execute(*["FLUSH BINARY LOGS"] * times)
        self._end()

    def add_table(self, rows: int) -> None:
        """Creates another table with this many rows."""
        self._begin("add_table", rows)
        name = f"extra{len(self.history.tables)}"
        self.server.execute(f"CREATE TABLE `{self.database}`.`{name}` ({_ITEMS})")
        self.history.tables.append(name)
        for _ in range(rows):
            self.history.fresh_key += 1
            self.server.execute(
                f"INSERT INTO `{self.database}`.`{name}` VALUES ({self._row(name, self.history.fresh_key)})"
            )
        self._end()

    # ------------------------------------------------------------ inside

    def _begin(self, name: str, number: int) -> None:
        self._rng.setstate(self.history.shape)
        self._values = self.history.values
        self.history.actions.append((name, number))

    def _end(self) -> None:
        self.history.shape, self.history.values = self._rng.getstate(), self._values

    def _change(self, cursor: pymysql.cursors.Cursor, changes: Counter[str]) -> None:
        rng = self._rng
        table = rng.choice((self.mirror, APPEND))
        kind = rng.choice(("insert", "insert", "insert", "update", "range", "move", "swap", "delete"))
        key, row, other = "account" if table == "lines" else "id", rng.randrange(_KEYS), random.randrange(_KEYS)
        if kind == "insert":
            rows = cursor.execute(f"INSERT IGNORE INTO `{table}` VALUES ({self._row(table, row)})")
        elif kind == "delete":
            rows = cursor.execute(f"DELETE FROM `{table}` WHERE {key} = {row}")
        elif kind == "move":
            rows = cursor.execute(f"UPDATE IGNORE `{table}` SET {key} = {other} WHERE {key} = {row}")
        elif kind == "swap":
            rows = 0
            for old, new in ((row, _FAR), (other, row), (_FAR, other)):
                rows += cursor.execute(f"UPDATE IGNORE `{table}` SET {key} = {new} WHERE {key} = {old}")
        else:
            where = f"{key} = {row}" if kind == "update" else f"{key} BETWEEN {row} AND {row + 10}"
            rows = cursor.execute(f"UPDATE `{table}` SET note = '{self._value()}' WHERE {where}")
        if table == APPEND:
            changes[kind if kind in ("insert", "delete") else "update"] += int(rows)

    def _value(self) -> str:
        """Returns ten digits that depend on the salt."""
        self._values += 1
        return f"{zlib.crc32(f'{self.salt} {self._values}'.encode()):010d}"

    def _row(self, table: str, key: int) -> str:
        if table == "lines":
            return f"{key}, 'é{self._rng.randrange(3)}', 'naïve ☂ {self._value()}'"
        if table == APPEND:
            return f"{key}, 'w{self._value()}'"
        return f"{key}, 'w{self._value()}', 1{self._value()}, '2024-02-29 12:00:00.{int(self._value()) % 1000:03d}'"
