"""The names of PyMySQL without a promise: PyMySQL has them, and one module alone uses them."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from pymysql.connections import Connection

from cdc.source import driver

ROOT = Path(__file__).parents[3]
_PRIVATE = re.compile(r"\b(?:conn|connection|_conn|_connection|raw|this)\.(_[a-z]\w+)")


@pytest.mark.parametrize("name", driver.PRIVATE_NAMES)
def test_pymysql_has_the_name(name: str) -> None:
    is_set = re.search(rf"\bself\.{name} = ", inspect.getsource(Connection)) is not None
    assert hasattr(Connection, name) or is_set, f"PyMySQL's Connection has no {name} any more: see cdc/source/driver.py"


def test_one_module_uses_private_names_of_pymysql() -> None:
    listed = set(driver.PRIVATE_NAMES)
    text = Path(driver.__file__).read_text()
    assert set(_PRIVATE.findall(text)) | set(re.findall(r"def (_[a-z]\w+)", text)) - {"__init__"} == listed
    for path in sorted((ROOT / "cdc").rglob("*.py")):
        if path != Path(driver.__file__) and "pymysql" in path.read_text():
            assert not listed & set(_PRIVATE.findall(path.read_text())), f"{path}: use cdc.source.driver"
