"""What becomes of the columns of a Delta table that another tool has made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import types as t

from cdc.base.errors import CdcError
from cdc.binlog.sql.schemas import ColumnSchema, TableSchema
from cdc.lake.delta.log import DeltaState
from cdc.lake.delta.tables import target_of
from cdc.lake.jobs.adopt_columns import ColumnPlan, Tool, plan_columns
from tests.support.unit_batches import make_config


def column(name: str, column_type: str) -> ColumnSchema:
    data_type = column_type.partition("(")[0]
    charset = "utf8mb4" if data_type in ("varchar", "text") else None
    return ColumnSchema(
        name=name, data_type=data_type, column_type=column_type, nullable=True, default=None, extra="",
        charset=charset, collation=None,
    )  # fmt: skip


SCHEMA = TableSchema(
    columns=(
        column("id", "bigint"),
        column("name", "varchar(20)"),
        column("price", "decimal(10,2)"),
        column("day", "date"),
        column("at", "datetime(3)"),
        column("raw", "blob"),
    ),
    primary_key=("id",),
)
SAME = {
    "id": "long", "name": "string", "price": "decimal(10,2)", "day": "date", "at": "timestamp_ntz", "raw": "binary",
}  # fmt: skip


def plan(
    folder: Path, columns: dict[str, str], tool: Tool = "debezium", *, dropped: tuple[str, ...] = (), **options: Any
) -> ColumnPlan:
    config = make_config(folder)
    apply = config.apply.model_copy(update={"mode": "upsert", **options.pop("apply", {})})
    config = config.model_copy(update={"apply": apply})
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns.items()]
    schema_json = t.StructType.fromJson({"type": "struct", "fields": fields}).json()
    state = DeltaState("/lake/bat/o", 3, {}, schema_json, 0, **options)
    return plan_columns(target_of(config, "bat.o"), state, SCHEMA, tool, dropped, (1, 2))


def actions(planned: ColumnPlan) -> dict[str, str]:
    return {action.column: action.action.partition(":")[0] for action in planned.actions}


def test_a_table_that_fits_stays_as_it_is(tmp_path: Path) -> None:
    planned = plan(tmp_path, SAME)
    assert not planned.changes and not planned.actions


def test_wider_types_stay_and_narrower_ones_are_widened(tmp_path: Path) -> None:
    planned = plan(tmp_path, {**SAME, "price": "decimal(38,18)", "id": "integer"})
    assert actions(planned) == {"price": "kept", "id": "widened"}
    assert planned.changes and not planned.rewrites


def test_forms_of_debezium_are_converted(tmp_path: Path) -> None:
    forms = {**SAME, "price": "string", "day": "integer", "at": "long", "raw": "string"}
    planned = plan(tmp_path, {**forms, "__op": "string"})
    assert actions(planned) == {**dict.fromkeys(("price", "day", "at", "raw"), "converted"), "__op": "dropped"}
    values = {c.name: c.value("v") for c in planned.columns if c.value is not None}
    assert values["at"] == "CAST(timestamp_millis(v) AS timestamp_ntz)"
    assert values["day"] == "date_from_unix_date(CAST(v AS INT))"


def test_a_missing_column_is_added(tmp_path: Path) -> None:
    planned = plan(tmp_path, {name: kind for name, kind in SAME.items() if name != "raw"})
    assert actions(planned) == {"raw": "added"} and planned.changes and not planned.rewrites


def test_other_columns_stay_where_the_configuration_allows_them(tmp_path: Path) -> None:
    planned = plan(tmp_path, {**SAME, "Op": "string", "mine": "long"}, "dms", apply={"schema_changes": "additive"})
    assert {action.split(" ")[0] for action in actions(planned).values()} == {"kept"} and not planned.changes


def test_marked_deletes_stay_marked(tmp_path: Path) -> None:
    planned = plan(tmp_path, {**SAME, "__deleted": "string"}, apply={"mode": "soft_delete"})
    assert planned.mode_values["_deleted"] == (
        "CAST(coalesce(lower(CAST(`__deleted` AS STRING)) = 'true', false) AS boolean)"
    )
    assert planned.rewrites


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ({"price": "double"}, {}, "the column price is double in the Delta table and decimal(10,2)"),
        ({"day": "integer"}, {"tool": "dms"}, "the column day is int"),
        ({"strange": "long"}, {}, "neither the source nor debezium has the column strange"),
        ({"__START_AT": "long"}, {"tool": "lakeflow"}, "it keeps a history of its rows"),
        ({"day": "integer"}, {"partition_by": ("day",)}, "the table is partitioned by day"),
        ({"_seq": "string"}, {"apply": {"mode": "soft_delete"}}, "a column _seq of the type string"),
        ({}, {"dropped": ("none",)}, "--drop names none"),
    ],
)
def test_what_is_not_exact_is_refused(
    tmp_path: Path, columns: dict[str, str], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(CdcError) as raised:
        plan(tmp_path, {**SAME, **columns}, **options)
    assert words in str(raised.value) and raised.value.remedy
