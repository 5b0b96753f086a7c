"""What finished segments hold, counted once (``counts.json``): so that questions about a whole store look at few of its
index entries. Made by whoever runs retention; worth nothing when lost, since all of it is counted again."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from cdc.binlog.entry import ENTRY_SIZE, HEADER_SIZE, Entries
from cdc.durable import replace_file
from cdc.errors import DamagedError
from cdc.store.formats import layout
from cdc.store.formats.index import IndexFile
from cdc.store.formats.removed import kept_names

FILE_NAME = "counts.json"
_AT_ONCE = 1 << 18


@dataclass(frozen=True)
class SegmentCounts:
    """Of all entries of a segment."""

    entries: int = 0
    transactions: int = 0
    bytes: int = 0
    """Of its transactions."""
    newest_commit_us: int = 0
    """The latest commit time, µs since 1970."""


def count(entries: Entries) -> SegmentCounts:
    """Look at all of them, some at a time."""
    transactions = size = newest = 0
    for start in range(0, len(entries), _AT_ONCE):
        part = entries[start : start + _AT_ONCE]
        lengths = part["length"]
        transactions += int(np.count_nonzero(lengths))
        size += int(lengths.sum())
        newest = max(newest, int(part["commit_time_us"].max()))
    return SegmentCounts(len(entries), transactions, size, newest)


class Counts:
    """The counts of a store's segments: from the file where it has them, else counted."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self.known = _read(store / FILE_NAME)

    def counted(self, name: str) -> SegmentCounts | None:
        """What the file says of a segment; None where it says nothing, or the index has grown since."""
        known = self.known.get(name)
        if known is None:
            return None
        try:
            size = layout.index_path(layout.segments_folder(self._store) / name).stat().st_size
        except FileNotFoundError:
            return None
        return known if (size - HEADER_SIZE) // ENTRY_SIZE == known.entries else None

    def of(self, name: str) -> SegmentCounts:
        """Of a segment as it is at this moment. Raises what opening an index raises."""
        known = self.counted(name)
        return count(IndexFile(layout.segments_folder(self._store) / name).entries) if known is None else known


def update_counts(store: Path) -> None:
    """Count the segments that were finished since the last time. The caller holds the retention's lock. The file need
    not survive a power cut."""
    counts = Counts(store)
    finished = kept_names(store)[:-1]
    made: dict[str, SegmentCounts] = {}
    for name in finished:
        known = counts.counted(name)
        if known is None:
            index = IndexFile(layout.segments_folder(store) / name)
            known = count(index.entries) if index.is_whole() else None
        if known is not None:
            made[name] = known
    if made != counts.known:
        document = {"version": 1, "segments": {name: asdict(found) for name, found in made.items()}}
        replace_file(store / FILE_NAME, json.dumps(document).encode() + b"\n", durable=False)


def _read(path: Path) -> dict[str, SegmentCounts]:
    """None known where the file is missing or damaged: it is made anew. Raises VersionError."""
    try:
        found = layout.read_json(path)
        layout.require_version(found, path)
        return {} if found is None else {name: SegmentCounts(**one) for name, one in found["segments"].items()}
    except (DamagedError, KeyError, TypeError, AttributeError):
        return {}
