"""``fetch >> merge >> finalize`` as a task group, for a DAG of one's own."""

from __future__ import annotations

from typing import Any

from airflow.sdk import TaskGroup

from cdc.airflow.batches import TowpathFetchOperator, TowpathFinalizeOperator, TowpathMergeOperator
from cdc.base.errors import UsageError

FINALIZE_RETRIES = 5
"""More than for a merge, because ack and rollback are cheap and may be repeated."""


class TowpathApplyTaskGroup(TaskGroup):
    """Applies the waiting batches of a destination: the tasks ``fetch``, ``merge`` and ``finalize`` of the apply DAG.

    ``conf_file``: the path of ``DEST.yaml`` on the worker (templated). ``destination``: the name of the destination, if
    a template makes the name of that file. Further arguments are those of a TaskGroup;
    ``default_args`` (queue, pool, retries, …) hold for the three tasks.

    If there is nothing to apply, ``merge`` and ``finalize`` are skipped, and so are the tasks after the group, unless
    their trigger rule says otherwise (``none_failed``). Tasks after the group run after the ack. A group is an owner of
    batches of its own. Raises UsageError if the DAG may have several active runs: they would take each other's batches.
    """

    def __init__(
        self, group_id: str = "apply", *, conf_file: str, destination: str | None = None, **kwargs: Any
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
        common: dict[str, Any] = {
            "conf_file": conf_file,
            "batch_owner": f"airflow:{dag.dag_id}.{self.group_id}",
            "dag": dag,
            "task_group": self,
        }
        self.fetch = TowpathFetchOperator(task_id="fetch", destination=destination, **common)
        self.merge = TowpathMergeOperator(task_id="merge", fetch_task_id=self.fetch.task_id, **common)
        self.finalize = TowpathFinalizeOperator(
            task_id="finalize",
            fetch_task_id=self.fetch.task_id,
            merge_task_id=self.merge.task_id,
            destination=destination,
            retries=FINALIZE_RETRIES,
            **common,
        )
        self.fetch >> self.merge >> self.finalize
