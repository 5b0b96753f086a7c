"""What an application does to the source: random transactions that can be told again with other values.

The shape of everything (which statement, which keys, how long each value is) comes from the seed; the values come from a
salt. Two workloads of the same seed with different salts therefore write binlogs whose events lie at the same offsets
and hold other rows, which is what a history looks like that passes for the former one.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pymysql

from cdc.testing.servers import Server

_ITEMS = "id INT PRIMARY KEY, word VARCHAR(20) NOT NULL, n BIGINT UNSIGNED, at DATETIME(3) NULL"
_LINES = (
    "account INT, line VARCHAR(12) CHARACTER SET latin1 COLLATE latin1_bin, note TEXT CHARACTER SET utf8mb4,"
    " PRIMARY KEY (account, line)"
)
_JOURNAL = "id INT PRIMARY KEY, word VARCHAR(20)"

APPEND = "journal"
"""The table in mode ``append``; all others are in mode ``upsert``."""
_KEYS = 60
_FAR = 1_000_000
"""A key beyond all others, where a swap puts a row for a moment."""
_LARGE_NOTE = 60_000
"""Letters in a note of a large transaction."""


@dataclass
class History:
    """What has happened so far. It is a plain value, so that a copy of the source's data can have a copy of it."""

    shape: Any
    """State of the random numbers."""
    values: int = 0
    fresh_key: int = 1000
    tables: list[str] = field(default_factory=lambda: ["items", "lines", APPEND])
    changes: Counter[str] = field(default_factory=Counter)
    """Committed changes of the table :data:`APPEND` by kind."""
    actions: list[tuple[str, int]] = field(default_factory=list)
    """Everything that went into the binlog, so that it can be done again."""

    def copy(self) -> History:
        return History(
            self.shape, self.values, self.fresh_key, list(self.tables), Counter(self.changes), list(self.actions)
        )


class Workload:
    """Random transactions in the tables of one database."""

    def __init__(self, server: Server, database: str, seed: str, salt: int = 0) -> None:
        self.server, self.database, self.seed, self.salt = server, database, seed, salt
        self._dice = random.Random(seed)
        self._values = 0
        self.history = History(self._dice.getstate())

    @property
    def upsert_tables(self) -> list[str]:
        return [table for table in self.history.tables if table != APPEND]

    def create(self) -> None:
        """Make the database and its tables."""
        self.server.execute(
            f"CREATE DATABASE `{self.database}`",
            f"CREATE TABLE `{self.database}`.`items` ({_ITEMS})",
            f"CREATE TABLE `{self.database}`.`lines` ({_LINES})",
            f"CREATE TABLE `{self.database}`.`{APPEND}` ({_JOURNAL})",
        )

    def told_again(self, salt: int) -> Workload:
        """A workload of the same shape with other values, which has done nothing yet; see :meth:`repeat`."""
        return Workload(self.server, self.database, self.seed, salt)

    def repeat(self, actions: list[tuple[str, int]]) -> None:
        """Do what another workload of this seed has done."""
        for name, number in actions:
            getattr(self, name)(number)

    # ------------------------------------------------------------ actions

    def run(self, transactions: int) -> None:
        """Commit so many transactions."""
        self._begin("run", transactions)
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"USE `{self.database}`")
            connection.autocommit(False)
            for _ in range(transactions):
                changes: Counter[str] = Counter()
                for _ in range(self._dice.choice((1, 1, 1, 2, 4, 12))):
                    self._change(cursor, changes)
                if self._dice.random() < 0.05:
                    connection.rollback()
                    continue
                connection.commit()
                self.history.changes += changes
        self._end()

    def touch(self, rows: int = 1) -> None:
        """Change every table, in one transaction: insert rows under new keys and change what lies under them."""
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
                column = "note" if table == "lines" else "word"
                cursor.execute(f"UPDATE `{table}` SET {column} = '{self._value()}' WHERE {key} <> {history.fresh_key}")
            connection.commit()
        self._end()

    def large(self, rows: int) -> None:
        """One transaction of so many rows of 60 kB: it is longer than what capture reads at once."""
        self._begin("large", rows)
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"USE `{self.database}`")
            connection.autocommit(False)
            for _ in range(rows):
                self.history.fresh_key += 1
                note = self._value() * (_LARGE_NOTE // 10)
                cursor.execute(f"INSERT INTO `lines` VALUES ({self.history.fresh_key}, 'large', '{note}')")
            connection.commit()
        self._end()

    def flush(self, times: int = 1) -> None:
        """Have the server begin a new binlog file."""
        self._begin("flush", times)
        self.server.execute(*["FLUSH BINARY LOGS"] * times)
        self._end()

    def add_table(self, rows: int) -> None:
        """Make another table, with so many rows."""
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
        self._dice.setstate(self.history.shape)
        self._values = self.history.values
        self.history.actions.append((name, number))

    def _end(self) -> None:
        self.history.shape, self.history.values = self._dice.getstate(), self._values

    def _change(self, cursor: pymysql.cursors.Cursor, changes: Counter[str]) -> None:
        dice = self._dice
        table = dice.choice(("items", "lines", APPEND))
        kind = dice.choice(("insert", "insert", "insert", "update", "range", "move", "swap", "delete"))
        key, row, other = "account" if table == "lines" else "id", dice.randrange(_KEYS), dice.randrange(_KEYS)
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
            column = "note" if table == "lines" else "word"
            rows = cursor.execute(f"UPDATE `{table}` SET {column} = '{self._value()}' WHERE {where}")
        if table == APPEND:
            changes[kind if kind in ("insert", "delete") else "update"] += int(rows)

    def _value(self) -> str:
        """Ten digits that depend on the salt."""
        self._values += 1
        return f"{zlib.crc32(f'{self.salt} {self._values}'.encode()):010d}"

    def _row(self, table: str, key: int) -> str:
        if table == "lines":
            return f"{key}, 'é{self._dice.randrange(3)}', 'naïve ☂ {self._value()}'"
        if table == APPEND:
            return f"{key}, 'w{self._value()}'"
        return f"{key}, 'w{self._value()}', 1{self._value()}, '2024-02-29 12:00:00.{int(self._value()) % 1000:03d}'"
