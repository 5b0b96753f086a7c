"""What `cdc plan` says of statements is what apply does to them, with a store and a lake at hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from cdc.batches.service import BatchService
from cdc.cli.main import main
from cdc.testing.servers import Server
from tests.support.apply import Loop

CREATE = "(id INT PRIMARY KEY, n INT, s VARCHAR(20), k INT NOT NULL) CHARSET utf8mb4"
STATEMENTS = {
    "wide": "ALTER TABLE wide MODIFY n BIGINT, DROP COLUMN s",
    "filled": "ALTER TABLE filled ADD c INT NOT NULL DEFAULT 7",
    "text": "ALTER TABLE text MODIFY n VARCHAR(20)",
    "asked": "ALTER TABLE asked ADD g INT AS (n + 1) STORED",
    "keyless": "ALTER TABLE keyless DROP PRIMARY KEY",
    "numbered": "ALTER TABLE numbered MODIFY k INT NOT NULL AUTO_INCREMENT, ADD UNIQUE (k)",
    "none": "ALTER TABLE none ADD g INT AS (n + 1) STORED",
}
"""A statement for each table; `none` has no rows."""


@pytest.mark.long
def test_apply_does_what_the_plan_says(
    tmp_path: Path, mysql9: Server, database: Callable[[Server], str], capsys: pytest.CaptureFixture[str]
) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9), apply="on_error: park")
    for table in STATEMENTS:
        loop.sql(f"CREATE TABLE `{table}` {CREATE}")
        if table != "none":
            loop.sql(f"INSERT INTO `{table}` VALUES (1, 10, 'a', 1), (2, NULL, 'b', 2)")
    loop.capture()
    loop.apply_all()
    tables = planned(loop, tmp_path, capsys)
    verdicts = {table: verdict["verdict"] for table, verdict in tables.items()}
    assert verdicts == {
        "wide": "in place", "filled": "rewrite", "text": "rewrite", "asked": "snapshot", "keyless": "refused",
        "numbered": "in place", "none": "in place",
    }  # fmt: skip
    assert {table: verdict["cost"] and verdict["cost"]["rows"] for table, verdict in tables.items()} == {
        **dict.fromkeys(STATEMENTS), "filled": 2, "text": 2, "asked": 2,
    }  # fmt: skip
    assert tables["numbered"]["otherwise"] is None  # the statistics of the Delta log exclude 0
    generations = {table: state_of(loop, table).get("towpath.generation") for table in STATEMENTS}

    for statement in STATEMENTS.values():
        loop.sql(statement)
    loop.capture()
    loop.apply_all()
    parked = BatchService(loop.config).meta.read().subscription("apply").parked
    due = {name.partition(".")[2]: table.due for name, table in parked.items()}
    assert due == {"asked": "snapshot", "keyless": "retry"}
    for table, verdict in tables.items():
        if table in due:
            continue
        names = [field.name for field in DeltaTable(str(loop.path(table))).schema().fields]
        assert set(verdict["columns"]["added"]) <= set(names)
        assert not set(verdict["columns"]["dropped"]) & set(names)
        is_new = state_of(loop, table).get("towpath.generation") != generations[table]
        assert is_new == ("rewrite" in verdict["steps"] or "create" in verdict["steps"]), table


def state_of(loop: Loop, table: str) -> dict[str, str]:
    return {key: str(value) for key, value in DeltaTable(str(loop.path(table))).metadata().configuration.items()}


def planned(loop: Loop, folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    """The verdicts by the names of tables, by the newest definitions of the store."""
    file = folder / "migration.sql"
    file.write_text(f"USE {loop.db};\n" + "".join(f"{sql};\n" for sql in STATEMENTS.values()), "utf-8")
    capsys.readouterr()
    code = main(["--conf-dir", str(loop.config.file.parent), "plan", "--json", str(file)])
    content = json.loads(capsys.readouterr().out)
    assert code == content["exit_code"] == 4 and content["remarks"] == []
    tables = [table for statement in content["statements"] for table in statement["tables"]]
    return {table["table"].partition(".")[2]: table for table in tables}
