"""System-versioned tables of MariaDB: their row events hold old rows that SELECT does not show, so they are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cdc.base.errors import CdcError, UnsupportedDdlError, UnsupportedError
from cdc.lake import pipeline
from cdc.source.preflight import check_source
from cdc.testing.servers import Server
from tests.support.apply import Loop

Database = Callable[[Server], str]
TABLES = {
    "implicit": "CREATE TABLE v (id INT PRIMARY KEY, n INT) WITH SYSTEM VERSIONING",
    "explicit": "CREATE TABLE v (id INT PRIMARY KEY, n INT, s TIMESTAMP(6) GENERATED ALWAYS AS ROW START, e TIMESTAMP(6) "
    "GENERATED ALWAYS AS ROW END, PERIOD FOR SYSTEM_TIME (s, e)) WITH SYSTEM VERSIONING",
    "column": "CREATE TABLE v (id INT PRIMARY KEY, n INT WITH SYSTEM VERSIONING, m INT)",
}


@pytest.mark.parametrize(
    "kind", ["explicit", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("implicit", "column"))]
)
def test_a_versioned_table_is_refused_from_the_start(
    kind: str, mariadb11: Server, tmp_path: Path, database: Database
) -> None:
    loop = Loop(tmp_path, mariadb11, database(mariadb11), apply="on_error: park")
    loop.sql("CREATE TABLE plain (id INT PRIMARY KEY)", TABLES[kind])
    loop.sql("INSERT INTO v (id, n) VALUES (1, 1)", "UPDATE v SET n = 2", "INSERT INTO plain VALUES (1)")
    errors = [
        finding
        for finding in check_source(loop.config)
        if finding.level == "error" and finding.subject == f"table {loop.db}.v"
    ]
    assert ["is system-versioned" in error.message for error in errors] == [True]
    assert "DROP SYSTEM VERSIONING" in str(errors[0].remedy)
    loop.capture()
    results = loop.apply_all()
    assert [result.parked is not None for result in results["v"]] == [True]
    assert "ystem" in str(results["v"][0].parked)
    loop.require_equal("plain")
    assert not loop.path("v").exists()
    with pytest.raises(CdcError, match="system-versioned"):
        pipeline.snapshot(loop.config, [f"{loop.db}.v"])
    assert not loop.path("v").exists()


def test_a_table_that_becomes_versioned_stops(mariadb11: Server, tmp_path: Path, database: Database) -> None:
    loop = Loop(tmp_path, mariadb11, database(mariadb11))
    loop.sql("CREATE TABLE v (id INT PRIMARY KEY, n INT)", "INSERT INTO v VALUES (1, 1)")
    loop.capture()
    loop.apply_all()
    loop.sql("ALTER TABLE v ADD SYSTEM VERSIONING", "UPDATE v SET n = 2")
    loop.capture()
    with pytest.raises((UnsupportedDdlError, UnsupportedError), match=r"VERSIONING|system-versioned"):
        loop.apply_all()
    assert loop.delta("v") == [{"id": 1, "n": 1}]

    # The remedy: the source gives it up, and the table is loaded anew.
    loop.sql("ALTER TABLE v DROP SYSTEM VERSIONING")
    loop.exclude(rf"{loop.db}\.v")
    loop.capture()
    loop.apply_all()
