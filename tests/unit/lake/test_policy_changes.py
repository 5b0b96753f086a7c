"""Changes of policies on the values of a Delta table, with and without the help of the source."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import types as t

from cdc.base.targets import GENERATION_PROPERTY, REBUILD_PROPERTY, SHARED_PROPERTY
from cdc.binlog.sql.schemas import ColumnSchema, TableSchema
from cdc.config import ApplyConfig, ColumnPolicy
from cdc.lake.delta.log import DeltaState
from cdc.lake.delta.tables import (
    COLUMNS_PROPERTY,
    MODE_PROPERTY,
    PolicyChange,
    Target,
    passing_labels_json,
    policy_changes,
    recorded_policies,
)
from cdc.lake.jobs.policy_changes import Label, Rewrite, hides, masked_sql, rewrite_of, why_not_here
from cdc.lake.rows.columns import TablePolicies, columns_of_schema

A, B = "hash with key aaaaaaaa", "hash with key bbbbbbbb"
KEY = b"key"


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("", Label("keep")),
        ("drop", Label("drop")),
        ("mask: 4", Label("mask", "4")),
        ("rename: a b", Label("rename", "a b")),
        (A, Label("hash", "aaaaaaaa")),
        ("as boolean", Label("keep", form="as boolean")),
        (f"{A} as microseconds", Label("hash", "aaaaaaaa", "as microseconds")),
        ("rename: doc as variant", Label("rename", "doc", "as variant")),
    ],
)
def test_labels_are_read(text: str, label: Label) -> None:
    assert Label.of(text) == label


@pytest.mark.parametrize(
    ("was", "now", "words"),
    [
        ("", "drop", None), ("", "null", None), ("", A, None), ("", "mask: 4", None), ("", "rename: b", None),
        ("rename: b", "", None), ("rename: b", A, None), (A, "drop", None), (A, "null", None), ("drop", "null", None),
        ("null", "drop", None), ("mask: 4", "mask: 2", None),
        ("mask: 2", "mask: 4", "only masked values of c"), ("mask: 2", A, "only masked values of c"),
        (A, "", "only hashes of c"), (A, B, "only hashes of c"), (A, "mask: 1", "only hashes of c"),
        ("drop", "", "no values of c"), ("null", A, "no values of c"), ("", "text", "in another form"),
        ("", "bytes", "in another form"), ("bytes", "", "in another form"), ("as variant", A, "in another form"),
        ("as boolean", f"{A} as boolean", None), ("", "as boolean", "in another form"), ("as variant", "drop", None),
    ],
)  # fmt: skip
def test_what_the_lake_tells(was: str, now: str, words: str | None) -> None:
    why = why_not_here(PolicyChange("c", was, now))
    assert (why is None) == (words is None)
    assert words is None or (why is not None and words in why)


def test_what_a_policy_hides() -> None:
    changes = [("", "drop"), ("mask: 4", A), (A, "drop"), ("drop", "null"), (A, ""), ("", "rename: b"), ("null", A)]
    assert [hides(PolicyChange("c", *change)) for change in changes] == [True, True, True, False, False, False, False]


def column(name: str, data_type: str = "varchar", column_type: str = "varchar(9)") -> ColumnSchema:
    return ColumnSchema(
        name=name, data_type=data_type, column_type=column_type, nullable=True, default=None, extra="",
        charset="utf8mb4", collation=None,
    )  # fmt: skip


SCHEMA = TableSchema(
    columns=(
        column("id", "int", "int"), column("a"), column("b"), column("c"), column("d", "decimal", "decimal(10,2)"),
        column("e"),
    ),
    primary_key=("id",),
)  # fmt: skip
LAKE = {
    "id": t.IntegerType(), "a": t.StringType(), "other": t.StringType(), "d": t.DecimalType(12, 2),
    "e": t.StringType(),
}  # fmt: skip


def target(policies: dict[str, ColumnPolicy], *, shared: bool = False) -> Target:
    apply = ApplyConfig.model_validate({"target": "/lake", "shared": shared})
    return Target("shop.t", "/lake/shop/t", apply, "shop", TablePolicies("shop.t", columns=policies, key=KEY))


def state(**properties: str) -> DeltaState:
    schema = t.StructType([t.StructField(name, kind) for name, kind in LAKE.items()])
    labels = {COLUMNS_PROPERTY: json.dumps({"b": "rename: other", "c": "drop"}), MODE_PROPERTY: "upsert"}
    return DeltaState("/lake/shop/t", 3, labels | properties, schema.json(), 7)


def policy(kind: Any, **more: Any) -> ColumnPolicy:
    return ColumnPolicy(kind=kind, **more)


def rewritten(place: Target) -> tuple[list[tuple[str, str, str | None]], Rewrite]:
    """Returns the columns with the SQL of their values, and the rewrite."""
    columns = columns_of_schema(SCHEMA, place.policies)
    changes = policy_changes(state(), place, columns, SCHEMA.column_names)
    rewrite = rewrite_of(place, state(), SCHEMA, changes, lambda source, _: lambda value: f"hash_{source}({value})")
    shown = []
    for c in rewrite.columns:
        old = None if c.was is None else c.was.name
        shown.append((c.name, c.type.simpleString(), c.value(old) if c.value is not None and old is not None else old))
    return shown, rewrite


def test_each_policy_is_computed_from_the_rows_in_the_lake() -> None:
    policies = {
        "id": policy("hash"), "a": policy("mask", last=2), "b": policy("null"), "c": policy("null"),
        "d": policy("rename", name="x"), "e": policy("drop"),
    }  # fmt: skip
    columns, rewrite = rewritten(target(policies))
    assert rewrite.reasons == ()
    assert columns == [
        ("id", "string", "hash_id(id)"),
        ("a", "string", masked_sql("a", 2)),
        ("b", "string", "CAST(NULL AS string)"),
        ("c", "string", None),  # it was dropped, and is null from now on
        ("x", "decimal(12,2)", "d"),
    ]


def test_what_has_to_come_from_elsewhere_is_said() -> None:
    same = {"b": policy("rename", name="other")}
    assert rewritten(target(same))[1].reasons == ("the lake has no values of c",)
    wider = rewritten(target({**same, "c": policy("drop"), "d": policy("hash")}))[1]
    assert wider.reasons == ("the lake has d as decimal(12,2), and the source as decimal(10,2)",)
    shared = rewritten(target({**same, "c": policy("drop"), "id": policy("hash")}, shared=True))[1]
    assert shared.reasons == ("the shared Delta table has id as int",)


def test_a_label_that_passes_counts_once_its_rows_are_there() -> None:
    properties = {SHARED_PROPERTY: "true", GENERATION_PROPERTY: "4"}
    before = state(**properties)
    text = passing_labels_json(before, {"a": "mask: 2", "b": "rename: other"}, ["a", "B", "c"], "r1")
    begun = DeltaState(
        before.path, 4, before.properties | {COLUMNS_PROPERTY: text, REBUILD_PROPERTY: "r1"}, before.schema_json, 0
    )
    assert recorded_policies(begun) == {"b": "rename: other", "c": "drop"}
    done = DeltaState(begun.path, 5, begun.properties, begun.schema_json, 9)
    assert recorded_policies(done) == {"a": "mask: 2", "b": "rename: other"}
