"""The operations on files that durability hangs on, in one place: plain ``os`` calls, which tests can make fail.

What must survive a kill or a power cut (segments, indexes, the checkpoint, meta, manifests) is written through
:data:`layer`. It costs an attribute and a call. :class:`cdc.testing.faults.FaultyFiles` takes its place in tests: it
fails a flush, runs out of space, writes less than it was given, or loses what was never synced.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Files:
    """The operating system's own. Every method raises OSError as the call of the same name in ``os`` does."""

    def open(self, path: Path, flags: int, mode: int = 0o666) -> int:
        """A descriptor, closed on exec."""
        return os.open(path, flags | os.O_CLOEXEC, mode)

    def close(self, fd: int) -> None:
        os.close(fd)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        """May write less than it was given: :func:`write_all` goes on."""
        return os.write(fd, data)

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        """May write less than it was given: :func:`pwrite_all` goes on."""
        return os.pwrite(fd, data, offset)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        return os.pread(fd, size, offset)

    def seek(self, fd: int, offset: int, whence: int = os.SEEK_SET) -> int:
        return os.lseek(fd, offset, whence)

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def ftruncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def replace(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def mkdir(self, path: Path) -> None:
        """A folder that may be there already."""
        path.mkdir(exist_ok=True)

    def sync_folder(self, folder: Path) -> None:
        """Put the folder's list of names on disk."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def read_file(self, path: Path) -> bytes:
        """The whole of a small file."""
        return path.read_bytes()


layer: Files = Files()
"""What everybody uses: ``files.layer.fdatasync(fd)``, looked up at each call."""


@contextmanager
def use(other: Files) -> Iterator[None]:
    """Put another layer in its place, in this process."""
    global layer
    before, layer = layer, other
    try:
        yield
    finally:
        layer = before


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write all of it at the descriptor's place. Raises OSError, some of it may then be written."""
    written = layer.write(fd, data)
    if written < len(data):
        left = memoryview(data)[written:]
        while len(left):
            left = left[layer.write(fd, left) :]


def pwrite_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of it at ``offset``. Raises OSError, some of it may then be written."""
    left = memoryview(data)
    while len(left):
        written = layer.pwrite(fd, left, offset)
        left, offset = left[written:], offset + written
