"""Fixtures of all tests of the pipeline with Spark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cdc.lake.runtime import session

COMPILED = ("test_apply", "test_apply_reduce")
"""Modules whose driver compiles queries. They run first, so that one warm session serves them."""
OWN_DRIVERS = (
    "test_apply_command",
    "test_apply_connect",
    "test_bad_files",
    "test_catalog",
    "test_object_store",
    "test_remove",
)
"""Modules that start drivers of their own. They run last, so that one warm session serves all others."""
OWN_DRIVER = ("test_many_tables_that_need_spark_share_one_driver",)
"""Such tests of other modules."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(
        key=lambda item: (item.path.stem in OWN_DRIVERS or item.name in OWN_DRIVER, item.path.stem not in COMPILED)
    )


@pytest.fixture(scope="session", autouse=True)
def _spark() -> Iterator[None]:
    """Ends the warm session of this process after the tests."""
    yield
    session.discard()
