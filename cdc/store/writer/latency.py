"""How long things take: a count, the longest, and percentiles over the newest of them."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

_KEPT = 4096


@dataclass(frozen=True)
class LatencyFigures:
    """Seconds; zeros where nothing was measured."""

    count: int = 0
    longest_s: float = 0.0
    p50_s: float = 0.0
    p99_s: float = 0.0
    slow: int = 0
    """How many took longer than the limit."""


class Latencies:
    """Counts times, in constant memory. Not thread-safe: its owner calls it under a lock of its own."""

    def __init__(self, slow_s: float) -> None:
        self.slow_s = slow_s
        self.count = self.slow = 0
        self.longest_s = self.last_s = 0.0
        self._newest = array("d")

    def add(self, took_s: float) -> bool:
        """Count one; True where it was slow."""
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

    def figures(self) -> LatencyFigures:
        """Percentiles are over the newest 4,096."""
        if not self.count:
            return LatencyFigures()
        times = sorted(self._newest)
        return LatencyFigures(
            count=self.count,
            longest_s=self.longest_s,
            p50_s=times[len(times) // 2],
            p99_s=times[min(len(times) - 1, len(times) * 99 // 100)],
            slow=self.slow,
        )
