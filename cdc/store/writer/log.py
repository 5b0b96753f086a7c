"""The relay log: opening a store for writing, and appending to its newest segment.

Bytes are appended as they come. A transaction becomes visible, by its index entry, only after a ``fdatasync`` that
covers its bytes; :mod:`cdc.store.writer.flush` does both.

:class:`LogWriter` is what all writers share. Capture appends its stream of bytes with :class:`RelayLog`; programs put
whole transactions with :class:`cdc.event_store.transaction_log.TransactionLog`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from cdc.base.errors import CdcError, StorageError, StoreClosedError, UsageError
from cdc.base.log import get_logger
from cdc.binlog.entry import Entries
from cdc.binlog.positions import format_seq, split_file_name
from cdc.disk import files
from cdc.disk.durable import storage_errors
from cdc.disk.encryption import keys
from cdc.disk.encryption.append import truncate_content
from cdc.disk.permissions import Permissions
from cdc.store.formats import layout
from cdc.store.formats.missing import finish_removal, removal_lock
from cdc.store.formats.segment_header import make_segment_header, with_rotate_pos
from cdc.store.formats.state import StoreLock, TableNumbers
from cdc.store.recovery.recover import recover
from cdc.store.writer.durability import FlushPolicy
from cdc.store.writer.flush import Flusher, FlushRange, FlushRequest, LogEnd
from cdc.store.writer.segment import SegmentWriter, holds_transactions

log = get_logger(__name__)

_SYNC_BYTES = 16 << 20
"""Bytes of an unfinished transaction that are left to the page cache before they are flushed."""
DIRTY_BYTES = 256 << 20
"""Above so many bytes that are not durable, an append or a put waits for the disk."""


class LogTail:
    """The end of the log: the newest segment, and the position in it. Knows no threads.

    The requests that it returns have to be flushed in their order.
    """

    def __init__(self, store: Path, segment: SegmentWriter | None, last_seq: int | None, segment_bytes: int) -> None:
        self.segment = segment
        self.segment_bytes = segment_bytes
        self.last_seq = last_seq
        """Seq of the newest entry; None in an empty store."""
        self.published = 0
        """Entries handed out since the log was opened."""
        self.written = LogEnd("", 0, last_seq or 0)
        """The end of the newest whole transaction."""
        self._store = store
        self._finishing: list[SegmentWriter] = []
        self._has_other_key = segment is not None and segment.key_id != _key_id(segment.path)
        """Whether new segments are encrypted with another key than the current one, or one of the two is not."""
        if segment is not None:
            self._set_end(segment)

    @property
    def unfinished(self) -> bool:
        """Whether bytes of an unfinished transaction follow the newest whole one."""
        return self.segment is not None and self.segment.size > self.written.end_offset

    def is_current(self, epoch: int, file: str, header: bytes) -> bool:
        """Returns whether events of this file can go into the current segment. ``header`` is the one that a new
        segment would have."""
        segment = self.segment
        return (
            segment is not None
            and segment.file == file
            and layout.segment_epoch(segment.path) == epoch
            and segment.size < self.segment_bytes
            and not self._has_other_key
            and segment.has_header(header)
        )

    def is_begun_at(self, epoch: int, file: str, pos: int) -> bool:
        """Returns whether the current segment begins at this position. It is empty then; drop it before a new segment
        is begun there."""
        return self.segment is not None and self.segment.path == self._new_path(epoch, file, pos)

    def drop_segment(self) -> None:
        """Closes the current segment, which is empty and about to be begun again."""
        if self.segment is not None:
            self.segment.close()
            self.segment = None

    def new_segment(self, epoch: int, file: str, pos: int, header: bytes) -> SegmentWriter:
        """Begins a segment; the one before is finished with the next request. Raises StorageError, also if a segment
        of that name holds transactions."""
        new = SegmentWriter.create(self._new_path(epoch, file, pos), header, file)
        if self.segment is not None:
            self._finishing.append(self.segment)
        self.segment = new
        self._has_other_key = False
        self._set_end(new)
        return new

    def _new_path(self, epoch: int, file: str, pos: int) -> Path:
        """Returns the path of a segment that begins at a position. If a segment of that name is finished and holds
        nothing but the position itself, the next name is free, because no transaction is that short."""
        folder = layout.segments_folder(self._store)
        path = folder / _segment_name(epoch, file, pos)
        if self.last_seq == layout.segment_start(path):
            with storage_errors(path):
                if holds_transactions(path):
                    return folder / _segment_name(epoch, file, pos + 1)
        return path

    def rolled_header(self, pos: int) -> bytes:
        """Returns the header of a segment that continues the current one's source file. Raises StorageError."""
        assert self.segment is not None
        return with_rotate_pos(self.segment.header(), pos)

    def take_finished(self) -> tuple[SegmentWriter, ...]:
        """Returns the segments that were finished since the last call."""
        finished, self._finishing = tuple(self._finishing), []
        return finished

    def advance(self, count: int, last_seq: int, end_offset: int) -> LogEnd:
        """Moves the end of the log after ``count`` transactions were appended. Returns the new end."""
        self.last_seq = last_seq
        self.published += count
        self.written = LogEnd(self.written.segment, end_offset, last_seq)
        return self.written

    def record(self, entries: Entries) -> FlushRequest:
        """Takes the entries, at least one, of bytes that were appended to the current segment. Raises UsageError
        unless they follow the newest entry."""
        assert self.segment is not None
        if self.last_seq is not None and int(entries["seq"][0]) <= self.last_seq:
            raise UsageError(
                f"the transaction {format_seq(int(entries['seq'][0]))} does not follow the newest one, "
                f"{format_seq(self.last_seq)}",
                place=str(self.segment.path),
                remedy="The store holds it already, and nothing of it was made visible. Report this.",
            )
        transactions = np.flatnonzero(entries["length"])
        size = (
            int(entries["offset"][transactions[-1]] + entries["length"][transactions[-1]]) if len(transactions) else 0
        )
        before = self.written.end_offset
        end = self.advance(len(entries), int(entries["seq"][-1]), max(size, before))
        return FlushRequest(
            (FlushRange(self.segment, size, entries),),
            count=len(entries),
            end=end,
            size_bytes=end.end_offset - before,
        )

    def _set_end(self, segment: SegmentWriter) -> None:
        self.written = LogEnd(segment.path.name, segment.size, self.last_seq or 0)


