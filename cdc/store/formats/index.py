"""Index files: a header of 128 bytes, then one entry of 128 bytes for each transaction (``docs/formats/index.md``)."""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import numpy as np

from cdc import files
from cdc.binlog.constants import MAGIC as BINLOG_MAGIC
from cdc.binlog.entry import ENTRY, ENTRY_SIZE, HEADER_SIZE, MAGIC, VERSION, Entries
from cdc.errors import DamagedError, StorageError, VersionError
from cdc.store.formats.damaged import passed_over
from cdc.store.formats.layout import index_path

_HEADER = struct.Struct("<4sHH")
_BY_HAND = 64
_FEW = 8


def make_header() -> bytes:
    """Magic, version, entry size, zeros, CRC32."""
    head = _HEADER.pack(MAGIC, VERSION, ENTRY_SIZE).ljust(HEADER_SIZE - 4, b"\0")
    return head + zlib.crc32(head).to_bytes(4, "little")


def seal(entries: Entries) -> bytes:
    """The entries as they stand in a file, each with its CRC32."""
    from cdc.binlog.kernels import seal_entries

    raw = np.ascontiguousarray(entries).view(np.uint8).reshape(len(entries), ENTRY_SIZE)
    seal_entries(raw, np.zeros(16, dtype=np.uint8))
    return raw.tobytes()


def first_bad(entries: Entries) -> int:
    """Number of the first entry whose CRC32 is wrong, or -1."""
    raw = np.ascontiguousarray(entries).view(np.uint8).reshape(len(entries), ENTRY_SIZE)
    if len(raw) <= _BY_HAND:  # loading the kernel takes longer
        for k, row in enumerate(raw):
            if zlib.crc32(row[:-4].tobytes()).to_bytes(4, "little") != row[-4:].tobytes():
                return k
        return -1
    from cdc.binlog.kernels import first_bad_entry

    return int(first_bad_entry(raw, np.zeros(16, dtype=np.uint8)))


def check_header(head: bytes, path: Path) -> None:
    """Raises DamagedError, VersionError."""
    magic, version, entry_size = _HEADER.unpack_from(head)
    remedy = "Remove it: capture makes it anew from the segment at its next start."
    if magic != MAGIC or zlib.crc32(head[:-4]).to_bytes(4, "little") != head[-4:]:
        raise DamagedError("is not an index: its header is damaged", place=str(path), remedy=remedy)
    if version > VERSION or entry_size != ENTRY_SIZE:
        raise VersionError(
            f"has format version {version} with entries of {entry_size} bytes; this Towpath knows version {VERSION}",
            place=str(path),
            remedy="Use the Towpath that wrote it, or a newer one.",
        )


