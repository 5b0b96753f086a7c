"""A segment that is being written: a binlog file and its index."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Self

from cdc.binlog.constants import MAGIC
from cdc.binlog.entry import Entries
from cdc.binlog.events import make_rotate, stored_format_description
from cdc.durable import sync_folder
from cdc.errors import StorageError
from cdc.store.index import make_header, seal
from cdc.store.layout import index_path


def head(format_description: bytes, file: str, pos: int, server_id: int) -> bytes:
    """What a segment begins with: magic, the source's format description, a rotate event that names its file."""
    return MAGIC + stored_format_description(format_description) + make_rotate(file, pos, server_id)


class SegmentWriter:
    """Appends to one segment. Not thread-safe, but :meth:`sync` may run beside :meth:`append`."""

    def __init__(self, path: Path, fd: int, index_fd: int, size: int, file: str, head_size: int) -> None:
        self.path = path
        self.file = file
        self.head_size = head_size
        self.size = size
        self.synced = 0
        self._fd = fd
        self._index_fd = index_fd
        self._named = False

    @classmethod
    def create(cls, path: Path, data: bytes, file: str) -> Self:
        """A new segment that begins with ``data``; one without transactions may have been there."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            index_fd = os.open(
                index_path(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644
            )
            _write(fd, memoryview(data))
            _write(index_fd, memoryview(make_header()))
        except OSError as error:
            raise _refused(path, error) from None
        return cls(path, fd, index_fd, len(data), file, len(data))

    @classmethod
    def reopen(cls, path: Path, file: str, head_size: int) -> Self:
        """Go on with a recovered segment."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            index_fd = os.open(index_path(path), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            size = os.lseek(fd, 0, os.SEEK_END)
        except OSError as error:
            raise _refused(path, error) from None
        segment = cls(path, fd, index_fd, size, file, head_size)
        segment.synced = size
        return segment

    def begins_with(self, data: bytes) -> bool:
        """Is this what the segment begins with? Compares all but the position in the rotate event."""
        mine = os.pread(self._fd, self.head_size, 0)
        return len(data) == self.head_size and _without_rotate_pos(mine) == _without_rotate_pos(data)

    def append(self, data: memoryview) -> None:
        """Write behind the end; nothing is durable before :meth:`sync`."""
        try:
            _write(self._fd, data)
        except OSError as error:
            raise _refused(self.path, error) from None
        self.size += len(data)

    def sync(self) -> None:
        """Make all that was written before this call durable, the file's name included."""
        size = self.size
        try:
            os.fdatasync(self._fd)
            if not self._named:
                sync_folder(self.path.parent)
                self._named = True
        except OSError as error:
            raise _refused(self.path, error) from None
        self.synced = size

    def publish(self, entries: Entries) -> None:
        """Make transactions visible; their bytes have to be durable."""
        try:
            _write(self._index_fd, memoryview(seal(entries)))
        except OSError as error:
            raise _refused(index_path(self.path), error) from None

    def truncate(self, size: int) -> None:
        """Cut off what is not visible yet."""
        try:
            os.ftruncate(self._fd, size)
            os.lseek(self._fd, size, os.SEEK_SET)
        except OSError as error:
            raise _refused(self.path, error) from None
        self.size = size
        self.synced = min(self.synced, size)

    def set_statement_end(self, offset: int, length: int) -> int:
        """Set STMT_END_F on the row event at ``offset`` and its checksum anew; returns it. The event may be large, so
        it is read in pieces."""
        try:
            flags = os.pread(self._fd, 1, offset + 25)[0] | 1
            os.pwrite(self._fd, bytes([flags]), offset + 25)
            crc, at, end = 0, offset, offset + length - 4
            while at < end:
                piece = os.pread(self._fd, min(1 << 20, end - at), at)
                crc = zlib.crc32(piece, crc)
                at += len(piece)
            os.pwrite(self._fd, crc.to_bytes(4, "little"), end)
        except OSError as error:
            raise _refused(self.path, error) from None
        return crc

    def close(self) -> None:
        os.close(self._fd)
        os.close(self._index_fd)


def _write(fd: int, data: memoryview) -> None:
    while len(data):
        data = data[os.write(fd, data) :]


def _without_rotate_pos(data: bytes) -> bytes:
    """The head with the rotate event's position and checksum blanked: they differ between two beginnings in one
    file."""
    at = len(MAGIC) + int.from_bytes(data[len(MAGIC) + 9 : len(MAGIC) + 13], "little") + 19
    return data[:at] + data[at + 8 : -4]


def _refused(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"the operating system refused: {error.strerror}",
        place=str(path),
        remedy="Nothing that was acknowledged is lost. Make room, or mend the disk, and start again.",
    )
