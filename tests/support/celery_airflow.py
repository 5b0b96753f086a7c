"""Airflow with the CeleryExecutor, on machines that share no disk: one for the API server, the scheduler and the DAG
processor, and one for each worker. Redis is the queue, MySQL the metadata database.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.machines import Machine
from tests.support.real_airflow import Component, RealAirflow

WANTED: tuple[Component, ...] = ("api-server", "scheduler", "dag-processor")
CELERY = "airflow.providers.celery.executors.celery_executor.CeleryExecutor"


_NOWHERE = "nobody@127.0.0.1:1/none"
_SITE = """\
import sys, types

for name in ("MySQLdb", "MySQLdb.converters"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["MySQLdb"].converters = sys.modules["MySQLdb.converters"]
sys.modules["MySQLdb.converters"].conversions = {}
sys.modules["MySQLdb.converters"].DateTime2literal = None
"""
"""Airflow imports mysqlclient, which takes a compiler, whichever driver it uses. It uses PyMySQL here."""


class CeleryAirflow(RealAirflow):
    """``home`` and ``conf`` are paths that each machine has for itself. ``database``: SQLAlchemy's address without the
    driver (``USER:PASSWORD@HOST:PORT/NAME``), ``queue``: ``:PASSWORD@HOST:PORT``."""

    def __init__(
        self,
        home: Path,
        conf: Path,
        kinds: tuple[str, ...],
        environment: Mapping[str, str],
        *,
        main: Machine,
        workers: Sequence[Machine],
        database: str,
        queue: str,
        heartbeat_s: int = 15,
    ) -> None:
        self.main, self.workers = main, workers
        self._database, self._queue = database, queue
        super().__init__(home, conf, kinds, environment, heartbeat_s=heartbeat_s, host=main.address)
        (home / "site").mkdir()
        (home / "site" / "sitecustomize.py").write_text(_SITE)
        for machine in (main, *workers):
            machine.put(str(home.relative_to(machine.folder)))

    def _settings(self, dags: Path, heartbeat_s: int) -> dict[str, str]:
        settings = super()._settings(dags, heartbeat_s)
        more = {
            "CORE__EXECUTOR": CELERY,
            "DATABASE__SQL_ALCHEMY_CONN": f"mysql+pymysql://{self._database}",
            "DATABASE__SQL_ALCHEMY_CONN_ASYNC": f"mysql+aiomysql://{self._database}",
            "CELERY__BROKER_URL": f"redis://{self._queue}/0",
            "CELERY__RESULT_BACKEND": f"redis://{self._queue}/1",
            "CELERY__WORKER_CONCURRENCY": "2",
            "CELERY__WORKER_ENABLE_REMOTE_CONTROL": "True",
            "CELERY__SYNC_PARALLELISM": "1",
            "CELERY__TASK_TRACK_STARTED": "True",
            "SCHEDULER__TASK_QUEUED_TIMEOUT": "40",
            "SCHEDULER__TASK_QUEUED_TIMEOUT_CHECK_INTERVAL": "5",
        }
        return {
            **settings,
            **{f"AIRFLOW__{key}": value for key, value in more.items()},
            "PYTHONPATH": f"{settings['PYTHONPATH']}{os.pathsep}{self.home / 'site'}",
        }

    def _prepare(self) -> None:
        self._run("db", "migrate")

    def _run(self, *words: str) -> None:
        self.main.python("-m", "airflow", *words, env=self._of(self.main), limit_s=300)

    def _of(self, machine: Machine) -> dict[str, str]:
        return machine.environment(**self._environment)

    def start_one(self, component: Component) -> None:
        command = [sys.executable, "-m", "airflow", component]
        self.processes[component] = self.main.popen(command, component, self._of(self.main))

    def start_worker(self, machine: Machine) -> subprocess.Popen[bytes]:
        """Starts Celery's worker on a machine. It does not reach the metadata database by its settings."""
        environment = self._of(machine) | {
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"mysql+pymysql://{_NOWHERE}",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": f"mysql+aiomysql://{_NOWHERE}",
        }
        pid_file = machine.path(self.home.relative_to(machine.folder)) / "airflow-worker.pid"
        pid_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "airflow", "celery", "worker", "--celery-hostname", machine.name]
        return machine.popen(
            [*command, "--without-mingle", "--without-gossip", "--skip-serve-logs"], "worker", environment
        )

    def start_all(self) -> None:
        """Starts everything, and returns when it is healthy and the DAGs are known."""
        self.start(WANTED)
        for machine in self.workers:
            self.start_worker(machine)

    def log_tail(self, component: str) -> str:
        return self.main.log(component)[-3000:]

    def task_log(self, dag_id: str, task_id: str) -> str:
        """Returns the logs of all tries of a task in all runs, from all workers."""
        logs = []
        for machine in self.workers:
            folder = machine.path(self.home.relative_to(machine.folder)) / "logs" / f"dag_id={dag_id}"
            logs += sorted(folder.glob(f"*/task_id={task_id}/*.log"))
        return "\n".join(log.read_text(errors="replace") for log in logs)
