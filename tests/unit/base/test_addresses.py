"""Network addresses as users write them."""

from __future__ import annotations

import pytest

from cdc.base.addresses import Address, parse_address
from cdc.base.errors import ConfigError


def test_addresses() -> None:
    assert parse_address("db.example:4100") == ("db.example", 4100)
    assert parse_address("[::1]:4100") == ("::1", 4100)
    for text in ("4100", "host:", ":1", "host:0", "host:65536", "host:x"):
        with pytest.raises(ConfigError, match="host:port"):
            parse_address(text)


@pytest.mark.parametrize("text", ["db.example:4100", "[::1]:4100"])
def test_an_address_prints_as_it_is_written(text: str) -> None:
    assert str(parse_address(text)) == text
    assert str(Address("db", 1)) == "db:1"
