"""The queue of a :class:`~cdc.event_store.channel.channel.MemoryChannel`: its items, and the threads that wait."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

from cdc.base.errors import ChannelFullError, StoreClosedError

T = TypeVar("T")

SLOT_BYTES = 100
"""Size of a slot. Bytes are counted in slots, at least one for each item (Flume's ``byteCapacitySlotSize``)."""


class Stored(NamedTuple, Generic[T]):
    """An item in the channel; ``number`` counts items in the order of commits."""

    number: int
    item: T
    slots: int


class Sizes(NamedTuple):
    """The sizes that a channel has or holds: items, and slots of :data:`SLOT_BYTES`."""

    events: int
    slots: int


class ChannelQueue(Generic[T]):
    """Holds items in order, and counts their use of both capacities. Call every method but :meth:`resize` under
    ``lock``."""

    def __init__(self, sizes: Sizes, keep_alive_s: float) -> None:
        self.keep_alive_s = keep_alive_s
        self.lock = threading.Lock()
        self.sizes = sizes
        self.goal = sizes
        """The sizes that commits keep to. While a resize waits they are the new, smaller ones; otherwise it might never
        end."""
        self.held = Sizes(0, 0)
        """Sizes of the items that can be taken, and of those taken by open transactions."""
        self.items: deque[Stored[T]] = deque()
        self.put_attempts = self.put_successes = self.take_attempts = self.take_successes = 0
        self.open_transactions = 0
        self.left_open = 0
        """Transactions that were garbage collected while open."""
        self.abandoned: deque[list[Stored[T]]] = deque()
        """The items that these transactions had taken, until the next call puts them back."""
        self.closed = False
        self._number = 0
        self._ready = threading.Condition(self.lock)
        self._room = threading.Condition(self.lock)
        self._one_resize = threading.Lock()

    def check_open(self) -> None:
        if self.closed:
            raise StoreClosedError("the channel is closed")

    def close(self) -> None:
        """Closes the queue and wakes all threads that wait."""
        self.closed = True
        self._ready.notify_all()
        self._room.notify_all()

    def take(self) -> Stored[T] | None:
        """Takes the oldest item; waits at most ``keep_alive_s`` for one, then returns None."""
        self.take_attempts += 1
        return self.items.popleft() if self._wait(self._ready, lambda: bool(self.items)) else None

    def give_back(self, taken: Iterable[Stored[T]]) -> None:
        """Puts taken items back to the head, in the order of commits, in whatever order transactions return them."""
        back = list(taken)
        if not back:
            return
        last = back[-1].number
        while self.items and self.items[0].number < last:
            back.append(self.items.popleft())
        back.sort(key=lambda stored: stored.number)
        self.items.extendleft(reversed(back))
        self._ready.notify_all()

    def commit(self, puts: Sequence[tuple[T, int]], takes: Sequence[Stored[T]]) -> None:
        """Commits puts and takes together, so that takes make room for puts. Waits at most ``keep_alive_s`` for more
        room, then raises ChannelFullError."""
        events = len(puts) - len(takes)
        slots = sum(slots for _, slots in puts) - sum(stored.slots for stored in takes)

        def too_many() -> bool:
            return events > 0 and self.held.events + events > self.goal.events

        def too_large() -> bool:
            return slots > 0 and self.held.slots + slots > self.goal.slots

        if not self._wait(self._room, lambda: not too_many() and not too_large()):
            raise self._full(too_large=too_large())
        self.held = Sizes(self.held.events + events, self.held.slots + slots)
        for item, size in puts:
            self.items.append(Stored(self._number, item, size))
            self._number += 1
        self.put_successes += len(puts)
        self.take_successes += len(takes)
        if puts:
            self._ready.notify_all()
        if takes:
            self._room.notify_all()

    def resize(self, what: str, goal: Callable[[Sizes], Sizes]) -> None:
        """Changes the sizes; waits at most ``keep_alive_s`` until no more than the new sizes is held, then raises
        ChannelFullError."""
        with self._one_resize, self.lock:
            self.goal = goal(self.sizes)
            self._room.notify_all()
            try:
                if not self._wait(self._room, self._within_goal):
                    events = what == "capacity"
                    held = f"{self.held.events} items" if events else f"{self.held.slots * SLOT_BYTES} bytes"
                    size = self.goal.events if events else self.goal.slots * SLOT_BYTES
                    raise ChannelFullError(
                        f"resizing was aborted: {held} are still held after {self.keep_alive_s} s, "
                        f"the new size is {size}",
                        place=what,
                        remedy="The old size stays. Take more items first, or raise keep_alive_s.",
                    )
                self.sizes = self.goal
            finally:
                self.goal = self.sizes
                self._room.notify_all()

    def take_back_abandoned(self) -> None:
        """Puts back the items of transactions that were garbage collected while open."""
        while self.abandoned:
            taken = self.abandoned.popleft()
            self.open_transactions -= 1
            self.left_open += 1
            self.give_back(taken)

    def _within_goal(self) -> bool:
        # A size that does not shrink is not compared: it may be exceeded for other reasons.
        return (self.held.events <= self.goal.events or self.goal.events >= self.sizes.events) and (
            self.held.slots <= self.goal.slots or self.goal.slots >= self.sizes.slots
        )

    def _wait(self, condition: threading.Condition, done: Callable[[], bool]) -> bool:
        """Waits until ``done`` returns true, at most ``keep_alive_s``. Returns whether it did."""
        deadline = time.monotonic() + self.keep_alive_s
        while True:
            self.check_open()
            self.take_back_abandoned()
            if done():
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            condition.wait(left)

    def _full(self, *, too_large: bool) -> ChannelFullError:
        held, size, unit = self.held.events, self.goal.events, "items"
        if too_large:
            held, size, unit = self.held.slots * SLOT_BYTES, self.goal.slots * SLOT_BYTES, "bytes"
        return ChannelFullError(
            f"no room for the commit after {self.keep_alive_s} s: {held} of {size} {unit} are held",
            place="byte_capacity" if too_large else "capacity",
            remedy="The takes do not keep up. Commit again or roll back; raise the capacity if that happens often.",
        )
