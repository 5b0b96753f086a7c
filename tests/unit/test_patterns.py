"""The names of tables in lower case."""

from __future__ import annotations

import pytest

from cdc.patterns import lower_name


@pytest.mark.parametrize(
    ("name", "lower"),
    [
        ("Shop.ORDERS", "shop.orders"),
        ("ÄÖÜ", "äöü"),
        ("İI", "ii"),  # one letter for one
        ("ΣΑΣ", "σας"[:2] + "σ"),  # no final form
        ("ẞß", "ẞß"),  # newer than the servers' letters
        ("ȠԀ", "ȠԀ"),
    ],
)
def test_a_name_is_in_lower_case_as_servers_write_it(name: str, lower: str) -> None:
    assert lower_name(name) == lower
