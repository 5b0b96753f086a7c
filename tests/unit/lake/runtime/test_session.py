"""The settings of a Spark session."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import cdc
from cdc.config import SparkConfig
from cdc.lake.runtime import jars, shipping
from cdc.lake.runtime.session import short_options
from cdc.lake.runtime.spark_settings import in_process, settings, worker_path

DELTA, S3 = (f"/ours/{packages.folder.name}.jar" for packages in (jars.delta_packages(), jars.s3_packages()))


@pytest.fixture(autouse=True)
def _jars(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the jars that are fetched."""
    monkeypatch.setattr(jars, "jars_of", lambda packages: [Path(f"/ours/{packages.folder.name}.jar")])


@pytest.mark.parametrize(
    ("given", "collectors"),
    [("-Xss4m", "-XX:+UseSerialGC"), ("-XX:+UseG1GC -Xss4m", "-XX:+UseG1GC"), ("-XX:+UseZGC", "-XX:+UseZGC")],
)
def test_a_driver_for_a_small_batch_has_one_collector(given: str, collectors: str) -> None:
    words = short_options(given).split()
    assert [word for word in words if word.endswith("GC")] == [collectors]
    assert words[: len(given.split())] == given.split() and "-XX:TieredStopAtLevel=1" in words


def test_settings() -> None:
    conf = {"spark.jars": "/x.jar", "spark.driver.memory": "9g", "spark.driver.extraJavaOptions": "-Xss4m"}
    values = settings(SparkConfig(master="local[3]", conf=conf))
    assert values["spark.jars"] == f"{DELTA},/x.jar"
    assert values["spark.driver.memory"] == "9g"
    assert values["spark.sql.shuffle.partitions"] == "3"
    assert values["spark.sql.session.timeZone"] == "UTC"
    assert values["spark.driver.extraJavaOptions"].startswith("-Duser.timezone=UTC ")
    assert values["spark.driver.extraJavaOptions"].endswith(" -Xss4m")
    cluster = settings(SparkConfig(master="spark://h:7077", conf=conf))
    assert "spark.sql.shuffle.partitions" not in cluster
    assert "spark.driver.host" not in cluster


def test_lists_keep_what_towpath_needs() -> None:
    """A list that replaced ours would leave a session without Delta, or executors with another time zone."""
    conf = {
        "spark.jars.packages": "org.apache.iceberg:iceberg-spark-runtime:1.10.0",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.executor.extraJavaOptions": "-Xss4m",
    }
    values = settings(SparkConfig(master="spark://h:7077", conf=conf))
    assert values["spark.jars"] == DELTA
    assert values["spark.jars.packages"] == conf["spark.jars.packages"]
    extensions = values["spark.sql.extensions"].split(",")
    assert extensions == ["io.delta.sql.DeltaSparkSessionExtension", conf["spark.sql.extensions"]]
    assert values["spark.executor.extraJavaOptions"] == "-Duser.timezone=UTC -Xss4m"
    extended = settings(SparkConfig(master="spark://h:7077", conf={"spark.sql.extensions": ",".join(extensions)}))
    assert extended["spark.sql.extensions"].split(",") == extensions, "nothing is there twice"


@pytest.mark.parametrize(
    ("conf", "with_s3", "expected"),
    [
        ({}, False, [DELTA]),
        ({}, True, [DELTA, S3, str(jars.CLASSES)]),
        (
            {"spark.jars": "/a/delta-spark_4.2_2.13-4.4.0.jar, b.jar"},
            False,
            ["/a/delta-spark_4.2_2.13-4.4.0.jar", "b.jar"],
        ),
        ({"spark.jars.packages": "io.delta:delta-spark_4.2_2.13:4.4.0"}, True, [S3, str(jars.CLASSES)]),
        ({"spark.jars.packages": "org.apache.hadoop:hadoop-aws:3.5.0"}, True, [DELTA, str(jars.CLASSES)]),
        ({"spark.jars": "hdfs://h/jars/*.jar"}, True, ["hdfs://h/jars/*.jar"]),
        ({"spark.jars": "/nothing/here/*.jar"}, False, [DELTA, "/nothing/here/*.jar"]),
    ],
)
def test_jars_are_merged(conf: dict[str, str], with_s3: bool, expected: list[str]) -> None:
    assert jars.of_session(conf, with_s3=with_s3) == expected


def test_a_pattern_is_looked_through(tmp_path: Path) -> None:
    (tmp_path / "delta-spark_4.2_2.13-4.4.0.jar").touch()
    pattern = f"{tmp_path}/*.jar"
    assert jars.of_session({"spark.jars": pattern}, with_s3=False) == [pattern]


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
    assert (Path(root) / "cdc" / "lake" / "apply" / "batch.py").exists()
    assert others == ["/opt/others"]


def test_a_driver_on_another_machine_is_refused() -> None:
    conf = {"spark.submit.deployMode": "cluster"}
    with pytest.raises(ValueError, match="must be client: the driver works for the process that submits it"):
        SparkConfig.model_validate({"master": "yarn", "conf": conf})
    SparkConfig.model_validate({"master": "yarn", "conf": {"spark.submit.deployMode": "client"}})


def test_nothing_is_shipped_where_nothing_is_submitted() -> None:
    for where in ({"master": "local[2]"}, {"remote": "sc://h"}):
        with pytest.raises(ValueError, match=r"ship: towpath has no effect with .*: nothing is submitted; remove it"):
            SparkConfig.model_validate({**where, "ship": "towpath"})
    SparkConfig.model_validate({"master": "spark://h:7077", "ship": "towpath"})


def test_what_is_shipped_runs_alone(tmp_path: Path) -> None:
    """The archive decodes rows in a process that has no other Towpath, without compiling a kernel."""
    values = {"spark.archives": "/e.tar.gz#environment", "spark.executorEnv.PYTHONPATH": "/opt/others"}
    sent = shipping.settings(values, tmp_path)
    archive = tmp_path / f"{shipping.FOLDER}.zip"
    assert sent == {
        "spark.archives": f"/e.tar.gz#environment,{archive}#{shipping.FOLDER}",
        "spark.executorEnv.PYTHONPATH": f"{shipping.FOLDER}:/opt/others",
    }
    with zipfile.ZipFile(archive) as reading:
        reading.extractall(tmp_path / shipping.FOLDER)
    assert archive.stat().st_size < 5 << 20
    code = """if True:
        import sys
        import cdc, cdc.lake.rows.split_reader
        from cdc.decode.reader import warm_up
        warm_up()
        assert "numba" not in sys.modules, "a kernel was compiled"
        print(cdc.__version__, *cdc.__path__, sep="\\n")
        """
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": shipping.FOLDER, "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    version, *folders = done.stdout.split()
    assert version == cdc.__version__
    assert folders == [str(tmp_path / shipping.FOLDER / "cdc")]
