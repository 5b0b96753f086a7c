"""A disk whose usage a test sets, and a clock that a test moves: for tests of the disk watch."""

from __future__ import annotations

from pathlib import Path

from cdc.store.retention.disk import Usage


class FakeDisk:
    """Replaces :func:`cdc.store.retention.disk.disk_usage`. With ``folder`` the files in it count as used, too."""

    def __init__(self, total: int = 1_000_000, used: int = 0, folder: Path | None = None) -> None:
        self.total = total
        self.used = used
        self.folder = folder
        self.looks = 0
        """The number of calls."""

    def __call__(self, path: Path) -> Usage:
        self.looks += 1
        own = 0 if self.folder is None else sum(p.stat().st_size for p in self.folder.rglob("*") if p.is_file())
        return Usage(self.total, max(0, self.total - self.used - own))


class FakeClock:
    """A clock in seconds that moves only when ``now`` is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now
