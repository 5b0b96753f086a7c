"""The metrics of the server, in the form of Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdc.server.states import STATES
from cdc.watch.metrics.catalogue import (
    SERVER,
    SERVER_BYTES,
    SERVER_EPOCH,
    SERVER_LEADS,
    SERVER_LOCKS,
    SERVER_REQUESTS,
    SERVER_RESTARTS,
    SERVER_STATE,
    SERVER_TAKEOVERS,
    Metric,
)
from cdc.watch.metrics.families import Sample, alarm_values, families

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    from cdc.server.destinations import ServerCounters
    from cdc.watch.metrics.families import AlarmCounts


@dataclass(frozen=True)
class InstanceNumbers:
    """The state of an instance, how often its capture was started again, and its leadership."""

    state: str
    restarts: int
    epoch: int | None = None
    """None while another process may have the leadership."""
    takeovers: int = 0


def metrics_text(
    counters: ServerCounters,
    locks: Mapping[str, int],
    instances: Mapping[str, InstanceNumbers],
    alarms: Mapping[str, AlarmCounts] | None = None,
) -> str:
    """Returns the text of ``/metrics``. ``locks``: how many locks clients hold, by destination. ``alarms``: the watches
    for alarms, by destination."""
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
    except ModuleNotFoundError:
        return "# Install towpath[metrics].\n"
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(counters, locks, instances, alarms or {}))
    ProcessCollector(registry=registry)
    return generate_latest(registry).decode()


class _Collector:
    """A collector of ``prometheus_client``."""

    def __init__(
        self,
        counters: ServerCounters,
        locks: Mapping[str, int],
        instances: Mapping[str, InstanceNumbers],
        alarms: Mapping[str, AlarmCounts],
    ) -> None:
        self._counters, self._locks, self._instances, self._alarms = counters, locks, instances, alarms

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        requests = dict(self._counters.requests)
        names = sorted({*self._locks, *self._instances, *(destination for destination, _, _ in requests)})
        for destination in names:
            values: dict[Metric, Sequence[Sample]] = {
                SERVER_REQUESTS: [
                    ((operation, outcome), float(count))
                    for (name, operation, outcome), count in sorted(requests.items())
                    if name == destination
                ],
                SERVER_BYTES: [((), float(self._counters.bytes.get(destination, 0)))],
                SERVER_LOCKS: [((), float(self._locks.get(destination, 0)))],
            }
            instance = self._instances.get(destination)
            if instance is not None:
                values[SERVER_STATE] = [((state,), float(state == instance.state)) for state in STATES]
                values[SERVER_RESTARTS] = [((), float(instance.restarts))]
                values[SERVER_LEADS] = [((), float(instance.epoch is not None))]
                values[SERVER_EPOCH] = [((), float(instance.epoch or 0))]
                values[SERVER_TAKEOVERS] = [((), float(instance.takeovers))]
            values.update(alarm_values(self._alarms.get(destination)))
            yield from families(SERVER, values, destination)
