"""A reader of a stream: takes transactions from its event store, decodes them, and keeps its cursor."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from cdc.base.errors import BatchError, CdcError, StoreClosedError
from cdc.event_store.contract import EventStore
from cdc.event_store.transaction import Events
from cdc.event_store.transaction import Transaction as StoredTransaction
from cdc.streaming.capture_log import mark_of
from cdc.streaming.changes import Transaction
from cdc.streaming.cursors import Cursors
from cdc.streaming.decoder import BatchDecoder, DecodedBatch

if TYPE_CHECKING:
    from cdc.event_store.transaction import StoreMetrics
    from cdc.streaming.capture_thread import CaptureThread

_LOOK_S = 0.2
"""The interval at which a reader that waits looks whether capture has ended."""


class Reader:
    """Hands out the transactions of a stream, in order, beginning after its cursor. Use it in one thread at a time; a
    transaction may be acked in any thread.

    ``for transaction in reader`` waits for the next one, and ends when capture has ended: at the server's present end
    with ``follow=False``, when the stream is closed, or by raising the error that has ended capture. What was handed
    out and not acked comes again after :meth:`rollback`, and when the program is started again.
    """

    def __init__(
        self,
        name: str,
        store: EventStore,
        batch_size: int,
        cursors: Cursors,
        decoder: BatchDecoder,
        capture: CaptureThread,
        tidy: Callable[[], None],
    ) -> None:
        """``batch_size``: what a get asks for. ``tidy`` is called about once a second, after cursors were stored."""
        self.name = name
        self._store, self._batch_size = store, batch_size
        self._cursors, self._decoder = cursors, decoder
        self._capture, self._tidy = capture, tidy
        self._lock = threading.Lock()
        self._batches: deque[DecodedBatch] = deque()
        """What was taken from the store, and is not decoded yet."""
        self._current: DecodedBatch | None = None
        """The batch that is handed out, from :attr:`_next` on."""
        self._next = 0
        self._taken: deque[StoredTransaction] = deque()
        """What was taken from the store, and is not acked there."""
        self._release_at: deque[int] = deque()
        """Seqs at which the store gets an ack: the middle and the end of what each get returned."""
        self._handed_seq = self._acked_seq = cursors.cursor(name)

    @property
    def cursor(self) -> int:
        """The seq up to which everything is acked, or lies before the reader's beginning."""
        return self._cursors.cursor(self.name)

    @property
    def metrics(self) -> StoreMetrics:
        """The counters and sizes of the reader's event store: what it holds, and what was put, taken and acked."""
        return self._store.metrics()

    def __iter__(self) -> Iterator[Transaction]:
        while True:
            try:
                transaction = self.get()
            except StoreClosedError:
                if not self._capture.is_stopping:
                    raise
                return
            if transaction is None:
                return
            yield transaction

    def get(self, timeout_s: float | None = None) -> Transaction | None:
        """Returns the next transaction; None after ``timeout_s`` (None: without limit), or if nothing more comes.

        Raises the error that has ended capture once everything before it was handed out; DamagedError,
        UnsupportedError and SourceRefusedError if the transaction cannot be decoded; StoreClosedError.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._lock:
                transaction = self._ready()
                if transaction is not None:
                    return transaction
                if self._take():
                    continue
            if self._cursors.is_due:
                self.store_cursor()
            left_s = _LOOK_S if deadline is None else min(_LOOK_S, deadline - time.monotonic())
            # Asked before the look at the store: capture may put its last transactions in between.
            has_ended = self._capture.has_ended
            if self._store.wait_for_more(0 if has_ended else max(0.0, left_s)):
                continue
            if has_ended:
                self._capture.raise_failure()
                return None
            if left_s <= 0:
                return None

    def _ready(self) -> Transaction | None:
        """Returns the next transaction of those that were taken."""
        batch = self._current
        if batch is None or self._next == len(batch):
            if not self._batches:
                return None
            self._current = batch = self._decoded()
            self._next = 0
        number, self._next = self._next, self._next + 1
        self._handed_seq = batch.seqs[number]
        return Transaction(self, batch, number)

    def _decoded(self) -> DecodedBatch:
        """Takes and decodes the next batch. If that fails, what comes before the transaction that cannot be decoded is
        handed out first."""
        while True:
            batch = self._batches[0]
            try:
                batch.decode()
            except CdcError:
                if len(batch) == 1:
                    raise
                self._batches.popleft()
                self._batches.extendleft(reversed(batch.halves()))
                continue
            return self._batches.popleft()

    def _take(self) -> bool:
        """Takes transactions from the store. Returns whether there were any."""
        if self._taken and self._handed_seq <= self._acked_seq:
            # Positions are left: the source has moved over what is not captured, and may purge it.
            self._move(self._taken[-1].seq)
        transactions = self._store.try_get(self._batch_size).transactions
        if not transactions:
            return False
        self._taken.extend(transactions)
        self._release_at += (transactions[len(transactions) // 2].seq, transactions[-1].seq)
        self._batches.extend(self._decoder.batches([each for each in transactions if each.data]))
        return True

    def _move(self, seq: int) -> None:
        self._cursors.update_cursor(self.name, seq)
        self._handed_seq = self._acked_seq = seq
        self._release(seq)

    # --- ack and rollback

    def ack(self, transaction: Transaction) -> None:
        """See :meth:`Transaction.ack`."""
        seq = transaction.seq
        with self._lock:
            if seq <= self._acked_seq:
                return
            if seq > self._handed_seq:
                raise BatchError(
                    "the transaction was rolled back, so it comes again",
                    place=f"reader {self.name!r}, {transaction!r}",
                    remedy="Ack the one that comes again.",
                )
            self._cursors.update_cursor(self.name, seq)
            self._acked_seq = seq
            if self._release_at and seq >= self._release_at[0]:  # an ack in the store takes many times as long
                self._release(seq)
        if self._cursors.is_due:
            self.store_cursor()

    def _release(self, seq: int) -> None:
        """Acks in the store what the cursor has passed."""
        while self._release_at and self._release_at[0] <= seq:
            self._release_at.popleft()
        last = None
        while self._taken and self._taken[0].seq <= seq:
            last = self._taken.popleft()
        if last is not None:
            self._store.ack(last.position)
            self._cursors.note(self.name, mark_of(last))

    def rollback(self, transaction: Transaction | None = None) -> None:
        """Makes a transaction and all after it come again; None: all that are not acked. Raises BatchError for a
        transaction that was acked."""
        with self._lock:
            if transaction is not None and transaction.seq <= self._acked_seq:
                raise BatchError(
                    "the transaction was acked, so it cannot come again",
                    place=f"reader {self.name!r}, {transaction!r}",
                    remedy="Roll back only what is not acked.",
                )
            self._release(self._acked_seq)
            after = self._acked_seq if transaction is None else transaction.seq - 1
            batch = self._current
            oldest = self._taken[0].seq if self._taken else after + 1
            if batch is not None and batch.seqs[0] <= max(after + 1, oldest):  # no transaction before it comes again
                self._next = min(self._next, bisect_right(batch.seqs, after))
                self._handed_seq = min(self._handed_seq, after)
                return
            self._batches.clear()
            self._current = None
            first = None
            if transaction is not None:
                first = next((taken for taken in self._taken if taken.seq == transaction.seq), None)
            if first is None:
                self._store.rollback()
                self._taken.clear()
                self._release_at.clear()
                self._handed_seq = self._acked_seq
                return
            self._store.rollback(Events((first,), first.position, first.position, first.position))
            while self._taken and self._taken[-1].seq >= first.seq:
                self._taken.pop()
            self._release_at = deque(seq for seq in self._release_at if seq < first.seq)
            self._handed_seq = first.seq - 1

    def store_cursor(self) -> None:
        """Makes the cursor durable, so that it survives a power cut too. It happens once a second by itself."""
        with self._lock:
            self._release(self._acked_seq)
        self._cursors.store()
        self._tidy()

    def close(self) -> None:
        """Closes the reader's store; a call that waits ends."""
        with self._lock:
            self._release(self._acked_seq)
        self._store.close()
