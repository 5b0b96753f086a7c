"""Settings of a master and its standbys: the timing of a connection, and how a master serves standbys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cdc.base.addresses import Address


@dataclass(frozen=True)
class Timing:
    """Intervals and time-outs of a connection, in seconds. Tests shorten them."""

    heartbeat_s: float = 1.0
    """The longest time between two frames of the master, and between two reports of the standby."""
    dead_s: float = 10.0
    """A side that sends nothing for this long is considered gone."""
    greeting_s: float = 5.0
    """The time-out for connecting, and for each answer before the stream begins."""
    first_pause_s: float = 0.2
    """The pause before the standby connects again; it doubles with each failure."""
    longest_pause_s: float = 5.0
    """The longest such pause."""
    poll_s: float = 0.01
    """The interval at which the master looks for entries that capture wrote without notifying it."""


DEFAULT_TIMING = Timing()


@dataclass(frozen=True)
class MasterSettings:
    """Settings by which a master serves its standbys."""

    listen: Address
    """Port 0 takes a free one."""
    role: Literal["sync_master", "async_master"] = "sync_master"
    """``sync_master``: a put waits for a standby. ``async_master``: it does not."""
    timeout_s: float = 5.0
    """The longest time that a put waits for a standby."""
    max_behind_bytes: int = 268435456
    """A standby that is further behind counts as not available."""
    secret: bytes | None = None
    timing: Timing = DEFAULT_TIMING
