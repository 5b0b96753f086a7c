"""Index files and the stats made from them (``docs/formats/index.md``).

An index has a header of 128 bytes, then one entry of 128 bytes for each transaction of its segment. A transaction is
visible once its entry is written. ``counts.json`` keeps the stats of finished segments, so that questions about a
whole store read few entries; retention writes it, and it is made anew when it is lost.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import zlib
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from cdc.base.errors import DamagedError, StorageError, VersionError
from cdc.binlog.entry import ENTRY, ENTRY_SIZE, HEADER_SIZE, MAGIC, VERSION, Entries
from cdc.binlog.entry_checksums import first_bad_entry, seal_entries
from cdc.disk import files
from cdc.disk.durable import replace_file
from cdc.disk.encryption.read import content_size
from cdc.store.formats import layout
from cdc.store.formats.layout import index_path
from cdc.store.formats.missing import kept_names, skipped_ranges
from cdc.store.formats.segment_header import segment_header_size

STATS_FILE = "counts.json"

_HEADER = struct.Struct("<4sHH")
_WITHOUT_KERNEL = 64
"""Up to so many entries are verified without the compiled kernel, which takes longer to load."""
_TAIL_ENTRIES = 8
_PART_ENTRIES = 1 << 15
_REBUILD = "Stop capture, remove this index and start it again: it is made anew from the segment."


def make_header() -> bytes:
    """Returns the header of an index: magic, version, entry size, zeros, CRC32."""
    head = _HEADER.pack(MAGIC, VERSION, ENTRY_SIZE).ljust(HEADER_SIZE - 4, b"\0")
    return head + zlib.crc32(head).to_bytes(4, "little")


def seal(entries: Entries) -> bytes:
    """Returns the entries as they are written to a file, each with its CRC32."""
    raw = np.ascontiguousarray(entries).view(np.uint8).reshape(-1)
    seal_entries(raw, np.zeros(16, dtype=np.uint8))
    return raw.tobytes()


def first_bad(entries: Entries) -> int:
    """Returns the number of the first entry whose CRC32 is wrong, or -1."""
    raw = np.ascontiguousarray(entries).view(np.uint8).reshape(len(entries), ENTRY_SIZE)
    if len(raw) <= _WITHOUT_KERNEL:
        for k, row in enumerate(raw):
            if zlib.crc32(row[:-4].tobytes()).to_bytes(4, "little") != row[-4:].tobytes():
                return k
        return -1

    return int(first_bad_entry(raw.reshape(-1), np.zeros(16, dtype=np.uint8)))


def check_header(head: bytes, path: Path) -> None:
    """Raises DamagedError or VersionError unless ``head`` is the header of an index that this Towpath can read."""
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
    """A segment's index, opened for reading: the transactions that are visible at this moment.

    ``entries`` is mapped, not read: a look at a few of millions of entries touches a few pages.
    """

    def __init__(self, segment: Path) -> None:
        """Opens the index; a missing or empty one has no entries. Raises DamagedError, VersionError, StorageError."""
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
            self.entries = self.entries[:-1]  # being written at this moment, or torn by a crash and not repaired yet

    def parts(self, start: int = 0, stop: int | None = None) -> Iterator[Entries]:
        """Yields the entries from ``start`` to ``stop``, some thousands at a time. There may be millions, so the pages
        of each part leave this process's memory before the next one."""
        stop = len(self.entries) if stop is None else stop
        for at in range(start, stop, _PART_ENTRIES):
            yield self.entries[at : min(at + _PART_ENTRIES, stop)]
            self._release()

    def verified_parts(self, start: int = 0, stop: int | None = None) -> Iterator[Entries]:
        """:meth:`parts` as :meth:`verified` copies."""
        stop = len(self.entries) if stop is None else stop
        for at in range(start, stop, _PART_ENTRIES):
            part = self.verified(at, min(at + _PART_ENTRIES, stop))
            self._release()
            yield part

    def from_end(self, field: str) -> Iterator[int]:
        """Yields the numbers of the entries whose field is not 0, from the last one to the first one."""
        for stop in range(len(self.entries), 0, -_PART_ENTRIES):
            start = max(0, stop - _PART_ENTRIES)
            yield from (start + int(at) for at in np.flatnonzero(self.entries[field][start:stop])[::-1])
            self._release()

    def _release(self) -> None:
        """Takes the pages that were looked at out of this process's memory; they are read again when they are
        needed."""
        mapped = getattr(self.entries, "_mmap", None)
        if mapped is not None:
            mapped.madvise(mmap.MADV_DONTNEED)

    def after(self, seq: int) -> int:
        """Returns the number of the first entry with a larger seq. O(log n).

        Raises DamagedError if the entry before it is damaged: the search may then have gone wrong, and the reader
        would miss transactions.
        """
        number = int(np.searchsorted(self.entries["seq"], np.uint64(seq), side="right"))
        self.verified(max(0, number - 1), number)
        return number

    def is_whole(self) -> bool:
        """Returns whether every transaction of the segment has its entry. True for each segment but the newest, and
        for one that retention has removed. Raises StorageError."""
        try:
            size = content_size(self.segment)
            end = _end(self.entries) or segment_header_size(self.segment)
        except FileNotFoundError:
            return True
        except OSError as error:
            raise StorageError(f"cannot be read: {error.strerror}", place=str(self.segment)) from None
        if size == end:
            return True
        lost = skipped_ranges(self.segment.parent.parent, self.segment.name)
        return bool(lost) and size <= max(end, *(lost_range.offset + lost_range.length for lost_range in lost))

    def verified(self, start: int, stop: int) -> Entries:
        """Returns a copy of some entries. Raises DamagedError if a checksum is wrong."""
        entries = np.array(self.entries[start:stop])
        bad = first_bad(entries)
        if bad >= 0:
            raise DamagedError(
                f"entry {start + bad} (byte {HEADER_SIZE + (start + bad) * ENTRY_SIZE}) fails its checksum",
                place=str(self.path),
                remedy=_REBUILD,
            )
        return entries


