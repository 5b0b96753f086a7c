"""Random ALTER TABLE statements on real servers: whatever the server makes of several clauses at once, the tracker
makes the same of them."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator

import pymysql
import pytest

from cdc.base.errors import UnsupportedDdlError
from cdc.binlog.sql.schemas import TableSchema
from cdc.binlog.sql.server import ServerVersion as SqlServer
from cdc.binlog.sql.statements import classify
from cdc.binlog.sql.track import apply_changes
from cdc.config import SourceConfig, TablesConfig
from cdc.lake.migration.trial import differences
from cdc.source.connection import connect
from cdc.source.schemas import read_schemas
from cdc.source.server import Connection
from cdc.testing.servers import Server
from tests.conftest import Database
from tests.support.ddl_random import RandomAlter

ATTEMPTS = int(os.environ.get("TOWPATH_RANDOM_ALTERS") or 250)
FRESH = ("n1", "n2", "X y", "größe")
TABLE = "CREATE TABLE t (a INT NOT NULL, b VARCHAR(30) DEFAULT 'x', c INT, d DATE, e CHAR(4), PRIMARY KEY (a)) CHARSET utf8mb4"


GENERATED_KEY = TABLE.replace("(a INT", "(my_row_id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT INVISIBLE, a INT").replace(
    "KEY (a)", "KEY (my_row_id)"
)
"""The same with the primary key that MySQL generates; the server knows it by its definition."""


@pytest.fixture(scope="module", params=["mysql9", "mariadb11", "mariadb10", "mysql56"])
def server(request: pytest.FixtureRequest) -> Server:
    server: Server = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def source(server: Server) -> Iterator[Connection]:
    with connect(SourceConfig(url=server.url, password_env="TOWPATH_TEST_PASSWORD", server_id=79)) as connection:
        yield connection


@pytest.mark.parametrize("table", [TABLE, GENERATED_KEY], ids=["", "generated-key"])
def test_the_tracker_follows_random_alters(
    server: Server, source: Connection, database: Database, seed: int, table: str
) -> None:
    hides = server.kind.name == "mysql9"
    if "INVISIBLE" in table and not hides:
        pytest.skip("only MySQL generates primary keys")
    chance = random.Random(seed)
    name = database(server)
    parsed = SqlServer.parse(_version(server))
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"USE `{name}`")
        cursor.execute(table)
        tracked = _real(source, name)
        done = 0
        for _ in range(ATTEMPTS):
            if len(tracked.columns) < 3 or ("my_row_id" in table and "my_row_id" not in tracked.column_names):
                cursor.execute("DROP TABLE t")
                cursor.execute(table)
                tracked = _real(source, name)
            names = tracked.column_names + tuple(n for n in FRESH if n not in tracked.column_names)
            sql, _ = RandomAlter(chance, (name, "t"), names, hides=hides).statement()
            try:
                cursor.execute(sql)
            except pymysql.MySQLError:
                continue
            done += 1
            real = _real(source, name)
            try:
                after = apply_changes(tracked, classify(sql, name, 1 << 21, parsed).changes)
            except UnsupportedDdlError as error:
                raise AssertionError(f"{sql}: {error}") from None
            assert after is not None
            assert not differences(after, real, set()), f"{sql}: {differences(after, real, set())}"
            tracked = real
    assert done > ATTEMPTS // 40


def _real(source: Connection, name: str) -> TableSchema:
    return read_schemas(source, TablesConfig(include=(re.escape(f"{name}.t"),))).tables[f"{name}.t"]


def _version(server: Server) -> str:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT VERSION()")
        ((version,),) = cursor.fetchall()
    return str(version)
