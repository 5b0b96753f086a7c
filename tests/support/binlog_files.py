"""The binlog files of a test's server."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import pymysql

from cdc.testing.servers import Server


def purge(server: Server) -> str:
    """Purges all binlog files but the newest, whose name it returns. Ends all dumps first, because the server keeps
    files that a dump reads, without an error, and notices a disconnected client late."""
    with server.connect() as connection, connection.cursor() as cursor:
        while True:
            cursor.execute("SELECT id FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'")
            for (thread,) in cursor.fetchall():
                with suppress(pymysql.err.OperationalError):  # it has just ended
                    cursor.execute(f"KILL {thread}")
            cursor.execute("SHOW BINARY LOGS")
            names = [str(row[0]) for row in cursor.fetchall()]
            if len(names) == 1:
                return names[0]
            cursor.execute(f"PURGE BINARY LOGS TO '{names[-1]}'")
            time.sleep(0.1)


def new_binlog_file(server: Server) -> Path:
    """Makes the server begin a new binlog file, and returns its path."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("FLUSH BINARY LOGS")
        cursor.execute("SHOW BINARY LOGS")
        return server.data / str(cursor.fetchall()[-1][0])
