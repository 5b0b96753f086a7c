"""The files of compiled kernels: where they lie, what their names depend on, and how they are read and written.

The compiled code of each kernel module lies in a folder of its own, whose name carries a digest of the module's source,
of the sources of all modules of this package that it imports, directly or indirectly, of the compiler's own sources,
and of the versions of Numba, NumPy and llvmlite. A changed module is compiled again together with the modules that
import it, and no other. So kernel modules should import only other kernel modules and constants.

In the folder is one file for each kernel, set of argument types and type of CPU. It begins with a digest of its
content; a file that is cut off, altered or of another format is compiled again and replaced.

The folders are in ``kernels`` below ``__pycache__`` beside this file, or in the user's cache folder
(``$XDG_CACHE_HOME``, ``~/.cache``) if the package's folder cannot be written, or in a private temporary folder if
neither can. ``$NUMBA_CACHE_DIR`` takes precedence over all of them.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_PACKAGE = Path(__file__).parent.parent
_COMPILER = (Path(__file__), *(Path(__file__).with_name(name) for name in ("jit.py", "compiler.py")))
_DEFINITION = re.compile(rb"^(?:@|def |class )", re.MULTILINE)
_MAGIC = b"towpath-kernel 1\n"
_DIGEST_SIZE = 32
_WAIT_S = 300.0
"""The longest time that a process waits for another one that compiles the same kernel."""


@cache
def _versions() -> bytes:
    """Returns the version files of the compiler's packages. The packages are not imported, since that takes longer than
    the rest of a command's start. A package that is missing adds nothing: the compiler says so if it is needed."""
    content = b""
    for name in ("numba", "numpy", "llvmlite"):
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            continue
        for file in ("_version.py", "version.py"):
            path = Path(spec.origin).with_name(file)
            if path.is_file():
                content += path.read_bytes()
    return content


@dataclass(frozen=True)
class CompiledKernel:
    """The machine code of one kernel for one set of argument types."""

    symbol: str
    """The name of its entry in ``code``."""
    returns: str
    """The type of what it returns, see :mod:`cdc.kernels.compiler`."""
    code: bytes
    """An object file."""


@cache
def sources_of(module: Path) -> frozenset[Path]:
    """The file of a module, and the files of all modules of this package that it imports, directly or indirectly."""
    sources = {module}
    waiting = [module]
    while waiting:
        for path in _imports(waiting.pop()) - sources:
            sources.add(path)
            waiting.append(path)
    return frozenset(sources)


@cache
def _imports(module: Path) -> frozenset[Path]:
    """The files of the modules of this package that a module's import statements name."""
    imports = set()
    source = _source(module)
    try:  # imports stand before the first definition, and parsing the rest would take most of the time
        tree = ast.parse(_DEFINITION.split(source, maxsplit=1)[0])
    except SyntaxError:
        tree = ast.parse(source)
    for name in _imported_names(tree):
        if name.startswith(f"{_PACKAGE.name}."):
            path = _PACKAGE.parent / f"{name.replace('.', '/')}.py"
            if path.is_file():
                imports.add(path)
    return frozenset(imports)


@cache
def _source(module: Path) -> bytes:
    return module.read_bytes()


def _imported_names(tree: ast.Module) -> Iterator[str]:
    """Every dotted name that may be a module; ``from a import b`` gives ``a`` and ``a.b``."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def source_digest(module: Path) -> str:
    """A digest of all sources on which a module's compiled code depends."""
    digest = hashlib.sha256()
    for path in sorted(sources_of(module) | {*_COMPILER}):
        name = path.relative_to(_PACKAGE) if path.is_relative_to(_PACKAGE) else path.name
        digest.update(f"\0{name}\0".encode() + _source(path))
    return digest.hexdigest()


@cache
def _digest(module: Path) -> str:
    return hashlib.sha256(_versions() + source_digest(module).encode()).hexdigest()[:16]


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
    if configured := os.environ.get("NUMBA_CACHE_DIR"):
        candidates.insert(0, Path(configured) / "kernels")
    user_cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    candidates.append(Path(user_cache) / "towpath" / "kernels")
    for folder in candidates:
        if _usable(folder):
            return folder
    return Path(tempfile.mkdtemp(prefix="towpath-kernels-"))


def module_name(module: Path) -> str:
    """The name of a module in this package, such as ``decode.kernels.fill``."""
    inside = module.is_relative_to(_PACKAGE)
    return ".".join(module.relative_to(_PACKAGE).with_suffix("").parts) if inside else module.stem


@cache
def cache_folder(module: Path) -> Path:
    """The folder of a module's compiled code, such as ``decode.kernels.fill-0123456789abcdef``."""
    return cache_root() / f"{module_name(module)}-{_digest(module)}"


def kernel_file(module: Path, name: str, types: str, cpu: str) -> Path:
    """The file of a kernel's code for these argument types and this type of CPU."""
    digest = hashlib.sha256(f"{types}\0{cpu}".encode()).hexdigest()[:16]
    return cache_folder(module) / f"{name}-{digest}.kernel"


def read_kernel(file: Path) -> CompiledKernel | None:
    """Reads a file of compiled code. Returns None if there is none, or none that is whole."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    body = content[len(_MAGIC) + _DIGEST_SIZE :]
    if not content.startswith(_MAGIC) or hashlib.sha256(body).digest() != content[len(_MAGIC) :][:_DIGEST_SIZE]:
        return None
    symbol, returns, code = body.split(b"\n", 2)
    return CompiledKernel(symbol.decode(), returns.decode(), code)


@contextlib.contextmanager
def sole_compiler(file: Path) -> Iterator[None]:
    """Waits until no other process compiles the kernel of this file, and keeps others from it.

    Processes that start together would compile the same kernels at the same time otherwise. The lock saves time and
    nothing else: a process that cannot have it (a folder without locks, or one that compiles for ever) goes on alone.
    The operating system releases the lock when the process dies.
    """
    from cdc.base.errors import CdcError
    from cdc.disk.durable import locked

    with contextlib.ExitStack() as held:
        with contextlib.suppress(CdcError, OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(locked(file.with_suffix(".lock"), "another process", wait_s=_WAIT_S))
        yield


def write_kernel(file: Path, kernel: CompiledKernel) -> None:
    """Writes a file of compiled code, whole or not at all. A full disk is no error: the next process compiles again."""
    body = f"{kernel.symbol}\n{kernel.returns}\n".encode() + kernel.code
    temporary = file.with_name(f".{file.name}.{os.getpid()}.new")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(_MAGIC + hashlib.sha256(body).digest() + body)
        os.replace(temporary, file)
    except OSError:
        temporary.unlink(missing_ok=True)
