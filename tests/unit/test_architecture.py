"""The arrows of the architecture, and what must not stand in the repository."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("cdc", "spark_jobs")

# Put together here, so that this file does not hold what it looks for.
_DOT = "."
REGISTRIES = tuple(
    _DOT.join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("npmjs", "org"),
        ("npmjs", "com"),
        ("maven", "org"),
        ("deb", "debian", "org"),
        ("security", "debian", "org"),
        ("ftp", "debian", "org"),
    )
)
MACHINE_PATHS = re.compile(r"(?<![\w$}~*.-])/(?:work|root|home/\w+|tmp/(?:venv|scratch))/(?=\w)")


def _files() -> list[Path]:
    """What git keeps or would keep."""
    done = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    paths = [ROOT / name for name in done.stdout.decode().split("\0") if name]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def _texts() -> Iterator[tuple[str, str]]:
    for path in _files():
        content = path.read_bytes()
        if b"\0" not in content:
            yield str(path.relative_to(ROOT)), content.decode("utf-8")


def _modules(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    assert found, f"no modules under {folders}"
    return found


def _imports(path: Path) -> set[str]:
    """Every module that a file imports, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def _is_or_below(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def test_only_cdc_airflow_imports_airflow() -> None:
    """Towpath runs without Airflow, and changes of Airflow's interface touch one package."""
    for path in _modules(*PACKAGES):
        if not path.is_relative_to(ROOT / "cdc" / "airflow"):
            assert not any(_is_or_below(name, "airflow") for name in _imports(path)), f"{path} imports Airflow"


def test_dags_import_only_cdc_airflow() -> None:
    """DAG files are configuration: what they do stands in the installed package, where it is tested and versioned."""
    standard = sys.stdlib_module_names
    for path in _modules("dags"):
        for name in _imports(path):
            assert _is_or_below(name, "cdc.airflow") or name.split(".")[0] in standard, f"{path.name} imports {name}"


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_are_absolute_and_never_from_tests(package: str) -> None:
    for path in _modules(package):
        for name in _imports(path):
            top = name.split(".")[0]
            assert top not in {"tests", "benchmarks", "examples", "dags"}, f"{path} imports {name}"


def test_every_package_says_what_lives_in_it() -> None:
    for package in PACKAGES:
        for folder in sorted({path.parent for path in _modules(package)}):
            text = (folder / "__init__.py").read_text(encoding="utf-8")
            documentation = ast.get_docstring(ast.parse(text)) or ""
            assert len(documentation.splitlines()) >= 3, f"{folder.relative_to(ROOT)}/__init__.py says too little"


def test_the_core_loads_without_airflow_and_spark() -> None:
    """The command and everything it loads at its start, in a fresh interpreter that has neither."""
    program = (
        "import sys\n"
        "for name in ('airflow', 'pyspark', 'delta', 'deltalake', 'pandas', 'kazoo'):\n"
        "    sys.modules[name] = None\n"
        "from cdc.cli import main\n"
        "sys.exit(main(['--help']))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "capture" in done.stdout


def test_no_file_names_a_registry() -> None:
    """Where packages come from is a setting of the machine."""
    for name, text in _texts():
        for host in REGISTRIES:
            assert host not in text, f"{name} names {host}"


def test_no_file_names_a_place_of_one_machine() -> None:
    for name, text in _texts():
        found = [text[match.start() : match.start() + 40] for match in MACHINE_PATHS.finditer(text)]
        assert not found, f"{name} names {found}"


def test_locks_carry_hashes() -> None:
    for path in sorted((ROOT / "requirements").glob("*.txt")):
        text = path.read_text(encoding="utf-8")
        for requirement in re.findall(r"^[A-Za-z0-9].*(?:\n    .*)*", text, re.MULTILINE):
            assert "--hash=sha256:" in requirement, f"{path.name}: {requirement.splitlines()[0]} has no hash"
