"""Many transactions of one source file, put at once: checked and entered by columns, in a fraction of the time.

What is not as plain as that goes the way of single ones, :func:`cdc.event_store.put.above`, and gets its error
there.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cdc.binlog.entry import ENTRY, ENTRY_SIZE, Entries
from cdc.event_store.put import file_base
from cdc.positions import OFFSET_BITS
from cdc.store.transaction import SourceFile, Transaction

_LEAST = 12
"""Fewer are quicker one by one."""
_MOST_BYTES = 4 << 20
"""They are joined in memory."""
_CRC_AT = ENTRY_SIZE - 4
_FIELDS = attrgetter("entry", "data", "source", "tables")


class Lot(NamedTuple):
    """Transactions with bytes, of one source file, in order, none 4 GiB behind the one before."""

    transactions: Sequence[Transaction]
    data: tuple[bytes, ...]
    tables: tuple[tuple[str, ...], ...]
    source: SourceFile
    entries: Entries
    """A copy, shape (n,)."""
    starts: npt.NDArray[np.int64]
    """Where each begins, counted from the first one's beginning."""
    size_bytes: int

    @property
    def first_seq(self) -> int:
        return int(self.entries["seq"][0])

    @property
    def last_seq(self) -> int:
        return int(self.entries["seq"][-1])


def as_lot(transactions: Sequence[Transaction], after_seq: int) -> Lot | None:
    """All of them, or None where they are few, not all above ``after_seq``, or anything about them is special or
    wrong."""
    if len(transactions) < _LEAST:
        return None
    each: tuple[tuple[Any, ...], ...] = tuple(zip(*map(_FIELDS, transactions), strict=True))
    given, data, sources, tables = each
    source: SourceFile = sources[0]
    if sources.count(source) < len(sources) or () in tables:
        return None
    sizes = np.array(list(map(len, data)), dtype=np.int64)
    size_bytes = int(sizes.sum())
    raw = b"".join(given)
    if size_bytes > _MOST_BYTES or len(raw) != len(sizes) * ENTRY_SIZE:
        return None
    entries: Entries = np.frombuffer(bytearray(raw), dtype=ENTRY)
    seqs = entries["seq"].astype(np.int64)
    steps = np.diff(seqs)
    if (
        int(seqs[0]) <= after_seq
        or int(steps.min()) <= 0
        or int(steps.max()) >= 1 << 32
        or {int(seqs[0]) >> OFFSET_BITS, int(seqs[-1]) >> OFFSET_BITS} != {file_base(source) >> OFFSET_BITS}
        or not sizes.all()
        or not np.array_equal(entries["length"], sizes)
    ):
        return None
    return Lot(transactions, data, tables, source, entries, np.cumsum(sizes) - sizes, size_bytes)


def seal_lot(lot: Lot, offset: int, store_time_us: int, table_masks: npt.NDArray[np.uint64]) -> bytes:
    """Fill in what the store knows (the masks in shape (n,), or (1,) for all), and the checksums; the entries as they
    stand in the file."""
    entries = lot.entries
    entries["offset"] = lot.starts + offset
    entries["store_time_us"] = store_time_us
    entries["table_mask"] = table_masks
    raw = memoryview(entries.view(np.uint8).data)
    entries["crc"] = [zlib.crc32(raw[at : at + _CRC_AT]) for at in range(0, len(raw), ENTRY_SIZE)]
    return entries.tobytes()
