"""The relay log: the one writer of a store on disk.

Bytes are appended as they come, and a transaction becomes visible (by its index entry) only after a ``fdatasync`` that
covers its bytes; :mod:`cdc.store.writer.flush` does both. There are two ways in, one of them for each opening:
capture's stream of bytes (``begin``, ``append``, ``publish``), on one thread, and ``put`` of whole transactions, on
any number.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeAlias

from cdc import files
from cdc.binlog.entry import Entries
from cdc.errors import CdcError, StorageError, StoreClosedError, UsageError
from cdc.event_store.put import Acknowledger, RelayLogMetrics, Replication, above
from cdc.log import get_logger
from cdc.permissions import Permissions
from cdc.store.formats import layout
from cdc.store.formats.state import StoreLock, TableNumbers
from cdc.store.reader.reader import StoreReader
from cdc.store.recovery.recover import recover
from cdc.store.retention.disk import DiskWatch
from cdc.store.retention.retain import undisturbed
from cdc.store.transaction import PutStatus, Transaction
from cdc.store.writer.flush import Flushed, Flusher, Part, Work
from cdc.store.writer.latency import Latencies
from cdc.store.writer.policy import FlushPolicy
from cdc.store.writer.segment import SegmentWriter, head
from cdc.store.writer.tail import LogTail

log = get_logger(__name__)

_SYNC_BYTES = 16 << 20
"""Of a transaction that has not ended yet so much is left to the page cache before it is written out."""
_DIRTY_BYTES = 256 << 20
"""Above this an append or a put waits for the disk."""
_LEAD_TIMEOUT_S = 1.0
"""A put that would rather not wait so long leaves the flush to the flusher's thread: its own could not be cut short."""
_Way: TypeAlias = Literal["stream", "put"]


