"""What all tests of the pipeline with Spark have in common."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cdc.testing.servers import PASSWORD
from spark_jobs import session


@pytest.fixture(autouse=True)
def _password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOWPATH_TEST_PASSWORD", PASSWORD)


@pytest.fixture(scope="module", autouse=True)
def _spark() -> Iterator[None]:
    """One warm session serves the tests of a module."""
    yield
    session.discard()
