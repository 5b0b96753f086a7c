"""Values of many megabytes take another way through Spark, with the same result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from deltalake import DeltaTable

from cdc.testing.servers import Server
from spark_jobs.apply.large_values import LARGE_BYTES
from spark_jobs.delta.tables import LARGE_PROPERTY
from tests.support.apply import Loop

LARGE = LARGE_BYTES + 1


def properties(loop: Loop, table: str) -> dict[str, str | None]:
    return dict(DeltaTable(str(loop.path(table))).metadata().configuration)


def test_tables_equal_select(mysql9: Server, database: Callable[[Server], str], tmp_path: Path) -> None:
    db = database(mysql9)
    loop = Loop(tmp_path, mysql9, db, overrides="DB.coded: {keys: [code]}, DB.logged: {mode: append}")
    columns = "(id INT PRIMARY KEY, code VARCHAR(20) NOT NULL, v LONGTEXT, n DECIMAL(10,2))"
    tables = ("plain", "coded", "logged")
    loop.sql(
        *[f"CREATE TABLE {table} {columns}" for table in (*tables, "small")],
        "INSERT INTO small VALUES (1, 'a', 'b', 2)",
    )
    for table in tables:
        loop.sql(
            f"INSERT INTO {table} VALUES (1, 'a', REPEAT('x', {LARGE}), 1.5), (2, 'b', 'small', 2), (3, '', '', NULL)",
            # Of these only the last state of each key is to arrive.
            f"UPDATE {table} SET v = CONCAT('y', v), code = 'c' WHERE id = 1",
            f"UPDATE {table} SET id = 7 WHERE id = 2",
            f"INSERT INTO {table} VALUES (2, 'd', REPEAT('é', {LARGE // 2}), 9), (8, 'e', 'gone', 0)",
            f"DELETE FROM {table} WHERE id = 8",
        )
    loop.capture()
    loop.apply_all()
    for table in ("plain", "coded", "small"):
        loop.require_equal(table)
    assert [op for op, _ in loop.changelog("logged")] == ["insert"] * 3 + ["update"] * 2 + ["insert"] * 2 + ["delete"]
    last = {row["id"]: row["v"] for row in loop.delta("logged", "id, v, _op", "_seq, _row") if row["_op"] != "delete"}
    assert last.items() >= {row["id"]: row["v"] for row in loop.select("logged")}.items()

    found = {table: properties(loop, table) for table in (*tables, "small")}
    assert {table for table in found if found[table].get(LARGE_PROPERTY) == "true"} == set(tables)
    kept = {table: found[table].get("delta.dataSkippingStatsColumns") for table in found}
    assert kept == {
        "plain": "`id`,`n`",
        "coded": "`code`,`id`,`n`",
        "logged": "`_seq`,`_row`,`id`,`n`,`_commit_time`",
        "small": None,
    }

    # A small change to a row that shares its file with large values.
    loop.sql(*[f"UPDATE {table} SET n = 3 WHERE id = 7" for table in ("plain", "coded")])
    loop.capture()
    loop.apply_all()
    for table in ("plain", "coded"):
        loop.require_equal(table)
        assert properties(loop, table) == found[table]
