"""Runs that apply exactly their data interval (``airflow.until: interval_end``), in as many batches as needed.

A run has three tasks, however many batches it takes. ``merge`` acks each batch when it has fetched the next one, and
passes on the last batch, which ``finalize`` acks. A run that is interrupted leaves at most two batches outstanding: a
retry continues with them, and ``finalize`` rolls them back.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from cdc.airflow import xcom
from cdc.errors import StoreIncompleteError

if TYPE_CHECKING:
    from cdc.batches.results import RunStats
    from cdc.config import DestinationConfig


def end(config: DestinationConfig, context: Mapping[str, Any]) -> datetime | None:
    """Returns the end of this run's interval; None if runs take a batch of what the store has. The interval of a run
    that was triggered without a date ends when the run was due."""
    if config.airflow.until == "none":
        return None
    found: datetime | None = context.get("data_interval_end")
    return context["dag_run"].run_after if found is None else found


def merge_all(
    config: DestinationConfig, owner: str, until: datetime, fetched: Mapping[str, Any], first_try: bool
) -> dict[str, Any]:
    """Merges the interval's batches, beginning with the fetched one, and returns the XCom of ``merge``.

    Raises StoreIncompleteError if the store may still get transactions from before ``until``; merged batches are acked
    by then.
    """
    from cdc.batches.results import run_stats

    with run_stats() as stats:
        return _merge_all(config, owner, until, fetched, first_try, stats)


def _merge_all(
    config: DestinationConfig,
    owner: str,
    until: datetime,
    fetched: Mapping[str, Any],
    first_try: bool,
    stats: RunStats,
) -> dict[str, Any]:
    from cdc.batches.results import read_results

    steps = xcom.pipeline()
    # An earlier try may have acked the fetched batch and left another one outstanding.
    lease = xcom.to_lease(config, fetched) if first_try else steps.fetch(config, owner, until)
    began_with = {"fetched": [fetched["batch"], fetched["lease"]]}
    while lease is not None:
        results = steps.merge(config, lease)
        stats.add(read_results(results))
        try:
            following = steps.fetch(config, owner, until, ahead=True)
        except StoreIncompleteError:
            steps.finalize(config, lease, True, results)
            raise
        if following is None:
            return {**xcom.from_lease(lease), **xcom.from_results(lease, results), **began_with}
        steps.finalize(config, lease, True, results)
        lease = following
    return {"batch": None, "lease": None, "results": [], **began_with}


def is_result_of(merged: Mapping[str, Any] | None, fetched: Mapping[str, Any]) -> bool:
    """Whether this merge began with that batch, under that very lease."""
    return merged is not None and merged.get("fetched") == [fetched["batch"], fetched["lease"]]
