"""What ``cdc capture`` shows while it runs: one line that moves on a terminal, nothing elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.status import Status

from cdc.capture import Progress
from cdc.units import human_bytes


class View:
    """A context in which :meth:`show` repaints the line."""

    def __init__(self, name: str, console: Console) -> None:
        self._name = name
        self._status = Status(f"{name}: connecting", console=console) if console.is_terminal else None
        self._since = time.monotonic()
        self._before = 0

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self, progress: Progress) -> None:
        if self._status is None:
            return
        now = time.monotonic()
        received = progress.counters.received_bytes
        rate = (received - self._before) / max(now - self._since, 0.001)
        self._since, self._before = now, received
        where = f"{progress.position}" if progress.target is None else f"{progress.position} of {progress.target}"
        self._status.update(
            f"{self._name}: {where}, {progress.counters.transactions:,} transactions, "
            f"{human_bytes(progress.counters.bytes)} stored, {human_bytes(int(rate))}/s"
        )
