"""The demo's output: each step with its current activity and duration."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.status import Status

PULSE_S = 10.0
"""Without a terminal, a running step prints a line this often."""


class Step:
    """A running step. ``update(text)`` sets what it is waiting for."""

    def __init__(self, console: Console, title: str, started: float) -> None:
        self.console, self.title = console, title
        self.started = time.monotonic()
        self._demo_started = started
        self._detail = ""
        self._over = threading.Event()
        self._status: Status | None = None
        self._thread = threading.Thread(target=self._refresh, name="demo-screen", daemon=True)

    def update(self, detail: str) -> None:
        """Sets the current activity, in a few words."""
        self._detail = detail

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._status = self.console.status(self._line())
            self._status.start()
        else:
            self.console.print(f"{self._clock()} {self.title} …", highlight=False, markup=False)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if self._status is not None:
            self._status.stop()
        mark = "[green]✓[/green]" if kind is None else "[red]✗[/red]"
        self.console.print(
            f"{self._clock()} {mark} {escape(self.title)} [dim]({time.monotonic() - self.started:.0f} s)[/dim]",
            highlight=False,
        )

    def _clock(self) -> str:
        seconds = int(time.monotonic() - self._demo_started)
        return f"{seconds // 60}:{seconds % 60:02}"

    def _line(self) -> str:
        since = time.monotonic() - self.started
        detail = f" · {escape(self._detail)}" if self._detail else ""
        return f"{self._clock()} {escape(self.title)}{detail} [dim]· {since:.0f} s[/dim]"

    def _refresh(self) -> None:
        said = self.started
        while not self._over.wait(0.5):
            if self._status is not None:
                self._status.update(self._line())
            elif time.monotonic() - said >= PULSE_S:
                said = time.monotonic()
                self.console.print(self._line(), highlight=False, soft_wrap=True)


class Screen:
    """The demo's output."""

    def __init__(self) -> None:
        self.console = Console()
        self.started = time.monotonic()

    def start_clock(self) -> None:
        """Starts the clock, after the downloads."""
        self.started = time.monotonic()

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Shows a step while it runs, and then whether it succeeded."""
        with Step(self.console, title, self.started) as step:
            yield step

    def say(self, text: str) -> None:
        """Prints a line with rich's markup."""
        self.console.print(text, highlight=False, soft_wrap=True)

    def elapsed_s(self) -> float:
        """Returns the seconds since the demo began."""
        return time.monotonic() - self.started
