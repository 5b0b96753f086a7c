"""Watching how full the store's disk is: a warning, then making room, then no more writing before it is full.

The three thresholds are RocketMQ's (``diskMaxUsedSpaceRatio``, the clean-forcibly and the warning ratio of its clean
service), by their effects: warn, clean, stop.
"""

from __future__ import annotations

import enum
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from cdc.durable import explain
from cdc.errors import ConfigError, StorageError
from cdc.log import get_logger
from cdc.units import human_bytes

log = get_logger(__name__)

_EVERY_S = 1.0
_EVERY_BYTES = 64 << 20


class Usage(NamedTuple):
    """Of a file system, in bytes: ``free`` is what this user may still write, ``total`` that and what is used. Blocks
    set aside for root are in neither, as ``df`` counts them."""

    total: int
    free: int

    @property
    def ratio(self) -> float:
        """0 empty, 1 full."""
        return 1 - self.free / self.total if self.total else 0.0


class Level(enum.IntEnum):
    """How bad it is."""

    OK = 0
    WARN = 1
    CLEAN = 2
    """Acked segments go, whatever their age."""
    STOP = 3
    """Nothing more is written."""


@dataclass(frozen=True)
class Ratios:
    """From which share of the disk in use on; each may equal the next. Raises ConfigError."""

    warn: float = 0.75
    clean: float = 0.85
    stop: float = 0.90

    def __post_init__(self) -> None:
        if not 0 < self.warn <= self.clean <= self.stop <= 1:
            raise ConfigError(
                f"the disk ratios warn {self.warn:g}, clean {self.clean:g}, stop {self.stop:g} contradict each other",
                remedy="Each is above 0 and at most 1, and none is above the next.",
            )

    def level(self, ratio: float) -> Level:
        steps = ((self.stop, Level.STOP), (self.clean, Level.CLEAN), (self.warn, Level.WARN))
        return next((level for limit, level in steps if ratio >= limit), Level.OK)


def disk_usage(path: Path) -> Usage:
    """Of the file system that holds ``path``. Raises OSError."""
    found = shutil.disk_usage(path)
    return Usage(found.used + found.free, found.free)


class DiskWatch:
    """Looks at the disk at most once a second, and after every 64 MiB: cheap enough to be asked before each write. Any
    thread may ask."""

    def __init__(
        self,
        path: Path,
        ratios: Ratios | None = None,
        *,
        usage: Callable[[Path], Usage] = disk_usage,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``usage`` and ``clock`` (seconds) are for tests. The folder ``path`` must be there when it is asked."""
        self.path = path
        self.ratios = ratios if ratios is not None else Ratios()
        self._usage = usage
        self._clock = clock
        self._lock = threading.Lock()
        self._due_at = float("-inf")
        self._bytes = 0
        self.level = Level.OK
        self.usage = Usage(0, 0)
        """As last seen."""

    def look(self, size_bytes: int = 0) -> Level:
        """The level. ``size_bytes``: about to be written. While it stands at STOP every call looks anew. Raises
        StorageError where the file system does not tell."""
        with self._lock:
            self._bytes += size_bytes
            if self.level < Level.STOP and self._bytes < _EVERY_BYTES and self._clock() < self._due_at:
                return self.level
            try:
                self.usage = self._usage(self.path)
            except OSError as error:
                raise explain(error, self.path) from error
            self._bytes, self._due_at = 0, self._clock() + _EVERY_S
            before, self.level = self.level, self.ratios.level(self.usage.ratio)
        if self.level > before:
            tell = log.error if self.level is Level.STOP else log.warning
            tell("the store's disk fills up", **self._figures())
        elif self.level < before:
            log.info("the store's disk has room again", **self._figures())
        return self.level

    def check(self, size_bytes: int = 0) -> None:
        """To be called before a write. Raises StorageError, naming used space, limit and remedy, at STOP, or where
        these bytes would not leave the disk as free as it has to be."""
        level = self.look(size_bytes)
        usage = self.usage
        if level is Level.STOP or usage.free - size_bytes < (1 - self.ratios.stop) * usage.total:
            raise self.error()

    def to_free(self) -> int:
        """So many bytes have to go until the disk is below the level where acked segments are removed."""
        usage = self.usage
        return max(0, int((1 - self.ratios.clean) * usage.total) - usage.free + 1) if self.level >= Level.CLEAN else 0

    def error(self) -> StorageError:
        """What is said when nothing more is written."""
        usage = self.usage
        return StorageError(
            f"the disk is {usage.ratio:.1%} full ({human_bytes(usage.total - usage.free)} of"
            f" {human_bytes(usage.total)}), and the"
            f" store writes only below {self.ratios.stop:.1%} (store.disk.stop_ratio)",
            place=str(self.path),
            remedy="Nothing is lost: the source keeps what is not stored yet. Make room on this disk; `cdc maintain` "
            "removes what all subscribers have acked, and `cdc status` names who holds it back.",
        )

    def _figures(self) -> dict[str, object]:
        usage = self.usage
        limits = {"warn": self.ratios.warn, "clean": self.ratios.clean, "stop": self.ratios.stop}
        return {
            "level": self.level.name.lower(),
            "used_ratio": round(usage.ratio, 4),
            "free_bytes": usage.free,
            "path": str(self.path),
            **{f"{name}_ratio": limit for name, limit in limits.items()},
        }
