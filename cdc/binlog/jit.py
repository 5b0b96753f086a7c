"""Compiles kernels: ``@njit`` and ``@inlined`` from here are the only decorators that Towpath uses.

They are ``numba.njit(cache=True, nogil=True)`` with three additions:

- **No reference counting** (``_nrt=False``). Kernels are handed all their memory and allocate none, so counting the
  references to arrays would be most of the work of small functions. A kernel that allocates does not compile.

- **A cache that notices changed callees.** Numba's cache looks only at the file of the compiled function, and would
  keep code compiled from an older version of a function that it calls. Here the compiled code of each kernel module
  lies in a folder of its own, whose name carries a digest of the module's source, of the sources of all modules of
  ours that it imports, directly or indirectly, and of the versions of Numba, NumPy and llvmlite. A changed module
  compiles again together with the modules that import it, and no other. So kernel modules should import only other
  kernel modules and constants.

  The folders are in ``kernels`` below ``__pycache__`` beside this file, or in the user's cache folder
  (``$XDG_CACHE_HOME``, ``~/.cache``) if the package's folder cannot be written, or in a private temporary folder if
  neither can. ``$NUMBA_CACHE_DIR`` takes precedence over all of them.

- **Bounds checks.** ``NUMBA_BOUNDSCHECK=1`` compiles every kernel with bounds checks, into folders of their own,
  because Numba's cache does not distinguish the two.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar, cast

import llvmlite
import numba
import numpy as np

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")

BOUNDS_CHECKED: bool = os.environ.get("NUMBA_BOUNDSCHECK", "") not in ("", "0")
"""Whether kernels are compiled with bounds checks."""

_PACKAGE = Path(__file__).parent.parent
_DEFINITION = re.compile(rb"^(?:@|def |class )", re.MULTILINE)
_VERSIONS = f"{numba.__version__} {np.__version__} {llvmlite.__version__}"


class Kernel(Protocol[P, R_co]):
    """A compiled function; ``py_func`` is the uncompiled one."""

    py_func: Callable[..., Any]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


@cache
def sources_of(module: Path) -> frozenset[Path]:
    """The file of a module, and the files of all modules of this package that it imports, directly or indirectly."""
    found = {module}
    waiting = [module]
    while waiting:
        for path in _imports(waiting.pop()) - found:
            found.add(path)
            waiting.append(path)
    return frozenset(found)


@cache
def _imports(module: Path) -> frozenset[Path]:
    """The files of the modules of this package that a module's import statements name."""
    found = set()
    source = module.read_bytes()
    try:  # imports stand before the first definition, and parsing the rest would take most of the time
        tree = ast.parse(_DEFINITION.split(source, maxsplit=1)[0])
    except SyntaxError:
        tree = ast.parse(source)
    for name in _imported_names(tree):
        if name.startswith(f"{_PACKAGE.name}."):
            path = _PACKAGE.parent / f"{name.replace('.', '/')}.py"
            if path.is_file():
                found.add(path)
    return frozenset(found)


def _imported_names(tree: ast.Module) -> Iterator[str]:
    """Every dotted name that may be a module; ``from a import b`` gives ``a`` and ``a.b``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def _digest(module: Path) -> str:
    digest = hashlib.sha256(_VERSIONS.encode())
    for path in sorted(sources_of(module)):
        name = path.relative_to(_PACKAGE) if path.is_relative_to(_PACKAGE) else path.name
        digest.update(f"\0{name}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _usable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


@cache
def cache_root() -> Path:
    """The folder that holds the folders of all kernel modules; it is made if it does not exist."""
    candidates = [Path(__file__).parent / "__pycache__" / "kernels"]
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        candidates.insert(0, Path(given) / "kernels")
    user_cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    candidates.append(Path(user_cache) / "towpath" / "kernels")
    for folder in candidates:
        if _usable(folder):
            return folder
    return Path(tempfile.mkdtemp(prefix="towpath-kernels-"))


def cache_folder(module: Path) -> Path:
    """The folder of a module's compiled code, such as ``decode.kernels.fill-0123456789abcdef``. Numba makes it."""
    inside = module.is_relative_to(_PACKAGE)
    name = ".".join(module.relative_to(_PACKAGE).with_suffix("").parts) if inside else module.stem
    return cache_root() / f"{name}-{_digest(module)}{'-checked' if BOUNDS_CHECKED else ''}"


def _compile(function: Callable[P, R], **options: bool) -> Kernel[P, R]:
    # Numba chooses the folder when the decorator runs. The setting is put back, so that the caches of other libraries
    # stay where they are.
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(cache_folder(Path(function.__code__.co_filename)))
    try:
        decorate = numba.njit(
            cache=True, nogil=True, boundscheck=BOUNDS_CHECKED, error_model="numpy", _nrt=False, **options
        )
        return cast(Kernel[P, R], decorate(function))
    finally:
        numba.config.CACHE_DIR = before


def njit(function: Callable[P, R]) -> Kernel[P, R]:
    """Compiles a function at its first call with each set of argument types, or loads it from the cache."""
    return _compile(function)


def inlined(function: Callable[P, R]) -> Kernel[P, R]:
    """Compiles a small function of a hot path into each of its callers. Passing an array costs seven words, so with
    several arrays a call costs more than the work of a small function."""
    return _compile(function, forceinline=True)
