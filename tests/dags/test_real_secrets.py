"""No password is in what an Airflow run leaves: metadata database, logs, XComs, store, meta, tables, event logs.

With ``AIRFLOW__LOGGING__LOGGING_LEVEL=INFO`` in the environment the logs of the tasks are as long as those of users.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from cdc.airflow import build_dags
from cdc.config import load
from cdc.lake.runtime import session
from cdc.testing.servers import HOST, Server
from tests.integration.test_secrets import GATEWAY, HASH, SOURCE, SPARK, destination, found_in, leaks

States = dict[str, str | None]


@pytest.fixture
def database_name(mysql9: Server) -> Iterator[str]:
    """A database with a table, and the account ``leak`` with a password of its own."""
    mysql9.execute(
        "CREATE DATABASE airflow_leaks",
        "CREATE TABLE airflow_leaks.t (id INT PRIMARY KEY, email VARCHAR(40))",
        "INSERT INTO airflow_leaks.t VALUES (1, 'a@example')",
        f"CREATE USER leak@'{HOST}' IDENTIFIED BY '{SOURCE}'",
        f"GRANT ALL ON *.* TO leak@'{HOST}'",
    )
    yield "airflow_leaks"
    mysql9.execute("DROP DATABASE airflow_leaks", f"DROP USER leak@'{HOST}'")


@pytest.mark.long
def test_no_secret_is_in_what_an_airflow_run_leaves(
    tmp_path: Path,
    mysql9: Server,
    database_name: str,
    run_dag: Callable[..., States],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "events").mkdir()
    for name, value in {"LEAK_SPARK": SPARK, "LEAK_HASH": HASH, "LEAK_GATEWAY": GATEWAY}.items():
        monkeypatch.setenv(name, value)
    login = f"leak:{quote(SOURCE, safe='')}@{HOST}:{mysql9.port}"
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", f"mysql://{login}")
    destination(tmp_path, "shop", mysql9, database_name, "connection: shop_db")
    file = tmp_path / "conf" / "shop.yaml"
    file.write_text(file.read_text() + "airflow: {capture_for: 3s, retries: 0}\n")

    done = {}
    for name in ("capture", "snapshot", "capture", "apply", "verify"):
        done[name] = run_dag(build_dags(tmp_path / "conf")[f"{name}_shop"])["run"]
        if name == "snapshot":
            mysql9.execute(f"UPDATE {database_name}.t SET email = 'b@example'")
    session.discard()
    assert set(done.values()) == {"success"}, json.dumps(done) + capfd.readouterr().err[-3000:]

    assert load(file).metrics.push_user == "u"
    output = capfd.readouterr()
    assert found_in((output.out + output.err).encode()) == []
    home = Path(os.environ["AIRFLOW_HOME"])
    assert (home / "airflow.db").exists()
    assert leaks(home, set()) == {}
    assert leaks(tmp_path, set()) == {}
