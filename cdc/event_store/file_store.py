"""The store on disk by the contract of all stores: one subscriber's view of a relay log that this process writes."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, Self

import numpy as np

from cdc.errors import BatchError, StoreClosedError, UsageError
from cdc.event_store.contract import EventStore
from cdc.event_store.iteration import Piece, Walker, first_ddl, weights
from cdc.event_store.meter import StoreMeter
from cdc.event_store.ring import Mark, New
from cdc.store.formats import layout
from cdc.store.reader.filters import TableFilter
from cdc.store.reader.reader import StoreReader
from cdc.store.retention.retain import remove_until
from cdc.store.transaction import Events, Position, PutStatus, StoreMetrics, Transaction
from cdc.store.writer.log import RelayLog
from cdc.store.writer.policy import FlushPolicy

_FLUSH_WAIT_S = 5.0


class CursorKeeper(Protocol):
    """Where a subscriber's cursor is kept: :class:`cdc.meta.Meta` is one."""

    def cursor(self, name: str) -> int:
        """The seq up to which the subscriber has acked; 0 at the beginning."""
        ...

    def update_cursor(self, name: str, acked_seq: int) -> None:
        """Durably."""
        ...


class RelayLogStore(EventStore):
    """A relay log and one subscriber's place in it. ``batch_size`` counts events, at least one for each transaction, as
    the memory ring's itemsize does. A put finds room as long as the disk keeps up; ``flush`` decides what PUT_OK says.

    Only what is durable is handed out, so with asynchronous flush a transaction comes some time after its put.

    With ``meta`` the cursor is the subscription's, kept at each ack; else it lives as long as this object, and the next
    one begins at the store's first transaction. Several subscribers are several of these over one ``log``, each with
    its own cursor and filter; then the log is closed apart. Cleaning removes segments for all of them.

    Source: the file store that Canal planned; Canal's ``MemoryEventStoreWithBuffer`` for the rules.
    """

    def __init__(
        self,
        log: RelayLog,
        *,
        meta: CursorKeeper | None = None,
        subscriber: str = "default",
        table_filter: str | None = None,
        ddl_isolation: bool = True,
        owns_log: bool = True,
    ) -> None:
        """``owns_log``: closing the store closes it. ``meta`` has to know the ``subscriber``. Raises UsageError,
        DamagedError, StorageError."""
        self.log = log
        self.subscriber = subscriber
        self.ddl_isolation = ddl_isolation
        self._meta = meta
        self._owns_log = owns_log
        self._reader = StoreReader(log.path)
        self._walker = Walker(log.path, None if table_filter is None else TableFilter(table_filter))
        cursor = 0 if meta is None else meta.cursor(subscriber)
        self._acked = self._got = cursor or self._reader.removed_seq()
        self._hidden = 0
        """Up to here everything was removed, and there is no position."""
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
        meta: CursorKeeper | None = None,
        subscriber: str = "default",
        table_filter: str | None = None,
    ) -> Self:
        """Open (or make) the store in a folder. Raises what :class:`RelayLog` and the constructor raise."""
        log = RelayLog(path, destination=destination, segment_bytes=segment_bytes, policy=policy)
        try:
            return cls(log, meta=meta, subscriber=subscriber, table_filter=table_filter)
        except BaseException:
            log.close()
            raise

    # put

    def put(self, transactions: Sequence[Transaction], *, timeout_s: float | None = None) -> PutStatus:
        """FLUSH_DISK_TIMEOUT where it is written, and not flushed in time; STORE_FULL where the disk does not keep
        up."""
        self._check_open()
        return self.log.put(transactions, timeout_s=timeout_s)

    def try_put(self, transactions: Sequence[Transaction]) -> PutStatus:
        """Does not wait for room; for the flush it does, as :meth:`put` with RocketMQ's 5 s."""
        self._check_open()
        if not self.log.has_room:
            return PutStatus.STORE_FULL
        return self.log.put(transactions, timeout_s=_FLUSH_WAIT_S)

    def _count_put(self, transactions: Sequence[Transaction]) -> None:
        new, mark = [], Mark()
        for transaction in transactions:
            mark = mark._replace(
                number=mark.number + 1,
                bytes=mark.bytes + transaction.size_bytes,
                row_events=mark.row_events + transaction.row_events,
            )
            new.append(New(mark, transaction, transaction.commit_time_us))
        with self._metering:
            self._meter.put(new, Mark())

    # get

    def get(
        self,
        batch_size: int,
        *,
        start: Position | None = None,
        included: bool = False,
        timeout_s: float | None = None,
    ) -> Events:
        return self._hand_out(batch_size, start, included, None if timeout_s is None else time.monotonic() + timeout_s)

    def try_get(self, batch_size: int, *, start: Position | None = None, included: bool = False) -> Events:
        return self._hand_out(batch_size, start, included, time.monotonic())

    def _hand_out(self, batch_size: int, start: Position | None, included: bool, deadline: float | None) -> Events:
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

    def _extend(self, batch: _Batch) -> None:
        """Look at what has become visible since."""
        until = self.log.flushed.seq
        if batch.whole or until <= batch.seen:
            return
        for piece in self._walker.after(batch.seen, until):
            if batch.add(piece):
                break
        else:
            batch.seen = until
        self._reader.require_kept(batch.after)

    def _take(self, batch: _Batch) -> Events:
        taken = [transaction for piece in batch.pieces for transaction in self._walker.transactions(piece)]
        if not taken:
            return Events(())
        self._reader.require_kept(batch.after)  # it may have gone while it was read
        self._got = max(self._got, taken[-1].seq)
        with self._metering:
            self._meter.got(taken[-1], Mark(), _amount(len(taken), sum(t.size_bytes for t in taken)))
        end = taken[-1].position
        return Events(taken, taken[0].position, end, end)

    def _wake(self) -> None:
        with self._changed:
            self._changes += 1
            self._changed.notify_all()

    # ack and rollback

    def ack(self, position: Position) -> None:
        with self._lock:
            self._check_open()
            found = self._outstanding_at(position)
            if found is None:
                raise BatchError(
                    f"no transaction that was handed out and is not acked ends there ({self._outstanding()})",
                    place=_place(position),
                    remedy="Ack the positions that get returned, each once.",
                )
            count = size = 0
            for piece in self._walker.after(self._acked, position.seq):
                count += len(piece.entries)
                size += int(piece.entries["length"].sum())
            self._move_to(position.seq)
            with self._metering:
                self._meter.acked(found, Mark(), _amount(count, size))

    def rollback(self, batch: Events | None = None) -> None:
        with self._lock:
            self._check_open()
            if batch is None:
                self._got = self._acked
            elif batch.start is not None and batch.end is not None:
                if self._outstanding_at(batch.end) is None:
                    raise BatchError(
                        f"the batch is not outstanding ({self._outstanding()})",
                        place=f"batch {_place(batch.start)} to {_place(batch.end)}",
                        remedy="Roll back batches that were handed out, and neither acked nor rolled back since.",
                    )
                # A part of it that was acked stays so.
                self._got = max(self._acked, batch.start.seq - 1)
        self._wake()

    def _outstanding_at(self, position: Position) -> Transaction | None:
        """The transaction that was handed out, is not acked, and ends at exactly this position."""
        if not self._acked < position.seq <= self._got:
            return None
        found = self._last(position.seq)
        return found if found is not None and _identity(found.position) == _identity(position) else None

    def _outstanding(self) -> str:
        first = self._first(self._acked, self._got)
        last = self._last(self._got)
        if first is None or last is None:
            return "nothing is outstanding"
        return f"outstanding is {_place(first.position)} to {_place(last.position)}"

    # positions and cleaning

    def first_position(self) -> Position | None:
        with self._lock:
            self._check_open()
            found = self._first(self._acked, self.log.flushed.seq) or self._last(self._acked)
            return None if found is None or found.seq <= self._hidden else found.position

    def latest_position(self) -> Position | None:
        with self._lock:
            self._check_open()
            found = self._last(self.log.flushed.seq)
            return None if found is None or found.seq <= self._hidden else found.position

    def clean_until(self, position: Position) -> None:
        """Segments that hold nothing behind it go, for all readers of the log; the rest is hidden by the cursor."""
        with self._lock:
            self._check_open()
            found = self._last(min(position.seq, self.log.flushed.seq))
            if found is not None and found.seq > self._acked:
                self._move_to(found.seq)
            if found is not None:
                remove_until(self.log.path, found.seq)
        self._wake()

    def clean_all(self) -> None:
        """Whole segments but the newest go, for all readers of the log; what that holds is hidden by the cursor."""
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
        """Held is what can be read and is not acked: it is counted, which takes time where millions are."""
        with self._lock:
            events = size = 0
            for piece in self._walker.after(self._acked, self.log.flushed.seq):
                events += int(weights(piece.entries).sum())
                size += int(piece.entries["length"].sum())
        with self._metering:
            return self._meter.metrics(Mark(), Mark(events=Mark().events + events, bytes=size))

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
        """Everything up to here is done."""
        if self._meta is not None:
            self._meta.update_cursor(self.subscriber, seq)
        self._acked = seq
        self._got = max(self._got, seq)

    def _first(self, after_seq: int, until_seq: int) -> Transaction | None:
        for piece in self._walker.after(after_seq, until_seq):
            return self._walker.transactions(Piece(piece.segment, piece.entries[:1]), data=False)[0]
        return None

    def _last(self, until_seq: int) -> Transaction | None:
        piece = self._walker.last(until_seq)
        return None if piece is None else self._walker.transactions(piece, data=False)[0]

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError("the store is closed", place=str(layout.segments_folder(self.log.path).parent))


