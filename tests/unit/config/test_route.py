"""``tables.route``: the Delta tables that several source tables fill."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from cdc.base.errors import ConfigError
from cdc.config import DestinationConfig, parse
from tests.support.configurations import FILE, document

ROUTE = {r"shop_\d+\.(orders|items)_\d+": r"shop.\1", r"crm_\d+\.users": "crm.users"}
INCLUDE = [r"shop_\d+\..*", r"crm_\d+\..*"]


def _config(**changes: Any) -> DestinationConfig:
    return parse(document(**{"tables__include": INCLUDE, "tables__route": ROUTE, **changes}), FILE)


def test_source_tables_get_the_name_of_their_delta_table() -> None:
    config = _config()
    names = [config.tables.lake_name(f"shop_{i:02}.{kind}_{i}") for i in range(3) for kind in ("orders", "items")]
    assert names == ["shop.orders", "shop.items"] * 3
    assert config.tables.lake_name("crm_1.users") == "crm.users"
    assert config.tables.lake_name("shop_00.others") == "shop_00.others"
    assert config.table_path("shop_00.items_7") == "/srv/towpath/lake/shop/items"
    assert config.table_path("shop_00.others") == "/srv/towpath/lake/shop_00/others"
    assert pickle.loads(pickle.dumps(config)).tables.lake_name("crm_1.users") == "crm.users"
    lower = _config(tables__lower_case_table_names=1, tables__route={r"SHOP_\d+\.(Orders)_\d+": r"shop.\1"})
    assert lower.tables.lake_name("shop_1.orders_2") == "shop.orders"


def test_settings_of_a_routed_table_are_those_of_its_delta_table() -> None:
    config = _config(tables__overrides={"shop.orders": {"mode": "append", "schema_changes": "additive"}})
    routed, other = config.table_apply("shop_00.orders_1"), config.table_apply("shop_00.others")
    assert (routed.mode, routed.shared, routed.schema_changes) == ("append", True, "additive")
    assert (other.mode, other.shared, other.schema_changes) == ("upsert", False, "evolve")
    assert config.table_apply("shop_00.items_1").mode == "upsert"
    assert config.tables.override("shop_00.others") is None


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"tables__route": {"shop(": "shop.orders"}}, "'shop(' is not a regular expression of RE2"),
        ({"tables__route": {r"shop_1\..*,crm\..*": "shop.x"}}, "has a comma, which does not separate expressions here"),
        ({"tables__route": {r"shop_\d+\.x": r"shop.\1"}}, r"names group 1 of"),
        ({"tables__route": {r"shop_\d+\.x": "orders"}}, "'orders' is not the name of a table; write it as db.table"),
        (
            {"tables__route": {r"shop_\d+\.x": "shop_1.x"}},
            "is also the name of a table that include and exclude choose",
        ),
        (
            {"tables__route": {r"shop_\d+\.x": "Shop.x"}, "tables__lower_case_table_names": 1},
            "route: 'Shop.x' is 'shop.x' with lower_case_table_names 1",
        ),
        (
            {"tables__overrides": {"shop_00.orders_1": {"mode": "append"}}},
            "'shop_00.orders_1' is routed; write its settings under 'shop.orders'",
        ),
        ({"tables__overrides": {"crm.nobody": {}}}, "'crm.nobody' is not among the tables"),
        ({"apply__shared": True, "apply__schema_changes": "additive"}, "tables.route and apply.shared contradict"),
        (
            {"apply__small_batches": {"engine": "deltalake", "max_rows": 9}},
            "tables.route and apply.small_batches contradict each other",
        ),
        (
            {
                "apply__catalog": {"name": "spark_catalog", "managed": True},
                "spark": {"conf": {"spark.sql.catalogImplementation": "hive"}},
            },
            "tables.route and apply.catalog.managed contradict each other",
        ),
        ({"apply__schema_changes": "ignore"}, "tables.route and apply.schema_changes: ignore contradict each other"),
        ({"apply__constraints": True}, "tables.route and apply.constraints contradict each other"),
        (
            {"tables__overrides": {"crm.users": {"schema_changes": "evolve"}}},
            "tables.route and tables.overrides.crm.users.schema_changes: evolve contradict each other",
        ),
        (
            {"tables__overrides": {"crm.users": {"comments": True}}},
            "tables.route and tables.overrides.crm.users.comments contradict each other",
        ),
    ],
)
def test_what_is_refused_at_load(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _config(**changes)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("route", "text"),
    [
        ({**ROUTE, r"shop_.*\.orders_.*": "shop.all"}, "both match the table shop_1.orders_2"),
        ({r"(shop_\d+)\.(\w+)_\d+": r"\1.\2"}, "which is also the name of a table that include and exclude choose"),
        ({r"shop_\d+\.(x?)orders_\d+": r"shop.\1"}, "to 'shop.', which is not the name of a table"),
    ],
)
def test_what_is_refused_when_a_table_is_met(route: dict[str, str], text: str) -> None:
    config = _config(tables__route=route)
    assert config.tables.lake_name("crm_7.others") == "crm_7.others"
    for look in (config.tables.lake_name, config.table_apply, config.table_path):
        with pytest.raises(ConfigError) as caught:
            look("shop_1.orders_2")
        assert text in str(caught.value)
