"""The foreign keys that apply can follow, by the settings and the definitions alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cdc.binlog.sql.schemas import ColumnSchema, ForeignKey, Schemas, TableSchema
from cdc.config import DestinationConfig
from cdc.config.loading import parse
from cdc.source.foreign_keys import IncomparableError, TextComparison, refusal


def config(overrides: str = "{}") -> DestinationConfig:
    text = f"""
source: {{url: 'mysql://u@localhost', password_env: X, server_id: 7, start: now}}
tables: {{include: ['s\\..*'], overrides: {overrides}}}
store: {{path: ./store}}
meta: {{path: ./meta}}
apply: {{target: ./lake, hash_key_env: HASH}}
"""
    return parse(text, Path("/tmp/conf/dest.yaml"))


def column(name: str, kind: str = "int", **more: Any) -> ColumnSchema:
    data_type = kind.partition("(")[0]
    given = {"nullable": True, "default": None, "extra": "", "charset": None, "collation": None, **more}
    return ColumnSchema(name=name, data_type=data_type, column_type=kind, **given)


KEY = ForeignKey(
    name="k", columns=("p",), parent="s.p", parent_columns=("id",), on_delete="CASCADE", on_update="RESTRICT"
)
PARENT = TableSchema(columns=(column("id"),), primary_key=("id",))
CHILD = TableSchema(columns=(column("id"), column("p")), primary_key=("id",))


def schemas(child: TableSchema = CHILD, parent: TableSchema = PARENT) -> Schemas:
    return Schemas(tables={"s.c": child, "s.p": parent})


def with_column(added: ColumnSchema) -> TableSchema:
    return TableSchema(columns=(column("id"), added), primary_key=("id",))


@pytest.mark.parametrize(
    ("overrides", "child", "update", "why"),
    [
        ("{}", CHILD, {}, None),
        ("{s.c: {columns: {p: {rename: q}}}}", CHILD, {}, None),
        ("{s.c: {columns: {id: hash}}, s.p: {mode: append}}", CHILD, {}, None),
        ("{s.c: {keys: [ID]}}", CHILD, {}, None),
        ("{s.c: {keys: [p]}}", CHILD, {}, "keys names other columns"),
        ("{}", TableSchema(columns=CHILD.columns, primary_key=()), {}, "no primary key"),
        ("{s.c: {columns: {id: drop}}}", CHILD, {}, "the column id of the primary key has other values"),
        ("{s.c: {columns: {p: drop}}}", CHILD, {}, "the column p is left out of the lake"),
        ("{s.c: {columns: {p: 'null'}}}", CHILD, {}, "the column p is left out of the lake"),
        ("{s.p: {columns: {id: hash}}}", CHILD, {}, "the referenced column id has the policy hash"),
        ("{}", CHILD, {"on_update": "SET DEFAULT"}, "SET DEFAULT is not followed"),
        ("{}", with_column(column("p", "float")), {}, "the column p has the type float"),
        ("{}", with_column(column("p", "date")), {}, "zero_dates: fail"),
        ("{s.c: {types: {'tinyint(1)': boolean}}}", with_column(column("p", "tinyint(1)")), {}, "has the type tinyint(1)"),
        ("{}", CHILD, {"parent": "s.gone"}, "is not known"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed(
    monkeypatch: pytest.MonkeyPatch, overrides: str, child: TableSchema, update: Mapping[str, str], why: str | None
) -> None:
    monkeypatch.setenv("HASH", "00" * 32)
    reason = refusal(config(overrides), schemas(child), "s.c", KEY.model_copy(update=update), updates=False)
    assert (reason is None) == (why is None), reason
    assert why is None or why in str(reason)


def test_an_update_of_a_table_with_generated_columns_is_not_followed() -> None:
    generated = column("g", extra="STORED GENERATED")
    child = TableSchema(columns=(*CHILD.columns, generated), primary_key=("id",))
    assert refusal(config(), schemas(child), "s.c", KEY, updates=False) is None
    assert "generated columns" in str(refusal(config(), schemas(child), "s.c", KEY, updates=True))


@pytest.mark.parametrize(
    ("collation", "other", "why"),
    [
        ("utf8mb4_bin", "utf8mb4_bin", None),
        ("utf8mb4_general_ci", "utf8mb4_general_ci", None),
        ("utf8mb4_general_ci", "utf8mb4_bin", "another collation"),
        (None, None, "another collation than the referenced column, or an unknown one"),
        ("utf8mb4_turkish_ci", "utf8mb4_turkish_ci", "has the collation utf8mb4_turkish_ci"),
    ],
)
def test_texts_need_a_collation_that_is_known(collation: str | None, other: str | None, why: str | None) -> None:
    child = with_column(column("p", "varchar(9)", collation=collation))
    parent = TableSchema(columns=(column("id", "varchar(9)", collation=other),), primary_key=("id",))
    reason = refusal(config(), schemas(child, parent), "s.c", KEY, updates=False)
    assert reason is None if why is None else why in str(reason)


def test_comparison() -> None:
    folded = TextComparison(pads=True, ignores_case=True)
    assert folded.apply("Ab  ") == "ab" and folded.apply(7) == 7
    assert TextComparison(pads=False, ignores_case=False).apply("Ab  ") == "Ab  "
    with pytest.raises(IncomparableError):
        folded.apply("é")
