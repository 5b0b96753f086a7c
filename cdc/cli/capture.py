"""``cdc capture``: reads the source into the store until it is stopped, and shows its progress on a terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Self

import typer

from cdc.base.units import human_bytes
from cdc.capture import Capture, CaptureProgress
from cdc.capture.memory_room import require_served
from cdc.cli import common
from cdc.watch.alarms.start import watched
from cdc.watch.metrics.serve import served

if TYPE_CHECKING:
    from rich.status import Status


def capture(
    ctx: typer.Context,
    dest: common.Destination = None,
    until_current: Annotated[
        bool, typer.Option("--until-current", help="End once the store has what the server had at the start.")
    ] = False,
    for_s: Annotated[
        float | None, typer.Option("--for", metavar="SECONDS", min=0, help="End after this time.", show_default=False)
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            metavar="PORT",
            min=0,
            max=65535,
            help="Serve /metrics for Prometheus, and /health, at this port; 0: at any free one, which the log names.",
            show_default="metrics.port",
        ),
    ] = None,
) -> None:
    """Read the source's changes into the store until stopped.

    A change of tables.include or tables.exclude in the configuration's file counts within seconds, and after SIGHUP at
    once.
    """
    config = common.load(ctx, dest)
    if config.store.kind == "memory":
        config = require_served(config)

    import signal
    import threading
    from types import FrameType

    stop = threading.Event()

    with ProgressLine(config.name) as line, watched(config) as alarms, served(config, metrics_port, alarms) as observe:

        def report(progress: CaptureProgress) -> None:
            line.show(progress)
            if observe is not None:
                observe(progress)

        capturing = Capture(config, report)

        def end(signum: int, frame: FrameType | None) -> None:
            stop.set()
            if capturing.is_loading:
                raise KeyboardInterrupt

        signal.signal(signal.SIGTERM, end)
        signal.signal(signal.SIGINT, end)
        signal.signal(signal.SIGHUP, lambda _signum, _frame: capturing.reload())
        counters = capturing.run(stop, for_s, until_current)
    common.say(
        f"{config.name}: {counters.transactions:,} transactions, {counters.events:,} events, "
        f"{human_bytes(counters.bytes)} into {config.store.path}"
    )


class ProgressLine:
    """A line on a terminal that :meth:`show` repaints while the context lasts. Elsewhere nothing is shown."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._status: Status | None = common.err().status(f"{name}: connecting") if sys.stderr.isatty() else None
        self._since = time.monotonic()
        self._before = 0

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self, progress: CaptureProgress) -> None:
        """Shows the position, the totals, and the rate since the last call."""
        if self._status is None:
            return
        now = time.monotonic()
        received = progress.counters.received_bytes
        rate = (received - self._before) / max(now - self._since, 0.001)
        self._since, self._before = now, received
        position = f"{progress.position}" if progress.target is None else f"{progress.position} of {progress.target}"
        self._status.update(
            f"{self._name}: {position}, {progress.counters.transactions:,} transactions, "
            f"{human_bytes(progress.counters.bytes)} stored, {human_bytes(int(rate))}/s"
        )
