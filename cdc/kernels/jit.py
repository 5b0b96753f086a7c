"""Compiles kernels: ``@njit`` and ``@inlined`` from here are the only decorators that Towpath uses.

They are ``numba.njit(nogil=True)`` with these differences:

- **Numba is not loaded to run a kernel.** At the first call with each set of argument types, the kernel is taken from
  those that were built ahead (:mod:`cdc.kernels.prebuilt`), or its machine code is loaded from the cache
  (:mod:`cdc.kernels.cache`) by llvmlite. It is called through ctypes. Only a kernel that is in neither is compiled
  (:mod:`cdc.kernels.compiler`). Importing Numba and its caches would take most of the time that a command needs to
  start.

- **No reference counting** (``_nrt=False``). Kernels are handed all their memory and allocate none, so counting the
  references to arrays would be most of the work of small functions. A kernel that allocates does not compile.

- **A cache that notices changed callees.** Numba's cache looks only at the file of the compiled function, and would
  keep code compiled from an older version of a function that it calls.

- **Bounds checks.** ``NUMBA_BOUNDSCHECK=1`` compiles every kernel with bounds checks, into files of their own.

Kernels take arrays, records, integers, booleans, floats, and named tuples of them; they return None, a number, or a
tuple of numbers. An exception in a kernel arrives as IndexError, because only an access outside of an array raises one.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import threading
from collections.abc import Callable
from functools import cache, partial, update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import numpy as np

from cdc.kernels.cache import CompiledKernel, kernel_file, read_kernel, sole_compiler, write_kernel
from cdc.kernels.prebuilt import WRITEABLE, built_kernel, symbol_of

if TYPE_CHECKING:
    from cdc.base.errors import CdcError

P = ParamSpec("P")
R = TypeVar("R")

BOUNDS_CHECKED: bool = os.environ.get("NUMBA_BOUNDSCHECK", "") not in ("", "0")
"""Whether kernels are compiled with bounds checks."""

NUMBA = "numba>=0.62,<0.69"
"""The versions of Numba that compile kernels, as was tried."""

_C, _F, _ALIGNED = 1, 2, 0x100  # NumPy's flags of arrays
_FLAGS = _C | _F | _ALIGNED | WRITEABLE
_MASK = (1 << 64) - 1
_WORDS = {np.int64: "int64", np.uint64: "uint64"}  # as Python's integers
_ENTRY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_ROOM = ctypes.c_uint64 * 8

_lock = threading.RLock()
_engines: list[Any] = []  # they own the machine code


class Kernel(Generic[P, R]):
    """A compiled function; ``py_func`` is the uncompiled one."""

    def __init__(self, function: Callable[P, R], *, inline: bool) -> None:
        self.py_func: Callable[..., Any] = function
        self.inline = inline
        self.checked = BOUNDS_CHECKED
        self.dispatcher: Any = None
        """Numba's function, once it has been needed."""
        self._entries: dict[Any, _Entry] = {}
        self.__name__ = function.__name__
        update_wrapper(self, function)

    @property
    def signatures(self) -> list[Any]:
        """The argument types for which this process has loaded or compiled the kernel."""
        return list(self._entries)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if kwargs:
            raise TypeError(f"{self.__name__}() takes positional arguments only")
        entry, words = self._entry(args)
        result: R = entry.call(words)
        return result

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Callable[[], R]:
        """Returns a call with these arguments. Repeating it is twenty times as fast as passing arrays each time."""
        if kwargs:
            raise TypeError(f"{self.__name__}() takes positional arguments only")
        entry, words = self._entry(args)
        return entry.bind(words, args)

    def _entry(self, args: tuple[Any, ...]) -> tuple[_Entry, list[int]]:
        kinds: list[Any] = []
        words: list[int] = []
        for arg in args:
            _flatten(arg, kinds, words)
        key = tuple(kinds)
        entry = self._entries.get(key)
        return self._load(key, args, len(words)) if entry is None else entry, words

    def _load(self, key: Any, args: tuple[Any, ...], words: int) -> _Entry:
        with _lock:
            if key in self._entries:
                return self._entries[key]
            module, types = Path(self.py_func.__code__.co_filename), repr(key)
            built = None if self.checked else built_kernel(module, self.__name__, types)
            if built is not None:
                entry = _Entry(built.address, built.returns, words)
            else:
                try:
                    kernel = self._cached(module, types, args)
                except ImportError as error:
                    raise cannot_compile(self.__name__, str(error)) from error
                entry = _Entry(_linked(kernel), kernel.returns, words)
            self._entries[key] = entry
            return entry

    def _cached(self, module: Path, types: str, args: tuple[Any, ...]) -> CompiledKernel:
        """Reads the kernel's code from the cache, or compiles it."""
        host, cpu = _host()
        file = kernel_file(module, self.__name__, types, f"{cpu}{'-checked' if self.checked else ''}")
        kernel = read_kernel(file)
        if kernel is None:
            with sole_compiler(file):
                kernel = read_kernel(file)
                if kernel is None:
                    kernel = self._compiled(args, host, symbol_of(module, self.__name__, types))
                    write_kernel(file, kernel)
        return kernel

    def _compiled(self, args: tuple[Any, ...], host: Any, symbol: str) -> CompiledKernel:
        from cdc.base.log import get_logger  # not above: each kernel would be compiled again for a change of the log

        get_logger(__name__).info(
            "compiling a kernel, once for this version and this type of CPU", kernel=self.__name__
        )
        from cdc.kernels.compiler import compile_kernel  # which imports Numba

        return compile_kernel(self, args, host, symbol)