def reaches_end(segment: Path) -> bool:
    """:meth:`IndexFile.is_whole` by two short reads, for hundreds of segments: mapping each index would make the disk
    read ahead. Raises DamagedError, VersionError, StorageError."""
    path = index_path(segment)
    try:
        fd = files.layer.open(path, os.O_RDONLY)
        try:
            size = os.fstat(fd).st_size
            if size >= HEADER_SIZE:
                check_header(files.layer.pread(fd, HEADER_SIZE, 0), path)
            count = max(0, size - HEADER_SIZE) // ENTRY_SIZE
            few = min(count, _TAIL_ENTRIES)
            tail = files.layer.pread(fd, few * ENTRY_SIZE, HEADER_SIZE + (count - few) * ENTRY_SIZE)
        finally:
            files.layer.close(fd)
        entries: Entries = np.frombuffer(tail, dtype=ENTRY)
        transactions = np.flatnonzero(entries["length"])
        if len(transactions) and first_bad(entries[transactions[-1] :]) < 0 and _end(entries) == content_size(segment):
            return True
    except FileNotFoundError:
        return IndexFile(segment).is_whole()
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", place=str(path)) from None
    return IndexFile(segment).is_whole()


def _end(entries: Entries) -> int:
    """Returns the end offset of the last transaction; 0 if there is none. Searches from the end, where it usually
    is."""
    stop = len(entries)
    while stop:
        start = max(0, stop - 256)
        transactions = np.flatnonzero(entries["length"][start:stop])
        if len(transactions):
            last = start + int(transactions[-1])
            return int(entries["offset"][last]) + int(entries["length"][last])
        stop = start
    return 0


def read_entries(segment: Path, offset: int | None = None, length: int | None = None) -> Entries:
    """Returns the verified entries of a segment that have bytes, optionally only those inside a byte range. Raises
    DamagedError if the entries do not cover the range."""
    index = IndexFile(Path(segment))
    start, stop = 0, len(index.entries)
    if offset is not None:
        offsets = index.entries["offset"]  # of a mapped file: numpy's search would read all of it
        start = bisect_left(offsets, offset)
        if length is not None:
            stop = bisect_left(offsets, offset + length, start)
    entries = index.verified(start, stop)
    has_bytes = entries["length"] > 0
    if not has_bytes.all():
        entries = entries[has_bytes]
    if offset is not None and length is not None:
        covered = int(entries["length"].sum())
        if covered != length or (len(entries) and int(entries["offset"][0]) != offset):
            raise DamagedError(
                f"the index has {covered} bytes of transactions in the range {offset}+{length}",
                place=str(index.path),
                remedy=_REBUILD,
            )
    return entries


# --- stats of segments


@dataclass(frozen=True)
class SegmentStats:
    """Stats of a segment's entries."""

    entries: int = 0
    transactions: int = 0
    bytes: int = 0
    """Bytes of its transactions, without the segment's header."""
    newest_commit_us: int = 0
    """The latest commit time, µs since 1970."""


def stats_of(index: IndexFile) -> SegmentStats:
    """Computes the stats of a segment's entries."""
    transactions = size = newest = 0
    for part in index.parts():
        lengths = part["length"]
        transactions += int(np.count_nonzero(lengths))
        size += int(lengths.sum())
        newest = max(newest, int(part["commit_time_us"].max()))
    return SegmentStats(len(index.entries), transactions, size, newest)


class StoreStats:
    """The stats of a store's segments: from ``counts.json`` if it has them, else computed."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self.by_segment = _read_stats(store / STATS_FILE)

    def recorded(self, name: str) -> SegmentStats | None:
        """Returns the recorded stats of a segment; None if there are none, or the index has grown since."""
        stats = self.by_segment.get(name)
        if stats is None:
            return None
        try:
            size = index_path(layout.segments_folder(self._store) / name).stat().st_size
        except FileNotFoundError:
            return None
        return stats if (size - HEADER_SIZE) // ENTRY_SIZE == stats.entries else None

    def of(self, name: str) -> SegmentStats:
        """Returns the stats of a segment at this moment. Raises what opening an index raises."""
        stats = self.recorded(name)
        return stats_of(IndexFile(layout.segments_folder(self._store) / name)) if stats is None else stats


def update_stats(store: Path) -> None:
    """Records the stats of segments that were finished since the last call; a power cut may lose them. The caller
    holds the retention's lock."""
    stats = StoreStats(store)
    by_segment: dict[str, SegmentStats] = {}
    for name in kept_names(store)[:-1]:
        segment_stats = stats.recorded(name)
        if segment_stats is None:
            index = IndexFile(layout.segments_folder(store) / name)
            segment_stats = stats_of(index) if index.is_whole() else None
        if segment_stats is not None:
            by_segment[name] = segment_stats
    if by_segment != stats.by_segment:
        document = {
            "version": 1,
            "segments": {name: asdict(recorded_stats) for name, recorded_stats in by_segment.items()},
        }
        replace_file(store / STATS_FILE, json.dumps(document).encode() + b"\n", durable=False)


def _read_stats(path: Path) -> dict[str, SegmentStats]:
    """Returns the recorded stats; none if the file is missing or damaged. Raises VersionError."""
    try:
        document = layout.read_document(path)
        return (
            {} if document is None else {name: SegmentStats(**fields) for name, fields in document["segments"].items()}
        )
    except (DamagedError, KeyError, TypeError, AttributeError):
        return {}
