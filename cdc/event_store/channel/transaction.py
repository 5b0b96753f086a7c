"""Transactions of a channel: Flume's ``BasicTransactionSemantics``."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Generic, Self, TypeVar

from cdc.base.errors import ChannelFullError, StoreLimitError, TransactionStateError
from cdc.event_store.channel.queue import SLOT_BYTES, ChannelQueue, Stored

T = TypeVar("T")


class ChannelTransaction(Generic[T]):
    """Puts and takes that are committed together. Made by ``MemoryChannel.transaction``, and used by one thread at a
    time.

    The order of calls is ``begin``; any of ``put`` and ``take``; ``commit`` or ``rollback``; ``close``. Any other order
    raises TransactionStateError. A commit that found no room may be tried again. As a context manager it begins, and
    commits at the end of the block, or rolls back on an exception.
    """

    _state = "NEW"

    def __init__(self, queue: ChannelQueue[T], capacity: int, size_of: Callable[[T], int]) -> None:
        self._queue = queue
        self._capacity = capacity
        self._size_of = size_of
        self._puts: list[tuple[T, int]] = []
        self._put_slots = 0
        self._takes: list[Stored[T]] = []

    @property
    def state(self) -> str:
        """``NEW``, ``OPEN``, ``COMPLETED`` or ``CLOSED``."""
        return self._state

    def begin(self) -> None:
        """Opens the transaction; once."""
        with self._queue.lock:
            self._need("NEW", "begin")
            self._queue.check_open()
            self._queue.open_transactions += 1
            self._state = "OPEN"

    def put(self, item: T) -> None:
        """Adds an item to the put list; it is not visible before the commit.

        Raises ChannelFullError if the list is full or would exceed the byte capacity, and StoreLimitError if the item
        alone would. The transaction then stays open, without the item.
        """
        slots = max(1, -(-self._size_of(item) // SLOT_BYTES))
        with self._queue.lock:
            self._need("OPEN", "put")
            self._queue.check_open()
            self._queue.put_attempts += 1
            self._check_list("put", len(self._puts))
            limit = self._queue.sizes.slots
            if slots > limit:
                raise StoreLimitError(
                    f"the item takes {slots * SLOT_BYTES} bytes, the channel has {limit * SLOT_BYTES}",
                    place="byte_capacity",
                    remedy="Raise it, or use a store of kind file.",
                )
            if self._put_slots + slots > limit:
                raise ChannelFullError(
                    f"the puts of one transaction would take more than the {limit * SLOT_BYTES} bytes of the channel",
                    place="byte_capacity",
                    remedy="Commit more often, or raise it.",
                )
            self._puts.append((item, slots))
            self._put_slots += slots

    def take(self) -> T | None:
        """Takes the oldest item, which other transactions do not see any more. Waits at most ``keep_alive_s``, then
        returns None. Raises ChannelFullError if the take list is full."""
        with self._queue.lock:
            self._need("OPEN", "take")
            self._queue.check_open()
            self._check_list("take", len(self._takes))
            stored = self._queue.take()
            if stored is None:
                return None
            self._takes.append(stored)
            return stored.item

    def commit(self) -> None:
        """Makes the puts visible, in order, and removes the takes. Waits at most ``keep_alive_s`` for room, then raises
        ChannelFullError, which names the capacity; the transaction is still open then, for another commit or a
        rollback."""
        with self._queue.lock:
            self._need("OPEN", "commit")
            self._queue.commit(self._puts, self._takes)
            self._end("COMPLETED")

    def rollback(self) -> list[T]:
        """Returns the taken items to the head of the channel, in order. The channel drops the puts and returns them:
        put them again if their source cannot deliver them a second time."""
        with self._queue.lock:
            self._need("OPEN", "rollback")
            return self._undo("COMPLETED")

    def close(self) -> None:
        """Ends the transaction. An open one is rolled back first, and TransactionStateError is raised."""
        with self._queue.lock:
            if self._state == "OPEN":
                puts, takes = len(self._puts), len(self._takes)
                self._undo("CLOSED")
                raise TransactionStateError(
                    f"closed while it was open, with {puts} puts and {takes} takes; it was rolled back",
                    place="channel transaction",
                    remedy="Call commit or rollback before.",
                )
            self._state = "CLOSED"

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._state == "OPEN" and error is None:
                self.commit()
        finally:
            if self._state == "OPEN":
                self.rollback()
            self.close()

    def __del__(self) -> None:
        # This may run at any moment, also in a thread that holds the lock, so it must not wait for it. The next call
        # to the channel puts the items back, and the channel's close() raises the error.
        if self._state != "OPEN":
            return
        self._queue.abandoned.append(self._takes)
        if self._queue.lock.acquire(blocking=False):
            try:
                self._queue.take_back_abandoned()
            finally:
                self._queue.lock.release()
        warnings.warn("a channel's transaction was left open", ResourceWarning, stacklevel=2, source=self)

    def _undo(self, state: str) -> list[T]:
        self._queue.give_back(self._takes)
        puts = [item for item, _ in self._puts]
        self._end(state)
        return puts

    def _end(self, state: str) -> None:
        self._puts, self._takes, self._put_slots = [], [], 0
        self._queue.open_transactions -= 1
        self._state = state

    def _need(self, state: str, call: str) -> None:
        if self._state != state:
            raise TransactionStateError(
                f"{call}() needs one that is {state}, this is {self._state}",
                place="channel transaction",
                remedy="The order is begin, put and take, commit or rollback, close; then ask for a new transaction.",
            )

    def _check_list(self, which: str, length: int) -> None:
        if length >= self._capacity:
            raise ChannelFullError(
                f"the {which} list of the transaction is full: {length} of {self._capacity} items",
                place="transaction_capacity",
                remedy="Commit more often, or raise it.",
            )
