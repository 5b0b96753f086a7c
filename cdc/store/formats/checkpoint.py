"""The checkpoint of a store, and the mark of a writer at work: the files ``checkpoint`` and ``abort``.

After RocketMQ's ``StoreCheckpoint`` and abort file. ``abort`` exists while a writer is at work, so a writer that died
leaves it behind. ``checkpoint`` (``docs/formats/checkpoint.md``) is replaced when the store is opened, when a segment
is finished, and when the writer closes: never between two puts.
"""

from __future__ import annotations

import os
import struct
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from cdc.base.documents import require_version
from cdc.base.errors import DamagedError
from cdc.disk import files
from cdc.disk.durable import remove_file, replace_file, storage_errors
from cdc.disk.encryption.read import content_size
from cdc.store.formats.layout import index_path

FILE_NAME = "checkpoint"
ABORT_NAME = "abort"
MAGIC = b"TPCP"
VERSION = 1
SIZE = 128
_FIELDS = struct.Struct("<4sHHIIQQQq40s")
_HEAD = struct.Struct("<4sHH")
_FINISHED = 1

_REMEDY = "Remove it: the next start of capture verifies the whole store instead, and writes a new one."


class OpenSegment(Protocol):
    """A segment as its writer has it open."""

    path: Path
    index_size: int
    last_seq: int

    @property
    def size(self) -> int:
        """Bytes of the segment, as a binlog file."""
        ...

    @property
    def is_empty(self) -> bool:
        """Whether the segment has no entry yet."""
        ...

    def sync(self) -> None:
        """Makes the segment's bytes durable."""
        ...

    def sync_index(self) -> None:
        """Makes the index entries durable."""
        ...


@dataclass(frozen=True)
class Checkpoint:
    """The durable part of a store: all segments before ``segment``, and the first bytes of ``segment`` itself."""

    segment: str
    """Name of the segment's file; empty in a store without segments."""
    log_bytes: int
    index_bytes: int
    seq: int
    """Seq of the last entry; 0 if there is none."""
    time_us: int
    """When the checkpoint was written, µs since 1970, UTC, by this machine's clock."""
    tables: int
    """The number of names in ``tables.json``."""
    finished: bool = False
    """Whether the segment is complete: later transactions are in the next one."""

    def render(self) -> bytes:
        """Returns the content of the file."""
        head = _FIELDS.pack(
            MAGIC,
            VERSION,
            SIZE,
            _FINISHED if self.finished else 0,
            self.tables,
            self.log_bytes,
            self.index_bytes,
            self.seq,
            self.time_us,
            self.segment.encode("ascii"),
        ).ljust(SIZE - 4, b"\0")
        return head + zlib.crc32(head).to_bytes(4, "little")


def parse(data: bytes, place: str) -> Checkpoint:
    """Parses the content of a checkpoint file. Raises DamagedError, VersionError."""
    if len(data) < _HEAD.size or data[:4] != MAGIC:
        raise DamagedError("is not a checkpoint: it does not begin with TPCP", place=place, remedy=_REMEDY)
    _, version, size = _HEAD.unpack_from(data)
    if len(data) != size or zlib.crc32(data[:-4]).to_bytes(4, "little") != data[-4:]:
        raise DamagedError("is not whole: its size or its checksum is wrong", place=place, remedy=_REMEDY)
    require_version(version, VERSION, place)
    if size != SIZE:
        raise DamagedError(f"has {size} bytes; version {VERSION} has {SIZE}", place=place, remedy=_REMEDY)
    _, _, _, flags, tables, log_bytes, index_bytes, seq, time_us, name = _FIELDS.unpack_from(data)
    return Checkpoint(
        segment=name.rstrip(b"\0").decode("ascii", "replace"),
        log_bytes=log_bytes,
        index_bytes=index_bytes,
        seq=seq,
        time_us=time_us,
        tables=tables,
        finished=bool(flags & _FINISHED),
    )


def read_checkpoint(store: Path) -> Checkpoint | None:
    """Returns the last writer's checkpoint; None if there is no such file. Raises DamagedError, VersionError,
    StorageError."""
    path = store / FILE_NAME
    with storage_errors(path):
        try:
            data = files.layer.read_file(path)
        except FileNotFoundError:
            return None
    return parse(data, str(path))


def was_aborted(store: Path) -> bool:
    """Returns whether a writer is at work, or the last one died."""
    return (store / ABORT_NAME).exists()


def remove_checkpoint(store: Path) -> None:
    """Removes the checkpoint before the end of a store is cut off on purpose. The next opening verifies the store's
    last segments instead. Raises StorageError."""
    remove_file(store / FILE_NAME)


class CheckpointWriter:
    """Writes the checkpoints of a writer at work. ``count_tables`` returns the number of names in ``tables.json``."""

    def __init__(self, store: Path, count_tables: Callable[[], int]) -> None:
        self._store = store
        self._count_tables = count_tables
        self._seq = 0
        self._written: Checkpoint | None = None

    def opened(self, last: Path | None, seq: int, *, empty: bool, finished: bool) -> None:
        """Records that the store is recovered and synced, and that a writer is at work from now on. ``last`` is the
        newest segment; ``empty`` says that it has no transaction, so that it may be begun again."""
        self._seq = seq
        with storage_errors(self._store / ABORT_NAME):
            files.layer.close(files.layer.open(self._store / ABORT_NAME, os.O_WRONLY | os.O_CREAT))
        self._write(last, *((0, 0) if empty else _sizes(last)), finished=finished)  # syncs the folder, too

    def finished(self, segment: OpenSegment) -> None:
        """Records that all transactions of a segment are visible, and that nothing is appended to it again. Syncs its
        index. Call it before anything in the next segment is acknowledged."""
        segment.sync()
        segment.sync_index()
        self._seq = max(self._seq, segment.last_seq)
        self._write(segment.path, segment.size, segment.index_size, finished=True)

    def closed(self, segment: OpenSegment | None) -> None:
        """Records a clean end: everything is visible. Do not call it after a write or a flush has failed."""
        if segment is not None:
            segment.sync()
            segment.sync_index()
            self._seq = max(self._seq, segment.last_seq)
            sizes = (0, 0) if segment.is_empty else (segment.size, segment.index_size)
            self._write(segment.path, *sizes, finished=False)
        remove_file(self._store / ABORT_NAME)

    def emptied(self, seq: int) -> None:
        """Records that all segments are about to be removed on purpose; later sequence numbers are above ``seq``."""
        self._seq = max(self._seq, seq)
        self._write(None, 0, 0, finished=True)

    def fewer_tables(self, count: int) -> None:
        """Records that ``tables.json`` is about to be replaced on purpose by one with ``count`` names, so that the
        next opening does not expect more."""
        if self._written is not None and self._written.tables > count:
            self._written = replace(self._written, tables=count)
            replace_file(self._store / FILE_NAME, self._written.render())

    def _write(self, segment: Path | None, log_bytes: int, index_bytes: int, *, finished: bool) -> None:
        checkpoint = Checkpoint(
            segment="" if segment is None else segment.name,
            log_bytes=log_bytes,
            index_bytes=index_bytes,
            seq=self._seq,
            time_us=time.time_ns() // 1000,
            tables=self._count_tables(),
            finished=finished,
        )
        replace_file(self._store / FILE_NAME, checkpoint.render())
        self._written = checkpoint


def _sizes(segment: Path | None) -> tuple[int, int]:
    if segment is None:
        return 0, 0
    with storage_errors(segment):
        return content_size(segment), index_path(segment).stat().st_size
