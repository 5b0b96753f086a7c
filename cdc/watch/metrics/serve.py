"""Serves the metrics of a capture if they are asked for. Loads nothing if they are not, so that capture starts fast."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cdc.watch.metrics.capture import CaptureMonitor

if TYPE_CHECKING:
    from cdc.capture import CaptureProgress
    from cdc.config import DestinationConfig
    from cdc.watch.metrics.families import AlarmCounts


@contextmanager
def served(
    config: DestinationConfig, port: int | None = None, alarms: AlarmCounts | None = None
) -> Iterator[Callable[[CaptureProgress], None] | None]:
    """Serves ``/metrics`` and ``/health`` while the context lasts, at ``port`` (0: any that is free) or
    ``metrics.port``. ``alarms``: the watch that sends the destination's alarms. Yields the function that a capture
    reports to; None if neither port is given, and nothing is served.

    Raises ConfigError if ``prometheus_client`` is not installed, or the port cannot be had.
    """
    port = config.metrics.port if port is None else port
    if port is None:
        yield None
        return
    from cdc.watch.metrics.http import serving

    monitor = CaptureMonitor(config.name, config.metrics.unhealthy_after)
    with serving(config, port, monitor, alarms):
        yield monitor.observe
