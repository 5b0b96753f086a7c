"""Input splits: what one Spark task reads. Whole transactions of one segment, or a slice of a large one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pyspark.sql.datasource import InputPartition

from cdc.batches.manifest import ByteRange
from cdc.binlog.entry import Entries
from cdc.decode.scan import TransactionSlice, split_transaction
from cdc.decode.transactions import ALL_TABLES, open_range
from cdc.store.formats.layout import segments_folder
from cdc.store.formats.state import TableNumbers
from cdc.store.reader.staged import is_uri, staged_entries

SPLIT_BYTES = 24 * 1024 * 1024


@dataclass
class InputSplit(InputPartition):
    """Whole transactions of one segment, staged or not; with ``part``, that slice of the one transaction there."""

    path: str
    offset: int
    length: int
    table_mask: int = ALL_TABLES
    """Only transactions with one of these bits in their index entry can have rows of the table."""
    part: TransactionSlice | None = None


EMPTY = InputSplit("", 0, 0, 0)
"""The split of a task that has nothing to read."""


@dataclass(frozen=True)
class _Splitter:
    """Splits of about ``size_bytes`` for one table; None: for all tables, so that large transactions stay whole."""

    size_bytes: int
    table: str | None
    mask: int

    def splits(self, path: str, entries: Entries) -> Iterator[InputSplit]:
        starts, ends = entries["offset"], entries["offset"] + entries["length"]
        first = 0
        while first < len(entries):  # one round a split, not one a transaction: there may be millions
            start, length = int(starts[first]), int(entries["length"][first])
            if self.table is not None and length > 2 * self.size_bytes:
                yield from self._slices(path, start, length, self.table)
                first += 1
                continue
            following = max(first + 1, int(np.searchsorted(ends, np.uint64(start + self.size_bytes), side="right")))
            yield InputSplit(path, start, int(ends[following - 1]) - start, self.mask)
            first = following

    def _slices(self, path: str, offset: int, length: int, table: str) -> Iterator[InputSplit]:
        transaction = open_range(path, offset, length, self.mask).between(0, None)
        for part in split_transaction(transaction, table, self.size_bytes):
            yield InputSplit(path, offset, length, self.mask, part)


def input_splits(
    ranges: Iterable[ByteRange],
    after_seq: int,
    size_bytes: int,
    table: str | None = None,
    table_mask: int | None = None,
) -> list[InputSplit]:
    """Cuts ranges into splits of about ``size_bytes``, without the transactions up to ``after_seq`` and those that have
    no row of the table.

    ``table_mask``: the table's bit in the index entries, from the manifest; None: taken from the store's own files.
    Transactions of more than twice ``size_bytes`` are cut, too. Raises DamagedError, StorageError, UnsupportedError.
    """
    splits: list[InputSplit] = []
    for byte_range in ranges:
        if table_mask is not None and not byte_range.may_hold(table_mask):
            continue
        entries = staged_entries(byte_range.path, byte_range.offset, byte_range.length)
        entries = entries[(entries["seq"] > after_seq) & (entries["length"] > 0)]
        # Read the mask after the entries: a table's number is durable before its first transaction is visible.
        mask = table_mask
        if mask is None:
            mask = ALL_TABLES if table is None else _mask(byte_range.path, table)
        chosen = entries[(entries["table_mask"] & np.uint64(mask)) != 0]
        splits += _Splitter(size_bytes, table, mask).splits(byte_range.path, chosen)
    return splits


def _mask(path: str, table: str) -> int:
    """Returns the table's bit in the index entries. Returns all bits for a staged segment, because its store is on
    another machine."""
    if is_uri(path):
        return ALL_TABLES
    store = Path(path).parent.parent
    if Path(path).parent != segments_folder(store):
        return ALL_TABLES
    names = TableNumbers(store).names
    return 1 << (names.index(table) & 63) if table in names else 0
