"""A real Airflow of separate processes (API server, scheduler, DAG processor, triggerer) that a test starts, kills and
asks. Limits of heartbeats are short, so that Airflow notices a killed process within seconds.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import httpx
import psutil

from cdc.testing.servers import free_port

Component = Literal["api-server", "scheduler", "dag-processor", "triggerer"]
COMPONENTS: tuple[Component, ...] = ("api-server", "scheduler", "dag-processor", "triggerer")
OVER = ("success", "failed")
REPOSITORY = Path(__file__).resolve().parents[2]
_HEALTH: Mapping[Component, str] = {
    "scheduler": "scheduler",
    "dag-processor": "dag_processor",
    "triggerer": "triggerer",
}

DAG_FILE = """\
from airflow.sdk import get_parsing_context

from cdc.airflow import build_dags
from tests.support.real_airflow import hold_merges
from pathlib import Path

globals().update(build_dags(Path({conf!r}), {kinds!r}))
if get_parsing_context().dag_id:
    hold_merges(Path({home!r}))
"""


def hold_merges(home: Path) -> None:
    """Lets each statement of a merge in this process wait while ``home/hold`` names a place to wait at; see
    :meth:`RealAirflow.hold`. The DAG file calls it in the process of a task."""
    from cdc.lake.apply import commit
    from tests.support.pause import pause

    def before(table: str) -> None:
        with suppress(FileNotFoundError):
            name = (home / "hold").read_text()
            pause(home / name, f"{os.getpid()} {os.getppid()} {table}")

    commit.before_statement = before


class RealAirflow:
    """Airflow in ``home``, with the DAGs of ``kinds`` for the configurations of ``conf``. LocalExecutor and SQLite."""

    def __init__(
        self,
        home: Path,
        conf: Path,
        kinds: tuple[str, ...],
        environment: Mapping[str, str],
        *,
        heartbeat_s: int = 8,
        host: str = "127.0.0.1",
    ) -> None:
        self.home, self.conf, self.host = home, conf, host
        self.port = free_port()
        dags = home / "dags"
        dags.mkdir(parents=True)
        (dags / "towpath.py").write_text(DAG_FILE.format(conf=str(conf), kinds=kinds, home=str(home)))
        self._environment = self._settings(dags, heartbeat_s) | dict(environment)
        self.processes: dict[Component, subprocess.Popen[bytes]] = {}
        self._client = httpx.Client(base_url=f"http://{host}:{self.port}", timeout=60, trust_env=False)
        self._seen: dict[int, psutil.Process] = {}
        self._holds = 0

    def _settings(self, dags: Path, heartbeat_s: int) -> dict[str, str]:
        url = f"http://{self.host}:{self.port}"
        options = {
            "CORE__DAGS_FOLDER": dags,
            "CORE__LOAD_EXAMPLES": False,
            "CORE__EXECUTOR": "LocalExecutor",
            "CORE__PARALLELISM": 8,
            "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": True,
            "CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
            "CORE__DAGS_ARE_PAUSED_AT_CREATION": True,
            "CORE__DAGBAG_IMPORT_TIMEOUT": 300,
            "API__HOST": self.host,
            "API__PORT": self.port,
            "API__BASE_URL": url,
            "API__WORKERS": 1,
            "API__WORKER_TIMEOUT": 300,
            "API_AUTH__JWT_SECRET": "of the tests, long enough " * 4,
            "LOGGING__WORKER_LOG_SERVER_PORT": free_port(),
            "LOGGING__TRIGGER_LOG_SERVER_PORT": free_port(),
            "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": 30,
            "DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": 300,
            "DAG_PROCESSOR__STALE_DAG_THRESHOLD": 3600,
            "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": 0.5,
            "SCHEDULER__JOB_HEARTBEAT_SEC": 2,
            "SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": 15,
            "SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": 3,
            "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": heartbeat_s,
            "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": 2,
            "SCHEDULER__TASK_INSTANCE_HEARTBEAT_SEC": 2,
            "SCHEDULER__TRIGGER_TIMEOUT_CHECK_INTERVAL": 2,
            "TRIGGERER__JOB_HEARTBEAT_SEC": 2,
            "TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": 15,
            "WORKERS__MIN_HEARTBEAT_INTERVAL": 1,
            "WORKERS__EXECUTION_API_TIMEOUT": 60,
            "USAGE_DATA_COLLECTION__ENABLED": False,
        }
        environment = dict(os.environ) | {f"AIRFLOW__{key}": str(value) for key, value in options.items()}
        quick = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=200m -XX:+UseSerialGC"
        return environment | {
            "AIRFLOW_HOME": str(self.home),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}",
            "PYTHONPATH": str(REPOSITORY),
            "NO_PROXY": f"127.0.0.1,localhost,{self.host}",
            "no_proxy": f"127.0.0.1,localhost,{self.host}",
            "PYTHONUNBUFFERED": "1",
            "JAVA_TOOL_OPTIONS": quick,
        }

    # --- processes

    def start(self, components: tuple[Component, ...] = COMPONENTS) -> None:
        """Makes the database if there is none, starts the processes, and returns when they are healthy and the DAGs
        are known."""
        self._prepare()
        for component in components:
            self.start_one(component)
        self.wait(lambda: self._healthy(components), "a healthy Airflow", 300)
        self.wait(lambda: bool(self.dag_ids()), f"the DAGs: {self._import_errors()}", 300)

    def _prepare(self) -> None:
        if not (self.home / "airflow.db").exists():
            self._run("db", "migrate")

    def _run(self, *words: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "airflow", *words],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]

    def start_one(self, component: Component) -> None:
        """Starts a process, whose output goes to ``home/COMPONENT.log``."""
        with (self.home / f"{component}.log").open("ab") as log:
            self.processes[component] = subprocess.Popen(
                [sys.executable, "-m", "airflow", component],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )

    def kill(self, component: Component, *, family: bool = False) -> None:
        """Kills a process with -9; with ``family`` its children too, as when the machine fails."""
        process = self.processes[component]
        children = self._children(process.pid)
        process.kill()
        process.wait()
        if family:
            kill(children)

    def family(self) -> list[psutil.Process]:
        """Returns all processes that were started here and still live, orphans included."""
        for process in self.processes.values():
            if process.poll() is None:
                for child in self._children(process.pid):
                    self._seen.setdefault(child.pid, child)
        return [process for process in self._seen.values() if process.is_running()]

    def _children(self, pid: int) -> list[psutil.Process]:
        try:
            processes: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        self._seen.update((process.pid, process) for process in processes)
        return processes

    def stop(self) -> None:
        """Kills all processes that were started here, orphans included."""
        family = self.family()
        for process in self.processes.values():
            process.kill()
            process.wait()
        kill(family)
        for candidate in psutil.process_iter():
            with suppress(psutil.Error):
                if candidate.environ().get("AIRFLOW_HOME") == str(self.home):
                    kill([candidate])
        self._client.close()

    # --- holding a merge

    def hold(self) -> str:
        """Lets the statements of merges that begin from now on wait, until :meth:`go_on`. Returns the place's name."""
        self._holds += 1
        name = f"held{self._holds}"
        (self.home / "hold").write_text(name)
        return name

    def release_later(self) -> None:
        """Lets merges that begin from now on run; those that wait still wait."""
        (self.home / "hold").unlink(missing_ok=True)

    def go_on(self, name: str) -> None:
        """Lets the statements run that wait at this place."""
        (self.home / f"{name}.go").touch()

    def held(self, name: str) -> psutil.Process:
        """Waits until a merge waits at this place. Returns the process of its task."""
        marker = self.home / f"{name}.here"
        self.wait(lambda: marker.exists() and marker.read_text().endswith("\n"), "a merge at its statement", 180)
        return psutil.Process(int(marker.read_text().split()[0]))

    # --- requests

    def _healthy(self, components: tuple[Component, ...]) -> bool:
        for component in components:
            code = self.processes[component].poll()
            assert code is None, f"{component} ended with {code}: {self.log_tail(component)}"
        try:
            health = self._client.get("/api/v2/monitor/health").json()
        except (httpx.HTTPError, ValueError):
            return False
        names = [_HEALTH[component] for component in components if component in _HEALTH]
        return all((health.get(name) or {}).get("status") == "healthy" for name in names)

    def log_tail(self, component: Component) -> str:
        """Returns the end of a process's output."""
        return (self.home / f"{component}.log").read_text(errors="replace")[-3000:]

    def task_log(self, dag_id: str, task_id: str) -> str:
        """Returns the logs of all tries of a task in all runs."""
        logs = sorted((self.home / "logs" / f"dag_id={dag_id}").glob(f"*/task_id={task_id}/*.log"))
        return "\n".join(log.read_text(errors="replace") for log in logs)

    def _ask(self, method: str, path: str, **options: Any) -> Any:
        for left in range(30, -1, -1):
            try:
                if "Authorization" not in self._client.headers:
                    token = self._client.get("/auth/token").json()["access_token"]
                    self._client.headers["Authorization"] = f"Bearer {token}"
                answer = self._client.request(method, f"/api/v2{path}", **options)
            except httpx.TransportError:
                assert left, f"no answer to {method} {path}"
            else:
                if answer.status_code < 400:
                    return answer.json() if answer.content else None
                assert left and answer.status_code >= 500, f"{method} {path}: {answer.status_code} {answer.text[:500]}"
            time.sleep(1)
        return None

    def _pages(self, path: str, key: str, **params: Any) -> list[dict[str, Any]]:
        """Returns a whole list, of which Airflow gives 100 at a time."""
        listed: list[dict[str, Any]] = []
        while True:
            page = self._ask("GET", path, params={**params, "limit": 100, "offset": len(listed)})[key]
            listed += page
            if len(page) < 100:
                return listed

    def _import_errors(self) -> list[str]:
        return [
            str(import_error["stack_trace"])[-1000:]
            for import_error in self._ask("GET", "/importErrors")["import_errors"]
        ]

    def dag_ids(self) -> list[str]:
        """Returns the ids of the DAGs that Airflow knows."""
        return sorted(str(dag["dag_id"]) for dag in self._ask("GET", "/dags")["dags"])

    def dag(self, dag_id: str) -> dict[str, Any]:
        """Returns what Airflow says about a DAG: ``description``, ``tags``, ``bundle_version`` and more."""
        details: dict[str, Any] = self._ask("GET", f"/dags/{dag_id}/details")
        return details

    def unpause(self, dag_id: str, *, paused: bool = False) -> None:
        self._ask("PATCH", f"/dags/{dag_id}", json={"is_paused": paused})

    def trigger(self, dag_id: str, conf: Mapping[str, Any] | None = None) -> str:
        """Triggers a run, with a form if there is one, and returns its id."""
        body = {"logical_date": None, "conf": conf or {}}
        return str(self._ask("POST", f"/dags/{dag_id}/dagRuns", json=body)["dag_run_id"])

    def question(self, dag_id: str, run_id: str, task: str) -> dict[str, Any]:
        """Waits until a task asks a person, and returns the question: ``subject``, ``body``, ``options`` and more.

        An answer that comes before the scheduler has noticed that the task's process has ended fails the try.
        """

        def is_parked() -> bool:
            instance = self.tasks(dag_id, run_id)[task]
            if instance["state"] == "deferred":  # before 3.3
                return True
            ended = rf"task_id={task}, run_id={re.escape(run_id)}.* state=awaiting_input.* try_number={instance['try_number']}\b"
            log = (self.home / "scheduler.log").read_text(errors="replace")
            return instance["state"] == "awaiting_input" and re.search(ended, log) is not None

        self.wait(is_parked, "the question")
        detail: dict[str, Any] = self._ask(
            "GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task}/-1/hitlDetails"
        )
        return detail

    def answer(self, dag_id: str, run_id: str, task: str, option: str) -> None:
        """Answers the question of a task."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task}/-1/hitlDetails"
        self._ask("PATCH", path, json={"chosen_options": [option], "params_input": {}})

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        """Returns the runs, oldest first."""
        return self._pages(f"/dags/{dag_id}/dagRuns", "dag_runs", order_by="id")

    def asset_events(self, uri: str) -> list[dict[str, Any]]:
        """Returns the events of the asset with this URI, oldest first."""
        assets = self._ask("GET", "/assets", params={"uri_pattern": uri, "only_active": False})["assets"]
        ids = [asset["id"] for asset in assets if asset["uri"] == uri]
        if not ids:
            return []
        return self._pages("/assets/events", "asset_events", asset_id=ids[0], order_by="timestamp")

    def triggering_events(self, dag_id: str, run_id: str) -> list[int]:
        """Returns the ids of the events of assets that have started a run."""
        answer = self._ask("GET", f"/dags/{dag_id}/dagRuns/{run_id}/upstreamAssetEvents")
        return [int(event["id"]) for event in answer["asset_events"]]

    def xcoms(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
        """Returns the XComs of a task by their keys, as Airflow shows them to its users."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries"
        keys = [str(entry["key"]) for entry in self._ask("GET", path)["xcom_entries"]]
        return {key: self._ask("GET", f"{path}/{key}")["value"] for key in keys}

    def run_state(self, dag_id: str, run_id: str) -> str:
        return str(self._ask("GET", f"/dags/{dag_id}/dagRuns/{run_id}")["state"])

    def tasks(self, dag_id: str, run_id: str) -> dict[str, dict[str, Any]]:
        """Returns the tasks of a run by their ids."""
        instances = self._ask("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"]
        return {str(instance["task_id"]): instance for instance in instances}

    def states(self, dag_id: str, run_id: str) -> dict[str, str | None]:
        """Returns the states of a run's tasks."""
        return {task: instance["state"] for task, instance in self.tasks(dag_id, run_id).items()}

    def wait_run(self, dag_id: str, run_id: str, limit_s: float = 240) -> str:
        """Waits for the end of a run, and returns its state."""
        self.wait(lambda: self.run_state(dag_id, run_id) in OVER, f"the end of {run_id}", limit_s)
        return self.run_state(dag_id, run_id)

    def pool(self, name: str) -> dict[str, int]:
        """Returns the slots of a pool: ``running_slots``, ``deferred_slots`` and more."""
        slots: dict[str, int] = self._ask("GET", f"/pools/{name}")
        return slots

    def clear(self, dag_id: str, run_id: str, tasks: list[str] | None = None) -> None:
        """Clears tasks of a run and those after them, or all."""
        body: dict[str, Any] = {"dry_run": False, "dag_run_id": run_id, "only_failed": False}
        if tasks is not None:
            body |= {"task_ids": tasks, "include_downstream": True}
        self._ask("POST", f"/dags/{dag_id}/clearTaskInstances", json=body)

    def mark_task(self, dag_id: str, run_id: str, task: str, state: str) -> None:
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task}"
        self._ask("PATCH", path, json={"new_state": state})

    def mark_run(self, dag_id: str, run_id: str, state: str) -> None:
        self._ask("PATCH", f"/dags/{dag_id}/dagRuns/{run_id}", json={"state": state})

    def wait(self, condition: Callable[[], bool], what: str, limit_s: float = 120) -> None:
        """Waits for a condition. Fails with what the processes said last."""
        deadline = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > deadline:
                logs = "\n".join(f"== {name}\n{self.log_tail(name)}" for name in self.processes)
                raise AssertionError(f"{what}: not within {limit_s} s\n{logs}")
            self.family()
            time.sleep(0.2)


def kill(processes: list[psutil.Process]) -> None:
    """Kills processes with -9 and waits for their end."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    psutil.wait_procs(processes, 30)
