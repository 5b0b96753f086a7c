"""What master and standby have to know, and the secret between them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Seconds. Tests shorten them."""

    heartbeat_s: float = 1.0
    """The master sends at least so often, and the standby reports."""
    dead_s: float = 10.0
    """A side that was silent for so long is gone."""
    greeting_s: float = 5.0
    """Connecting, and each answer before the stream begins."""
    first_pause_s: float = 0.2
    """Before the standby connects again; doubled each time …"""
    longest_pause_s: float = 5.0
    """… up to this."""
    poll_s: float = 0.01
    """So often the master looks for entries that nobody told it of (those of capture)."""


DEFAULT_TIMING = Timing()
