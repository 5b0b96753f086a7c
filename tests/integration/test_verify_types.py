"""Verification compares each type that a server lists: no false alarm for any edge value, and each changed value is
found."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

import pytest

from cdc.lake import pipeline
from cdc.testing.servers import Server
from tests.support.apply import Loop
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
