"""The event store on disk: one subscriber's view of a store that this process writes."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, Self

import numpy as np

from cdc.base.errors import BatchError, StoreClosedError, UsageError
from cdc.event_store.contract import EventStore
from cdc.event_store.iteration import EntrySlice, TransactionIterator, first_ddl, weights
from cdc.event_store.meter import StoreMeter
from cdc.event_store.ring import NewTransaction, RingMark
from cdc.event_store.transaction import Events, LogPosition, StoreMetrics, Transaction
from cdc.event_store.transaction_log import TransactionLog
from cdc.store.formats import layout
from cdc.store.reader.batch_builder import TableFilter
from cdc.store.reader.reader import StoreReader
from cdc.store.retention.cleaner import remove_until
from cdc.store.writer.durability import FlushPolicy, PutStatus

_FLUSH_WAIT_S = 5.0


class CursorStore(Protocol):
    """Keeps the cursors of subscribers; :class:`cdc.meta.Meta` is one."""

    def cursor(self, name: str) -> int:
        """Returns the seq up to which the subscriber has acked; 0 if it has acked nothing."""
        ...

    def update_cursor(self, name: str, acked_seq: int) -> None:
        """Stores the cursor durably."""
        ...


class RelayLogStore(EventStore):
    """A store on disk and one subscriber's cursor in it.

    ``batch_size`` counts events, at least one for each transaction, like the memory store's itemsize. A put finds room
    as long as the disk keeps up; the log's flush policy decides what PUT_OK means. Only durable transactions are
    returned, so with asynchronous flush a transaction can be read some time after its put.

    With ``meta`` the cursor is that of the subscription and is stored at each ack. Without, it lives as long as this
    object, and the next one begins at the store's first transaction. Several subscribers are several of these over one
    ``log``, each with its own cursor and filter; the log is then closed separately. Cleaning removes segments for all
    of them.

    Source: the file store that Canal planned; Canal's ``MemoryEventStoreWithBuffer`` for the rules.
    """

    def __init__(
        self,
        log: TransactionLog,
        *,
        meta: CursorStore | None = None,
        subscriber: str = "default",
        table_filter: str | None = None,
        ddl_isolation: bool = True,
        owns_log: bool = True,
    ) -> None:
        """With ``owns_log`` closing the store closes the log. ``meta`` has to know the ``subscriber``. Raises
        UsageError, DamagedError, StorageError."""
        self.log = log
        self.subscriber = subscriber
        self.ddl_isolation = ddl_isolation
        self._meta = meta
        self._owns_log = owns_log
        self._reader = StoreReader(log.path)
        self._iterator = TransactionIterator(log.path, None if table_filter is None else TableFilter(table_filter))
        cursor = 0 if meta is None else meta.cursor(subscriber)
        self._acked = self._got = cursor or self._reader.removed_seq()
        self._hidden = 0
        """Everything up to this seq was removed by :meth:`clean_all`, so positions up to it are not returned."""
        self._meter = StoreMeter()
        self._metering = threading.Lock()
        self._closed = False
        self._lock = threading.Lock()
        self._changed = threading.Condition()
        self._changes = 0
        log.on_moved.append(self._wake)
        if owns_log:
            log.on_put = self._count_put

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        destination: str,
        segment_bytes: int = 268435456,
        policy: FlushPolicy | None = None,
        meta: CursorStore | None = None,
        subscriber: str = "default",
        table_filter: str | None = None,
    ) -> Self:
        """Opens (or creates) the store in a folder. Raises what :class:`TransactionLog` and the constructor raise."""
        log = TransactionLog(path, destination=destination, segment_bytes=segment_bytes, policy=policy)
        try:
            return cls(log, meta=meta, subscriber=subscriber, table_filter=table_filter)
        except BaseException:
            log.close()
            raise

    # put

    def put(self, transactions: Sequence[Transaction], *, timeout_s: float | None = None) -> PutStatus:
        """Puts as in the contract. Also returns FLUSH_DISK_TIMEOUT if the transactions are written, and not flushed in
        time. STORE_FULL means that the disk does not keep up."""
        self._check_open()
        return self.log.put(transactions, timeout_s=timeout_s)

    def try_put(self, transactions: Sequence[Transaction]) -> PutStatus:
        """:meth:`put` without waiting for room; it waits for the flush, at most RocketMQ's 5 s."""
        self._check_open()
        if not self.log.has_room:
            return PutStatus.STORE_FULL
        return self.log.put(transactions, timeout_s=_FLUSH_WAIT_S)

    def _count_put(self, transactions: Sequence[Transaction]) -> None:
        new, mark = [], RingMark()
        for transaction in transactions:
            mark = mark._replace(
                number=mark.number + 1,
                bytes=mark.bytes + transaction.size_bytes,
                row_events=mark.row_events + transaction.row_events,
            )
            new.append(NewTransaction(mark, transaction, transaction.commit_time_us))
        with self._metering:
            self._meter.put(new, RingMark())

    # get

    def get(
        self,
        batch_size: int,
        *,
        start: LogPosition | None = None,
        included: bool = False,
        timeout_s: float | None = None,
    ) -> Events:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        if batch_size < 1:
            raise UsageError(f"a batch size of {batch_size} makes no sense; it is at least 1")
        batch: _Batch | None = None
        while True:
            with self._changed:
                changes = self._changes
            with self._lock:
                self._check_open()
                after = self._got
                if start is not None:
                    after = max(start.seq - 1 if included else start.seq, self._acked)
                if batch is None or batch.after != after:
                    batch = _Batch(after, batch_size, self.ddl_isolation)
                self._extend(batch)
                left_s = None if deadline is None else deadline - time.monotonic()
                if batch.whole or (left_s is not None and left_s <= 0):
                    return self._take(batch)
            self.log.check()
            with self._changed:
                self._changed.wait_for(lambda: self._changes != changes, left_s)  # noqa: B023  # called here and now

    def wait_for_more(self, timeout_s: float | None = None) -> bool:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._changed:
                changes = self._changes
            with self._lock:
                self._check_open()
                if self._first(self._got, self.log.flushed.seq) is not None:
                    return True
            self.log.check()
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                return False
            with self._changed:
                self._changed.wait_for(lambda: self._changes != changes, left_s)  # noqa: B023  # called here and now

    def _extend(self, batch: _Batch) -> None:
        """Adds the transactions that have become visible since the last call."""
        until = self.log.flushed.seq
        if batch.whole or until <= batch.seen:
            return
        for part in self._iterator.iterate(batch.seen, until):
            if batch.add(part):
                break
        else:
            batch.seen = until
        self._reader.require_kept(batch.after)

    def _take(self, batch: _Batch) -> Events:
        taken = [transaction for part in batch.slices for transaction in self._iterator.read(part)]
        if not taken:
            return Events(())
        self._reader.require_kept(batch.after)  # retention may have removed transactions meanwhile
        self._got = max(self._got, taken[-1].seq)
        with self._metering:
            self._meter.got(taken[-1], RingMark(), _amount(len(taken), sum(t.size_bytes for t in taken)))
        end = taken[-1].position
        return Events(taken, taken[0].position, end, end)

    def _wake(self) -> None:
        with self._changed:
            self._changes += 1
            self._changed.notify_all()

    # ack and rollback

    def ack(self, position: LogPosition) -> None:
        with self._lock:
            self._check_open()
            transaction = self._outstanding_at(position)
            if transaction is None:
                raise BatchError(
                    f"no outstanding transaction ends there ({self._outstanding()})",
                    place=str(position),
                    remedy="Ack the positions that get returned, each once.",
                )
            count = size = 0
            for part in self._iterator.iterate(self._acked, position.seq):
                count += len(part.entries)
                size += int(part.entries["length"].sum())
            self._move_to(position.seq)
            with self._metering:
                self._meter.acked(transaction, RingMark(), _amount(count, size))

    def rollback(self, batch: Events | None = None) -> None:
        with self._lock:
            self._check_open()
            if batch is None:
                self._got = self._acked
            elif batch.start is not None and batch.end is not None:
                if self._outstanding_at(batch.end) is None:
                    raise BatchError(
                        f"the batch is not outstanding ({self._outstanding()})",
                        place=f"batch {batch.start} to {batch.end}",
                        remedy="Roll back only batches that get returned and that are neither acked nor rolled back.",
                    )
                # A part of the batch that was acked stays acked.
                self._got = max(self._acked, batch.start.seq - 1)
        self._wake()

    def _outstanding_at(self, position: LogPosition) -> Transaction | None:
        """Returns the outstanding transaction that ends at exactly this position."""
        if not self._acked < position.seq <= self._got:
            return None
        transaction = self._last(position.seq)
        return transaction if transaction is not None and transaction.position.identity == position.identity else None

    def _outstanding(self) -> str:
        first = self._first(self._acked, self._got)
        last = self._last(self._got)
        if first is None or last is None:
            return "nothing is outstanding"
        return f"outstanding is {first.position} to {last.position}"

    # positions and cleaning

    def first_position(self) -> LogPosition | None:
        with self._lock:
            self._check_open()
            first = self._first(self._acked, self.log.flushed.seq) or self._last(self._acked)
            return None if first is None or first.seq <= self._hidden else first.position

    def latest_position(self) -> LogPosition | None:
        with self._lock:
            self._check_open()
            last = self._last(self.log.flushed.seq)
            return None if last is None or last.seq <= self._hidden else last.position

    def clean_until(self, position: LogPosition) -> None:
        """Removes the segments that hold nothing after the position, for all readers of the log. The cursor hides the
        rest from this one."""
        with self._lock:
            self._check_open()
            last = self._last(min(position.seq, self.log.flushed.seq))
            if last is not None and last.seq > self._acked:
                self._move_to(last.seq)
            if last is not None:
                remove_until(self.log.path, last.seq)
        self._wake()

    def clean_all(self) -> None:
        """Removes all segments but the newest, for all readers of the log. The cursor hides the rest from this one."""
        with self._lock:
            self._check_open()
            self.log.flush()
            seq = self.log.flushed.seq
            if seq > self._acked:
                self._move_to(seq)
            self._hidden = seq
            remove_until(self.log.path, seq)
        self._wake()

    def metrics(self) -> StoreMetrics:
        """Returns the metrics. Held transactions, those that can be read and are not acked, are counted one by one,
        which takes time if they are millions."""
        with self._lock:
            events = size = 0
            for part in self._iterator.iterate(self._acked, self.log.flushed.seq):
                events += int(weights(part.entries).sum())
                size += int(part.entries["length"].sum())
        with self._metering:
            return self._meter.metrics(RingMark(), RingMark(events=RingMark().events + events, bytes=size))

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.log.on_moved.remove(self._wake)
        self._wake()
        if self._owns_log:
            self.log.close()

    def _move_to(self, seq: int) -> None:
        """Moves the cursor: everything up to this seq is acked or removed."""
        if self._meta is not None:
            self._meta.update_cursor(self.subscriber, seq)
        self._acked = seq
        self._got = max(self._got, seq)

    def _first(self, after_seq: int, until_seq: int) -> Transaction | None:
        for part in self._iterator.iterate(after_seq, until_seq):
            return self._iterator.read(EntrySlice(part.segment, part.entries[:1]), data=False)[0]
        return None

    def _last(self, until_seq: int) -> Transaction | None:
        part = self._iterator.last(until_seq)
        return None if part is None else self._iterator.read(part, data=False)[0]

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError("the store is closed", place=str(layout.segments_folder(self.log.path).parent))


