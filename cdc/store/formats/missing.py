"""Transactions that a store no longer holds: ``removed.json`` and ``damaged.json`` (``docs/formats/store.md``).

``removed.json`` is the low-water mark: the seq up to which retention has removed transactions. It is durable before
the first file goes, so a reader whose position lies below it gets an error instead of the transactions that follow.

``damaged.json`` names the transactions that damage destroyed and whose loss an operator has accepted. Only
:mod:`cdc.store.recovery.salvage` adds to it, before it changes anything else.
"""

from __future__ import annotations

import json
import os
import time
from bisect import bisect_right
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from cdc.base.errors import CutOffError, DamagedError, StorageError
from cdc.binlog.positions import format_seq, split_seq
from cdc.disk import files
from cdc.disk.durable import locked, replace_file, storage_errors, sync_folder
from cdc.store.formats import layout

REMOVED_FILE = "removed.json"
DAMAGED_FILE = "damaged.json"
LOCK_NAME = "retention.lock"

_LOCK_WAIT_S = 60.0
_REMOVED_REMEDY = (
    "Restore it from a copy; or remove it: segments whose removal had begun may then reappear, and a reader that was "
    "cut off is no longer told so."
)
_DAMAGED_REMEDY = "Restore it from a copy: it names the transactions that are missing from this store."
_TICK_NS = 100_000_000
_MOST_FOLDERS = 256
_NAME_LENGTH = len("000-0000000-00000000000.binlog")


# --- removed by retention


@dataclass(frozen=True)
class Removed:
    """The low-water mark of a store."""

    seq: int = 0
    """Every transaction up to this seq is removed or about to be; 0: none."""
    commit_time_us: int = 0
    """Commit time of that transaction, µs since 1970."""
    removing: tuple[str, ...] = ()
    """Segments whose removal has begun. Readers ignore them, whether or not their files still exist."""


def read_removed(store: Path) -> Removed:
    """Returns the low-water mark. Raises DamagedError, VersionError, StorageError."""
    path = store / REMOVED_FILE
    document = layout.read_document(path, _REMOVED_REMEDY)
    if document is None:
        return Removed()
    try:
        seq, time_us, names = document["seq"], document["commit_time_us"], document["removing"]
    except (KeyError, TypeError):
        raise DamagedError("is not a store's low-water mark", place=str(path), remedy=_REMOVED_REMEDY) from None
    whole = isinstance(seq, int) and isinstance(time_us, int) and isinstance(names, list)
    if not whole or not all(isinstance(name, str) and os.sep not in name for name in names):
        raise DamagedError("is not a store's low-water mark", place=str(path), remedy=_REMOVED_REMEDY)
    return Removed(seq, time_us, tuple(names))


def write_removed(store: Path, removed: Removed) -> None:
    """Writes the low-water mark durably. The caller holds :func:`removal_lock`."""
    document = {"version": 1, "seq": removed.seq, "commit_time_us": removed.commit_time_us}
    document["removing"] = list(removed.removing)  # type: ignore[assignment]
    replace_file(store / REMOVED_FILE, json.dumps(document).encode() + b"\n")


def removal_lock(store: Path) -> AbstractContextManager[None]:
    """Returns a context in which no other process removes segments. Raises LeaseHeldError after a minute of waiting,
    StorageError."""
    return locked(store / LOCK_NAME, "another retention", wait_s=_LOCK_WAIT_S)


def finish_removal(store: Path) -> None:
    """Removes the segments that the mark names, and the schemas that no transaction needs any more. Each step may be
    repeated after a kill. The caller holds :func:`removal_lock`. Raises StorageError, DamagedError."""
    removed = read_removed(store)
    folder = layout.segments_folder(store)
    if removed.removing:
        with storage_errors(folder):
            # The segment first: an index without its segment is ignored, a segment without its index looks damaged.
            for name in removed.removing:
                unlink(folder / name)
            sync_folder(folder)
            for path in sorted(folder.iterdir()):
                if any(path.name.startswith(f"{name}.") for name in removed.removing):
                    unlink(path)  # the index, and the copies that recovery kept
            sync_folder(folder)
        write_removed(store, replace(removed, removing=()))
    _remove_schemas(store, removed.seq)


def _remove_schemas(store: Path, removed_seq: int) -> None:
    """Removes the schemas of removed transactions, but for the newest of them, which the next transactions use."""
    folder = layout.schemas_folder(store)
    with storage_errors(folder):
        old = [path for seq, path in layout.schema_files(folder) if seq <= removed_seq][:-1]
        for path in old:
            unlink(path)
        if old:
            sync_folder(folder)


