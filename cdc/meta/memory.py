"""The meta in memory: for a program that reads the store in one process and need not remember anything after it.

Canal's MemoryMetaManager. Threads may share it; it is gone with the process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cdc.meta.base import Meta
from cdc.meta.named_locks import Turns
from cdc.meta.state import State


class MemoryMeta(Meta):
    """Meta of one destination, as long as this object lives."""

    def __init__(self, destination: str | None = None, *, lock_wait_s: float = 30.0) -> None:
        self._state = State(destination=destination)  # replaced, never changed in place: readers need no lock
        self._turns = Turns(lock_wait_s)

    @property
    def place(self) -> str:
        return f"memory of this process, destination {self._state.destination}"

    def read(self) -> State:
        return self._state.model_copy(deep=True)

    @contextmanager
    def change(self) -> Iterator[State]:
        with self._turns.turn(self.place):
            state = self.read()
            yield state
            self._state = state.model_copy(deep=True)  # the block may keep what it was given