class IndexFile:
    """A segment's index, opened for reading: what is visible of the segment at this moment.

    ``entries`` is mapped, not read: looking at a few of millions costs a few pages.
    """

    def __init__(self, segment: Path) -> None:
        """Raises DamagedError, VersionError or StorageError; a missing or empty index is one without entries."""
        self.segment = segment
        self.path = index_path(segment)
        self.entries: Entries = np.zeros(0, dtype=ENTRY)
        try:
            with open(self.path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < HEADER_SIZE:
                    return
                head = file.read(HEADER_SIZE)
                check_header(head, self.path)
                count = (size - HEADER_SIZE) // ENTRY_SIZE
                if count:
                    self.entries = np.memmap(file, dtype=ENTRY, mode="r", offset=HEADER_SIZE, shape=(count,))
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageError(f"cannot be read: {error.strerror}", place=str(self.path)) from None
        if len(self.entries) and first_bad(self.entries[-1:]) == 0:
            self.entries = self.entries[:-1]  # being written at this moment, or torn by a crash and not yet mended

    def after(self, seq: int) -> int:
        """Number of the first entry with a larger seq. O(log n). Raises DamagedError where the search has met a
        damaged entry: it may have gone astray, and what it passed over would be lost to the reader."""
        number = int(np.searchsorted(self.entries["seq"], np.uint64(seq), side="right"))
        self.verified(max(0, number - 1), number)
        return number

    def is_whole(self) -> bool:
        """Has every transaction of the segment its entry here? Holds for each segment but the newest; one that is gone
        (by retention) lacks nothing. Raises StorageError."""
        try:
            size = self.segment.stat().st_size
            end = _end(self.entries) or head_size(self.segment)
        except FileNotFoundError:
            return True
        except OSError as error:
            raise StorageError(f"cannot be read: {error.strerror}", place=str(self.segment)) from None
        if size == end:
            return True
        given_up = passed_over(self.segment.parent.parent, self.segment.name)
        return bool(given_up) and size <= max(end, *(one.offset + one.length for one in given_up))

    def verified(self, start: int, stop: int) -> Entries:
        """A copy of some entries, their checksums verified. Raises DamagedError."""
        entries = np.array(self.entries[start:stop])
        bad = first_bad(entries)
        if bad >= 0:
            raise DamagedError(
                f"entry {start + bad} (byte {HEADER_SIZE + (start + bad) * ENTRY_SIZE}) fails its checksum",
                place=str(self.path),
                remedy="Stop capture, remove this index and start it again: it is made anew from the segment.",
            )
        return entries


def reaches_end(segment: Path) -> bool:
    """:meth:`IndexFile.is_whole`, for looking at hundreds of segments: two short reads, where a mapping would have the
    disk read ahead. Raises DamagedError, VersionError, StorageError."""
    path = index_path(segment)
    try:
        fd = files.layer.open(path, os.O_RDONLY)
        try:
            size = os.fstat(fd).st_size
            if size >= HEADER_SIZE:
                check_header(files.layer.pread(fd, HEADER_SIZE, 0), path)
            count = max(0, size - HEADER_SIZE) // ENTRY_SIZE
            few = min(count, _FEW)
            tail = files.layer.pread(fd, few * ENTRY_SIZE, HEADER_SIZE + (count - few) * ENTRY_SIZE)
        finally:
            files.layer.close(fd)
        entries: Entries = np.frombuffer(tail, dtype=ENTRY)
        there = np.flatnonzero(entries["length"])
        if len(there) and first_bad(entries[there[-1] :]) < 0 and _end(entries) == segment.stat().st_size:
            return True
    except FileNotFoundError:
        return IndexFile(segment).is_whole()
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", place=str(path)) from None
    return IndexFile(segment).is_whole()


def _end(entries: Entries) -> int:
    """Where the last transaction ends; 0 where there is none. Looked for from the end, where it nearly always is."""
    stop = len(entries)
    while stop:
        start = max(0, stop - 256)
        there = np.flatnonzero(entries["length"][start:stop])
        if len(there):
            last = start + int(there[-1])
            return int(entries["offset"][last]) + int(entries["length"][last])
        stop = start
    return 0


def head_size(segment: Path) -> int:
    """The bytes before a segment's first transaction: magic, format description, rotate event."""
    with segment.open("rb") as file:
        head = file.read(4096)
    at = len(BINLOG_MAGIC)
    for _ in range(2):
        at += int.from_bytes(head[at + 9 : at + 13], "little")
    return at


def read_entries(segment: Path, offset: int | None = None, length: int | None = None) -> Entries:
    """The verified entries of a segment that have bytes, optionally only those inside a byte range of the segment."""
    index = IndexFile(Path(segment))
    start, stop = 0, len(index.entries)
    if offset is not None:
        start = int(np.searchsorted(index.entries["offset"], np.uint64(offset), side="left"))
        if length is not None:
            stop = int(np.searchsorted(index.entries["offset"], np.uint64(offset + length), side="left"))
    entries = index.verified(start, stop)
    entries = entries[entries["length"] > 0]
    if offset is not None and length is not None:
        covered = int(entries["length"].sum())
        if covered != length or (len(entries) and int(entries["offset"][0]) != offset):
            raise DamagedError(
                f"the index has {covered} bytes of transactions in the range {offset}+{length}",
                place=str(index.path),
                remedy="Stop capture, remove this index and start it again: it is made anew from the segment.",
            )
    return entries
