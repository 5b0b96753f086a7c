"""A capture that is ready to begin: ``-m cdc.cli.ready ARGUMENT…``.

It loads the modules and kernels that capture needs, which is most of what the start of a capture costs. Then it waits
for a line on its standard input, and runs ``cdc ARGUMENT…``. Before that line it reads no configuration, opens nothing
and connects to nothing, so that a server which waits for the leadership may have one. It ends when its standard input
does.
"""

from __future__ import annotations

import sys
from importlib import import_module

_MODULES = (
    "cdc.watch.alarms.start",
    "cdc.capture",
    "cdc.capture.memory_room",
    "cdc.cli.main",
    "cdc.cli.capture",
    "cdc.config",
    "cdc.meta.zookeeper",
    "cdc.watch.metrics.serve",
    "encodings.idna",
    "kazoo.client",
)


def prepare() -> None:
    """Loads what capture needs."""
    for name in _MODULES:
        import_module(name)
    from cdc.capture.warm_up import warm_up

    warm_up()


def main(arguments: list[str]) -> int:
    """Returns the exit code of the command; 0 if it was not needed."""
    prepare()
    if not sys.stdin.readline():
        return 0
    from cdc.cli.main import main as run

    return run(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
