"""Fixtures for captures of real servers."""

from __future__ import annotations

import pytest

from cdc.testing.servers import Server


@pytest.fixture(params=["mysql9", "mariadb11", pytest.param("mariadb10", marks=pytest.mark.long)])
def server(request: pytest.FixtureRequest) -> Server:
    """The shared server of each kind."""
    server: Server = request.getfixturevalue(request.param)
    return server
