"""The columns that identify a row."""

from __future__ import annotations

import pytest

from cdc.base.errors import ConfigError
from cdc.lake.apply.rows import require_keys


def test_keys_are_configured_or_primary() -> None:
    assert require_keys("t", None, ("b", "a"), ("a", "b")) == ("b", "a")
    assert require_keys("t", ("A",), ("b",), ("a", "b")) == ("a",)
    with pytest.raises(ConfigError, match="names z, which the table does not have"):
        require_keys("t", ("z",), (), ("a",))
    with pytest.raises(ConfigError, match="no primary key"):
        require_keys("t", None, (), ("a",))


def test_a_table_whose_key_comes_later_is_told_to_take_a_snapshot() -> None:
    """Dumps of phpMyAdmin are written in this way: CREATE TABLE without a key, rows, then ALTER TABLE … ADD PRIMARY
    KEY."""
    with pytest.raises(ConfigError, match=r"has no primary key.* if it got a primary key later, .*`cdc snapshot`"):
        require_keys("shop.orders", None, (), ("id", "v"))
