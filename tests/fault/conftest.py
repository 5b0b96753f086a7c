"""What the tests here share."""

from __future__ import annotations

import pytest

from cdc.testing.servers import PASSWORD


@pytest.fixture(autouse=True)
def _password(monkeypatch: pytest.MonkeyPatch) -> None:
    """The configurations name this variable."""
    monkeypatch.setenv("TOWPATH_TEST_PASSWORD", PASSWORD)
