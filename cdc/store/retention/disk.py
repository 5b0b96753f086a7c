"""Watches how full the store's disk is: first a warning, then removal of segments, then no more writing.

The three thresholds are RocketMQ's (``diskMaxUsedSpaceRatio``, the clean-forcibly and the warning ratio of its clean
service), named after their effects: warn, clean, stop.
"""

from __future__ import annotations

import enum
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from cdc.base.errors import ConfigError, StorageError
from cdc.base.log import get_logger
from cdc.base.units import human_bytes
from cdc.disk.durable import explain

log = get_logger(__name__)

_EVERY_S = 1.0
_EVERY_BYTES = 64 << 20


class Usage(NamedTuple):
    """The usage of a file system, in bytes: ``free`` is what this user may still write, ``total`` is free and used
    bytes. Blocks reserved for root are in neither, as ``df`` counts them."""

    total: int
    free: int

    @property
    def ratio(self) -> float:
        """0 empty, 1 full."""
        return 1 - self.free / self.total if self.total else 0.0


class FillLevel(enum.IntEnum):
    """The fill level of a disk."""

    OK = 0
    WARN = 1
    CLEAN = 2
    """Acked segments are removed, whatever their age."""
    STOP = 3
    """Nothing is written any more."""


@dataclass(frozen=True)
class Ratios:
    """The used share of the disk at which each level begins; each may equal the next. Raises ConfigError."""

    warn: float = 0.75
    clean: float = 0.85
    stop: float = 0.90

    def __post_init__(self) -> None:
        if not 0 < self.warn <= self.clean <= self.stop <= 1:
            raise ConfigError(
                f"the disk ratios warn {self.warn:g}, clean {self.clean:g}, stop {self.stop:g} contradict each other",
                remedy="Each is above 0 and at most 1, and none is above the next.",
            )

    def level(self, ratio: float) -> FillLevel:
        steps = ((self.stop, FillLevel.STOP), (self.clean, FillLevel.CLEAN), (self.warn, FillLevel.WARN))
        return next((level for limit, level in steps if ratio >= limit), FillLevel.OK)


def disk_usage(path: Path) -> Usage:
    """Returns the usage of the file system that holds ``path``. Raises OSError."""
    usage = shutil.disk_usage(path)
    return Usage(usage.used + usage.free, usage.free)


class DiskWatch:
    """Looks at the disk once a second and after every 64 MiB, at most: cheap enough to call before each write. Any
    thread may call it."""

    def __init__(
        self,
        path: Path,
        ratios: Ratios | None = None,
        *,
        usage: Callable[[Path], Usage] = disk_usage,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``usage`` and ``clock`` (seconds) are for tests. The folder ``path`` must exist when the watch is called."""
        self.path = path
        self.ratios = ratios if ratios is not None else Ratios()
        self._usage = usage
        self._clock = clock
        self._lock = threading.Lock()
        self._due_at = float("-inf")
        self._bytes = 0
        self.level = FillLevel.OK
        self.usage = Usage(0, 0)
        """The usage at the last look."""

    def look(self, size_bytes: int = 0) -> FillLevel:
        """Returns the level. ``size_bytes`` are about to be written. At STOP every call looks at the disk again.
        Raises StorageError if the file system's usage cannot be read."""
        with self._lock:
            self._bytes += size_bytes
            if self.level < FillLevel.STOP and self._bytes < _EVERY_BYTES and self._clock() < self._due_at:
                return self.level
            try:
                self.usage = self._usage(self.path)
            except OSError as error:
                raise explain(error, self.path) from error
            self._bytes, self._due_at = 0, self._clock() + _EVERY_S
            before, self.level = self.level, self.ratios.level(self.usage.ratio)
        if self.level > before:
            tell = log.error if self.level is FillLevel.STOP else log.warning
            tell("the store's disk fills up", **self._stats())
        elif self.level < before:
            log.info("the store's disk has room again", **self._stats())
        return self.level

    def check(self, size_bytes: int = 0) -> None:
        """Raises StorageError, which names used space, limit and remedy, at STOP, or if writing ``size_bytes`` would
        reach STOP. Call it before a write."""
        level = self.look(size_bytes)
        usage = self.usage
        if level is FillLevel.STOP or usage.free - size_bytes < (1 - self.ratios.stop) * usage.total:
            raise self.error()

    def to_free(self) -> int:
        """Returns the number of bytes to remove until the disk is below the level CLEAN."""
        usage = self.usage
        return (
            max(0, int((1 - self.ratios.clean) * usage.total) - usage.free + 1) if self.level >= FillLevel.CLEAN else 0
        )

    def error(self) -> StorageError:
        """Returns the error for a write that is refused."""
        usage = self.usage
        return StorageError(
            f"the disk is {usage.ratio:.1%} full ({human_bytes(usage.total - usage.free)} of"
            f" {human_bytes(usage.total)}), and the"
            f" store writes only below {self.ratios.stop:.1%} (store.disk.stop_ratio)",
            place=str(self.path),
            remedy="Nothing is lost: the source keeps what is not stored yet. Make room on this disk; `cdc maintain` "
            "removes what all subscribers have acked, and `cdc status` names who holds it back.",
        )

    def document(self) -> dict[str, Any]:
        """Returns the usage of the disk now, for JSON. Raises StorageError."""
        level, usage = self.look(), self.usage
        return {
            "level": level.name.lower(),
            "used_ratio": round(usage.ratio, 4),
            "free_bytes": usage.free,
            "total_bytes": usage.total,
        }

    def _stats(self) -> dict[str, object]:
        usage = self.usage
        limits = {"warn": self.ratios.warn, "clean": self.ratios.clean, "stop": self.ratios.stop}
        return {
            "level": self.level.name.lower(),
            "used_ratio": round(usage.ratio, 4),
            "free_bytes": usage.free,
            "path": str(self.path),
            **{f"{name}_ratio": limit for name, limit in limits.items()},
        }