class LogWriter:
    """A store that is open for writing: its lock, its newest segment and its flusher.

    After the operating system has refused a write or a flush, every further call raises that error: bytes that it
    reported as written may be gone.
    """

    def __init__(
        self,
        path: Path,
        *,
        destination: str,
        segment_bytes: int,
        policy: FlushPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
        permissions: Permissions = "private",
        lower_case_table_names: int = 0,
    ) -> None:
        """Opens (or creates) the store, takes its lock and recovers it. ``clock`` times asynchronous flushes. Raises
        StorageError, LeaseHeldError, DamagedError, VersionError, IdentityError."""
        self.path = path
        self.policy = FlushPolicy() if policy is None else policy
        layout.create(path, destination, permissions, lower_case_table_names)
        self._lock = StoreLock(path)
        try:
            with removal_lock(path):
                finish_removal(path)
                self.tables = TableNumbers(path)
                recovered = recover(path, self.tables)
            self._checkpoints = recovered.checkpoints
            newest = recovered.segment
            segment = None if newest is None else SegmentWriter.reopen(newest, recovered.file, recovered.header_size)
        except BaseException:
            self._lock.release()
            raise
        self._tail = LogTail(path, segment, recovered.last_seq, segment_bytes)
        self._flusher = Flusher(
            self.policy,
            last=self._tail.written,
            on_finished=self._checkpoints.finished,
            on_failure=self._truncate_unflushed,
            on_moved=self._moved,
            clock=clock,
        )
        self.on_moved: list[Callable[[], None]] = []
        """Called, on the thread that flushed, when more is visible, and when the log has failed or is closed."""
        self._append_lock = threading.RLock()
        self._closed = False
        self._error_raised = False
        """Whether a call has raised the flusher's error already."""

    @property
    def last_seq(self) -> int | None:
        """Seq of the newest entry that was appended, visible or not; None in an empty store."""
        return self._tail.last_seq

    @property
    def published(self) -> int:
        """Entries appended since the log was opened."""
        return self._tail.published

    @property
    def visible(self) -> int:
        """The part of :attr:`published` that readers can see."""
        return self._flusher.visible

    @property
    def flushes(self) -> int:
        """The number of calls of fdatasync for segments."""
        return self._flusher.syncs.count

    @property
    def flushed(self) -> LogEnd:
        """The end of what is durable and visible."""
        return self._flusher.flushed

    @property
    def written(self) -> LogEnd:
        """The end of the newest whole transaction that was handed to the operating system; never before
        :attr:`flushed`."""
        return self._tail.written

    def wait_flushed(self, after_seq: int, timeout_s: float | None = None) -> bool:
        """Waits until something after ``after_seq`` is durable and visible. Returns False after ``timeout_s``. Raises
        StoreClosedError if the log is closed meanwhile, StorageError if a flush fails."""
        return self._flusher.wait_moved(after_seq, timeout_s)

    def check(self) -> None:
        """Raises StoreClosedError, or StorageError if a write or a flush has failed."""
        if self._closed:
            raise StoreClosedError("the relay log is closed", place=str(self.path))
        if self._flusher.error is not None:
            self._error_raised = True
        self._flusher.check()

    def flush(self) -> None:
        """Waits until everything that was appended is durable and visible, whatever the policy. Raises StorageError,
        StoreClosedError."""
        self.check()
        try:
            self._flusher.flush()
        except CdcError:
            self._error_raised = True
            raise

    def close(self) -> None:
        """Flushes what can be flushed, and releases the lock. Raises StorageError if that fails and no call has raised
        the error yet."""
        with self._append_lock:
            if self._closed:
                return
            self._closed = True
        self._flusher.close()
        self._stop_callbacks()
        segment = self._tail.segment
        try:
            # The next opening has to verify an unfinished transaction at the end.
            if self._flusher.error is None and not self._tail.unfinished:
                self._checkpoints.closed(segment)
        finally:
            if segment is not None:
                segment.close()
            self._lock.release()
        if self._flusher.error is not None and not self._error_raised:
            raise self._flusher.error

    def _stop_callbacks(self) -> None:
        """Called by :meth:`close` once everything is flushed."""

    def _fail(self, error: BaseException) -> None:
        """Ends the log: a failed write may have left a part of its bytes, and nothing may be appended after them."""
        self._error_raised = True
        cause = error if isinstance(error, CdcError) else StorageError(f"a write was interrupted: {error!r}")
        self._flusher.fail(cause)

    def _moved(self) -> None:
        for call in tuple(self.on_moved):  # a callback may be removed meanwhile
            call()

    def _truncate_unflushed(self, segments: Iterable[SegmentWriter]) -> None:
        """Truncates segments after a failed flush. The page cache may show bytes as written that never reached the
        disk, and the next recovery would believe it. They were not visible yet, and the source still has them."""
        with self._append_lock:
            for segment in segments:
                try:
                    fd = files.layer.open(segment.path, os.O_RDWR)
                    try:
                        truncate_content(segment.path, fd, segment.synced)
                    finally:
                        files.layer.close(fd)
                except (OSError, CdcError) as error:
                    log.error("cannot truncate a segment", segment=str(segment.path), at=segment.synced, why=str(error))


