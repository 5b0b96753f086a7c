"""The meta in memory, for programs of one process that need not remember anything afterwards.

After Canal's MemoryMetaManager. Threads may share it; it is lost with the process. No configuration selects it, because
capture and apply are several processes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from cdc.base.errors import LeaseHeldError
from cdc.meta.base import Meta
from cdc.meta.state import State


class NamedLock:
    """A lock for the threads of one process that names its holder when the wait for it times out."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._holder = ""

    @contextmanager
    def hold(self, place: str) -> Iterator[None]:
        """Holds the lock while the block runs. Raises LeaseHeldError, naming the holder, after the time-out."""
        if not self._lock.acquire(timeout=self._wait_s):
            raise LeaseHeldError(
                f"thread {self._holder} of process {os.getpid()} is changing it and does not finish",
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
        self._locking = threading.Condition()
        self._held: dict[str, int] = {}  # by the lock's name: how many share it, or -1 for one exclusive holder

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
    def lock(self, name: str, what: str, *, wait_s: float = 0.0, shared: bool = False) -> Iterator[None]:
        with self._locking:
            if not self._locking.wait_for(lambda: self._is_free(name, shared), wait_s):
                raise LeaseHeldError(
                    f"a thread of process {os.getpid()} holds the lock of {what}",
                    place=self.place,
                    remedy="Wait until it ends.",
                )
            self._held[name] = -1 if not shared else self._held.get(name, 0) + 1
        try:
            yield
        finally:
            with self._locking:
                self._held[name] = self._held[name] - 1 if shared else 0
                self._locking.notify_all()

    def _is_free(self, name: str, shared: bool) -> bool:
        held = self._held.get(name, 0)
        return held == 0 or (shared and held > 0)
