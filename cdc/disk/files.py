"""The file operations on which durability depends: plain ``os`` calls, which tests can make fail.

Files that must survive a kill or a power cut (segments, indexes, the checkpoint, meta, manifests) are written through
:data:`layer`, at the cost of an attribute and a call. In tests :class:`cdc.testing.faults.FaultyFiles` takes its place:
it fails a flush, runs out of space, writes less than it was given, or loses bytes that were never synced.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_OTHERS = 0o007


def file_mode(folder: Path) -> int:
    """Returns the mode of a new file: read and write for its owner, and for the group what the folder allows, if the
    folder is closed to all others."""
    mode = folder.stat().st_mode
    return 0o600 if mode & _OTHERS else 0o600 | (mode & 0o060)


def _widen(fd: int, mode: int) -> None:
    """Gives a new file the group's rights that the process's umask has withheld."""
    status = os.fstat(fd)
    if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) != mode:
        os.fchmod(fd, mode)


class Files:
    """The operating system's file operations. Each method raises OSError like the function of that name in ``os``."""

    def open(self, path: Path, flags: int) -> int:
        """Returns a descriptor, closed on exec; a new file gets :func:`file_mode`."""
        if not flags & os.O_CREAT:
            return os.open(path, flags | os.O_CLOEXEC)
        mode = file_mode(path.parent)
        fd = os.open(path, flags | os.O_CLOEXEC, mode)
        if mode & 0o060:
            _widen(fd, mode)
        return fd

    def close(self, fd: int) -> None:
        os.close(fd)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        """Writes, perhaps less than it was given; :func:`write_all` writes all."""
        return os.write(fd, data)

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        """Writes at an offset, perhaps less than it was given; :func:`pwrite_all` writes all."""
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
        """Creates a folder, which may exist already. Below a folder that is closed to others it gets that mode."""
        above = path.parent.stat().st_mode
        try:
            path.mkdir()
        except FileExistsError:
            if not path.is_dir():
                raise
            return
        if not above & _OTHERS:
            path.chmod(stat.S_IMODE(above))

    def sync_folder(self, folder: Path) -> None:
        """Makes the names in a folder durable."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def read_file(self, path: Path) -> bytes:
        """Returns the content of a small file."""
        return path.read_bytes()


layer: Files = Files()
"""The operations in use. Look them up at each call: ``files.layer.fdatasync(fd)``."""


plain = Files()
"""The operating system's operations, in tests too: for locks, and for files that need not be durable."""


@contextmanager
def use(other: Files) -> Iterator[None]:
    """Replaces :data:`layer` in this process."""
    global layer
    before, layer = layer, other
    try:
        yield
    finally:
        layer = before


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Writes all of ``data`` at the descriptor's position. Raises OSError; a part may be written then."""
    written = layer.write(fd, data)
    if written < len(data):
        left = memoryview(data)[written:]
        while len(left):
            left = left[layer.write(fd, left) :]


def pwrite_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    """Writes all of ``data`` at ``offset``. Raises OSError; a part may be written then."""
    left = memoryview(data)
    while len(left):
        written = layer.pwrite(fd, left, offset)
        left, offset = left[written:], offset + written
