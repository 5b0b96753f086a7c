"""Fixtures of all tests of the pipeline with Spark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cdc.testing.servers import PASSWORD
from spark_jobs.runtime import session


@pytest.fixture(autouse=True)
def _password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOWPATH_TEST_PASSWORD", PASSWORD)


OWN_DRIVERS = (
    "test_apply_command", "test_apply_connect", "test_bad_files", "test_catalog", "test_object_store",
    "test_types_in_delta",
)  # fmt: skip
"""Modules that start drivers of their own. They run last, so that one warm session serves the others."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.stem in OWN_DRIVERS)


@pytest.fixture(scope="session", autouse=True)
def _spark() -> Iterator[None]:
    """Ends the warm session of this process after the tests."""
    yield
    session.discard()
