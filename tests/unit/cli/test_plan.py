"""`cdc plan`: its table, its JSON and its exit codes, with stored definitions and without a server, a store or a lake."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.cli.main import main
from cdc.cli.plan import exit_code
from cdc.lake.migration.run import MigrationPlan
from cdc.lake.migration.trial import Answer, Trial
from tests.support.configurations import document
from tests.unit.lake.migration.test_planner import LOG, ORDERS, stored

MIGRATION = """\
-- a migration
USE shop;
ALTER TABLE orders MODIFY n INT, ADD c INT NOT NULL DEFAULT 5;
ALTER TABLE orders RENAME COLUMN c TO k;
UPDATE orders SET n = 2;
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "shop.yaml").write_text(document(apply__target=str(tmp_path / "lake")), "utf-8")
    stored(ORDERS, LOG).save(tmp_path / "schemas.json")
    return tmp_path


def plan(folder: Path, text: str, *arguments: str) -> int:
    (folder / "m.sql").write_text(text, "utf-8")
    schemas = ["--schemas", str(folder / "schemas.json")]
    return main(["--conf-dir", str(folder / "conf"), "plan", *schemas, *arguments, str(folder / "m.sql")])


def planned(folder: Path, capsys: pytest.CaptureFixture[str], text: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    code = plan(folder, text, "--json", *arguments)
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert content["exit_code"] == code
    return code, content


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("ALTER TABLE shop.orders ADD c INT", 0),
        ("ALTER TABLE shop.orders ADD c INT NOT NULL DEFAULT 5", 0),
        ("", 0),
        ("ALTER TABLE shop.orders ADD u CHAR(36) DEFAULT (UUID())", 3),
        ("SET sql_mode = ''; ALTER TABLE shop.orders MODIFY note VARCHAR(50) CHARACTER SET ascii", 3),
        ("ALTER TABLE shop.orders DROP PRIMARY KEY; ALTER TABLE shop.log ADD u CHAR(36) DEFAULT (UUID())", 4),
        ("ALTR TABLE shop.orders; ALTER TABLE shop.orders DROP PRIMARY KEY", 2),
        ("ALTER TABLE orders ADD c INT", 2),
        ("ALTER TABLE shop.orders COMMENT 'x", 2),
    ],
)
def test_exit_codes(folder: Path, sql: str, code: int) -> None:
    assert plan(folder, sql) == code


