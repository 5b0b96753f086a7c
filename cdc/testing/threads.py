"""Runs a call in another thread, for tests of blocking calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class ThreadCall(Generic[T]):
    """Starts ``function()`` in another thread. :meth:`result` returns or raises what it did."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._answer: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answer.append(self._function())
        except BaseException as error:  # noqa: BLE001  # raised where the result is asked for
            self._error = error

    def waits(self, for_s: float = 0.1) -> bool:
        """Whether the call is still running after ``for_s`` seconds."""
        self._thread.join(for_s)
        return self._thread.is_alive()

    def result(self, timeout_s: float = 30.0) -> T:
        """Returns or raises what the call did. Raises TimeoutError if it does not end in time."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"the call has not returned after {timeout_s} s")
        if self._error is not None:
            raise self._error
        return self._answer[0]


def took_s(function: Callable[[], object]) -> float:
    """Returns the seconds that a call takes."""
    start = time.monotonic()
    function()
    return time.monotonic() - start