class _Batch:
    """Transactions behind a seq, as many as a batch may have."""

    def __init__(self, after: int, size: int, ddl_isolation: bool) -> None:
        self.after = after
        self.seen = after
        """Up to here the store was looked through."""
        self.whole = False
        """It would not grow by waiting."""
        self._size = size
        self._ddl_isolation = ddl_isolation
        self.pieces: list[Piece] = []
        self._weight = 0

    def add(self, piece: Piece) -> bool:
        """What follows; True where the batch is :attr:`whole` now."""
        entries = piece.entries
        self.seen = int(entries["seq"][-1])
        stop = len(entries)
        if self._ddl_isolation and (at := first_ddl(entries)) is not None:
            self.whole = True
            stop = at if at or self.pieces else 1
        total = self._weight + np.cumsum(weights(entries))
        fits = int(np.searchsorted(total, self._size, side="right"))
        if not self.pieces:
            fits = max(1, fits)
        stop = min(stop, fits)
        if int(total[-1]) >= self._size:
            self.whole = True
        if stop:
            self.pieces.append(Piece(piece.segment, entries[:stop]))
            self._weight = int(total[stop - 1])
        return self.whole


def _amount(transactions: int, size_bytes: int) -> Mark:
    """So much, counted from the first mark."""
    return Mark(number=Mark().number + transactions, bytes=size_bytes)


def _identity(position: Position) -> tuple[int, str, int, int]:
    """What Canal compares, and the seq: journal, offset, time."""
    return position.seq, position.file, position.pos, position.commit_time_us


def _place(position: Position) -> str:
    return f"{position.file}:{position.pos} (seq {position.seq})"
