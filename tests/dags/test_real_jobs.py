"""A run whose merge is a job on a real standalone cluster of Spark, in cluster mode: Airflow, store, master and workers
are machines that share no disk, and the lake is in S3."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG
from deltalake import DeltaTable

from cdc.airflow import TowpathApplyTaskGroup
from cdc.config import DestinationConfig
from cdc.lake.runtime.jars import spark_home
from cdc.lake.runtime.spark_settings import settings
from cdc.testing.servers import Server
from tests.dags.test_changes import Events, clean, events
from tests.support.apply import COMPILED_CONF, Loop
from tests.support.compare import delta_rows, select_rows
from tests.support.machines import Machine, Site
from tests.support.s3 import S3Server, serve
from tests.support.server import ServerProcess, client_config, make_certificates, server_process, with_tokens
from tests.support.spark_cluster import Cluster, give_jars

__all__ = ["clean", "events"]
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.geteuid() != 0, reason="machines of their own take root"),
]
REPOSITORY = Path(__file__).resolve().parents[2]
BUCKET, SECRET = "lake", "Sesam-lake-4718"
DRIVER = "org.apache.spark.deploy.PythonRunner"
PACKAGES = (
    *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util"),
    *("java.util.concurrent", "java.util.concurrent.atomic", "sun.nio.ch", "sun.nio.cs", "sun.security.action"),
    "sun.util.calendar",
)
OPENED = " ".join(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in PACKAGES)
"""Options of the JVM that spark-submit adds to a driver in client mode only."""
States = dict[str, str | None]


@dataclass
class Setup:
    """A destination whose store is on the host, as is Airflow, and a cluster where its jobs run."""

    loop: Loop
    client: DestinationConfig
    """The configuration on Airflow's machine and on the workers."""
    folder: Path
    s3: S3Server
    cluster: Cluster
    gateway: Machine
    """The machine of spark-submit, which ends when the driver ends."""
    server: ServerProcess
    copies: int = 0

    def submit(self, arguments: list[str]) -> None:
        """Runs a job in cluster mode, and waits for its end. Raises AssertionError if it fails."""
        conf = {
            **settings(self.client.spark.model_copy(update={"master": self.cluster.url})),
            **COMPILED_CONF,
            "spark.driver.memory": "1g",
            "spark.executor.memory": "1g",
            "spark.executor.cores": "1",
            "spark.cores.max": "1",
            "spark.executorEnv.PYTHONPATH": str(REPOSITORY),
            "spark.standalone.submit.waitAppCompletion": "true",
        }
        conf["spark.driver.extraJavaOptions"] += f" {OPENED} -Dio.netty.tryReflectionSetAccessible=true"
        jar = next((spark_home() / "jars").glob("py4j-*.jar"))
        words = [str(spark_home() / "bin" / "spark-submit"), "--master", self.cluster.url, "--deploy-mode", "cluster"]
        words += [word for key, value in sorted(conf.items()) for word in ("--conf", f"{key}={value}")]
        # spark-submit refuses a Python program in cluster mode, and its own runner of Python programs does not.
        words += ["--class", DRIVER, str(jar), str(REPOSITORY / "spark_jobs" / "apply.py"), str(REPOSITORY)]
        # The driver would inherit such variables, like an address, from the machine that submits it.
        env = {key: value for key, value in self.gateway.environment().items() if not key.startswith("SPARK_")}
        with suppress(AssertionError):  # it says how a job has ended only if the worker could not start it
            self.gateway.run(*words, *arguments, env=env, limit_s=900)
        drivers = self.cluster.state()["completeddrivers"]
        assert isinstance(drivers, list)
        newest = max(drivers, key=lambda driver: str(driver["id"]))
        logs = [file.read_text()[-2000:] for worker in self.cluster.workers for file in logs_of(worker, newest["id"])]
        assert newest["state"] == "FINISHED", f"the job is {newest['state']}: {logs}"

    def commits(self, table: str) -> list[dict[str, Any]]:
        """Returns the user metadata of the commits that have changed rows of a table."""
        copy = self.copy()
        delta = DeltaTable(str(copy / self.loop.db / table))
        return [json.loads(commit["userMetadata"]) for commit in delta.history() if commit["operation"] == "MERGE"]

    def copy(self) -> Path:
        """Returns a copy of the bucket."""
        self.copies += 1
        copy = self.folder / f"copy{self.copies}"
        self.s3.download("tables", copy)
        return copy

    def dag(self, retries: int = 0) -> DAG:
        at_once = {"retries": retries, "retry_delay": timedelta(0)}
        with DAG("own", schedule=None, max_active_runs=1, default_args=at_once) as dag:
            TowpathApplyTaskGroup(
                conf_file=str(self.client.file),
                merge=lambda task_id, arguments: PythonOperator(
                    task_id=task_id, python_callable=self.submit, op_args=[arguments]
                ),
            )
        return dag

    def require_equal(self, *tables: str) -> None:
        """Compares tables of the lake with the source, by a copy of the bucket."""
        copy = self.copy()
        for table in tables:
            columns, expected = select_rows(self.loop.server, self.loop.db, table)
            assert delta_rows(copy, self.loop.db, table, columns) == expected, table


