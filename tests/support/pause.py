"""Holds a merge right before its statement, until a test lets it continue.

As a program it runs the command ``cdc`` with such a hold in its driver::

    python -m tests.support.pause /folder/name apply shop …
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

_LONGEST_S = 600.0


def pause(path: Path, subject: str) -> None:
    """Appends a line with ``subject`` to ``path.here`` and waits for the file ``path.go``.

    Raises TimeoutError after ten minutes.
    """
    with path.with_name(path.name + ".here").open("a", encoding="utf-8") as marker:
        marker.write(f"{subject}\n")
    go = path.with_name(path.name + ".go")
    deadline = time.monotonic() + _LONGEST_S
    while not go.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the file {go} was not made within {_LONGEST_S:.0f} s")
        time.sleep(0.05)


def main(path: Path, arguments: list[str]) -> int:
    """Runs ``cdc`` with these arguments; each statement of a merge is held by :func:`pause` at ``path``."""
    from cdc.cli.main import main as cdc
    from cdc.lake.apply import commit

    commit.before_statement = lambda table: pause(path, table)
    return cdc(arguments)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
