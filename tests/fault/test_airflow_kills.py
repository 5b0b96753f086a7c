"""Kills, clears and marks of tasks in a real Airflow while a batch is merged. The next run brings the tables level,
each change is applied once, and no batch stays behind.

A merge is held right before its first statement; then the event comes, and later the held process, if it still lives,
goes on as an orphan beside the runs that follow. Each acked batch is told by one event of each table that it has
changed, and a DAG that is scheduled on a table gets each of these events once.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import psutil
import pytest

from cdc.base.targets import split_table, table_path
from cdc.batches.service import BatchService
from cdc.config import DestinationConfig
from cdc.lake import pipeline
from cdc.lake.runtime import session
from cdc.store.formats.state import is_locked, lock_holder
from cdc.store.reader.reader import StoreReader
from cdc.testing.servers import Server
from tests.fault.support import DELTA_RS, RestartedCommand, configure, require_exactly_once, wait_for
from tests.support.load import TABLES, Load
from tests.support.real_airflow import OVER, RealAirflow, kill

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

RUNS = int(os.environ.get("TOWPATH_AIRFLOW_RUNS") or 4)
"""Runs of the apply DAG, with a kill in every second one."""
APPLY, CAPTURE, OWN, CONSUMER = "apply_shop", "capture_shop", "own", "consumer"
SETTINGS = "airflow: {apply_every: 1d, retries: 1, default_args: {retry_delay: 1s, max_retry_delay: 1s}}\n"
OWN_DAG = """\
from datetime import datetime, timedelta

from airflow.sdk import DAG, get_parsing_context

from cdc.airflow import TowpathApplyTaskGroup
from tests.support.real_airflow import hold_merges
from pathlib import Path

with DAG("own", schedule=None, start_date=datetime(2026, 1, 1), max_active_runs=1,
         dagrun_timeout=timedelta(seconds=120)) as dag:
    TowpathApplyTaskGroup("lake", conf_file={conf_file!r})
if get_parsing_context().dag_id:
    hold_merges(Path({home!r}))
"""

CONSUMER_DAG = """\
from airflow.sdk import DAG, Asset
from airflow.providers.standard.operators.empty import EmptyOperator

with DAG("consumer", schedule=[Asset({uri!r})], max_active_runs=1):
    EmptyOperator(task_id="report")
