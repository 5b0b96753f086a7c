"""Fixtures for servers that capture real sources."""

from __future__ import annotations

import pytest

from tests.support.instances import OPERATOR, VIEWER


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets the variables that the configurations name."""
    monkeypatch.setenv("TOWPATH_OPERATOR", OPERATOR)
    monkeypatch.setenv("TOWPATH_VIEWER", VIEWER)
