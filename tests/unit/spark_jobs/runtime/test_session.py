"""The settings of a Spark session."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cdc.config import SparkConfig
from spark_jobs.runtime.session import in_process, settings, worker_path


def test_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    conf = {"spark.jars": "/x.jar", "spark.driver.memory": "9g", "spark.driver.extraJavaOptions": "-Xss4m"}
    values = settings(SparkConfig(master="local[3]", conf=conf))
    assert values["spark.jars"] == "/x.jar"
    assert values["spark.driver.memory"] == "9g"
    assert values["spark.sql.shuffle.partitions"] == "3"
    assert values["spark.sql.session.timeZone"] == "UTC"
    assert values["spark.driver.extraJavaOptions"].startswith("-Duser.timezone=UTC ")
    assert values["spark.driver.extraJavaOptions"].endswith(" -Xss4m")
    cluster = settings(SparkConfig(master="spark://h:7077", conf=conf))
    assert "spark.sql.shuffle.partitions" not in cluster
    assert "spark.driver.host" not in cluster


@pytest.mark.parametrize(
    ("master", "remote", "expected"),
    [
        ("local", None, True),
        ("local[*]", None, True),
        ("local-cluster[1,1,1024]", None, False),
        ("yarn", None, False),
        ("local[*]", "sc://h", False),
    ],
)
def test_where_a_merge_runs(master: str, remote: str | None, expected: bool) -> None:
    assert in_process(SparkConfig(master=master, remote=remote)) is expected


def test_workers_find_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/opt/others")
    root, *others = worker_path().split(os.pathsep)
    assert (Path(root) / "spark_jobs" / "apply_batch.py").exists()
    assert others == ["/opt/others"]


def test_a_driver_on_another_machine_is_refused() -> None:
    conf = {"spark.submit.deployMode": "cluster"}
    with pytest.raises(ValueError, match="must be client: the driver works for the process that submits it"):
        SparkConfig.model_validate({"master": "yarn", "conf": conf})
    SparkConfig.model_validate({"master": "yarn", "conf": {"spark.submit.deployMode": "client"}})
