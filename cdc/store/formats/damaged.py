"""``damaged.json``: what of a store was given up, by somebody who said so (``docs/formats/store.md``).

Only :mod:`cdc.store.recovery.salvage` adds to it. It is durable before anything is passed over, so that what is missing
from the tables can always be told.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from cdc.durable import replace_file
from cdc.errors import DamagedError
from cdc.store.formats.layout import read_json, require_version

FILE_NAME = "damaged.json"

_REMEDY = "Restore it from a copy: it says what is missing from this store."


@dataclass(frozen=True)
class GivenUp:
    """A byte range of a segment whose transactions cannot be read any more."""

    segment: str
    """The file's name."""
    offset: int
    length: int
    first_seq: int
    """Of the transactions in it; where no index entry tells them any more, the numbers between their neighbours'."""
    last_seq: int
    transactions: int | None
    """None where nothing tells how many there were."""
    tables: tuple[str, ...]
    how: Literal["passed over", "cut off"]
    """``cut off``: it was the store's end; capture reads it from the source once more, if the source still has it."""
    why: str
    accepted: str
    """When, ISO 8601, UTC."""


def read_damaged(store: Path) -> tuple[GivenUp, ...]:
    """What was given up, oldest decision first. Raises DamagedError, VersionError, StorageError."""
    path = store / FILE_NAME
    try:
        found = read_json(path)
    except DamagedError as error:
        raise DamagedError(error.message, place=error.place, remedy=_REMEDY) from None
    require_version(found, path)
    if found is None:
        return ()
    try:
        return tuple(GivenUp(**{**one, "tables": tuple(one["tables"])}) for one in found["ranges"])
    except (KeyError, TypeError, AttributeError):
        raise DamagedError("is not a list of given up ranges", place=str(path), remedy=_REMEDY) from None


def write_damaged(store: Path, ranges: tuple[GivenUp, ...]) -> None:
    """Durably. The caller holds the store's lock."""
    document = {"version": 1, "ranges": [asdict(one) for one in ranges]}
    replace_file(store / FILE_NAME, json.dumps(document, indent=1).encode() + b"\n")


def passed_over(store: Path, segment: str) -> tuple[GivenUp, ...]:
    """The ranges of a segment that readers leave out."""
    return tuple(one for one in read_damaged(store) if one.segment == segment and one.how == "passed over")
