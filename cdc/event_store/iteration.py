"""Walking through a store's transactions, forwards, and reading them whole: what a store's ``get`` is made of."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cdc.binlog.constants import MAGIC
from cdc.binlog.entry import Entries, EntryFlag
from cdc.binlog.events import parse_header, parse_rotate
from cdc.durable import storage_errors
from cdc.errors import DamagedError
from cdc.store.formats import layout
from cdc.store.formats.index import IndexFile
from cdc.store.formats.removed import holding, kept_names
from cdc.store.formats.state import TableNumbers
from cdc.store.reader.filters import TableFilter
from cdc.store.transaction import SourceFile, Transaction

_FIRST_SLICE, _SLICE = 256, 65536
_READ_BYTES = 16 << 20


class Piece(NamedTuple):
    """Transactions of one segment, one entry each, shape (n,)."""

    segment: Path
    entries: Entries


class Walker:
    """The transactions of a store that a filter lets through. Not thread-safe."""

    def __init__(self, store: Path, table_filter: TableFilter | None = None) -> None:
        self._store = store
        self._folder = layout.segments_folder(store)
        self._filter = table_filter
        self._tables = TableNumbers(store)

    def after(self, seq: int, until_seq: int) -> Iterator[Piece]:
        """Transactions behind ``seq`` up to ``until_seq``, in order, verified; a few at first, then many at once.
        Raises DamagedError, StorageError."""
        names = kept_names(self._store)
        size = _FIRST_SLICE
        for name in names[holding(names, seq) :]:
            index = IndexFile(self._folder / name)
            start = index.after(seq)
            stop = int(np.searchsorted(index.entries["seq"], np.uint64(until_seq), side="right"))
            while start < stop:
                entries = self._wanted(index.verified(start, min(start + size, stop)))
                start, size = start + size, min(2 * size, _SLICE)
                if len(entries):
                    yield Piece(index.segment, entries)
            if stop < len(index.entries):
                return

    def last(self, until_seq: int) -> Piece | None:
        """The newest transaction up to ``until_seq``. Raises DamagedError, StorageError."""
        names = kept_names(self._store)
        for name in reversed(names[: holding(names, until_seq) + 1]):
            index = IndexFile(self._folder / name)
            stop = int(np.searchsorted(index.entries["seq"], np.uint64(until_seq), side="right"))
            size = 1
            while stop:
                start = max(0, stop - size)
                entries = self._wanted(index.verified(start, stop))
                if len(entries):
                    return Piece(index.segment, entries[-1:])
                stop, size = start, min(4 * size, _SLICE)
        return None

    def _wanted(self, entries: Entries) -> Entries:
        if self._filter is None:
            return entries[entries["length"] > 0]
        mask = int(np.bitwise_or.reduce(entries["table_mask"]))
        if mask.bit_length() > len(self._tables.names):
            self._tables.reload()
        return entries[self._filter.wanted(entries, self._tables.names)]

    def transactions(self, piece: Piece, *, data: bool = True) -> list[Transaction]:
        """Read them; without ``data`` only what the index says of them. Raises StorageError, DamagedError where the
        segment is shorter than its index."""
        source = source_of(piece.segment)
        found = []
        for part in _runs(piece.entries):
            offset = int(part["offset"][0])
            end = int(part["offset"][-1]) + int(part["length"][-1])
            raw = _read(piece.segment, offset, end - offset) if data else b""
            for n in range(len(part)):
                entry = part[n : n + 1]
                at = int(entry["offset"][0]) - offset
                tables = self._names(int(entry["table_mask"][0]))
                found.append(Transaction(entry, raw[at : at + int(entry["length"][0])], source, tables))
        return found

    @lru_cache(maxsize=1024)  # noqa: B019  # as many walkers as stores
    def _names(self, mask: int) -> tuple[str, ...]:
        return self._tables.in_mask(mask)


def weights(entries: Entries) -> np.ndarray:
    """What transactions count in a batch: their events, at least one."""
    return np.maximum(entries["events"].astype(np.int64), 1)


def first_ddl(entries: Entries) -> int | None:
    """The number of the first DDL."""
    ddl = np.flatnonzero((entries["flags"] & int(EntryFlag.DDL)) != 0)
    return int(ddl[0]) if len(ddl) else None


def _runs(entries: Entries) -> Iterator[Entries]:
    """Parts that lie one after another in the segment, of a size to be read at once."""
    start, size = 0, 0
    offsets, lengths = entries["offset"].tolist(), entries["length"].tolist()
    for n in range(len(entries)):
        if n > start and (offsets[n] != offsets[n - 1] + lengths[n - 1] or size + lengths[n] > _READ_BYTES):
            yield entries[start:n]
            start, size = n, 0
        size += lengths[n]
    if len(entries):
        yield entries[start:]


def _read(segment: Path, offset: int, length: int) -> bytes:
    with storage_errors(segment), segment.open("rb") as file:
        file.seek(offset)
        data = file.read(length)
    if len(data) < length:
        raise DamagedError(
            f"ends at byte {offset + len(data)}, and its index goes on up to byte {offset + length}",
            place=str(segment),
            remedy="Restore it from a copy.",
        )
    return data


@lru_cache(maxsize=256)
def source_of(segment: Path) -> SourceFile:
    """What a segment's head says of the source's file. The format description is as it was stored: what belongs to one
    server process (its flags, when it began) is cleared in it. Raises StorageError, DamagedError."""
    with storage_errors(segment), segment.open("rb") as file:
        head = file.read(4096)
    at = len(MAGIC)
    description = head[at : at + parse_header(head[at:]).length]
    at += len(description)
    header = parse_header(head[at:])
    rotate = parse_rotate(head[at : at + header.length], has_checksum=True)
    return SourceFile(layout.segment_epoch(segment), rotate.file, description, header.server_id)
