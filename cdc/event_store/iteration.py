"""Iterates the transactions of a store on disk, and reads them whole."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cdc.base.errors import DamagedError
from cdc.binlog.entry import Entries, EntryFlag
from cdc.disk.durable import storage_errors
from cdc.disk.encryption.read import open_content
from cdc.event_store.transaction import SourceFile, Transaction
from cdc.store.formats import layout
from cdc.store.formats.index import IndexFile
from cdc.store.formats.missing import first_after, kept_names
from cdc.store.formats.segment_header import read_segment_header
from cdc.store.formats.state import TableNumbers
from cdc.store.reader.batch_builder import TableFilter

_FIRST_SLICE, _SLICE = 256, 65536
_READ_BYTES = 16 << 20


class EntrySlice(NamedTuple):
    """Transactions of one segment: their entries, shape (n,)."""

    segment: Path
    entries: Entries


class TransactionIterator:
    """Iterates the transactions of a store that pass a filter. Not thread-safe."""

    def __init__(self, store: Path, table_filter: TableFilter | None = None) -> None:
        self._store = store
        self._folder = layout.segments_folder(store)
        self._filter = table_filter
        self._tables = TableNumbers(store)

    def iterate(self, seq: int, until_seq: int) -> Iterator[EntrySlice]:
        """Yields the verified transactions after ``seq`` up to ``until_seq``, in order; a few at first, then many at
        once. Raises DamagedError, StorageError."""
        names = kept_names(self._store)
        size = _FIRST_SLICE
        for name in names[first_after(names, seq) :]:
            index = IndexFile(self._folder / name)
            start = index.after(seq)
            stop = int(np.searchsorted(index.entries["seq"], np.uint64(until_seq), side="right"))
            while start < stop:
                entries = self._chosen(index.verified(start, min(start + size, stop)))
                start, size = start + size, min(2 * size, _SLICE)
                if len(entries):
                    yield EntrySlice(index.segment, entries)
            if stop < len(index.entries):
                return

    def last(self, until_seq: int) -> EntrySlice | None:
        """Returns the newest transaction up to ``until_seq``; None if there is none. Raises DamagedError,
        StorageError."""
        names = kept_names(self._store)
        for name in reversed(names[: first_after(names, until_seq) + 1]):
            index = IndexFile(self._folder / name)
            stop = int(np.searchsorted(index.entries["seq"], np.uint64(until_seq), side="right"))
            size = 1
            while stop:
                start = max(0, stop - size)
                entries = self._chosen(index.verified(start, stop))
                if len(entries):
                    return EntrySlice(index.segment, entries[-1:])
                stop, size = start, min(4 * size, _SLICE)
        return None

    def _chosen(self, entries: Entries) -> Entries:
        if self._filter is None:
            return entries[entries["length"] > 0]
        mask = int(np.bitwise_or.reduce(entries["table_mask"]))
        if mask.bit_length() > len(self._tables.names):
            self._tables.reload()
        return entries[self._filter.wanted(entries, self._tables.names)]

    def read(self, part: EntrySlice, *, data: bool = True) -> list[Transaction]:
        """Reads transactions; without ``data`` only their entries, tables and source file. Raises StorageError, and
        DamagedError if the segment is shorter than its index."""
        source = source_of(part.segment)
        transactions = []
        for run in _runs(part.entries):
            offset = int(run["offset"][0])
            end = int(run["offset"][-1]) + int(run["length"][-1])
            raw = _read(part.segment, offset, end - offset) if data else b""
            for n in range(len(run)):
                entry = run[n : n + 1]
                at = int(entry["offset"][0]) - offset
                tables = self._names(int(entry["table_mask"][0]))
                transactions.append(Transaction(entry, raw[at : at + int(entry["length"][0])], source, tables))
        return transactions

    @lru_cache(maxsize=1024)  # noqa: B019  # there are as many iterators as stores
    def _names(self, mask: int) -> tuple[str, ...]:
        return self._tables.in_mask(mask)


def weights(entries: Entries) -> np.ndarray:
    """Returns the weight of each transaction in a batch: its events, at least one."""
    return np.maximum(entries["events"].astype(np.int64), 1)


def first_ddl(entries: Entries) -> int | None:
    """Returns the number of the first DDL; None if there is none."""
    ddl = np.flatnonzero((entries["flags"] & int(EntryFlag.DDL)) != 0)
    return int(ddl[0]) if len(ddl) else None


def _runs(entries: Entries) -> Iterator[Entries]:
    """Yields runs of transactions that are contiguous in the segment and small enough to be read at once."""
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
    with storage_errors(segment), open_content(segment) as file:
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
    """Returns the source's file of a segment, as its header names it. In the stored format description the fields that
    describe one server process (its flags, its start time) are cleared. Raises StorageError, DamagedError."""
    header = read_segment_header(segment)
    return SourceFile(layout.segment_epoch(segment), header.file, header.format_description, header.server_id)
