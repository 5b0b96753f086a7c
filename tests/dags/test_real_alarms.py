"""Failed and late runs of a real Airflow, told to the handlers of alarms by its DAG processor and its triggerer."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from tests.dags.conftest import CONFIGURATION
from tests.dags.test_notifier import KEEP
from tests.support.real_airflow import RealAirflow

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


def test_failed_and_late_runs(tmp_path: Path) -> None:
    file, conf = tmp_path / "told.jsonl", tmp_path / "conf"
    conf.mkdir()
    text = CONFIGURATION.format(name="shop", retries=0, until="none", run_for="5m").replace(
        "airflow: {", "airflow: {on_failure: alarms, interval: hour, interval_deadline: 5s, "
    )
    alarms = {"alarms": {"command": [sys.executable, "-c", KEEP, str(file)]}}
    (conf / "shop.yaml").write_text(text + yaml.safe_dump(alarms))
    airflow = RealAirflow(tmp_path / "airflow", conf, ("verify", "intervals"), {})

    def told(alarm: str) -> list[dict[str, Any]]:
        lines = file.read_text().splitlines() if file.exists() else []
        return [document for line in lines if line and (document := json.loads(line))["alarm"] == alarm]

    try:
        airflow.start()
        airflow.unpause("verify_shop")
        run = airflow.trigger("verify_shop")  # nothing was ever captured
        assert airflow.wait_run("verify_shop", run) == "failed"
        airflow.unpause("intervals_shop")
        airflow.wait(lambda: bool(told("airflow_run_failed")), "the message of the DAG processor", 180)
        airflow.wait(lambda: bool(told("airflow_run_late")), "the message of the triggerer", 180)
        late_run = airflow.runs("intervals_shop")[0]
    finally:
        airflow.stop()
    (failed,), (late,) = told("airflow_run_failed"), told("airflow_run_late")
    assert failed["summary"] == f"The run verify_shop {run} has failed."
    assert failed["detail"].endswith(f"{airflow.port}/dags/verify_shop/runs/{quote(run)}")
    assert late["summary"] == "The lake does not have the changes of the last hour of shop yet."
    assert late["detail"].endswith(f"{airflow.port}/dags/intervals_shop/runs/{quote(late_run['dag_run_id'])}")
    assert late_run["state"] == "running"
