"""A run acks its batch, or rolls it back and fails."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk import DAG

from cdc.airflow import TowpathMergeOperator, build_dags, task_group, xcom
from cdc.airflow.compat import AirflowFailException
from cdc.base.errors import LeaseHeldError, MergeFailedError, StorageError, TablesLeftOutError, TargetError
from cdc.batches.manifest import TableResult
from cdc.config import load
from cdc.testing.pipeline import FakePipeline
from tests.support.airflows import task_runner

States = dict[str, str | None]


@pytest.fixture
def apply(
    write_conf: Callable[..., Any], run_dag: Callable[[DAG], States], pipeline: FakePipeline
) -> Callable[..., States]:
    def run(retries: int = 0) -> States:
        return run_dag(build_dags(write_conf(retries=retries))["apply_shop"])

    return run


def raiser(*errors: Exception) -> Callable[[], None]:
    """Raises these errors one after the other, then none."""
    left = list(errors)

    def step() -> None:
        if left:
            raise left.pop(0)

    return step


def test_a_merged_batch_is_acked(apply: Callable[..., States], pipeline: FakePipeline) -> None:
    assert apply() == {"run": "success", "fetch": "success", "merge": "success", "finalize": "success"}
    assert pipeline.acked == [1]
    assert pipeline.rolled_back == []
    assert pipeline.owners == ["airflow:apply_shop"]


def test_merge_results_reach_the_ack(apply: Callable[..., States], pipeline: FakePipeline) -> None:
    result = TableResult(table="shop.orders", inserted=3, delta_version=7)
    pipeline.results = [result]
    assert apply()["run"] == "success"
    assert pipeline.recorded == {1: [result.model_dump()]}


def test_a_merge_that_raises_is_rolled_back_and_fails_the_run(
    apply: Callable[..., States], pipeline: FakePipeline
) -> None:
    pipeline.fail["merge"] = raiser(MergeFailedError("the driver was killed"))
    assert apply() == {"run": "failed", "fetch": "success", "merge": "failed", "finalize": "failed"}
    assert pipeline.rolled_back == [1]
    assert pipeline.acked == []
    assert apply()["run"] == "success", "the next run takes the same batch"
    assert pipeline.acked == [1]


def test_a_retryable_error_is_retried_within_the_run(apply: Callable[..., States], pipeline: FakePipeline) -> None:
    pipeline.fail["fetch"] = raiser(LeaseHeldError("cli:elsewhere holds batch 1"))
    pipeline.fail["merge"] = raiser(MergeFailedError("once"), MergeFailedError("twice"))
    pipeline.fail["finalize"] = raiser(StorageError("no space left"))
    assert apply(retries=2)["run"] == "success"
    # Each later try of the merge takes the batch under a new token, so an earlier try can no longer ack it.
    assert pipeline.calls == ["fetch", "fetch", "merge", "fetch", "merge", "fetch", "merge", "finalize", "finalize"]
    assert pipeline.acked == [1]


def test_a_permanent_error_is_not_retried(apply: Callable[..., States], pipeline: FakePipeline) -> None:
    pipeline.fail["merge"] = raiser(TargetError("is not a Delta table"), TargetError("is not a Delta table"))
    assert apply(retries=2)["run"] == "failed"
    assert pipeline.calls == ["fetch", "merge", "release"]
    assert pipeline.rolled_back == [1]


def test_nothing_to_fetch_is_a_success(apply: Callable[..., States], pipeline: FakePipeline) -> None:
    pipeline.waiting.clear()
    assert apply() == {"run": "success", "fetch": "success", "merge": "skipped", "finalize": "skipped"}
    assert pipeline.calls == ["fetch"]
    assert pipeline.retries == 1, "parked tables do not wait for the others' changes"


def test_a_run_that_leaves_tables_out_fails_after_its_ack(apply: Callable[..., States], pipeline: FakePipeline) -> None:
    error = TablesLeftOutError("1 table is left out: shop.b")
    pipeline.fail["left_out"] = raiser(error, error)
    assert apply(retries=2) == {"run": "failed", "fetch": "success", "merge": "success", "finalize": "failed"}
    assert pipeline.acked == [1]
    assert pipeline.calls == ["fetch", "merge", "finalize"], "another try of the task would not help"
    assert apply(retries=2) == {"run": "failed", "fetch": "failed", "merge": "upstream_failed", "finalize": "failed"}
    assert apply() == {"run": "success", "fetch": "success", "merge": "skipped", "finalize": "skipped"}


def test_a_failed_fetch_fails_the_run_and_rolls_nothing_back(
    apply: Callable[..., States], pipeline: FakePipeline
) -> None:
    pipeline.fail["fetch"] = raiser(LeaseHeldError("cli:elsewhere holds batch 1"))
    assert apply() == {"run": "failed", "fetch": "failed", "merge": "upstream_failed", "finalize": "failed"}
    assert pipeline.calls == ["fetch"]


def test_a_merge_process_killed_is_rolled_back(
    apply: Callable[..., States], pipeline: FakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL leaves no exception and no callback, only the state that the scheduler sets."""
    _kill_instead_of_running(monkeypatch, "merge")
    assert apply() == {"run": "failed", "fetch": "success", "merge": "failed", "finalize": "failed"}
    assert pipeline.rolled_back == [1]
    assert pipeline.acked == []


