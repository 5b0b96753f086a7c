"""A primary and a replica of it, for tests of failovers.

>>> with ReplicaPair("mysql9") as pair:
...     pair.primary.execute("CREATE DATABASE shop")
...     pair.fail_over()
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Self

import pymysql

from cdc.base.errors import SourceUnavailableError
from cdc.testing.servers.kinds import HOST, PASSWORD, USER
from cdc.testing.servers.server import Server, ServerSet

_WAIT_S = 30


class ReplicaPair(ServerSet):
    """Two servers of one kind, with GTIDs: :attr:`replica` replicates :attr:`primary`, asynchronously."""

    def __init__(self, kind_name: str, options: Sequence[str] = ()) -> None:
        self.primary = Server(kind_name, options=options)
        self.replica = Server(kind_name, options=options)
        self._is_mysql = kind_name.startswith("mysql")
        self._has_new_words = self._is_mysql and self.primary.kind.release >= (8, 0, 23)
        self._renewed = 0

    @property
    def _word(self) -> str:
        return "REPLICA" if self._has_new_words else "SLAVE"

    def start(self) -> Self:
        """Starts both. Raises SourceUnavailableError."""
        self.primary.start()
        self.replica.start()
        self.replicate()
        return self

    def stop(self) -> None:
        """Stops both."""
        self.primary.stop()
        self.replica.stop()

    def replicate(self) -> None:
        """Makes the replica replicate the primary, from the first transaction that it lacks."""
        if self._has_new_words:
            self.replica.execute(
                f"CHANGE REPLICATION SOURCE TO SOURCE_HOST='{HOST}', SOURCE_PORT={self.primary.port}, "
                f"SOURCE_USER='{USER}', SOURCE_PASSWORD='{PASSWORD}', SOURCE_AUTO_POSITION=1, "
                "GET_SOURCE_PUBLIC_KEY=1, SOURCE_CONNECT_RETRY=1",
                "START REPLICA",
            )
            return
        gtids = "MASTER_USE_GTID=slave_pos"
        if self._is_mysql:
            gtids = "MASTER_AUTO_POSITION=1"
            gtids += ", GET_MASTER_PUBLIC_KEY=1" if self.primary.kind.release >= (8, 0, 4) else ""
        self.replica.execute(
            f"CHANGE MASTER TO MASTER_HOST='{HOST}', MASTER_PORT={self.primary.port}, MASTER_USER='{USER}', "
            f"MASTER_PASSWORD='{PASSWORD}', {gtids}, MASTER_CONNECT_RETRY=1",
            "START SLAVE",
        )

    def wait_level(self) -> None:
        """Waits until the replica has applied what the primary has now. Raises SourceUnavailableError."""
        if self._is_mysql:
            self._wait_for("WAIT_FOR_EXECUTED_GTID_SET", _value(self.primary, "SELECT @@gtid_executed"), 0)
        else:
            self._wait_for("MASTER_GTID_WAIT", _value(self.primary, "SELECT @@gtid_binlog_pos"), 0)

    def pause_replica(self) -> None:
        """Lets the replica receive nothing more."""
        self.replica.execute(f"STOP {self._word} IO_THREAD")

    def resume_replica(self) -> None:
        """Lets a paused replica go on."""
        self.replica.execute(f"START {self._word}")

    def promote(self) -> None:
        """Lets the replica apply what it has received, and makes it a primary of its own."""
        self.pause_replica()
        status = self._status()
        if self._is_mysql:
            self._wait_for("WAIT_FOR_EXECUTED_GTID_SET", str(status["Retrieved_Gtid_Set"] or ""), 0)
        else:
            self._wait_for("MASTER_GTID_WAIT", str(status["Gtid_IO_Pos"] or ""), 0)
        self.replica.execute(f"STOP {self._word}", f"RESET {self._word} ALL")

    def fail_over(self) -> None:
        """Kills the primary with SIGKILL and promotes the replica. Then :attr:`primary` is the new one, and
        :attr:`replica` the killed one."""
        self.primary.kill()
        self.promote()
        self.primary, self.replica = self.replica, self.primary

    def renew_replica(self) -> None:
        """Starts the killed server on fresh data, as a replica of the primary."""
        self.replica.replace_data(None)
        self._renewed += 1  # a replica leaves out what a server with its own id has written
        self.replica.restart(f"--server-id={self.replica.port + 100_000 * self._renewed}")
        self.replicate()
        self.wait_level()

    def _status(self) -> dict[str, Any]:
        with self.replica.connect() as conn, conn.cursor(pymysql.cursors.DictCursor) as cursor:
            cursor.execute(f"SHOW {self._word} STATUS")
            row = cursor.fetchone()
        if row is None:
            raise SourceUnavailableError(f"the server at port {self.replica.port} is no replica")
        return dict(row)

    def _wait_for(self, function: str, gtids: str, reached: int) -> None:
        if not gtids:
            return
        until = time.monotonic() + _WAIT_S
        while _value(self.replica, f"SELECT {function}('{gtids}', 1)") != str(reached):
            if time.monotonic() > until:
                raise SourceUnavailableError(
                    f"the replica at port {self.replica.port} has not applied {gtids} within {_WAIT_S} s: "
                    f"{self._status()}"
                )


def _value(server: Server, sql: str) -> str:
    with server.connect() as conn, conn.cursor() as cursor:
        cursor.execute(sql)
        row = cursor.fetchone()
    return "" if row is None else str(row[0]).replace("\n", "")
