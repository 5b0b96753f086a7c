"""The hook and its test button, with real servers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cdc.airflow import TowpathHook
from cdc.airflow.connections import connection_credentials
from cdc.base.errors import CdcError, ConfigError
from cdc.testing.servers import HOST, PASSWORD, USER, Server

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastapi.testclient import TestClient


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Callable[..., TowpathHook]:
    """Makes a hook with a connection of these fields."""

    def make(server: Server, **fields: Any) -> TowpathHook:
        fields_of_all = {"conn_type": "towpath", "host": HOST, "port": server.port, "login": USER, "password": PASSWORD}
        monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", json.dumps(fields_of_all | fields))
        return TowpathHook("shop_db")

    return make


def test_a_server_that_can_be_captured(hook: Callable[..., TowpathHook], mysql9: Server, mariadb11: Server) -> None:
    ok, sentence = hook(mysql9).test_connection()
    assert ok, sentence
    assert sentence.startswith("MySQL 9.")
    assert f"the user is '{USER}'@'" in sentence
    assert "ROW format, FULL image" in sentence
    ok, sentence = hook(mariadb11, conn_type="mysql").test_connection()
    assert ok, sentence
    assert "Transactions have GTIDs." in sentence
    with closing(hook(mysql9).get_conn()) as conn, conn.cursor() as cursor:
        cursor.execute("SELECT @@session.time_zone")
        assert cursor.fetchall() == (("+00:00",),)


def test_a_user_who_may_not_read_the_binlog(hook: Callable[..., TowpathHook], mysql9: Server) -> None:
    mysql9.execute("DROP USER IF EXISTS clerk@'%'", "CREATE USER clerk@'%' IDENTIFIED BY 'ink'")
    try:
        ok, sentence = hook(mysql9, login="clerk", password="ink").test_connection()
    finally:
        mysql9.execute("DROP USER clerk@'%'")
    assert not ok
    assert "REPLICATION SLAVE is missing" in sentence
    assert "GRANT REPLICATION SLAVE ON *.* TO 'clerk'@'%';" in sentence


def test_a_server_that_writes_statements(hook: Callable[..., TowpathHook], mysql9: Server) -> None:
    mysql9.execute("SET GLOBAL binlog_format = STATEMENT")
    try:
        ok, sentence = hook(mysql9).test_connection()
    finally:
        mysql9.execute("SET GLOBAL binlog_format = ROW")
    assert not ok
    assert sentence.startswith("Binlog_format: binlog_format is STATEMENT; ")
    assert "SET GLOBAL binlog_format=ROW" in sentence


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"password": "wrong-one"}, "the server refuses user 't' with this password. Check host, port, user, password"),
        ({"port": 1}, "nothing listens there (connection refused). Check host, port"),
        ({"host": None}, "the Airflow connection 'shop_db' has no host. Fill in host, login and password."),
        ({"password": None}, "the Airflow connection 'shop_db' holds no password"),
        ({"extra": {"ssl_ca": "/nowhere.pem"}}, "/nowhere.pem is not a file"),
        ({"extra": {"ssl_mode": "verify"}}, "the Airflow connection 'shop_db': ssl_mode: input should be 'disabled'"),
        ({"extra": {"ssl_cert": "c.pem"}}, "the Airflow connection 'shop_db': ssl_cert needs ssl_key beside it"),
        ({"conn_type": "postgres"}, "the Airflow connection 'shop_db' is of type 'postgres'"),
    ],
)
def test_connections_that_fail(
    hook: Callable[..., TowpathHook], mysql9: Server, fields: dict[str, Any], message: str
) -> None:
    ok, sentence = hook(mysql9, **fields).test_connection()
    assert not ok
    assert message in sentence
    assert "wrong-one" not in sentence
    with pytest.raises(CdcError):
        hook(mysql9, **fields).get_conn()


def test_a_connection_of_this_type_names_the_user_of_a_source(hook: Callable[..., TowpathHook], mysql9: Server) -> None:
    hook(mysql9)
    assert connection_credentials("shop_db").user == USER
    hook(mysql9, conn_type="http")
    with pytest.raises(ConfigError, match=r"is of type 'http'\. Name a connection of type towpath or mysql"):
        connection_credentials("shop_db")


def test_the_button_of_the_form(api: TestClient, mysql9: Server) -> None:
    form = {"connection_id": "shop_db", "conn_type": "towpath", "host": HOST, "port": mysql9.port, "login": USER}
    answer = api.post("/api/v2/connections/test", json=form | {"password": PASSWORD}).json()
    assert answer["status"], answer
    assert answer["message"].startswith("MySQL 9.")
    answer = api.post("/api/v2/connections/test", json=form | {"password": "no"}).json()
    assert not answer["status"]
    assert "refuses user" in answer["message"]


@pytest.mark.long
def test_the_command_of_airflow(tmp_path: Path, mysql9: Server) -> None:
    fields = {"conn_type": "towpath", "host": HOST, "port": mysql9.port, "login": USER, "password": PASSWORD}
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path), "AIRFLOW_CONN_SHOP_DB": json.dumps(fields)}
    command = [sys.executable, "-m", "airflow", "connections", "test", "shop_db"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "Connection success!" in done.stdout
