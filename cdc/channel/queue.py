"""What a channel holds, and who waits for it: the queue under :class:`cdc.channel.channel.MemoryChannel`."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

from cdc.errors import ChannelFullError, StoreClosedError

T = TypeVar("T")

SLOT_BYTES = 100
"""Bytes are counted in slots of so many, at least one for each item (Flume's ``byteCapacitySlotSize``)."""


class Stored(NamedTuple, Generic[T]):
    """An item in the channel; ``number`` is its place in the order of commits."""

    number: int
    item: T
    slots: int


class Sizes(NamedTuple):
    """How much a channel may hold, or does: items, and slots of :data:`SLOT_BYTES`."""

    events: int
    slots: int


class ChannelQueue(Generic[T]):
    """The items in order, with what they take of both capacities. All but :meth:`resize` is called under ``lock``."""

    def __init__(self, sizes: Sizes, keep_alive_s: float) -> None:
        self.keep_alive_s = keep_alive_s
        self.lock = threading.Lock()
        self.sizes = sizes
        self.goal = sizes
        """The sizes that commits keep to: those of a shrinking while one waits, else it might never come to an end."""
        self.held = Sizes(0, 0)
        """What can be taken, and what was taken by transactions that are open. Always the sum over these items."""
        self.items: deque[Stored[T]] = deque()
        self.put_attempts = self.put_successes = self.take_attempts = self.take_successes = 0
        self.open_transactions = 0
        self.left_open = 0
        """Transactions that were garbage collected while open."""
        self.abandoned: deque[list[Stored[T]]] = deque()
        """What these had taken, until the next call takes it back."""
        self.closed = False
        self._number = 0
        self._ready = threading.Condition(self.lock)
        self._room = threading.Condition(self.lock)
        self._one_resize = threading.Lock()

    def check_open(self) -> None:
        if self.closed:
            raise StoreClosedError("the channel is closed")

    def close(self) -> None:
        """Wakes all who wait."""
        self.closed = True
        self._ready.notify_all()
        self._room.notify_all()

    def take(self) -> Stored[T] | None:
        """The oldest; waits ``keep_alive_s`` for one."""
        self.take_attempts += 1
        return self.items.popleft() if self._wait(self._ready, lambda: bool(self.items)) else None

    def give_back(self, taken: Iterable[Stored[T]]) -> None:
        """To the head, in the order of commits, whoever took them and whoever gives them back first."""
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
        """Both at once: what is taken makes room for what is put. Waits ``keep_alive_s`` for the rest."""
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
        """From the sizes now to others; waits ``keep_alive_s`` until no more is held."""
        with self._one_resize, self.lock:
            self.goal = goal(self.sizes)
            self._room.notify_all()
            try:
                if not self._wait(self._room, self._within_goal):
                    events = what == "capacity"
                    held = f"{self.held.events} items" if events else f"{self.held.slots * SLOT_BYTES} bytes"
                    size = self.goal.events if events else self.goal.slots * SLOT_BYTES
                    raise ChannelFullError(
                        f"resizing was given up: {held} are still held after {self.keep_alive_s} s, "
                        f"the new size is {size}",
                        place=what,
                        remedy="The old size stays. Let more be taken first, or raise keep_alive_s.",
                    )
                self.sizes = self.goal
            finally:
                self.goal = self.sizes
                self._room.notify_all()

    def take_back_abandoned(self) -> None:
        """Whatever transactions had taken that were garbage collected while open."""
        while self.abandoned:
            taken = self.abandoned.popleft()
            self.open_transactions -= 1
            self.left_open += 1
            self.give_back(taken)

    def _within_goal(self) -> bool:
        # What does not shrink may be over its size for no reason of this resizing, so it is not looked at.
        return (self.held.events <= self.goal.events or self.goal.events >= self.sizes.events) and (
            self.held.slots <= self.goal.slots or self.goal.slots >= self.sizes.slots
        )

    def _wait(self, condition: threading.Condition, done: Callable[[], bool]) -> bool:
        """Until it is done, at most ``keep_alive_s``."""
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
            remedy="Those who take do not keep up. Commit again or roll back; raise it if that happens often.",
        )
