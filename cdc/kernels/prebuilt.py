"""Kernels that were built ahead: one shared object for each type of CPU, beside the package's modules.

A wheel has them, and a checkout after ``make kernels`` (:mod:`cdc.kernels.build`). They need neither Numba nor
llvmlite, nor a certain Python. Beside each shared object is an index: a digest of the sources of each kernel module, as
in the cache, and what each kernel returns. A module whose sources have changed since has no kernels here.
"""

from __future__ import annotations

import ast
import ctypes
import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cdc.kernels.cache import module_name, source_digest
from cdc.kernels.levels import CpuLevel, fitting

FOLDER = Path(__file__).parent / "prebuilt"
FORMAT = 1
WRITEABLE = 0x400
"""NumPy's flag of an array that can be written."""


@dataclass(frozen=True)
class BuiltKernel:
    """The machine code of one kernel for one set of argument types."""

    address: int
    returns: str
    """The type of what it returns, see :mod:`cdc.kernels.compiler`."""


def library_file(level: CpuLevel, folder: Path = FOLDER) -> Path:
    """The shared object of this level."""
    return folder / f"kernels-{level.name}.so"


def index_file(level: CpuLevel, folder: Path = FOLDER) -> Path:
    """The index of that shared object."""
    return folder / f"kernels-{level.name}.json"


def symbol_of(module: Path, name: str, types: str) -> str:
    """The name of a kernel's entry for these argument types."""
    digest = hashlib.sha256(types.encode()).hexdigest()[:16]
    return f"towpath_{module_name(module).replace('.', '_')}_{name}_{digest}"


def built_kernel(module: Path, name: str, types: str) -> BuiltKernel | None:
    """Returns the kernel of this module for these argument types, if it was built ahead for a CPU like this one."""
    index, library = _opened()
    if library is None or index["modules"].get(module_name(module)) != source_digest(module):
        return None
    of_kernel: dict[str, str] = index["kernels"].get(f"{module_name(module)}.{name}", {})
    if types in of_kernel:
        serving = types
    else:
        serving = next((built for built in of_kernel if serves(built, types)), "")
        if not serving:
            return None
    address = ctypes.cast(getattr(library, symbol_of(module, name, serving)), ctypes.c_void_p).value
    assert address is not None
    return BuiltKernel(address, of_kernel[serving])


def serves(built: str, types: str) -> bool:
    """Whether a kernel that was built for these argument types can be called with those: a kernel that takes a
    read-only array takes one that can be written, too."""
    own, called = ast.literal_eval(built), ast.literal_eval(types)
    return len(own) == len(called) and all(
        a == b or (_is_array(a) and _is_array(b) and a[:2] == b[:2] and a[2] == b[2] & ~WRITEABLE)
        for a, b in zip(own, called, strict=True)
    )


def _is_array(kind: Any) -> bool:
    return isinstance(kind, tuple) and len(kind) == 3 and isinstance(kind[2], int)


@cache
def _opened() -> tuple[dict[str, Any], ctypes.CDLL | None]:
    """The index and the library of the best level that this machine runs; an empty index and None if there is none."""
    for level in fitting():
        file = index_file(level)
        if file.is_file():
            index = json.loads(file.read_text(encoding="utf-8"))
            if index["format"] == FORMAT:
                return index, ctypes.CDLL(str(library_file(level)))
    return {}, None
