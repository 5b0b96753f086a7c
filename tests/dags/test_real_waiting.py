"""Waiting in a real Airflow with a triggerer: changes start runs within seconds, a fetch that has to wait and the watch
over a capture keep no slot, and a triggerer that is killed loses nothing.

Prints how long it takes from a commit at the source to the Delta table.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cdc.batches.service import BatchService
from cdc.config import load
from cdc.testing.servers import Server
from tests.fault.support import DELTA_RS, RestartedCommand, wait_for
from tests.support.apply import LOCAL, Loop
from tests.support.real_airflow import Component, RealAirflow
from tests.support.server import ServerProcess, client_config, server_process, with_tokens

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

SETTINGS = """\
airflow: {{apply_every: 1d, retries: 0, {0}, capture: external, capture_for: 15s}}
metrics: {{unhealthy_after: 6s}}
"""


@dataclass
class Shop:
    """The destination ``shop``, whose changes start runs."""

    shop: Loop
    airflow: RealAirflow

    def latency(self) -> float:
        """Commits a row, and returns the seconds until the Delta table has it."""
        number = random.SystemRandom().randrange(1 << 30)
        self.shop.sql(f"INSERT INTO t VALUES ({number}, 'x')")
        began = time.monotonic()
        wait_for(lambda: any(row["id"] == number for row in self.shop.delta("t")), "the row in Delta")
        return time.monotonic() - began

    def level(self) -> None:
        """Waits until no run is active, and nothing waits or is outstanding."""
        service = BatchService(self.shop.config)
        self.airflow.wait(lambda: service.next_seq() is None and not service.outstanding(), "nothing that waits")
        self.airflow.wait(lambda: all(run["state"] in ("success", "failed") for run in self.runs()), "no active run")

    def runs(self, dag_id: str = "apply_shop") -> list[dict[str, Any]]:
        return self.airflow.runs(dag_id)

    def slots(self) -> dict[str, int]:
        return self.airflow.pool("default_pool")


@dataclass
class Setup(Shop):
    """The destination of these tests, and ``late``, whose runs have a data interval."""

    late: Loop
    capture: RestartedCommand


def made(folder: Path, server: Server, name: str, settings: str = "") -> Loop:
    database = f"waiting_{name}_{random.SystemRandom().randrange(2**32):08x}"
    server.execute(f"CREATE DATABASE {database}")
    loop = Loop(folder, server, database, name=name, apply=DELTA_RS, spark=LOCAL)
    if settings:
        with loop.config.file.open("a", encoding="utf-8") as file:
            file.write(SETTINGS.format(settings))
        loop.config = load(loop.config.file)
    loop.sql("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))", "INSERT INTO t VALUES (1, 'a')")
    return loop


@pytest.fixture(scope="module")
def setup(mysql9: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    folder = tmp_path_factory.mktemp("waiting")
    shop = made(folder, mysql9, "shop", "start: data, start_pause: 1s")
    late = made(folder, mysql9, "late", "until: interval_end")
    late.capture()
    airflow = RealAirflow(
        folder / "airflow",
        shop.config.file.parent,
        ("apply", "capture"),
        {"AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE": "True"},
    )
    running = Setup(shop, airflow, late, RestartedCommand(shop.config, "capture"))
    try:
        airflow.start()
        for dag_id in ("apply_shop", "apply_late"):
            airflow.unpause(dag_id)
        airflow.wait(lambda: shop.path("t").exists(), "the first run", 240)
        running.level()
        yield running
    finally:
        airflow.stop()
        running.capture.stop(terminate=True)
        for loop in (shop, late):
            mysql9.execute(f"DROP DATABASE {loop.db}")


def test_a_commit_starts_a_run(setup: Setup) -> None:
    """An idle source starts none."""
    setup.level()
    setup.latency()
    time.sleep(5)  # the event of a change that another run has applied starts one more
    setup.level()
    before = len(setup.runs())
    time.sleep(10)
    assert len(setup.runs()) == before, "nothing changed"
    seconds = []
    for _ in range(5):
        seconds.append(setup.latency())
        setup.level()
    print(f"from commit to Delta: {', '.join(f'{latency_s:.1f}' for latency_s in sorted(seconds))} s")
    new = setup.runs()[before:]
    assert {run["run_type"] for run in new} == {"asset_triggered"}
    assert {run["state"] for run in new} == {"success"}
    assert 5 <= len(new) <= 10
    assert min(seconds) < 30
    setup.shop.require_equal("t")


@pytest.mark.parametrize(("process", "key"), [("triggerer", 2), ("scheduler", 3)])
def test_a_process_that_is_killed_loses_no_change(setup: Setup, process: Component, key: int) -> None:
    setup.level()
    setup.airflow.kill(process, family=True)
    setup.shop.sql(f"INSERT INTO t VALUES ({key}, 'while it is away')")
    time.sleep(3)
    setup.airflow.start((process,))
    wait_for(lambda: any(row["id"] == key for row in setup.shop.delta("t")), "the row in Delta")
    setup.level()
    setup.shop.require_equal("t")


def test_a_fetch_waits_for_another_owner_without_a_slot(setup: Setup) -> None:
    """The wait goes on after its triggerer was killed."""
    service = BatchService(setup.shop.config)
    setup.level()
    setup.airflow.unpause("apply_shop", paused=True)
    setup.shop.sql("INSERT INTO t VALUES (4, 'held')")
    lease = service.get("cli:elsewhere:shop", wait_s=20)
    assert lease is not None
    setup.airflow.unpause("apply_shop")
    run = setup.airflow.trigger("apply_shop")
    deferred(setup, "apply_shop", run, "fetch")
    setup.airflow.kill("triggerer", family=True)
    setup.airflow.start(("triggerer",))
    assert setup.airflow.states("apply_shop", run)["fetch"] == "deferred"
    service.rollback(lease.batch, lease.token)
    assert setup.airflow.wait_run("apply_shop", run) == "success"
    setup.level()
    setup.shop.require_equal("t")


def deferred(setup: Shop, dag_id: str, run: str, task: str) -> None:
    """Waits until a task waits in the triggerer, and requires that nothing keeps a slot."""
    setup.airflow.wait(lambda: setup.airflow.states(dag_id, run)[task] == "deferred", f"{task} in the triggerer")
    slots = setup.slots()
    assert (slots["running_slots"], slots["queued_slots"]) == (0, 0)
    assert slots["deferred_slots"] >= 1


def test_a_run_waits_for_the_end_of_its_interval_without_a_slot(setup: Setup) -> None:
    """Its capture is not running, so the store is not complete."""
    setup.level()
    setup.late.sql("INSERT INTO t VALUES (2, 'b')")
    run = setup.airflow.trigger("apply_late")
    deferred(setup, "apply_late", run, "fetch")
    assert BatchService(setup.late.config).outstanding() == [], "nothing is leased meanwhile"
    capture = RestartedCommand(setup.late.config, "capture")
    try:
        assert setup.airflow.wait_run("apply_late", run) == "success"
    finally:
        capture.stop(terminate=True)
    setup.late.require_equal("t")


def test_the_watch_over_a_capture(setup: Setup) -> None:
    airflow, dag_id = setup.airflow, "capture_shop"
    setup.level()
    airflow.unpause(dag_id)
    airflow.wait(lambda: bool(setup.runs(dag_id)), "a run")
    deferred(setup, dag_id, setup.runs(dag_id)[-1]["dag_run_id"], "capture")
    airflow.wait(lambda: any(run["state"] == "success" for run in setup.runs(dag_id)), "a watch that ended well")
    assert not failed(setup, dag_id)
    process = setup.capture.running()
    process.send_signal(signal.SIGSTOP)
    airflow.wait(lambda: len(failed(setup, dag_id)) == 1, "a failed run")
    process.send_signal(signal.SIGCONT)
    assert "runs, and has not moved from" in airflow.task_log(dag_id, "capture")
    setup.capture.stop(terminate=True)
    airflow.wait(lambda: len(failed(setup, dag_id)) >= 2, "a failed run")
    airflow.wait(lambda: "shop: no capture runs, for" in airflow.task_log(dag_id, "capture"), "the sentence")
    setup.capture = RestartedCommand(setup.shop.config, "capture")
    count = len(setup.runs(dag_id))
    airflow.wait(lambda: any(run["state"] == "success" for run in setup.runs(dag_id)[count:]), "green again")
    airflow.unpause(dag_id, paused=True)


def failed(setup: Setup, dag_id: str) -> list[dict[str, Any]]:
    return [run for run in setup.runs(dag_id) if run["state"] == "failed"]


@pytest.fixture
def at_server(mysql9: Server, tmp_path: Path) -> Iterator[tuple[Shop, ServerProcess]]:
    """A server that captures and has the store, and an Airflow that sees neither store nor meta."""
    shop = made(tmp_path, mysql9, "shop")
    config = with_tokens(shop.config, capture="always")
    with server_process(config, tmp_path) as server:
        client = client_config(config, tmp_path / "client", server.url)
        with client.file.open("a", encoding="utf-8") as file:
            file.write("airflow: {apply_every: 1d, retries: 0, start: data, start_pause: 1s}\n")
        deferrable = {"AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE": "True"}
        airflow = RealAirflow(tmp_path / "airflow", client.file.parent, ("apply",), deferrable)
        try:
            airflow.start()
            airflow.unpause("apply_shop")
            airflow.wait(lambda: shop.path("t").exists(), "the first run", 240)
            yield Shop(shop, airflow), server
        finally:
            airflow.stop()
            mysql9.execute(f"DROP DATABASE {shop.db}")


def test_a_commit_starts_a_run_through_a_server(at_server: tuple[Shop, ServerProcess]) -> None:
    """Also after the server and the triggerer were killed; and a fetch waits in the triggerer for another owner."""
    setup, server = at_server
    setup.level()
    setup.latency()
    seconds = []
    for _ in range(5):
        setup.level()
        seconds.append(setup.latency())
    print(f"from commit to Delta through a server: {', '.join(f'{latency_s:.1f}' for latency_s in sorted(seconds))} s")
    setup.level()
    server.stop(signal.SIGKILL)
    setup.shop.sql("INSERT INTO t VALUES (2, 'no server')")
    time.sleep(3)
    server.start()
    wait_for(lambda: any(row["id"] == 2 for row in setup.shop.delta("t")), "the row in Delta")
    setup.level()
    setup.airflow.kill("triggerer", family=True)
    setup.shop.sql("INSERT INTO t VALUES (3, 'no triggerer')")
    setup.airflow.start(("triggerer",))
    wait_for(lambda: any(row["id"] == 3 for row in setup.shop.delta("t")), "the row in Delta")
    setup.level()
    setup.airflow.unpause("apply_shop", paused=True)
    setup.shop.sql("INSERT INTO t VALUES (4, 'held')")
    service = BatchService(setup.shop.config)
    lease = service.get("cli:elsewhere:shop", wait_s=20)
    assert lease is not None
    setup.airflow.unpause("apply_shop")
    run = setup.airflow.trigger("apply_shop")
    deferred(setup, "apply_shop", run, "fetch")
    service.rollback(lease.batch, lease.token)
    assert setup.airflow.wait_run("apply_shop", run) == "success"
    setup.level()
    setup.shop.require_equal("t")
