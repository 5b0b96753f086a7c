"""A place where a test can hold a process: it says that it is there, and waits to be let on.

With ``CDC_TEST_PAUSE=/folder/name`` in the environment, the process makes the file ``name.here`` (a line for each
thread that is held) and waits until ``name.go`` exists.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

VARIABLE = "CDC_TEST_PAUSE"
_LONGEST_S = 600.0


def from_environment() -> Callable[[str], None]:
    """What to call at that place: nothing, unless the variable is set."""
    given = os.environ.get(VARIABLE)
    if not given:
        return lambda subject: None
    return lambda subject: pause(Path(given), subject)


def pause(path: Path, subject: str) -> None:
    """Add a line with ``subject`` to ``path.here`` and wait for ``path.go``. Raises TimeoutError after ten minutes."""
    with path.with_name(path.name + ".here").open("a", encoding="utf-8") as here:
        here.write(f"{subject}\n")
    go = path.with_name(path.name + ".go")
    deadline = time.monotonic() + _LONGEST_S
    while not go.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody made {go}")
        time.sleep(0.05)
