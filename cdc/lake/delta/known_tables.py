"""Delta tables that this process has read before, so that only the newer files of their logs are read.

A table may have been replaced meanwhile: dropped and created again, or put back from a copy. So each table is kept with
its newest commit file's hash and its log folder's identity. If either differs, or the file is gone, the whole log is
read. The commit file holds a random transaction id and its time, so no other history has the same one.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdc.base.log import get_logger

if TYPE_CHECKING:
    from deltalake import DeltaTable

MOST_TABLES = 1000
_log = get_logger(__name__)
_Mark = tuple[int, int, bytes]
"""Device and inode of the log's folder, and the hash of the newest commit file."""


@dataclass
class KnownTable:
    """A table at its newest version when it was read."""

    delta: DeltaTable
    commits: list[dict[str, Any]]
    """The last commits, newest first, as ``history`` gives them. Commits that are gone from the log are left out."""
    mark: _Mark | None
    """None: the log changed while it was read, so this is not used again."""


@dataclass
class KnownTables:
    """Tables on local disks by their paths. Safe for threads; one thread at a time reads a table."""

    depth: int
    """The number of commits that are kept of each table."""
    _tables: OrderedDict[Path, KnownTable] = field(default_factory=OrderedDict)
    _locks: dict[Path, threading.Lock] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def newest(self, path: Path, log: Path, read: Callable[[], DeltaTable | None]) -> Iterator[KnownTable | None]:
        """Yields the table at its newest version, for this block alone; the block must not load another version.
        ``log``: the folder of its log. ``read`` reads the whole log, and returns None if there is no table."""
        with self._lock:
            lock = self._locks.setdefault(path, threading.Lock())
        with lock:
            table = self._renewed(path, log)
            if table is None:
                table = self._read(log, read)
            with self._lock:
                self._tables.pop(path, None)
                if table is not None and table.mark is not None:
                    self._tables[path] = table
                while len(self._tables) > MOST_TABLES:
                    self._tables.popitem(last=False)
            yield table

    def _renewed(self, path: Path, log: Path) -> KnownTable | None:
        """Brings a table that was read before up to date. Returns None if the whole log must be read."""
        from deltalake.exceptions import DeltaError

        with self._lock:
            table = self._tables.get(path)
        if table is None or table.mark != _mark_of(log, table.delta.version()):
            return None
        before = table.delta.version()
        if len(table.commits) < min(self.depth, before + 1):
            return None  # commits were gone that may be back: a copy of the log may have got the same inode
        try:
            table.delta.update_incremental()
            version = table.delta.version()
            newer = table.delta.history(version - before) if version > before else []
        except (DeltaError, OSError) as error:
            _log.debug("the newer commits of a Delta table cannot be read", path=str(path), reason=str(error))
            return None
        if [commit.get("version") for commit in newer] != list(range(version, before, -1)):
            return None
        # The folder and the commit that was known are still the same, so what was read follows it.
        if table.mark != _mark_of(log, before):
            return None
        commits = [
            commit for commit in [*newer, *table.commits][: self.depth] if _commit_file(log, commit["version"]).exists()
        ]
        return KnownTable(table.delta, commits, _mark_of(log, version))

    def _read(self, log: Path, read: Callable[[], DeltaTable | None]) -> KnownTable | None:
        before = _folder_of(log)
        delta = read()
        if delta is None:
            return None
        commits = delta.history(self.depth)
        mark = _mark_of(log, delta.version())
        if before != _folder_of(log) or any("version" not in commit for commit in commits):
            mark = None
        return KnownTable(delta, commits, mark)


def _commit_file(log: Path, version: int) -> Path:
    return log / f"{version:020d}.json"


def _folder_of(log: Path) -> tuple[int, int, int] | None:
    """Returns device, inode and change time of a folder; None if there is none."""
    try:
        stat = log.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns


def _mark_of(log: Path, version: int) -> _Mark | None:
    try:
        stat = log.stat()
        return stat.st_dev, stat.st_ino, hashlib.sha256(_commit_file(log, version).read_bytes()).digest()
    except OSError:
        return None