def cannot_compile(name: str, reason: str) -> CdcError:
    """The error of a kernel that was not built ahead, on a machine whose Numba cannot compile it."""
    from cdc.base.errors import UnsupportedError

    return UnsupportedError(
        f"the kernel {name} was not built ahead for this machine, and Numba cannot compile it: {reason}",
        remedy=f"Install a Numba that can: pip install '{NUMBA}'.",
    )


class Intrinsic:
    """One of Numba's intrinsics, made when a kernel that uses it is compiled. Without compilation it cannot be used."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._function: Any = None

    def function(self) -> Any:
        """Numba's intrinsic."""
        if self._function is None:
            self._function = self._make()
        return self._function

    def __call__(self, *args: Any) -> Any:
        raise NotImplementedError("an intrinsic runs inside compiled kernels only")


class _Entry:
    """The entry of a kernel's machine code, for one set of argument types."""

    def __init__(self, address: int, returns: str, words: int) -> None:
        self._function = _ENTRY(address)
        self._words = ctypes.c_uint64 * words
        self._several = returns.startswith("(")
        letters = returns.strip("()")
        self._returned = struct.Struct(f"@{letters}") if letters else None

    def call(self, words: list[int]) -> Any:
        return self._run(self._words(*words), _ROOM())

    def bind(self, words: list[int], args: tuple[Any, ...]) -> Callable[[], Any]:
        """A call with these words. It keeps ``args`` alive, to which they point."""
        return partial(self._run, self._words(*words), _ROOM(), args)

    def _run(self, words: Any, room: Any, _args: tuple[Any, ...] = ()) -> Any:
        if self._function(words, room):
            raise IndexError("a kernel would have left an array")
        if self._returned is None:
            return None
        values = self._returned.unpack_from(room)
        return values if self._several else values[0]


def _linked(kernel: CompiledKernel) -> int:
    """Links the code of a kernel into this process. Returns the address of its entry."""
    import llvmlite.binding as llvm

    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target_machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(kernel.code))
    engine.finalize_object()
    _engines.append(engine)
    return int(engine.get_function_address(kernel.symbol))


