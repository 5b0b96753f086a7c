"""A TIMESTAMP that becomes a DATETIME, and the reverse, in sessions of several time zones: Delta has the times that SELECT
shows, and nothing is read again."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from cdc.batches.service import BatchService
from cdc.testing.servers import Server
from tests.support.apply import Loop
from tests.support.ddl_loop import delta_rows, shown_rows

ZONES = ("SYSTEM", "+05:30", "-03:45")
MODES = ("upsert", "soft_delete", "scd2")
"""In mode ``append`` the old rows stay as they are."""
ROWS = (
    ("'1970-01-02 00:00:00'", "'1971-01-01 00:00:00.001'"),
    ("'2038-01-18 00:00:00.999'", "'2038-01-17 23:59:59'"),
    ("'2024-03-31 01:30:00.5'", "'2024-03-31 02:30:00.25'"),
    ("NULL", "NULL"),
    ("'0000-00-00 00:00:00'", "'0000-00-00 00:00:00'"),
)


@pytest.mark.parametrize(
    "kind", ["mysql9", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("mariadb11", "mariadb10", "mysql56"))]
)
def test_times_follow_the_zone_of_the_session(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, database: Callable[[Server], str]
) -> None:
    server: Server = request.getfixturevalue(kind)
    db = database(server)
    pairs = zip(ZONES, MODES, strict=True) if kind == "mysql9" else product(ZONES, MODES)
    tables = {f"t{n}": (zone, mode) for n, (zone, mode) in enumerate(pairs)}
    overrides = ", ".join(f"DB.{name}: {{mode: {mode}}}" for name, (_, mode) in tables.items())
    loop = Loop(tmp_path, server, db, overrides=overrides, apply="on_error: park", start="now")
    columns = "id INT PRIMARY KEY, a TIMESTAMP(3) NULL, b DATETIME(3) NULL, c TIMESTAMP NULL"
    loop.sql(*(f"CREATE TABLE {name} ({columns})" for name in tables))
    loop.capture()
    rows = ", ".join(f"({n}, {a}, {b}, {a})" for n, (a, b) in enumerate(ROWS))
    loop.sql("SET time_zone = '+00:00', sql_mode = ''", *(f"INSERT INTO {name} VALUES {rows}" for name in tables))
    loop.sql(
        "SET sql_mode = 'STRICT_ALL_TABLES'",
        *(
            statement
            for name, (zone, _) in tables.items()
            for statement in (
                f"SET time_zone = '{zone}'",
                f"ALTER TABLE {name} MODIFY a DATETIME(3), MODIFY b TIMESTAMP(3) NULL, CHANGE c d DATETIME(6)",
            )
        ),
    )
    loop.capture()
    loop.apply_all()
    assert BatchService(loop.config).subscription().parked == {}
    for table in tables:
        names, present = delta_rows(loop.config, db, table)
        kept = [at for at, column in enumerate(names) if not column.startswith("_")]
        in_delta = [names[at] for at in kept], sorted((tuple(row[at] for at in kept) for row in present), key=repr)
        assert in_delta == shown_rows(server, db, table), (table, tables[table])
