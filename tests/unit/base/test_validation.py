"""The remedies for names that do not exist."""

from __future__ import annotations

import pytest

from cdc.base.validation import suggestion, there_is

KNOWN = ["crm.people", "shop.customers", "shop.orders"]


@pytest.mark.parametrize(
    ("table", "remedy"),
    [
        ("shop.order", "Did you mean shop.orders?"),
        ("shop.ORDERS", "Did you mean shop.orders?"),
        ("shp.orders", "Did you mean shop.orders?"),
        ("shop.people", "There is crm.people, shop.customers, shop.orders."),
        ("shop.t", "There is crm.people, shop.customers, shop.orders."),
    ],
)
def test_a_table_that_is_not_there(table: str, remedy: str) -> None:
    assert there_is(table, KNOWN) == remedy


def test_nothing_is_there() -> None:
    assert there_is("shop.orders", []) is None


def test_the_nearest_word() -> None:
    assert suggestion("apend", ["upsert", "soft_delete", "append"]) == "did you mean append?"
    assert suggestion("history", ["upsert", "append"]) == ""
