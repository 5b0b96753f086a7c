"""What a store shows of itself to the other side: visible entries, digests of them, and its small files."""

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

from cdc import files
from cdc.binlog.entry import Entries
from cdc.durable import storage_errors
from cdc.errors import StorageError
from cdc.store.formats import layout
from cdc.store.formats.index import IndexFile
from cdc.store.formats.missing import DAMAGED_FILE as DAMAGED
from cdc.store.formats.missing import REMOVED_FILE as REMOVED
from cdc.store.formats.missing import kept_names
from cdc.store.formats.segment_header import segment_header_size

SMALL_FILES = ("store.json", "tables.json", REMOVED, DAMAGED)
LASTING = ("store.json", "tables.json")
"""A store never loses these on purpose."""
_SCHEMA = re.compile(r"schemas/\d{1,19}\.json")
Sort = Literal["index", "log"]


def is_small_file(name: str) -> bool:
    """Is this the path, in a store, of a file that is copied whole?"""
    return name in SMALL_FILES or _SCHEMA.fullmatch(name) is not None


def small_files(store: Path) -> dict[str, tuple[int, int, int]]:
    """Path in the store → what changes with the content: inode, size, time. A file is replaced whole, never changed."""
    found: dict[str, tuple[int, int, int]] = {}
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
            found[name] = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
    return found


def require_there(store: Path, found: Container[str]) -> None:
    """Raises StorageError where the store has gone from under a running master: unmounted, or deleted."""
    if "store.json" not in found:
        raise StorageError(
            "the master's store is not there any more",
            place=str(store),
            remedy="Mount its disk and start capture again; if it is lost, take over (docs/operating/standby.md).",
        )


def read_small(store: Path, name: str) -> bytes | None:
    """The content; None where it has just gone."""
    with storage_errors(store / name):
        try:
            return files.layer.read_file(store / name)
        except FileNotFoundError:
            return None


def segment_names(store: Path) -> list[str]:
    """Segments up to the newest with a visible entry, oldest first. What stands behind it may still be begun anew."""
    names = kept_names(store)
    folder = layout.segments_folder(store)
    while names and not len(IndexFile(folder / names[-1]).entries):
        names.pop()
    return names


class View:
    """The visible entries of a segment at one moment."""

    def __init__(self, store: Path, name: str) -> None:
        """Raises DamagedError, VersionError, StorageError; a segment that is not there has no entries."""
        self.path = layout.segments_folder(store) / name
        self.entries: Entries = IndexFile(self.path).entries
        self._numbers: npt.NDArray[np.intp] | None = None

    @property
    def with_bytes(self) -> npt.NDArray[np.intp]:
        """The numbers of the entries that have bytes: of each transaction in the log."""
        if self._numbers is None:
            self._numbers = np.flatnonzero(self.entries["length"])
        return self._numbers

    def count(self, of: Sort) -> int:
        return len(self.entries) if of == "index" else len(self.with_bytes)

    def digest(self, of: Sort, start: int, stop: int) -> str:
        """Of some entries, 32 hexadecimal digits; empty where there are fewer."""
        if not 0 <= start <= stop <= self.count(of):
            return ""
        digest = hashlib.blake2b(digest_size=16)
        if of == "index":
            digest.update(np.ascontiguousarray(self.entries[start:stop]).view(np.uint8).data)
        else:
            chosen = self.entries[self.with_bytes[start:stop]]
            for key in ("seq", "offset", "length", "checksum"):
                digest.update(np.ascontiguousarray(chosen[key]).data)
        return digest.hexdigest()

    def entries_until(self, of: Sort, stop: int) -> int:
        """So many entries of all sorts up to the last of the first ``stop`` of this sort; 0 where there are fewer."""
        if not 0 < stop <= self.count(of):
            return 0
        return stop if of == "index" else int(self.with_bytes[stop - 1]) + 1

    def end(self, transactions: int | None = None) -> int:
        """Where so many transactions (None: all) end in the segment; behind its head where there is none."""
        numbers = self.with_bytes if transactions is None else self.with_bytes[:transactions]
        if len(numbers):
            last = self.entries[int(numbers[-1])]
            return int(last["offset"]) + int(last["length"])
        return self.head_size()

    def head_size(self) -> int:
        """Bytes before the first transaction; 0 where the segment has none of them yet. Raises StorageError."""
        with storage_errors(self.path):
            try:
                return min(segment_header_size(self.path), self.path.stat().st_size)
            except FileNotFoundError:
                return 0

    def head_crc(self) -> int:
        """CRC32 of those bytes."""
        size = self.head_size()
        if not size:
            return 0
        with storage_errors(self.path), self.path.open("rb") as file:
            return zlib.crc32(file.read(size))