"""


@dataclass
class Setup:
    """A destination with capture beside it, and an Airflow that applies it."""

    server: Server
    database: str
    config: DestinationConfig
    traffic: Load
    airflow: RealAirflow
    capture: RestartedCommand

    def use(self, engine: str) -> None:
        """Chooses what merges in the tasks that start from now on."""
        text = self.config.file.read_text(encoding="utf-8").replace(f"target: lake, {DELTA_RS}", "target: lake")
        if engine == "delta-rs":
            text = text.replace("target: lake", f"target: lake, {DELTA_RS}")
        new = self.config.file.with_suffix(".new")
        new.write_text(text, encoding="utf-8")
        new.replace(self.config.file)

    def change(self, transactions: int = 12) -> None:
        """Commits changes, and waits until capture has them."""
        self.traffic.run(transactions)
        now_us = time.time_ns() // 1000
        reader = StoreReader(self.config.store.path)
        wait_for(lambda: reader.complete_until_us() > now_us, "capture to be level")

    def merging(self, dag_id: str = APPLY) -> tuple[str, str, psutil.Process]:
        """Starts a run with changes and waits until its merge is held. Returns the run, the place and the process."""
        self.change()
        place = self.airflow.hold()
        run = self.airflow.trigger(dag_id)
        process = self.airflow.held(place)
        self.airflow.release_later()
        return run, place, process

    def require_level(self, dag_id: str = APPLY) -> None:
        """Requires that runs are green again, that nothing is outstanding, and that the tables equal the source."""
        self.change(3)
        service = BatchService(self.config)
        for _ in range(3):
            run = self.airflow.trigger(dag_id)
            state = self.airflow.wait_run(dag_id, run)
            assert state == "success", self.airflow.states(dag_id, run)
            if service.next_seq() is None:
                break
        assert service.next_seq() is None
        assert service.outstanding() == []
        report = pipeline.verify(self.config)
        assert report.exit_code == 0, report.document()
        require_exactly_once(self.server, self.database, self.config, self.traffic.changes)
        self.require_events()

    @property
    def table(self) -> str:
        """The table whose events start the consumer."""
        return f"{self.database}.{next(iter(TABLES))}"

    def uri(self, table: str) -> str:
        return f"file://{table_path(self.config.apply.target, *split_table(table))}"

    def require_events(self) -> None:
        """Requires that the events since the first one tell each acked batch once, and that each event of the table has
        started one run of the consumer."""
        spans = [event["extra"] for event in self.airflow.asset_events("towpath://changes/shop")]
        assert all(later["first_batch"] > span["last_batch"] for span, later in pairwise(spans)), spans
        first, last = spans[0]["first_batch"], spans[-1]["last_batch"]
        rows: dict[str, int] = {}
        for manifest in BatchService(self.config).acked_manifests(after_batch=first - 1):
            for result in () if manifest.acked is None else manifest.acked.tables:
                counted = result.inserted + result.updated + result.deleted
                assert manifest.batch <= last or not counted, f"batch {manifest.batch} is not told"
                if counted:
                    rows[result.table] = rows.get(result.table, 0) + counted
        events = {table: self.airflow.asset_events(self.uri(table)) for table in {*rows, self.table}}
        told = {table: sum(event["extra"]["rows"] for event in events[table]) for table in rows}
        assert told == rows
        expected = [event["id"] for event in events[self.table]]

        def consumed() -> list[int]:
            runs = [run["dag_run_id"] for run in self.airflow.runs(CONSUMER)]
            return sorted(event for run in runs for event in self.airflow.triggering_events(CONSUMER, run))

        self.airflow.wait(lambda: consumed() == expected, f"runs of the consumer for {expected}: {consumed()}", 60)


@pytest.fixture(scope="module")
def setup(mysql9: Server, tmp_path_factory: pytest.TempPathFactory, seed: int) -> Iterator[Setup]:
    database = f"airflow_{random.SystemRandom().randrange(2**32):08x}"
    mysql9.execute(f"CREATE DATABASE {database}")
    folder = tmp_path_factory.mktemp("airflow")
    config = configure(folder, mysql9, database, transactions=1000)
    with config.file.open("a", encoding="utf-8") as file:
        file.write(SETTINGS)
    airflow = RealAirflow(folder / "airflow", config.file.parent, ("apply", "capture"), {})
    own = OWN_DAG.format(conf_file=str(config.file), home=str(airflow.home))
    (airflow.home / "dags" / "own.py").write_text(own)
    traffic = Load(mysql9, database, random.Random(f"{seed} airflow").getrandbits(32))
    made = Setup(mysql9, database, config, traffic, airflow, RestartedCommand(config, "capture"))
    consumer = CONSUMER_DAG.format(uri=made.uri(made.table))
    (airflow.home / "dags" / "consumer.py").write_text(consumer)
    try:
        airflow.start()
        for dag_id in (APPLY, OWN, CONSUMER):
            airflow.wait(lambda dag_id=dag_id: dag_id in airflow.dag_ids(), f"the DAG {dag_id}", 300)  # type: ignore[misc]
            airflow.unpause(dag_id)
        made.use("delta-rs")
        made.require_level()
        yield made
    finally:
        airflow.stop()
        made.capture.stop(terminate=True)
        session.discard()
        mysql9.execute(f"DROP DATABASE {database}")


@pytest.fixture(autouse=True)
def _released(setup: Setup) -> Iterator[None]:
    setup.use("delta-rs")
    yield
    setup.airflow.release_later()


def has_ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def jvms(process: psutil.Process) -> list[psutil.Process]:
    return [child for child in process.children(recursive=True) if child.name() == "java"]


def test_the_process_of_a_merge_is_killed(setup: Setup) -> None:
    run, _, process = setup.merging()
    kill([process])
    assert setup.airflow.wait_run(APPLY, run) == "success", "its retry takes the batch over"
    assert setup.airflow.tasks(APPLY, run)["merge"]["try_number"] == 2
    setup.require_level()


@pytest.mark.parametrize("whom", ["task", "driver"])
def test_a_merge_in_spark_is_killed(setup: Setup, whom: str) -> None:
    setup.use("spark")
    run, place, process = setup.merging()
    drivers = jvms(process)
    assert drivers, "no JVM to kill"
    kill([process] if whom == "task" else drivers)
    setup.airflow.go_on(place)
    assert setup.airflow.wait_run(APPLY, run) == "success"
    assert setup.airflow.tasks(APPLY, run)["merge"]["try_number"] == 2
    psutil.wait_procs(drivers, 30)
    assert not any(driver.is_running() for driver in drivers), "a driver outlives its task"
    setup.require_level()


def test_the_supervisor_and_the_process_are_killed(setup: Setup) -> None:
    run, _, process = setup.merging()
    supervisor = process.parent()
    assert supervisor is not None
    kill([supervisor, process])
    assert setup.airflow.wait_run(APPLY, run) == "success", "Airflow misses the heartbeats, and tries again"
    setup.require_level()


@pytest.mark.parametrize("engine", ["delta-rs", "spark"])
def test_the_supervisor_alone_is_killed(setup: Setup, engine: str) -> None:
    """The task's process lives on as an orphan, beside the retry and after it."""
    setup.use(engine)
    run, place, process = setup.merging()
    supervisor = process.parent()
    assert supervisor is not None
    kill([supervisor])
    assert setup.airflow.wait_run(APPLY, run) == "success"
    orphan = process.is_running()
    setup.change(3)
    setup.airflow.go_on(place)
    assert orphan, "the child lives on: this is what the lease's token is for"
    wait_for(lambda: has_ended(process), "the orphan's end")
    setup.require_level()


