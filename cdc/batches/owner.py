"""Who owns a batch when the command line asks for it, and the lock that keeps this owner unique."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from cdc.config import DestinationConfig
from cdc.durable import locked
from cdc.permissions import CHANGE, secure_folder

LOCK_NAME = "apply.lock"


def cli_owner(config: DestinationConfig) -> str:
    """``cli:<host>:<absolute configuration file>``: who restarts a command is the same owner and need not wait."""
    return f"cli:{socket.gethostname()}:{config.file}"


@contextmanager
def exclusive(config: DestinationConfig, *, wait_s: float = 0.0) -> Iterator[None]:
    """Be the only command that works as :func:`cli_owner`, until the block or the process ends.

    Raises LeaseHeldError, naming the other's process id, when it does not end within ``wait_s``.
    """
    secure_folder(config.meta.path, config.meta.permissions, CHANGE)
    with locked(config.meta.path / LOCK_NAME, f"another `cdc` command for {config.name}", wait_s=wait_s):
        yield
