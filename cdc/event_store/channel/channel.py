"""A channel in memory between threads, with transactions for puts and takes: Flume's ``MemoryChannel``.

An item is seen by no other transaction before its put is committed, and is not gone before its take is committed.
``docs/decisions/0012`` names the differences from Flume and their reasons; ``docs/how-to/capacity.md`` has the sizing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from cdc.base.errors import ConfigError, TransactionStateError
from cdc.event_store.channel.queue import SLOT_BYTES, ChannelQueue, Sizes
from cdc.event_store.channel.transaction import ChannelTransaction

T = TypeVar("T")


@dataclass(frozen=True)
class ChannelMetrics:
    """Flume's ``ChannelCounter``, with its names. Sizes are those of this moment, counts are since the channel's
    creation."""

    channel_size: int
    """Items that can be taken."""
    channel_capacity: int
    channel_fill_percentage: float
    """Size as a percentage of the capacity."""
    event_put_attempt_count: int
    event_put_success_count: int
    """Committed puts."""
    event_take_attempt_count: int
    event_take_success_count: int
    """Committed takes."""
    held_events: int
    """Items that can be taken, and items taken by open transactions: the capacity limits their sum."""
    held_bytes: int
    """The same in bytes, in whole slots: the byte capacity limits it."""
    byte_capacity: int
    """Bytes for items: without the buffer percentage, in whole slots."""


class MemoryChannel(Generic[T]):
    """Passes items, such as whole transactions, from the threads that put them to those that take them. Thread-safe.

    ``capacity`` is the number of items held, including taken ones that are not committed. ``transaction_capacity`` is
    the number of puts, and of takes, in one transaction. ``byte_capacity`` is the memory for items and their overhead;
    ``byte_capacity_buffer_percentage`` of it is kept free. ``size_of`` returns an item's bytes; the default is its
    ``size_bytes``. ``keep_alive_s`` is how long a take waits for an item, a commit for room, and a resize for items to
    be taken.

    Raises ConfigError if a value is out of range or contradicts another. Source: Flume's ``MemoryChannel``, with its
    defaults except for the byte capacity, which there is four fifths of Java's heap.
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
                f"{byte_capacity_buffer_percentage} is not a percentage from 0 to 99",
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
        """Returns a new transaction. ``with channel.transaction() as t:`` begins it and commits it, or rolls it back on
        an exception."""
        return ChannelTransaction(self._queue, self.transaction_capacity, self._size_of)

    @property
    def capacity(self) -> int:
        """The number of items that the channel may hold."""
        return self._queue.sizes.events

    @property
    def byte_capacity(self) -> int:
        """Bytes for items: without the buffer percentage, in whole slots."""
        return self._queue.sizes.slots * SLOT_BYTES

    def resize(self, *, capacity: int | None = None, byte_capacity: int | None = None) -> None:
        """Changes a size, or both one after the other, while the channel is in use.

        Growing is immediate. Shrinking waits until no more than the new size is held, at most ``keep_alive_s``, and
        commits keep to the new size meanwhile. After that time it raises ChannelFullError, and the old size stays.
        Raises ConfigError like the constructor, and changes nothing then.
        """
        events = None if capacity is None else self._checked_capacity(capacity)
        slots = None if byte_capacity is None else self._usable_slots(byte_capacity)
        if events is not None:
            self._queue.resize("capacity", lambda sizes: Sizes(events, sizes.slots))
        if slots is not None:
            self._queue.resize("byte_capacity", lambda sizes: Sizes(sizes.events, slots))

    def metrics(self) -> ChannelMetrics:
        """Returns the metrics, also of a closed channel."""
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
        """Closes the channel; calls that wait end with StoreClosedError. May be called twice.

        Raises TransactionStateError, after the channel is closed, if a transaction is open or was garbage collected
        while open.
        """
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
            # An error that ends the block is more important.
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
