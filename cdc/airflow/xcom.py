"""The XComs between the tasks of a run. They hold references, never data.

``fetch`` returns the batch's id, the lease's fingerprint, the manifest's path and the run's time limit; ``merge``
returns the first two of the run's last batch, and one result per table. Airflow shows XComs to all its users, so they
hold no token. The tasks look the token up in the meta by the fingerprint
(:meth:`cdc.batches.service.BatchService.resume`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cdc.airflow.compat import AirflowFailException
from cdc.base.errors import BatchError, PermanentError
from cdc.lake import pipeline

if TYPE_CHECKING:
    from datetime import datetime

    from cdc.batches.lease import Lease
    from cdc.config import DestinationConfig
    from cdc.lake.runs import Merged


def from_lease(lease: Lease, until: datetime | None) -> dict[str, Any]:
    """Returns the XCom of ``fetch``. ``until``: the time limit of the run, if it has one."""
    return {
        "batch": lease.manifest.batch,
        "lease": lease.fingerprint,
        "manifest": str(lease.manifest_path),
        "until": "none" if until is None else until.isoformat(),
    }


def to_lease(config: DestinationConfig, fetched: Mapping[str, Any] | None) -> Lease:
    """Returns the lease of an XCom, in another task.

    Raises BatchError if there is no XCom, DamagedError if the manifest is missing or cannot be read, TokenError if the
    batch never had this lease.
    """
    if fetched is None:
        raise BatchError("there is no batch: the task before this one returned none", remedy="Clear the whole run.")
    return pipeline.resume(config, fetched["batch"], fetched["lease"])


def from_run(last: Merged | None, fetched: Mapping[str, Any], acked: int) -> dict[str, Any]:
    """Returns the XCom of ``merge``: the batch that is left to be acked, if any, with one JSON object per table; the
    number of batches that the run acked; and the fetched batch that it began with."""
    began_with = {"acked": acked, "fetched": [fetched["batch"], fetched["lease"]]}
    if last is None:
        return {"batch": None, "lease": None, "results": [], **began_with}
    tables = [result.model_dump(mode="json") for result in last.results]
    return {"batch": last.lease.batch, "lease": last.lease.fingerprint, "results": tables, **began_with}


def is_result_of(merged: Mapping[str, Any] | None, fetched: Mapping[str, Any]) -> bool:
    """Whether this merge began with that batch, under that very lease."""
    return merged is not None and merged.get("fetched") == [fetched["batch"], fetched["lease"]]


@contextmanager
def airflow_errors() -> Iterator[None]:
    """A PermanentError fails the task at once, whatever its retries; a RetryableError is left to them."""
    try:
        yield
    except PermanentError as error:
        raise AirflowFailException(str(error)) from error


def task_states(context: Mapping[str, Any], task_ids: Sequence[str]) -> dict[str, str | None]:
    """Returns the states of tasks of this run; None for a task without a state."""
    ti = context["ti"]
    states = ti.get_task_states(dag_id=ti.dag_id, run_ids=[ti.run_id], task_ids=list(task_ids))
    task_states: Mapping[str, Any] = states.get(ti.run_id, {})
    return {task: None if task_states.get(task) is None else str(task_states[task]) for task in task_ids}