def release_loader() -> None:
    """Takes the code of LLVM, which is needed while kernels are loaded, out of this process's resident memory (some
    50 MB). It comes back from the kernel's page cache if another one is loaded. Does nothing where there is no
    ``/proc``."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        if "r-xp" in line and line.endswith("libllvmlite.so"):
            start, end = (int(word, 16) for word in line.split(" ", 1)[0].split("-"))
            # The pages are as in the file: nothing can have written to them.
            ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)


def types_of(args: tuple[Any, ...]) -> str:
    """The argument types as they stand in the key of a kernel's entry, in the cache and in what is built ahead."""
    kinds: list[Any] = []
    for arg in args:
        _flatten(arg, kinds, [])
    return repr(tuple(kinds))


def _flatten(value: Any, kinds: list[Any], words: list[int]) -> None:
    """Adds a value's type to ``kinds``, as far as compiled code depends on it, and its words to ``words``."""
    kind = type(value)
    if kind is np.ndarray or isinstance(value, np.ndarray):
        flags = value.flags.num & _FLAGS
        if flags & _C:
            flags &= ~_F
        dtype = value.dtype
        kinds.append((dtype.str if dtype.names is None else _record_kind(dtype), value.ndim, flags))
        shape = value.shape
        words += (0, 0, value.size, value.itemsize, value.__array_interface__["data"][0], *shape)
        words += (n & _MASK for n in value.strides)
    elif kind is bool or kind is np.bool_:
        kinds.append("bool")
        words.append(int(value))
    elif kind is int:
        if -1 << 63 <= value < 1 << 63:
            kinds.append("int64")
        elif value < 1 << 64:
            kinds.append("uint64")
        else:
            raise OverflowError("the number has more than 64 bits")
        words.append(value & _MASK)
    elif isinstance(value, np.integer):
        kinds.append(_WORDS.get(kind) or value.dtype.str)
        words.append(int(value) & _MASK)
    elif kind is float or kind is np.float64:
        kinds.append("float64")
        words += struct.unpack("@Q", struct.pack("@d", value))
    elif isinstance(value, np.void):
        kinds.append(_record_kind(value.dtype))
        words.append(value.__array_interface__["data"][0])
    elif isinstance(value, tuple):
        kinds.append((f"{kind.__module__}.{kind.__qualname__}", len(value)))
        for item in value:
            _flatten(item, kinds, words)
    else:
        raise TypeError(f"a {kind.__name__} cannot be passed to a kernel")


def _record_kind(layout: np.dtype[Any]) -> tuple[str, str, str]:
    """The type of a record, or of an array's records. The size tells layouts of two versions of a class apart."""
    return "record", f"{layout.type.__module__}.{layout.type.__qualname__}", layout.str


@cache
def _host() -> tuple[Any, str]:
    """A target machine for this CPU, and what compiled code depends on of it."""
    import llvmlite.binding as llvm

    machine = _target_machine()
    return machine, f"{machine.triple} {llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"


def _target_machine() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    triple = llvm.get_process_triple()
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        reloc="static" if triple.startswith("x86") else "default",
        codemodel="jitdefault",
        jit=True,
    )


def bind(kernel: Callable[..., R], *args: Any) -> Callable[[], R]:
    """:meth:`Kernel.bind` for a kernel, or for its uncompiled function."""
    return kernel.bind(*args) if isinstance(kernel, Kernel) else partial(kernel, *args)


def njit(function: Callable[P, R]) -> Kernel[P, R]:
    """Compiles a function at its first call with each set of argument types, or loads it from the cache."""
    return Kernel(function, inline=False)


def inlined(function: Callable[P, R]) -> Kernel[P, R]:
    """Compiles a small function of a hot path into each of its callers. Passing an array costs seven words, so with
    several arrays a call costs more than the work of a small function."""
    return Kernel(function, inline=True)


def intrinsic(make: Callable[[], Any]) -> Any:
    """Makes one of Numba's intrinsics by ``make()`` when a kernel that uses it is compiled."""
    return Intrinsic(make)
