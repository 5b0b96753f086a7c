"""A table under heavy writes on all of its keys, and a destination that loads it by snapshots."""

from __future__ import annotations

import random
import re
import threading
import time
from pathlib import Path

import pymysql

from cdc.config import DestinationConfig, load
from cdc.testing.servers import HOST, USER, Server
from tests.fault.support import SPARK

HOT, CALM = "hot", "calm"
_EXPECTED = (1062, 1205, 1213, 1020)
"""A key that exists, a lock that was not given, a deadlock, a row that changed since it was read."""


def configure(folder: Path, server: Server, database: str, *, chunk_rows: int, rows_per_s: int) -> DestinationConfig:
    """Configures a destination with ``start: snapshot`` whose snapshots have small chunks and take a while."""
    flavor = "mysql" if server.kind.name.startswith("mysql") else "mariadb"
    file = folder / "conf" / "shop.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(
        f"source: {{url: '{flavor}://{USER}@{HOST}:{server.port}', password_env: TOWPATH_TEST_PASSWORD,"
        f" server_id: {random.SystemRandom().randrange(1000, 2**31)}, start: snapshot}}\n"
        f"tables: {{include: ['{database}\\..*']}}\n"
        "store: {path: shop/store, segment_bytes: 262144}\nmeta: {path: shop/meta}\napply: {target: lake}\n"
        f"snapshot: {{chunk_rows: {chunk_rows}, max_rows_per_s: {rows_per_s}}}\n"
        f"batch: {{max_transactions: 5000, max_wait_s: 1}}\nspark: {SPARK}\n",
        encoding="utf-8",
    )
    return load(file)


def set_rows_per_s(config: DestinationConfig, rows_per_s: int) -> None:
    """Sets how fast snapshots read, for commands that start from now on."""
    text = config.file.read_text(encoding="utf-8")
    new = config.file.with_suffix(".new")
    new.write_text(re.sub(r"max_rows_per_s: \d+", f"max_rows_per_s: {rows_per_s}", text), encoding="utf-8")
    new.replace(config.file)


def fill(server: Server, database: str, rows: int) -> None:
    """Creates the tables. ``hot`` has every second of ``2 * rows`` keys."""
    server.execute(
        f"CREATE TABLE {database}.{HOT} (id INT PRIMARY KEY, v BIGINT NOT NULL, note VARCHAR(40))",
        f"CREATE TABLE {database}.{CALM} (id INT PRIMARY KEY, v BIGINT)",
    )
    with server.connect() as connection, connection.cursor() as cursor:
        for first in range(0, 2 * rows, 4000):
            values = ", ".join(f"({key}, {key}, 'old')" for key in range(first, min(first + 4000, 2 * rows), 2))
            cursor.execute(f"INSERT INTO {database}.{HOT} VALUES {values}")
        cursor.execute(f"INSERT INTO {database}.{CALM} VALUES (0, 0)")
        connection.commit()


class HotWriter:
    """Changes random rows of ``hot`` by several connections, ``rows_per_s`` in all: inserts, updates, deletes, changes
    of keys, ranges, in transactions of one to eight statements, some of which are rolled back. Now and then a row of
    ``calm`` changes, too. After ``most_rows`` they pause, so that a slow machine comes level, too."""

    def __init__(
        self,
        server: Server,
        database: str,
        keys: int,
        seed: int,
        *,
        rows_per_s: float = 500.0,
        most_rows: int = 100_000,
    ) -> None:
        self.rows = 0
        """Rows that were changed."""
        self._server, self._database, self._keys, self._most_rows = server, database, keys, most_rows
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        threads = 3
        self._share = rows_per_s / threads
        self._began = self._ended = time.monotonic()
        self._threads = [
            threading.Thread(target=self._guarded, args=(random.Random(seed * 31 + number),), name=f"writer-{number}")
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> float:
        """Ends after whole transactions, and returns the changed rows per second. Raises the errors of the threads."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]
        return self.rows / max(self._ended - self._began, 0.001)

    def _guarded(self, dice: random.Random) -> None:
        try:
            self._run(dice)
        except BaseException as error:  # noqa: BLE001 - raised by stop
            self._errors.append(error)

    def _run(self, dice: random.Random) -> None:
        due = time.monotonic()
        with self._server.connect() as connection, connection.cursor() as cursor:
            connection.autocommit(False)
            cursor.execute(f"USE {self._database}")
            cursor.execute("SET SESSION innodb_lock_wait_timeout = 2")
            while not self._stop.is_set():
                if self.rows >= self._most_rows:
                    self._stop.wait(0.1)
                    continue
                changed = 0
                try:
                    for _ in range(dice.choice((1, 1, 2, 3, 8))):
                        changed += self._change(cursor, dice)
                    if dice.random() < 0.05:
                        connection.rollback()
                    else:
                        connection.commit()
                except pymysql.MySQLError as error:
                    connection.rollback()
                    if error.args[0] not in _EXPECTED:
                        raise
                self.rows += changed
                self._ended = time.monotonic()
                due = max(due + changed / self._share, time.monotonic() - 1.0)
                self._stop.wait(max(0.0, due - time.monotonic()))

    def _change(self, cursor: pymysql.cursors.Cursor, dice: random.Random) -> int:
        key, other, value = dice.randrange(self._keys), dice.randrange(self._keys), dice.randrange(1 << 40)
        kind = dice.random()
        if kind < 0.3:
            return cursor.execute(f"REPLACE INTO {HOT} VALUES ({key}, {value}, 'new')")
        if kind < 0.6:
            return cursor.execute(f"UPDATE {HOT} SET v = {value}, note = NULL WHERE id = {key}")
        if kind < 0.7:
            return cursor.execute(f"UPDATE {HOT} SET v = v + 1 WHERE id BETWEEN {key} AND {key + 12}")
        if kind < 0.83:
            return cursor.execute(f"DELETE FROM {HOT} WHERE id = {key}")
        if kind < 0.98:
            return cursor.execute(f"UPDATE IGNORE {HOT} SET id = {other}, note = 'moved' WHERE id = {key}")
        return cursor.execute(f"REPLACE INTO {CALM} VALUES ({key % 50}, {value})")
