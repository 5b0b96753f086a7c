"""A real Airflow metadata database (SQLite) in a temporary home, created once for all DAG tests."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

# Airflow reads its home when it is first imported, so this cannot wait for a fixture.
_HOME = tempfile.TemporaryDirectory(prefix="towpath-airflow-")
os.environ["AIRFLOW_HOME"] = _HOME.name
os.environ["AIRFLOW__CORE__DAGS_FOLDER"] = f"{_HOME.name}/dags"
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ["AIRFLOW__CORE__UNIT_TEST_MODE"] = "False"
os.environ.setdefault("AIRFLOW__LOGGING__LOGGING_LEVEL", "WARNING")
os.environ["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS"] = "True"
os.environ["AIRFLOW__CORE__TEST_CONNECTION"] = "Enabled"
os.environ["AIRFLOW__CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL"] = "0"  # tests store other DAGs under one id
os.environ["AIRFLOW__API_AUTH__JWT_SECRET"] = "of the tests, long enough " * 4

if TYPE_CHECKING:
    from airflow.sdk import DAG
    from fastapi.testclient import TestClient

    from cdc.testing.pipeline import FakePipeline
    from cdc.testing.servers import Server
    from tests.support.apply import Loop

CONFIGURATION = """\
source: {{url: 'mysql://cdc@127.0.0.1:1', server_id: 52017, start: earliest}}
tables: {{include: ['shop\\..*']}}
store: {{path: ./data/{name}/store}}
meta: {{path: ./data/{name}/meta}}
apply: {{target: ./lake}}
airflow: {{apply_every: 5s, run_for: {run_for}, capture_for: 30s, retries: {retries}, until: {until}}}
"""

Write = Callable[..., Path]
Run = Callable[..., dict[str, str | None]]


@pytest.fixture
def write_conf(tmp_path: Path) -> Write:
    """Writes ``conf/<name>.yaml`` and returns the folder."""

    def write(
        name: str = "shop", retries: int = 0, text: str | None = None, until: str = "none", run_for: str = "5m"
    ) -> Path:
        folder = tmp_path / "conf"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.yaml").write_text(
            text or CONFIGURATION.format(name=name, retries=retries, until=until, run_for=run_for)
        )
        return folder

    return write


def retry_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the pauses between tries from the generated DAGs."""
    from cdc.airflow import factory

    defaults = factory._task_defaults
    no_pause = {"retry_delay": timedelta(0), "max_retry_delay": None}
    monkeypatch.setattr(factory, "_task_defaults", lambda settings: defaults(settings) | no_pause)


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePipeline:
    """A fake pipeline for the operators, with one waiting batch."""
    from cdc.airflow import base, batches, changes, xcom
    from cdc.testing.pipeline import FakePipeline

    fake = FakePipeline(tmp_path)
    for module in (base, batches, changes, xcom):
        monkeypatch.setattr(module, "pipeline", fake)
    retry_at_once(monkeypatch)
    return fake


@pytest.fixture
def new_loop(tmp_path: Path, mysql9: Server, database: Callable[[Server], str]) -> Iterator[Loop]:
    """A destination with a real source, store, Spark and lake, whose database is empty."""
    from cdc.lake.runtime import session
    from tests.support.apply import Loop

    yield Loop(tmp_path, mysql9, database(mysql9))
    session.discard()


@pytest.fixture(scope="session")
def airflow_database() -> Iterator[None]:
    """Tables and the DAG bundle ``dags-folder``."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.utils.db import initdb

    Path(os.environ["AIRFLOW__CORE__DAGS_FOLDER"]).mkdir()
    initdb()
    DagBundlesManager().sync_bundles_to_db()  # type: ignore[no-untyped-call]
    yield
    _HOME.cleanup()


@pytest.fixture
def run_dag(airflow_database: None) -> Run:
    """Runs a DAG once. Returns the run's state under ``run``, and the tasks' states under their ids."""
    from tests.support.airflows import run_in_process, store_dag

    def run(
        dag: DAG, logical_date: datetime | None = None, conf: dict[str, Any] | None = None
    ) -> dict[str, str | None]:
        store_dag(dag, Path(os.environ["AIRFLOW__CORE__DAGS_FOLDER"]))
        done = run_in_process(dag, logical_date, conf)
        states = {ti.task_id: None if ti.state is None else str(ti.state) for ti in done.get_task_instances()}
        return {"run": str(done.state), **states}

    return run


@pytest.fixture(scope="session")
def api(airflow_database: None) -> Iterator[TestClient]:
    """Airflow's API server, in this process; its user may do anything."""
    from airflow.api_fastapi.app import create_app
    from fastapi.testclient import TestClient

    with TestClient(create_app()) as client:
        token = client.get("/auth/token").json()["access_token"]
        client.headers["Authorization"] = f"Bearer {token}"
        yield client