@pytest.mark.parametrize("family", [False, True], ids=["alone", "with-its-workers"])
def test_the_scheduler_is_killed(setup: Setup, family: bool) -> None:
    run, place, _ = setup.merging()
    setup.airflow.kill("scheduler", family=family)
    if not family:
        setup.airflow.go_on(place)
    setup.airflow.start(("scheduler",))
    assert setup.airflow.wait_run(APPLY, run) == "success"
    setup.require_level()


def test_the_scheduler_is_killed_and_the_merge_outlives_its_retry(setup: Setup) -> None:
    run, place, _ = setup.merging()
    setup.airflow.kill("scheduler")
    setup.airflow.start(("scheduler",))
    time.sleep(20)  # time for the scheduler to adopt or to reset the task
    setup.airflow.go_on(place)
    assert setup.airflow.wait_run(APPLY, run) == "success"
    setup.require_level()


def test_the_api_server_is_killed(setup: Setup) -> None:
    run, place, _ = setup.merging()
    setup.airflow.kill("api-server", family=True)
    time.sleep(3)
    setup.airflow.go_on(place)
    time.sleep(3)
    setup.airflow.start(("api-server",))
    # Without an answer for longer than the heartbeats' limit the task is lost, and so may its retry be.
    assert setup.airflow.wait_run(APPLY, run) in OVER
    setup.require_level()


def test_triggerer_and_dag_processor_are_killed(setup: Setup) -> None:
    run, place, _ = setup.merging()
    setup.airflow.kill("triggerer", family=True)
    setup.airflow.kill("dag-processor", family=True)
    setup.airflow.go_on(place)
    assert setup.airflow.wait_run(APPLY, run) == "success"
    setup.airflow.start(("triggerer", "dag-processor"))
    setup.require_level()


@pytest.mark.parametrize("tasks", [None, ["merge"]], ids=["run", "merge"])
def test_cleared_while_merging(setup: Setup, tasks: list[str] | None) -> None:
    run, place, process = setup.merging()
    setup.airflow.clear(APPLY, run, tasks)
    psutil.wait_procs([process], 60)
    setup.airflow.go_on(place)
    assert setup.airflow.wait_run(APPLY, run) == "success"
    setup.require_level()


@pytest.mark.parametrize("state", ["failed", "success"])
def test_a_merge_is_marked(setup: Setup, state: str) -> None:
    """Marked as successful by hand, a batch that was not merged is not acked."""
    run, place, process = setup.merging()
    acked = BatchService(setup.config).subscription().acked_seq
    setup.airflow.mark_task(APPLY, run, "merge", state)
    assert setup.airflow.wait_run(APPLY, run) == "failed"
    assert setup.airflow.states(APPLY, run) == {"fetch": "success", "merge": state, "finalize": "failed"}
    assert BatchService(setup.config).subscription().acked_seq == acked
    assert BatchService(setup.config).outstanding() == []
    setup.airflow.go_on(place)
    setup.require_level()
    wait_for(lambda: has_ended(process), "the end of the marked task")


