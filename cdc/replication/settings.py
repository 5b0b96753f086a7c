"""What master and standby have to know, and the secret between them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from cdc.errors import ConfigError


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


def read_secret(env: str | None, file: Path | None) -> bytes | None:
    """The secret from an environment variable or a file, without white space around it; None where neither is named. It
    never reaches a log. Raises ConfigError."""
    if env is not None:
        value = os.environ.get(env)
        if value is None:
            raise ConfigError("the environment variable is not set", place=f"standby.secret_env: {env}")
        found, place = value.strip().encode(), f"standby.secret_env: {env}"
    elif file is not None:
        place = f"standby.secret_file: {file}"
        try:
            found = file.read_bytes().strip()
        except OSError as error:
            raise ConfigError(f"cannot be read: {error.strerror}", place=place) from None
    else:
        return None
    if len(found) < 16:
        raise ConfigError(
            f"the secret has {len(found)} bytes; at least 16 are needed",
            place=place,
            remedy="Make one with: openssl rand -hex 32",
        )
    return found
