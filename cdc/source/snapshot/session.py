"""Connections that read snapshots: a session without surprises, the table's definition, and the throttle."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

import pymysql

from cdc.base.closing import Closing
from cdc.base.errors import IdentityError, SchemaChangedError
from cdc.base.log import get_logger
from cdc.binlog.sql.schemas import TableSchema
from cdc.config import DestinationConfig, SnapshotConfig, SourceConfig, TablesConfig
from cdc.source.connection import connect, mapped, place_of, query
from cdc.source.driver import close_now
from cdc.source.schemas import read_schema
from cdc.source.server import (
    Connection,
    behind_s,
    current_position,
    describe,
    parse_version,
    server_version,
)
from cdc.source.snapshot.records import SnapshotInfo

_ALTERED = frozenset({1054, 1072, 1146, 1176, 1412, 1463, 4027})
"""Errors of statements on a table that was altered, renamed or dropped."""
_PAUSE_S = 0.5
_CHECK_S = 1.0
log = get_logger(__name__)


def open_session(source: SourceConfig) -> Connection:
    """Connects for reading: in UTC, with texts in their own character sets, a read view for the whole transaction, and
    without time limits. Raises ConfigError, SourceUnavailableError, SourceRefusedError."""
    conn = connect(source, read_timeout=None, write_timeout=60)
    mariadb = "mariadb" in server_version(conn).lower()
    version = parse_version(server_version(conn))
    settings = [
        "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        "SET SESSION sql_mode = '', sql_select_limit = DEFAULT, sql_big_selects = 1, net_write_timeout = 86400",
        "SET SESSION character_set_results = NULL",
    ]
    if mariadb:
        settings.append("SET SESSION max_statement_time = 0")
    elif version >= (5, 7, 8):
        settings.append("SET SESSION max_execution_time = 0")
    try:
        with mapped(conn), conn.cursor() as cursor:
            for statement in settings:
                cursor.execute(statement)
    except BaseException:
        close_now(conn)
        raise
    return conn


class ReaderSessions(Closing):
    """Open sessions that readers of this process share, one after another: a connection with TLS takes longer than many
    a chunk. Close them at the end."""

    def __init__(self, source: SourceConfig) -> None:
        self._source = source
        self._idle: queue.SimpleQueue[Connection] = queue.SimpleQueue()

    @contextmanager
    def one(self) -> Iterator[Connection]:
        """Lends a session for the duration of the block; it is closed if the block raises. Raises as
        :func:`open_session`."""
        try:
            conn = self._idle.get_nowait()
        except queue.Empty:
            conn = open_session(self._source)
        try:
            yield conn
        except BaseException:
            close_now(conn)
            raise
        self._idle.put(conn)

    def close(self) -> None:
        while not self._idle.empty():
            close_now(self._idle.get_nowait())


def definition(conn: Connection, tables: TablesConfig, db: str, name: str) -> TableSchema:
    """Reads the table from information_schema. Raises SchemaChangedError if it is not there."""
    schema = read_schema(conn, tables, db, name)
    if schema is None:
        raise SchemaChangedError(
            "the table does not exist, or the user may not SELECT from it",
            place=f"table {db}.{name}",
            remedy="Check its name in the configuration, and GRANT SELECT on it.",
        )
    return schema


def require_definition(conn: Connection, config: DestinationConfig, info: SnapshotInfo) -> None:
    """Raises SchemaChangedError unless the table still has the definition that the snapshot began with."""
    if definition(conn, config.tables, info.db, info.name) != info.definition:
        raise altered(info.table)


def altered(table: str) -> SchemaChangedError:
    return SchemaChangedError(
        "the table was altered while it was read", place=f"table {table}", remedy="The snapshot has to begin anew."
    )


def is_altered(error: BaseException) -> bool:
    """Whether an error of the server means that the table was altered, renamed or dropped."""
    cause = error.__cause__
    return isinstance(cause, pymysql.err.MySQLError) and bool(cause.args) and cause.args[0] in _ALTERED


def require_server(conn: Connection, config: DestinationConfig, info: SnapshotInfo, highest: tuple[str, int]) -> None:
    """Raises IdentityError if the server is not the one that the snapshot was begun on, or its binlog was reset:
    ``highest`` is the last position that a chunk has, as file and offset."""
    server = describe(conn)
    place = f"source {place_of(config.source)}"
    remedy = "Take a new snapshot."
    if server.server_uuid != info.server_uuid:
        raise IdentityError(
            f"the snapshot of {info.table} was begun on another server (uuid {info.server_uuid}, now "
            f"{server.server_uuid})",
            place=place,
            remedy=remedy,
        )
    position = current_position(conn)
    if (position.file_number, position.pos) < (int(highest[0].rpartition(".")[2] or 0), highest[1]):
        raise IdentityError(
            f"the server's binlog ends at {position}, before the snapshot's position {highest[0]}:{highest[1]}: it was "
            "reset",
            place=place,
            remedy=remedy,
        )


class Throttle:
    """Keeps one reader within its part of the limits."""

    def __init__(self, source: SourceConfig, limits: SnapshotConfig, readers: int) -> None:
        self._source = source
        self._limits = limits
        self._rows_per_s = limits.max_rows_per_s / max(1, readers) if limits.max_rows_per_s is not None else None
        self._looks = limits.max_threads_running is not None or limits.max_replica_lag_s is not None
        self._conn: Connection | None = None
        self._began = time.monotonic()
        self._rows = 0
        self._checked = 0.0

    def after(self, rows: int) -> None:
        """Waits as long as the limits ask after so many rows. Raises SourceUnavailableError, SourceRefusedError."""
        if self._rows_per_s is not None:
            self._rows += rows
            ahead = self._rows / self._rows_per_s - (time.monotonic() - self._began)
            if ahead > 0:
                time.sleep(ahead)
            elif ahead < -1:  # a pause for another reason earns no later rush
                self._began, self._rows = time.monotonic(), 0
        if self._looks and time.monotonic() - self._checked > _CHECK_S:
            self._wait_for_source()
            self._checked = time.monotonic()

    def _wait_for_source(self) -> None:
        told = False
        while (why := self._busy()) is not None:
            if not told:
                log.info("the snapshot pauses", reason=why)
                told = True
            time.sleep(_PAUSE_S)

    def _busy(self) -> str | None:
        if self._conn is None:
            self._conn = connect(self._source)
        threads, lag = self._limits.max_threads_running, self._limits.max_replica_lag_s
        if threads is not None:
            running = int(query(self._conn, "SHOW GLOBAL STATUS LIKE 'Threads_running'")[0]["Value"])
            if running > threads:
                return f"the source runs {running} threads, more than snapshot.max_threads_running {threads}"
        if lag is not None:
            behind = behind_s(self._conn)
            if behind == inf:
                return "the source is a replica that applies nothing, so nobody knows how far it is behind"
            if behind is not None and behind > lag:
                return f"the source is {behind:g} s behind its own source, more than snapshot.max_replica_lag_s {lag:g}"
        return None

    def close(self) -> None:
        if self._conn is not None:
            close_now(self._conn)
