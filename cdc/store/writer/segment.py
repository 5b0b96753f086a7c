"""A segment that is being written: a binlog file and its index."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from cdc import files
from cdc.binlog.constants import MAGIC
from cdc.binlog.entry import ENTRY_SIZE, HEADER_SIZE, Entries
from cdc.binlog.events import make_rotate, stored_format_description
from cdc.errors import StorageError
from cdc.store.formats.index import head_size as segment_head_size
from cdc.store.formats.index import make_header, seal
from cdc.store.formats.layout import index_path


def head(format_description: bytes, file: str, pos: int, server_id: int) -> bytes:
    """What a segment begins with: magic, the source's format description, a rotate event that names its file."""
    return MAGIC + stored_format_description(format_description) + make_rotate(file, pos, server_id)


class SegmentWriter:
    """Appends to one segment. Not thread-safe, but :meth:`sync` and :meth:`publish` may run beside :meth:`append`.

    After a failed flush, or a failure whose traces could not be removed, every further call raises the same error: what
    the operating system said it had may be gone, and asking it again would not tell.
    """

    def __init__(self, path: Path, fd: int, index_fd: int, size: int, file: str, head_size: int) -> None:
        self.path = path
        self.file = file
        self.head_size = head_size
        self.size = size
        self.synced = 0
        self.index_size = HEADER_SIZE
        self.last_seq = 0
        """Of the newest visible entry; 0 where none is."""
        self._fd = fd
        self._index_fd = index_fd
        self._named = False
        self._broken: StorageError | None = None

    @classmethod
    def create(cls, path: Path, data: bytes, file: str) -> Self:
        """A new segment that begins with ``data``; one without transactions may have been there. Raises StorageError
        where there is one with transactions."""
        fds: list[int] = []
        try:
            if _holds_something(path):
                raise StorageError(
                    "a new segment would have the name of one that holds transactions",
                    place=str(path),
                    remedy="Nothing was overwritten. Report this, with the names of the store's segments.",
                )
            fds.append(files.layer.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC))
            fds.append(files.layer.open(index_path(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND))
            files.write_all(fds[0], data)
            files.write_all(fds[1], make_header())
        except OSError as error:
            for fd in fds:
                files.layer.close(fd)
            raise _refused(path, error) from None
        return cls(path, fds[0], fds[1], len(data), file, len(data))

    @classmethod
    def reopen(cls, path: Path, file: str, head_size: int) -> Self:
        """Go on with a recovered segment, all of which is durable."""
        fds: list[int] = []
        try:
            fds.append(files.layer.open(path, os.O_RDWR))
            fds.append(files.layer.open(index_path(path), os.O_RDWR | os.O_APPEND))
            size = files.layer.seek(fds[0], 0, os.SEEK_END)
            index_size = files.layer.seek(fds[1], 0, os.SEEK_END)
            newest = files.layer.pread(fds[1], 8, index_size - ENTRY_SIZE) if index_size > HEADER_SIZE else b""
        except OSError as error:
            for fd in fds:
                files.layer.close(fd)
            raise _refused(path, error) from None
        segment = cls(path, fds[0], fds[1], size, file, head_size)
        segment.synced, segment.index_size, segment._named = size, index_size, True
        segment.last_seq = int.from_bytes(newest, "little")
        return segment

    @property
    def is_empty(self) -> bool:
        """Has it no entry yet? It may then be begun anew under the same name."""
        return self.index_size == HEADER_SIZE

    def begins_with(self, data: bytes) -> bool:
        """Is this what the segment begins with? Compares all but the position in the rotate event."""
        with self._refusing(self.path):
            mine = files.layer.pread(self._fd, self.head_size, 0)
        return len(data) == self.head_size and _without_rotate_pos(mine) == _without_rotate_pos(data)

    def append(self, data: memoryview) -> None:
        """Write behind the end; nothing is durable before :meth:`sync`. Where the disk is full, the segment is left as
        it was, and the call may be made again."""
        self._check()
        try:
            files.write_all(self._fd, data)
        except OSError as error:
            self._restore(self.path, self._fd, self.size, seek=True)
            raise _refused(self.path, error) from None
        self.size += len(data)

    def sync(self) -> None:
        """Make all that was written before this call durable, the file's name included."""
        self._check()
        size = self.size
        try:
            if size > self.synced:
                files.layer.fdatasync(self._fd)
            if not self._named:
                files.layer.sync_folder(self.path.parent)
                self._named = True
        except OSError as error:
            self._broken = _refused(self.path, error)
            raise self._broken from None
        self.synced = size

    def sync_index(self) -> None:
        """Make the entries durable. They need not be before the segment is finished: the log has what they say."""
        with self._refusing(index_path(self.path), final=True):
            files.layer.fdatasync(self._index_fd)

    def publish(self, entries: Entries) -> None:
        """Make transactions visible; their bytes have to be durable."""
        self.publish_sealed(seal(entries))

    def publish_sealed(self, data: bytes) -> None:
        """:meth:`publish` of entries as they stand in the file."""
        self._check()
        try:
            files.write_all(self._index_fd, data)
        except OSError as error:
            # Whole entries stay: readers may have seen them, and their transactions are durable.
            try:
                written = files.layer.seek(self._index_fd, 0, os.SEEK_END) - self.index_size
            except OSError:
                written = 0
            self.index_size += max(0, written) // ENTRY_SIZE * ENTRY_SIZE
            self._restore(index_path(self.path), self._index_fd, self.index_size, seek=False)
            self._broken = _refused(index_path(self.path), error)
            raise self._broken from None
        self.index_size += len(data)
        self.last_seq = int.from_bytes(data[-ENTRY_SIZE:][:8], "little") if data else self.last_seq

    def truncate(self, size: int) -> None:
        """Cut off what is not visible yet."""
        with self._refusing(self.path, final=True):
            files.layer.ftruncate(self._fd, size)
            files.layer.seek(self._fd, size)
        self.size = size
        self.synced = min(self.synced, size)

    def set_statement_end(self, offset: int, length: int) -> int:
        """Set STMT_END_F on the row event at ``offset`` and its checksum anew; returns it. The event may be large, so
        it is read in pieces."""
        with self._refusing(self.path, final=True):
            flags = files.layer.pread(self._fd, 1, offset + 25)[0] | 1
            files.pwrite_all(self._fd, bytes([flags]), offset + 25)
            crc, at, end = 0, offset, offset + length - 4
            while at < end:
                piece = files.layer.pread(self._fd, min(1 << 20, end - at), at)
                crc = zlib.crc32(piece, crc)
                at += len(piece)
            files.pwrite_all(self._fd, crc.to_bytes(4, "little"), end)
        self.synced = min(self.synced, offset)
        return crc

    def close(self) -> None:
        """Let the files go; nothing is synced by that."""
        files.layer.close(self._fd)
        files.layer.close(self._index_fd)

    def _check(self) -> None:
        if self._broken is not None:
            raise StorageError(self._broken.message, place=self._broken.place, remedy=self._broken.remedy)

    @contextmanager
    def _refusing(self, path: Path, *, final: bool = False) -> Iterator[None]:
        """Turns OSError into StorageError; ``final``: nothing is done with the segment after that."""
        self._check()
        try:
            yield
        except OSError as error:
            refused = _refused(path, error)
            if final:
                self._broken = refused
            raise refused from None

    def _restore(self, path: Path, fd: int, size: int, *, seek: bool) -> None:
        """Remove what a failed write left behind the end."""
        try:
            files.layer.ftruncate(fd, size)
            if seek:
                files.layer.seek(fd, size)
        except OSError as error:
            self._broken = _refused(path, error)


def _holds_something(path: Path) -> bool:
    """Whether a segment is there that has entries, or bytes behind its head. Raises OSError."""
    try:
        size, entries = path.stat().st_size, index_path(path).stat().st_size
    except FileNotFoundError:
        return False  # a segment without an index never became visible, and recovery takes it away
    return entries > HEADER_SIZE or (size > 0 and size > segment_head_size(path))


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
