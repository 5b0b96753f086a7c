"""A channel in memory between threads, with transactions on both sides: Flume's ``MemoryChannel``.

What is put is seen by nobody before its commit; what is taken is not gone before its commit. Where Flume's behaviour is
not kept, ``docs/decisions/0012`` says why; ``docs/how-to/capacity.md`` has the sizing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from cdc.channel.queue import SLOT_BYTES, ChannelQueue, Sizes
from cdc.channel.transaction import ChannelTransaction
from cdc.errors import ConfigError, TransactionStateError

T = TypeVar("T")


@dataclass(frozen=True)
class ChannelMetrics:
    """Flume's ``ChannelCounter``, by its names; sizes as of now, counts since the channel was made."""

    channel_size: int
    """Items that can be taken."""
    channel_capacity: int
    channel_fill_percentage: float
    """Size by capacity."""
    event_put_attempt_count: int
    event_put_success_count: int
    """Puts that were committed."""
    event_take_attempt_count: int
    event_take_success_count: int
    """Takes that were committed."""
    held_events: int
    """Items that can be taken, and those taken by transactions that are open: what the capacity counts."""
    held_bytes: int
    """The same in bytes, whole slots: what the byte capacity counts."""
    byte_capacity: int
    """For items, the buffer percentage taken off, whole slots."""


class MemoryChannel(Generic[T]):
    """Items, whole transactions for instance, between those who put and those who take; safe for threads.

    ``capacity``: items held, those taken and not committed included. ``transaction_capacity``: puts, and takes, of one
    transaction. ``byte_capacity``: bytes of memory for items and what goes with them;
    ``byte_capacity_buffer_percentage`` of it is kept free. ``size_of`` gives an item's bytes; its ``size_bytes`` where
    it is left out. ``keep_alive_s``: how long a take waits for an item, a commit for room, a shrinking for its turn.

    Raises ConfigError where a value is out of range or contradicts another. Source: Flume's ``MemoryChannel``, with its
    defaults but for the byte capacity, which there is four fifths of Java's heap.
    """

    def __init__(
        self,
        *,
        capacity: int = 100,
        transaction_capacity: int = 100,
        byte_capacity: int = 268435456,
        byte_capacity_buffer_percentage: int = 20,
        keep_alive_s: float = 3.0,
        size_of: Callable[[T], int] | None = None,
    ) -> None:
        _at_least("transaction_capacity", transaction_capacity, 1)
        _at_least("keep_alive_s", keep_alive_s, 0)
        if not 0 <= byte_capacity_buffer_percentage < 100:
            raise ConfigError(
                f"{byte_capacity_buffer_percentage} is no percentage that leaves room",
                place="byte_capacity_buffer_percentage",
                remedy="Take 20, or another number from 0 to 99.",
            )
        self.transaction_capacity = transaction_capacity
        self.byte_capacity_buffer_percentage = byte_capacity_buffer_percentage
        self.keep_alive_s = keep_alive_s
        self._size_of: Callable[[T], int] = size_of or _size_bytes
        sizes = Sizes(self._checked_capacity(capacity), self._usable_slots(byte_capacity))
        self._queue: ChannelQueue[T] = ChannelQueue(sizes, keep_alive_s)

    def transaction(self) -> ChannelTransaction[T]:
        """A new one. ``with channel.transaction() as t:`` begins it, commits it, or rolls it back on an exception."""
        return ChannelTransaction(self._queue, self.transaction_capacity, self._size_of)

    @property
    def capacity(self) -> int:
        """Items."""
        return self._queue.sizes.events

    @property
    def byte_capacity(self) -> int:
        """Bytes for items, the buffer percentage taken off, whole slots."""
        return self._queue.sizes.slots * SLOT_BYTES

    def resize(self, *, capacity: int | None = None, byte_capacity: int | None = None) -> None:
        """Change a size, or both one after the other, while running. Growing is immediate. Shrinking waits until no
        more is held than the new size, at most ``keep_alive_s``, with commits kept to the new size meanwhile; then
        ChannelFullError, and the old size stays. Raises ConfigError like the constructor, and changes nothing then."""
        events = None if capacity is None else self._checked_capacity(capacity)
        slots = None if byte_capacity is None else self._usable_slots(byte_capacity)
        if events is not None:
            self._queue.resize("capacity", lambda sizes: Sizes(events, sizes.slots))
        if slots is not None:
            self._queue.resize("byte_capacity", lambda sizes: Sizes(sizes.events, slots))

    def metrics(self) -> ChannelMetrics:
        """As of now; also of a channel that is closed."""
        queue = self._queue
        with queue.lock:
            queue.take_back_abandoned()
            return ChannelMetrics(
                channel_size=len(queue.items),
                channel_capacity=queue.sizes.events,
                channel_fill_percentage=100 * len(queue.items) / queue.sizes.events,
                event_put_attempt_count=queue.put_attempts,
                event_put_success_count=queue.put_successes,
                event_take_attempt_count=queue.take_attempts,
                event_take_success_count=queue.take_successes,
                held_events=queue.held.events,
                held_bytes=queue.held.slots * SLOT_BYTES,
                byte_capacity=queue.sizes.slots * SLOT_BYTES,
            )

    def close(self) -> None:
        """Calls that wait end with StoreClosedError. Raises TransactionStateError, once it is closed, where a
        transaction is open or was garbage collected while open. Closing twice is nothing."""
        queue = self._queue
        with queue.lock:
            if queue.closed:
                return
            queue.take_back_abandoned()
            queue.close()
            if queue.open_transactions or queue.left_open:
                raise TransactionStateError(
                    f"closed while {queue.open_transactions} of its transactions are open, and after "
                    f"{queue.left_open} were left open and garbage collected",
                    place="channel",
                    remedy="Commit or roll back, and close, each transaction; best in a with block.",
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except TransactionStateError:
            # Where the block ends by an error, that one says more.
            if error is None:
                raise

    def _checked_capacity(self, capacity: int) -> int:
        _at_least("capacity", capacity, 1)
        if self.transaction_capacity > capacity:
            raise ConfigError(
                f"{self.transaction_capacity} is more than the capacity of {capacity}",
                place="transaction_capacity",
                remedy="A transaction that large could never be committed: make it smaller, or the capacity larger.",
            )
        return capacity

    def _usable_slots(self, byte_capacity: int) -> int:
        slots = byte_capacity * (100 - self.byte_capacity_buffer_percentage) // 100 // SLOT_BYTES
        if slots < 1:
            raise ConfigError(
                f"{byte_capacity} bytes with {self.byte_capacity_buffer_percentage} % kept free leave no slot of "
                f"{SLOT_BYTES}",
                place="byte_capacity",
                remedy="Make it larger.",
            )
        return slots


def _size_bytes(item: Any) -> int:
    return int(item.size_bytes)


def _at_least(name: str, value: float, least: int) -> None:
    if not value >= least:
        raise ConfigError(f"{value} is out of range", place=name, remedy=f"Take at least {least}.")
