"""A load beside a test: transactions that a thread commits on a real server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

import pymysql
from pymysql.cursors import Cursor

from cdc.testing.servers import Server


class BackgroundWriter:
    """Commits one transaction after another until the server dies or the block ends."""

    def __init__(self, server: Server, write: Callable[[Cursor, int], None]) -> None:
        """``write`` executes and commits the transaction with the given number, from 0."""
        self._server, self._write = server, write
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.committed = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(10)

    def _run(self) -> None:
        with suppress(pymysql.MySQLError, OSError), self._server.connect() as conn, conn.cursor() as cursor:
            while not self._stop.is_set():
                self._write(cursor, self.committed)
                self.committed += 1

    def wait(self, more: int) -> None:
        """Waits until so many more transactions are committed."""
        until, deadline = self.committed + more, time.monotonic() + 30
        while self.committed < until:
            assert time.monotonic() < deadline, "the load does not go on"
            time.sleep(0.005)


class RowWriter:
    """Inserts rows into a table of two columns, with ids from 1 on, one to five in a transaction, until it is stopped.
    ``value`` is the SQL expression of the second column. An error of the server fails the test."""

    def __init__(self, server: Server, table: str, value: str = "0") -> None:
        self._server, self._table, self._value = server, table, value
        self.last = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> int:
        """Ends it, and returns the last id."""
        self._stop.set()
        self._thread.join(30)
        return self.last

    def _run(self) -> None:
        with self._server.connect() as connection, connection.cursor() as cursor:
            connection.autocommit(False)
            while not self._stop.wait(0.002):
                count = 1 + self.last % 5
                values = ", ".join(f"({self.last + n + 1}, {self._value})" for n in range(count))
                cursor.execute(f"INSERT INTO {self._table} VALUES {values}")
                connection.commit()
                self.last += count