def unlink(path: Path) -> None:
    """Removes a file that may be gone already. Raises OSError."""
    with suppress(FileNotFoundError):
        files.layer.unlink(path)


# --- the segments that are left


def kept_names(store: Path) -> list[str]:
    """Returns the names of all segments that are not being removed, oldest first. Raises StorageError."""
    names = _names(layout.segments_folder(store))
    removing = read_removed(store).removing
    return [name for name in names if name not in removing]


_listed: dict[Path, tuple[int, list[str]]] = {}
"""The last listing of each folder, with the folder's modification time: listing hundreds of names takes longer than
finding a batch."""


def _names(folder: Path) -> list[str]:
    try:
        changed_ns = folder.stat().st_mtime_ns
        cached = _listed.get(folder)
        if cached is not None and cached[0] == changed_ns:
            return cached[1]
        began_ns = time.time_ns()
        listed = os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(
            f"cannot be read: {error.strerror}", place=str(folder), remedy="Check store.path and its rights."
        ) from None
    # Names of one width, which sort as their seqs do.
    names = sorted([name for name in listed if len(name) == _NAME_LENGTH and name[-7:] == ".binlog"])
    if began_ns - changed_ns > _TICK_NS:
        if len(_listed) >= _MOST_FOLDERS:
            _listed.clear()
        _listed[folder] = (changed_ns, names)
    else:
        _listed.pop(folder, None)  # a later change may get the same modification time, whose clock is coarse
    return names


def first_after(names: list[str], after_seq: int) -> int:
    """Returns the index in ``names`` of the first segment that may hold transactions after a seq. O(log n)."""
    return max(0, bisect_right(names, layout.segment_name(*split_seq(after_seq))) - 1)


def require_kept(store: Path, after_seq: int) -> None:
    """Raises CutOffError, which names the gap and the remedy, if retention has removed transactions after a seq.

    Call it again *after* reading: files may have been removed meanwhile.
    """
    removed = read_removed(store)
    if after_seq >= removed.seq:
        return
    names = kept_names(store)
    if names and (layout.segment_start(Path(names[0])) or 0) <= after_seq:
        return  # capture has read the removed transactions from the source again
    raise CutOffError(
        f"the transactions after {after_seq} ({format_seq(after_seq)}) up to {removed.seq} ({format_seq(removed.seq)})"
        " were removed by retention before this reader had acked them",
        place=str(store),
        remedy="Rebuild what this subscriber fills; then let it begin anew at the store's first transaction, with "
        "`cdc batch unsubscribe` and `cdc batch subscribe`.",
    )


# --- lost to damage


@dataclass(frozen=True)
class LostRange:
    """A byte range of a segment whose transactions are lost: an operator has accepted that they cannot be read."""

    segment: str
    """The file's name."""
    offset: int
    length: int
    first_seq: int
    """Seq of the first transaction in the range. If no index entry names it, a number after the transaction before."""
    last_seq: int
    transactions: int | None
    """None if their number is not known."""
    tables: tuple[str, ...]
    how: Literal["passed over", "cut off"]
    """``passed over``: readers skip the range. ``cut off``: it was the end of the store; capture reads it from the
    source again if the source still has it."""
    why: str
    accepted: str
    """When the loss was accepted, ISO 8601, UTC."""


def read_damaged(store: Path) -> tuple[LostRange, ...]:
    """Returns the lost ranges, in the order in which they were accepted. Raises DamagedError, VersionError,
    StorageError."""
    path = store / DAMAGED_FILE
    document = layout.read_document(path, _DAMAGED_REMEDY)
    if document is None:
        return ()
    try:
        return tuple(LostRange(**{**fields, "tables": tuple(fields["tables"])}) for fields in document["ranges"])
    except (KeyError, TypeError, AttributeError):
        raise DamagedError("is not a list of lost ranges", place=str(path), remedy=_DAMAGED_REMEDY) from None


def write_damaged(store: Path, ranges: tuple[LostRange, ...]) -> None:
    """Writes the lost ranges durably. The caller holds the store's lock."""
    document = {"version": 1, "ranges": [asdict(byte_range) for byte_range in ranges]}
    replace_file(store / DAMAGED_FILE, json.dumps(document, indent=1).encode() + b"\n")


def skipped_ranges(store: Path, segment: str) -> tuple[LostRange, ...]:
    """Returns the lost ranges of a segment that readers skip."""
    return tuple(
        lost_range
        for lost_range in read_damaged(store)
        if lost_range.segment == segment and lost_range.how == "passed over"
    )
