"""Whether each kernel that Towpath calls in a test is among those that are built ahead (``cdc/kernels/signatures.txt``).

A kernel that is not is compiled on the machines of users, and pytest's summary warns of it. ``TOWPATH_KERNELS_WRITE=1``
adds what a test run calls to the file; lines of kernels that are no longer called are removed by hand, or with the file.
"""

from __future__ import annotations

import fcntl
import os
import sys
import warnings
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import cdc
from cdc.kernels import jit
from cdc.kernels.build import SIGNATURES
from cdc.kernels.prebuilt import serves

_PACKAGE = Path(cdc.__file__).parent
_WRITES = bool(os.environ.get("TOWPATH_KERNELS_WRITE"))
_load = jit.Kernel._load
_make = jit.Kernel.__init__
_codes: set[CodeType] = set()
"""The code of all kernels."""


class KernelWarning(UserWarning):
    """A kernel is compiled that should be built ahead."""


@cache
def _lines() -> set[str]:
    return set(SIGNATURES.read_text(encoding="utf-8").splitlines())


def _is_built(line: str) -> bool:
    """Whether a kernel of the file can be called with these argument types."""
    *kernel, types = line.split(" ", 2)
    return line in _lines() or any(
        serves(built, types) for *own, built in (each.split(" ", 2) for each in _lines()) if own == kernel
    )


def _calls_as_product(frame: FrameType) -> bool:
    """Whether this frame is one of Towpath that runs as in production: neither a test nor a kernel that a test runs
    uncompiled."""
    path = Path(frame.f_code.co_filename)
    inside = path.is_relative_to(_PACKAGE) and not path.is_relative_to(_PACKAGE / "testing")
    return inside and frame.f_code not in _codes


def _checked_load(self: Any, key: Any, args: tuple[Any, ...], words: int) -> Any:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == jit.__file__:
        frame = frame.f_back
    line = f"{self.__module__} {self.__name__} {key!r}"
    if not self.checked and frame is not None and _calls_as_product(frame) and not _is_built(line):
        if not _WRITES:
            warnings.warn(f"not built ahead: {line}. TOWPATH_KERNELS_WRITE=1 adds it", KernelWarning, stacklevel=2)
            return _load(self, key, args, words)
        with SIGNATURES.open("r+", encoding="utf-8") as file:  # other processes write, too
            fcntl.flock(file, fcntl.LOCK_EX)
            lines = {*file.read().splitlines(), line}
            file.seek(0)
            file.write("".join(f"{each}\n" for each in sorted(lines)))
        _lines.cache_clear()
    return _load(self, key, args, words)


def _noted(self: Any, function: Any, *, inline: bool) -> None:
    _codes.add(function.__code__)
    _make(self, function, inline=inline)


def check_signatures() -> None:
    """Has every kernel that is loaded from now on in this process looked up in the file."""
    for module in [module for name, module in sys.modules.items() if name.startswith("cdc.")]:
        _codes.update(kernel.py_func.__code__ for kernel in vars(module).values() if isinstance(kernel, jit.Kernel))
    jit.Kernel.__init__ = _noted  # type: ignore[method-assign]
    jit.Kernel._load = _checked_load  # type: ignore[method-assign]
