"""Loads the kernels that capture uses, before it reads."""

from __future__ import annotations

from cdc.binlog import entry_checksums, framer
from cdc.kernels import jit


def warm_up() -> None:
    """Loads the kernels from their cache. Compiles them if they are not there, which takes tens of seconds on a busy
    machine."""
    framer.warm_up()
    entry_checksums.warm_up()
    jit.release_loader()
