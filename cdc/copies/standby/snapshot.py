"""The parts of a store that two sides compare: visible entries of a segment, their digests, and small files."""

from __future__ import annotations

import hashlib
import os
import re
import zlib
from collections.abc import Container
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from cdc.base.errors import StorageError
from cdc.binlog.entry import Entries
from cdc.disk import files
from cdc.disk.durable import storage_errors
from cdc.disk.encryption.read import content_size, open_content
from cdc.store.formats import layout
from cdc.store.formats.index import IndexFile
from cdc.store.formats.missing import DAMAGED_FILE as DAMAGED
from cdc.store.formats.missing import REMOVED_FILE as REMOVED
from cdc.store.formats.missing import kept_names
from cdc.store.formats.segment_header import segment_header_size

SMALL_FILES = ("store.json", "tables.json", REMOVED, DAMAGED)
PERMANENT_FILES = ("store.json", "tables.json")
"""Small files that a store never removes on purpose."""
_SCHEMA = re.compile(r"schemas/\d{1,19}\.json")
EntryKind = Literal["index", "log"]
"""``index``: all entries of the index. ``log``: only those of transactions, which have bytes in the segment."""


def is_small_file(name: str) -> bool:
    """Whether this is the path, relative to the store, of a file that is copied whole."""
    return name in SMALL_FILES or _SCHEMA.fullmatch(name) is not None


def small_files(store: Path) -> dict[str, tuple[int, int, int]]:
    """Returns for each small file (its path in the store) inode, size and time of change.

    They change with the content, because a file is replaced whole and never changed in place.
    """
    small_files: dict[str, tuple[int, int, int]] = {}
    with storage_errors(store):
        paths = [store / name for name in SMALL_FILES]
        folder = layout.schemas_folder(store)
        if folder.is_dir():
            paths += [Path(entry.path) for entry in os.scandir(folder)]
        for path in paths:
            name = str(path.relative_to(store))
            if not is_small_file(name):
                continue
            try:
                stat = path.stat()
            except FileNotFoundError:
                continue
            small_files[name] = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
    return small_files


def require_store_present(store: Path, names: Container[str]) -> None:
    """Raises StorageError if the store of a running master has disappeared: unmounted, or deleted."""
    if "store.json" not in names:
        raise StorageError(
            "the master's store has disappeared",
            place=str(store),
            remedy="Mount its disk and start capture again. If it is lost, take over (docs/how-to/standby.md).",
        )


def read_small(store: Path, name: str) -> bytes | None:
    """Returns the content of a small file; None if it was just removed."""
    with storage_errors(store / name):
        try:
            return files.layer.read_file(store / name)
        except FileNotFoundError:
            return None


def segment_names(store: Path) -> list[str]:
    """Returns the segments up to the newest one with a visible entry, oldest first.

    A segment behind it may still be started again from its head.
    """
    names = kept_names(store)
    folder = layout.segments_folder(store)
    while names and not len(IndexFile(folder / names[-1]).entries):
        names.pop()
    return names


class SegmentSnapshot:
    """The visible entries of a segment at one moment, and their digests."""

    def __init__(self, store: Path, name: str) -> None:
        """Reads the index; a missing segment has no entries. Raises DamagedError, VersionError, StorageError."""
        self.path = layout.segments_folder(store) / name
        self.entries: Entries = IndexFile(self.path).entries
        self._numbers: npt.NDArray[np.intp] | None = None

    @property
    def with_bytes(self) -> npt.NDArray[np.intp]:
        """The numbers of the entries that have bytes, one for each transaction in the log."""
        if self._numbers is None:
            self._numbers = np.flatnonzero(self.entries["length"])
        return self._numbers

    def count(self, kind: EntryKind) -> int:
        """Returns the number of entries of this kind."""
        return len(self.entries) if kind == "index" else len(self.with_bytes)

    def digest(self, kind: EntryKind, start: int, stop: int) -> str:
        """Returns a digest of entries ``start`` to ``stop``, 32 hexadecimal digits; empty if there are fewer."""
        if not 0 <= start <= stop <= self.count(kind):
            return ""
        digest = hashlib.blake2b(digest_size=16)
        if kind == "index":
            digest.update(np.ascontiguousarray(self.entries[start:stop]).view(np.uint8).data)
        else:
            chosen = self.entries[self.with_bytes[start:stop]]
            for key in ("seq", "offset", "length", "checksum"):
                digest.update(np.ascontiguousarray(chosen[key]).data)
        return digest.hexdigest()

    def entries_until(self, kind: EntryKind, stop: int) -> int:
        """Returns how many entries of all kinds reach up to entry ``stop`` of this kind; 0 if there are fewer."""
        if not 0 < stop <= self.count(kind):
            return 0
        return stop if kind == "index" else int(self.with_bytes[stop - 1]) + 1

    def end(self, transactions: int | None = None) -> int:
        """Returns the offset where the first ``transactions`` (None: all) end; the end of the head if there is none."""
        numbers = self.with_bytes if transactions is None else self.with_bytes[:transactions]
        if len(numbers):
            last = self.entries[int(numbers[-1])]
            return int(last["offset"]) + int(last["length"])
        return self.head_size()

    def head_size(self) -> int:
        """Returns the size of the head, the bytes before the first transaction; 0: missing. Raises StorageError."""
        with storage_errors(self.path):
            try:
                return min(segment_header_size(self.path), content_size(self.path))
            except FileNotFoundError:
                return 0

    def head_crc(self) -> int:
        """Returns the CRC32 of the head; 0 if it is missing."""
        size = self.head_size()
        if not size:
            return 0
        with storage_errors(self.path), open_content(self.path) as file:
            return zlib.crc32(file.read(size))
