"""The wheel has the package with all its files, and nothing that could collide with a folder of a user; the source
distribution has what builds, tests and deploys it."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

from cdc import __version__
from cdc.cli.deploy import DeployKind, files

ROOT = Path(__file__).parents[2]
PACKAGES = ("cdc",)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (path,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path_factory.mktemp("wheel")), versions=["standard"])
    return Path(path)


@pytest.fixture
def names(wheel: Path) -> set[str]:
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


def test_cdc_deploy_prints_files_of_the_wheel(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        content.extractall(tmp_path / "site")
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); from cdc.cli.main import main;"
        "sys.exit(max(main(['deploy', 'print', kind, '--to', kind]) for kind in sys.argv[1:]))"
    )
    subprocess.run([sys.executable, "-I", "-c", script, *DeployKind], cwd=tmp_path, check=True, capture_output=True)
    for kind in DeployKind:
        folder = tmp_path / kind
        written = {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
        assert written == files(kind)


def test_the_source_distribution_builds_the_wheel_and_the_image(tmp_path: Path) -> None:
    (sdist,) = SdistBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with tarfile.open(sdist) as content:
        packed = {name.partition("/")[2] for name in content.getnames()}
    assert {
        "pyproject.toml", "LICENSE", "NOTICE", "README.md", "CHANGELOG.md", "Makefile", "mkdocs.yml", "conf/README.md",
        "dags/apply.py", "spark_jobs/apply.py", "examples/shop.yaml", "scripts/install.sh", "requirements/dev.txt",
        "requirements/uv.txt", "deploy/container/Containerfile", "docs/index.md", "tests/conftest.py",
    } <= packed  # fmt: skip
    assert not [name for name in packed if name.startswith((".venv", "site/", "dist/")) or name.endswith(".pyc")]


def test_what_is_deployed_names_the_version() -> None:
    chart = yaml.safe_load(next(text for name, text in files(DeployKind.helm).items() if name.endswith("Chart.yaml")))
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
    for kind in (DeployKind.container, DeployKind.compose, DeployKind.kubernetes, DeployKind.airflow_pod):
        for name, text in files(kind).items():
            assert f"towpath:{__version__}" in text.decode(), name
