"""The clock log: what the source's clock said at which place of its binlog (``docs/formats/clock.md``).

A record (seq, time) says: everything that was committed before this time ends at or before this seq. Capture writes it;
with it, ``until T`` finds the place of T in the binlog without trusting the times that transactions carry. Those are
the starts of statements on some servers, and anything that a session sets on others.

The records are facts about the source, not about the store: they stay true when either is lost, and losing the log
costs only the help that it is.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cdc import files
from cdc.binlog.entry import Entries
from cdc.durable import replace_file
from cdc.errors import DamagedError, StorageError, VersionError
from cdc.store.formats.index import IndexFile
from cdc.store.formats.layout import list_segments, segment_start
from cdc.store.formats.state import read_capture_state

MAGIC = b"TPCK"
VERSION = 1
HEADER_SIZE = RECORD_SIZE = 32
MARGIN_US = 1_000_000
"""A transaction may have its commit time, and not yet its place in the binlog, when the clock is asked: times in the
log are the clock's answer less this."""

RECORD = np.dtype([("seq", "<u8"), ("time_us", "<i8"), ("zeros", "V12"), ("crc", "<u4")])
assert RECORD.itemsize == RECORD_SIZE

_HEADER = struct.Struct("<4sHH20s")
_WORTH_DROPPING = 65536
_REMEDY = "Remove it while capture stands still: capture begins a new one, and until then commit times alone decide."

Records = npt.NDArray[np.void]


def clock_path(store: Path) -> Path:
    return store / "clock.log"


