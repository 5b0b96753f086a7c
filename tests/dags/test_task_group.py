"""``fetch >> merge >> finalize`` in a DAG of one's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

from cdc.airflow import TowpathApplyTaskGroup
from cdc.base.errors import MergeFailedError, UsageError
from cdc.testing.pipeline import FakePipeline

States = dict[str, str | None]


@pytest.fixture
def own(write_conf: Callable[..., Path]) -> Callable[..., DAG]:
    """A DAG with a task before the group, and two after it."""

    def make(max_active_runs: int = 1, **arguments: Any) -> DAG:
        dag = DAG("own", schedule=None, max_active_runs=max_active_runs, default_args={"retries": 0})
        with dag:
            group = TowpathApplyTaskGroup(conf_file=str(write_conf() / "shop.yaml"), **arguments)
            always = EmptyOperator(task_id="always", trigger_rule="none_failed")
            EmptyOperator(task_id="before") >> group >> [EmptyOperator(task_id="report"), always]
        return dag

    return make


def test_a_batch_is_applied(own: Callable[..., DAG], run_dag: Callable[..., States], pipeline: FakePipeline) -> None:
    states = run_dag(own())
    assert set(states.values()) == {"success"}
    assert set(states) == {"run", "before", "apply.fetch", "apply.merge", "apply.finalize", "report", "always"}
    assert (pipeline.acked, pipeline.owners) == ([1], ["airflow:own.apply"])


def test_without_news_the_dag_decides_what_runs(
    own: Callable[..., DAG], run_dag: Callable[..., States], pipeline: FakePipeline
) -> None:
    pipeline.waiting.clear()
    states = run_dag(own())
    assert [states[f"apply.{task}"] for task in ("fetch", "merge", "finalize")] == ["success", "skipped", "skipped"]
    assert (states["run"], states["report"], states["always"]) == ("success", "skipped", "success")


def test_a_failed_merge_is_rolled_back_and_nothing_follows(
    own: Callable[..., DAG], run_dag: Callable[..., States], pipeline: FakePipeline
) -> None:
    def fail() -> None:
        raise MergeFailedError("the driver was killed")

    pipeline.fail["merge"] = fail
    states = run_dag(own(group_id="lake", default_args={"queue": "spark"}))
    assert (states["lake.merge"], states["lake.finalize"], states["report"]) == ("failed", "failed", "upstream_failed")
    assert (states["run"], pipeline.rolled_back, pipeline.acked) == ("failed", [1], [])


def test_arguments_of_the_group_reach_its_tasks(own: Callable[..., DAG]) -> None:
    dag = own(default_args={"queue": "spark", "retries": 4})
    tasks = {task.task_id: (task.queue, task.retries) for task in dag.tasks if task.task_id.startswith("apply.")}
    assert tasks == {"apply.fetch": ("spark", 4), "apply.merge": ("spark", 4), "apply.finalize": ("spark", 5)}


def test_a_dag_with_runs_at_the_same_time_is_refused(own: Callable[..., DAG]) -> None:
    with pytest.raises(UsageError, match=r"max_active_runs is 16.*Set max_active_runs=1"):
        own(max_active_runs=16)
