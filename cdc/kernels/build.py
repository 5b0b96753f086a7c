"""Builds all kernels ahead, for each type of CPU of this machine's kind: ``python -m cdc.kernels.build [FOLDER]``.

It compiles the kernels of ``signatures.txt``, which has a line for each kernel and set of argument types with which
Towpath calls it, and links them into the shared objects that :mod:`cdc.kernels.prebuilt` loads. It needs Numba and a
linker (``ld``), and takes minutes.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from cdc.base.errors import UsageError
from cdc.kernels import levels
from cdc.kernels.cache import module_name, source_digest
from cdc.kernels.prebuilt import FOLDER, FORMAT, WRITEABLE, index_file, library_file, symbol_of

SIGNATURES = Path(__file__).with_name("signatures.txt")
_LINK = ("-shared", "--strip-all", "--hash-style=gnu", "-z", "now", "-z", "relro", "-z", "noexecstack")


def signatures() -> list[tuple[str, str, str]]:
    """Returns the module, the name and the argument types of each kernel that is built."""
    lines = SIGNATURES.read_text(encoding="utf-8").splitlines()
    return [(module, name, types) for module, name, types in (line.split(" ", 2) for line in lines)]


def arguments(types: str) -> tuple[Any, ...]:
    """Returns arguments of these types, which are the key of a kernel's entry (``cdc.kernels.jit``). Raises UsageError
    for types that it cannot make."""
    from cdc.kernels.jit import types_of

    kinds = iter(ast.literal_eval(types))
    args = []
    while (kind := next(kinds, None)) is not None:
        args.append(_argument(kind, kinds))
    if types_of(tuple(args)) != types:
        raise UsageError(f"no arguments have the types {types}", place=str(SIGNATURES))
    return tuple(args)


def _argument(kind: Any, kinds: Iterator[Any]) -> Any:
    if kind == "bool":
        return True
    if kind == "int64":
        return 1
    if kind == "uint64":
        return 1 << 63
    if kind == "float64":
        return 1.0
    if isinstance(kind, str):
        return np.dtype(kind).type(1)
    if kind[0] == "record":
        return np.zeros(1, dtype=_layout(kind[1]))[0]
    if len(kind) == 2:
        values = [_argument(next(kinds), kinds) for _ in range(kind[1])]
        module, name = kind[0].rsplit(".", 1)
        return tuple(values) if module == "builtins" else getattr(import_module(module), name)(*values)
    dtype, ndim, flags = kind
    if isinstance(dtype, tuple):
        dtype = _layout(dtype[1])
    array = np.zeros((2,) * ndim, dtype=dtype, order="C" if flags & 1 else "F")
    if not flags & 3:
        array = np.zeros((4,) * ndim, dtype=dtype)[(slice(None, None, 2),) * ndim]
    array.setflags(write=bool(flags & WRITEABLE))
    return array


def _layout(name: str) -> np.dtype[Any]:
    """The layout of a class of records (:class:`cdc.kernels.records.Record`), which is named with its module."""
    module, _, record = name.rpartition(".")
    layout: np.dtype[Any] = getattr(import_module(module), record).layout
    return layout


def compile_objects(level: levels.CpuLevel, folder: Path) -> dict[str, Any]:
    """Compiles all kernels for a level, each into an object file in this folder. Returns the index. Call this in a
    process of its own that has not imported a kernel."""
    levels.build_for(level)
    import llvmlite.binding as llvm

    from cdc.kernels.compiler import compile_kernel

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    triple = llvm.get_process_triple()
    machine = llvm.Target.from_triple(triple).create_target_machine(
        cpu=level.cpu, features=level.features, opt=3, reloc="pic", codemodel="default"
    )
    modules: dict[str, str] = {}
    kernels: dict[str, dict[str, str]] = {}
    for module, name, types in signatures():
        kernel = getattr(import_module(module), name)
        file = Path(kernel.py_func.__code__.co_filename)
        compiled = compile_kernel(kernel, arguments(types), machine, symbol_of(file, name, types))
        (folder / f"{compiled.symbol}.o").write_bytes(compiled.code)
        kernels.setdefault(f"{module_name(file)}.{name}", {})[types] = compiled.returns
        modules[module_name(file)] = source_digest(file)
    return {"format": FORMAT, "modules": modules, "kernels": kernels}


def build(level: levels.CpuLevel, target: Path) -> None:
    """Builds the shared object of a level and its index into ``target``. Raises UsageError without a linker."""
    linker = shutil.which("ld")
    if linker is None:
        raise UsageError("there is no linker (ld) on this machine", remedy="Install binutils.")
    with tempfile.TemporaryDirectory(prefix="towpath-kernels-") as name:
        folder = Path(name)
        command = [sys.executable, "-m", "cdc.kernels.build", "--objects", level.name, name]
        index = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
        objects = sorted(str(file) for file in folder.glob("*.o"))
        library = folder / "kernels.so"
        subprocess.run([linker, *_LINK, "-o", str(library), *objects], check=True)
        target.mkdir(parents=True, exist_ok=True)
        index_file(level, target).unlink(missing_ok=True)  # never an index beside another library
        shutil.copyfile(library, library_file(level, target).with_suffix(".new"))
        library_file(level, target).with_suffix(".new").replace(library_file(level, target))
        index_file(level, target).write_bytes(index)


def main(arguments: list[str]) -> int:
    """Builds the levels of this machine's kind."""
    if arguments[:1] == ["--objects"]:
        level = next(known_level for known_level in levels.LEVELS if known_level.name == arguments[1])
        json.dump(compile_objects(level, Path(arguments[2])), sys.stdout, indent=1, sort_keys=True)
        return 0
    target = Path(arguments[0]) if arguments else FOLDER
    for level in levels.LEVELS:
        if level.machine == os.uname().machine:
            began = time.monotonic()
            build(level, target)
            size = library_file(level, target).stat().st_size
            print(f"{library_file(level, target)}: {size:,} bytes in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
