"""JSON paths as the server writes them into diffs: members and array cells, no wildcards.

Source: https://dev.mysql.com/doc/refman/9.4/en/json.html#json-path-syntax
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """An array cell: the ``index``-th, or, ``from_end``, so many before the last."""

    index: int
    from_end: bool = False


Leg = str | Cell

_LEG = re.compile(
    r"""\s*(?:
        \.\s*(?P<quoted>"(?:[^"\\]|\\.)*")
      | \.\s*(?P<name>[^.\[\s"*]+)
      | \[\s*(?P<index>\d{1,10})\s*\]
      | \[\s*last\s*(?:-\s*(?P<before>\d{1,10})\s*)?\]
    )""",
    re.VERBOSE | re.DOTALL,
)


def parse_path(raw: bytes) -> list[Leg]:
    """The legs of a path. Raises ValueError."""
    path = raw.decode()
    if not path.startswith("$"):
        raise ValueError(f"{path[:80]!r} is no path")
    legs: list[Leg] = []
    at = 1
    while at < len(path):
        found = _LEG.match(path, at)
        if found is None:
            raise ValueError(f"{path[:80]!r} is no path that a diff may have")
        if found["quoted"] is not None:
            name = json.loads(found["quoted"], strict=False)
            name.encode()  # half a surrogate pair is no text
            legs.append(name)
        elif found["name"] is not None:
            legs.append(found["name"])
        elif found["index"] is not None:
            legs.append(Cell(int(found["index"])))
        else:
            legs.append(Cell(int(found["before"] or 0), from_end=True))
        at = found.end()
    return legs


def array_index(cell: Cell, size: int) -> int:
    """Where a cell is in an array of so many elements; maybe outside of it."""
    return size - 1 - cell.index if cell.from_end else cell.index
