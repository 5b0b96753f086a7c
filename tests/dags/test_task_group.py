"""``fetch >> merge >> finalize`` in a DAG of one's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG

from cdc.airflow import TowpathApplyTaskGroup
from cdc.airflow.task_group import MergeJob
from cdc.base.errors import MergeFailedError, UsageError
from cdc.config import load
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


def test_a_job_elsewhere_acks_its_batches(
    own: Callable[..., DAG], run_dag: Callable[..., States], pipeline: FakePipeline, tmp_path: Path
) -> None:
    states = run_dag(own(merge=job(pipeline, tmp_path)))
    assert set(states.values()) == {"success"}
    assert (pipeline.acked, set(pipeline.owners)) == ([1], {"airflow:own.apply"})
    name, *options = json.loads((tmp_path / "arguments").read_text())
    assert (name, options[:4]) == ("shop", ["--owner", "airflow:own.apply", "--until", "none"])
    assert options[4:6] == ["--airflow-run", "own"]
    assert options[7:] == ["apply.merge", "1"]


def test_without_news_no_job_is_submitted(
    own: Callable[..., DAG], run_dag: Callable[..., States], pipeline: FakePipeline, tmp_path: Path
) -> None:
    pipeline.waiting.clear()
    states = run_dag(own(merge=job(pipeline, tmp_path)))
    assert [states[f"apply.{task}"] for task in ("fetch", "merge", "finalize")] == ["success", "skipped", "skipped"]
    assert not (tmp_path / "arguments").exists()


@pytest.mark.parametrize("fails", [True, False])
def test_a_job_that_does_not_ack_is_rolled_back(
    own: Callable[..., DAG], run_dag: Callable[..., States], pipeline: FakePipeline, tmp_path: Path, fails: bool
) -> None:
    """It failed, or somebody marked its task as successful."""
    states = run_dag(own(merge=job(pipeline, tmp_path, acks=False, fails=fails)))
    assert states["apply.merge"] == ("failed" if fails else "success")
    assert (states["apply.finalize"], states["report"]) == ("failed", "upstream_failed")
    assert (pipeline.rolled_back, pipeline.acked) == ([1], [])


def test_batches_that_a_job_acked_before_it_failed_stay_acked(
    own: Callable[..., DAG], run_dag: Callable[..., States], pipeline: FakePipeline, tmp_path: Path
) -> None:
    states = run_dag(own(merge=job(pipeline, tmp_path, fails=True)))
    assert (states["apply.merge"], states["apply.finalize"]) == ("failed", "failed")
    assert (pipeline.acked, pipeline.rolled_back) == ([1], [])


def test_a_job_for_a_destination_without_a_name_is_refused(pipeline: FakePipeline, tmp_path: Path) -> None:
    with (
        DAG("own", schedule=None, max_active_runs=1),
        pytest.raises(UsageError, match=r"conf_file is a template.*Give destination="),
    ):
        TowpathApplyTaskGroup(conf_file="/conf/{{ params.name }}.yaml", merge=job(pipeline, tmp_path))


@pytest.mark.parametrize("made", [None, "other"])
def test_a_merge_that_makes_another_task_is_refused(own: Callable[..., DAG], made: str | None) -> None:
    with pytest.raises(UsageError, match="Return an operator, and hand task_id to it"):
        own(merge=lambda task_id, arguments: None if made is None else EmptyOperator(task_id=made))


def job(pipeline: FakePipeline, folder: Path, *, acks: bool = True, fails: bool = False) -> MergeJob:
    """A merge by an operator that stands for that of a cluster. ``folder`` gets the arguments of the job."""

    def run(arguments: list[str]) -> None:
        (folder / "arguments").write_text(json.dumps(arguments))
        if acks:
            lease = pipeline.fetch(load(folder / "conf" / "shop.yaml"), arguments[2])
            assert lease is not None
            pipeline.finalize(load(folder / "conf" / "shop.yaml"), lease, True, [])
        if fails:
            raise RuntimeError("the job has failed")

    return lambda task_id, arguments: PythonOperator(task_id=task_id, python_callable=run, op_args=[arguments])
