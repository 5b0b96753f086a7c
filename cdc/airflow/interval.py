"""Runs that apply exactly their data interval (``airflow.until: interval_end``), in as many batches as that takes.

A run has three tasks whatever its number of batches: ``merge`` acks each batch but the last when the next one is there,
and hands on the last, which ``finalize`` acks. A run that ends before leaves at most two batches outstanding; a retry
takes them up, and ``finalize`` rolls them back.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from cdc.airflow import xcom as handoff
from cdc.errors import StoreIncompleteError

if TYPE_CHECKING:
    from cdc.batches.results import RunStats
    from cdc.config import DestinationConfig


def end(config: DestinationConfig, context: Mapping[str, Any]) -> datetime | None:
    """The end of this run's interval; None where a run takes what is there. A run without an interval (triggered
    without a date) ends where it begins to be due."""
    if config.airflow.until == "none":
        return None
    found: datetime | None = context.get("data_interval_end")
    return context["dag_run"].run_after if found is None else found


def merge_all(
    config: DestinationConfig, owner: str, until: datetime, handed: Mapping[str, Any], first_try: bool
) -> dict[str, Any]:
    """Merge the interval's batches from the one that was handed on; returns what ``merge`` hands on. Raises
    StoreIncompleteError when more may come from before ``until``; what was merged by then is acked."""
    from cdc.batches.results import run_stats

    with run_stats() as report:
        return _merge_all(config, owner, until, handed, first_try, report)


def _merge_all(
    config: DestinationConfig,
    owner: str,
    until: datetime,
    handed: Mapping[str, Any],
    first_try: bool,
    report: RunStats,
) -> dict[str, Any]:
    from cdc.batches.results import read_results

    steps = handoff.pipeline()
    # A try before this one may have acked the batch that fetch handed on, and have left another.
    lease = handoff.to_lease(config, handed) if first_try else steps.fetch(config, owner, until)
    fetched = {"fetched": [handed["batch"], handed["lease"]]}
    while lease is not None:
        results = steps.merge(config, lease)
        report.add(read_results(results))
        try:
            following = steps.fetch(config, owner, until, ahead=True)
        except StoreIncompleteError:
            steps.finalize(config, lease, True, results)
            raise
        if following is None:
            return {**handoff.of_lease(lease), **handoff.of_results(lease, results), **fetched}
        steps.finalize(config, lease, True, results)
        lease = following
    return {"batch": None, "lease": None, "results": [], **fetched}


def is_result_of(merged: Mapping[str, Any] | None, handed: Mapping[str, Any]) -> bool:
    """Did this merge begin with that batch, under that very lease?"""
    return merged is not None and merged.get("fetched") == [handed["batch"], handed["lease"]]
