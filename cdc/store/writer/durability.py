"""The durability of writes: the flush policy, the statuses that a put returns, and how long flushes take."""

from __future__ import annotations

import enum
from array import array
from dataclasses import dataclass
from typing import Literal

from cdc.base.errors import ConfigError

PAGE_BYTES = 4096
_KEPT = 4096


class PutStatus(enum.Enum):
    """The result of a put (RocketMQ's statuses, and one for a store without room)."""

    PUT_OK = "PUT_OK"
    """Stored as the store promises: on disk (sync), in the page cache (async), at the standby (sync master)."""
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    """Written here, but the flush did not end in time; it may still."""
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    """On the disk here; the standby did not confirm it in time."""
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    """On the disk here only: no standby follows, or it is too far behind."""
    STORE_FULL = "STORE_FULL"
    """Not stored: no room within the time-out. The same put may be tried again."""

    @property
    def stored(self) -> bool:
        """Whether the transactions are in the store, durable or not."""
        return self is not PutStatus.STORE_FULL


@dataclass(frozen=True)
class FlushPolicy:
    """The rules by which written bytes are flushed. The intervals and pages apply to ``async`` only. Raises ConfigError
    if they contradict each other."""

    mode: Literal["sync", "async"] = "sync"
    """``sync``: a put waits for the flush. ``async``: it does not, and the flush follows the times below."""
    interval_s: float = 0.5
    """Time from one flush to the next if at least ``least_pages`` pages wait for it."""
    least_pages: int = 4
    thorough_interval_s: float = 10.0
    """Time from one flush to the next if fewer pages wait for it."""
    slow_flush_s: float = 0.5
    """A flush that takes longer is logged and counted."""
    slow_put_s: float = 0.5
    """A put that takes longer is logged and counted."""

    def __post_init__(self) -> None:
        if self.interval_s <= 0 or self.least_pages < 0:
            raise ConfigError(
                f"flush_interval_s {self.interval_s:g} and flush_least_pages {self.least_pages} are out of range",
                remedy="The interval is above 0, the pages are 0 or more.",
            )
        if self.thorough_interval_s < self.interval_s:
            raise ConfigError(
                f"flush_thorough_interval_s {self.thorough_interval_s:g} is below flush_interval_s {self.interval_s:g}",
                remedy="Make it the larger of the two: it is when everything is flushed, however little.",
            )

    def due_in_s(self, since_flush_s: float, waiting_bytes: int) -> float:
        """Returns how long the flush of ``waiting_bytes`` can still wait; 0 if it is due."""
        if self.mode == "sync":
            return 0.0
        enough = waiting_bytes >= self.least_pages * PAGE_BYTES
        return max(0.0, (self.interval_s if enough else self.thorough_interval_s) - since_flush_s)


@dataclass(frozen=True)
class LatencyStats:
    """Latencies in seconds; zeros if nothing was measured."""

    count: int = 0
    longest_s: float = 0.0
    p50_s: float = 0.0
    p99_s: float = 0.0
    slow: int = 0
    """The number of latencies at or above the limit."""


class Latencies:
    """Collects latencies in constant memory. Not thread-safe: the owner calls it under a lock of its own."""

    def __init__(self, slow_s: float) -> None:
        self.slow_s = slow_s
        self.count = self.slow = 0
        self.longest_s = self.last_s = 0.0
        self._newest = array("d")

    def add(self, took_s: float) -> bool:
        """Adds a latency. Returns whether it was slow."""
        if self.count < _KEPT:
            self._newest.append(took_s)
        else:
            self._newest[self.count % _KEPT] = took_s
        self.count += 1
        self.last_s = took_s
        if took_s > self.longest_s:
            self.longest_s = took_s
        if took_s < self.slow_s:
            return False
        self.slow += 1
        return True

    def stats(self) -> LatencyStats:
        """Returns the stats; percentiles are over the newest 4,096 latencies."""
        if not self.count:
            return LatencyStats()
        times = sorted(self._newest)
        return LatencyStats(
            count=self.count,
            longest_s=self.longest_s,
            p50_s=times[len(times) // 2],
            p99_s=times[min(len(times) - 1, len(times) * 99 // 100)],
            slow=self.slow,
        )
