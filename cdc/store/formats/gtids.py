"""The GTIDs that a store has read: ``gtids.json``, and the index entries after it (``docs/formats/store.md``).

After a failover capture goes on with another server, where files and positions are different ones. Only the set of all
GTIDs before the store's end tells which transactions of that server are missing here: those of tables that are not
captured, and those from before the store began, belong to it too. The index has the GTIDs of what was read, but not
from before the beginning, and retention removes it. So capture writes the whole set from time to time, with the seq up
to which it goes; the entries after that seq complete it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cdc.base.errors import DamagedError
from cdc.binlog.entry import Entries, EntryFlag
from cdc.binlog.gtids import Flavor, GtidSet, Interval, format_state, parse_state
from cdc.disk.durable import replace_file
from cdc.store.formats import layout
from cdc.store.formats.index import IndexFile
from cdc.store.formats.missing import first_after, read_removed

GTIDS_FILE = "gtids.json"
_KEPT = 16
"""Older checkpoints are for a store whose end was cut off."""
_REMEDY = "Remove it: capture asks the server again, as long as it is the same server."


@dataclass(frozen=True)
class GtidCheckpoint:
    """All GTIDs of the source up to a seq."""

    seq: int
    gtids: GtidSet


def read_checkpoints(store: Path, flavor: Flavor) -> list[GtidCheckpoint]:
    """Returns the checkpoints, oldest first; none without the file. Raises DamagedError, VersionError, StorageError."""
    path = store / GTIDS_FILE
    document = layout.read_document(path, _REMEDY)
    if document is None:
        return []
    try:
        if document["flavor"] != flavor:
            raise DamagedError(f"is of a source of the kind {document['flavor']}", place=str(path), remedy=_REMEDY)
        return [
            GtidCheckpoint(int(item["seq"]), parse_state(item["gtids"], flavor)) for item in document["checkpoints"]
        ]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DamagedError("is not a list of GTID sets", place=str(path), remedy=_REMEDY) from None


def write_checkpoint(store: Path, flavor: Flavor, checkpoint: GtidCheckpoint, *, is_complete: bool = False) -> None:
    """Adds a checkpoint durably. Those at or after its seq are replaced by it. ``is_complete``: the source has told the
    GTIDs, so that none is missing any more."""
    kept = [earlier for earlier in read_checkpoints(store, flavor) if earlier.seq < checkpoint.seq]
    _write(store, flavor, [*kept, checkpoint], lacks_some=not is_complete and lacks_some(store))


def lacks_some(store: Path) -> bool:
    """Whether GTIDs of transactions without captured changes may be missing (:func:`record_missing`)."""
    document = layout.read_document(store / GTIDS_FILE, _REMEDY)
    return isinstance(document, dict) and bool(document.get("lacks_some"))


def record_missing(store: Path) -> None:
    """Records, durably, that index entries of positions are lost: a kill came between a transaction in the segment and
    the entries before it. The GTIDs of transactions without captured changes are in no other place of the store; those
    that are known stay, and capture asks the source for all at its next start."""
    path = store / GTIDS_FILE
    document = layout.read_document(path, _REMEDY)
    if isinstance(document, dict) and not document.get("lacks_some"):
        replace_file(path, json.dumps({**document, "lacks_some": True}, indent=1).encode() + b"\n")


def record_newest(store: Path, flavor: Flavor) -> None:
    """Adds a checkpoint of what is visible, unless the last one goes as far or the GTIDs are not known. For the store's
    writer. Raises DamagedError, VersionError, StorageError."""
    checkpoints = read_checkpoints(store, flavor)
    newest = _newest(store, checkpoints, flavor)
    if newest is not None and newest.seq > checkpoints[-1].seq:
        _write(store, flavor, [*checkpoints, newest], lacks_some=lacks_some(store))


def _write(store: Path, flavor: Flavor, checkpoints: list[GtidCheckpoint], *, lacks_some: bool) -> None:
    document: dict[str, Any] = {
        "version": 1,
        "flavor": flavor,
        "checkpoints": [
            {"seq": checkpoint.seq, "gtids": format_state(checkpoint.gtids, flavor)}
            for checkpoint in checkpoints[-_KEPT:]
        ],
    }
    if lacks_some:
        document["lacks_some"] = True
    replace_file(store / GTIDS_FILE, json.dumps(document, indent=1).encode() + b"\n")


def gtids_until(store: Path, flavor: Flavor, last_seq: int, earlier: GtidCheckpoint | None = None) -> GtidSet | None:
    """Returns the GTIDs of all transactions up to ``last_seq``. None if they are not known: there is no checkpoint, or
    entries after it were removed or lost.

    ``earlier``: the GTIDs up to an earlier seq, for the case that all checkpoints are later ones or much older. GTIDs
    of transactions without captured changes may be absent after a kill of capture. Raises DamagedError, VersionError,
    StorageError.
    """
    checkpoints = [*([] if earlier is None else [earlier]), *read_checkpoints(store, flavor)]
    usable = [checkpoint for checkpoint in checkpoints if checkpoint.seq <= last_seq]
    newest = _newest(store, sorted(usable, key=lambda checkpoint: checkpoint.seq), flavor, last_seq)
    return None if newest is None else newest.gtids


def _newest(
    store: Path, checkpoints: list[GtidCheckpoint], flavor: Flavor, last_seq: int | None = None
) -> GtidCheckpoint | None:
    if not checkpoints or read_removed(store).seq > checkpoints[-1].seq:
        return None
    seq, gtids = checkpoints[-1].seq, checkpoints[-1].gtids
    for entries in entries_after(store, seq, last_seq):
        if np.any(entries["flags"] & np.uint32(EntryFlag.LOST)):
            return None
        gtids |= gtids_of(entries, flavor)
        seq = int(entries["seq"][-1])
    return GtidCheckpoint(seq, gtids)


def entries_after(store: Path, seq: int, last_seq: int | None = None) -> Iterator[Entries]:
    """Yields the verified entries after a seq, up to ``last_seq``, in order."""
    segments = layout.list_segments(store)
    for segment in segments[first_after([segment.name for segment in segments], seq) :]:
        index = IndexFile(segment)
        stop = len(index.entries) if last_seq is None else index.after(last_seq)
        yield from index.verified_parts(index.after(seq), stop)
        if stop < len(index.entries):
            return


def gtids_of(entries: Entries, flavor: Flavor) -> GtidSet:
    """Returns the GTIDs of entries. For MariaDB, the state after them."""
    numbers = numbers_of(entries, flavor)
    if flavor == "mysql":
        return numbers
    return GtidSet({name: [(1, intervals[-1][1])] for name, intervals in numbers.sources()})


def numbers_of(entries: Entries, flavor: Flavor) -> GtidSet:
    """Returns the numbers that entries have. MariaDB's sources are named ``DOMAIN-SERVER``."""
    places = np.flatnonzero(entries["gtid_count"])
    last, count = (entries[name][places].astype(np.int64) for name in ("gtid_number", "gtid_count"))
    sources, tags = (np.ascontiguousarray(entries[name])[places] for name in ("gtid_source", "gtid_tag"))
    intervals: dict[str, list[Interval]] = {}
    left = np.arange(len(places))
    while len(left):
        # Nearly all entries have the same source. Each other one costs another look.
        same = (sources[left] == sources[left[0]]) & (tags[left] == tags[left[0]])
        mine = left[same]
        intervals[_source_name(entries[places[mine[0]]], flavor)] = _intervals(last[mine] - count[mine] + 1, last[mine])
        left = left[~same]
    return GtidSet(intervals)


