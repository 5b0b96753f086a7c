"""A seeded load on a real server: the changes of a busy application in three tables, and a record of them.

``accounts`` (a number as its key) and ``lines`` (a key of two columns, one of them latin1 text) are meant for mode
``upsert``, ``journal`` for ``append``. Transactions hold one change or many, of one table or of all: inserts, updates
of one row and of a range, changed, shifted and swapped keys, deletes, replaced rows; some are rolled back.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta

import pymysql

from cdc.testing.servers import Server

TABLES = {
    "accounts": "id INT PRIMARY KEY, owner VARCHAR(40) NOT NULL, balance DECIMAL(12,2), seen DATETIME(3),"
    " n BIGINT UNSIGNED",
    "lines": "account INT, line VARCHAR(12) CHARACTER SET latin1 COLLATE latin1_bin, kind ENUM('in','out','né'),"
    " note TEXT CHARACTER SET utf8mb4, raw VARBINARY(16), day DATE, at TIMESTAMP NULL, PRIMARY KEY (account, line)",
    "journal": "id INT PRIMARY KEY, word VARCHAR(20), amount DOUBLE",
}
KEYS = {"accounts": ("id",), "lines": ("account", "line"), "journal": ("id",)}
UPSERT, APPEND = ("accounts", "lines"), "journal"
_KEYS = 400
_FAR = 1_000_000
"""A key beyond all drawn ones, where a swap puts a row for a moment."""
_KINDS = ("insert", "insert", "insert", "update", "range", "move", "shift", "swap", "delete", "replace")


class Load:
    """Random transactions, by :meth:`run` in the caller's thread, or between :meth:`start` and :meth:`stop` in a thread of
    its own. The same seed gives the same transactions. Creates the tables in ``database``."""

    def __init__(self, server: Server, database: str, seed: int, *, pause_s: float = 0.0) -> None:
        self.server, self.database = server, database
        self.transactions = 0
        """Committed transactions."""
        self.changes: Counter[str] = Counter()
        """Committed changes of rows of ``journal``: insert, update, delete."""
        self._rng = random.Random(seed)
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        server.execute(*[f"CREATE TABLE {database}.`{name}` ({columns})" for name, columns in TABLES.items()])

    def run(self, transactions: int) -> None:
        """Commits this many transactions."""
        until = self.transactions + transactions
        self._work(lambda: self.transactions >= until)

    def start(self) -> None:
        """Runs until :meth:`stop`."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._guarded, name="load", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends after a whole transaction. Raises the error of the thread, if any."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def _guarded(self) -> None:
        try:
            self._work(self._stop.is_set)
        except BaseException as error:  # noqa: BLE001 - handed to whoever stops the load
            self._error = error

    def _work(self, done: Callable[[], bool]) -> None:
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"USE {self.database}")
            cursor.execute("SET time_zone = '+00:00'")
            connection.autocommit(False)
            while not done():
                changes: Counter[str] = Counter()
                for _ in range(self._rng.choice((1, 1, 1, 2, 5, 20))):
                    self._change(cursor, changes)
                if self._rng.random() < 0.05:
                    connection.rollback()
                    continue
                connection.commit()
                self.changes += changes
                self.transactions += 1
                self._stop.wait(self._pause_s)

    def _change(self, cursor: pymysql.cursors.Cursor, changes: Counter[str]) -> None:
        rng = self._rng
        table = rng.choice(tuple(TABLES))
        kind = rng.choice(
            ("insert", "insert", "insert", "update", "range", "move", "shift", "swap", "delete", "replace")
        )
        name, row, other = KEYS[table][0], rng.randrange(_KEYS), rng.randrange(_KEYS)
        if kind == "replace" and table == APPEND:
            kind = "insert"  # the server writes a replaced row as an update or as two changes, which cannot be counted
        if kind in ("insert", "replace"):
            verb = "REPLACE" if kind == "replace" else "INSERT IGNORE"
            rows = cursor.execute(f"{verb} INTO `{table}` VALUES ({self._values(table, row)})")
        elif kind == "delete":
            rows = cursor.execute(f"DELETE FROM `{table}` WHERE {name} = {row}")
        elif kind == "move":
            rows = cursor.execute(f"UPDATE IGNORE `{table}` SET {name} = {other} WHERE {name} = {row}")
        elif kind == "shift":  # each row takes the key that its neighbour has just given up
            last = row + rng.randrange(1, 8)
            rows = cursor.execute(f"DELETE FROM `{table}` WHERE {name} = {last + 1}")
            if table == APPEND:
                changes["delete"] += int(rows)
            rows = cursor.execute(
                f"UPDATE `{table}` SET {name} = {name} + 1 WHERE {name} BETWEEN {row} AND {last} ORDER BY {name} DESC"
            )
        elif kind == "swap":
            rows = 0
            for old, new in ((row, _FAR), (other, row), (_FAR, other)):
                rows += cursor.execute(f"UPDATE IGNORE `{table}` SET {name} = {new} WHERE {name} = {old}")
        else:
            where = f"{name} = {row}" if kind == "update" else f"{name} BETWEEN {row} AND {row + 20}"
            rows = cursor.execute(f"UPDATE `{table}` SET {self._assignment(table)} WHERE {where}")
        if table == APPEND:
            changes[kind if kind in ("insert", "delete") else "update"] += int(rows)

    def _values(self, table: str, row: int) -> str:
        rng = self._rng
        if table == "accounts":
            balance = f"{rng.randrange(10**6)} / 100"
            return f"{row}, 'owner {rng.randrange(99)}', {balance}, '{self._time(3)}', {rng.getrandbits(64)}"
        if table == "lines":
            kind = rng.choice(("'in'", "'out'", "'né'", "NULL"))
            note = rng.choice(("NULL", "''", f"'{'naïve ☂ 🚋 ' * rng.randrange(9)}'"))
            raw = rng.getrandbits(64).to_bytes(8, "big").hex()
            return f"{row}, 'é{rng.randrange(3)}', {kind}, {note}, x'{raw}', '{self._time(0)[:10]}', '{self._time(0)}'"
        return f"{row}, 'w{rng.randrange(99)}', {rng.random()!r}"

    def _assignment(self, table: str) -> str:
        rng = self._rng
        if table == "accounts":
            return f"balance = balance + {rng.randrange(1, 9)}, n = {rng.getrandbits(64)}"
        if table == "lines":
            return f"note = 'n{rng.randrange(10**6)}', at = '{self._time(0)}'"
        return f"word = 'u{rng.randrange(10**6)}'"

    def _time(self, digits: int) -> str:
        moment = datetime(2020, 1, 1) + timedelta(milliseconds=self._rng.randrange(10**11))  # noqa: DTZ001 - SQL has no zone
        return moment.isoformat(" ", "milliseconds" if digits else "seconds")
