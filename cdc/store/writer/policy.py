"""When what was written to a relay log is made durable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cdc.errors import ConfigError

PAGE_BYTES = 4096


@dataclass(frozen=True)
class FlushPolicy:
    """When what was written is flushed; intervals and pages count for ``async`` only. Raises ConfigError where they
    contradict each other."""

    mode: Literal["sync", "async"] = "sync"
    """``sync``: a put waits for the flush. ``async``: it does not, and the flush comes by the times below."""
    interval_s: float = 0.5
    """So long after a flush comes the next one, if at least so many pages wait for it …"""
    least_pages: int = 4
    thorough_interval_s: float = 10.0
    """… and so long after it whatever waits."""
    slow_flush_s: float = 0.5
    """A flush that takes longer is logged and counted."""
    slow_put_s: float = 0.5
    """A put that takes longer, likewise."""

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
        """How long the flush of so many bytes can still wait; 0: it is due."""
        if self.mode == "sync":
            return 0.0
        enough = waiting_bytes >= self.least_pages * PAGE_BYTES
        return max(0.0, (self.interval_s if enough else self.thorough_interval_s) - since_flush_s)
