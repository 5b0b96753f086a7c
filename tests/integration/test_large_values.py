"""Values of many megabytes take another way through Spark, with the same result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from cdc.lake.apply.large_values import LARGE_BYTES
from cdc.lake.delta.tables import LARGE_PROPERTY
from cdc.testing.servers import Server
from tests.support.apply import Loop

LARGE = LARGE_BYTES + 1
OVERRIDES = (
    "DB.coded: {keys: [code]}, DB.logged: {mode: append}, DB.marked: {mode: soft_delete}, "
    "DB.dated: {mode: scd2, keys: [code]}"
)


def properties(loop: Loop, table: str) -> dict[str, str | None]:
    return dict(DeltaTable(str(loop.path(table))).metadata().configuration)


def current(loop: Loop, table: str) -> list[dict[str, Any]]:
    """Returns the rows that a table shows as those of the source."""
    names = ("id", "code", "v", "n")
    shown = [row for row in loop.delta(table) if row.get("_current", not row.get("_deleted"))]
    return [{name: row[name] for name in names} for row in shown]


@pytest.mark.long
def test_tables_equal_select(mysql9: Server, database: Callable[[Server], str], tmp_path: Path) -> None:
    db = database(mysql9)
    loop = Loop(tmp_path, mysql9, db, overrides=OVERRIDES)
    columns = "(id INT PRIMARY KEY, code VARCHAR(20) NOT NULL, v LONGTEXT, n DECIMAL(10,2))"
    tables = ("plain", "coded", "logged", "marked", "dated")
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

    properties_by_table = {table: properties(loop, table) for table in (*tables, "small")}
    assert {table for table in properties_by_table if properties_by_table[table].get(LARGE_PROPERTY) == "true"} == set(
        tables
    )
    kept = {table: properties_by_table[table].get("delta.dataSkippingStatsColumns") for table in properties_by_table}
    assert kept == {
        "plain": "`id`,`n`",
        "coded": "`code`,`id`,`n`",
        "logged": "`_seq`,`_row`,`id`,`n`,`_commit_time`",
        "marked": "`id`,`_commit_time`,`_seq`,`n`",
        "dated": "`code`,`_valid_from`,`_valid_to`,`_seq`,`id`,`n`",
        "small": None,
    }

    assert current(loop, "marked") == loop.select("marked")
    # The row that was inserted and deleted in the batch keeps its values.
    assert [(row["id"], row["v"]) for row in loop.delta("marked") if row["_deleted"]] == [(8, "gone")]
    assert current(loop, "dated") == loop.select("dated")
    closed = [row for row in loop.delta("dated", order="_seq, code") if not row["_current"]]
    assert [(row["code"], row["v"]) for row in closed] == [
        ("a", "x" * LARGE), ("b", "small"), ("e", "gone")
    ]  # fmt: skip

    # A small change to a row that shares its file with large values.
    loop.sql(*[f"UPDATE {table} SET n = 3 WHERE id = 7" for table in ("plain", "coded", "marked", "dated")])
    loop.capture()
    loop.apply_all()
    for table in ("plain", "coded"):
        loop.require_equal(table)
        assert properties(loop, table) == properties_by_table[table]
    assert current(loop, "marked") == loop.select("marked")
    assert current(loop, "dated") == loop.select("dated")
    assert len(loop.delta("dated")) == 8