def test_a_merge_marked_as_success_by_hand_is_not_acked(
    apply: Callable[..., States], pipeline: FakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    _mark_instead_of_running(monkeypatch, "merge")
    assert apply()["run"] == "failed"
    assert pipeline.calls == ["fetch", "release"]
    assert pipeline.rolled_back == [1]


def test_killing_a_merge_stops_its_driver(write_conf: Callable[..., Any], pipeline: FakePipeline) -> None:
    TowpathMergeOperator(task_id="merge", conf_file=str(write_conf() / "shop.yaml")).on_kill()
    assert pipeline.calls == ["stop"]


def test_clearing_a_merge_whose_batch_was_rolled_back_fails(
    write_conf: Callable[..., Any], pipeline: FakePipeline
) -> None:
    file = write_conf() / "shop.yaml"
    lease = pipeline.fetch(load(file), "airflow:apply_shop")
    assert lease is not None
    pipeline.finalize(load(file), lease, ok=False)
    context: Any = {"ti": Handed(xcom.from_lease(lease, None))}
    with pytest.raises(AirflowFailException, match="the token of batch 1 is not the latest"):
        TowpathMergeOperator(task_id="merge", conf_file=str(file)).execute(context)


class Handed:
    """A task instance with the XCom of fetch only."""

    def __init__(self, value: dict[str, Any]) -> None:
        self._value = value

    def xcom_pull(self, task_ids: str) -> dict[str, Any]:
        assert task_ids == "fetch"
        return self._value


def test_finalize_has_patience_of_its_own(write_conf: Callable[..., Any]) -> None:
    dag = build_dags(write_conf(retries=0))["apply_shop"]
    assert dag.get_task("finalize").retries == task_group.FINALIZE_RETRIES
    assert dag.get_task("merge").retries == 0


def _kill_instead_of_running(monkeypatch: pytest.MonkeyPatch, task_id: str) -> None:
    """Runs the task in a process of its own, as an executor does; if it is killed, the scheduler marks it as failed."""
    from airflow.utils.state import TaskInstanceState

    module = task_runner()
    original = module._run_task

    def run_task(*, ti: Any, **others: Any) -> Any:
        if ti.task_id != task_id:
            return original(ti=ti, **others)
        program = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
        assert subprocess.run([sys.executable, "-c", program]).returncode == -signal.SIGKILL
        ti.set_state(TaskInstanceState.FAILED)
        return None

    monkeypatch.setattr(module, "_run_task", run_task)


def _mark_instead_of_running(monkeypatch: pytest.MonkeyPatch, task_id: str) -> None:
    from airflow.utils.state import TaskInstanceState

    module = task_runner()
    original = module._run_task

    def run_task(*, ti: Any, **others: Any) -> Any:
        if ti.task_id != task_id:
            return original(ti=ti, **others)
        ti.set_state(TaskInstanceState.SUCCESS)
        return None

    monkeypatch.setattr(module, "_run_task", run_task)
