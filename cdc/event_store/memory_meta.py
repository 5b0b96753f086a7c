"""The meta in memory, for programs of one process that need not remember anything afterwards.

After Canal's MemoryMetaManager. Threads may share it; it is lost with the process. No configuration selects it, because
capture and apply are several processes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from cdc.errors import LeaseHeldError
from cdc.meta.base import Meta
from cdc.meta.state import State


class NamedLock:
    """A lock for the threads of one process that names its holder when the wait for it times out."""

    def __init__(self, wait_s: float, doing: str = "is changing it and does not finish") -> None:
        self._wait_s = wait_s
        self._doing = doing
        self._lock = threading.Lock()
        self._holder = ""

    @contextmanager
    def hold(self, place: str, wait_s: float | None = None) -> Iterator[None]:
        """Holds the lock while the block runs. Raises LeaseHeldError, naming the holder, after the time-out."""
        if not self._lock.acquire(timeout=self._wait_s if wait_s is None else wait_s):
            raise LeaseHeldError(
                f"thread {self._holder} of process {os.getpid()} {self._doing}",
                place=place,
                remedy="Wait until it ends. A block that changes a meta must not change the same meta again.",
            )
        self._holder = threading.current_thread().name
        try:
            yield
        finally:
            self._lock.release()


class MemoryMeta(Meta):
    """The meta of one destination, for as long as this object lives."""

    def __init__(self, destination: str | None = None, *, lock_wait_s: float = 30.0) -> None:
        self._state = State(destination=destination)  # replaced, never changed in place: readers need no lock
        self._changing = NamedLock(lock_wait_s)
        self._locks: dict[str, NamedLock] = {}

    @property
    def place(self) -> str:
        return f"memory of this process, destination {self._state.destination}"

    def read(self) -> State:
        return self._state.model_copy(deep=True)

    @contextmanager
    def change(self) -> Iterator[State]:
        with self._changing.hold(self.place):
            state = self.read()
            yield state
            self._state = state.model_copy(deep=True)  # the block may keep what it was given

    @contextmanager
    def lock(self, name: str, what: str, *, wait_s: float = 0.0) -> Iterator[None]:
        with self._locks.setdefault(name, NamedLock(0.0, f"holds the lock of {what}")).hold(self.place, wait_s):
            yield
