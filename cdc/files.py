"""The operations on files that durability hangs on, in one place: plain ``os`` calls, which tests can make fail.

What must survive a kill or a power cut (segments, indexes, the checkpoint, meta, manifests) is written through
:data:`layer`. It costs an attribute and a call. :class:`cdc.testing.faults.FaultyFiles` takes its place in tests: it
fails a flush, runs out of space, writes less than it was given, or loses what was never synced.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_OTHERS = 0o007


def file_mode(folder: Path) -> int:
    """The mode of a new file: its owner may read and write it, and the group what the folder lets it do, if the folder
    is closed to all others."""
    mode = folder.stat().st_mode
    return 0o600 if mode & _OTHERS else 0o600 | (mode & 0o060)


def _widen(fd: int, mode: int) -> None:
    """Give a new file the group's rights that the process's umask has withheld."""
    found = os.fstat(fd)
    if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) != mode:
        os.fchmod(fd, mode)


class Files:
    """The operating system's own. Every method raises OSError as the call of the same name in ``os`` does."""

    def open(self, path: Path, flags: int) -> int:
        """A descriptor, closed on exec; a new file has :func:`file_mode`."""
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
        """A folder that may be there already. Below a folder that is closed to others it has the mode of that one."""
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


plain = Files()
"""The operating system's own in tests, too: for locks, and what durability does not hang on."""


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
