"""The address of zstd's function that unpacks, for kernels: that of the system's ``libzstd``.

Its soname ``libzstd.so.1`` stands for its public, stable interface. The package managers of Debian, Ubuntu, Fedora,
RHEL and SUSE need it, so their systems and images have it. The package ``zstandard`` has a copy of zstd, but no promise
about that copy's symbols.
"""

from __future__ import annotations

import ctypes
from functools import cache

LIBRARY = "libzstd.so.1"
FUNCTIONS = ("ZSTD_createDCtx", "ZSTD_decompressDCtx", "ZSTD_freeDCtx")


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
    """Returns a new unpacker. Without the library it returns None, and a warning says so once: then Python unpacks."""
    library = _library()
    return None if library is None else Unpacker(library)


@cache
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(LIBRARY)
        lacking = [name for name in FUNCTIONS if not hasattr(library, name)]
        reason = f"it lacks {', '.join(lacking)}" if lacking else ""
    except OSError as error:
        reason = str(error)
    if not reason:
        return library
    from cdc.base.log import get_logger

    get_logger(__name__).warning(
        "libzstd.so.1 cannot be used, so Python unpacks compressed transactions, which takes ten times as long for"
        " small ones; install libzstd1 (Debian, Ubuntu, SUSE) or libzstd (Fedora, RHEL)",
        reason=reason,
    )
    return None
