"""The section ``airflow`` of a configuration, in the DAGs that are built from it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pendulum
import pytest
from airflow.sdk import DAG

from cdc.airflow import build_dags, check_configurations, factory, forms
from cdc.airflow.compat import CronDataIntervalTimetable, CronTriggerTimetable, has_approvals
from cdc.airflow.factory import ERROR_TAG
from cdc.base.errors import ConfigError

States = dict[str, str | None]


@pytest.fixture
def dags(write_conf: Callable[..., Path]) -> Callable[..., dict[str, DAG]]:
    """The DAGs of a file with these settings of ``airflow``."""

    def build(settings: str, **arguments: Any) -> dict[str, DAG]:
        file = write_conf() / "shop.yaml"
        text = file.read_text(encoding="utf-8")
        file.write_text(text[: text.index("airflow:")] + f"airflow: {{{settings}}}\n", encoding="utf-8")
        return build_dags(file.parent, **arguments)

    return build


def serialized(dag: DAG) -> Any:
    """The DAG as the scheduler has it."""
    from airflow.serialization import serialized_objects as module

    serialization: Any = getattr(module, "DagSerialization", None) or getattr(module, "SerializedDAG")  # noqa: B009
    return serialization.from_dict(serialization.to_dict(dag))


def test_losses_are_approved_where_airflow_can_ask(
    dags: Callable[..., dict[str, DAG]], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = dags("retries: 0", kinds=["backfill"])["backfill_shop"]
    assert "accept" not in plain.task_ids
    assert "accept" not in plain.params.get_param("kind").schema["enum"]
    with monkeypatch.context() as patch:
        for module in (factory, forms):
            patch.setattr(module, "has_approvals", lambda: False)
        refused = dags("approve_losses: true", kinds=["backfill"])["backfill_shop"]
        assert ERROR_TAG in refused.tags
        assert "needs tasks that ask a person, which this Airflow does not have" in str(refused.doc_md)
        assert "accept" not in refused.task_ids
    if not has_approvals():
        return
    asking = dags("approve_losses: true, default_args: {execution_timeout: 2h}", kinds=["backfill"])["backfill_shop"]
    accept = asking.get_task("accept")
    assert (accept.upstream_task_ids, accept.downstream_task_ids) == ({"plan"}, {"finalize"})
    assert accept.execution_timeout is None, "it would end the wait"
    assert asking.params.get_param("kind").schema["enum"][-1] == "accept"
    assert "minItems" not in asking.params.get_param("tables").schema


def test_intervals_are_refused_where_airflow_has_no_partitions(
    dags: Callable[..., dict[str, DAG]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(factory, "has_partitions", lambda: False)
    built = dags("interval: hour")
    assert "intervals_shop" not in built
    assert all(ERROR_TAG in dag.tags for dag in built.values())
    assert "needs partitioned assets, which this Airflow does not have" in str(built["apply_shop"].doc_md)


def test_cron_schedules(dags: Callable[..., dict[str, DAG]]) -> None:
    dag_by_id = dags(
        "apply_every: '*/10 6-22 * * mon-fri', snapshot_every: '@hourly', verify_every: 0 3 1 * *,"
        " timezone: Europe/Berlin"
    )
    assert all(isinstance(dag_by_id[f"{kind}_shop"].schedule, CronTriggerTimetable) for kind in ("apply", "snapshot"))
    from airflow.timetables.base import TimeRestriction

    def next_run(kind: str) -> datetime:
        timetable = serialized(dag_by_id[f"{kind}_shop"]).timetable
        after = pendulum.datetime(2026, 7, 4, 21)  # a Saturday
        info = timetable.next_dagrun_info(
            last_automated_data_interval=None,
            restriction=TimeRestriction(earliest=after, latest=None, catchup=True),
        )
        assert info is not None
        return info.run_after  # type: ignore[no-any-return]

    assert next_run("apply") == pendulum.datetime(2026, 7, 6, 4), "Monday at 6 in Berlin"
    assert next_run("snapshot") == pendulum.datetime(2026, 7, 4, 21)
    assert next_run("verify") == pendulum.datetime(2026, 8, 1, 1)


def test_a_cron_schedule_with_intervals(dags: Callable[..., dict[str, DAG]]) -> None:
    dag = dags("apply_every: 0 * * * *, until: interval_end")["apply_shop"]
    assert isinstance(dag.schedule, CronDataIntervalTimetable)
    from airflow.timetables.base import TimeRestriction

    info = serialized(dag).timetable.next_dagrun_info(
        last_automated_data_interval=None,
        restriction=TimeRestriction(earliest=pendulum.datetime(2026, 7, 4, 8), latest=None, catchup=True),
    )
    assert info.data_interval == (pendulum.datetime(2026, 7, 4, 8), pendulum.datetime(2026, 7, 4, 9))


def test_arguments_of_all_tasks(dags: Callable[..., dict[str, DAG]]) -> None:
    dag_by_id = dags(
        "retries: 2, pool: lake, queue: store-host, executor: LocalExecutor, max_consecutive_failed_dag_runs: 4,"
        " default_args: {owner: data-team, retry_delay: 20s, max_retry_delay: 40s, execution_timeout: 2h,"
        " pool_slots: 2, priority_weight: 7, weight_rule: absolute}"
    )
    for dag in dag_by_id.values():
        assert dag.max_consecutive_failed_dag_runs == 4
        for task in dag.tasks:
            assert (task.pool, task.queue, task.executor) == ("lake", "store-host", "LocalExecutor")
            assert (task.owner, task.pool_slots, task.priority_weight) == ("data-team", 2, 7)
            assert "absolute" in repr(task.weight_rule).lower()
            assert (task.retry_delay, task.max_retry_delay) == (timedelta(seconds=20), timedelta(seconds=40))
            long = task.task_id in ("capture", "snapshot", "replay", "verify", "maintain")
            assert task.execution_timeout == (None if long else timedelta(hours=2))
            assert task.retries == (5 if task.task_id == "finalize" and dag.dag_id == "apply_shop" else 2)


def test_what_is_not_set_is_left_to_airflow(dags: Callable[..., dict[str, DAG]]) -> None:
    (dag,) = dags("retries: 0", kinds=["apply"]).values()
    task = dag.get_task("merge")
    assert (task.pool, task.queue, task.executor) == ("default_pool", "default", None)
    usual = DAG("usual").max_consecutive_failed_dag_runs
    assert (dag.max_consecutive_failed_dag_runs, dag.on_failure_callback, task.owner) == (usual, None, "towpath")


def test_the_caller_gives_the_tasks_their_pod(dags: Callable[..., dict[str, DAG]]) -> None:
    pod = {"pod_template_file": "/opt/airflow/towpath-pod.yaml"}
    dag = dags("retries: 1", kinds=["apply"], default_args={"executor_config": pod})["apply_shop"]
    assert {task.executor_config["pod_template_file"] for task in serialized(dag).tasks} == {pod["pod_template_file"]}


def test_the_caller_comes_before_the_configuration(dags: Callable[..., dict[str, DAG]]) -> None:
    (dag,) = dags("queue: one, pool: lake", kinds=["apply"], default_args={"queue": "two", "doc_md": "x"}).values()
    task = dag.get_task("merge")
    assert (task.queue, task.pool, task.doc_md) == ("two", "lake", "x")


def test_a_failed_run_calls_the_function(
    dags: Callable[..., dict[str, DAG]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "alerts_of_shop.py").write_text("def tell(context):\n    seen.append(context)\n\nseen = []\n")
    monkeypatch.syspath_prepend(tmp_path)
    dag_by_id = dags("on_failure: alerts_of_shop.tell")
    import alerts_of_shop  # type: ignore[import-not-found]

    assert {dag.on_failure_callback for dag in dag_by_id.values()} == {alerts_of_shop.tell}
    assert serialized(dag_by_id["apply_shop"]).has_on_failure_callback


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("on_failure: nowhere.tell", "airflow.on_failure: nowhere.tell cannot be imported: No module named 'nowhere'"),
        ("on_failure: json.tell", "airflow.on_failure: json has no function tell"),
        ("executor: MoonExecutor", "airflow.executor: MoonExecutor is not an executor of this Airflow"),
    ],
)
def test_what_only_airflow_can_refuse(
    dags: Callable[..., dict[str, DAG]], tmp_path: Path, settings: str, message: str
) -> None:
    """Such a setting must stop neither the data nor the DAGs of other files."""
    (dag,) = dags(settings, kinds=["apply"]).values()
    assert ERROR_TAG in dag.tags
    assert message in str(dag.doc_md)
    assert (dag.on_failure_callback, dag.get_task("merge").executor) == (None, None)
    with pytest.raises(ConfigError) as caught:
        check_configurations(tmp_path / "conf")
    assert message in str(caught.value)
