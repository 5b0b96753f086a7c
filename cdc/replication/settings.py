"""Settings of a master and its standbys: timing, the master's behaviour, and the secret that both sides share."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cdc.addresses import Address
from cdc.errors import ConfigError

MIN_SECRET_BYTES = 16


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
    """How often the master looks for entries that it was not notified of (those that capture writes)."""


DEFAULT_TIMING = Timing()


@dataclass(frozen=True)
class MasterSettings:
    """How a master serves its standbys."""

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


def read_secret(env: str | None, file: Path | None) -> bytes | None:
    """Reads the shared secret from an environment variable or a file, and strips white space around it.

    Returns None when neither is named. The secret never reaches a log. Raises ConfigError.
    """
    if env is not None:
        value = os.environ.get(env)
        if value is None:
            raise ConfigError(
                "the environment variable is not set",
                place=f"standby.secret_env: {env}",
                remedy="Set it to the secret of both sides, or correct standby.secret_env.",
            )
        found, place = value.strip().encode(), f"standby.secret_env: {env}"
    elif file is not None:
        place = f"standby.secret_file: {file}"
        try:
            found = file.read_bytes().strip()
        except OSError as error:
            raise ConfigError(f"cannot be read: {error.strerror}", place=place) from None
    else:
        return None
    if len(found) < MIN_SECRET_BYTES:
        raise ConfigError(
            f"the secret has {len(found)} bytes; at least {MIN_SECRET_BYTES} are needed",
            place=place,
            remedy="Make one with: openssl rand -hex 32",
        )
    return found
