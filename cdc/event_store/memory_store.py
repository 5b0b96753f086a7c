"""The event store in memory: Canal's ring of events, over whole transactions.

The rules are those of ``MemoryEventStoreWithBuffer``; ``docs/decisions/0011`` names the rules that whole transactions
change. ``docs/how-to/capacity.md`` has the sizing.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Literal

from cdc.base.errors import BatchError, ConfigError, StoreClosedError, StoreLimitError, UsageError
from cdc.event_store.contract import EventStore
from cdc.event_store.meter import StoreMeter
from cdc.event_store.ring import NewTransaction, Ring, RingMark
from cdc.event_store.transaction import Events, LogPosition, StoreMetrics, Transaction
from cdc.store.writer.durability import PutStatus

BatchMode = Literal["itemsize", "memsize"]


class MemoryStore(EventStore):
    """Keeps the unacked transactions of one source in memory, limited by events and bytes.

    ``buffer_size`` is the number of slots, a power of two; a transaction takes one for each of its events, at least
    one. With ``batch_mode`` ``itemsize`` a batch size counts events, and a put waits for slots. With ``memsize`` a
    batch size counts units of ``buffer_unit_bytes``, and a put also waits until less than ``buffer_size ×
    buffer_unit_bytes`` is held. That is compared before the put, so a transaction of any size fits while there is room.
    Without ``ddl_isolation`` a DDL is returned like any transaction.

    A transaction of more events than there are slots is refused, or, with ``takes_larger``, put when nothing else is
    held: whole transactions cannot go in one part after another, as Canal's do.

    Puts are served in the order in which they came. A waiting put is never overtaken: the later one has the higher seq,
    and the waiting one would then be ignored as a repetition. A get that waits for a whole batch returns what there is
    once a put finds no room, because the batch could not grow any more.

    A put, an ack and a get take constant time for each transaction, and logarithmic time for each call. Raises
    ConfigError if a parameter is out of range. Source: Canal's ``MemoryEventStoreWithBuffer``.
    """

    def __init__(
        self,
        *,
        buffer_size: int = 16384,
        buffer_unit_bytes: int = 1024,
        batch_mode: BatchMode = "memsize",
        ddl_isolation: bool = True,
        takes_larger: bool = False,
    ) -> None:
        _check_settings(buffer_size, buffer_unit_bytes, batch_mode)
        self.buffer_size = buffer_size
        self.buffer_unit_bytes = buffer_unit_bytes
        self.batch_mode: BatchMode = batch_mode
        self.ddl_isolation = ddl_isolation
        self.takes_larger = takes_larger
        self._memsize = batch_mode == "memsize"
        # A transaction takes at least one slot, so there are never more transactions than slots.
        self._ring = Ring(buffer_size)
        self._done: LogPosition | None = None
        """The last transaction that was acked or removed. Once all are, it is the oldest and the newest position."""
        self._meter = StoreMeter()
        self._closed = False
        self._short_of_room = False
        """Whether a put has found no room since an ack last made room."""
        self._queue: deque[object] = deque()
        """The waiting puts, in order."""
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._ready = threading.Condition(self._lock)

    @property
    def put_sequence(self) -> int:
        """The number of the last event that was put, from 0; −1 before the first."""
        return self._ring.put.events

    @property
    def get_sequence(self) -> int:
        """The number of the last event that a get returned."""
        return self._ring.get.events

    @property
    def ack_sequence(self) -> int:
        """The number of the last event that was acked or removed."""
        return self._ring.ack.events

    # put

    def put(self, transactions: Sequence[Transaction], *, timeout_s: float | None = None) -> PutStatus:
        return self._store(transactions, None if timeout_s is None else time.monotonic() + timeout_s)

    def try_put(self, transactions: Sequence[Transaction]) -> PutStatus:
        return self._store(transactions, time.monotonic())

    def _store(self, transactions: Sequence[Transaction], deadline: float | None) -> PutStatus:
        with self._lock:
            self._check_open()
            new = self._ring.above_newest(transactions)
            self._check_limit(new)
            if new and (self._queue or not self._fits(new)):
                turn = object()
                self._queue.append(turn)
                try:
                    while new and not (self._queue[0] is turn and self._fits(new)):
                        if not self._wait_for_room(deadline):
                            return PutStatus.STORE_FULL
                        # Others may have put meanwhile, the same transactions perhaps.
                        new = self._ring.above_newest(n.transaction for n in new)
                finally:
                    self._queue.remove(turn)
                    self._room.notify_all()
            if new:
                self._meter.put(new, self._ring.put)
                self._ring.append(new)
                self._ready.notify_all()
            return PutStatus.PUT_OK

    def _fits(self, new: Sequence[NewTransaction]) -> bool:
        """Returns whether the transactions fit, by Canal's rule. Their marks must be up to date."""
        ring = self._ring
        if self.takes_larger and len(new) == 1 and ring.put.number == ring.ack.number:
            return True
        if new[-1].mark.events - self.buffer_size > ring.ack.events:
            return False
        return not self._memsize or ring.put.bytes - ring.ack.bytes < self.buffer_size * self.buffer_unit_bytes

    def _wait_for_room(self, deadline: float | None) -> bool:
        """Waits until there may be room. Returns False after the deadline."""
        if not self._short_of_room:
            self._short_of_room = True
            self._ready.notify_all()
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            return False
        self._room.wait(left)
        self._check_open()
        return True

    def _check_limit(self, new: Sequence[NewTransaction]) -> None:
        slots = new[-1].mark.events - self._ring.put.events if new else 0
        if slots <= self.buffer_size or (self.takes_larger and len(new) == 1):
            return
        for _, transaction, _ in new:
            if transaction.events > self.buffer_size:
                raise StoreLimitError(
                    f"the transaction has {transaction.events} events, the ring {self.buffer_size} slots",
                    place=str(transaction.position),
                    remedy="Make buffer_size larger, or use a store of kind file, which takes any transaction.",
                )
        raise StoreLimitError(
            f"{len(new)} transactions put at once have {slots} events, the ring {self.buffer_size} slots",
            place=str(new[0].transaction.position),
            remedy="Put fewer at once, or make buffer_size larger.",
        )

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
            raise UsageError(f"a batch size of {batch_size} makes no sense", remedy="It is at least 1.")
        size = batch_size * self.buffer_unit_bytes if self._memsize else batch_size
        with self._lock:
            self._check_open()
            while not self._whole(before := self._before(start, included), size):
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._ready.wait(left)
                self._check_open()
            return self._take(before, size)

    def wait_for_more(self, timeout_s: float | None = None) -> bool:
        with self._lock:
            self._check_open()
            self._ready.wait_for(lambda: self._closed or self._ring.get.number < self._ring.put.number, timeout_s)
            self._check_open()
            return self._ring.get.number < self._ring.put.number

    def _before(self, start: LogPosition | None, included: bool) -> RingMark:
        """Returns the mark after which a batch begins."""
        if start is None:
            return self._ring.get
        return self._ring.mark(self._ring.find(start.seq if included else start.seq + 1) - 1)

    def _whole(self, before: RingMark, size: int) -> bool:
        """Returns whether a batch is complete: it would not grow by waiting."""
        put = self._ring.put
        if put.number == before.number:
            return False
        if self._short_of_room or self._size(put) - self._size(before) >= size:
            return True
        return self.ddl_isolation and put.ddl > before.number

    def _take(self, before: RingMark, size: int) -> Events:
        ring, first = self._ring, before.number + 1
        if first > ring.put.number:
            return Events(())
        last = ring.last_within(first, self._size, self._size(before) + size)
        if self.ddl_isolation and (ddl := ring.next_ddl(first, last)) is not None:
            last = max(first, ddl - 1)
        end = ring.mark(last)
        if end.number > ring.get.number:
            ring.get = end
        taken = ring.between(first, last + 1)
        self._meter.got(taken[-1], before, end)
        position = taken[-1].position
        return Events(taken, position if first == last else taken[0].position, position, position)

    def _size(self, mark: RingMark) -> int:
        return mark.bytes if self._memsize else mark.events

    # ack and rollback

    def ack(self, position: LogPosition) -> None:
        with self._lock:
            self._check_open()
            outstanding = self._outstanding(position)
            if outstanding is None:
                raise BatchError(
                    f"no outstanding transaction ends there ({self._describe_outstanding()})",
                    place=str(position),
                    remedy="Ack the positions that get returned, each once.",
                )
            number, end = outstanding
            mark = self._ring.mark(number)
            self._meter.acked(self._ring.at(number), self._ring.ack, mark)
            self._forget(mark, end)

    def rollback(self, batch: Events | None = None) -> None:
        """Rolls back as in the contract. An acked part of the batch stays acked; an empty batch does nothing."""
        with self._lock:
            self._check_open()
            if batch is None:
                self._ring.get = self._ring.ack
            elif batch.start is not None and batch.end is not None:
                if self._outstanding(batch.end) is None:
                    raise BatchError(
                        f"the batch is not outstanding ({self._describe_outstanding()})",
                        place=f"batch {batch.start} to {batch.end}",
                        remedy="Roll back only batches that get returned and that are neither acked nor rolled back.",
                    )
                self._ring.get = self._ring.mark(self._ring.find(batch.start.seq) - 1)
            self._ready.notify_all()

    def _outstanding(self, position: LogPosition) -> tuple[int, LogPosition] | None:
        """Returns the number and the end of the outstanding transaction that ends at exactly this position; None if
        there is none."""
        number = self._ring.find(position.seq)
        if number > self._ring.get.number:
            return None
        end = self._ring.at(number).position
        return (number, end) if end.identity == position.identity else None

    def _describe_outstanding(self) -> str:
        ring = self._ring
        if ring.get.number == ring.ack.number:
            return "nothing is outstanding"
        first, last = ring.at(ring.ack.number + 1).position, ring.at(ring.get.number).position
        return f"outstanding is {first} to {last}"

    # positions and cleaning

    def first_position(self) -> LogPosition | None:
        with self._lock:
            self._check_open()
            ring = self._ring
            return self._done if ring.ack.number == ring.put.number else ring.at(ring.ack.number + 1).position

    def latest_position(self) -> LogPosition | None:
        with self._lock:
            self._check_open()
            ring = self._ring
            return self._done if ring.ack.number == ring.put.number else ring.at(ring.put.number).position

    def clean_until(self, position: LogPosition) -> None:
        with self._lock:
            self._check_open()
            number = self._ring.find(position.seq + 1) - 1
            if number > self._ring.ack.number:
                self._forget(self._ring.mark(number), self._ring.at(number).position)

    def clean_all(self) -> None:
        with self._lock:
            self._check_open()
            self._forget(self._ring.put, None)

    def metrics(self) -> StoreMetrics:
        """Returns the metrics, also of a closed store."""
        with self._lock:
            return self._meter.metrics(self._ring.ack, self._ring.put)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._forget(self._ring.put, None)
            self._ready.notify_all()

    def _forget(self, mark: RingMark, position: LogPosition | None) -> None:
        """Frees the room of everything up to ``mark``."""
        if mark.number > self._ring.ack.number:
            self._ring.release(mark)
        self._done = position
        self._short_of_room = False
        self._room.notify_all()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError("the memory store is closed")


def _check_settings(buffer_size: int, buffer_unit_bytes: int, batch_mode: str) -> None:
    if buffer_size < 1 or buffer_size & (buffer_size - 1):
        remedy = "Take 16384, or another power of two."
        raise ConfigError(f"{buffer_size} is not a power of two", place="store.buffer_size", remedy=remedy)
    if buffer_unit_bytes < 1:
        remedy = "Take 1024, or another number from 1."
        raise ConfigError(f"{buffer_unit_bytes} is less than a byte", place="store.buffer_unit_bytes", remedy=remedy)
    if batch_mode not in ("itemsize", "memsize"):
        remedy = "Take itemsize or memsize."
        raise ConfigError(f"{batch_mode!r} is not a batch mode", place="store.batch_mode", remedy=remedy)
