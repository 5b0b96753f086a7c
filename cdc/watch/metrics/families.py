"""Values of metrics in the form that ``prometheus_client`` takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from cdc.base.errors import ConfigError
from cdc.watch.metrics.catalogue import ALARM_MESSAGES, ALARMS, Metric

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

Sample: TypeAlias = tuple[tuple[str, ...], float]
"""The values of the labels beside the destination, and the value."""
Values: TypeAlias = Mapping[Metric, Sequence[Sample]]


class AlarmCounts(Protocol):
    """The counters of a watch for alarms (:class:`cdc.watch.alarms.watch.AlarmWatch`)."""

    @property
    def counts(self) -> Mapping[tuple[str, bool], int]:
        """Messages by handler, and whether it has taken them."""

    @property
    def raised(self) -> Mapping[str, int]:
        """Alarms that are raised, by name."""


def alarm_values(alarms: AlarmCounts | None) -> Values:
    """Returns the metrics of a watch for alarms."""
    if alarms is None:
        return {}
    return {
        ALARMS: [((name,), float(count)) for name, count in sorted(dict(alarms.raised).items())],
        ALARM_MESSAGES: [
            ((handler, "sent" if ok else "failed"), float(count))
            for (handler, ok), count in sorted(dict(alarms.counts).items())
        ],
    }


def families(
    catalogue: tuple[Metric, ...], values: Values, destination: str
) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
    """Yields those metrics of the catalogue that have values, with the destination as their first label."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for metric in catalogue:
        samples = values.get(metric)
        if not samples:
            continue
        kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        family = kind(metric.name.removesuffix("_total"), metric.meaning, labels=metric.all_labels)
        for labels, value in samples:
            family.add_metric([destination, *labels], value)
        yield family


def missing_package(place: str) -> ConfigError:
    """Returns the error for a machine without ``prometheus_client``."""
    return ConfigError(
        "the package prometheus-client is not installed", place=place, remedy="Install towpath[metrics]."
    )
