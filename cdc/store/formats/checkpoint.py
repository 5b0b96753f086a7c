"""How far a store is known to be on the disk, and whether its writer ended in order: ``checkpoint`` and ``abort``.

After RocketMQ's ``StoreCheckpoint`` and abort file. ``abort`` is there while a writer is at work, so that it is left
behind by one that died. ``checkpoint`` (``docs/formats/checkpoint.md``) is replaced at the opening, when a segment is
finished, and at the end: never between two puts.
"""

from __future__ import annotations

import os
import struct
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cdc import files
from cdc.durable import remove_file, replace_file, storage_errors
from cdc.errors import DamagedError, VersionError
from cdc.store.formats.layout import index_path

if TYPE_CHECKING:
    from cdc.store.writer.segment import SegmentWriter

FILE_NAME = "checkpoint"
ABORT_NAME = "abort"
MAGIC = b"TPCP"
VERSION = 1
SIZE = 128
_FIELDS = struct.Struct("<4sHHIIQQQq40s")
_HEAD = struct.Struct("<4sHH")
_FINISHED = 1

_REMEDY = "Remove it: the next start of capture verifies the whole store instead, and writes it anew."


@dataclass(frozen=True)
class Checkpoint:
    """Everything up to here is on the disk: the segments before ``segment``, and of this one so many bytes."""

    segment: str
    """Name of the segment's file; empty in a store without any."""
    log_bytes: int
    index_bytes: int
    seq: int
    """Of the last entry; 0 where there is none."""
    time_us: int
    """When it was written, µs since 1970, UTC, this machine's clock."""
    tables: int
    """How many names ``tables.json`` had."""
    finished: bool = False
    """Nothing is ever added to the segment: what follows it is in the next one."""

    def render(self) -> bytes:
        """The file's content."""
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
    """The checkpoint in a file's content. Raises DamagedError, VersionError."""
    if len(data) < _HEAD.size or data[:4] != MAGIC:
        raise DamagedError("is not a checkpoint: it does not begin with TPCP", place=place, remedy=_REMEDY)
    _, version, size = _HEAD.unpack_from(data)
    if len(data) != size or zlib.crc32(data[:-4]).to_bytes(4, "little") != data[-4:]:
        raise DamagedError("is not whole: its size or its checksum is wrong", place=place, remedy=_REMEDY)
    if version > VERSION:
        raise VersionError(
            f"has format version {version}; this Towpath knows version {VERSION}",
            place=place,
            remedy="Use the Towpath that wrote it, or a newer one.",
        )
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
    """What the last writer noted; None where there is no such file. Raises DamagedError, VersionError, StorageError."""
    path = store / FILE_NAME
    with storage_errors(path):
        try:
            data = files.layer.read_file(path)
        except FileNotFoundError:
            return None
    return parse(data, str(path))


def was_aborted(store: Path) -> bool:
    """Is a writer at work, or did the last one die?"""
    return (store / ABORT_NAME).exists()


def forget_checkpoint(store: Path) -> None:
    """Before the end of a store is cut on purpose: nobody claims any more that it was there. The next opening verifies
    its last segments instead. Raises StorageError."""
    remove_file(store / FILE_NAME)


class Checkpoints:
    """The writer's notes while it is at work. ``count_tables`` tells how many names ``tables.json`` has."""

    def __init__(self, store: Path, count_tables: Callable[[], int]) -> None:
        self._store = store
        self._count_tables = count_tables
        self._seq = 0
        self._noted: Checkpoint | None = None

    def opened(self, last: Path | None, seq: int, *, empty: bool, finished: bool) -> None:
        """The store is recovered and synced, ``last`` its newest segment, ``empty`` where that has no transaction (it
        may be begun anew then). From here on the store says that a writer is at work."""
        self._seq = seq
        with storage_errors(self._store / ABORT_NAME):
            files.layer.close(files.layer.open(self._store / ABORT_NAME, os.O_WRONLY | os.O_CREAT))
        self._write(last, *((0, 0) if empty else _sizes(last)), finished=finished)  # syncs the folder, too

    def finished(self, segment: SegmentWriter) -> None:
        """All of the segment's transactions are visible, and it is never appended to again. Syncs its index. Call it
        before anything in the next segment is acknowledged."""
        segment.sync()
        segment.sync_index()
        self._seq = max(self._seq, segment.last_seq)
        self._write(segment.path, segment.size, segment.index_size, finished=True)

    def closed(self, segment: SegmentWriter | None) -> None:
        """The writer ends in order: everything is visible. Not to be called after a write or a flush has failed."""
        if segment is not None:
            segment.sync()
            segment.sync_index()
            self._seq = max(self._seq, segment.last_seq)
            sizes = (0, 0) if segment.is_empty else (segment.size, segment.index_size)
            self._write(segment.path, *sizes, finished=False)
        remove_file(self._store / ABORT_NAME)

    def emptied(self, seq: int) -> None:
        """All segments are about to be removed, on purpose; sequence numbers go on above ``seq``."""
        self._seq = max(self._seq, seq)
        self._write(None, 0, 0, finished=True)

    def _write(self, segment: Path | None, log_bytes: int, index_bytes: int, *, finished: bool) -> None:
        note = Checkpoint(
            segment="" if segment is None else segment.name,
            log_bytes=log_bytes,
            index_bytes=index_bytes,
            seq=self._seq,
            time_us=time.time_ns() // 1000,
            tables=self._count_tables(),
            finished=finished,
        )
        replace_file(self._store / FILE_NAME, note.render())
        self._noted = note

    def fewer_tables(self, count: int) -> None:
        """``tables.json`` is about to be replaced by one with ``count`` names, on purpose: the note must not ask for
        more."""
        if self._noted is not None and self._noted.tables > count:
            self._noted = replace(self._noted, tables=count)
            replace_file(self._store / FILE_NAME, self._noted.render())


def _sizes(segment: Path | None) -> tuple[int, int]:
    if segment is None:
        return 0, 0
    with storage_errors(segment):
        return segment.stat().st_size, index_path(segment).stat().st_size
