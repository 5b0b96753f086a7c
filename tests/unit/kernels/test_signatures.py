"""The list of kernels that are built ahead has every kernel that Towpath's Python calls."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

import cdc
from cdc.kernels import build
from cdc.kernels.jit import types_of

PACKAGE = Path(cdc.__file__).parent
Kernel = tuple[str, str]
"""A module and a name."""


@cache
def trees() -> dict[str, ast.Module]:
    """The syntax of all modules that users run, by their names."""
    files = [file for file in PACKAGE.rglob("*.py") if not file.is_relative_to(PACKAGE / "testing")]
    return {
        ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts): ast.parse(file.read_text()) for file in files
    }


def _is_kernel(node: ast.AST) -> bool:
    names = {"njit", "inlined"}
    return isinstance(node, ast.FunctionDef) and any(
        isinstance(d, ast.Name) and d.id in names for d in node.decorator_list
    )


@cache
def kernels() -> set[Kernel]:
    """All kernels."""
    return {
        (module, node.name)
        for module, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and _is_kernel(node)
    }


class _Uses(ast.NodeVisitor):
    """Collects the kernels that a module's Python code names. ``kernel.py_func`` is Python, and no call of a kernel."""

    def __init__(self, module: str, tree: ast.Module) -> None:
        self.used: set[Kernel] = set()
        self._names = {name: (module, name) for owner, name in kernels() if owner == module}
        self._modules: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    if (node.module, alias.name) in kernels():
                        self._names[alias.asname or alias.name] = (node.module, alias.name)
                    self._modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        self.visit(tree)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if not _is_kernel(node):
            self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in self._names:
            self.used.add(self._names[node.id])

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node.attr == "py_func":
            return
        if isinstance(node.value, ast.Name) and (self._modules.get(node.value.id, ""), node.attr) in kernels():
            self.used.add((self._modules[node.value.id], node.attr))
        self.generic_visit(node)


def test_every_kernel_that_python_calls_is_built() -> None:
    used = set().union(*(_Uses(module, tree).used for module, tree in trees().items()))
    assert len(used) > 40
    listed = {(module, name) for module, name, _types in build.signatures()}
    assert used - listed == set(), "run the tests that call it with TOWPATH_KERNELS_WRITE=1"
    assert listed - kernels() == set(), "these kernels are gone: remove their lines"


def test_the_list_is_sorted() -> None:
    lines = build.SIGNATURES.read_text(encoding="utf-8").splitlines()
    assert lines == sorted(set(lines))


@pytest.mark.parametrize(
    ("module", "name", "types"), build.signatures(), ids=lambda value: str(value).partition("(")[0]
)
def test_arguments_of_these_types_can_be_made(module: str, name: str, types: str) -> None:
    assert types_of(build.arguments(types)) == types
