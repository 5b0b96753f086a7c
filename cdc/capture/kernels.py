"""The kernels that capture uses."""

from __future__ import annotations

from cdc.binlog import entry_checksums, framer
from cdc.binlog.jit import release_loader


def warm_up() -> None:
    """Loads the kernels from their cache. Compiles them if they are not there, which takes tens of seconds on a busy
    machine."""
    framer.warm_up()
    entry_checksums.warm_up()
    release_loader()
