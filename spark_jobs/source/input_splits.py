"""What one Spark task reads: some transactions, or a part of a large one, in which the table has rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pyspark.sql.datasource import InputPartition

from cdc.batches.manifest import ByteRange
from cdc.binlog.entry import Entries
from cdc.decode.scan import TransactionSlice
from cdc.decode.transactions import ALL_TABLES
from cdc.store.formats.layout import segments_folder
from cdc.store.formats.state import TableNumbers
from cdc.store.reader.staged import is_uri, staged_entries

SPLIT_BYTES = 24 * 1024 * 1024


@dataclass
class Piece(InputPartition):
    """Whole transactions of one segment, or of a staged one; with ``part``, that part of the one transaction there."""

    path: str
    offset: int
    length: int
    table_mask: int = ALL_TABLES
    """Only transactions with one of these bits in their index entry can have rows of the table."""
    part: TransactionSlice | None = None


NOTHING = Piece("", 0, 0, 0)
"""For a task where there is nothing to read."""


def split(
    ranges: Iterable[ByteRange],
    after_seq: int,
    size_bytes: int,
    table: str | None = None,
    table_mask: int | None = None,
) -> list[Piece]:
    """Cut ranges into pieces of about ``size_bytes``, without what lies up to ``after_seq`` or has no row of the table.

    ``table_mask``: the table's bit in the index entries, as a manifest tells it; None: the store's own files are asked.
    Transactions of more than twice ``size_bytes`` are cut, too. Raises DamagedError, StorageError, UnsupportedError.
    """
    pieces: list[Piece] = []
    for one in ranges:
        if table_mask is not None and not _may_hold(one, table_mask):
            continue
        entries = staged_entries(one.path, one.offset, one.length)
        entries = entries[(entries["seq"] > after_seq) & (entries["length"] > 0)]
        # After the entries: a table's name is durable before its first transaction is visible.
        mask = table_mask
        if mask is None:
            mask = ALL_TABLES if table is None else _mask(one.path, table)
        pieces += _cut(one.path, entries[(entries["table_mask"] & np.uint64(mask)) != 0], size_bytes, table, mask)
    return pieces


def _may_hold(one: ByteRange, table_mask: int) -> bool:
    """Whether a range can have transactions with one of the bits, without a look at its index."""
    return one.table_bits is None or any(table_mask >> bit & 1 for bit in one.table_bits)


def _mask(path: str, table: str) -> int:
    """The table's bit in the index entries; all bits for a staged segment, whose store is elsewhere and
    whose manifest does not tell."""
    if is_uri(path):
        return ALL_TABLES
    store = Path(path).parent.parent
    if Path(path).parent != segments_folder(store):
        return ALL_TABLES
    names = TableNumbers(store).names
    return 1 << (names.index(table) & 63) if table in names else 0


def _cut(path: str, entries: Entries, size_bytes: int, table: str | None, mask: int) -> Iterator[Piece]:
    starts, ends = entries["offset"], entries["offset"] + entries["length"]
    first = 0
    while first < len(entries):  # once a piece, not once a transaction: there may be millions
        start = int(starts[first])
        if table is not None and int(entries["length"][first]) > 2 * size_bytes:
            yield from _parts(path, start, int(entries["length"][first]), size_bytes, table, mask)
            first += 1
            continue
        following = max(first + 1, int(np.searchsorted(ends, np.uint64(start + size_bytes), side="right")))
        yield Piece(path, start, int(ends[following - 1]) - start, mask)
        first = following


def _parts(path: str, offset: int, length: int, size_bytes: int, table: str, mask: int) -> Iterator[Piece]:
    from cdc.decode.scan import split_transaction
    from cdc.decode.transactions import open_range

    transaction = open_range(path, offset, length, mask).between(0, None)
    for part in split_transaction(transaction, table, size_bytes):
        yield Piece(path, offset, length, mask, part)