class RelayLog(LogWriter):
    """Appends capture's stream of bytes to a store; on one thread.

    Call :meth:`begin`, then :meth:`append` with bytes and :meth:`publish` with the entries of whole transactions.
    Neither waits for the disk; :meth:`flush` does.
    """

    def begin(self, epoch: int, file: str, pos: int, format_description: bytes, server_id: int) -> int:
        """Prepares for events from ``file``, from ``pos`` on. Returns the offset in the segment at which they go on. A
        new connection to the same file goes on in the same segment."""
        header = make_segment_header(format_description, file, pos, server_id)
        with self._writing():
            self._truncate_unfinished()
            if not self._tail.is_current(epoch, file, header):
                self._new_segment(epoch, file, pos, header)
            return self._current.size

    def roll(self, epoch: int, pos: int) -> int:
        """Begins a new segment inside the same source file. Returns the offset in it at which events go on."""
        with self._writing():
            self._truncate_unfinished()
            self._new_segment(epoch, self._current.file, pos, self._tail.rolled_header(pos))
            return self._current.size

    def append(self, data: memoryview, boundary: int = 0) -> None:
        """Appends bytes of whole or unfinished transactions. ``boundary`` is the offset in the segment at which the
        last whole one ends, if an unfinished one follows. Waits while too many bytes are not durable."""
        with self._writing():
            segment = self._current
            segment.append(data, boundary)
            if segment.size - segment.synced > _SYNC_BYTES and self._flusher.idle:
                self._flusher.add(FlushRequest((FlushRange(segment, segment.size),), now=True))
            if segment.size - segment.synced > DIRTY_BYTES:
                self._flusher.flush()

    def publish(self, entries: Entries) -> None:
        """Makes transactions visible, in order of seq, as soon as their bytes are durable. Raises UsageError unless
        they follow the newest one."""
        with self._writing():
            if len(entries):
                self._flusher.add(self._tail.record(entries))

    def read_unfinished(self, offset: int) -> Iterator[bytes]:
        """Yields the bytes of the current segment from ``offset`` on, which were appended and not published."""
        self.check()
        yield from self._current.read(offset)

    def drop_unfinished(self, begin: int | None = None) -> None:
        """Removes the bytes that were appended after the newest published transaction, from the offset ``begin`` on if
        it is given. :meth:`begin` and :meth:`roll` do the same, so nothing is ever appended to an unfinished
        transaction of an earlier connection."""
        with self._append_lock:
            if self._tail.unfinished:
                with self._writing():
                    self._truncate_unfinished(begin)

    def set_statement_end(self, offset: int, length: int) -> int:
        """Marks a row event that was appended already as the last one of its statement. Returns its new checksum."""
        with self._writing():
            return self._current.set_statement_end(offset, length)

    def _truncate_unfinished(self, begin: int | None = None) -> None:
        if self._tail.unfinished:
            self._flusher.flush()
            end = self._tail.written.end_offset
            self._current.truncate(end if begin is None else max(begin, end))

    def _new_segment(self, epoch: int, file: str, pos: int, header: bytes) -> None:
        if self._tail.is_begun_at(epoch, file, pos):
            self._flusher.flush()
            self._tail.drop_segment()
        self._tail.new_segment(epoch, file, pos, header)
        if finished := self._tail.take_finished():
            ranges = tuple(FlushRange(segment, segment.size) for segment in finished)
            self._flusher.add(FlushRequest(ranges, finish=finished))

    @property
    def _current(self) -> SegmentWriter:
        assert self._tail.segment is not None
        return self._tail.segment

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Holds the append lock, provided that nothing has failed. An error inside ends the log."""
        with self._append_lock:
            self.check()
            try:
                yield
            except BaseException as error:
                self._fail(error)
                raise


def _key_id(segment: Path) -> str:
    """Returns the id of the key for new segments; empty: they are not encrypted."""
    key = keys.writing_key(segment)
    return "" if key is None else key.id


def _segment_name(epoch: int, file: str, pos: int) -> str:
    return layout.segment_name(epoch, split_file_name(file)[1], pos)