class ClockLog:
    """The one writer's side; the store's lock protects it. Not synced: see the module."""

    def __init__(self, store: Path) -> None:
        """Open or begin the log; cut off what a crash tore, and drop what lies before the oldest segment. Raises
        DamagedError, VersionError, StorageError."""
        self._path = clock_path(store)
        _drop_old(store)
        try:
            self._fd = files.plain.open(self._path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise _refused(self._path, error) from None
        try:
            self._count = self._recover()
        except BaseException:
            os.close(self._fd)
            raise
        last = os.pread(self._fd, RECORD_SIZE, self._at(self._count - 1)) if self._count else b""
        self._seq, self._time_us = struct.unpack_from("<Qq", last) if last else (0, 0)

    def add(self, seq: int, time_us: int) -> None:
        """Note a record; one that says less than the last is passed over. Raises StorageError."""
        if time_us <= self._time_us or seq < self._seq:
            return
        # Nothing was committed in between: the last record says more now, and the log does not grow.
        number = self._count - 1 if self._count and seq == self._seq else self._count
        try:
            os.pwrite(self._fd, _record(seq, time_us), self._at(number))
        except OSError as error:
            raise _refused(self._path, error) from None
        self._count, self._seq, self._time_us = number + 1, seq, time_us

    def close(self) -> None:
        os.close(self._fd)

    @staticmethod
    def _at(number: int) -> int:
        return HEADER_SIZE + number * RECORD_SIZE

    def _recover(self) -> int:
        """The number of sound records."""
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


class Until:
    """Where a time lies, for who reads a store: which entries were committed before it. Entries are shown to it in
    their order.

    Up to a place that the log knows, all were; behind another, none was. In between, about two seconds' worth, the
    longest run whose commit times (the largest so far) lie before the time.
    """

    def __init__(self, store: Path, until_us: int) -> None:
        """O(log n). Without a log, commit times alone decide. Raises DamagedError, VersionError, StorageError."""
        self._until_us = until_us
        self._newest_us = -1
        self._end: int | None = None
        self.surely_before = 0
        """Everything with a seq up to this was committed before."""
        records = read_clock(store)
        times = records["time_us"]
        at = int(np.searchsorted(times, until_us, side="left"))
        if at < len(records):
            self._end = int(_sound(records, at, store)["seq"])
        # A record's place was asked for after its clock: only the next record's clock is later than what stands there.
        after = int(np.searchsorted(times, until_us - MARGIN_US, side="left"))
        if after >= 2:
            self.surely_before = int(_sound(records, after - 2, store)["seq"])

    def stop(self, entries: Entries) -> int:
        """How many of the next entries were committed before the time; what follows the first that was not does not
        count."""
        surely = entries["seq"] <= np.uint64(self.surely_before)
        times = np.where(surely, np.int64(-1), entries["commit_time_us"])
        newest = np.maximum.accumulate(np.maximum(times, self._newest_us))
        late = newest >= self._until_us
        if self._end is not None:
            late |= entries["seq"] > np.uint64(self._end)
        if len(newest):
            self._newest_us = int(newest[-1])
        found = np.flatnonzero(late)
        return int(found[0]) if len(found) else len(entries)


def complete_until_us(store: Path) -> int:
    """Everything that was committed before this moment, by the source's clock, can be read here; 0: not known.

    Capture says so in its state file. That and the index are not synced, so that after a power cut the one may promise
    what the other has lost, until capture has started again and completed the index. Raises DamagedError, StorageError.
    """
    state = read_capture_state(store)
    if state is None:
        return 0
    segments = list_segments(store)
    if segments and not IndexFile(segments[-1]).is_whole() and not (state.running and _writer(store) == state.pid):
        return 0
    return state.complete_until_us


def _writer(store: Path) -> int | None:
    """The process that holds, or held, the store's lock."""
    try:
        text = (store / "lock").read_text()
    except OSError:
        return None
    return int(text) if text.strip().isdecimal() else None


def read_clock(store: Path) -> Records:
    """All records, mapped; a torn last one is left out; none where there is no log."""
    path = clock_path(store)
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
        raise _refused(path, error) from None
    return records if _is_sound(records[-1].tobytes()) else records[:-1]


def _drop_old(store: Path) -> None:
    """Once in a while: what retention has removed needs no times, but for the record just before the rest."""
    segments = list_segments(store)
    records = read_clock(store)
    if not segments or len(records) < _WORTH_DROPPING:
        return
    keep = int(np.searchsorted(records["seq"], np.uint64(segment_start(segments[0]) or 0), side="left")) - 1
    if keep > len(records) // 2:
        replace_file(clock_path(store), make_header() + records[keep:].tobytes())


def make_header() -> bytes:
    """Magic, version, record size, zeros, CRC32."""
    head = _HEADER.pack(MAGIC, VERSION, RECORD_SIZE, b"")
    return head + zlib.crc32(head).to_bytes(4, "little")


def _record(seq: int, time_us: int) -> bytes:
    body = struct.pack("<Qq12x", seq, time_us)
    return body + zlib.crc32(body).to_bytes(4, "little")


def _is_sound(record: bytes) -> bool:
    return len(record) == RECORD_SIZE and zlib.crc32(record[:-4]).to_bytes(4, "little") == record[-4:]


def _sound(records: Records, number: int, store: Path) -> np.void:
    """A record, verified. The writer may be replacing the last one at this moment: then it is read once more."""
    for _ in range(3):
        found: np.void = np.array(records[number : number + 1])[0]
        if _is_sound(found.tobytes()):
            return found
    place = f"{clock_path(store)}: record {number} (byte {HEADER_SIZE + number * RECORD_SIZE})"
    raise DamagedError("fails its checksum", place=place, remedy=_REMEDY)


def _check(head: bytes, path: Path) -> None:
    magic, version, size, _ = _HEADER.unpack_from(head)
    if magic != MAGIC or zlib.crc32(head[:-4]).to_bytes(4, "little") != head[-4:]:
        raise DamagedError("is not a clock log: its header is damaged", place=str(path), remedy=_REMEDY)
    if version > VERSION or size != RECORD_SIZE:
        raise VersionError(
            f"has format version {version} with records of {size} bytes; this Towpath knows version {VERSION}",
            place=str(path),
            remedy="Use the Towpath that wrote it, or a newer one.",
        )


def _refused(path: Path, error: OSError) -> StorageError:
    return StorageError(f"cannot be read or written: {error.strerror}", place=str(path))
