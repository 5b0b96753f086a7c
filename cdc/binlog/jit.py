"""The one way in which Towpath compiles a kernel: ``@njit``, or ``@inlined``, from here.

It is ``numba.njit(cache=True, nogil=True)`` with three things settled:

- **No reference counting** (``_nrt=False``): kernels are handed all memory and allocate none, so counting who
  holds an array is left out; it would be most of the work of the small functions. A kernel that allocates does not
  compile.

- **Where the compiled code is kept.** In ``__pycache__`` beside this file, or in the user's cache folder
  (``$XDG_CACHE_HOME``, ``~/.cache``) where the package's folder cannot be written, or in a private temporary folder
  where there is no such place either. ``$NUMBA_CACHE_DIR`` goes before all of them. The folder's name carries a
  digest of the kernels' sources: Numba alone looks only at the file of the function itself, and would go on using
  code compiled from an older version of a function that it calls.
- **Bounds checks.** ``NUMBA_BOUNDSCHECK=1`` compiles every kernel with them, into a folder of its own, since
  Numba's cache does not tell the two apart.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar, cast

import numba

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")

BOUNDS_CHECKED: bool = os.environ.get("NUMBA_BOUNDSCHECK", "") not in ("", "0")
"""Whether kernels are compiled with bounds checks."""

_PACKAGE = Path(__file__).parent.parent
_KERNEL_FOLDERS = ("binlog", "decode")


class Kernel(Protocol[P, R_co]):
    """A compiled function; ``py_func`` is the same one uncompiled."""

    py_func: Callable[..., Any]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


def _sources_digest() -> str:
    digest = hashlib.sha256(numba.__version__.encode())
    for folder in _KERNEL_FOLDERS:
        for path in sorted((_PACKAGE / folder).rglob("*.py")):
            text = path.read_bytes()
            if b"cdc.binlog.jit import" in text or path.name == "constants.py":
                digest.update(str(path.relative_to(_PACKAGE)).encode() + b"\0" + text)
    return digest.hexdigest()[:16]


def _usable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


@cache
def cache_folder() -> Path:
    """The folder of compiled kernels, made if need be."""
    name = f"kernels-{_sources_digest()}{'-checked' if BOUNDS_CHECKED else ''}"
    candidates = [Path(__file__).parent / "__pycache__" / name]
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        candidates.insert(0, Path(given) / name)
    user_cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    candidates.append(Path(user_cache) / "towpath" / name)
    for folder in candidates:
        if _usable(folder):
            return folder
    return Path(tempfile.mkdtemp(prefix="towpath-kernels-"))


def _compile(function: Callable[P, R], **options: bool) -> Kernel[P, R]:
    # Numba chooses the place when the decorator runs; the setting is put back, so that other libraries' caches
    # stay where they are.
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(cache_folder())
    try:
        decorate = numba.njit(
            cache=True, nogil=True, boundscheck=BOUNDS_CHECKED, error_model="numpy", _nrt=False, **options
        )
        return cast(Kernel[P, R], decorate(function))
    finally:
        numba.config.CACHE_DIR = before


def njit(function: Callable[P, R]) -> Kernel[P, R]:
    """Compile a function at its first call for each set of argument types, or load it from the cache."""
    return _compile(function)


def inlined(function: Callable[P, R]) -> Kernel[P, R]:
    """The same for a small function on a hot path: its code is put into each caller. Handing over an array costs
    seven words, and with several arrays a call costs more than what a small function does."""
    return _compile(function, forceinline=True)
