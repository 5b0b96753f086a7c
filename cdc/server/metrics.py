"""The metrics of the server, in the form of Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from cdc.metrics.catalogue import SERVER, SERVER_BYTES, SERVER_LOCKS, SERVER_REQUESTS
from cdc.metrics.families import Values, families

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    from cdc.server.destinations import Counters


def metrics_text(counters: Counters, locks: Mapping[str, int]) -> str:
    """Returns the text of ``/metrics``. ``locks``: how many locks clients hold, by destination."""
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
    except ModuleNotFoundError:
        return "# Install towpath[metrics].\n"
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(counters, locks))
    ProcessCollector(registry=registry)
    return generate_latest(registry).decode()


class _Collector:
    """A collector of ``prometheus_client``."""

    def __init__(self, counters: Counters, locks: Mapping[str, int]) -> None:
        self._counters, self._locks = counters, locks

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        requests = dict(self._counters.requests)
        names = sorted({*self._locks, *(destination for destination, _, _ in requests)})
        for destination in names:
            values: Values = {
                SERVER_REQUESTS: [
                    ((operation, outcome), float(count))
                    for (name, operation, outcome), count in sorted(requests.items())
                    if name == destination
                ],
                SERVER_BYTES: [((), float(self._counters.bytes.get(destination, 0)))],
                SERVER_LOCKS: [((), float(self._locks.get(destination, 0)))],
            }
            yield from families(SERVER, values, destination)
