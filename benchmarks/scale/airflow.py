"""All destinations in a real Airflow: LocalExecutor, SQLite, and the DAG files of this repository as they are."""

from __future__ import annotations

import random
import shutil
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import mean, median

from benchmarks.accounting import ROOT, run
from benchmarks.scale.processes import Look, Usage, pss_mb
from benchmarks.scale.results import Burst, Parsing, Share, Start, Traffic, Window
from benchmarks.scale.workload import INSERT, Destinations
from cdc.base.targets import LOG_FOLDER, split_table, table_path
from tests.support.real_airflow import RealAirflow

KINDS = ("apply", "backfill", "capture", "intervals", "maintain", "snapshot", "verify")
"""The DAG files that make DAGs."""
_DEFAULTS = {
    "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "1",
    "AIRFLOW__SCHEDULER__JOB_HEARTBEAT_SEC": "5",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "30",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "300",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "300",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "10",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_SEC": "0",
    "AIRFLOW__SCHEDULER__TRIGGER_TIMEOUT_CHECK_INTERVAL": "15",
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "5",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "30",
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "5",
    "AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE": "True",
}
"""Airflow's own defaults, where the tests have shorter times."""
STEPS = (
    "from the commit to the start of a run",
    "from there to the start of `fetch`",
    "`fetch`",
    "from there to the start of `merge`",
    "`merge`",
)
"""The steps from a commit to its Delta table."""
_QUIET_S = 10.0
"""So long nothing may run before it counts as quiet."""
_POLL_S = 2.0
_PARSE = """
import json, sys, time
from pathlib import Path
import airflow.sdk, airflow.models
began = time.process_time()
namespace = {"__file__": sys.argv[1], "__name__": "dag_file"}
exec(compile(Path(sys.argv[1]).read_text(), sys.argv[1], "exec"), namespace)
dags = sum(isinstance(one, airflow.sdk.DAG) for one in namespace.values())
print(json.dumps({"dags": dags, "cpu_s": time.process_time() - began}))
"""


def parsing(conf: Path) -> Iterator[Parsing]:
    """Parses each DAG file in a process of its own, as the DAG processor does, and yields its CPU seconds."""
    import json

    for name in [*KINDS, "configuration"]:
        done = run([sys.executable, "-c", _PARSE, str(ROOT / "dags" / f"{name}.py")], CDC_CONF=str(conf))
        parsed = json.loads(done.output.splitlines()[-1])
        yield Parsing(file=f"dags/{name}.py", dags=parsed["dags"], cpu_s=parsed["cpu_s"])


@dataclass(frozen=True)
class _Commit:
    """A transaction that was committed at the source at this time, and how long it took until Delta had it."""

    destination: str
    at: float
    seconds: float


def _seconds(time_text: str) -> float:
    return datetime.fromisoformat(time_text).timestamp()


