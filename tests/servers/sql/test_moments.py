"""The statement's time as a default: what an added column holds in old rows is what the event's context tells."""

from __future__ import annotations

import time
from itertools import product

import pytest

from cdc.binlog.sql.changes import AddColumn, Constant, Null
from cdc.binlog.sql.moment import Moment
from cdc.binlog.sql.server import ServerVersion as SqlServer
from cdc.binlog.sql.statements import classify
from cdc.source.schemas import system_zone
from cdc.testing.servers import Server
from tests.support.ddl_run import binlog_statements

ZONES = ("SYSTEM", "+05:30", "-03:00")
KNOWN = (
    "DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)",
    "DATETIME NOT NULL DEFAULT NOW()",
    "TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3)",
    "TIMESTAMP NULL DEFAULT LOCALTIMESTAMP ON UPDATE CURRENT_TIMESTAMP",
    "TIMESTAMP NULL",
)
BY_EXPRESSION = ("DATE DEFAULT (CURRENT_DATE)", "DATETIME(3) DEFAULT (NOW(3))")
LITERAL = "TIMESTAMP NOT NULL DEFAULT '2020-07-01 12:00:00'"


@pytest.mark.parametrize(
    "kind",
    [
        "mysql9",
        "mariadb11",
        pytest.param("mysql56", marks=pytest.mark.long),
        pytest.param("mariadb10", marks=pytest.mark.long),
    ],
)
def test_old_rows_have_the_time_that_the_event_tells(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's own zone is one with summer time; sessions have it, and others."""
    monkeypatch.setenv("TZ", "America/St_Johns")
    columns = (*KNOWN, *(() if kind == "mysql56" else BY_EXPRESSION), LITERAL)
    seen: dict[str, tuple[str, str | None]] = {}
    with Server(kind) as server, server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT VERSION()")
        [(name,)] = cursor.fetchall()
        version = SqlServer.parse(str(name))
        cursor.execute("CREATE DATABASE d")
        cursor.execute("USE d")
        for number, (zone, column) in enumerate(product(ZONES, columns)):
            cursor.execute(f"CREATE TABLE t{number} (id INT PRIMARY KEY)")
            cursor.execute(f"INSERT INTO t{number} VALUES (1), (2)")
            connection.commit()
            cursor.execute(f"SET time_zone = '{zone}'")
            time.sleep(0.011)
            sql = f"ALTER TABLE t{number} ADD COLUMN c {column}"
            cursor.execute(sql)
            cursor.execute("SET time_zone = '+00:00'")
            cursor.execute(f"SELECT DISTINCT CAST(c AS CHAR) FROM t{number}")
            [(value,)] = cursor.fetchall()
            seen[sql] = (f"{zone} {column}", value)
        offsets = system_zone(connection)
        assert len(offsets) == 10, "summer time begins and ends each year, over four years and in the next one"
        assert offsets[0][0] > 0, "the clock has changed before"
        assert {offset_s for _, offset_s in offsets} == {-9000, -12600}
        cursor.execute("SHOW BINARY LOGS")
        logs = [str(row[0]) for row in cursor.fetchall()]
        events = {query.sql: query for query in binlog_statements(server, logs, logs[-1])}
    for sql, (name, value) in seen.items():
        moment = Moment.of(events[sql], offsets)
        (change,) = classify(sql, "d", events[sql].sql_mode, version, moment=moment).changes
        assert isinstance(change, AddColumn)
        if name == f"SYSTEM {LITERAL}":
            assert not isinstance(change.old_rows, Constant), "the zone's clock may pass a time twice"
        elif value is None:
            assert isinstance(change.old_rows, Null), name
        else:
            assert isinstance(change.old_rows, Constant), (name, change.old_rows)
            assert change.old_rows.value == value, name
