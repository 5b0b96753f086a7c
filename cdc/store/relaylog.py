"""The relay log: the one writer of a store on disk.

Bytes are appended as they come, and a transaction becomes visible (by its index entry) only after a
``fdatasync`` that covers its bytes. That is done by a thread of its own, so one fdatasync serves all transactions that
arrived while the one before it ran (group commit, as in RocketMQ's ``GroupCommitService``).
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cdc.binlog.entry import Entries
from cdc.errors import CdcError, StorageError
from cdc.positions import split_file_name
from cdc.store import layout
from cdc.store.reader import StoreReader
from cdc.store.recovery import recover
from cdc.store.segment import SegmentWriter, head
from cdc.store.state import StoreLock, TableNumbers

_SYNC_BYTES = 16 << 20
"""Of a transaction that has not ended yet so much is left to the page cache before it is written out."""
_DIRTY_BYTES = 256 << 20
"""Above this an append waits for the disk."""


@dataclass
class _Work:
    """Something for the flusher to do, in order."""

    segment: SegmentWriter
    size: int
    """The segment has to be durable up to here first."""
    entries: Entries | None = None
    finish: bool = False


class RelayLog:
    """Appends transactions to a store.

    :meth:`append` and :meth:`publish` do not wait for the disk; :meth:`flush` does. After the operating system
    refused a write or a flush every further call raises that error: what it said it had may be gone.
    """

    def __init__(self, path: Path, *, destination: str, segment_bytes: int) -> None:
        """Open (or make) the store, take its lock, recover it. Raises StorageError, LeaseHeldError, DamagedError."""
        self.path = path
        self._segment_bytes = segment_bytes
        layout.create(path, destination)
        self._lock = StoreLock(path)
        try:
            self.tables = TableNumbers(path)
            self._segment = recover(path, self.tables).segment
            last = StoreReader(path).last_entry()
            self.last_seq: int | None = None if last is None else int(last["seq"])
            """Of the newest entry handed to :meth:`publish`."""
        except BaseException:
            self._lock.release()
            raise
        self._condition = threading.Condition()
        self._work: deque[_Work] = deque()
        self._error: CdcError | None = None
        self._closing = False
        self._idle = True
        self.flushes = 0
        """How many times fdatasync was called."""
        self.published = self.visible = 0
        """Entries handed to :meth:`publish`, and how many of them readers can see."""
        self._thread = threading.Thread(target=self._run, name="flusher", daemon=True)
        self._thread.start()

    # --- writing

    def begin(self, epoch: int, file: str, pos: int, format_description: bytes, server_id: int) -> int:
        """Events from ``file``, from ``pos`` on, come next; returns the offset in the segment at which they go on. The
        segment stays the same where nothing but the connection is new."""
        data = head(format_description, file, pos, server_id)
        segment = self._segment
        if (
            segment is not None
            and segment.file == file
            and layout.segment_epoch(segment.path) == epoch
            and segment.size < self._segment_bytes
            and segment.begins_with(data)
        ):
            return segment.size
        return self._new_segment(epoch, file, pos, data)

    def roll(self, epoch: int, pos: int) -> int:
        """Begin a new segment inside the same source file; returns the offset at which it goes on."""
        assert self._segment is not None
        with open(self._segment.path, "rb") as old:
            data = old.read(self._segment.head_size)
        return self._new_segment(epoch, self._segment.file, pos, _with_rotate_pos(data, pos))

    def _new_segment(self, epoch: int, file: str, pos: int, data: bytes) -> int:
        name = layout.segment_name(epoch, split_file_name(file)[1], pos)
        old = self._segment
        if old is not None and old.path.name == name:  # it holds nothing yet
            self.flush()
            old.close()
            old = None
        new = SegmentWriter.create(layout.segments_folder(self.path) / name, data, file)
        if old is not None:
            self._add(_Work(old, old.size, finish=True))
        self._segment = new
        return new.size

    def append(self, data: memoryview) -> None:
        """Bytes of whole or unfinished transactions. Waits while too much is not on the disk yet."""
        self._check()
        segment = self._segment
        assert segment is not None
        segment.append(data)
        if segment.size - segment.synced > _SYNC_BYTES and self._idle:
            self._add(_Work(segment, segment.size))
        if segment.size - segment.synced > _DIRTY_BYTES:
            self.flush()

    def publish(self, entries: Entries) -> None:
        """Make transactions visible, as soon as their bytes are durable. In order of seq."""
        self._check()
        segment = self._segment
        assert segment is not None
        if len(entries) == 0:
            return
        self.last_seq = int(entries["seq"][-1])
        there = np.flatnonzero(entries["length"])
        size = int(entries["offset"][there[-1]] + entries["length"][there[-1]]) if len(there) else 0
        self.published += len(entries)
        self._add(_Work(segment, size, entries))

    def cut(self, offset: int) -> None:
        """Forget the bytes of an unfinished transaction."""
        segment = self._segment
        if segment is not None and segment.size > offset:
            self.flush()
            segment.truncate(offset)

    def set_statement_end(self, offset: int, length: int) -> int:
        """Mark a row event that was appended already as its statement's last; returns its new checksum."""
        assert self._segment is not None
        return self._segment.set_statement_end(offset, length)

    def flush(self) -> None:
        """Wait until everything published is durable and visible. Raises what the flusher met."""
        with self._condition:
            while (self._work or not self._idle) and self._error is None:
                self._condition.wait()
        self._check()

    def close(self) -> None:
        """Flush what can be, and let the lock go."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        self._thread.join()
        if self._segment is not None:
            self._segment.close()
        self._lock.release()

    # --- the flusher

    def _check(self) -> None:
        if self._error is not None:
            raise StorageError(self._error.message, place=self._error.place, remedy=self._error.remedy)

    def _add(self, work: _Work) -> None:
        with self._condition:
            self._work.append(work)
            self._condition.notify_all()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._idle = not self._work
                self._condition.notify_all()
                while not self._work and not self._closing:
                    self._condition.wait()
                if not self._work:
                    return
                self._idle = False
                segment = self._work[0].segment
                batch: list[_Work] = []
                while self._work and self._work[0].segment is segment:
                    batch.append(self._work.popleft())
            try:
                self._flush_segment(segment, batch)
            except CdcError as error:
                with self._condition:
                    self._error = error
                    self._work.clear()
                    self._idle = True
                    self._condition.notify_all()
                return

    def _flush_segment(self, segment: SegmentWriter, batch: list[_Work]) -> None:
        if max(work.size for work in batch) > segment.synced:
            segment.sync()
            self.flushes += 1
        entries = [work.entries for work in batch if work.entries is not None]
        if entries:
            segment.publish(np.concatenate(entries) if len(entries) > 1 else entries[0])
            self.visible += sum(len(part) for part in entries)
        if batch[-1].finish:
            segment.close()


def _with_rotate_pos(data: bytes, pos: int) -> bytes:
    """A segment's head with another position in its rotate event."""
    from cdc.binlog.constants import MAGIC
    from cdc.binlog.events import parse_header, with_checksum

    at = len(MAGIC) + parse_header(data[len(MAGIC) :]).length
    rotate = bytearray(data[at:])
    rotate[19:27] = pos.to_bytes(8, "little")
    return data[:at] + with_checksum(bytes(rotate))
