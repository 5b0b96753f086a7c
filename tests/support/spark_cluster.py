"""Spark's standalone cluster for tests: a master and workers, each on a machine of its own."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import httpx

from cdc.lake.runtime.jars import delta_packages, jars_of, s3_packages, spark_home
from tests.support.machines import Machine, wait_for_port

PORT, PAGE, REST = 7077, 8080, 6066
_QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


@dataclass
class Cluster:
    """A master and its workers."""

    master: Machine
    workers: Sequence[Machine]
    secret: str | None = None
    """The secret of ``spark.authenticate``; None: anyone on the network may submit."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """More environment variables of the daemons, which executors inherit."""
    cores: int = 2
    memory: str = "1500m"
    worker_timeout_s: int = 60
    """The master takes a worker for lost that has sent no heartbeat for so long."""
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"spark://{self.master.address}:{PORT}"

    def start(self) -> None:
        """Starts all daemons, and returns when the workers are registered."""
        self.start_master()
        for worker in self.workers:
            self.start_worker(worker)
        self.wait_for_workers(len(self.workers))

    def start_master(self) -> None:
        words = ["Master", "--host", self.master.address, "--port", str(PORT), "--webui-port", str(PAGE)]
        process = self._start(self.master, words)
        wait_for_port(self.master.address, PORT, process)
        wait_for_port(self.master.address, PAGE, process)

    def start_worker(self, worker: Machine) -> None:
        words = ["Worker", self.url, "--host", worker.address, "--cores", str(self.cores), "--memory", self.memory]
        self._start(worker, [*words, "--work-dir", str(worker.folder / "work"), "--webui-port", str(PAGE)])

    def _start(self, machine: Machine, words: Sequence[str]) -> subprocess.Popen[bytes]:
        command = [str(spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{words[0].lower()}.{words[0]}"]
        settings = {
            "SPARK_HOME": str(spark_home()),
            "SPARK_DAEMON_JAVA_OPTS": _QUICK,
            "SPARK_DAEMON_MEMORY": "256m",
            **self.environment,
        }
        environment = machine.environment(**settings)
        environment.pop("PYTHONPATH", None)  # daemons of a cluster do not know the repository
        # A master that is started again knows its applications, and so replaces executors that they lose later.
        settings = {
            "spark.worker.timeout": str(self.worker_timeout_s),
            "spark.deploy.recoveryMode": "FILESYSTEM",
            "spark.deploy.recoveryDirectory": str(machine.folder / "recovery"),
        }
        if self.secret is not None:
            settings |= {"spark.authenticate": "true", "spark.authenticate.secret": self.secret}
        file = machine.path("spark.properties")
        file.touch(mode=0o600)
        file.write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
        words = [*words, "--properties-file", str(machine.folder / "spark.properties")]
        self._running[machine.name] = machine.popen([*command, *words[1:]], words[0].lower(), environment)
        return self._running[machine.name]

    def state(self) -> dict[str, object]:
        """Returns the state of the master's workers and applications; nothing while its page is not ready."""
        answer = httpx.get(f"http://{self.master.address}:{PAGE}/json/", timeout=10)
        document: dict[str, object] = answer.json() if answer.is_success else {}
        return document

    def wait_for_workers(self, count: int, limit_s: float = 90) -> None:
        deadline = time.monotonic() + limit_s
        while self.state().get("aliveworkers") != count:
            assert time.monotonic() < deadline, f"{self.state()}\n{self.master.log('master')[-2000:]}"
            time.sleep(0.2)


def give_jars(machine: Machine) -> None:
    """Copies the jars of Delta and S3A into a machine's cache, since it cannot fetch any."""
    for packages in (delta_packages(), s3_packages()):
        jars_of(packages)
        for name in ("complete", "jars"):
            source, to = packages.folder / name, machine.path("cache") / packages.folder.name / name
            to.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, to)
            else:
                shutil.copy2(source, to)