@pytest.fixture
def setup(mysql9: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Setup]:
    monkeypatch.setenv("LAKE_SECRET", SECRET)
    db = f"jobs_{os.getpid()}"
    mysql9.execute(f"CREATE DATABASE {db}")
    try:
        with Site(tmp_path) as site, serve(BUCKET, site.host, kind="moto") as s3:
            environment = {
                "CDC_CONF": str(tmp_path / "client" / "conf"),
                "LAKE_SECRET": SECRET,
                "PYSPARK_PYTHON": sys.executable,
                "PYSPARK_DRIVER_PYTHON": sys.executable,
            }
            workers = [site.machine(f"w{number}") for number in (1, 2)]
            cluster = Cluster(site.machine("master"), workers, environment=environment, worker_timeout_s=15)
            loop = Loop(
                tmp_path,
                mysql9,
                db,
                target=f"s3a://{BUCKET}/tables",
                s3=f"{{endpoint: '{s3.endpoint}', access_key_id: testing, secret_access_key_env: LAKE_SECRET}}",
                overrides="DB.log: {mode: append}",
            )
            tls = make_certificates(loop.config.file.parent, address=site.host)
            served = with_tokens(loop.config, host=site.host, certificate=tls.certificate.name, key=tls.key.name)
            with server_process(served, tmp_path) as server:
                client = client_config(served, tmp_path / "client", server.url, ca_file="ca.pem", retry_for_s=60)
                (client.file.parent / "ca.pem").write_bytes(tls.ca.read_bytes())
                for worker in workers:
                    give_jars(worker)
                    worker.put("client")
                cluster.start()
                yield Setup(loop, client, tmp_path, s3, cluster, site.machine("gateway"), server)
    finally:
        mysql9.execute(f"DROP DATABASE {db}")


def test_runs_are_merged_by_jobs_whatever_is_lost(setup: Setup, run_dag: Callable[..., States], events: Events) -> None:
    loop = setup.loop
    loop.sql(
        "CREATE TABLE mirror (id INT PRIMARY KEY, v VARCHAR(20))",
        "CREATE TABLE log (id INT PRIMARY KEY, v VARCHAR(20))",
        "INSERT INTO mirror VALUES (1, 'a'), (2, 'b')",
        "INSERT INTO log VALUES (1, 'x')",
    )
    loop.capture()
    assert set(run_dag(setup.dag()).values()) == {"success"}
    setup.require_equal("mirror", "log")
    told: list[dict[str, Any]] = [event for event in events.take() if event["uri"].startswith("s3")]
    assert {event["table"].partition(".")[2]: event["rows"] for event in told} == {"mirror": 2, "log": 1}
    (run,) = {json.dumps(entry["run"], sort_keys=True) for entry in setup.commits("log")}
    assert {"dag_id": "own", "task_id": "apply.merge", "try": 1, "command": "cdc apply"}.items() <= json.loads(
        run
    ).items()

    for number, lose in enumerate((kill_driver, lose_worker, restart_server, cut_off), 2):
        loop.sql(f"UPDATE mirror SET v = 'v{number}'", f"INSERT INTO log VALUES ({number}, 'y')")
        loop.capture()
        fault = threading.Thread(target=lose, args=(setup,))
        fault.start()
        states = run_dag(setup.dag(retries=3))
        fault.join()
        assert set(states.values()) == {"success"}, lose.__name__
        setup.require_equal("mirror", "log")
        setup.cluster.wait_for_workers(2)


def logs_of(worker: Machine, driver: str) -> list[Path]:
    return sorted(worker.path("work").glob(f"{driver}/std*"))


def merging(setup: Setup) -> Machine:
    """Waits until a job has an executor, and returns the machine of its driver."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        drivers = [worker for worker in setup.cluster.workers if worker.matching("DriverWrapper")]
        if drivers and any(worker.matching("CoarseGrainedExecutorBackend") for worker in setup.cluster.workers):
            return drivers[0]
        time.sleep(0.1)
    raise AssertionError("no job has got an executor")


def kill_driver(setup: Setup) -> None:
    assert merging(setup).kill_matching("DriverWrapper")


def lose_worker(setup: Setup) -> None:
    worker = merging(setup)
    worker.crash()
    setup.cluster.start_worker(worker)


def restart_server(setup: Setup) -> None:
    merging(setup)
    setup.server.stop(signal.SIGKILL)
    time.sleep(3)
    setup.server.start()


def cut_off(setup: Setup) -> None:
    """The driver goes on without a network, while the master gives it up; then it is back."""
    worker = merging(setup)
    worker.cable("down")
    time.sleep(40)
    worker.cable("up")