def test_the_table_reads_well_in_100_columns(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(folder, MIGRATION) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 100
    lines = shown.splitlines()
    assert lines[0].split() == ["line", "statement", "table", "verdict", "Delta", "table"]
    assert lines[2].split()[:3] == ["3", "ALTER", "TABLE"] and "rewrite" in lines[2]
    text = " ".join(shown.split())
    assert "line 3, shop.orders: the Delta table gets type widening: deltalake to_pyarrow refuses it" in text
    assert "line 4, shop.orders: the Delta table gets column mapping: deltalake to_pyarrow shows wrong values" in text
    assert (
        "line 4, shop.orders: queries and views of the Delta table that name these columns have to follow: c becomes k."
        in text
    )


def test_a_sentence_with_the_remedy(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan(folder, "ALTER TABLE shop.orders ADD u CHAR(36) DEFAULT (UUID())")
    text = " ".join(capsys.readouterr().out.split())
    assert (
        "line 1, shop.orders: only the server knows the table's rows after this statement (the new column u: its "
        "default is the expression (UUID())). Run `cdc snapshot shop shop.orders`, which reads u and the key again"
    ) in text


def test_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, content = planned(folder, capsys, MIGRATION, "shop")
    assert code == 0 and content["destination"] == "shop"
    assert [statement["verdict"] for statement in content["statements"]] == ["none", "rewrite", "in place", "rows"]
    statement = content["statements"][1]
    assert (statement["number"], statement["line"]) == (2, 3)
    (table,) = statement["tables"]
    assert (table["table"], table["mode"], table["steps"]) == ("shop.orders", "upsert", ["alter", "fill"])
    assert table["columns"]["added"] == ["c"]
    assert table["columns"]["retyped"] == [{"column": "n", "from": "smallint", "to": "int"}]
    assert table["features"][0]["feature"] == "type widening"
    assert table["cost"] is None and table["otherwise"] is None
    _, content = planned(
        folder, capsys, "SET sql_mode = ''; ALTER TABLE shop.orders MODIFY note VARCHAR(50) CHARACTER SET ascii"
    )
    otherwise = content["statements"][1]["tables"][0]["otherwise"]
    assert otherwise["verdict"] == "snapshot" and otherwise["reads_columns"] == ["note"]


def test_the_session_is_given_by_options(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sql = "ALTER TABLE orders MODIFY note VARCHAR(50) CHARACTER SET ascii"
    assert planned(folder, capsys, sql, "--database", "shop")[0] == 0
    assert planned(folder, capsys, sql, "--database", "shop", "--sql-mode", "")[0] == 3
    timestamp = "ALTER TABLE orders ADD t TIMESTAMP NOT NULL DEFAULT '2024-01-31 10:11:12'"
    assert planned(folder, capsys, timestamp, "--database", "shop")[0] == 3
    assert planned(folder, capsys, timestamp, "--database", "shop", "--time-zone", "+00:00")[0] == 0


def test_standard_input(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b"ALTER TABLE shop.orders DROP PRIMARY KEY"))
    monkeypatch.setattr("sys.stdin", stdin)
    schemas = ["--schemas", str(folder / "schemas.json")]
    assert main(["--conf-dir", str(folder / "conf"), "plan", *schemas, "-"]) == 4


def test_input_that_cannot_be_planned_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conf = ["--conf-dir", str(folder / "conf"), "plan"]
    assert main([*conf, str(folder / "none.sql")]) == 2
    assert "none.sql: cannot be read: No such file" in capsys.readouterr().err
    (folder / "bad.sql").write_bytes(b"ALTER TABLE \xff")
    assert main([*conf, str(folder / "bad.sql")]) == 2
    assert "is not in UTF-8: byte 12" in capsys.readouterr().err
    assert plan(folder, "DROP TABLE a;\n/* no end", "shop") == 2
    assert "line 2: the comment that begins here does not end" in capsys.readouterr().err
    (folder / "m.sql").write_text("DROP TABLE shop.a", "utf-8")
    assert main([*conf, str(folder / "m.sql")]) == 2
    assert "the store has no definitions of tables yet" in capsys.readouterr().err
    assert plan(folder, "ALTER TABLE shop.missing ADD a INT") == 2
    assert "capture has not seen it" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ("", "the URL does not begin with mysql://"),
        ("postgres://u@h", "does not begin with mysql:// or mariadb://"),
        ("mysql://h", "names no user"),
        ("mysql://u@h/db", "something after the port"),
        ("mysql://u@h", "Set $CDC_PLAN_PASSWORD"),
    ],
)
def test_a_server_that_cannot_be_asked(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, server: str, message: str
) -> None:
    monkeypatch.delenv("CDC_PLAN_PASSWORD", raising=False)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert plan(folder, "ALTER TABLE shop.orders ADD c INT", "--server", server) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("kinds", "answers", "code"),
    [
        ({"in place"}, [Answer("executed"), Answer("not tried", "it has a query")], 0),
        ({"snapshot"}, [Answer("executed")], 3),
        ({"snapshot"}, [Answer("executed", differences=("x",))], 5),
        ({"refused"}, [Answer("executed", differences=("x",))], 4),
        ({"refused"}, [Answer("rejected", "no")], 2),
        ({"wrong", "refused"}, [Answer("executed")], 2),
    ],
)
def test_exit_codes_with_a_server(kinds: set[str], answers: list[Answer], code: int) -> None:
    trial = Trial("db:3306", "9.0.0", tuple(answers), ())
    assert exit_code(cast("MigrationPlan", SimpleNamespace(trial=trial, kinds=kinds))) == code
