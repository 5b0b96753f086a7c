"""The time index (``clock.log``): the source's clock at positions of its binlog (``docs/formats/clock.md``).

A record (seq, time) says: every transaction that was committed before this time ends at or before this seq. Capture
writes it. With it, ``until T`` finds the position of T in the binlog without trusting the commit times of
transactions: on some servers those are the start times of statements, and a session can set them to anything.

The records are facts about the source, not about the store. They stay true when either is lost; losing the file costs
only its help.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cdc.base.errors import DamagedError, StorageError, VersionError
from cdc.binlog.entry import Entries
from cdc.disk import files
from cdc.disk.durable import replace_file
from cdc.store.formats.index import IndexFile
from cdc.store.formats.layout import list_segments, segment_start
from cdc.store.formats.state import lock_holder, read_capture_state

MAGIC = b"TPCK"
VERSION = 1
HEADER_SIZE = RECORD_SIZE = 32
MARGIN_US = 1_000_000
"""Subtracted from the clock's answer before it is recorded: a transaction may have its commit time, and not yet its
position in the binlog, when the clock is asked."""

RECORD = np.dtype([("seq", "<u8"), ("time_us", "<i8"), ("zeros", "V12"), ("crc", "<u4")])
assert RECORD.itemsize == RECORD_SIZE

_HEADER = struct.Struct("<4sHH20s")
_MANY_RECORDS = 65536
_REMEDY = "Stop capture, remove it and start capture again, which begins a new one; until then commit times decide."

Records = npt.NDArray[np.void]


def time_index_path(store: Path) -> Path:
    return store / "clock.log"


class TimeIndexWriter:
    """Appends records; the caller holds the store's lock. The file is not synced: see the module."""

    def __init__(self, store: Path) -> None:
        """Opens or creates the file, truncates a torn record at its end, and drops the records before the oldest
        segment. Raises DamagedError, VersionError, StorageError."""
        self._path = time_index_path(store)
        _drop_old(store)
        try:
            self._fd = files.plain.open(self._path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise _failed(self._path, error) from None
        try:
            self._count = self._recover()
        except BaseException:
            os.close(self._fd)
            raise
        last = os.pread(self._fd, RECORD_SIZE, self._at(self._count - 1)) if self._count else b""
        self._seq, self._time_us = struct.unpack_from("<Qq", last) if last else (0, 0)

    def add(self, seq: int, time_us: int) -> None:
        """Appends a record; ignores one that says less than the last. Raises StorageError."""
        if time_us <= self._time_us or seq < self._seq:
            return
        # Nothing was committed in between: the last record is replaced, and the file does not grow.
        number = self._count - 1 if self._count and seq == self._seq else self._count
        try:
            os.pwrite(self._fd, _record(seq, time_us), self._at(number))
        except OSError as error:
            raise _failed(self._path, error) from None
        self._count, self._seq, self._time_us = number + 1, seq, time_us

    def close(self) -> None:
        os.close(self._fd)

    @staticmethod
    def _at(number: int) -> int:
        return HEADER_SIZE + number * RECORD_SIZE

    def _recover(self) -> int:
        """Truncates damaged records at the end. Returns the number of records."""
        size = os.fstat(self._fd).st_size
        if size < HEADER_SIZE:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, make_header(), 0)
            return 0
        _check(os.pread(self._fd, HEADER_SIZE, 0), self._path)
        count = (size - HEADER_SIZE) // RECORD_SIZE
        while count and not _is_sound(os.pread(self._fd, RECORD_SIZE, self._at(count - 1))):
            count -= 1
        os.ftruncate(self._fd, self._at(count))
        return count


class CommitTimeLimit:
    """Maps a commit time to a position in the store: which entries were committed before it.

    Up to a seq that the time index names, all of them were; after another, none was. Of the entries in between, about
    two seconds' worth, the limit takes the longest run whose running maximum of commit times lies before the time.
    """

    def __init__(self, store: Path, until_us: int) -> None:
        """Searches the time index in O(log n). Without a time index, commit times alone decide. Raises DamagedError,
        VersionError, StorageError."""
        self._until_us = until_us
        self._newest_us = -1
        self._end: int | None = None
        self.certain_seq = 0
        """Every transaction up to this seq was committed before the time."""
        records = read_time_index(store)
        times = records["time_us"]
        at = int(np.searchsorted(times, until_us, side="left"))
        if at < len(records):
            self._end = int(_sound(records, at, store)["seq"])
        # A record's position was asked for after its clock: only the next record's clock is later than that position.
        after = int(np.searchsorted(times, until_us - MARGIN_US, side="left"))
        if after >= 2:
            self.certain_seq = int(_sound(records, after - 2, store)["seq"])

    def count_before(self, entries: Entries) -> int:
        """Returns how many of the next entries were committed before the time, up to the first that was not. Call it
        with all entries in their order."""
        certain = entries["seq"] <= np.uint64(self.certain_seq)
        times = np.where(certain, np.int64(-1), entries["commit_time_us"])
        newest = np.maximum.accumulate(np.maximum(times, self._newest_us))
        late = newest >= self._until_us
        if self._end is not None:
            late |= entries["seq"] > np.uint64(self._end)
        if len(newest):
            self._newest_us = int(newest[-1])
        late_numbers = np.flatnonzero(late)
        return int(late_numbers[0]) if len(late_numbers) else len(entries)


