"""Tables with generated columns through to Delta, also of MariaDB 11.8.9, which leaves them out of updates and deletes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cdc.base.errors import CdcError
from cdc.batches.subscribers import accept_tables
from cdc.config import load
from cdc.meta import open_meta
from cdc.testing.servers import Server
from tests.support.apply import Loop

Database = Callable[[Server], str]
TABLE = "(id INT PRIMARY KEY, g INT AS (n + 1) STORED, n INT, w VARCHAR(20) AS (CONCAT('w', id)), t VARCHAR(20))"
WORK = (
    "INSERT INTO {} (id, n, t) VALUES (1, 1, 'a'), (2, 2, 'b'), (3, 3, 'c'), (4, NULL, NULL)",
    "UPDATE {} SET n = n + 10",
    "UPDATE {} SET id = 5 WHERE id = 3",
    "DELETE FROM {} WHERE id = 2",
    "REPLACE INTO {} (id, n, t) VALUES (1, 100, 'z'), (9, 9, 'y')",
)


def test_generated_columns_that_are_left_out(mariadb11: Server, database: Database, tmp_path: Path) -> None:
    db = database(mariadb11)
    overrides = "DB.m: {columns: {g: drop, w: null}}, DB.log: {mode: append, columns: {g: drop, w: drop}}"
    loop = Loop(tmp_path, mariadb11, db, overrides=overrides)
    for table in ("m", "log"):
        loop.sql(f"CREATE TABLE {table} {TABLE}", *(statement.format(table) for statement in WORK))
    loop.capture()
    loop.apply_all()
    shown = [{"id": row["id"], "n": row["n"], "w": None, "t": row["t"]} for row in loop.select("m")]
    assert loop.delta("m") == shown and len(shown) == 4
    changes = [
        (row["_op"], row["id"], row["n"], row["_before"] and row["_before"]["n"])
        for row in loop.delta("log", order="_seq, _row")
    ]
    assert changes[4:9] == [
        ("update", 1, 11, 1), ("update", 2, 12, 2), ("update", 3, 13, 3), ("update", 5, 13, 13), ("delete", 2, 12, 12),
    ]  # fmt: skip


def test_a_kept_column_is_refused_until_it_is_left_out(mariadb11: Server, database: Database, tmp_path: Path) -> None:
    """Capture has stored the rows, so that nothing is lost."""
    db = database(mariadb11)
    loop = Loop(tmp_path, mariadb11, db)
    loop.sql(f"CREATE TABLE m {TABLE}", WORK[0].format("m"), WORK[1].format("m"))
    loop.capture()
    with pytest.raises(CdcError, match=r"lack the column g, .*columns: \{g: drop\}"):
        loop.apply_all()
    file = loop.config.file
    file.write_text(
        file.read_text().replace("overrides: {}", f"overrides: {{{db}.m: {{columns: {{g: drop, w: drop}}}}}}")
    )
    loop.config = load(file)
    shutil.move(loop.path("m"), tmp_path / "away")  # a table keeps its policies
    accept_tables(open_meta(loop.config), "apply", {f"{db}.m": None})
    loop.apply_all()
    assert [(row["id"], row["n"]) for row in loop.delta("m")] == [(1, 11), (2, 12), (3, 13), (4, None)]
    assert list(loop.delta("m")[0]) == ["id", "n", "t"]


def test_a_kept_column_holds_no_other_table_back(mariadb11: Server, database: Database, tmp_path: Path) -> None:
    loop = Loop(tmp_path, mariadb11, database(mariadb11), apply="on_error: park")
    for table in ("kept", "other"):
        loop.sql(f"CREATE TABLE {table} {TABLE if table == 'kept' else '(id INT PRIMARY KEY, n INT, t VARCHAR(20))'}")
        loop.sql(*(statement.format(table) for statement in WORK))
    loop.capture()
    results = loop.apply_all()
    loop.require_equal("other")
    parking = next(result.parked for result in results["kept"] if result.parked is not None)
    assert "lack the column g" in parking.reason and "columns: {g: drop}" in parking.reason
