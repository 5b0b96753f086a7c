"""``fetch >> merge >> finalize``, the tasks of a run that applies batches, and a task group for a DAG of one's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperator, TaskGroup

from cdc.airflow.batches import TowpathFetchOperator, TowpathFinalizeOperator, TowpathMergeOperator
from cdc.base.errors import UsageError

FINALIZE_RETRIES = 5
"""More than for a merge, because ack and rollback are cheap and may be repeated."""
MergeJob = Callable[[str, list[str]], BaseOperator]
"""Makes the task that merges in a job elsewhere, from its ``task_id`` and the arguments of ``spark_jobs/apply.py``.
Some of the arguments are templates, so they belong into a templated field of the operator."""


def apply_tasks(
    conf_file: str, destination: str | None, batch_owner: str, merge: MergeJob | None
) -> tuple[BaseOperator, BaseOperator, BaseOperator]:
    """Adds ``fetch``, ``merge`` and ``finalize`` to the current DAG or group, and returns them. Raises UsageError for a
    ``merge`` that makes no task with that id, and for one without the name of the destination."""
    common: dict[str, Any] = {"conf_file": conf_file, "batch_owner": batch_owner}
    fetch = TowpathFetchOperator(task_id="fetch", destination=destination, **common)
    if merge is None:
        merging: BaseOperator = TowpathMergeOperator(task_id="merge", fetch_task_id=fetch.task_id, **common)
    else:
        merging = merge("merge", job_arguments(conf_file, destination, batch_owner, fetch.task_id))
        if getattr(merging, "task_id", None) != f"{fetch.task_id.removesuffix('fetch')}merge":
            raise UsageError(
                f"merge= has made {merging!r}, which is no operator with the id it was given",
                place=f"the tasks of {batch_owner}",
                remedy="Return an operator, and hand task_id to it as it is.",
            )
    finalize = TowpathFinalizeOperator(
        task_id="finalize",
        fetch_task_id=fetch.task_id,
        merge_task_id=merging.task_id,
        merge_acks=merge is not None,
        destination=destination,
        retries=FINALIZE_RETRIES,
        **common,
    )
    fetch >> merging >> finalize
    return fetch, merging, finalize


def job_arguments(conf_file: str, destination: str | None, batch_owner: str, fetch_task_id: str) -> list[str]:
    """Returns the arguments of ``cdc apply``, and of ``spark_jobs/apply.py``, for a job that applies the batches of a
    run. Raises UsageError if the name of the destination is not known."""
    name = destination or Path(conf_file).stem
    if "{{" in name:
        raise UsageError(
            f"conf_file is a template ({conf_file}), and a job elsewhere needs the name of the destination",
            place=f"the tasks of {batch_owner}",
            remedy="Give destination=.",
        )
    run = ["{{ dag.dag_id }}", "{{ run_id }}", "{{ task.task_id }}", "{{ ti.try_number }}"]
    until = f'{{{{ ti.xcom_pull(task_ids="{fetch_task_id}")["until"] }}}}'
    return [name, "--owner", batch_owner, "--until", until, "--airflow-run", *run]


class TowpathApplyTaskGroup(TaskGroup):
    """Applies the waiting batches of a destination: the tasks ``fetch``, ``merge`` and ``finalize`` of the apply DAG.

    ``conf_file``: the path of ``DEST.yaml`` on the worker (templated). ``destination``: the name of the destination, if
    a template makes the name of that file. ``merge``: makes the task that merges in a job elsewhere. Further arguments
    are those of a TaskGroup; ``default_args`` (queue, pool, retries, …) hold for the three tasks.

    If there is nothing to apply, ``merge`` and ``finalize`` are skipped, and so are the tasks after the group, unless
    their trigger rule says otherwise (``none_failed``). Tasks after the group run after the ack. A group is an owner of
    batches of its own. Raises UsageError if the DAG may have several active runs: they would take each other's batches.
    """

    def __init__(
        self,
        group_id: str = "apply",
        *,
        conf_file: str,
        destination: str | None = None,
        merge: MergeJob | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(group_id, **kwargs)
        dag = self.dag
        if dag.max_active_runs != 1:
            raise UsageError(
                f"max_active_runs is {dag.max_active_runs}, and runs at the same time would take each other's batches",
                place=f"the DAG {dag.dag_id}",
                remedy="Set max_active_runs=1.",
            )
        self.conf_file = conf_file
        with dag, self:
            self.fetch, self.merge, self.finalize = apply_tasks(
                conf_file, destination, f"airflow:{dag.dag_id}.{self.group_id}", merge
            )
