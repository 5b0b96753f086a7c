"""Messages of Airflow to the handlers of alarms."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cdc.airflow import TowpathNotifier, build_dags
from cdc.airflow.compat import has_partitions
from cdc.airflow.factory import ERROR_TAG
from tests.dags.conftest import CONFIGURATION

KEEP = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read() + '\\n')"


@pytest.fixture
def told(tmp_path: Path, write_conf: Callable[..., Path]) -> Callable[[], list[dict[str, Any]]]:
    """A configuration whose alarms go to a file, and what is in it."""
    file = tmp_path / "told.jsonl"
    text = CONFIGURATION.format(name="shop", retries=0, until="none", run_for="5m").replace(
        "airflow: {", "airflow: {on_failure: alarms, interval: hour, interval_deadline: 30m, "
    )
    write_conf(text=text + yaml.safe_dump({"alarms": {"command": [sys.executable, "-c", KEEP, str(file)]}}))
    return lambda: [json.loads(line) for line in file.read_text().splitlines() if line] if file.exists() else []


class Dag:
    dag_id = "verify_shop"


class Run:
    def __init__(self) -> None:
        self.dag_id, self.run_id = "verify_shop", "manual__1"


class Task:
    task_id = "verify"


def test_a_run_a_task_and_a_deadline(
    told: Callable[[], list[dict[str, Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/")
    notifier = TowpathNotifier(conf_file=str(tmp_path / "conf" / "shop.yaml"))
    notifier.notify({"dag": Dag, "run_id": "manual__1", "reason": "task_failure"})
    notifier.notify({"dag": Dag, "dag_run": Run(), "ti": Task, "reason": "task_failure"})
    notifier.notify({"dag": Dag, "dag_run": Run(), "ti": Task, "exception": OSError("no disk")})
    of_scheduler = {"dag_run": {"dag_id": "verify_shop", "dag_run_id": "manual__1"}, "deadline": {"id": "7"}}
    asyncio.run(notifier.async_notify(of_scheduler))
    documents = told()
    assert [document["summary"] for document in documents] == [
        "The run verify_shop manual__1 has failed.",
        "The run verify_shop manual__1 has failed.",
        "The task verify of verify_shop manual__1 has failed.",
        "The run verify_shop manual__1 is late.",
    ]
    address = "https://airflow.example/dags/verify_shop/runs/manual__1"
    assert [document["detail"] for document in documents] == [
        f"task_failure {address}", f"task_failure {address}", f"no disk {address}", address
    ]  # fmt: skip
    assert [document["alarm"] for document in documents] == ["airflow_run_failed"] * 3 + ["airflow_run_late"]
    assert {(d["event"], d["destination"], d["severity"]) for d in documents} == {("reported", "shop", "critical")}
    assert len({document["delivery"] for document in documents}) == 4


def test_who_could_not_be_told_is_in_the_log(
    told: Callable[[], list[dict[str, Any]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "conf" / "shop.yaml"
    file.write_text(file.read_text().replace(sys.executable, "/nowhere/python"))
    TowpathNotifier(conf_file=str(file)).notify({"dag": Dag, "run_id": "1"})
    TowpathNotifier(conf_file=str(tmp_path / "conf" / "gone.yaml")).notify({"dag": Dag, "run_id": "1"})
    assert told() == []
    first, second = capsys.readouterr().out.splitlines()
    assert "The command was not told: /nowhere/python cannot be run" in first
    assert "Nobody was told: " in second and "gone.yaml" in second


@pytest.mark.skipif(not has_partitions(), reason="the intervals DAG needs Airflow 3.3")
def test_the_dags_have_it(told: Callable[[], list[dict[str, Any]]], tmp_path: Path) -> None:
    dags = build_dags(tmp_path / "conf")
    assert not any(ERROR_TAG in dag.tags for dag in dags.values())
    assert all(isinstance(dag.on_failure_callback, TowpathNotifier) for dag in dags.values())
    assert {name for name, dag in dags.items() if dag.deadline} == {"intervals_shop"}
    deadlines: Any = dags["intervals_shop"].deadline
    (deadline,) = deadlines if isinstance(deadlines, list) else [deadlines]
    assert deadline.interval.total_seconds() == 1800
    assert deadline.callback.kwargs["conf_file"] == str(tmp_path / "conf" / "shop.yaml")
