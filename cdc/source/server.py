"""Facts about a server: product, version, identity, binlog files, positions, clock, replicas."""

from __future__ import annotations

import hashlib
import re
import socket
from dataclasses import dataclass
from math import isinf
from typing import Any, Literal, TypeAlias

import pymysql

from cdc.base.errors import SourceRefusedError
from cdc.binlog.positions import BinlogPosition
from cdc.config import DestinationConfig
from cdc.source.binlog_files import BinlogFiles
from cdc.source.connection import Row, query, quoted, server_of

Connection: TypeAlias = "pymysql.connections.Connection[Any]"
Source: TypeAlias = "pymysql.connections.Connection[Any] | BinlogFiles"
"""A source of capture: a connection to a server, or the binlog files of one."""
Flavor = Literal["mysql", "mariadb"]
_SHOWN_CHARACTERS = 1024
"""SHOW VARIABLES cuts longer values: MySQL after 1,024 characters, MariaDB after 4,096."""


@dataclass(frozen=True)
class ServerInfo:
    """A server's identity."""

    flavor: Flavor
    version: str
    """The version that the server prints: ``9.7.4``, ``10.11.19-MariaDB-log``."""
    version_info: tuple[int, ...]
    """``(9, 7, 4)``."""
    server_uuid: str
    """MySQL: ``@@server_uuid``. MariaDB: ``@@server_uid``, before 10.5.26 a hash of host, port and data folder."""
    server_id: int
    has_row_metadata: bool = True
    """Whether the server has ``binlog_row_metadata`` (MySQL ≥ 8.0.1, MariaDB ≥ 10.5), so that its binlog can name
    columns."""
    names_columns: bool = True
    """Whether the server's binlog names columns now: ``binlog_row_metadata`` is FULL."""

    @property
    def product(self) -> str:
        """``MySQL 9.7.4``, for messages."""
        name = "MariaDB" if self.flavor == "mariadb" else "MySQL"
        return f"{name} {'.'.join(str(n) for n in self.version_info)}"


@dataclass(frozen=True)
class BinlogFileInfo:
    """A binlog file that the server still has."""

    name: str
    size_bytes: int


@dataclass(frozen=True)
class ClockProbe:
    """The server's clock, and a position read after it. Transactions after the position committed after the time."""

    time_us: int
    """Microseconds since 1970, UTC."""
    position: BinlogPosition
    gtid: str | None
    """The executed GTID set, never beyond ``position``. None if the server has no GTIDs."""


@dataclass(frozen=True)
class ReplicaInfo:
    """A replica that registered with the server."""

    server_id: int
    host: str


def describe(conn: Source) -> ServerInfo:
    """Asks the server for its identity."""
    if isinstance(conn, BinlogFiles):
        return conn.describe()
    row = query(conn, "SELECT VERSION() AS version, @@version_comment AS comment, @@server_id AS server_id")[0]
    version = str(row["version"])
    flavor: Flavor = "mariadb" if "mariadb" in f"{version} {row['comment']}".lower() else "mysql"
    metadata = variables(conn, ("binlog_row_metadata",)).get("binlog_row_metadata")
    return ServerInfo(
        flavor=flavor,
        version=version,
        version_info=parse_version(version),
        server_uuid=_uuid(conn, flavor),
        server_id=int(row["server_id"]),
        has_row_metadata=metadata is not None,
        names_columns=metadata == "FULL",
    )


def parse_version(version: str) -> tuple[int, ...]:
    """``5.5.5-10.11.19-MariaDB-log`` → ``(10, 11, 19)``. MariaDB sends the prefix 5.5.5 for old clients."""
    if "mariadb" in version.lower():
        version = version.removeprefix("5.5.5-")
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    return tuple(int(part or 0) for part in match.groups()) if match else (0, 0, 0)


def read_uuid(conn: Connection) -> str:
    """Asks the server for its identity, :attr:`ServerInfo.server_uuid`, alone."""
    return _uuid(conn, "mariadb" if _is_mariadb(conn) else "mysql")


