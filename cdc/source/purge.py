"""The unread part of the server's binlog, and its distance from the purge.

A server purges a file by its age, which counts from the last write to it, and MariaDB also by the size of all files.
Neither waits for a reader that is not connected. The newest file is never purged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cdc.base.units import human_bytes, human_seconds
from cdc.binlog.positions import BinlogPosition
from cdc.config import SourceConfig
from cdc.source.connection import query
from cdc.source.scan import read_file_start
from cdc.source.server import BinlogFileInfo, Connection, binlog_files, clock_and_position, variables

_VARIABLES = (
    "binlog_expire_logs_seconds",
    "binlog_expire_logs_auto_purge",
    "expire_logs_days",
    "max_binlog_total_size",
)


REMEDY = (
    "Keep binlogs longer until capture has caught up: binlog_expire_logs_seconds, on MariaDB max_binlog_total_size too."
)


@dataclass(frozen=True)
class Retention:
    """The retention of binlog files on a server."""

    seconds: float | None
    """None: until they are purged by hand or by size. 0: for no certain time."""
    by_service: bool = False
    """Whether a setting of Amazon's says so, which overrules that of the server."""


def read_retention(conn: Connection, values: Mapping[str, str]) -> Retention:
    """Reads how long the server keeps binlog files; ``values`` are its variables. Amazon's setting is a table, which
    the user must be allowed to read."""
    sql = "SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'mysql' AND TABLE_NAME = 'rds_configuration'"
    if query(conn, sql):
        rows = query(conn, "SELECT value FROM mysql.rds_configuration WHERE name = 'binlog retention hours'")
        return Retention(3600 * float(rows[0]["value"] or 0) if rows else 0.0, by_service=True)
    seconds = float(values.get("binlog_expire_logs_seconds") or 0)
    seconds = seconds or float(values.get("expire_logs_days") or 0) * 86400
    purges = seconds > 0 and values.get("binlog_expire_logs_auto_purge") != "OFF"
    return Retention(seconds if purges else None)


@dataclass(frozen=True)
class PurgeMargin:
    """The distance of the unread part of the binlog from its purge, at one moment."""

    file: str
    """The file that is read next."""
    unread_bytes: int
    purge_at_s: float | None = None
    """Unix time from which the server may purge that file by its age; None if it never does."""
    now_s: float = 0.0
    """The server's clock."""
    retention_s: float | None = None
    """The time for which it keeps files."""
    room_bytes: int | None = None
    """Bytes that may be written until the server purges that file by size; None if it never does."""
    total_bytes: int | None = None
    """The size of the files that it keeps."""

    @property
    def purge_in_s(self) -> float | None:
        """Time until the server may purge that file by its age; not above zero if it may do so now."""
        return None if self.purge_at_s is None else self.purge_at_s - self.now_s

    @property
    def left(self) -> float:
        """The share of the server's limit that is left, by age or by size, whichever is nearer: 1 for everything."""
        shares = [1.0]
        if self.purge_in_s is not None and self.retention_s is not None:
            shares.append(self.purge_in_s / self.retention_s if self.retention_s else 0.0)
        if self.room_bytes is not None and self.total_bytes:
            shares.append(self.room_bytes / self.total_bytes)
        return max(0.0, min(shares))

    def __str__(self) -> str:
        parts = [f"{human_bytes(self.unread_bytes)} of the binlog are unread, from {self.file} on"]
        if self.purge_in_s is not None:
            when = "now" if self.purge_in_s <= 0 else f"in {human_seconds(self.purge_in_s)}"
            keeps = human_seconds(self.retention_s or 0)
            parts.append(f"the server may purge that file {when} (it keeps files for {keeps})")
        if self.room_bytes is not None:
            after = human_bytes(max(0, self.room_bytes))
            parts.append(f"it purges that file after {after} more (it keeps {human_bytes(self.total_bytes or 0)})")
        return "; ".join(parts)


class PurgeWatch:
    """Measures the margin of one source again and again. When a file ended is asked once."""

    def __init__(self, source: SourceConfig) -> None:
        self._source = source
        self._ended_s: dict[str, int] = {}

    def measure(self, conn: Connection, position: BinlogPosition) -> PurgeMargin:
        """Returns the margin for a reader at ``position``. Raises SourceUnavailableError, SourceRefusedError,
        CorruptStreamError."""
        files = binlog_files(conn)
        unread = [file for file in files if _number(file) >= position.file_number]
        unread_bytes = max(0, sum(file.size_bytes for file in unread) - (position.pos if unread else 0))
        margin = PurgeMargin(position.file, unread_bytes)
        if len(unread) < 2:
            return margin
        values = variables(conn, _VARIABLES)
        keeps_s = read_retention(conn, values).seconds
        now_s = clock_and_position(conn).time_us / 1e6
        purge_at_s = None if keeps_s is None else self._ended(unread[0].name, unread[1].name) + keeps_s
        total = int(values.get("max_binlog_total_size") or 0) or None
        room = None if total is None else total - sum(file.size_bytes for file in unread)
        return PurgeMargin(unread[0].name, unread_bytes, purge_at_s, now_s, keeps_s, room, total)

    def _ended(self, file: str, following: str) -> int:
        """Returns the Unix time of the last write to a file: that at which the next one was created."""
        if file not in self._ended_s:
            self._ended_s = {file: read_file_start(self._source, following).created_s}
        return self._ended_s[file]


def _number(file: BinlogFileInfo) -> int:
    return BinlogPosition(file.name, 4).file_number
