"""Values of metrics in the form that ``prometheus_client`` takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from cdc.errors import ConfigError
from cdc.metrics.catalogue import Metric

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

Sample: TypeAlias = tuple[tuple[str, ...], float]
"""The values of the labels beside the destination, and the value."""
Values: TypeAlias = Mapping[Metric, Sequence[Sample]]


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
