"""Turns transactions into bytes and sealed index entries: one by one, or as record batches.

A record batch holds many transactions of one source file. It is checked and sealed by columns, in a fraction of the
time. Transactions that need more care than that go one by one, which also names their errors.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cdc.base.errors import UsageError
from cdc.binlog.entry import ENTRY, ENTRY_SIZE, Entries, EntryFlag
from cdc.binlog.events import stored_format_description
from cdc.binlog.positions import OFFSET_BITS, format_seq, make_seq, split_file_name
from cdc.event_store.transaction import SourceFile, Transaction

_U32, _U64, _I64 = struct.Struct("<I"), struct.Struct("<Q"), struct.Struct("<q")
_OFFSET_AT, _LENGTH_AT, _STORE_TIME_AT, _FLAGS_AT, _MASK_AT, _CRC_AT = 8, 16, 32, 48, 80, 124
"""Offsets of fields in an entry, see :data:`cdc.binlog.entry.ENTRY`."""
_LEAST = 12
"""Fewer transactions are faster one by one."""
_MOST_BYTES = 4 << 20
"""Above this transactions go one by one, because a record batch is joined in memory."""
_FIELDS = attrgetter("entry", "data", "source", "tables")


# --- one by one


class TransactionRecord(NamedTuple):
    """A transaction with its index entry in a form that can be changed."""

    seq: int
    entry: bytearray
    transaction: Transaction


def records_after(transactions: Sequence[Transaction], seq: int) -> list[TransactionRecord]:
    """Returns the records of the transactions above ``seq``, in order. Raises UsageError for a transaction whose entry
    contradicts its bytes, tables or source file."""
    records: list[TransactionRecord] = []
    source: SourceFile | None = None
    base = 0
    for transaction in transactions:
        entry = bytearray(transaction.entry.tobytes())
        own = int.from_bytes(entry[:8], "little")
        if own <= seq:
            continue
        if transaction.source is not source:
            source = transaction.source
            base = file_base(source)
        if own >> OFFSET_BITS != base >> OFFSET_BITS:
            raise _invalid(transaction, own, f"is not of the source file {source.name} in epoch {source.epoch}")
        length = int.from_bytes(entry[_LENGTH_AT : _LENGTH_AT + 8], "little")
        mask = int.from_bytes(entry[_MASK_AT : _MASK_AT + 8], "little")
        require_fitting(transaction, own, length, entry[_FLAGS_AT], mask)
        records.append(TransactionRecord(own, entry, transaction))
        seq = own
    return records


def seal_record(entry: bytearray, offset: int, store_time_us: int, table_mask: int) -> None:
    """Fills in the fields that the store sets, and the checksum."""
    _U64.pack_into(entry, _OFFSET_AT, offset)
    _I64.pack_into(entry, _STORE_TIME_AT, store_time_us)
    _U64.pack_into(entry, _MASK_AT, table_mask)
    _U32.pack_into(entry, _CRC_AT, zlib.crc32(memoryview(entry)[:_CRC_AT]))


@lru_cache(maxsize=64)
def file_base(source: SourceFile) -> int:
    """Returns the seq of a source file's byte 0. Raises an error if no segment could begin with its format
    description."""
    stored_format_description(source.format_description)
    return make_seq(source.epoch, split_file_name(source.name)[1], 0)


def require_fitting(transaction: Transaction, seq: int, length: int, flags: int, table_mask: int) -> None:
    """Raises UsageError if fields of a transaction's entry contradict its bytes or tables."""
    size_bytes = len(transaction.data)
    if length != size_bytes:
        raise _invalid(transaction, seq, f"has {size_bytes} bytes, and its entry says otherwise")
    if not length and not flags & EntryFlag.POSITION:
        raise _invalid(transaction, seq, "has no bytes")
    if table_mask and not transaction.tables:
        raise _invalid(transaction, seq, "does not name the tables that its entry marks")


def _invalid(transaction: Transaction, seq: int, what: str) -> UsageError:
    return UsageError(
        f"the transaction {what}",
        place=f"put of seq {seq} ({format_seq(seq)}, {transaction.source.name})",
        remedy="Put transactions as capture or a store's get makes them.",
    )


# --- many at once


class RecordBatch(NamedTuple):
    """Transactions with bytes, of one source file, in order, each less than 4 GiB after the one before."""

    transactions: Sequence[Transaction]
    data: tuple[bytes, ...]
    tables: tuple[tuple[str, ...], ...]
    source: SourceFile
    entries: Entries
    """A copy of the index entries, shape (n,)."""
    starts: npt.NDArray[np.int64]
    """The offset of each transaction from the first one."""
    size_bytes: int

    @property
    def first_seq(self) -> int:
        return int(self.entries["seq"][0])

    @property
    def last_seq(self) -> int:
        return int(self.entries["seq"][-1])


def make_record_batch(transactions: Sequence[Transaction], after_seq: int) -> RecordBatch | None:
    """Returns a record batch of all the transactions. Returns None if they are few, if one is not above ``after_seq``,
    or if any of them is invalid or cannot be in a record batch."""
    if len(transactions) < _LEAST:
        return None
    each: tuple[tuple[Any, ...], ...] = tuple(zip(*map(_FIELDS, transactions), strict=True))
    raw_entries, data, sources, tables = each
    source: SourceFile = sources[0]
    if sources.count(source) < len(sources) or () in tables:
        return None
    sizes = np.array(list(map(len, data)), dtype=np.int64)
    size_bytes = int(sizes.sum())
    raw = b"".join(raw_entries)
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
    return RecordBatch(transactions, data, tables, source, entries, np.cumsum(sizes) - sizes, size_bytes)


def seal_record_batch(
    batch: RecordBatch, offset: int, store_time_us: int, table_masks: npt.NDArray[np.uint64]
) -> bytes:
    """Fills in the fields that the store sets (masks in shape (n,), or (1,) for all), and the checksums. Returns the
    entries as they are written to the file."""
    entries = batch.entries
    entries["offset"] = batch.starts + offset
    entries["store_time_us"] = store_time_us
    entries["table_mask"] = table_masks
    raw = memoryview(entries.view(np.uint8).data)
    entries["crc"] = [zlib.crc32(raw[at : at + _CRC_AT]) for at in range(0, len(raw), ENTRY_SIZE)]
    return entries.tobytes()
