"""The catalog of the Delta tables in the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.base.errors import ConfigError
from cdc.config import DestinationConfig, load
from cdc.config.catalog import CatalogConfig
from cdc.lake.delta.catalog import is_same_place


def load_with(folder: Path, apply: str, spark: str = "{}") -> DestinationConfig:
    file = folder / "shop.yaml"
    file.write_text(
        "source: {url: 'mysql://cdc@db.example', password_env: PW, server_id: 7}\n"
        f"tables: {{include: ['shop\\..*']}}\nstore: {{path: s}}\nmeta: {{path: m}}\n"
        f"apply: {{target: ./lake, {apply}}}\nspark: {spark}\n",
        encoding="utf-8",
    )
    return load(file)


def test_names_of_tables(tmp_path: Path) -> None:
    plain = load_with(tmp_path, "catalog: {name: spark_catalog}").apply.catalog
    assert plain.name_of("shop.Orders") == ("shop", "orders")
    assert plain.name_of("shop.order-items.2024") == ("shop", "order_items_2024")
    catalog_config = CatalogConfig(
        name="lake", database="bronze", table="{db}_{table}", names={"shop.Orders": "Orders_Old"}
    )
    assert catalog_config.name_of("shop.orders") == ("bronze", "shop_orders")
    assert catalog_config.name_of("shop.Orders") == ("bronze", "orders_old")
    assert load_with(tmp_path, "catalog: null").apply.catalog.name is None


@pytest.mark.parametrize(
    ("apply", "spark", "message"),
    [
        ("catalog: {database: x}", "{}", "database has no effect without name"),
        ("catalog: {name: a-b}", "{}", "is not the name of a catalog"),
        ("catalog: {name: spark_catalog, table: '{tabel}'}", "{}", "is not a name; use letters, digits"),
        ("catalog: {name: spark_catalog, names: {shop.t: a-b}}", "{}", "'a-b' of shop.t is not a name"),
        (
            "catalog: {name: spark_catalog, names: {other.t: a}}",
            "{}",
            r"apply\.catalog\.names: 'other\.t' is not among",
        ),
        ("catalog: {name: unity}", "{}", r"Spark has no catalog unity\. Write its class as spark\.sql\.catalog\.unity"),
        ("catalog: {name: unity, managed: true}", "{}", "managed is possible in spark_catalog only"),
        (
            "catalog: {name: spark_catalog, managed: true}",
            "{remote: 'sc://host:15002'}",
            r"apply\.catalog\.managed and spark\.remote contradict each other",
        ),
        (
            "catalog: {name: spark_catalog}, small_batches: {engine: deltalake, max_rows: 9}",
            "{}",
            r"apply\.catalog and apply\.small_batches contradict each other",
        ),
    ],
)
def test_what_cannot_work_is_refused(apply: str, spark: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        load_with(tmp_path, apply, spark)


def test_places_are_compared_as_catalogs_show_them(tmp_path: Path) -> None:
    path = str(tmp_path / "sh%6Fp" / "t")
    assert is_same_place(f"file:{path}", path)
    assert is_same_place(f"file://{path}/", path)
    assert not is_same_place(f"file:{path}2", path)
    assert not is_same_place("", path)
    (tmp_path / "link").symlink_to(tmp_path)
    assert is_same_place(f"file:{tmp_path}/link/sh%6Fp/t", path)
    assert is_same_place("s3://bucket/lake/t/", "s3a://bucket/lake/t")
    assert not is_same_place("s3://bucket/lake/t", path)
    assert not is_same_place(f"file:{path}", "s3a://bucket/lake/t")
