"""The low-water mark: up to which seq retention has removed transactions (``removed.json``, ``docs/formats/store.md``).

It is durable before the first file goes, so that whoever misses a file finds here why: a reader whose position lies
below it is told, and never handed what follows as if nothing were missing.
"""

from __future__ import annotations

import json
import os
import time
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

from cdc.durable import replace_file
from cdc.errors import CutOffError, DamagedError, StorageError
from cdc.positions import format_seq, split_seq
from cdc.store.formats import layout

FILE_NAME = "removed.json"

_REMEDY = (
    "Restore it from a copy; or remove it: what retention had begun to remove may then be seen again, and a reader "
    "that was cut off is no longer told so."
)
_TICK_NS = 100_000_000
_MOST_FOLDERS = 256
_NAME_LENGTH = len("000-0000000-00000000000.binlog")


@dataclass(frozen=True)
class Removed:
    """What is gone from a store's beginning."""

    seq: int = 0
    """Every transaction up to here is gone, or about to go; 0: none."""
    commit_time_us: int = 0
    """Of that transaction, µs since 1970."""
    removing: tuple[str, ...] = ()
    """Segments that were about to go when this was written: nobody looks at them any more, whatever is left."""


def read_removed(store: Path) -> Removed:
    """Raises DamagedError, VersionError, StorageError."""
    path = store / FILE_NAME
    try:
        found = layout.read_json(path)
    except DamagedError as error:
        raise DamagedError(error.message, place=error.place, remedy=_REMEDY) from None
    if found is None:
        return Removed()
    layout.require_version(found, path)
    try:
        seq, time_us, names = found["seq"], found["commit_time_us"], found["removing"]
    except (KeyError, TypeError):
        raise DamagedError("is not a store's low-water mark", place=str(path), remedy=_REMEDY) from None
    whole = isinstance(seq, int) and isinstance(time_us, int) and isinstance(names, list)
    if not whole or not all(isinstance(name, str) and os.sep not in name for name in names):
        raise DamagedError("is not a store's low-water mark", place=str(path), remedy=_REMEDY)
    return Removed(seq, time_us, tuple(names))


def write_removed(store: Path, removed: Removed) -> None:
    """Durably. The caller holds the retention's lock."""
    document = {"version": 1, "seq": removed.seq, "commit_time_us": removed.commit_time_us}
    document["removing"] = list(removed.removing)  # type: ignore[assignment]
    replace_file(store / FILE_NAME, json.dumps(document).encode() + b"\n")


def kept_names(store: Path) -> list[str]:
    """The names of all segments but those that are being removed, oldest first. Raises StorageError."""
    names = _names(layout.segments_folder(store))
    removing = read_removed(store).removing
    return [name for name in names if name not in removing]


_listed: dict[Path, tuple[int, list[str]]] = {}
"""The last listing of a folder, by the time of its last change: reading hundreds of names takes longer than to find a
batch."""


def _names(folder: Path) -> list[str]:
    try:
        changed_ns = folder.stat().st_mtime_ns
        known = _listed.get(folder)
        if known is not None and known[0] == changed_ns:
            return known[1]
        began_ns = time.time_ns()
        found = os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(
            f"cannot be read: {error.strerror}", place=str(folder), remedy="Check store.path and its rights."
        ) from None
    # Names of one width, which sort as their seqs do.
    names = sorted([name for name in found if len(name) == _NAME_LENGTH and name[-7:] == ".binlog"])
    if began_ns - changed_ns > _TICK_NS:
        if len(_listed) >= _MOST_FOLDERS:
            _listed.clear()
        _listed[folder] = (changed_ns, names)
    else:
        _listed.pop(folder, None)  # another change may still come at what the clock of files takes for the same time
    return names


def holding(names: list[str], after_seq: int) -> int:
    """The place among names of the first segment that may hold something behind a seq. O(log n)."""
    return max(0, bisect_right(names, layout.segment_name(*split_seq(after_seq))) - 1)


def require_kept(store: Path, after_seq: int) -> None:
    """Is everything behind a seq still there? To be asked *after* reading, too: files may have gone meanwhile.

    Raises CutOffError, which names the gap and the remedy.
    """
    removed = read_removed(store)
    if after_seq >= removed.seq:
        return
    names = kept_names(store)
    if names and (layout.segment_start(Path(names[0])) or 0) <= after_seq:
        return  # capture has read it from the source once more
    raise CutOffError(
        f"the transactions behind {after_seq} ({format_seq(after_seq)}) up to {removed.seq} ({format_seq(removed.seq)})"
        " were removed by retention before this reader had acked them",
        place=str(store),
        remedy="Rebuild what this subscriber fills; then let it begin anew at the store's first transaction, with "
        "`cdc batch unsubscribe` and `cdc batch subscribe`.",
    )
