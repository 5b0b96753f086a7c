"""Verification compares each type that a server lists: no false alarm for any edge value, and each changed value is
found."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from cdc.batches.service import BatchService
from cdc.lake import pipeline
from cdc.testing.servers import Server
from tests.support.apply import Loop
from tests.support.capturing import capturing
from tests.support.type_matrix import catalog, plan, workload
from tests.support.type_matrix.special import LARGE

Database = Callable[[Server], str]


@pytest.mark.timeout(900)
@pytest.mark.long
@pytest.mark.parametrize("kind", ["mysql9", "mariadb11", "mysql56", "mariadb10"])
def test_no_false_alarm_for_any_type(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, database: Database
) -> None:
    server: Server = request.getfixturevalue(kind)
    name = f"types_{secrets.token_hex(4)}"
    server.execute(f"CREATE DATABASE `{name}`")
    try:
        with server.connect() as connection:
            catalog_tables = catalog.read_catalog(connection, name)
            tables = [table for table in plan.tables(connection, catalog_tables) if table.group != LARGE]
            loop = Loop(tmp_path, server, name)
            workload.create(connection, name, tables)
            workload.fill(connection, name, tables)
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


def read_again(loop: Loop, create: str, rows: str, alter: str) -> str:
    """Fills a table, alters it in a session that is not strict, and reads again the columns that only the server knows
    then. Returns why it was parked."""
    loop.sql("SET sql_mode = ''", create, rows)
    loop.capture()
    loop.apply_all()
    loop.sql("SET sql_mode = ''", alter)
    loop.capture()
    loop.apply_all()
    (parked,) = BatchService(loop.config).subscription().parked.values()
    with capturing(loop.config):
        pipeline.snapshot(loop.config)
    loop.capture()
    loop.apply_all()
    return parked.reason


@pytest.mark.long
def test_numbers_in_columns_that_keep_an_earlier_type(tmp_path: Path, mariadb11: Server, database: Database) -> None:
    """Delta keeps a column of DOUBLE when the source's column becomes an integer of at most 32 bits."""
    loop = Loop(tmp_path, mariadb11, database(mariadb11), apply="on_error: park")
    read_again(
        loop,
        "CREATE TABLE t (id INT PRIMARY KEY, a DOUBLE, b DOUBLE, c DOUBLE)",
        "INSERT INTO t VALUES (1, 0, 1e9, 1.255), (2, -0.0, -5, -0.1), (3, NULL, 4, NULL)",
        "ALTER TABLE t MODIFY a TINYINT(1) NOT NULL, MODIFY b INT NOT NULL, MODIFY c DECIMAL(10,2)",
    )
    loop.sql("INSERT INTO t VALUES (4, 1, 2, 0.30)")
    loop.capture()
    loop.apply_all()
    delta = DeltaTable(str(loop.path("t")))
    assert pa.schema(delta.schema().to_arrow()).field("b").type == pa.float64()
    assert pipeline.verify(loop.config).state == "proved"

    delta.update({"a": "a + 1", "b": "b + 0.25"}, predicate="id IN (2, 4)")
    (table,) = pipeline.verify(loop.config).tables
    assert table.checksums is not None
    assert {difference.key["id"] for difference in table.checksums.differences} == {"2", "4"}


@pytest.mark.long
@pytest.mark.parametrize(
    "alter", ["CHANGE c d INT UNSIGNED, CHANGE b b FLOAT", "CHANGE c d INT UNSIGNED", "MODIFY c DECIMAL(28,3)"]
)
def test_a_number_that_has_no_room_when_it_is_rounded(
    alter: str, tmp_path: Path, mariadb11: Server, database: Database
) -> None:
    """The server cuts it to the largest value of the new type, so the column is read again."""
    loop = Loop(tmp_path, mariadb11, database(mariadb11), apply="on_error: park")
    reason = read_again(
        loop,
        "CREATE TABLE t (id INT PRIMARY KEY, b INT, c DECIMAL(30,5))",
        "INSERT INTO t VALUES (1, 2147483647, 9999999999999999999999999.99999), (2, 7, -0.00001)",
        f"ALTER TABLE t {alter}",
    )
    assert "which reads" in reason
    assert pipeline.verify(loop.config).state == "proved"