class Airflow(RealAirflow):
    """The processes of Airflow, with the DAGs of all destinations."""

    def __init__(self, home: Path, destinations: Destinations) -> None:
        environment = _DEFAULTS | {"CDC_CONF": str(destinations.conf)}
        super().__init__(home, destinations.conf, (), environment)
        self.destinations = destinations
        (home / "dags" / "towpath.py").unlink()
        for file in (ROOT / "dags").glob("*.py"):
            shutil.copy(file, home / "dags" / file.name)

    def known_dags(self) -> int:
        return int(self._ask("GET", "/dags", params={"limit": 1})["total_entries"])

    def slots(self) -> tuple[int, int]:
        """Returns the slots that are taken or waited for, and the tasks in the triggerer."""
        pool = self.pool("default_pool")
        busy = sum(pool[name] for name in ("running_slots", "queued_slots", "scheduled_slots"))
        return busy, pool["deferred_slots"]

    def usage(self) -> dict[str, tuple[Usage, list[int]]]:
        """Returns what each part has used so far, and its processes."""
        look, usages = Look(), {}
        captures = [capture.pid for capture in self.destinations.captures]
        usages["captures"] = look.usage(captures), captures
        source = self.destinations.server.pid
        usages["source"] = look.usage([source]), [source]
        for name, process in self.processes.items():
            whole = look.usage([process.pid])
            pids = look.tree([process.pid])
            if name == "scheduler":
                own = look.own(process.pid)
                usages["scheduler"] = own, [process.pid]
                usages["tasks"] = Usage(whole.processes - 1, whole.cpu_s - own.cpu_s), pids[1:]
            else:
                usages[name] = whole, pids
        return usages

    def cpu_s(self) -> float:
        """Returns the CPU seconds of Airflow's processes."""
        return Look().usage([process.pid for process in self.processes.values()]).cpu_s

    @contextmanager
    def sampled(self) -> Iterator[list[tuple[int, int]]]:
        """Collects the slots every two seconds while the block runs."""
        slots: list[tuple[int, int]] = []
        over = threading.Event()

        def sample() -> None:
            while not over.wait(_POLL_S):
                slots.append(self.slots())

        thread = threading.Thread(target=sample, name="slots", daemon=True)
        thread.start()
        try:
            yield slots
        finally:
            over.set()
            thread.join()

    def wait_quiet(self, deferred: int, limit_s: float = 600) -> float:
        """Waits until nothing runs and so many tasks are deferred, and that for some time. Returns the seconds until
        it began to be quiet."""
        began = quiet_since = time.monotonic()
        while time.monotonic() - began < limit_s:
            busy, waiting = self.slots()
            if busy or waiting < deferred:
                quiet_since = time.monotonic()
            elif time.monotonic() - quiet_since > _QUIET_S:
                return quiet_since - began
            time.sleep(1)
        raise RuntimeError(f"not quiet within {limit_s} s: {self.slots()}\n{self.log_tail('scheduler')}")

    # --- what is measured

    def begin(self) -> Start:
        expected = len(self.destinations.names) * (len(KINDS) - 1)  # without intervals
        began = time.monotonic()
        self.start()
        self.wait(lambda: self.known_dags() >= expected, f"{expected} DAGs", 600)
        return Start(dags=self.known_dags(), ready_s=time.monotonic() - began, cpu_s=self.cpu_s())

    def burst(self, kind: str, deferred: int, idle_cores: float) -> Burst:
        """Unpauses the DAGs of a kind, whose first runs begin at once. ``idle_cores``: what Airflow uses anyway."""
        began, before = time.monotonic(), self.cpu_s()
        for name in self.destinations.names:
            self.unpause(f"{kind}_{name}")
        while self.finished(kind) < len(self.destinations.names) and kind != "capture":
            time.sleep(1)
        self.wait_quiet(deferred)
        seconds = time.monotonic() - began
        cpu_s = self.cpu_s() - before - idle_cores * seconds
        return Burst(runs=len(self.destinations.names), seconds=seconds - _QUIET_S, cpu_s=cpu_s)

    def finished(self, kind: str) -> int:
        """Returns how many runs of a kind have ended well."""
        answer = self._ask(
            "GET", "/dags/~/dagRuns", params={"state": "success", "dag_id_pattern": f"{kind}_%", "limit": 1}
        )
        return int(answer["total_entries"])

    def window(self, seconds: float) -> Window:
        """Measures while nothing but this process disturbs."""
        with self.sampled() as slots:
            before, began = self.usage(), time.monotonic()
            time.sleep(seconds)
            return self._window(before, time.monotonic() - began, slots)

    def _window(
        self, before: dict[str, tuple[Usage, list[int]]], seconds: float, slots: list[tuple[int, int]]
    ) -> Window:
        after = self.usage()
        shares = tuple(
            Share(
                part=part,
                processes=usage.processes,
                cpu_percent=usage.since(before[part][0], seconds),
                mb=pss_mb(pids),
            )
            for part, (usage, pids) in after.items()
        )
        busy = [running for running, _ in slots]
        return Window(
            seconds=seconds,
            shares=shares,
            slots_most=max(busy, default=0),
            slots_mean=mean(busy) if busy else 0.0,
            deferred=slots[-1][1] if slots else 0,
        )

    def traffic(self, active: int, seconds: float, pause_s: float) -> Traffic:
        """Commits transactions at some destinations, and measures the time until each is in the Delta table."""
        runs = self.finished("apply")
        ends = time.monotonic() + seconds
        with self.sampled() as slots, ThreadPoolExecutor(active) as pool:
            before, began = self.usage(), time.monotonic()
            numbers = [number * len(self.destinations.names) // active for number in range(active)]
            commits = [
                commit
                for commits_of_client in pool.map(lambda number: list(self._commits(number, ends, pause_s)), numbers)
                for commit in commits_of_client
            ]
            window = self._window(before, time.monotonic() - began, slots)
        self.wait_quiet(len(self.destinations.names))
        latencies = [commit.seconds for commit in commits]
        return Traffic(
            window=window,
            destinations=active,
            transactions=len(commits),
            runs=self.finished("apply") - runs,
            steps=self._steps(commits),
            latency_median_s=median(latencies),
            latency_most_s=max(latencies),
            latency_least_s=min(latencies),
        )

    def _steps(self, commits: list[_Commit]) -> dict[str, float]:
        """Returns the median seconds of each step from a commit to its Delta table."""
        steps: dict[str, list[float]] = defaultdict(list)
        for name in {commit.destination for commit in commits}:
            dag_id = f"apply_{name}"
            runs = [(_seconds(run["start_date"]), run["dag_run_id"]) for run in self.runs(dag_id)]
            for commit in commits:
                started = next(((at, run) for at, run in runs if commit.destination == name and at > commit.at), None)
                if started is None:
                    continue
                tasks = self.tasks(dag_id, started[1])
                at = [commit.at, started[0]]
                for task in ("fetch", "merge"):
                    if tasks[task]["start_date"] is None:
                        break
                    at += [_seconds(tasks[task]["start_date"]), _seconds(tasks[task]["end_date"])]
                else:
                    for step, begin, end in zip(STEPS, at, at[1:], strict=False):
                        steps[step].append(end - begin)
        return {step: median(seconds) for step, seconds in steps.items()}

    def _commits(self, number: int, ends: float, pause_s: float) -> Iterator[_Commit]:
        """Inserts a row into one of a destination's tables at a time. Yields what was committed once Delta has it."""
        dice = random.Random(number)
        config = self.destinations.config(self.destinations.names[number])
        tables = self.destinations.table_names(number)
        with self.destinations.server.connect() as connection, connection.cursor() as cursor:
            while time.monotonic() < ends:
                table = dice.choice(tables)
                log = Path(table_path(config.apply.target, *split_table(table))) / LOG_FOLDER
                following = log / f"{len(list(log.glob('*.json'))):020d}.json"
                cursor.execute(INSERT.format(table))
                began, at = time.monotonic(), time.time()
                while not following.exists():
                    if time.monotonic() - began > 180:
                        raise RuntimeError(f"{table} of {config.name} gets no commit: {self.log_tail('scheduler')}")
                    time.sleep(0.05)
                yield _Commit(config.name, at, time.monotonic() - began)
                time.sleep(dice.uniform(0.5, 1.5) * pause_s)
