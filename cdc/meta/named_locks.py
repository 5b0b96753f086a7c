"""Threads of one process, one after the other."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from cdc.errors import LeaseHeldError


class Turns:
    """A lock that names who holds it when the wait for it is over."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._holder = ""

    @contextmanager
    def turn(self, place: str) -> Iterator[None]:
        """Raises LeaseHeldError after the wait."""
        if not self._lock.acquire(timeout=self._wait_s):
            raise LeaseHeldError(
                f"thread {self._holder} of process {os.getpid()} changes it and does not let go",
                place=place,
                remedy="Wait until it ends; who changes a meta must not change the same one again within.",
            )
        self._holder = threading.current_thread().name
        try:
            yield
        finally:
            self._lock.release()
