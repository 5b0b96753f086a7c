"""The findings of ``cdc check`` about policies that do not fit the tables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from cdc.binlog.sql.schemas import ColumnSchema, Schemas, TableSchema
from cdc.config import DestinationConfig, load
from cdc.source.findings import Finding
from cdc.source.schemas import check_members, with_members
from cdc.source.table_checks import check_generated, check_key_dates, check_policies


def column(name: str, data_type: str, column_type: str = "", charset: str | None = None) -> ColumnSchema:
    return ColumnSchema(
        name=name, data_type=data_type, column_type=column_type or data_type, nullable=True, default=None, extra="",
        charset=charset, collation=None,
    )  # fmt: skip


SCHEMAS = Schemas(
    tables={
        "shop.users": TableSchema(
            columns=(
                column("Id", "int"),
                column("email", "varchar", "varchar(100)", "utf8mb4"),
                column("flag", "tinyint", "tinyint(1)"),
                column("at", "time"),
                column("place", "vector"),
                column("doc", "json"),
            ),
            primary_key=("Id",),
        )
    }
)


def config(folder: Path, apply: dict[str, Any], override: dict[str, Any] | None = None) -> DestinationConfig:
    file = folder / "shop.yaml"
    document = {
        "source": {"url": "mysql://cdc@localhost", "server_id": 7, "start": "now"},
        "tables": {"include": [r"shop\..*"], "overrides": {"shop.users": override} if override else {}},
        "store": {"path": "store"},
        "meta": {"path": "meta"},
        "apply": {"target": "lake", "hash_key_env": "KEY", **apply},
    }
    file.write_text(yaml.safe_dump(document))
    return load(file)


@pytest.mark.parametrize(
    ("apply", "message"),
    [
        ({"columns": {"id": "drop"}}, "column 'Id' with the policy drop: a key must tell rows apart"),
        ({"columns": {"id": "null"}}, "a key must tell rows apart"),
        ({"columns": {"flag": {"mask": 1}}}, r"only texts can be masked, not tinyint\(1\)"),
        ({"columns": {"at": {"mask": 1}}, "types": {"time": "microseconds"}}, "only texts can be masked, not time"),
        ({"columns": {"place": "hash"}}, "only single values can be hashed"),
        ({"columns": {"email": {"rename": "FLAG"}}}, "the table has a column 'FLAG' already"),
        ({"keys": ["Id", "flag"], "types": {"tinyint(1)": "boolean"}}, "key column 'flag' would become boolean"),
        ({"keys": ["doc"], "types": {"json": "variant"}}, "key column 'doc' would become variant"),
    ],
)
def test_misfits_are_named(tmp_path: Path, apply: dict[str, Any], message: str) -> None:
    (finding,) = check_policies(config(tmp_path, apply), SCHEMAS)
    assert (finding.level, finding.subject) == ("error", "table shop.users")
    assert finding.remedy
    assert re.search(message, finding.message)


def test_policies_that_fit_have_no_findings(tmp_path: Path) -> None:
    fits = {
        "columns": {
            "id": "hash",
            "email": {"mask": 4},
            "at": {"mask": 2},
            "place": "drop",
            "doc": {"rename": "Document"},
        },
        "types": {"tinyint(1)": "boolean"},
    }
    assert list(check_policies(config(tmp_path, fits), SCHEMAS)) == []
    assert list(check_policies(config(tmp_path, {"mode": "append", "columns": {"id": "drop"}}), SCHEMAS)) == []


def test_unknown_columns(tmp_path: Path) -> None:
    (finding,) = check_policies(config(tmp_path, {"columns": {"mail": "drop"}}), SCHEMAS)
    assert (finding.level, finding.subject) == ("warning", "apply: columns")
    (finding,) = check_policies(config(tmp_path, {}, {"columns": {"mail": "drop"}}), SCHEMAS)
    assert finding.level == "error"
    assert "has no column 'mail'" in finding.message


def test_members_that_the_server_cannot_show(tmp_path: Path) -> None:
    def schemas_with(column_type: str, charset: str) -> Schemas:
        return Schemas(
            tables={"a.b": TableSchema(columns=(column("e", "enum", column_type, charset),), primary_key=())}
        )

    def findings(schemas: Schemas, override: str = "") -> list[Finding]:
        config = configure(tmp_path, override)
        return list(check_members(config, with_members(config.tables, schemas)))

    shown = schemas_with("enum('it''s','?x')", "utf8mb4")
    (finding,) = findings(shown)
    assert (finding.level, finding.subject) == ("error", "table a.b")
    assert finding.remedy is not None and "members: {e: [" in finding.remedy
    for accepted in ("columns: {e: drop}", "columns: {E: null}", """members: {E: ["it's", '\U0001f600x']}""",
                     """members: {e: ["it's", '?x']}"""):  # fmt: skip
        assert findings(shown, accepted) == []
    for refused in ("columns: {e: keep}", "members: {e: ['\U0001f600x']}", """members: {e: ["it's", 'üx']}"""):
        assert [f.level for f in findings(shown, refused)] == ["error"]
    assert findings(schemas_with("enum('a','b')", "utf8mb4")) == findings(schemas_with("enum('a','?')", "latin1")) == []
    config = configure(tmp_path, """members: {e: ["it's", '\U0001f600x']}""")
    assert with_members(config.tables, shown) == schemas_with("enum('it''s','\U0001f600x')", "utf8mb4")


def configure(folder: Path, override: str) -> DestinationConfig:
    (folder / "conf").mkdir(exist_ok=True)
    file = folder / "conf" / "shop.yaml"
    file.write_text(
        "source: {url: 'mysql://cdc@db', server_id: 7, start: now}\n"
        f"tables: {{include: ['a\\..*'], overrides: {{a.b: {{mode: append{', ' if override else ''}{override}}}}}}}\n"
        "store: {path: data/store}\nmeta: {path: data/meta}\napply: {target: lake}\n",
        encoding="utf-8",
    )
    return load(file)


def test_dates_in_keys_are_a_warning_if_the_server_accepts_zero_dates(tmp_path: Path) -> None:
    schemas = Schemas(tables={"shop.t": TableSchema(columns=(column("day", "date"),), primary_key=("day",))})
    plain = config(tmp_path, {})
    (finding,) = check_key_dates(plain, schemas, "STRICT_TRANS_TABLES")
    assert (finding.level, finding.subject) == ("warning", "table shop.t")
    assert finding.remedy is not None
    assert "{columns: {day: text}}" in finding.remedy
    assert not list(check_key_dates(plain, schemas, "STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE"))
    assert not list(check_key_dates(config(tmp_path, {"columns": {"day": "text"}}), schemas, ""))


def test_generated_columns_that_are_kept_are_a_warning(tmp_path: Path) -> None:
    generated = column("g", "int").model_copy(update={"extra": "STORED GENERATED"})
    default = column("d", "int").model_copy(update={"extra": "DEFAULT_GENERATED"})
    schemas = Schemas(tables={"shop.t": TableSchema(columns=(column("id", "int"), generated, default), primary_key=())})
    (finding,) = check_generated(config(tmp_path, {}), schemas)
    assert (finding.level, finding.subject) == ("warning", "table shop.t")
    assert "columns g are kept" in finding.message and "{columns: {g: drop}}" in str(finding.remedy)
    for policy in ("drop", None):
        assert not list(check_generated(config(tmp_path, {"columns": {"G": policy}}), schemas))
