"""Compiles a kernel with Numba into an object file that needs neither Numba nor Python to run.

Loaded only if a kernel is not in the cache: importing Numba takes longer than the start of a command may.

Numba compiles the function, and its LLVM module is taken over with three changes: an entry with C's calling convention
is added, every other symbol becomes private, and what the entry does not use (Numba's own wrappers for Python objects)
is removed. What is left calls at most a few functions of the C library.

The entry takes an array of 64-bit words, one for each number, and several for each array, in the order in which Numba
flattens its arguments; and room for the returned value. It returns 0, or something else if an exception was raised.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any

import llvmlite.binding as llvm
import numba
from numba import types

from cdc.binlog.kernel_cache import CompiledKernel

_LIBRARY = frozenset({"memcpy", "memmove", "memset", "memcmp", "bcmp"})
"""Functions of the C library that compilers call on their own."""
_INTEGERS = {"int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint8": "B", "uint16": "H", "uint32": "I"} | {
    "uint64": "Q",
    "bool": "?",
    "float64": "d",
}
_lock = threading.RLock()


def compile_kernel(kernel: Any, args: tuple[Any, ...], host: Any) -> CompiledKernel:
    """Compiles a :class:`~cdc.binlog.jit.Kernel` for the types of these arguments. ``host`` is an LLVM target machine.

    Raises Numba's errors, and TypeError for a kernel that cannot be called without Numba.
    """
    with _lock:
        dispatcher = dispatcher_of(kernel)
        signature = tuple(numba.typeof(arg) for arg in args)
        dispatcher.compile(signature)
        compiled = dispatcher.overloads[signature]
        text = dispatcher.inspect_llvm(signature)
    native = compiled.fndesc.llvm_func_name
    digest = hashlib.sha256(repr(signature).encode()).hexdigest()[:16]
    symbol = f"towpath_{kernel.__module__.replace('.', '_')}_{kernel.__name__}_{digest}"
    module = llvm.parse_assembly(text)
    module.link_in(llvm.parse_assembly(_entry(symbol, native, module.get_function(native), module.triple)))
    for value in (*module.functions, *module.global_variables):
        if not value.is_declaration and value.name != symbol:
            value.linkage = llvm.Linkage.internal
    builder = llvm.create_pass_builder(host, llvm.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(module, builder)
    foreign = {
        value.name
        for value in (*module.functions, *module.global_variables)
        if value.is_declaration and not value.name.startswith("llvm.")
    }
    if foreign - _LIBRARY:
        raise TypeError(f"the kernel {kernel.__name__} needs {', '.join(sorted(foreign - _LIBRARY))}")
    return CompiledKernel(symbol, _returns(compiled.signature.return_type), host.emit_object(module))


def dispatcher_of(kernel: Any) -> Any:
    """Numba's function for a kernel. It sees the kernels that it calls as Numba's functions too."""
    with _lock:
        if kernel.dispatcher is None:
            function: Callable[..., Any] = kernel.py_func
            names: dict[str, Any] = {"__name__": function.__module__}
            seen = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
            seen.__module__, seen.__qualname__ = function.__module__, function.__qualname__
            kernel.dispatcher = numba.njit(
                nogil=True, error_model="numpy", _nrt=False, boundscheck=kernel.checked, forceinline=kernel.inline
            )(seen)
            used = set(function.__code__.co_names)
            names |= {name: _resolved(value) for name, value in function.__globals__.items() if name in used}
        return kernel.dispatcher


def _resolved(value: Any) -> Any:
    """Returns a global of a kernel as Numba needs it: its own function for a kernel or an intrinsic."""
    from cdc.binlog.jit import Intrinsic, Kernel

    if isinstance(value, Kernel):
        return dispatcher_of(value)
    return value.made() if isinstance(value, Intrinsic) else value


def _entry(symbol: str, native: str, function: Any, triple: str) -> str:
    """The entry's LLVM code, by the types of the native function's parameters. The first two of those are pointers to
    the returned value and to an exception."""
    parameters = [str(argument.type) for argument in function.arguments]
    lines = ["%exception = alloca ptr", "store ptr null, ptr %exception"]
    passed = ["ptr %returned", "ptr %exception"]
    for k, kind in enumerate(parameters[2:]):
        lines.append(f"%at{k} = getelementptr i64, ptr %words, i64 {k}")
        lines.append(f"%word{k} = load i64, ptr %at{k}")
        if kind == "i64":
            lines.append(f"%value{k} = add i64 %word{k}, 0")
        elif kind == "ptr":
            lines.append(f"%value{k} = inttoptr i64 %word{k} to ptr")
        elif kind == "double":
            lines.append(f"%value{k} = bitcast i64 %word{k} to double")
        elif kind in ("i1", "i8", "i16", "i32"):
            lines.append(f"%value{k} = trunc i64 %word{k} to {kind}")
        else:
            raise TypeError(f"an argument of the type {kind} cannot be passed to a kernel")
        passed.append(f"{kind} %value{k}")
    lines += [f'%status = call i32 @"{native}"({", ".join(passed)})', "ret i32 %status"]
    body = "\n  ".join(lines)
    return (
        f'target triple = "{triple}"\n'
        f'declare i32 @"{native}"({", ".join(parameters)})\n'
        f"define i32 @{symbol}(ptr %words, ptr %returned) {{\n  {body}\n}}\n"
    )


def _returns(kind: Any) -> str:
    """The returned type: empty for None, a letter of :mod:`struct` for a number, letters in parentheses for a tuple."""
    if kind == types.none:
        return ""
    if isinstance(kind, types.BaseTuple):
        return f"({''.join(_returns(one) for one in kind)})"
    if isinstance(kind, types.Literal):
        kind = kind.literal_type
    try:
        return _INTEGERS[str(kind)]
    except KeyError:
        raise TypeError(f"a kernel cannot return the type {kind}") from None
