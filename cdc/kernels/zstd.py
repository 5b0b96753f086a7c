"""The address of zstd's function that unpacks, for kernels."""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.util import find_spec


class Unpacker:
    """A context of zstd, in which one thread at a time unpacks; 160 KB. It lives as long as this object."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._free = library.ZSTD_freeDCtx
        self._free.argtypes, self._free.restype = [ctypes.c_void_p], ctypes.c_size_t
        make = library.ZSTD_createDCtx
        make.argtypes, make.restype = [], ctypes.c_void_p
        self.function: int = ctypes.cast(library.ZSTD_decompressDCtx, ctypes.c_void_p).value or 0
        """The address of ``ZSTD_decompressDCtx``."""
        self.context: int = make() or 0
        """The address of its context."""
        if not self.function or not self.context:
            raise MemoryError("zstd has no memory for a context")

    def __del__(self) -> None:
        self._free(self.context)


def unpacker() -> Unpacker | None:
    """Returns a new unpacker; None if no library exports zstd's functions on this machine."""
    library = _library()
    return None if library is None else Unpacker(library)


@cache
def _library() -> ctypes.CDLL | None:
    """The library in the zstandard package, which exports the functions of zstd that it holds, or the system's."""
    spec = find_spec("zstandard._cffi")
    for path in (None if spec is None else spec.origin, "libzstd.so.1"):
        try:
            library = ctypes.CDLL(path) if path else None
        except OSError:
            continue
        if library is not None and hasattr(library, "ZSTD_decompressDCtx"):
            return library
    return None
