"""The wheel has the package with all its files, and nothing that could collide with a folder of a user."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[2]
PACKAGES = ("cdc",)


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path_factory.mktemp("wheel")), versions=["standard"])
    with zipfile.ZipFile(wheel) as content:
        return set(content.namelist())


def test_only_the_packages_lie_at_the_top(names: set[str]) -> None:
    tops = {name.split("/")[0] for name in names}
    (metadata,) = tops - {*PACKAGES}
    assert metadata.startswith("towpath-") and metadata.endswith(".dist-info")


def test_every_file_of_the_packages_is_there(names: set[str]) -> None:
    wanted = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }
    assert {name for name in wanted if not name.endswith(".py")} >= {
        "cdc/py.typed",
        "cdc/lake/runtime/log4j2.properties",
    }
    assert wanted <= names, sorted(wanted - names)


def test_airflow_and_the_shell_find_it(names: set[str]) -> None:
    assert any(name.endswith("dist-info/entry_points.txt") for name in names)
