"""The identity of a run: a task by Airflow's variables, a command, a client of a server, and the process that started
this one."""

from __future__ import annotations

import json
import os
import socket
import sys
import types
from concurrent.futures import ThreadPoolExecutor

import pytest

from cdc.base import run_identity
from cdc.base.run_identity import MOST_CHARACTERS, RunIdentity, current_run, work_for_starter, working_for
from cdc.lake.runtime.commit_metadata import commit_metadata

TASK = {
    "AIRFLOW_CTX_DAG_ID": "apply_shop",
    "AIRFLOW_CTX_TASK_ID": "merge",
    "AIRFLOW_CTX_DAG_RUN_ID": "scheduled__2026-03-01T09:00:00+00:00",
    "AIRFLOW_CTX_TRY_NUMBER": "2",
}


@pytest.fixture(autouse=True)
def outside_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in TASK:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(run_identity, "_command", None)
    monkeypatch.setattr(run_identity, "_starter", None)


def test_a_task_is_named_by_the_variables_of_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TASK.items():
        monkeypatch.setenv(name, value)
    run = current_run()
    assert run is not None
    assert run.document == {
        "dag_id": "apply_shop",
        "task_id": "merge",
        "run_id": "scheduled__2026-03-01T09:00:00+00:00",
        "try": 2,
        "host": socket.gethostname(),
    }
    assert str(run) == "apply_shop, scheduled__2026-03-01T09:00:00+00:00, merge, try 2"
    monkeypatch.setenv("AIRFLOW_CTX_TRY_NUMBER", "3")  # another task or try in the same process
    later = current_run()
    assert later is not None
    assert later.try_number == 3


def test_a_command_is_named_without_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/opt/jobs/load.py", "--password", "secret"])
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    run = current_run()
    assert run is not None
    assert (run.host, run.command) == (socket.gethostname(), "load.py")
    monkeypatch.setattr(run_identity, "_command", "cdc batch ack")
    assert str(current_run()) == f"cdc batch ack on {socket.gethostname()}"
    for name, value in TASK.items():  # a task that calls the command
        monkeypatch.setenv(name, value)
    assert str(current_run()).endswith(f", merge, try 2, cdc batch ack on {socket.gethostname()}")


@pytest.mark.parametrize("number", ["", "x", "-1", "²", "9" * 5000])
def test_a_strange_number_of_a_try_is_left_out(number: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CTX_DAG_ID", "d")
    monkeypatch.setenv("AIRFLOW_CTX_TRY_NUMBER", number)
    run = current_run()
    assert run is not None
    assert (run.dag_id, run.try_number) == ("d", None)


def test_every_reader_can_take_what_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    os.environb[b"AIRFLOW_CTX_DAG_ID"] = b'caf\xc3\xa9 \xff "${user.home}" \n'
    monkeypatch.setenv("AIRFLOW_CTX_DAG_RUN_ID", "r" * 5000)
    monkeypatch.setenv("AIRFLOW_CTX_TASK_ID", "🦀" * MOST_CHARACTERS)
    try:
        run = current_run()
        metadata = commit_metadata({"batch": 1})
    finally:
        del os.environ["AIRFLOW_CTX_DAG_ID"]
    assert run is not None
    assert run.dag_id == 'café � "${user.home}" \n'
    assert run.task_id == "🦀" * MOST_CHARACTERS
    assert run.run_id == "r" * (MOST_CHARACTERS - 1) + "…"
    assert "${" not in metadata
    assert json.loads(metadata.encode()) == {"batch": 1, "run": run.document}
    assert RunIdentity.of_document(json.loads(json.dumps(run.document))) == run


def test_surrogates_that_stand_for_no_byte_are_replaced() -> None:
    assert RunIdentity(dag_id="a\ud800b").dag_id == "a?b"


@pytest.mark.parametrize("document", [None, 7, "x", [], {"try": "many"}, {"dag_id": 7}])
def test_what_is_no_identity_is_not_known(document: object) -> None:
    assert RunIdentity.of_document(document) is None


def test_keys_of_later_versions_are_passed_over() -> None:
    assert RunIdentity.of_document({"dag_id": "d", "team": "t"}) == RunIdentity(dag_id="d")


def test_a_thread_of_a_server_works_for_its_client() -> None:
    client = RunIdentity(dag_id="d")
    with working_for(client):
        assert current_run() == client
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(current_run).result()
        assert other is not None
        assert other.dag_id is None
    with working_for(None):  # an older client
        assert current_run() is None
        assert json.loads(commit_metadata({"batch": 1})) == {"batch": 1}
    assert current_run() is not None


def test_all_threads_of_a_driver_work_for_the_process_that_started_it() -> None:
    starter = RunIdentity(dag_id="d", try_number=2)
    work_for_starter(starter)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(current_run).result() == starter