class RelayLog:
    """Appends transactions to a store.

    :meth:`append` and :meth:`publish` do not wait for the disk; :meth:`flush` and :meth:`put` do. After the operating
    system refused a write or a flush every further call raises that error: what it said it had may be gone.
    """

    def __init__(
        self,
        path: Path,
        *,
        destination: str,
        segment_bytes: int,
        policy: FlushPolicy | None = None,
        replication: Replication | None = None,
        lead_puts: bool = True,
        disk: DiskWatch | None = None,
        clock: Callable[[], float] = time.monotonic,
        permissions: Permissions = "private",
    ) -> None:
        """Open (or make) the store, take its lock, recover it. ``clock`` times asynchronous flushes.
        ``lead_puts=False`` leaves every flush to the flusher's thread: a put is slower, and never overstays its
        time-out. ``disk`` is asked before each put; it refuses what would leave the disk too full (capture asks by
        itself, between two readings). Raises StorageError, LeaseHeldError, DamagedError."""
        self.path = path
        self._disk = disk
        self.policy = FlushPolicy() if policy is None else policy
        self.replication = replication
        """May be set later; puts from then on consult it."""
        self._lead_puts = lead_puts
        layout.create(path, destination, permissions)
        self._lock = StoreLock(path)
        segment: SegmentWriter | None = None
        try:
            with undisturbed(path):
                self.tables = TableNumbers(path)
                recovered = recover(path, self.tables)
            segment = recovered.segment
            last = StoreReader(path).last_entry()
        except BaseException:
            if segment is not None:
                segment.close()
            self._lock.release()
            raise
        self._checkpoints = recovered.checkpoints
        self._tail = LogTail(path, self.tables, segment, None if last is None else int(last["seq"]), segment_bytes)
        self._flusher = Flusher(
            self.policy,
            last=self._tail.written,
            on_finished=self._finished,
            on_failure=self._cut_unflushed,
            on_moved=self._moved,
            clock=clock,
        )
        self.on_moved: list[Callable[[], None]] = []
        """Called, on the thread that flushed, when more is visible, and when the log has failed or is closed."""
        self.on_put: Callable[[Sequence[Transaction]], None] | None = None
        """Called with the transactions of a put that were new, in order, once they are written."""
        self._acknowledger = Acknowledger(self._settle)
        self._append_lock = threading.RLock()
        self._way: _Way | None = None
        self._closed = self._told = False
        self._counting = threading.Lock()
        self._puts = Latencies(self.policy.slow_put_s)
        self._put_transactions = self._put_bytes = self._put_timeouts = 0

    # --- what is known of it

    @property
    def last_seq(self) -> int | None:
        """Of the newest entry handed to :meth:`publish` or put."""
        return self._tail.last_seq

    @property
    def published(self) -> int:
        """Entries handed to :meth:`publish` or put, since it was opened."""
        return self._tail.published

    @property
    def flushes(self) -> int:
        """How many times fdatasync was called for segments."""
        return self._flusher.syncs.count

    @property
    def visible(self) -> int:
        """How many of :attr:`published` readers can see."""
        return self._flusher.visible

    @property
    def flushed(self) -> Flushed:
        """The end of what is durable and visible."""
        return self._flusher.flushed

    @property
    def has_room(self) -> bool:
        """Would a put not have to wait for the disk before it writes?"""
        return self._flusher.waiting_bytes <= _DIRTY_BYTES

    @property
    def written(self) -> Flushed:
        """The end of what was handed to the operating system, whole transactions; not before :attr:`flushed`."""
        return self._tail.written

    def wait_flushed(self, after_seq: int, timeout_s: float | None = None) -> bool:
        """Wait until something behind ``after_seq`` is durable and visible; False when the time is over. Raises
        StoreClosedError when the log is closed meanwhile, and what a flush met."""
        return self._flusher.wait_moved(after_seq, timeout_s)

    def metrics(self) -> RelayLogMetrics:
        """Counters since it was opened."""
        with self._counting:
            return RelayLogMetrics(
                puts=self._puts.figures(),
                put_transactions=self._put_transactions,
                put_bytes=self._put_bytes,
                put_timeouts=self._put_timeouts,
                flushes=self._flusher.figures(),
                waiting_bytes=self._flusher.waiting_bytes,
            )

    # --- whole transactions

    def put(
        self, transactions: Sequence[Transaction], *, timeout_s: float | None = 5.0, wait: bool = True
    ) -> PutStatus:
        """Append transactions in order, and wait until they are stored as the policy promises, and at the standby where
        there is one, ``timeout_s`` in all (None: no limit). Those whose seq is not above :attr:`last_seq` are passed
        over. They become visible one right after another, none before all are on the disk.

        ``wait=False`` returns when they are in the page cache, whatever the policy; the flush goes on by itself. A put
        that flushes on its own thread overstays ``timeout_s`` while the disk hangs (``docs/decisions/0015``).

        FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT and SLAVE_NOT_AVAILABLE say that they are written here, and become
        visible once they are flushed. STORE_FULL: nothing was written; the disk did not keep up within the time.
        Raises UsageError for what is no transaction, and StorageError. Source: RocketMQ's ``CommitLog.putMessages``.
        """
        began = time.monotonic()
        deadline = None if timeout_s is None else began + timeout_s
        lead = self._lead_puts and (timeout_s is None or timeout_s >= _LEAD_TIMEOUT_S) and not self._flusher.slow_lately
        status = PutStatus.PUT_OK
        if transactions:
            waits = wait and self.policy.mode == "sync"
            try:
                stored = self._store(transactions, deadline, waits=waits, lead=lead)
                if stored is None:
                    status = PutStatus.STORE_FULL
                elif wait:
                    status = self._settle(*stored, deadline)
            except BaseException:
                self._flusher.abandon()
                self._told = self._told or self._flusher.error is not None
                raise
        else:
            self._check()
        if wait:
            self._count_put(time.monotonic() - began, status)
        return status

    def put_async(self, transactions: Sequence[Transaction], *, timeout_s: float | None = 5.0) -> Future[PutStatus]:
        """:meth:`put` that returns once they are in the page cache; the future has the status, or the error. Futures
        complete in the order of the puts."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        done: Future[PutStatus] = Future()
        with self._append_lock:
            waits = self.policy.mode == "sync"
            stored = self._store(transactions, deadline, waits=waits, lead=False) if transactions else None
            if stored is not None and (waits or self.replication is not None):
                return self._acknowledger.promise(*stored, deadline)
        self._check()
        done.set_result(PutStatus.STORE_FULL if transactions and stored is None else PutStatus.PUT_OK)
        return done

    def _store(
        self, transactions: Sequence[Transaction], deadline: float | None, *, waits: bool, lead: bool
    ) -> tuple[Work, Flushed] | None:
        """Append what is new and hand it to the flusher; None where there was no room in time."""
        flusher = self._flusher
        if not self._append_lock.acquire(timeout=-1 if deadline is None else max(0.0, deadline - time.monotonic())):
            return None
        try:
            self._enter("put")
            if not self.has_room and not flusher.flush(_left_s(deadline), lead=False):
                return None
            lot = self._tail.as_lot(transactions)
            raws = above(transactions, -1 if self.last_seq is None else self.last_seq) if lot is None else []
            new = [raw.transaction for raw in raws] if lot is None else lot.transactions
            if not new:
                work = Work()
                if waits and not flusher.clear:  # what was put before may be on its way still
                    flusher.add_waiting(work, lead=lead)
                return work, self._tail.written
            size_bytes = sum([len(transaction.data) for transaction in new]) if lot is None else lot.size_bytes
            if self._disk is not None:
                self._disk.check(size_bytes)
            try:
                work = self._tail.write(raws) if lot is None else self._tail.write_lot(lot)
                if waits:
                    flusher.add_waiting(work, lead=lead)
                else:
                    flusher.add(work)
            except BaseException as error:
                self._fail(error)
                raise
            self._put_transactions += len(new)
            self._put_bytes += size_bytes
            if self.on_put is not None:
                self.on_put(new)
            return work, self._tail.written
        finally:
            self._append_lock.release()

    def _settle(self, work: Work, end: Flushed, deadline: float | None) -> PutStatus:
        """Wait for the flush, then for the standby."""
        if work.waiter is not None and (
            not self._flusher.wait(work, _left_s(deadline)) or (deadline is not None and time.monotonic() > deadline)
        ):
            return PutStatus.FLUSH_DISK_TIMEOUT
        if self.replication is None:
            return PutStatus.PUT_OK
        return self.replication.wait(*end, _left_s(deadline))

    def _count_put(self, took_s: float, status: PutStatus) -> None:
        with self._counting:
            slow = self._puts.add(took_s)
            if status is not PutStatus.PUT_OK:
                self._put_timeouts += 1
        if slow:
            log.warning("slow put", seconds=round(took_s, 3), limit_s=self._puts.slow_s, status=status.value)

    # --- capture's stream of bytes

    def begin(self, epoch: int, file: str, pos: int, format_description: bytes, server_id: int) -> int:
        """Events from ``file``, from ``pos`` on, come next; returns the offset in the segment at which they go on. The
        segment stays the same where nothing but the connection is new."""
        data = head(format_description, file, pos, server_id)
        with self._writing("stream"):
            self._settle_tail()
            if not self._tail.is_current(epoch, file, data):
                self._new_segment(epoch, file, pos, data)
            return self._current.size

    def roll(self, epoch: int, pos: int) -> int:
        """Begin a new segment inside the same source file; returns the offset at which it goes on."""
        with self._writing("stream"):
            self._settle_tail()
            self._new_segment(epoch, self._current.file, pos, self._tail.rolled_head(pos))
            return self._current.size

    def append(self, data: memoryview) -> None:
        """Bytes of whole or unfinished transactions. Waits while too much is not on the disk yet."""
        with self._writing("stream"):
            segment = self._current
            segment.append(data)
            if segment.size - segment.synced > _SYNC_BYTES and self._flusher.idle:
                self._flusher.add(Work((Part(segment, segment.size),), now=True))
            if segment.size - segment.synced > _DIRTY_BYTES:
                self._flusher.flush()

    def publish(self, entries: Entries) -> None:
        """Make transactions visible, as soon as their bytes are durable. In order of seq."""
        with self._writing("stream"):
            if len(entries):
                self._flusher.add(self._tail.record(entries))

    def settle(self) -> None:
        """Forget the bytes of an unfinished transaction: whatever was appended behind the newest one that was handed
        to :meth:`publish`. :meth:`begin` and :meth:`roll` do the same, so that nothing is ever appended behind it."""
        with self._append_lock:
            if self._tail.unfinished:
                with self._writing("stream"):
                    self._settle_tail()

    def _settle_tail(self) -> None:
        if self._tail.unfinished:
            self._flusher.flush()
            self._current.truncate(self._tail.written.end_offset)

    def set_statement_end(self, offset: int, length: int) -> int:
        """Mark a row event that was appended already as its statement's last; returns its new checksum."""
        with self._writing("stream"):
            return self._current.set_statement_end(offset, length)

    def _new_segment(self, epoch: int, file: str, pos: int, data: bytes) -> None:
        if self._tail.is_begun_at(epoch, file, pos):
            self._flusher.flush()
            self._tail.forget_segment()
        self._tail.new_segment(epoch, file, pos, data)
        if finished := self._tail.take_finished():
            self._flusher.add(Work(tuple(Part(segment, segment.size) for segment in finished), finish=finished))

    # --- both

    def check(self) -> None:
        """Raises StoreClosedError, or StorageError where a write or a flush has failed."""
        self._check()

    def flush(self) -> None:
        """Wait until everything handed in is durable and visible, whatever the policy. Raises what the flusher met."""
        self._check()
        try:
            self._flusher.flush()
        except CdcError:
            self._told = True
            raise

    def close(self) -> None:
        """Flush what can be, and let the lock go. Raises StorageError where that fails and no call has said so yet."""
        with self._append_lock:
            if self._closed:
                return
            self._closed = True
        self._flusher.close()
        self._acknowledger.close()
        segment = self._tail.segment
        try:
            # Where an unfinished transaction is left at the end, the next opening has to look.
            if self._flusher.error is None and not self._tail.unfinished:
                self._checkpoints.closed(segment)
        finally:
            if segment is not None:
                segment.close()
            self._lock.release()
        if self._flusher.error is not None and not self._told:
            raise self._flusher.error

    @property
    def _current(self) -> SegmentWriter:
        assert self._tail.segment is not None
        return self._tail.segment

    @contextmanager
    def _writing(self, way: _Way) -> Iterator[None]:
        """Alone, in one of the two ways, as long as nothing has failed. What fails here ends the log: it may stand in
        the segment in part, and nothing may be appended behind it."""
        with self._append_lock:
            self._enter(way)
            try:
                yield
            except BaseException as error:
                self._fail(error)
                raise

    def _enter(self, way: _Way) -> None:
        self._check()
        if self._way != way:
            if self._way is not None:
                raise UsageError(
                    "the relay log takes either capture's stream of bytes or put's whole transactions, not both",
                    place=str(self.path),
                    remedy="Close it, and open it for the other: a put could fall into an unfinished transaction.",
                )
            self._way = way

    def _check(self) -> None:
        if self._closed:
            raise StoreClosedError("the relay log is closed", place=str(self.path))
        if self._flusher.error is not None:
            self._told = True
        self._flusher.check()

    def _fail(self, error: BaseException) -> None:
        self._told = True
        known = error if isinstance(error, CdcError) else StorageError(f"a write was interrupted: {error!r}")
        self._flusher.fail(known)

    def _moved(self) -> None:
        for call in tuple(self.on_moved):  # one may be taken out meanwhile
            call()

    def _finished(self, segment: SegmentWriter) -> None:
        """All of a segment is visible, and nothing comes after it in it."""
        self._checkpoints.finished(segment)

    def _cut_unflushed(self, segments: Iterable[SegmentWriter]) -> None:
        """After a failed flush: the page cache may show as written what never reached the disk, and the next recovery
        would believe it. It was not visible yet, and the source still has it."""
        with self._append_lock:
            for segment in segments:
                try:
                    fd = files.layer.open(segment.path, os.O_RDWR)
                    try:
                        files.layer.ftruncate(fd, segment.synced)
                    finally:
                        files.layer.close(fd)
                except OSError as error:
                    log.error("could not be cut off", segment=str(segment.path), at=segment.synced, why=str(error))


def _left_s(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())
