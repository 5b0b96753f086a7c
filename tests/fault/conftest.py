"""Fixtures for tests with killed processes."""

from __future__ import annotations

import pytest

from cdc.testing.servers import PASSWORD


@pytest.fixture(autouse=True)
def _password(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets the variable that the configurations name."""
    monkeypatch.setenv("TOWPATH_TEST_PASSWORD", PASSWORD)
