"""The columns that identify a row."""

from __future__ import annotations

import pytest

from cdc.errors import ConfigError
from spark_jobs.apply.rows import require_keys


def test_keys_are_configured_or_primary() -> None:
    assert require_keys("t", None, ("b", "a"), ("a", "b")) == ("b", "a")
    assert require_keys("t", ("A",), ("b",), ("a", "b")) == ("a",)
    with pytest.raises(ConfigError, match="names z, which the table does not have"):
        require_keys("t", ("z",), (), ("a",))
    with pytest.raises(ConfigError, match="no primary key"):
        require_keys("t", None, (), ("a",))
