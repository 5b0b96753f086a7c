"""Compiles a kernel with Numba into an object file that needs neither Numba nor Python to run.

Loaded only if a kernel is not in the cache: importing Numba takes longer than the start of a command may.

Numba translates the function and those that it calls into an LLVM module, which it does not optimize. An entry with C's
calling convention is added to it, and every other symbol becomes private. Then the module is optimized and compiled as
a whole. It calls at most a few functions of the C library.

The entry takes an array of 64-bit words, one for each number, and several for each array, in the order in which Numba
flattens its arguments; and room for the returned value. It returns 0, or something else if an exception was raised.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import llvmlite.binding as llvm
import numba
from numba import types
from numba.core import config
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUDispatcher, cpu_target

from cdc.kernels.cache import CompiledKernel
from cdc.kernels.jit import NUMBA, Intrinsic, Kernel, cannot_compile

_LIBRARY = frozenset({"memcpy", "memmove", "memset", "memcmp", "bcmp"})
"""Functions of the C library that compilers call on their own."""
_INTEGERS = {"int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint8": "B", "uint16": "H", "uint32": "I"} | {
    "uint64": "Q",
    "bool": "?",
    "float64": "d",
}
_lock = threading.RLock()


def compile_kernel(kernel: Any, args: tuple[Any, ...], machine: Any, symbol: str) -> CompiledKernel:
    """Compiles a :class:`~cdc.kernels.jit.Kernel` for the types of these arguments and an LLVM target machine.
    ``symbol`` is the name of its entry.

    Raises Numba's errors, TypeError for a kernel that cannot be called without Numba, and UnsupportedError if a version
    of Numba that was not tried fails in any way.
    """
    try:
        return _compile(kernel, args, machine, symbol)
    except Exception as error:
        if was_tried(numba.__version__):
            raise
        reason = f"version {numba.__version__} was not tried, and fails ({type(error).__name__}: {error})"
        raise cannot_compile(kernel.__name__, reason) from error


def was_tried(version: str) -> bool:
    """Whether a version of Numba is among those of :data:`cdc.kernels.jit.NUMBA`."""
    first, end = (tuple(map(int, bound.lstrip("numba>=<").split("."))) for bound in NUMBA.split(","))
    return first <= tuple(map(int, version.split(".")[:2])) < end


def _compile(kernel: Any, args: tuple[Any, ...], machine: Any, symbol: str) -> CompiledKernel:
    with _lock:
        dispatcher = dispatcher_of(kernel)
        signature = tuple(numba.typeof(arg) for arg in args)
        with _without_optimization():
            dispatcher.compile(signature)
            compiled = dispatcher.overloads[signature]
            compiled.library._ensure_finalized()
            text = dispatcher.inspect_llvm(signature)
    native = compiled.fndesc.llvm_func_name
    module = llvm.parse_assembly(text)
    module.link_in(llvm.parse_assembly(_entry(symbol, native, module.get_function(native), module.triple)))
    for value in (*module.functions, *module.global_variables):
        if not value.is_declaration and value.name != symbol:
            value.linkage = llvm.Linkage.internal
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(module, builder)
    foreign = {
        value.name
        for value in (*module.functions, *module.global_variables)
        if value.is_declaration and not value.name.startswith("llvm.")
    }
    if foreign - _LIBRARY:
        raise TypeError(f"the kernel {kernel.__name__} needs {', '.join(sorted(foreign - _LIBRARY))}")
    return CompiledKernel(symbol, _returns(compiled.signature.return_type), machine.emit_object(module))


class _Dispatcher(CPUDispatcher):  # type: ignore[misc]
    """Numba's function without what only calls from Python need: the wrappers for Python objects and the machine code.

    A constant argument has the type of its value here, and not a type of its own: Numba would compile the function
    anew for each constant.
    """

    def __init__(self, function: FunctionType, targetoptions: dict[str, Any]) -> None:
        super().__init__(function, targetoptions=targetoptions)
        self._compiler._customize_flags = _without_machine_code

    def get_call_template(self, args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
        return super().get_call_template(tuple(types.unliteral(arg) for arg in args), kws)

    def add_overload(self, cres: Any) -> None:
        callable_result = cres._replace(
            entry_point=cres.library
        )  # a key by which callers find it, since there is no machine code
        self.targetctx.insert_user_function(
            callable_result.entry_point, callable_result.fndesc, [callable_result.library]
        )
        self.overloads[tuple(callable_result.signature.args)] = callable_result


def _without_machine_code(flags: Any) -> Any:
    flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    return flags


@contextmanager
def _without_optimization() -> Iterator[None]:
    """Numba neither optimizes what it compiles nor prepares it to run.

    It would do both for each function that a kernel calls; :func:`compile_kernel` does both once for the whole kernel.
    """
    context = cpu_target.target_context
    codegen = context.codegen()
    add, executable = codegen._add_module, context.get_executable

    def add_and_execute(library: Any, *args: Any) -> Any:
        """Prepares a function of Numba that is written in Python. It is compiled when a kernel calls it."""
        library._ensure_finalized()
        add(library._final_module)
        return executable(library, *args)

    with global_compiler_lock:
        level = config.OPT
        config.OPT, codegen._add_module, context.get_executable = 0, lambda module: None, add_and_execute
        try:
            yield
        finally:
            config.OPT = level
            del codegen._add_module, context.get_executable


def dispatcher_of(kernel: Any) -> Any:
    """Numba's function for a kernel. It sees the kernels that it calls as Numba's functions too."""
    with _lock:
        if kernel.dispatcher is None:
            function: Callable[..., Any] = kernel.py_func
            names: dict[str, Any] = {"__name__": function.__module__}
            seen = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
            seen.__module__, seen.__qualname__ = function.__module__, function.__qualname__
            kernel.dispatcher = _Dispatcher(
                seen,
                targetoptions={
                    "nopython": True,
                    "nogil": True,
                    "error_model": "numpy",
                    "_nrt": False,
                    "boundscheck": kernel.checked,
                    "forceinline": kernel.inline,
                },
            )
            used = set(function.__code__.co_names)
            names |= {name: _resolved(value) for name, value in function.__globals__.items() if name in used}
        return kernel.dispatcher


def _resolved(value: Any) -> Any:
    """Returns a global of a kernel as Numba needs it: its own function for a kernel or an intrinsic."""
    if isinstance(value, Kernel):
        return dispatcher_of(value)
    return value.function() if isinstance(value, Intrinsic) else value


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
        return f"({''.join(_returns(item) for item in kind)})"
    if isinstance(kind, types.Literal):
        kind = kind.literal_type
    try:
        return _INTEGERS[str(kind)]
    except KeyError:
        raise TypeError(f"a kernel cannot return the type {kind}") from None
