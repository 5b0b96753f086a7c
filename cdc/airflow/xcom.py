"""What passes between the tasks of a run: never data, only where it lies.

``fetch`` hands on the batch's id, the lease's fingerprint and the manifest's path; ``merge`` hands on the first two and
one result per table. Everybody who may read Airflow's pages may read this, so it holds no token: the tasks look that up
in the meta, where only a lease with this fingerprint is found (:meth:`cdc.batches.service.BatchService.resume`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, cast

from airflow.sdk.exceptions import AirflowFailException

from cdc.errors import BatchError, PermanentError

if TYPE_CHECKING:
    from cdc.batches.lease import Lease
    from cdc.config import DestinationConfig


class Pipeline(Protocol):
    """The steps of a run, as ``cdc.pipeline`` has them; ``cdc.testing.pipeline`` has a fake."""

    def fetch(
        self, config: DestinationConfig, owner: str, until: datetime | None = None, *, ahead: bool = False
    ) -> Lease | None: ...

    def resume(self, config: DestinationConfig, batch: int, fingerprint: str) -> Lease: ...

    def merge(self, config: DestinationConfig, lease: Lease) -> Sequence[Any]: ...

    def finalize(self, config: DestinationConfig, lease: Lease, ok: bool, results: Any) -> None: ...

    def release(self, config: DestinationConfig, owner: str) -> list[int]: ...

    def stop(self) -> None: ...


def pipeline() -> Pipeline:
    """``cdc.pipeline``, imported when a task runs: a DAG file's parsing must not pay for it."""
    from cdc import pipeline as module

    return cast("Pipeline", module)


def of_lease(lease: Lease) -> dict[str, Any]:
    """What ``fetch`` hands on."""
    return {"batch": lease.manifest.batch, "lease": lease.fingerprint, "manifest": str(lease.manifest_path)}


def to_lease(config: DestinationConfig, handed: Mapping[str, Any] | None) -> Lease:
    """The lease again, in another task.

    Raises BatchError when nothing was handed on, DamagedError when the manifest is gone or cannot be read, TokenError
    when the batch never had this lease.
    """
    if handed is None:
        raise BatchError("there is no batch: the task before this one handed on none", remedy="Clear the whole run.")
    return pipeline().resume(config, handed["batch"], handed["lease"])


def of_results(lease: Lease, results: Sequence[Any]) -> dict[str, Any]:
    """What ``merge`` hands on: the batch it merged, and one JSON object per table."""
    from cdc.batches.results import read_results

    tables = [result.model_dump(mode="json") for result in read_results(results)]
    return {"batch": lease.manifest.batch, "lease": lease.fingerprint, "results": tables}


def is_result_of(merged: Mapping[str, Any] | None, handed: Mapping[str, Any]) -> bool:
    """Did this merge merge that batch, under that very lease?"""
    return merged is not None and (merged["batch"], merged["lease"]) == (handed["batch"], handed["lease"])


def to_results(merged: Mapping[str, Any]) -> list[Any]:
    """The results of ``merge`` again."""
    return list(merged["results"])


@contextmanager
def airflow_errors() -> Iterator[None]:
    """A PermanentError fails the task at once, whatever its retries; a RetryableError is left to them."""
    try:
        yield
    except PermanentError as error:
        raise AirflowFailException(str(error)) from error


def task_states(context: Mapping[str, Any], task_ids: Sequence[str]) -> dict[str, str | None]:
    """The states of tasks of this very run; None for one that has none yet."""
    ti = context["ti"]
    states = ti.get_task_states(dag_id=ti.dag_id, run_ids=[ti.run_id], task_ids=list(task_ids))
    found: Mapping[str, Any] = states.get(ti.run_id, {})
    return {task: None if found.get(task) is None else str(found[task]) for task in task_ids}
