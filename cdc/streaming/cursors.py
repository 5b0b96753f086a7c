"""The cursors of a stream's readers: a small file for each, and the meta.

An ack must survive the program's death at once, and may come a hundred thousand times a second. So it overwrites a
record of 32 bytes in the reader's own file, in the page cache, and the operating system keeps it when the program is
killed. About once a second, and at the end, the file is flushed to the disk and the cursor is stored in the meta, with
the mark by which the source's history is recognised. A power cut may lose the last second of acks.

A file has two records that are written in turn, so that a torn one leaves the other. The format is in
``docs/formats/cursor.md``.
"""

from __future__ import annotations

import os
import struct
import threading
import time
import zlib
from pathlib import Path

from cdc.base.errors import DamagedError, StoreClosedError, VersionError
from cdc.disk.durable import explain, make_folder, storage_errors, sync_folder
from cdc.meta import HistoryMark
from cdc.meta.base import Meta
from cdc.meta.state import check_name

_FIELDS = struct.Struct("<4sHHQQ4x")
"""Magic, version, zeros, number of the write, seq, zeros. Their CRC32 follows."""
_CRC = struct.Struct("<I")
MAGIC, VERSION = b"TPCU", 1
RECORD_SIZE = _FIELDS.size + _CRC.size
_STORE_EVERY_S = 1.0


def encode(count: int, seq: int) -> bytes:
    """Returns the record of the ``count``-th write."""
    fields = _FIELDS.pack(MAGIC, VERSION, 0, count, seq)
    return fields + _CRC.pack(zlib.crc32(fields))


def decode(data: bytes, place: str) -> tuple[int, int]:
    """Returns the number of the last write and its seq; zeros for an empty file. Raises DamagedError, VersionError."""
    best, is_any = (0, 0), not data
    for at in range(0, len(data), RECORD_SIZE):
        record = data[at : at + RECORD_SIZE]
        if not record.strip(b"\0"):
            continue
        if len(record) < RECORD_SIZE or _CRC.unpack(record[-4:])[0] != zlib.crc32(record[:-4]):
            continue
        magic, version, _, count, seq = _FIELDS.unpack_from(record)
        if magic == MAGIC and version > VERSION:
            raise VersionError(
                f"has version {version}, and this Towpath knows versions up to {VERSION}",
                place=place,
                remedy="Use the newer Towpath that has written it.",
            )
        if magic == MAGIC:
            best, is_any = max(best, (count, seq)), True
    if not is_any:
        raise DamagedError(
            "has no whole record", place=place, remedy="Remove it: the reader goes on from the cursor in the meta."
        )
    return best


class Cursors:
    """The cursors of the readers that a stream has opened. Every method may be called from any thread."""

    def __init__(self, folder: Path, meta: Meta, names: tuple[str, ...]) -> None:
        """Opens the files in ``folder``, and adds the readers to the meta. Raises UsageError for a name that cannot be
        one, DamagedError, VersionError, StorageError, LeaseHeldError."""
        self._folder, self._meta = folder, meta
        self._lock = threading.Lock()
        self._files: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        self._seqs: dict[str, int] = {}
        self._marks: dict[str, HistoryMark] = {}
        self._stored_at = time.monotonic()
        self._is_changed = True
        make_folder(folder)
        try:
            for name in names:
                self._open(check_name(name))
            sync_folder(folder)
            for name in names:
                self._seqs[name] = max(self._seqs[name], meta.subscribe(name).position())
        except BaseException:
            self._close_files()
            raise

    def _open(self, name: str) -> None:
        path = self._path(name)
        with storage_errors(path):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._files[name] = fd
            data = os.pread(fd, 2 * RECORD_SIZE, 0)
        self._counts[name], self._seqs[name] = decode(data, str(path))

    def cursor(self, name: str) -> int:
        """Returns the seq up to which a reader has acked; 0 if it has not begun yet."""
        return self._seqs[name]

    def update_cursor(self, name: str, acked_seq: int) -> None:
        """Moves a cursor. It survives the program's death from now on. Raises StorageError."""
        with self._lock:
            fd = self._files.get(name)
            if fd is None:
                raise StoreClosedError(
                    "the stream is closed", place=f"reader {name!r}", remedy="Ack while the stream is open."
                )
            self._counts[name] = count = self._counts[name] + 1
            try:
                os.pwrite(fd, encode(count, acked_seq), (count & 1) * RECORD_SIZE)
            except OSError as error:
                raise explain(error, self._path(name)) from error
            self._seqs[name] = acked_seq
            self._is_changed = True

    def note(self, name: str, mark: HistoryMark) -> None:
        """Notes the mark of a reader's last acked transaction."""
        self._marks[name] = mark

    @property
    def is_due(self) -> bool:
        """Whether a cursor has moved, and :meth:`store` was called last more than a second ago."""
        return self._is_changed and time.monotonic() - self._stored_at >= _STORE_EVERY_S

    def store(self) -> None:
        """Makes the cursors durable, and stores them in the meta. Raises StorageError, LeaseHeldError."""
        with self._lock:
            self._stored_at = time.monotonic()
            self._is_changed = False
            for name, fd in self._files.items():
                with storage_errors(self._path(name)):
                    os.fdatasync(fd)
            with self._meta.change() as state:
                for name, seq in self._seqs.items():
                    subscription = state.subscriptions.get(name)
                    if subscription is None:
                        continue
                    subscription.acked_seq = max(seq, subscription.acked_seq)
                    subscription.mark = self._marks.get(name, subscription.mark)

    def remove(self, name: str) -> None:
        """Removes the file of a reader that is not open. Raises StorageError."""
        with storage_errors(self._path(name)):
            self._path(check_name(name)).unlink(missing_ok=True)

    def close(self) -> None:
        """Stores the cursors, and closes the files. May be called twice."""
        if not self._files:
            return
        try:
            self.store()
        finally:
            self._close_files()

    def _close_files(self) -> None:
        for fd in self._files.values():
            os.close(fd)
        self._files = {}

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.cursor"
