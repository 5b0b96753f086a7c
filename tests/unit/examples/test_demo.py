"""The demo kills the Spark driver of one run, and of no other."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from examples.demo import airflow as airflow_module
from examples.demo.airflow import AirflowError, AirflowServer
from examples.demo.run import APPLY, Demo
from examples.demo.screen import Screen
from examples.demo.setup import Command


class Driver:
    """A driver that records its kill."""

    def __init__(self, run_id: str, killed: list[str]) -> None:
        self.pid, self.run_id, self.killed = 1, run_id, killed

    def kill(self) -> None:
        self.killed.append(self.run_id)


class Airflow:
    """Runs that advance by one state with each request, one run after the other."""

    def __init__(self, runs: dict[str, list[str]]) -> None:
        self.left = {run: list(states) for run, states in runs.items()}
        self.seen: dict[str, str] = {}
        self.killed: list[str] = []

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        for run, states in self.left.items():
            if states:
                self.seen[run] = states.pop(0)
                break
        return [
            {"dag_run_id": run, "state": "running" if state == "reads" else state} for run, state in self.seen.items()
        ]

    def tasks(self, dag_id: str, run_id: str) -> dict[str, str | None]:
        return {"fetch": "success", "merge": self.seen[run_id], "finalize": None}

    def working_drivers(self, dag_id: str, run_id: str) -> list[Driver]:
        return [Driver(run_id, self.killed)] if self.seen[run_id] == "reads" else []


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Demo:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    demo = Demo(Screen())
    monkeypatch.setattr(demo, "_acked", lambda _: 7)
    return demo


def test_one_run_is_killed_and_the_next_one_is_left_alone(demo: Demo) -> None:
    """The first merge ends before its kill; the second fails; the third must not be touched."""
    runs = Airflow(
        {
            "earlier": ["running", "success"],
            "quicker": ["running", "reads", "running", "success"],
            "failing": ["running", "reads", "running", "failed"],
            "after": ["reads", "reads", "reads", "success"],
        }
    )
    airflow, step = cast(AirflowServer, runs), cast(Any, SimpleNamespace(update=lambda _: None, title="a step"))
    assert demo._killed_run(airflow, cast(Command, None), step) == ("failing", 7)
    assert runs.killed == ["quicker", "failing"]
    assert demo._good_run(airflow, step, after="failing")["dag_run_id"] == "after"
    assert runs.killed == ["quicker", "failing"]
    assert demo._good_run(airflow, step, after=None)["dag_run_id"] == "earlier"


@contextmanager
def driver(folder: Path, run_id: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that looks like a driver, and takes CPU time."""
    program = folder / "java"
    program.write_text("#!/bin/sh\necho ready\nwhile :; do :; done\n")
    program.chmod(0o700)
    environment = os.environ | {"AIRFLOW_CTX_DAG_ID": APPLY, "AIRFLOW_CTX_DAG_RUN_ID": run_id}
    with subprocess.Popen([program], env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def airflow(tmp_path: Path) -> AirflowServer:
    """Airflow whose tasks are the children of this process."""
    airflow_server = AirflowServer(tmp_path / "airflow", tmp_path / "dags", tmp_path / "conf", {})
    airflow_server._process = cast(Any, SimpleNamespace(pid=os.getpid()))
    return airflow_server


def test_a_driver_belongs_to_the_run_that_started_it(
    tmp_path: Path, airflow: AirflowServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(airflow_module, "START_CPU_S", 0.2)
    with driver(tmp_path, "run 1") as first, driver(tmp_path, "run 2") as second:
        deadline = time.monotonic() + 30
        for process, run_id in ((first, "run 1"), (second, "run 2")):
            while not (working_drivers := airflow.working_drivers(APPLY, run_id)) and time.monotonic() < deadline:
                time.sleep(0.05)  # it has yet to take that time
            assert [p.pid for p in working_drivers] == [process.pid]
        assert airflow.working_drivers(APPLY, "run 3") == []
        assert airflow.working_drivers("capture_shop", "run 1") == []


def test_a_slow_airflow_is_asked_again(airflow: AirflowServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time-outs and server errors are retried; refusals are not."""
    monkeypatch.setattr(time, "sleep", lambda _: None)
    answers: list[int | Exception] = [httpx.ReadTimeout("slow"), 500, 503, 200, 404]

    def answer(request: httpx.Request) -> httpx.Response:
        next_answer = answers.pop(0)
        if isinstance(next_answer, Exception):
            raise next_answer
        return httpx.Response(next_answer, json={"dags": [{"dag_id": "a"}]})

    airflow._client = httpx.Client(base_url=airflow.url, transport=httpx.MockTransport(answer))
    airflow._login_s = time.monotonic()
    assert airflow.dag_ids() == ["a"]
    with pytest.raises(AirflowError, match="answered 404"):
        airflow.dag_ids()
    answers += [500, 500]
    monkeypatch.setattr(airflow_module, "ANSWER_LIMIT_S", -1.0)
    with pytest.raises(AirflowError, match=r"answered 500.*its log is"):
        airflow.dag_ids()


def test_the_picture_has_the_steps_and_no_password(tmp_path: Path) -> None:
    screen = Screen(tmp_path / "demo.svg")
    with screen.step("Airflow starts"):
        pass
    screen.say("user admin, password secret", is_public=False)
    screen.say("[bold green]Equal.[/bold green]")
    screen.draw()
    picture = (tmp_path / "demo.svg").read_text().replace("&#160;", " ")
    assert "Airflow starts" in picture and "Equal." in picture
    assert "secret" not in picture
    assert "@font-face" not in picture, "nothing is fetched from the network"
