"""Verification compares each type that a server lists: no false alarm for any edge value, and each changed value is
found."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdc import pipeline
from cdc.testing.servers import Server
from spark_jobs.runtime import session
from tests.support.apply import Loop
from tests.support.type_matrix import catalog, plan, workload
from tests.support.type_matrix.column import Table
from tests.support.type_matrix.special import LARGE
from tests.support.type_matrix.texts import FEATURES

Database = Callable[[Server], str]

SPARK = (
    "{master: 'local[2]', conf: {spark.driver.memory: 1g, spark.sql.codegen.wholeStage: 'false',"
    " spark.sql.codegen.factoryMode: NO_CODEGEN,"
    " spark.driver.extraJavaOptions: '-XX:+UseSerialGC -XX:TieredStopAtLevel=1'}}"
)


def _fill(connection: Any, database: str, tables: list[Table]) -> None:
    """Inserts row n with the n-th value of each column."""
    with connection.cursor() as cursor:
        cursor.execute("SET NAMES utf8mb4")
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(f"USE `{database}`")
        for table in tables:
            modes = "ALLOW_INVALID_DATES" if table.group == FEATURES else "ALLOW_INVALID_DATES,STRICT_ALL_TABLES"
            cursor.execute(f"SET sql_mode = '{modes}'")
            written = [column for column in table.columns if column.written]
            names = ", ".join(["id", "turn", *(workload.quoted(column.name) for column in written)])
            cursor.execute("BEGIN")
            for row in range(table.rows):
                values = ", ".join([str(row), "1", *(c.values[row % len(c.values)] for c in written)])
                cursor.execute(f"INSERT INTO {table.name} ({names}) VALUES ({values})")
            cursor.execute("COMMIT")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "kind", ["mysql9", *[pytest.param(kind, marks=pytest.mark.long) for kind in ("mariadb11", "mysql56", "mariadb10")]]
)
def test_no_false_alarm_for_any_type(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, database: Database
) -> None:
    server: Server = request.getfixturevalue(kind)
    name = f"types_{secrets.token_hex(4)}"
    server.execute(f"CREATE DATABASE `{name}`")
    try:
        with server.connect() as connection:
            found = catalog.read_catalog(connection, name)
            tables = [table for table in plan.tables(connection, found) if table.group != LARGE]
            loop = Loop(tmp_path, server, name, spark=SPARK)
            workload.create(connection, name, tables)
            _fill(connection, name, tables)
        loop.capture()
        loop.apply_all()
        report = pipeline.verify(loop.config, wait_s=20)
        wrong = [
            (
                table.table,
                table.unknown,
                table.checksums.faults,
                [(d.key, d.columns) for d in table.checksums.differences],
            )
            for table in report.tables
            if table.state not in ("proved", "partial")
        ]
        assert not wrong, wrong[:5]
        assert len(report.tables) == len(tables)
        assert report.state == "proved", {t.table: t.checksums.left_out for t in report.tables}
    finally:
        server.execute(f"DROP DATABASE `{name}`")
        session.discard()
