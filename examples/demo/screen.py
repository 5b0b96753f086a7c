"""The demo's output: each step with its current activity and duration."""

from __future__ import annotations

import io
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console, ConsoleRenderable
from rich.markup import escape
from rich.status import Status

PULSE_S = 10.0
"""Without a terminal, a running step prints a line this often."""
_PICTURE_WIDTH = 108
"""Characters of a line of the picture."""


class Step:
    """A running step. ``update(text)`` sets what it is waiting for."""

    def __init__(self, screen: Screen, title: str) -> None:
        self.console, self.title = screen.console, title
        self.started = time.monotonic()
        self._screen = screen
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
        self._screen.show(
            f"{self._clock()} {mark} {escape(self.title)} [dim]({time.monotonic() - self.started:.0f} s)[/dim]"
        )

    def _clock(self) -> str:
        seconds = int(self._screen.elapsed_s())
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
    """The demo's output. ``picture``: a file that gets it as an SVG drawing, without pages, folders and passwords of
    this machine."""

    def __init__(self, picture: Path | None = None) -> None:
        self.console = Console()
        self.started = time.monotonic()
        self._picture = picture
        self._recorded = Console(record=True, file=io.StringIO(), width=_PICTURE_WIDTH, force_terminal=True)

    def start_clock(self) -> None:
        """Starts the clock, after the downloads."""
        self.started = time.monotonic()

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Shows a step while it runs, and then whether it succeeded."""
        with Step(self, title) as step:
            yield step

    def show(self, shown: ConsoleRenderable | str) -> None:
        """Prints a finished step, or a table."""
        self.console.print(shown, highlight=False)
        self._recorded.print(shown, highlight=False)

    def say(self, text: str, *, is_public: bool = True) -> None:
        """Prints a line with rich's markup. ``is_public``: whether it belongs into a picture."""
        self.console.print(text, highlight=False, soft_wrap=True)
        if is_public:
            self._recorded.print(text, highlight=False)

    def elapsed_s(self) -> float:
        """Returns the seconds since the demo began."""
        return time.monotonic() - self.started

    def draw(self) -> None:
        """Writes the picture, if one is wanted."""
        if self._picture is not None:
            form = re.sub(r"@font-face {.*?}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)  # nothing from the network
            svg = self._recorded.export_svg(title="make demo", code_format=form, unique_id="demo")
            self._picture.write_text(svg, encoding="utf-8")
