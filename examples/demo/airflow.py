"""A real Airflow (`airflow standalone`) in the demo's work folder, and the requests of the demo to it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex
from typing import Any

import httpx
import psutil

START_LIMIT_S = 1800.0
ANSWER_LIMIT_S = 600.0
"""How long Airflow may take to answer on a busy machine."""
STOP_LIMIT_S = 4.0
START_CPU_S = 8.0
"""About the CPU time that a driver takes before its first statement."""
USER = "admin"


class AirflowError(Exception):
    """Airflow did not do what the demo expects; the message names the failure and Airflow's log."""


def free_port() -> int:
    """Returns a free TCP port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class AirflowServer:
    """Airflow with its home in ``home``, the DAGs of ``dags`` and the configurations of ``conf``."""

    def __init__(self, home: Path, dags: Path, conf: Path, environment: dict[str, str]) -> None:
        self.home, self.log = home, home.parent / "airflow.log"
        self.port = free_port()
        self._environment = self._settings(dags, conf) | environment
        self._process: subprocess.Popen[bytes] | None = None
        self._client = httpx.Client(base_url=self.url, timeout=20, trust_env=False)
        self._login_s = 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def password(self) -> str:
        """The password that Airflow generated for ``admin``."""
        passwords = json.loads((self.home / "simple_auth_manager_passwords.json.generated").read_text())
        return str(passwords[USER])

    def _settings(self, dags: Path, conf: Path) -> dict[str, str]:
        options = {
            "CORE__DAGS_FOLDER": str(dags),
            "CORE__LOAD_EXAMPLES": "False",
            "CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{self.port}/execution/",
            "CORE__EXECUTOR": "LocalExecutor",
            "CORE__PARALLELISM": "4",
            "API__HOST": "127.0.0.1",
            "API__PORT": str(self.port),
            "API__BASE_URL": f"http://127.0.0.1:{self.port}",
            "API__WORKERS": "1",
            "API_AUTH__JWT_SECRET": token_hex(64),
            "LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
            "LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
            "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "60",
            "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "1",
            "USAGE_DATA_COLLECTION__ENABLED": "False",
            # Airflow's default limits are too short for a busy machine with two cores.
            "API__WORKER_TIMEOUT": "600",
            "CORE__DAGBAG_IMPORT_TIMEOUT": "600",
            "DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "1200",
            "DAG_PROCESSOR__STALE_DAG_THRESHOLD": "3600",
            "SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "300",
            "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "3600",
            "SCHEDULER__TASK_QUEUED_TIMEOUT": "3600",
            "WORKERS__EXECUTION_API_TIMEOUT": "120",
        }
        environment = dict(os.environ) | {f"AIRFLOW__{key}": value for key, value in options.items()}
        repository = str(dags.parent)
        environment["AIRFLOW_HOME"] = str(self.home)
        environment["CDC_CONF"] = str(conf)
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"
        environment["PYTHONPATH"] = os.pathsep.join(p for p in (repository, environment.get("PYTHONPATH")) if p)
        environment["NO_PROXY"] = environment["no_proxy"] = "127.0.0.1,localhost"
        environment["PYTHONUNBUFFERED"] = "1"
        # Each run starts a JVM for a few seconds only, so compiling less makes it faster on two cores.
        quick = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=200m -XX:+UseSerialGC"
        environment["JAVA_TOOL_OPTIONS"] = f"{environment.get('JAVA_TOOL_OPTIONS', '')} {quick}".strip()
        return environment

    def start(self, update: Callable[[str], None]) -> None:
        """Returns when Airflow answers and knows the DAGs of the demo. Raises AirflowError."""
        self.home.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(Path(sys.executable).parent / "airflow"), "standalone"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )
        limit = time.monotonic() + START_LIMIT_S
        while not self._healthy(update):
            if self._process.poll() is not None:
                raise AirflowError(f"Airflow ended at once; its log is {self.log}: {self._last_line()}")
            if time.monotonic() > limit:
                raise AirflowError(f"Airflow was not ready after {START_LIMIT_S:.0f} s; its log is {self.log}")
            time.sleep(1)

    def _healthy(self, update: Callable[[str], None]) -> bool:
        try:
            health = self._client.get("/api/v2/monitor/health").json()
        except (httpx.HTTPError, ValueError):
            update("the web server is starting")
            return False
        parts = {name: (health.get(name) or {}).get("status") for name in ("scheduler", "dag_processor")}
        waiting = [name for name, status in parts.items() if status != "healthy"]
        update(f"waiting for the {' and '.join(waiting)}" if waiting else "ready")
        return not waiting

    def _last_line(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it is empty"

    def _ask(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        """Sends a request and returns Airflow's answer. Repeats it after time-outs and server errors: all requests here may
        be repeated."""
        limit = time.monotonic() + ANSWER_LIMIT_S
        while True:
            try:
                answer = self._request(method, path, options)
            except httpx.TransportError as error:
                trouble = f"Airflow did not answer {method} {path}: {str(error) or type(error).__name__}"
            else:
                if answer.status_code < 400:
                    document: dict[str, Any] = answer.json()
                    return document
                trouble = f"Airflow answered {answer.status_code} to {method} {path}: {answer.text[:300]}"
                if answer.status_code < 500:
                    raise AirflowError(trouble)
            if time.monotonic() > limit:
                raise AirflowError(f"{trouble}; its log is {self.log}")
            time.sleep(1)

    def _request(self, method: str, path: str, options: dict[str, Any]) -> httpx.Response:
        # A token is valid for a day; a new one every hour is cheap.
        if time.monotonic() - self._login_s > 3600 or self._login_s == 0:
            answer = self._client.post("/auth/token", json={"username": USER, "password": self.password})
            if answer.status_code >= 400:
                return answer
            self._client.headers["Authorization"] = f"Bearer {answer.json()['access_token']}"
            self._login_s = time.monotonic()
        return self._client.request(method, f"/api/v2{path}", **options)

    def import_errors(self) -> list[str]:
        """Returns the import errors, as Airflow shows them."""
        return [str(e["stack_trace"]) for e in self._ask("GET", "/importErrors")["import_errors"]]

    def dag_ids(self) -> list[str]:
        """Returns the ids of the DAGs that Airflow knows."""
        return sorted(str(d["dag_id"]) for d in self._ask("GET", "/dags")["dags"])

    def unpause(self, dag_id: str) -> None:
        """Unpauses a DAG."""
        self._ask("PATCH", f"/dags/{dag_id}", json={"is_paused": False})

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        """Returns the latest runs of a DAG, oldest first: ``dag_run_id``, ``state`` and more."""
        runs = self._ask("GET", f"/dags/{dag_id}/dagRuns", params={"order_by": "-id", "limit": 50})["dag_runs"]
        return list(reversed(runs))

    def tasks(self, dag_id: str, run_id: str) -> dict[str, str | None]:
        """Returns the states of a run's tasks."""
        instances = self._ask("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"]
        return {str(t["task_id"]): t["state"] for t in instances}

    def working_drivers(self, dag_id: str, run_id: str) -> list[psutil.Process]:
        """Returns the Spark drivers of this run's tasks that have started, and work on a batch."""
        return [p for p in self._family() if _name(p) == "java" and _run_of(p) == (dag_id, run_id) and _is_working(p)]

    def _family(self) -> list[psutil.Process]:
        if self._process is None:
            return []
        try:
            children: list[psutil.Process] = psutil.Process(self._process.pid).children(recursive=True)
            return children
        except psutil.NoSuchProcess:
            return []

    def stop(self) -> None:
        """Ends Airflow and all processes that it started."""
        if self._process is None:
            return
        family = self._family()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                # The scheduler waits for running tasks; SIGTERM ends capture cleanly, and kills a merge.
                _end(family)
                self._process.kill()
                self._process.wait()
        _end(family)
        self._process = None
        self._client.close()


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.NoSuchProcess:
        return ""


def _run_of(process: psutil.Process) -> tuple[str | None, str | None]:
    """Returns DAG and run of the task that started the process, from the environment that Airflow sets."""
    try:
        environment = process.environ()
    except psutil.Error:
        return None, None
    return environment.get("AIRFLOW_CTX_DAG_ID"), environment.get("AIRFLOW_CTX_DAG_RUN_ID")


def _is_working(driver: psutil.Process) -> bool:
    """Whether the driver has taken more CPU time than its start takes."""
    try:
        return bool(driver.cpu_times().user >= START_CPU_S)
    except psutil.NoSuchProcess:
        return False


def _end(processes: list[psutil.Process]) -> None:
    """Ends the remaining processes: by SIGTERM, then by SIGKILL."""
    for process in processes:
        try:
            process.terminate()
        except psutil.NoSuchProcess:
            continue
    _, alive = psutil.wait_procs(processes, timeout=5)
    for process in alive:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(alive, timeout=5)
