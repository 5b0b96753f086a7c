"""The source of a scenario: a real server, and operations on its history."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from cdc.testing.servers import Server
from tests.nemesis.workload import History, Workload
from tests.support.binlog_files import purge
from tests.support.versions import reset_statement

_OPTIONS = {"mysql9": ("--performance-schema=OFF",)}
_SMALL = ("--innodb-buffer-pool-size=64M",)


@dataclass(frozen=True, order=True)
class BinlogEnd:
    """The end of the server's binlog: file number and offset."""

    file: int
    pos: int


@dataclass(frozen=True)
class Copy:
    """A copy of the server's data, and the workload's history by then."""

    folder: Path
    history: History


class Source:
    """A server and the workload on it. The server may be stopped, and started with other data at the same port."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.server = Server(kind, options=(*_SMALL, *_OPTIONS.get(kind, ()))).start()
        self.workload = Workload(self.server, "none", "none")
        self.whole = True
        """Whether the binlog holds all changes of the tables from the first one on, unless files were purged."""
        self._copies = 0
        self._flipped: tuple[Path, int] | None = None

    @property
    def flavor(self) -> str:
        return "mysql" if self.kind.startswith("mysql") else "mariadb"

    def close(self) -> None:
        self.server.stop()

    def begin(self, database: str, seed: str) -> None:
        """Creates tables and a workload for a scenario, in a binlog that begins with their first transaction."""
        if not self.server.alive:  # the scenario before failed while it was stopped
            self.server.restart()
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW DATABASES LIKE 'nemesis\\_%'")
            for (name,) in cursor.fetchall():
                cursor.execute(f"DROP DATABASE `{name}`")
        for old in self.server.folder.glob("copy-*"):
            shutil.rmtree(old)
        self.workload = Workload(self.server, database, seed)
        self.workload.create()
        self.reset()
        self.whole, self._flipped = True, None

    # ------------------------------------------------------------ its binlog

    def end(self) -> BinlogEnd:
        """Returns the current end of the binlog."""
        name, size = self.files()[-1]
        return BinlogEnd(int(name.rpartition(".")[2]), size)

    def files(self) -> list[tuple[str, int]]:
        """Returns the binlog files with their sizes, oldest first."""
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW BINARY LOGS")
            return [(row[0], int(row[1])) for row in cursor.fetchall()]

    def reset(self) -> None:
        """Deletes the binlog and the GTID history; the data stay."""
        self.server.execute(reset_statement(self.server))

    def purge(self) -> None:
        """Deletes all binlog files but the newest."""
        purge(self.server)

    def grow_past(self, end: BinlogEnd) -> None:
        """Commits transactions until the binlog ends after the end of an earlier history."""
        while self.end().file < end.file:
            self.workload.flush()
        while self.end() <= end:
            self.workload.run(1)

    def flip(self) -> None:
        """Inverts a bit near the end of the newest binlog file, as a failing disk does; the next call restores it."""
        if self._flipped is None:
            name, size = self.files()[-1]
            self._flipped = (self.server.data / name, size - 1000)
            self._invert(*self._flipped)
        else:
            self._invert(*self._flipped)
            self._flipped = None

    @staticmethod
    def _invert(path: Path, offset: int) -> None:
        file = os.open(path, os.O_RDWR)
        try:
            (byte,) = os.pread(file, 1, offset)
            os.pwrite(file, bytes([byte ^ 1]), offset)
        finally:
            os.close(file)

    # ------------------------------------------------------------ its process and data

    def restart(self) -> None:
        self.server.halt()
        self.server.restart()
        self.workload.history.actions.append(("flush", 1))  # it begins a new file

    def kill(self) -> None:
        """Kills the server and starts it on the same data."""
        self.server.kill()
        self.server.restart()
        self.workload.history.actions.append(("flush", 1))

    def copy(self) -> Copy:
        """Stops the server, copies its data, and starts it again."""
        self._copies += 1
        folder = self.server.folder / f"copy-{self._copies}"
        self.server.halt()
        self.server.copy_data(folder)
        self.server.restart()
        history = self.workload.history.copy()
        self.workload.history.actions.append(("flush", 1))
        return Copy(folder, history)

    def restore(self, copy: Copy) -> None:
        """Restores a copy; everything after it is lost."""
        self.server.halt()
        self.server.replace_data(copy.folder)
        self.server.restart()
        self.workload.history = copy.history.copy()
        self.workload.history.actions.append(("flush", 1))

    def rebuild(self, *, same_identity: bool = False) -> None:
        """Starts with fresh data at the same port, with empty tables and a binlog that begins with the first transaction.

        ``same_identity``: keep MySQL's UUID, as the clone of a machine does. MariaDB's never depends on the data.
        """
        identity = self.server.data / "auto.cnf"
        kept = identity.read_bytes() if same_identity and identity.exists() else None
        self.server.halt()
        self.server.replace_data(None)
        if kept is not None:
            identity.write_bytes(kept)
        self.server.restart()
        former = self.workload
        self.workload = former.with_salt(former.salt + 1)
        self.workload.create()
        self.reset()

    def start_over(self) -> None:
        """Empties the tables without a trace in the binlog, and RESETs: from here the workload can be repeated."""
        former = self.workload
        silent = "SET SESSION sql_log_bin = 0"
        self.server.execute(silent, f"DROP DATABASE `{former.database}`")
        self.workload = former.with_salt(former.salt + 1)
        self.workload.create()
        self.reset()
