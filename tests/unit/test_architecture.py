"""The imports of the architecture, names of variables, and texts that the repository must not have."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("cdc",)

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
    """Returns the files that git keeps or would keep."""
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
    modules = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    assert modules, f"no modules under {folders}"
    return modules


@cache
def nodes(path: Path) -> list[ast.AST]:
    """Returns all nodes of a module."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def _imports(path: Path) -> set[str]:
    """Returns every module that a file imports, inside functions too."""
    names: set[str] = set()
    for node in nodes(path):
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


def _folder(module: str, modules: dict[str, Path]) -> str:
    """Returns the folder of a module. A file directly below ``cdc`` counts as a folder of its own."""
    package = module.rpartition(".")[0]
    if modules[module].name == "__init__.py" or package in PACKAGES:
        return module
    return package


def _folder_imports() -> dict[str, dict[str, list[str]]]:
    """Returns for each folder the folders that it imports, each with the imports as ``file:line``; imports for types
    count too."""
    modules = {}
    for path in _modules(*PACKAGES):
        parts = path.relative_to(ROOT).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    arrows: dict[str, dict[str, list[str]]] = {_folder(module, modules): {} for module in modules}
    for module, path in modules.items():
        for node in nodes(path):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                names = [name if name in modules else node.module for name in names]
            else:
                continue
            for name in names:
                if name in modules and _folder(name, modules) != _folder(module, modules):
                    imports = arrows[_folder(module, modules)].setdefault(_folder(name, modules), [])
                    imports.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    return arrows


def _reachable(start: str, arrows: dict[str, dict[str, list[str]]]) -> set[str]:
    reachable: set[str] = set()
    left = [start]
    while left:
        for name in arrows[left.pop()]:
            if name not in reachable:
                reachable.add(name)
                left.append(name)
    return reachable


def test_no_circle_of_folders() -> None:
    arrows = _folder_imports()
    circles = {name for name in arrows if name in _reachable(name, arrows)}
    listed = [
        f"{name} imports {other}: {', '.join(imports[:5])}"
        for name in sorted(circles)
        for other, imports in sorted(arrows[name].items())
        if other in circles and name in _reachable(other, arrows)
    ]
    assert not listed, "folders import each other in a circle:\n" + "\n".join(listed)


MANY_PARAMETERS: dict[str, str] = {
    "cdc/cli/decode.py::decode": "each parameter is an option of the command",
    "cdc/cli/replay.py::replay": "each parameter is an option of the command",
    "cdc/cli/tail.py::tail": "each parameter is an option of the command",
    "cdc/cli/verify.py::verify": "each parameter is an option of the command",
}
"""Functions that may have more than eight parameters, each with its reason."""


def test_no_function_has_more_than_eight_parameters() -> None:
    """Pass values that travel together as one frozen object. Kernels are exempt: Numba passes arrays one by one."""
    wide_functions = set()
    for path in _modules(*PACKAGES):
        text = path.read_text(encoding="utf-8")
        if "kernels" in str(path.relative_to(ROOT)) or "from cdc.kernels.jit import" in text:
            continue
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                if sum(argument.arg not in ("self", "cls") for argument in given) > 8:
                    wide_functions.add(f"{path.relative_to(ROOT)}::{node.name}")
    assert wide_functions - MANY_PARAMETERS.keys() == set(), "pass what travels together as one object"
    assert MANY_PARAMETERS.keys() - wide_functions == set(), "listed and no longer there"


EMPTY_NAMES = {"found", "one", "known", "there", "of", "by"}
_BOUND = re.compile(rf"\b(?:{'|'.join(sorted(EMPTY_NAMES))})\b *(?:[,:=)\]]|in\b)")
"""Matches each place that binds such a name, and much else."""


def _bound_names(path: Path) -> Iterator[tuple[str, int]]:
    """Yields each variable and parameter of a module with its line. Fields of classes may be keys of a document."""
    fields = {
        field.target
        for node in nodes(path)
        if isinstance(node, ast.ClassDef)
        for field in node.body
        if isinstance(field, ast.AnnAssign)
    }
    for node in nodes(path):
        if isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node not in fields:
            yield node.id, node.lineno


def test_variables_are_named_for_their_value() -> None:
    """A manifest is ``manifest``, a list of rows is ``rows``."""
    listed = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in _modules(*PACKAGES, "spark_jobs", "dags", "examples", "tests", "benchmarks")
        if _BOUND.search(path.read_text(encoding="utf-8"))  # to parse them all would take seconds
        for name, line in _bound_names(path)
        if name in EMPTY_NAMES
    ]
    assert not listed, "name these variables for their value:\n" + "\n".join(listed)


def test_dags_import_only_cdc_airflow() -> None:
    """DAG files are configuration: their code is in the installed package, where it is tested and versioned."""
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
        "from cdc.cli.main import main\n"
        "sys.exit(main(['--help']))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "capture" in done.stdout


def test_no_file_names_a_registry() -> None:
    """The registry of packages is a setting of the machine."""
    for name, text in _texts():
        for host in REGISTRIES:
            assert host not in text, f"{name} names {host}"


def test_no_file_names_a_place_of_one_machine() -> None:
    for name, text in _texts():
        places = [text[match.start() : match.start() + 40] for match in MACHINE_PATHS.finditer(text)]
        assert not places, f"{name} names {places}"


def test_locks_carry_hashes() -> None:
    for path in sorted((ROOT / "requirements").glob("*.txt")):
        text = path.read_text(encoding="utf-8")
        for requirement in re.findall(r"^[A-Za-z0-9].*(?:\n    .*)*", text, re.MULTILINE):
            assert "--hash=sha256:" in requirement, f"{path.name}: {requirement.splitlines()[0]} has no hash"