class _Batch:
    """Collects the transactions after a seq, as many as a batch may have."""

    def __init__(self, after: int, size: int, ddl_isolation: bool) -> None:
        self.after = after
        self.seen = after
        """The seq up to which the store was searched."""
        self.whole = False
        """Whether the batch is complete: it would not grow by waiting."""
        self._size = size
        self._ddl_isolation = ddl_isolation
        self.slices: list[EntrySlice] = []
        self._weight = 0

    def add(self, part: EntrySlice) -> bool:
        """Adds the next transactions. Returns whether the batch is :attr:`whole` now."""
        entries = part.entries
        self.seen = int(entries["seq"][-1])
        stop = len(entries)
        if self._ddl_isolation and (at := first_ddl(entries)) is not None:
            self.whole = True
            stop = at if at or self.slices else 1
        total = self._weight + np.cumsum(weights(entries))
        fits = int(np.searchsorted(total, self._size, side="right"))
        if not self.slices:
            fits = max(1, fits)
        stop = min(stop, fits)
        if int(total[-1]) >= self._size:
            self.whole = True
        if stop:
            self.slices.append(EntrySlice(part.segment, entries[:stop]))
            self._weight = int(total[stop - 1])
        return self.whole


def _amount(transactions: int, size_bytes: int) -> RingMark:
    """Returns the mark of so many transactions and bytes after the first mark."""
    return RingMark(number=RingMark().number + transactions, bytes=size_bytes)
