"""Puts of whole transactions into a store on disk, from any number of threads: group commit with RocketMQ's statuses.

:class:`TransactionLog` shares its lock, recovery and flusher with capture's :class:`cdc.store.writer.log.RelayLog`. A
store is open in one of the two ways at a time: a put could otherwise fall into an unfinished transaction of capture's
stream. Source: RocketMQ's ``CommitLog.putMessages``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple, Protocol, cast

import numpy as np

from cdc.base.log import get_logger
from cdc.binlog.positions import MAX_OFFSET, OFFSET_BITS
from cdc.event_store.record_batch import (
    RecordBatch,
    TransactionRecord,
    make_record_batch,
    records_after,
    seal_record,
    seal_record_batch,
)
from cdc.event_store.transaction import SourceFile, Transaction
from cdc.store.formats.segment_header import make_segment_header
from cdc.store.formats.state import TableNumbers
from cdc.store.writer.durability import FlushPolicy, Latencies, LatencyStats, PutStatus
from cdc.store.writer.flush import FlushRange, FlushRequest, LogEnd
from cdc.store.writer.log import DIRTY_BYTES, LogTail, LogWriter
from cdc.store.writer.segment import SegmentWriter

log = get_logger(__name__)

_JOIN_BYTES = 1 << 20
"""Transactions of a put are joined to one write up to this size."""
_LEAD_TIMEOUT_S = 1.0
"""A put with a shorter time-out leaves the flush to the flusher's thread, since its own flush could not be
interrupted."""


class Replication(Protocol):
    """The standbys of a store, as a put sees them (RocketMQ's ``HAService``)."""

    def wait(self, segment_name: str, end_offset: int, seq: int, timeout_s: float | None) -> PutStatus:
        """Waits until a standby holds the log up to this position, at most ``timeout_s`` (None: no limit).

        Returns PUT_OK; FLUSH_SLAVE_TIMEOUT after the time-out; SLAVE_NOT_AVAILABLE, at once, if no standby follows or
        it is too far behind. Called from many threads; with ``flush: sync`` after these bytes are durable here.
        """
        ...


@dataclass(frozen=True)
class TransactionLogMetrics:
    """Counters of a transaction log since it was opened."""

    puts: LatencyStats
    """Latencies of the puts that waited for their status."""
    put_transactions: int
    put_bytes: int
    put_timeouts: int
    """Puts with another status than PUT_OK."""
    flushes: LatencyStats
    """Latencies of fdatasync."""
    waiting_bytes: int
    """Bytes that were put and are not durable yet."""


class TransactionLog(LogWriter):
    """Puts whole transactions into a store. Every method may be called from any thread.

    After the operating system has refused a write or a flush, every further call raises that error.
    """

    def __init__(
        self,
        path: Path,
        *,
        destination: str,
        segment_bytes: int,
        policy: FlushPolicy | None = None,
        lead_puts: bool = True,
        check_room: Callable[[int], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        lower_case_table_names: int = 0,
    ) -> None:
        """Opens (or creates) the store, takes its lock and recovers it.

        With ``lead_puts=False`` the flusher's thread does every flush: a put is slower, and never exceeds its time-out.
        ``check_room`` is called with the bytes of each put before they are written, and raises to refuse them
        (:meth:`cdc.store.retention.disk.DiskWatch.check`). ``clock`` times asynchronous flushes. Raises StorageError,
        LeaseHeldError, DamagedError, VersionError.
        """
        super().__init__(
            path,
            destination=destination,
            segment_bytes=segment_bytes,
            policy=policy,
            clock=clock,
            lower_case_table_names=lower_case_table_names,
        )
        self.replication: Replication | None = None
        """Set it to make puts wait for a standby, too."""
        self.on_put: Callable[[Sequence[Transaction]], None] | None = None
        """Called with the new transactions of a put, in order, once they are written."""
        self._lead_puts = lead_puts
        self._check_room = check_room
        self._appender = _Appender(self._tail, self.tables)
        self._futures = _FutureCompleter(self._wait_stored)
        self._metering = threading.Lock()
        self._puts = Latencies(self.policy.slow_put_s)
        self._put_transactions = self._put_bytes = self._put_timeouts = 0

    @property
    def has_room(self) -> bool:
        """Whether a put can proceed without waiting for the disk."""
        return self._flusher.waiting_bytes <= DIRTY_BYTES

    def metrics(self) -> TransactionLogMetrics:
        """Returns the counters since the log was opened."""
        with self._metering:
            return TransactionLogMetrics(
                puts=self._puts.stats(),
                put_transactions=self._put_transactions,
                put_bytes=self._put_bytes,
                put_timeouts=self._put_timeouts,
                flushes=self._flusher.flush_stats(),
                waiting_bytes=self._flusher.waiting_bytes,
            )

    def put(
        self, transactions: Sequence[Transaction], *, timeout_s: float | None = 5.0, wait: bool = True
    ) -> PutStatus:
        """Appends transactions in order, and waits until they are stored as the policy promises, and at the standby if
        there is one, at most ``timeout_s`` in all (None: no limit). Those whose seq is not above :attr:`last_seq` are
        ignored. They become visible one right after another, and none before all are on the disk.

        ``wait=False`` returns when they are in the page cache, whatever the policy, and the flush follows. The first
        put into a new segment waits until the one before it is on the disk, whatever the policy. A put that
        flushes on its own thread exceeds ``timeout_s`` while the disk hangs (``docs/decisions/0015``).

        FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT and SLAVE_NOT_AVAILABLE mean that they are written here, and become
        visible once they are flushed. STORE_FULL means that nothing was written, because the disk did not keep up.
        Raises UsageError for an invalid transaction, and StorageError.
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
                elif wait or stored[0].waiter is not None:
                    status = self._wait_stored(*stored, deadline)
            except BaseException:
                self._flusher.abandon()
                self._error_raised = self._error_raised or self._flusher.error is not None
                raise
        else:
            self.check()
        if wait:
            self._count_put(time.monotonic() - began, status)
        return status

    def put_async(self, transactions: Sequence[Transaction], *, timeout_s: float | None = 5.0) -> Future[PutStatus]:
        """:meth:`put` that returns once the transactions are in the page cache. The future gets the status or the
        error; futures complete in the order of the puts."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        done: Future[PutStatus] = Future()
        with self._append_lock:
            waits = self.policy.mode == "sync"
            stored = self._store(transactions, deadline, waits=waits, lead=False) if transactions else None
            if stored is not None and (waits or stored[0].waiter is not None or self.replication is not None):
                return self._futures.add(*stored, deadline)
        self.check()
        done.set_result(PutStatus.STORE_FULL if transactions and stored is None else PutStatus.PUT_OK)
        return done

    def _store(
        self, transactions: Sequence[Transaction], deadline: float | None, *, waits: bool, lead: bool
    ) -> tuple[FlushRequest, LogEnd] | None:
        """Appends the new transactions and adds them to the flusher; None if there was no room in time."""
        flusher = self._flusher
        if not self._append_lock.acquire(timeout=-1 if deadline is None else max(0.0, deadline - time.monotonic())):
            return None
        try:
            self.check()
            if not self.has_room and not flusher.flush(_left_s(deadline), lead=False):
                return None
            batch = self._appender.make_batch(transactions)
            records = (
                records_after(transactions, -1 if self.last_seq is None else self.last_seq) if batch is None else []
            )
            new = [record.transaction for record in records] if batch is None else batch.transactions
            if not new:
                request = FlushRequest()
                if waits and not flusher.clear:  # an earlier put may still wait for its flush
                    flusher.add_waiting(request, lead=lead)
                return request, self._tail.written
            size_bytes = sum([len(transaction.data) for transaction in new]) if batch is None else batch.size_bytes
            if self._check_room is not None:
                self._check_room(size_bytes)
            try:
                request = self._appender.append(records) if batch is None else self._appender.append_batch(batch)
                if waits or request.finish or flusher.is_finishing:
                    # Recovery keeps a segment only if the one before it is finished, so until then nothing in it may
                    # be answered, whatever the policy.
                    request.now = True
                    flusher.add_waiting(request, lead=lead)
                else:
                    flusher.add(request)
            except BaseException as error:
                self._fail(error)
                raise
            self._put_transactions += len(new)
            self._put_bytes += size_bytes
            if self.on_put is not None:
                self.on_put(new)
            return request, self._tail.written
        finally:
            self._append_lock.release()

    def _wait_stored(self, request: FlushRequest, end: LogEnd, deadline: float | None) -> PutStatus:
        """Waits for the flush, then for the standby."""
        if request.waiter is not None and (
            not self._flusher.wait(request, _left_s(deadline)) or (deadline is not None and time.monotonic() > deadline)
        ):
            return PutStatus.FLUSH_DISK_TIMEOUT
        if self.replication is None:
            return PutStatus.PUT_OK
        return self.replication.wait(*end, _left_s(deadline))

    def _count_put(self, took_s: float, status: PutStatus) -> None:
        with self._metering:
            slow = self._puts.add(took_s)
            if status is not PutStatus.PUT_OK:
                self._put_timeouts += 1
        if slow:
            log.warning("slow put", seconds=round(took_s, 3), limit_s=self._puts.slow_s, status=status.value)

    def _stop_callbacks(self) -> None:
        self._futures.close()


class _Appender:
    """Appends whole transactions to the end of a log, and begins new segments. Knows no threads."""

    def __init__(self, tail: LogTail, tables: TableNumbers) -> None:
        self._tail = tail
        self._tables = tables
        self._source: SourceFile | None = None
        self._masks: dict[tuple[str, ...], int] = {}

    def append(self, new: list[TransactionRecord]) -> FlushRequest:
        """Appends transactions to the segments that they belong to. After an error some of them may be written in part,
        and nothing may be appended after them. Raises StorageError."""
        tail = self._tail
        masks = [self._mask(record.transaction.tables) for record in new]
        store_time_us = time.time_ns() // 1000
        ranges: list[FlushRange] = []
        data: list[bytes] = []
        entries: list[bytearray] = []
        total = 0
        last_seq = tail.last_seq
        segment, size = tail.segment, 0 if tail.segment is None else tail.segment.size
        for record, mask in zip(new, masks, strict=True):
            transaction = record.transaction
            if segment is None or not self._fits_current(transaction.source, record.seq, last_seq, size):
                if segment is not None:
                    ranges.append(_flush_range(segment, data, entries))
                    entries = []
                segment = self._segment_for(record, last_seq)
                size = segment.size
            seal_record(record.entry, size, store_time_us, mask)
            entries.append(record.entry)
            data.append(transaction.data)
            size += len(transaction.data)
            total += len(transaction.data)
            if size - segment.size > _JOIN_BYTES:
                _write(segment, data)
            last_seq = tail.last_seq = record.seq
        assert segment is not None
        ranges.append(_flush_range(segment, data, entries))
        end = tail.advance(len(new), new[-1].seq, size)
        return FlushRequest(tuple(ranges), count=len(new), end=end, size_bytes=total, finish=tail.take_finished())

    def make_batch(self, transactions: Sequence[Transaction]) -> RecordBatch | None:
        """Returns a record batch of all the transactions if they are new and go into the current segment."""
        tail = self._tail
        batch = make_record_batch(transactions, -1 if tail.last_seq is None else tail.last_seq)
        if batch is None or tail.segment is None:
            return None
        if not self._fits_current(batch.source, batch.first_seq, tail.last_seq, tail.segment.size):
            return None
        return batch if tail.segment.size + int(batch.starts[-1]) < tail.segment_bytes else None

    def append_batch(self, batch: RecordBatch) -> FlushRequest:
        """:meth:`append` of a batch that :meth:`make_batch` has just returned."""
        segment = self._tail.segment
        assert segment is not None
        same = batch.tables.count(batch.tables[0]) == len(batch.tables)
        tables = batch.tables[:1] if same else batch.tables
        masks = np.array([self._mask(each) for each in tables], dtype=np.uint64)
        entries = seal_record_batch(batch, segment.size, time.time_ns() // 1000, masks)
        _write(segment, list(batch.data))
        count = len(batch.transactions)
        return FlushRequest(
            (FlushRange(segment, segment.size, entries),),
            count=count,
            end=self._tail.advance(count, batch.last_seq, segment.size),
            size_bytes=batch.size_bytes,
            finish=self._tail.take_finished(),
        )

    def _fits_current(self, source: SourceFile, seq: int, last_seq: int | None, size: int) -> bool:
        """Returns whether a transaction goes into the current segment, which has ``size`` bytes by then."""
        if source is not self._source and source != self._source:
            return False
        return size < self._tail.segment_bytes and _is_near(seq, last_seq)

    def _segment_for(self, record: TransactionRecord, last_seq: int | None) -> SegmentWriter:
        """Returns the segment for a transaction, perhaps a new one."""
        tail, source = self._tail, record.transaction.source
        self._source = source
        near = _is_near(record.seq, last_seq)
        # Without a neighbour the position before the transaction is only known from its length.
        before = max(4, (record.seq & MAX_OFFSET) - len(record.transaction.data))
        pos = (last_seq or 0) & MAX_OFFSET if near else before
        header = make_segment_header(source.format_description, source.name, pos, source.server_id)
        if near and tail.segment is not None and tail.is_current(source.epoch, source.name, header):
            return tail.segment
        if tail.is_begun_at(source.epoch, source.name, pos):
            tail.drop_segment()
        return tail.new_segment(source.epoch, source.name, pos, header)

    def _mask(self, tables: tuple[str, ...]) -> int:
        mask = self._masks.get(tables)
        if mask is None:
            mask = 0
            for table in tables:
                mask |= 1 << (self._tables.number(table) & 63)
            self._masks[tables] = mask
        return mask


class _Completion(NamedTuple):
    future: Future[PutStatus]
    request: FlushRequest
    end: LogEnd
    deadline: float | None


class _FutureCompleter:
    """Completes the futures of asynchronous puts, in their order, on a thread of its own. A callback that waits, even
    for another put, delays later futures only, never a flush."""

    def __init__(self, wait_stored: Callable[[FlushRequest, LogEnd, float | None], PutStatus]) -> None:
        self._wait_stored = wait_stored
        self._queue: SimpleQueue[_Completion | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def add(self, request: FlushRequest, end: LogEnd, deadline: float | None) -> Future[PutStatus]:
        """Returns the future of a request that was added to the flusher. Called in the order of the puts, under the
        log's lock."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="put-futures", daemon=True)
            self._thread.start()
        future: Future[PutStatus] = Future()
        self._queue.put(_Completion(future, request, end, deadline))
        return future

    def close(self) -> None:
        """Ends the thread once all futures are complete. Called from a future's callback, it does not wait for the
        later ones."""
        if self._thread is not None:
            self._queue.put(None)
            if self._thread is not threading.current_thread():
                self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (completion := self._queue.get()) is not None:
            future, request, end, deadline = completion
            if not future.set_running_or_notify_cancel():
                continue
            status: PutStatus | None = None
            error: BaseException | None = None
            try:
                status = self._wait_stored(request, end, deadline)
            except BaseException as met:  # noqa: BLE001  # raised to the caller of result()
                error = met
            try:
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(cast(PutStatus, status))
            except BaseException:  # a failing callback must not end this thread: later futures need it
                log.exception("a callback of a put's future failed")


def _is_near(seq: int, last_seq: int | None) -> bool:
    """Returns whether a transaction is less than 4 GiB after the last one, in the same file. Readers that number a
    segment's transactions by their 32-bit ``end_log_pos`` would not notice a wider gap."""
    return last_seq is not None and last_seq >> OFFSET_BITS == seq >> OFFSET_BITS and seq - last_seq < 1 << 32


def _flush_range(segment: SegmentWriter, data: list[bytes], entries: list[bytearray]) -> FlushRange:
    _write(segment, data)
    return FlushRange(segment, segment.size, b"".join(entries) if entries else None)


def _write(segment: SegmentWriter, data: list[bytes]) -> None:
    """Appends all of ``data`` to the segment, and clears the list."""
    if data:
        segment.append(memoryview(data[0] if len(data) == 1 else b"".join(data)))
        data.clear()


def _left_s(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())
