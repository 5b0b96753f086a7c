"""Canal's ring with its three sequences, ``ack ≤ get ≤ put``: the slots of
:class:`cdc.event_store.memory_store.MemoryStore`.

The ring knows no locks, no waiting and no limits. A transaction's number is how many transactions were put before it.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from cdc.binlog.entry import ENTRY, EntryFlag
from cdc.event_store.record_batch import require_fitting
from cdc.event_store.transaction import Transaction

# The fields at once: NumPy takes forty times as long to return them one by one, which would be most of a put.
_ENTRY = struct.Struct("<Q8xQq8xIII28xQ")
_DDL = int(EntryFlag.DDL)
_FIELDS = ("seq", "length", "commit_time_us", "events", "row_events", "flags", "table_mask")
_OFFSETS = tuple(ENTRY.fields[name][1] for name in _FIELDS) if ENTRY.fields else ()
assert _OFFSETS == (0, 16, 24, 40, 44, 48, 80), "the entry has changed, and this has not"


class RingMark(NamedTuple):
    """The end of a transaction: its number, and sums over all transactions up to it."""

    number: int = -1
    seq: int = -1
    events: int = -1
    """Canal's sequence: the number of its last event, from 0. Each transaction counts at least one event."""
    bytes: int = 0
    row_events: int = 0
    ddl: int = -1
    """The number of the last DDL up to this transaction, so that the next DDL is found by bisection."""


class NewTransaction(NamedTuple):
    """A transaction that is about to be put, and its mark."""

    mark: RingMark
    transaction: Transaction
    commit_time_us: int


class Ring:
    """The transactions between ``ack`` and ``put``, never more than ``slots`` (a power of two)."""

    def __init__(self, slots: int) -> None:
        self._mask = slots - 1
        self._transactions: list[Transaction | None] = [None] * slots
        self._marks: list[RingMark] = [RingMark()] * slots
        self.put = self.get = self.ack = RingMark()
        """Marks of the last transaction that was put, of the last that a get returned, and of the last that is gone."""

    def above_newest(self, transactions: Iterable[Transaction]) -> list[NewTransaction]:
        """Returns the transactions whose seq is above the newest, with the marks that they get if put now. Raises
        UsageError for one whose entry contradicts its bytes or tables."""
        number, newest, events, size, rows, ddl = self.put
        new = []
        for transaction in transactions:
            fields = _ENTRY.unpack_from(transaction.entry)  # type: ignore[arg-type]  # an array is a buffer
            seq, length, commit_time_us, its_events, its_rows, flags, mask = fields
            if seq <= newest:
                continue
            require_fitting(transaction, seq, length, flags, mask)
            number, newest = number + 1, seq
            events += its_events or 1
            size += len(transaction.data)
            rows += its_rows
            if flags & _DDL:
                ddl = number
            new.append(NewTransaction(RingMark(number, seq, events, size, rows, ddl), transaction, commit_time_us))
        return new

    def append(self, new: Sequence[NewTransaction]) -> None:
        """Puts transactions that :meth:`above_newest` returned, with nothing put since."""
        for mark, transaction, _ in new:
            slot = mark.number & self._mask
            self._transactions[slot] = transaction
            self._marks[slot] = mark
        self.put = new[-1].mark

    def release(self, mark: RingMark) -> None:
        """Removes everything up to ``mark``, at least one transaction."""
        low, high = (self.ack.number + 1) & self._mask, (mark.number + 1) & self._mask
        if low < high:
            self._transactions[low:high] = [None] * (high - low)
        else:
            self._transactions[low:] = [None] * (self._mask + 1 - low)
            self._transactions[:high] = [None] * high
        self.ack = mark
        if self.get.number < mark.number:
            self.get = mark

    def at(self, number: int) -> Transaction:
        """Returns a transaction that is in the ring."""
        transaction = self._transactions[number & self._mask]
        assert transaction is not None, number
        return transaction

    def mark(self, number: int) -> RingMark:
        """Returns the mark of a transaction that is in the ring, or of the last that is gone."""
        return self.ack if number == self.ack.number else self._marks[number & self._mask]

    def between(self, first: int, stop: int) -> list[Transaction]:
        """Returns the transactions from ``first`` to before ``stop``, at least one."""
        low, high, slots = first & self._mask, stop & self._mask, self._transactions
        ring_slots = slots[low:high] if low < high else slots[low:] + slots[:high]
        return [transaction for transaction in ring_slots if transaction is not None]

    def find(self, seq: int) -> int:
        """Returns the number of the first transaction in the ring with this seq or a higher one; the number after the
        newest if there is none."""
        first = self.ack.number + 1
        if seq <= self.ack.seq:
            return first
        return first + bisect_left(range(first, self.put.number + 1), seq, key=self._seq)

    def last_within(self, first: int, total: Callable[[RingMark], int], limit: int) -> int:
        """Returns the number of the last transaction, at least ``first``, whose mark's ``total`` is not above
        ``limit``."""
        if total(self.put) <= limit:
            return self.put.number
        numbers = range(first + 1, self.put.number + 1)
        return first + bisect_right(numbers, limit, key=lambda number: total(self._marks[number & self._mask]))

    def next_ddl(self, first: int, last: int) -> int | None:
        """Returns the number of the first DDL from ``first`` to ``last``; None if there is none."""
        if self._marks[last & self._mask].ddl < first:
            return None
        numbers = range(first, last + 1)
        return first + bisect_left(numbers, first, key=lambda number: self._marks[number & self._mask].ddl)

    def _seq(self, number: int) -> int:
        return self._marks[number & self._mask].seq
