"""A segment that is being written: a binlog file, encrypted or not, and its index."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from cdc.base.errors import CdcError, StorageError
from cdc.binlog.entry import ENTRY_SIZE, HEADER_SIZE, Entries
from cdc.disk import files
from cdc.disk.encryption import append
from cdc.disk.encryption.append import AppendFile
from cdc.disk.encryption.read import content_size
from cdc.store.formats.index import make_header, seal
from cdc.store.formats.layout import index_path
from cdc.store.formats.segment_header import segment_header_size, without_rotate_pos

_CHUNK_BYTES = 1 << 20


class SegmentWriter:
    """Appends to one segment. Not thread-safe, but :meth:`sync` and :meth:`publish_sealed` may run beside
    :meth:`append`.

    After a failed flush, or a failure whose traces could not be removed, every further call raises the same error:
    bytes that the operating system reported as written may be gone, and it would not say so if asked again.
    """

    def __init__(self, path: Path, content: AppendFile, index_fd: int, file: str, header_size: int) -> None:
        self.path = path
        self.file = file
        self.header_size = header_size
        self.synced = 0
        self.index_size = HEADER_SIZE
        self.last_seq = 0
        """Seq of the newest visible entry; 0 if there is none."""
        self._content = content
        self._index_fd = index_fd
        self._named = False
        self._truncated = False
        """Whether bytes were cut off, and the disk may still have them."""
        self._broken: StorageError | None = None

    @classmethod
    def create(cls, path: Path, data: bytes, file: str) -> Self:
        """Creates a segment that begins with the header ``data``; replaces one without transactions. It is encrypted if
        a key is registered for its folder. Raises StorageError if a segment of that name holds transactions, and
        ConfigError, RetryableError if the key cannot be had."""
        fds: list[int] = []
        try:
            if holds_transactions(path):
                raise StorageError(
                    "a new segment would have the name of one that holds transactions",
                    place=str(path),
                    remedy="Nothing was overwritten. Report this, with the names of the store's segments.",
                )
            fds.append(files.layer.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC))
            fds.append(files.layer.open(index_path(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND))
            content = append.create(path, fds[0], data)
            files.write_all(fds[1], make_header())
        except (OSError, CdcError) as error:
            for fd in fds:
                files.layer.close(fd)
            if isinstance(error, CdcError):
                raise
            raise _failed(path, error) from None
        return cls(path, content, fds[1], file, len(data))

    @classmethod
    def reopen(cls, path: Path, file: str, header_size: int) -> Self:
        """Opens a recovered segment, all of which is durable, to append to it. Raises StorageError."""
        fds: list[int] = []
        try:
            fds.append(files.layer.open(path, os.O_RDWR))
            fds.append(files.layer.open(index_path(path), os.O_RDWR | os.O_APPEND))
            content = append.reopen(path, fds[0])
            index_size = files.layer.seek(fds[1], 0, os.SEEK_END)
            newest = files.layer.pread(fds[1], 8, index_size - ENTRY_SIZE) if index_size > HEADER_SIZE else b""
        except (OSError, CdcError) as error:
            for fd in fds:
                files.layer.close(fd)
            if isinstance(error, CdcError):
                raise
            raise _failed(path, error) from None
        segment = cls(path, content, fds[1], file, header_size)
        segment.synced, segment.index_size, segment._named = content.size, index_size, True
        segment.last_seq = int.from_bytes(newest, "little")
        return segment

    @property
    def size(self) -> int:
        """Bytes of the segment, as a binlog file."""
        return self._content.size

    @property
    def key_id(self) -> str:
        """The id of the key with which the segment is encrypted; empty: it is not."""
        return self._content.key_id

    @property
    def is_empty(self) -> bool:
        """Whether the segment has no entry yet; it may then be begun again under the same name."""
        return self.index_size == HEADER_SIZE

    def has_header(self, data: bytes) -> bool:
        """Returns whether the segment has this header, apart from the position in the rotate event."""
        with self._storage_errors(self.path):
            mine = self.header()
        return len(data) == self.header_size and without_rotate_pos(mine) == without_rotate_pos(data)

    def header(self) -> bytes:
        """Returns the segment's header. Raises StorageError."""
        with self._storage_errors(self.path):
            return self._content.pread(self.header_size, 0)

    def append(self, data: memoryview, boundary: int = 0) -> None:
        """Appends bytes, which are durable after :meth:`sync`. If the disk is full, the segment is left as it was, and
        the call may be repeated. ``boundary`` is the end of the last whole transaction: of an encrypted segment,
        :meth:`set_statement_end` must not write bytes again that count already. Raises StorageError."""
        self._check()
        try:
            self._content.append(data, boundary)
        except OSError as error:
            try:
                self._content.restore()
            except OSError as failure:
                self._broken = _failed(self.path, failure)
            raise _failed(self.path, error) from None

    def needs_sync(self, size: int) -> bool:
        """Whether :meth:`sync` is needed so that the segment is durable up to ``size``, and bytes that were cut off
        there do not reappear."""
        return size > self.synced or (self._truncated and size >= self.synced)

    def sync(self) -> None:
        """Makes everything that was written before this call durable, including the file's name. Raises
        StorageError."""
        self._check()
        size = self.size
        try:
            if size > self.synced or self._truncated:
                self._content.sync()
                self._truncated = False
            if not self._named:
                files.layer.sync_folder(self.path.parent)
                self._named = True
        except OSError as error:
            self._broken = _failed(self.path, error)
            raise self._broken from None
        self.synced = size

    def sync_index(self) -> None:
        """Makes the entries durable. Until the segment is finished they need not be: recovery rebuilds them from the
        log."""
        with self._storage_errors(index_path(self.path), final=True):
            files.layer.fdatasync(self._index_fd)

    def publish(self, entries: Entries) -> None:
        """Makes transactions visible. Their bytes have to be durable. Raises StorageError."""
        self.publish_sealed(seal(entries))

    def publish_sealed(self, data: bytes) -> None:
        """:meth:`publish` for entries as they are written to the file."""
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
            with suppress(OSError):  # what was left after whole entries; the segment is not used any more
                files.layer.ftruncate(self._index_fd, self.index_size)
            self._broken = _failed(index_path(self.path), error)
            raise self._broken from None
        self.index_size += len(data)
        self.last_seq = int.from_bytes(data[-ENTRY_SIZE:][:8], "little") if data else self.last_seq

    def truncate(self, size: int) -> None:
        """Truncates the segment to ``size``; only bytes that are not visible yet may go."""
        with self._storage_errors(self.path, final=True):
            self._content.truncate(size)
        self.synced = min(self.synced, size)
        self._truncated = True

    def set_statement_end(self, offset: int, length: int) -> int:
        """Sets STMT_END_F on the row event at ``offset`` and computes its checksum anew. Returns the checksum. A large
        event is read in chunks."""
        with self._storage_errors(self.path, final=True):
            flags = self._content.pread(1, offset + 25)[0] | 1
            self._content.overwrite(bytes([flags]), offset + 25)
            crc, at, end = 0, offset, offset + length - 4
            while at < end:
                chunk = self._content.pread(min(_CHUNK_BYTES, end - at), at)
                crc = zlib.crc32(chunk, crc)
                at += len(chunk)
            self._content.overwrite(crc.to_bytes(4, "little"), end)
        self.synced = min(self.synced, offset)
        return crc

    def read(self, offset: int) -> Iterator[bytes]:
        """Yields the bytes from ``offset`` on, in chunks. Raises StorageError."""
        with self._storage_errors(self.path):
            while offset < self.size:
                chunk = self._content.pread(min(_CHUNK_BYTES, self.size - offset), offset)
                offset += len(chunk)
                yield chunk

    def close(self) -> None:
        """Closes the files without syncing them."""
        self._content.close()
        files.layer.close(self._index_fd)

    def _check(self) -> None:
        if self._broken is not None:
            raise StorageError(self._broken.message, place=self._broken.place, remedy=self._broken.remedy)

    @contextmanager
    def _storage_errors(self, path: Path, *, final: bool = False) -> Iterator[None]:
        """Turns OSError into StorageError; with ``final`` the segment cannot be used any more afterwards."""
        self._check()
        try:
            yield
        except OSError as error:
            failure = _failed(path, error)
            if final:
                self._broken = failure
            raise failure from None


def holds_transactions(path: Path) -> bool:
    """Returns whether a segment exists that has entries, or bytes after its header. Raises OSError."""
    try:
        size, entries = content_size(path), index_path(path).stat().st_size
    except FileNotFoundError:
        return False  # a segment without an index never became visible; recovery removes it
    return entries > HEADER_SIZE or (size > 0 and size > segment_header_size(path))


def _failed(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"the operating system refused: {error.strerror}",
        place=str(path),
        remedy="Nothing that was acknowledged is lost. Free some space, or repair the disk, and start again.",
    )
