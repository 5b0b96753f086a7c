"""The metrics of ``cdc push``, and whether it is healthy."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import cdc
from cdc.base.errors import CdcError
from cdc.base.units import human_seconds
from cdc.watch.metrics import catalogue as names
from cdc.watch.metrics.capture import Health
from cdc.watch.metrics.catalogue import Metric
from cdc.watch.metrics.families import Sample, families

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    from cdc.canal.mq.pusher import Pusher
    from cdc.config import DestinationConfig
    from cdc.watch.metrics.capture import Health


@contextmanager
def served(config: DestinationConfig, pusher: Pusher, port: int | None = None) -> Iterator[None]:
    """Serves ``/metrics`` and ``/health`` of a push while the context lasts, at ``port`` (0: any that is free) or
    ``mq.metrics_port``; nothing if neither is given. Raises ConfigError if ``prometheus_client`` is not installed, or
    the port cannot be had."""
    port = config.mq.metrics_port if port is None else port
    if port is None:
        yield
        return
    from cdc.watch.metrics.http import application_of, serving_application  # if there is a port alone

    monitor = PushMonitor(pusher, config.metrics.unhealthy_after)
    with serving_application(config, port, application_of(monitor, monitor.health, "mq.metrics_port")):
        yield


class PushMonitor:
    """A collector of ``prometheus_client``, and the health of a push."""

    def __init__(self, pusher: Pusher, unhealthy_after_s: float) -> None:
        self._pusher, self._limit_s = pusher, unhealthy_after_s

    def health(self) -> Health:
        """Returns whether batches are sent, or have failed for a short time only."""
        stats, name = self._pusher.stats, self._pusher.config.name
        if stats.last_error is None:
            return Health(True, f"{name}: pushing.")
        failing_s = time.monotonic() - stats.failing_since
        text = f"{name}: failing for {human_seconds(failing_s)}: {stats.last_error}"
        return Health(failing_s <= self._limit_s, text)

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Yields all metrics; the lag and the seq are left out if the meta cannot be read."""
        stats = self._pusher.stats
        samples: dict[Metric, Sequence[Sample]] = {
            names.INFO: [((cdc.__version__,), 1)],
            names.PUSH_MESSAGES: [((), stats.messages)],
            names.PUSH_BYTES: [((), stats.bytes)],
            names.PUSH_ROWS: [((), stats.rows)],
            names.PUSH_BATCHES: [((), stats.batches)],
            names.PUSH_ERRORS: [((), stats.errors)],
            names.PUSH_FAILING: [((), float(stats.last_error is not None))],
        }
        try:
            status = self._pusher.status()
        except (CdcError, OSError):
            status = {}
        if status.get("behind") is not None:
            samples[names.PUSH_LAG] = [((), status["behind"]["lag_s"])]
            samples[names.PUSH_ACKED_SEQ] = [((), status["acked_seq"])]
        yield from families(names.PUSH, samples, self._pusher.config.name)
