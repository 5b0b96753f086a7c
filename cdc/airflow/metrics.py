"""Sends the metrics of a run to a Pushgateway (``metrics.push``), and to the metrics of Airflow, which go to StatsD,
DataDog or OpenTelemetry as Airflow's ``[metrics]`` says.

Counters of StatsD are added up by its server, so they give the totals that a Pushgateway cannot give.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from cdc.base.log import get_logger

if TYPE_CHECKING:
    from cdc.batches.results import RunStats
    from cdc.config import DestinationConfig

TABLE_COUNTERS = ("changes", "inserted", "updated", "deleted", "skipped", "null_dates", "files")
RUN_COUNTERS = ("batches", "transactions", "row_events", "bytes")
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]")
_log = get_logger(__name__)


def tell(config: DestinationConfig, stats: RunStats | None, *, succeeded: bool | None) -> None:
    """Sends the metrics of a run. ``stats``: what it merged; None: sent before. ``succeeded``: None if that is not
    known yet. Raises nothing that a receiver can cause: a failure is logged."""
    from cdc.watch.metrics.push import push_run  # only runs need it

    push_run(config, stats, succeeded=succeeded)
    try:
        _count(config.name, stats, succeeded)
    except OSError as error:
        _log.warning("the metrics of the run were not sent", reason=str(error))


def _count(destination: str, stats: RunStats | None, succeeded: bool | None) -> None:
    if succeeded is not None:
        _incr("run", "succeeded" if succeeded else "failed", 1, destination=destination)
    if stats is None:
        return
    for name in RUN_COUNTERS:
        _incr("run", name, getattr(stats, name), destination=destination)
    if stats.batches:
        _timing("run", stats.seconds, destination=destination)
    for table, table_stats in sorted(stats.tables.items()):
        for name in TABLE_COUNTERS:
            _incr("table", name, getattr(table_stats, name), destination=destination, table=table)
        _incr("table", "parked", int(table_stats.parked is not None), destination=destination, table=table)
        _timing("table", table_stats.seconds, destination=destination, table=table)


def _airflow_stats() -> Any:
    """Returns Airflow's metrics: a module since 3.3, a class in the module of that name in 3.2, and a class in another
    place before."""
    try:
        from airflow.sdk.observability import stats
    except ImportError:
        from airflow.stats import Stats

        return Stats
    return stats if hasattr(stats, "incr") else stats.Stats


def _incr(subject: str, what: str, count: int, **tags: str) -> None:
    """Adds to a counter twice, as Airflow does with its own: by a name with the tags in it, for plain StatsD, and by
    one name for all, with tags."""
    if count:
        _airflow_stats().incr(_long_name(subject, what, tags), count)
        _airflow_stats().incr(f"towpath.{subject}.{what}", count, tags=dict(tags))


def _timing(subject: str, seconds: float, **tags: str) -> None:
    _airflow_stats().timing(_long_name(subject, "duration", tags), seconds * 1000)
    _airflow_stats().timing(f"towpath.{subject}.duration", seconds * 1000, tags=dict(tags))


def _long_name(subject: str, what: str, tags: dict[str, str]) -> str:
    """Returns a name like ``towpath.table.shop.sales__orders.inserted``: a dot would begin another level."""
    levels = [_ILLEGAL.sub("_", value.replace(".", "__")) for value in tags.values()]
    return ".".join(["towpath", subject, *levels, what])