@pytest.mark.parametrize("state", ["failed", "success"])
def test_a_run_is_marked(setup: Setup, state: str) -> None:
    run, place, process = setup.merging()
    setup.airflow.mark_run(APPLY, run, state)
    assert setup.airflow.wait_run(APPLY, run) == state
    setup.airflow.go_on(place)
    setup.require_level()
    wait_for(lambda: has_ended(process), "the end of the marked task")


def test_a_run_takes_too_long(setup: Setup) -> None:
    """With ``dagrun_timeout`` Airflow runs no later task, so nothing is rolled back; the next run takes the batch."""
    run, place, process = setup.merging(OWN)
    assert setup.airflow.wait_run(OWN, run) == "failed"
    setup.airflow.go_on(place)
    setup.require_level(OWN)
    wait_for(lambda: has_ended(process), "the end of the merge")


UNDISTURBED = "nothing"
EVENTS = ("process", "supervisor", "both", "driver", "scheduler", "scheduler and workers", "triggerer and processor")


def run_with(setup: Setup, event: str) -> None:
    """Runs the DAG while something is killed, and requires that the run is green."""
    setup.use("spark" if event == "driver" else "delta-rs")
    if event == UNDISTURBED:
        setup.change(3)
        assert setup.airflow.wait_run(APPLY, setup.airflow.trigger(APPLY)) == "success"
        return
    run, place, process = setup.merging()
    if event in ("process", "supervisor", "both", "driver"):
        supervisor = process.parent()
        assert supervisor is not None
        killed = {"process": [process], "supervisor": [supervisor], "both": [supervisor, process]}
        kill(killed.get(event) or jvms(process))
    elif event == "triggerer and processor":
        setup.airflow.kill("triggerer", family=True)
        setup.airflow.kill("dag-processor", family=True)
        setup.airflow.start(("triggerer", "dag-processor"))
    else:
        setup.airflow.kill("scheduler", family=event == "scheduler and workers")
        setup.airflow.start(("scheduler",))
    setup.airflow.go_on(place)
    assert setup.airflow.wait_run(APPLY, run) == "success", event


@pytest.mark.timeout(300 + 90 * RUNS)
def test_each_run_that_changes_a_table_starts_its_consumer_once(setup: Setup, seed: int) -> None:
    """Many runs, in every second of which something is killed."""
    rng = random.Random(f"{seed} runs")
    for number in range(1, RUNS + 1):
        event = rng.choice(EVENTS) if number % 2 else UNDISTURBED
        run_with(setup, event)
        print(number, event, flush=True)
        if number % 20 == 0:
            setup.require_level()
    setup.require_level()


@pytest.fixture
def capture_task(setup: Setup) -> Callable[[], psutil.Process]:
    """Runs capture in a task instead of beside Airflow, from now on. Returns the task's process."""
    setup.capture.stop(terminate=True)
    setup.airflow.unpause(CAPTURE)

    def process() -> psutil.Process:
        wait_for(lambda: is_locked(setup.config.store.path), "a capture", 180)
        pid = lock_holder(setup.config.store.path)
        assert pid is not None
        return psutil.Process(pid)

    return process


@pytest.mark.parametrize(
    "event", ["process", "supervisor", "scheduler", "cleared", "marked failed", "run marked failed"]
)
def test_capture_in_a_task(setup: Setup, capture_task: Callable[[], psutil.Process], event: str) -> None:
    """Capture goes on, soon and by another process, and nothing is lost. A task outlives the scheduler alone."""
    first = capture_task()
    setup.change()
    run = setup.airflow.runs(CAPTURE)[-1]["dag_run_id"]
    if event == "process":
        kill([first])
    elif event == "supervisor":
        supervisor = first.parent()
        assert supervisor is not None
        kill([supervisor])
    elif event == "scheduler":
        setup.airflow.kill("scheduler")
        setup.airflow.start(("scheduler",))
    elif event == "cleared":
        setup.airflow.clear(CAPTURE, run)
    elif event == "marked failed":
        setup.airflow.mark_task(CAPTURE, run, "capture", "failed")
    else:
        setup.airflow.mark_run(CAPTURE, run, "failed")
    setup.traffic.run(5)
    if event != "scheduler":
        setup.airflow.wait(lambda: has_ended(first) and is_locked(setup.config.store.path), "another capture", 180)
    setup.require_level()
