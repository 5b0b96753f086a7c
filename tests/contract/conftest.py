"""Gives the tests of the contract suites their marker ``rule``."""

from __future__ import annotations

import pytest

from tests.contract.rules import RULES


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not isinstance(item, pytest.Function) or item.cls is None:
            continue
        if rules := RULES.get(item.cls.__name__, {}).get(item.originalname):
            item.add_marker(pytest.mark.rule(*rules))
