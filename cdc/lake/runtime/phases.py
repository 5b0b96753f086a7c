"""The time that the merge of a table takes, by phase. A table is in exactly one phase at any moment.

``start``: waits for a Spark session. ``read``: reads the logs of the table and the store, and proves, creates or alters
the table. ``plan``: decodes changes in this process and finds the last one of each key. ``merge``: writes the rows; a
statement of Spark's commits them as well. ``commit``: commits rows or a position by a transaction of Delta's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

Phase = Literal["start", "read", "plan", "merge", "commit"]


class PhaseTimes:
    """The seconds of one table in each phase."""

    def __init__(self) -> None:
        self._seconds: dict[Phase, float] = {}
        self._phase: Phase = "read"
        self._since = time.monotonic()

    def enter(self, phase: Phase) -> Phase:
        """Begins a phase. Returns the one that it ends."""
        now, before = time.monotonic(), self._phase
        self._seconds[before] = self._seconds.get(before, 0.0) + now - self._since
        self._phase, self._since = phase, now
        return before

    def seconds(self) -> dict[Phase, float]:
        """Returns the seconds of each phase that has lasted for a millisecond or longer."""
        self.enter(self._phase)
        return {phase: round(seconds, 3) for phase, seconds in self._seconds.items() if round(seconds, 3)}


_measured: ContextVar[PhaseTimes | None] = ContextVar("phases", default=None)


@contextmanager
def measured_phases() -> Iterator[PhaseTimes]:
    """Measures the phases of what this thread does in the block, which begins in ``read``."""
    times = PhaseTimes()
    token = _measured.set(times)
    try:
        yield times
    finally:
        _measured.reset(token)


@contextmanager
def in_phase(phase: Phase) -> Iterator[None]:
    """Counts the time of the block for a phase. Without effect in a thread that measures none."""
    times = _measured.get()
    if times is None:
        yield
        return
    before = times.enter(phase)
    try:
        yield
    finally:
        times.enter(before)