def _source_name(entry: np.void, flavor: Flavor) -> str:
    source = bytes(entry["gtid_source"])
    if flavor == "mariadb":
        return f"{int.from_bytes(source[:4], 'little')}-{int.from_bytes(source[4:8], 'little')}"
    tag = bytes(entry["gtid_tag"]).decode("ascii")
    return f"{uuid.UUID(bytes=source)}{':' + tag if tag else ''}"


def _intervals(first: npt.NDArray[np.int64], last: npt.NDArray[np.int64]) -> list[Interval]:
    """Merges intervals that touch or overlap."""
    order = np.argsort(first, kind="stable")
    first, last = first[order], np.maximum.accumulate(last[order])
    begins = np.concatenate([[True], first[1:] > last[:-1] + 1])
    ends = np.concatenate([begins[1:], [True]])
    return [(int(low), int(high)) for low, high in zip(first[begins], last[ends], strict=True)]


def entries_with(entries: Entries, gtids: GtidSet, flavor: Flavor) -> Entries:
    """Returns the entries that have at least one of the GTIDs. Of a set whose sources have many intervals, some more
    may be returned."""
    matches = np.zeros(len(entries), dtype=bool)
    last = entries["gtid_number"].astype(np.int64)
    first = last - entries["gtid_count"].astype(np.int64) + 1
    for name, intervals in gtids.sources():
        source, _, tag = name.partition(":")
        if flavor == "mariadb":
            domain, _, server = source.partition("-")
            raw = int(domain).to_bytes(4, "little") + int(server).to_bytes(4, "little") + bytes(8)
        else:
            raw = uuid.UUID(source).bytes
        of_source = (entries["gtid_source"] == np.void(raw)) & (entries["gtid_tag"] == tag.encode())
        low, high = intervals[0][0], intervals[-1][1]
        matches |= of_source & (entries["gtid_count"] > 0) & (last >= low) & (first <= high)
    return entries[matches]
