"""The lineage of what tasks write, as Airflow's OpenLineage provider asks for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from cdc.airflow import TowpathMaintainOperator, TowpathReplayOperator, lineage
from cdc.airflow.lineage import ChangedTable
from cdc.binlog.sql.schemas import ColumnSchema, Schemas, TableSchema
from cdc.config import DestinationConfig, load

pytest.importorskip("airflow.providers.openlineage", reason="towpath[openlineage]")

COLUMNS = "columns: {name: {rename: title}, mail: hash, card: {mask: 4}, note: 'null', gone: drop}"


@pytest.fixture
def config(write_conf: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> DestinationConfig:
    file = write_conf() / "shop.yaml"
    text = file.read_text().replace(
        "{target: ./lake}", f"{{target: ./lake, hash_key_env: TOWPATH_TEST_KEY, {COLUMNS}}}"
    )
    file.write_text(text)
    names = ("id", "name", "mail", "card", "note", "gone")
    text_column = ColumnSchema(
        name="", column_type="varchar(20)", data_type="varchar", nullable=True, default=None, extra="",
        charset="utf8mb4", collation="utf8mb4_bin",
    )  # fmt: skip
    columns = tuple(text_column.model_copy(update={"name": name}) for name in names)
    stored = Schemas(tables={"shop.orders": TableSchema(columns=columns, primary_key=("id",))})
    monkeypatch.setattr(lineage, "open_store", lambda config: SimpleNamespace(newest_schemas=lambda: (1, stored)))
    row = {"id": ["1"], "title": ["a"], "mail": ["0a"], "card": ["*1"], "note": pa.array([None], "string")}
    write_deltalake(tmp_path / "lake" / "shop" / "orders", pa.table(row))
    return load(file)


def sources(output: Any) -> dict[str, tuple[str, str, bool]]:
    """For each column of the lake: the source's column, what happens to its values, and whether it hides them."""
    by_column = {}
    for name, field in output.facets["columnLineage"].fields.items():
        (source,) = field.inputFields
        (change,) = source.transformations
        assert (source.namespace, source.name) == ("mysql://127.0.0.1:1", "shop.orders")
        by_column[name] = (source.field, change.description or change.subtype, change.masking)
    return by_column


def test_columns_come_from_the_source_through_the_policies(config: DestinationConfig) -> None:
    told = lineage.written(config, [ChangedTable("shop.orders", 7, 0)])
    (source,), (lake,) = told.inputs, told.outputs
    assert [field.name for field in source.facets["schema"].fields] == ["id", "name", "mail", "card", "note", "gone"]
    assert {field.name: field.type for field in lake.facets["schema"].fields} == dict.fromkeys(
        ("id", "title", "mail", "card", "note"), "string"
    )
    assert sources(lake) == {
        "id": ("id", "IDENTITY", False),
        "title": ("name", "IDENTITY", False),
        "mail": ("mail", "hash", True),
        "card": ("card", "mask: 4", True),
    }
    assert lake.outputFacets["outputStatistics"].rowCount == 7
    assert lake.facets["version"].datasetVersion == "0"


def test_a_table_elsewhere_and_one_that_is_not_there(config: DestinationConfig, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "aside", pa.table({"id": ["1"]}))
    told = lineage.written(
        config, [ChangedTable("shop.orders", 1, path=str(tmp_path / "aside")), ChangedTable("shop.other", 0)]
    )
    aside, other = told.outputs
    assert (aside.namespace, aside.name) == ("file", str(tmp_path / "aside"))
    assert sources(aside).keys() == {"id"}
    assert other.facets.keys() == {"storage"}


def test_maintenance_and_publication(config: DestinationConfig) -> None:
    told = lineage.maintained(config, ["shop.orders"])
    (read,), (lake,) = told.inputs, told.outputs
    assert (read.name, read.facets["version"].datasetVersion) == (lake.name, "0")
    assert lake.outputFacets == {}
    (read,) = lineage.published(config, [ChangedTable("shop.orders", None, 0)]).inputs
    assert read.name.endswith("/lake/shop/orders")


def test_a_task_that_has_written_nothing_tells_nothing(config: DestinationConfig) -> None:
    file = str(config.file)
    replay = TowpathReplayOperator(task_id="replay", conf_file=file, tables="shop.orders")
    assert replay.get_openlineage_facets_on_complete(None).outputs == []
    maintain = TowpathMaintainOperator(task_id="maintain", conf_file=file)
    assert maintain.get_openlineage_facets_on_complete(None).outputs == []
