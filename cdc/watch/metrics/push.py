"""Pushes the metrics of runs to a Prometheus Pushgateway, which keeps the last ones of each destination.

A run ends before Prometheus would scrape it, and the next one may take place on another machine; so the gateway is
asked, and its values are those of the last run, not totals. Each push replaces the metrics that it carries and leaves
the others: a run that fails keeps the time of the last success, and one without changes keeps the tables of the last
run that had some.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPException
from typing import TYPE_CHECKING, Any

from cdc.base.errors import CdcError, RetryableError
from cdc.base.log import get_logger
from cdc.config.secrets import push_credentials
from cdc.watch.metrics import catalogue as names
from cdc.watch.metrics.catalogue import Metric
from cdc.watch.metrics.families import Sample, Values, families, missing_package

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    from cdc.batches.results import RunStats
    from cdc.config import DestinationConfig

JOB = "towpath"
_log = get_logger(__name__)


def push_run(config: DestinationConfig, stats: RunStats | None, *, succeeded: bool | None) -> bool:
    """Pushes the metrics of a run to ``metrics.push``. ``stats``: what it merged; None: pushed before. ``succeeded``:
    None if that is not known yet.

    Returns whether they were pushed; False without ``metrics.push``. Raises nothing that a gateway can cause: a failure
    is logged.
    """
    metrics = config.metrics
    if metrics.push is None:
        return False
    try:
        _push(config, metrics.push, {**stats_values(stats), **_outcome(succeeded)})
    except (CdcError, OSError, HTTPException) as error:
        _log.warning("the metrics of the run were not pushed", gateway=metrics.push, reason=str(error))
        return False
    return True


def forget_runs(config: DestinationConfig) -> None:
    """Removes the destination's metrics from the gateway at ``metrics.push``, if there is one. Raises RetryableError if
    the gateway cannot be reached or refuses, ConfigError."""
    gateway = config.metrics.push
    if gateway is None:
        return
    try:
        from prometheus_client import delete_from_gateway
    except ModuleNotFoundError:
        raise missing_package("metrics.push") from None

    try:
        delete_from_gateway(
            gateway,
            JOB,
            grouping_key={names.DESTINATION: config.name},
            timeout=config.metrics.push_timeout,
            handler=_handler(config),
        )
    except (OSError, HTTPException) as error:
        raise RetryableError(
            f"the metrics of {config.name} cannot be removed: {error}",
            place=gateway,
            remedy="Try again; if the gateway is gone for good, remove metrics.push from the configuration.",
        ) from error


def _handler(config: DestinationConfig) -> Callable[..., Any]:
    from prometheus_client.exposition import basic_auth_handler, default_handler

    credentials = push_credentials(config.metrics)
    if credentials is None:
        plain: Callable[..., Any] = default_handler
        return plain

    def handler(**request: Any) -> Callable[[], None]:
        return basic_auth_handler(**request, username=credentials.user, password=credentials.password)

    return handler


def _push(config: DestinationConfig, gateway: str, values: Values) -> None:
    try:
        from prometheus_client import CollectorRegistry, pushadd_to_gateway
    except ModuleNotFoundError:
        raise missing_package("metrics.push") from None

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(config.name, values))
    pushadd_to_gateway(
        gateway,
        JOB,
        registry,
        grouping_key={names.DESTINATION: config.name},
        timeout=config.metrics.push_timeout,
        handler=_handler(config),
    )


@dataclass(frozen=True, eq=False)
class _Collector:
    """A collector of ``prometheus_client`` with values that are known."""

    destination: str
    values: Values

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        return families(names.RUN, self.values, self.destination)


def _outcome(succeeded: bool | None) -> Values:
    if succeeded is None:
        return {}
    now = time.time()
    ended: Values = {names.RUN_SUCCESS: [((), float(succeeded))], names.RUN_END: [((), now)]}
    return {**ended, names.RUN_LAST_SUCCESS: [((), now)]} if succeeded else ended


def stats_values(stats: RunStats | None) -> Values:
    """Returns the metrics of what a run has merged."""
    if stats is None:
        return {}
    samples: dict[Metric, list[Sample]] = {
        names.RUN_SECONDS: [((), round(stats.seconds, 3))],
        names.RUN_BATCHES: [((), float(stats.batches))],
        names.RUN_TRANSACTIONS: [((), float(stats.transactions))],
        names.RUN_ROW_EVENTS: [((), float(stats.row_events))],
        names.RUN_BYTES: [((), float(stats.bytes))],
    }
    tables = {
        (table,): {
            names.TABLE_CHANGES: table_stats.changes,
            names.TABLE_INSERTED: table_stats.inserted,
            names.TABLE_UPDATED: table_stats.updated,
            names.TABLE_DELETED: table_stats.deleted,
            names.TABLE_SKIPPED: table_stats.skipped,
            names.TABLE_NULL_DATES: table_stats.null_dates,
            names.TABLE_SECONDS: round(table_stats.seconds, 3),
            names.TABLE_FILES: table_stats.files,
            names.TABLE_PARKED: table_stats.parked is not None,
        }
        for table, table_stats in sorted(stats.tables.items())
    }
    by_table: Values = {
        metric: [(table, float(values[metric])) for table, values in tables.items()]
        for metric in (names.RUN if tables else ())
        if metric.labels
    }
    return {**samples, **by_table}