def _uuid(conn: Connection, flavor: Flavor) -> str:
    name = "server_uid" if flavor == "mariadb" else "server_uuid"
    uuid = variables(conn, (name,)).get(name)
    if uuid:
        return uuid
    row = query(conn, "SELECT @@hostname AS host, @@port AS port, @@datadir AS folder")[0]
    text = f"{row['host']}:{row['port']}:{row['folder']}"
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def variables(conn: Connection, names: tuple[str, ...]) -> dict[str, str]:
    """Returns global variables by name. Those that the server does not have are missing."""
    marks = ", ".join(["%s"] * len(names))
    rows = query(conn, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({marks})", names)
    variables = {str(row["Variable_name"]).lower(): str(row["Value"]) for row in rows}
    for name, value in variables.items():
        if len(value) >= _SHOWN_CHARACTERS:  # a set of GTIDs
            variables[name] = str(query(conn, f"SELECT @@GLOBAL.{quoted(name)} AS value")[0]["value"])
    return variables


def binlog_files(conn: Source) -> list[BinlogFileInfo]:
    """Returns the binlog files that the server still has, oldest first. Raises SourceRefusedError without a binlog."""
    if isinstance(conn, BinlogFiles):
        return conn.files()
    require_binlog(conn)
    return [BinlogFileInfo(str(r["Log_name"]), int(r["File_size"])) for r in query(conn, "SHOW BINARY LOGS")]


def require_binlog(conn: Connection) -> None:
    """Raises SourceRefusedError if the server writes no binlog."""
    if variables(conn, ("log_bin",)).get("log_bin") != "ON":
        raise SourceRefusedError(
            "the server writes no binlog (log_bin is OFF)",
            place=f"source {server_of(conn)}",
            remedy="Start it with log_bin=binlog, server_id=N and binlog_format=ROW.",
        )


def current_position(conn: Source) -> BinlogPosition:
    """Returns the current end of the server's binlog. Raises SourceRefusedError without a binlog."""
    if isinstance(conn, BinlogFiles):
        return conn.end()
    return _position(conn, _status(conn))


def clock_and_position(conn: Source) -> ClockProbe:
    """Asks for the clock first and then for the position, so that transactions after it are later than the clock."""
    if isinstance(conn, BinlogFiles):
        return conn.probe()
    mariadb = _is_mariadb(conn)
    first = "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED) AS time_us"
    if mariadb:  # asked before the position, so that the set contains nothing after it
        first += ", @@gtid_binlog_pos AS gtid"
    clock = query(conn, first)[0]
    status = _status(conn)
    gtid = clock["gtid"] if mariadb else status[0].get("Executed_Gtid_Set") if status else None
    text = "".join(str(gtid or "").split())
    return ClockProbe(int(clock["time_us"]), _position(conn, status), text or None)


def _status(conn: Connection) -> list[Row]:
    return query(conn, status_statement(conn))


def status_statement(conn: Connection) -> str:
    """Returns the statement that shows the current position. MySQL renamed it in 8.2; 8.4 lacks the old name."""
    renamed = not _is_mariadb(conn) and parse_version(server_version(conn)) >= (8, 2)
    return "SHOW BINARY LOG STATUS" if renamed else "SHOW MASTER STATUS"


def _position(conn: Connection, status: list[Row]) -> BinlogPosition:
    if not status:
        require_binlog(conn)
        raise SourceRefusedError(
            "the server reports no binlog position",
            place=f"source {server_of(conn)}",
            remedy="Check that log_bin is ON and that SHOW BINARY LOG STATUS (SHOW MASTER STATUS) prints a row.",
        )
    return BinlogPosition(str(status[0]["File"]), int(status[0]["Position"]))


def replicas(conn: Connection) -> list[ReplicaInfo]:
    """Returns the replicas that registered with the server. Raises SourceRefusedError if the user may not list them."""
    rows = query(conn, replicas_statement(conn))
    return [ReplicaInfo(int(r.get("Server_Id") or r.get("Server_id") or 0), str(r.get("Host") or "")) for r in rows]


def replica_lag_s(conn: Connection) -> float | None:
    """Returns how far a replica is behind its source, the worst of its channels; infinite while it does not apply
    anything; None if the server is no replica. The channels of a replication group do not count.

    Raises SourceRefusedError if the user may not ask, SourceUnavailableError.
    """
    name = "Connection_name" if _is_mariadb(conn) else "Channel_Name"
    rows = [row for row in _replication(conn) if not str(row.get(name) or "").startswith("group_replication_")]
    lags = [row.get("Seconds_Behind_Source", row.get("Seconds_Behind_Master")) for row in rows]
    return max((float("inf") if lag is None else float(lag) for lag in lags), default=None)


def behind_s(conn: Connection) -> float | None:
    """Returns the lag of :func:`replica_lag_s`; None also for a replica that has stopped to replicate and takes writes
    of its own: it was promoted. Raises as that does."""
    lag_s = replica_lag_s(conn)
    return None if lag_s is not None and isinf(lag_s) and not refuses_writes(conn) else lag_s


def is_replicating(conn: Connection) -> bool:
    """Whether the server applies the changes of another one. Raises SourceRefusedError if the user may not ask."""
    return any(str(row.get("Replica_SQL_Running", row.get("Slave_SQL_Running"))) == "Yes" for row in _replication(conn))


def refuses_writes(conn: Connection) -> bool:
    """Whether the server is read-only."""
    return variables(conn, ("read_only",)).get("read_only", "OFF").upper() not in ("OFF", "0")


def _replication(conn: Connection) -> list[Row]:
    """Returns a row for each source that the server replicates."""
    if _is_mariadb(conn):
        return query(conn, "SHOW ALL SLAVES STATUS")
    renamed = parse_version(server_version(conn)) >= (8, 0, 22)
    return query(conn, "SHOW REPLICA STATUS" if renamed else "SHOW SLAVE STATUS")


def replicas_statement(conn: Connection) -> str:
    """Returns the statement that lists registered replicas."""
    renamed = not _is_mariadb(conn) and parse_version(server_version(conn)) >= (8, 0, 22)
    return "SHOW REPLICAS" if renamed else "SHOW SLAVE HOSTS"


def replica_label(config: DestinationConfig) -> str:
    """Returns the host name under which capture registers (at most 60 bytes, ASCII).

    It is unique to a destination on a machine. So the connection that a killed capture left on the server can be
    distinguished from another replica with the same server_id.
    """
    identity = hashlib.sha1(f"{socket.gethostname()}:{config.file}".encode(), usedforsecurity=False).hexdigest()
    name = re.sub(r"[^A-Za-z0-9_-]", "_", config.name)[:32]
    return f"towpath-{name}-{identity[:12]}"


def _is_mariadb(conn: Connection) -> bool:
    # The server's greeting contains the version, so no query is needed.
    return "mariadb" in server_version(conn).lower()


def server_version(conn: Connection) -> str:
    """Returns the version in the server's greeting, which is that of VERSION()."""
    return str(conn.get_server_info())  # type: ignore[no-untyped-call]