def complete_until_us(store: Path) -> int:
    """Returns the moment, by the source's clock, before which every committed transaction can be read here; 0 if it is
    not known.

    Capture writes it to its state file. Neither that file nor the index is synced. After a power cut the file may name
    a moment whose entries the index has lost, so it counts only once capture has completed the index. Raises
    DamagedError, StorageError.
    """
    state = read_capture_state(store)
    if state is None:
        return 0
    segments = list_segments(store)
    if segments and not IndexFile(segments[-1]).is_whole() and not (state.running and lock_holder(store) == state.pid):
        return 0
    return state.complete_until_us


def read_time_index(store: Path) -> Records:
    """Returns all records, mapped, without a torn last one; none if there is no file. Raises DamagedError,
    VersionError, StorageError."""
    path = time_index_path(store)
    nothing = np.zeros(0, dtype=RECORD)
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < HEADER_SIZE:
                return nothing
            _check(file.read(HEADER_SIZE), path)
            count = (size - HEADER_SIZE) // RECORD_SIZE
            if count == 0:
                return nothing
            records: Records = np.memmap(file, dtype=RECORD, mode="r", offset=HEADER_SIZE, shape=(count,))
    except FileNotFoundError:
        return nothing
    except OSError as error:
        raise _failed(path, error) from None
    return records if _is_sound(records[-1].tobytes()) else records[:-1]


def _drop_old(store: Path) -> None:
    """Drops the records of removed segments, except the one just before the rest, once there are many."""
    segments = list_segments(store)
    records = read_time_index(store)
    if not segments or len(records) < _MANY_RECORDS:
        return
    keep = int(np.searchsorted(records["seq"], np.uint64(segment_start(segments[0]) or 0), side="left")) - 1
    if keep > len(records) // 2:
        replace_file(time_index_path(store), make_header() + records[keep:].tobytes())


def make_header() -> bytes:
    """Returns the header: magic, version, record size, zeros, CRC32."""
    head = _HEADER.pack(MAGIC, VERSION, RECORD_SIZE, b"")
    return head + zlib.crc32(head).to_bytes(4, "little")


def _record(seq: int, time_us: int) -> bytes:
    body = struct.pack("<Qq12x", seq, time_us)
    return body + zlib.crc32(body).to_bytes(4, "little")


def _is_sound(record: bytes) -> bool:
    return len(record) == RECORD_SIZE and zlib.crc32(record[:-4]).to_bytes(4, "little") == record[-4:]


def _sound(records: Records, number: int, store: Path) -> np.void:
    """Returns a verified record. It is read again if its checksum is wrong, since the writer may be replacing it."""
    for _ in range(3):
        record: np.void = np.array(records[number : number + 1])[0]
        if _is_sound(record.tobytes()):
            return record
    place = f"{time_index_path(store)}: record {number} (byte {HEADER_SIZE + number * RECORD_SIZE})"
    raise DamagedError("fails its checksum", place=place, remedy=_REMEDY)


def _check(head: bytes, path: Path) -> None:
    magic, version, size, _ = _HEADER.unpack_from(head)
    if magic != MAGIC or zlib.crc32(head[:-4]).to_bytes(4, "little") != head[-4:]:
        raise DamagedError("is not a time index: its header is damaged", place=str(path), remedy=_REMEDY)
    if version > VERSION or size != RECORD_SIZE:
        raise VersionError(
            f"has format version {version} with records of {size} bytes; this Towpath knows version {VERSION}",
            place=str(path),
            remedy="Use the Towpath that wrote it, or a newer one.",
        )


def _failed(path: Path, error: OSError) -> StorageError:
    return StorageError(f"cannot be read or written: {error.strerror}", place=str(path))
