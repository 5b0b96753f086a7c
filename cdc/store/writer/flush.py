"""Makes appended bytes durable, then visible: group commit, and the two flush policies.

Each flush takes everything that waits, so one ``fdatasync`` serves all transactions that arrived while the one before
it ran. A put that finds no flush running leads: it flushes on its own thread, which saves two thread switches. What
arrives meanwhile is flushed by one of the puts that wait for it, or by the flusher's thread if none of them can.
Source: RocketMQ's ``GroupCommitService`` and ``FlushRealTimeService``; ``docs/decisions/0015``.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from cdc.base.errors import CdcError, StorageError, StoreClosedError
from cdc.base.log import get_logger
from cdc.binlog.entry import Entries
from cdc.store.formats.index import seal
from cdc.store.writer.durability import PAGE_BYTES, FlushPolicy, Latencies, LatencyStats
from cdc.store.writer.segment import SegmentWriter

log = get_logger(__name__)

_PIECE_BYTES = 1 << 20


class FlushRange(NamedTuple):
    """Transactions in one segment. The segment has to be durable up to ``size`` before their entries are written."""

    segment: SegmentWriter
    size: int
    entries: Entries | bytes | None = None
    """An array, or bytes as they are written to the file."""


class LogEnd(NamedTuple):
    """A position in the log, after a whole transaction."""

    segment: str
    """Name of the segment's file; empty before the first segment."""
    end_offset: int
    seq: int


class FlushRequest:
    """Transactions to flush together: their entries become visible one right after another."""

    __slots__ = (
        "can_lead",
        "count",
        "done",
        "end",
        "finish",
        "gone",
        "leads",
        "now",
        "owner",
        "ranges",
        "size_bytes",
        "waiter",
    )

    def __init__(
        self,
        ranges: tuple[FlushRange, ...] = (),
        *,
        count: int = 0,
        end: LogEnd | None = None,
        size_bytes: int = 0,
        finish: tuple[SegmentWriter, ...] = (),
        now: bool = False,
    ) -> None:
        self.ranges = ranges
        self.count = count
        """Number of entries."""
        self.end = end
        """The end of the log after them."""
        self.size_bytes = size_bytes
        self.finish = finish
        """Segments that are complete, to be closed after the flush."""
        self.now = now
        """Whether to flush at once, whatever the policy's times."""
        self.waiter: threading.Lock | None = None
        self.owner = 0
        """Id of the thread that waits."""
        self.can_lead = self.leads = False
        """Whether the thread that waits may flush itself; whether it has been chosen to."""
        self.gone = False
        """Whether nobody waits for it any more."""
        self.done = False


class Flusher:
    """Flushes requests in order, one batch at a time, on the thread of a caller that waits or on its own.

    After a failure every call raises it: bytes that the operating system reported as written may be gone, and asking
    it again would not tell (a second ``fsync`` may succeed although the first one's pages were dropped).
    """

    def __init__(
        self,
        policy: FlushPolicy,
        *,
        last: LogEnd,
        on_finished: Callable[[SegmentWriter], None],
        on_failure: Callable[[Iterable[SegmentWriter]], None],
        on_moved: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts the flusher's thread.

        ``on_finished`` is called with each complete segment, once all of it is visible and before anything in the
        next one is. ``on_failure`` is called after a failed flush, once all callers have got the error, with the
        segments that may hold bytes that are not durable. ``on_moved`` is called when more is visible, and when
        nothing more will be. ``clock`` (seconds) is for tests.
        """
        self.policy = policy
        self._on_finished = on_finished
        self._on_failure = on_failure
        self._on_moved = on_moved
        self.flushed = last
        self.visible = 0
        """Entries that became visible since the log was opened."""
        self.syncs = Latencies(policy.slow_flush_s)
        self.error: CdcError | None = None
        self._clock = clock
        self._mutex = threading.Lock()
        self._wake = threading.Condition(self._mutex)
        self._moved = threading.Condition(self._mutex)
        self._watchers = 0
        self._queue: deque[FlushRequest] = deque()
        self._queued_bytes = self._flushing_bytes = 0
        self._finishing = 0
        self._least_bytes = policy.least_pages * PAGE_BYTES
        self._now = self._busy = self._closing = False
        self._leader: FlushRequest | None = None
        """The request whose caller has been chosen to flush, and has not begun."""
        self._flushed_at = clock() - policy.thorough_interval_s
        self._thread = threading.Thread(target=self._run, name="flusher", daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        """Whether no flush is running and nothing is queued to be flushed at once."""
        return not self._busy and not (self._now if self.policy.mode == "async" else self._queue)

    @property
    def clear(self) -> bool:
        """Whether everything that was added is durable and visible."""
        with self._mutex:  # both are read together: a batch may be taken out of the queue in between
            return not self._busy and not self._queue and self.error is None

    @property
    def is_finishing(self) -> bool:
        """Whether a segment is complete, and not all of it is durable and visible yet."""
        return self._finishing > 0

    @property
    def waiting_bytes(self) -> int:
        """Bytes of transactions that are not durable yet."""
        return self._queued_bytes + self._flushing_bytes

    @property
    def slow_lately(self) -> bool:
        """Whether the last flush took too long."""
        return self.syncs.last_s >= self.syncs.slow_s

    def flush_stats(self) -> LatencyStats:
        """Returns the latencies of fdatasync."""
        with self._mutex:
            return self.syncs.stats()

    def check(self) -> None:
        """Raises StorageError if a flush has failed, StoreClosedError after :meth:`close`."""
        if self.error is not None:
            raise StorageError(self.error.message, place=self.error.place, remedy=self.error.remedy)
        if self._closing:
            raise StoreClosedError("the relay log is closed")

    # --- adding and waiting

    def add(self, request: FlushRequest) -> None:
        """Queues a request; does not wait."""
        with self._mutex:
            self._append(request)

    def add_waiting(self, request: FlushRequest, *, lead: bool = False) -> None:
        """Queues a request; :meth:`wait` has to be called next. With ``lead`` that call flushes itself if no flush is
        running, however long it takes."""
        request.waiter = threading.Lock()
        request.waiter.acquire()
        request.can_lead, request.owner = lead, threading.get_ident()
        with self._mutex:
            self._append(request)

    def wait(self, request: FlushRequest, timeout_s: float | None) -> bool:
        """Waits for a request of :meth:`add_waiting`. Returns False after ``timeout_s`` (None: no limit). Raises
        StorageError, StoreClosedError."""
        assert request.waiter is not None
        if not request.leads and not request.waiter.acquire(timeout=-1 if timeout_s is None else max(0.0, timeout_s)):
            if self._timed_out(request):
                return False
        elif request.leads:
            with self._mutex:
                batch = self._take() if self._leader is request else None
            if batch is not None:  # else the log failed before this flush began
                self._flush(batch)
        if not request.done:
            self.check()
            raise StoreClosedError("the relay log was closed")
        return True

    def abandon(self) -> None:
        """Withdraws the requests of this thread, whose call was interrupted: it is not chosen to flush any more."""
        thread_id = threading.get_ident()
        with self._mutex:
            for request in self._queue:
                request.gone = request.gone or request.owner == thread_id
            if self._leader is not None and self._leader.gone:
                self._leader.leads, self._leader = False, None
                self._hand_on()

    def _timed_out(self, request: FlushRequest) -> bool:
        """Stops waiting for a request. Returns False if it has ended at this very moment."""
        with self._mutex:
            if request.done or self.error is not None:
                return False
            request.gone = True
            if request.leads:  # chosen to lead just now
                request.leads, self._leader = False, None
                self._hand_on()
            return True

    def wait_moved(self, seq: int, timeout_s: float | None) -> bool:
        """Waits until something after ``seq`` is visible. Returns False after ``timeout_s``. Raises StoreClosedError,
        StorageError."""
        with self._mutex:
            self._watchers += 1
            try:
                self._moved.wait_for(lambda: self.flushed.seq > seq or self.error or self._closing, timeout_s)
            finally:
                self._watchers -= 1
            if self.flushed.seq > seq:
                return True
        self.check()
        return False

    def flush(self, timeout_s: float | None = None, *, lead: bool = True) -> bool:
        """Waits until everything added so far is durable and visible, whatever the policy. Returns False after
        ``timeout_s``. Raises StorageError, StoreClosedError."""
        self.check()
        if self.clear:
            return True
        request = FlushRequest(now=True)
        try:
            self.add_waiting(request, lead=lead)
            return self.wait(request, timeout_s)
        except BaseException:
            self.abandon()
            raise

    def close(self) -> None:
        """Flushes what waits and ends the thread, once no flush is running. A failure is in ``error``."""
        with self._mutex:
            self._closing = True
            self._wake.notify_all()
            self._moved.notify_all()
        self._thread.join()
        self._notify()

    def fail(self, error: CdcError) -> None:
        """Ends the flusher: callers that wait get this error, except those whose flush is running."""
        self._end(error, ())
        self._notify()

    def _end(self, error: CdcError, batch: Iterable[FlushRequest]) -> None:
        with self._mutex:
            if self.error is None:
                self.error = error
            if self._leader is not None:  # it has not begun to flush, and will not
                self._busy = False
            for request in (*batch, *self._take()):
                if request.waiter is not None and not request.leads:
                    request.waiter.release()
            self._wake.notify_all()
            self._moved.notify_all()

    # --- choosing the thread that flushes; all under the mutex

    def _append(self, request: FlushRequest) -> None:
        """Queues a request, and chooses a thread to flush it if none is flushing."""
        self.check()
        before, self._queued_bytes = self._queued_bytes, self._queued_bytes + request.size_bytes
        was_empty = not self._queue
        self._queue.append(request)
        self._finishing += len(request.finish)
        self._now = self._now or request.now
        if self._busy:
            return  # the running flush hands on to the next
        if self.policy.mode == "sync" or request.now:
            if request.can_lead:
                request.leads = self._busy = True
                self._leader = request
            else:
                self._wake.notify()
        elif was_empty or before < self._least_bytes <= self._queued_bytes:
            self._wake.notify()  # the time at which the flush is due has changed

    def _due_in_s(self) -> float | None:
        if not self._queue:
            return None
        if self._now or self._closing:
            return 0.0
        return self.policy.due_in_s(self._clock() - self._flushed_at, self._queued_bytes)

    def _take(self) -> deque[FlushRequest]:
        batch, self._queue = self._queue, deque()
        self._leader = None
        self._flushing_bytes, self._queued_bytes, self._now = self._queued_bytes, 0, False
        return batch

    def _hand_on(self) -> None:
        """Chooses the next thread to flush after a flush has ended, if something is queued."""
        self._busy = False
        if not self._queue and not self._closing and self.error is None:
            return
        if self._due_in_s() == 0.0:
            for request in self._queue:
                if request.can_lead and not request.gone:
                    assert request.waiter is not None
                    request.leads = self._busy = True
                    self._leader = request
                    request.waiter.release()
                    return
        self._wake.notify()

    # --- flushing

    def _run(self) -> None:
        while True:
            with self._mutex:
                while True:
                    # A running flush still uses the files, which are closed after this thread has ended.
                    if not self._busy and (self.error is not None or (self._closing and not self._queue)):
                        return
                    due_in_s = None if self._busy else self._due_in_s()
                    if due_in_s == 0.0:
                        break
                    self._wake.wait(due_in_s)
                self._busy = True
                batch = self._take()
            self._flush(batch)

    def _flush(self, batch: deque[FlushRequest]) -> None:
        try:
            took_s = self._write(batch)
        except CdcError as error:
            self._failed(error, batch)
            return
        except BaseException as error:  # an interrupt on the thread of a caller that leads
            self._failed(StorageError(f"a flush was interrupted: {type(error).__name__}"), batch)
            raise
        with self._mutex:
            self._flushed_at = self._clock()
            self._flushing_bytes = 0
            slow = [each_s for each_s in took_s if self.syncs.add(each_s)]
            for request in batch:
                request.done = True
                self.visible += request.count
                self._finishing -= len(request.finish)
                if request.end is not None:
                    self.flushed = request.end
                if request.waiter is not None and not request.leads:
                    request.waiter.release()
            if self._watchers:
                self._moved.notify_all()
            self._hand_on()
        self._notify()
        for each_s in slow:
            log.warning("slow flush", seconds=round(each_s, 3), limit_s=self.policy.slow_flush_s)

    def _failed(self, error: CdcError, batch: deque[FlushRequest]) -> None:
        with self._mutex:
            segments = dict.fromkeys(part.segment for request in (*batch, *self._queue) for part in request.ranges)
        self._end(error, batch)
        try:
            self._on_failure(segments)  # may have to wait for an append that waits for a flush
        finally:
            with self._mutex:
                self._hand_on()
        self._notify()

    def _notify(self) -> None:
        """Calls ``on_moved``. An error in it is logged: it is no failure of the log, and must not end this thread."""
        try:
            self._on_moved()
        except Exception:
            log.exception("a callback for flushed transactions failed")

    def _write(self, batch: deque[FlushRequest]) -> list[float]:
        """Makes the bytes of all requests durable, then writes their entries in order. Returns the seconds of each
        fdatasync."""
        if len(batch) == 1 and len(batch[0].ranges) == 1 and not batch[0].finish:
            return self._write_one(*batch[0].ranges[0])
        sizes: dict[SegmentWriter, int] = {}
        entries: dict[SegmentWriter, list[Entries | bytes]] = {}
        finished: list[SegmentWriter] = []
        for request in batch:
            for segment, size, added in request.ranges:
                sizes[segment] = max(size, sizes.get(segment, 0))
                if added is not None:
                    entries.setdefault(segment, []).append(added)
            finished += request.finish
        took_s = []
        for segment, size in sizes.items():
            if segment.needs_sync(size):
                began = time.perf_counter()
                segment.sync()
                took_s.append(time.perf_counter() - began)
        for segment in sizes:
            for piece in _sealed(entries.get(segment, ())):
                segment.publish_sealed(piece)
            if segment in finished:
                self._on_finished(segment)
                segment.close()
        return took_s

    def _write_one(self, segment: SegmentWriter, size: int, entries: Entries | bytes | None) -> list[float]:
        """:meth:`_write` for a single put or a short chunk of the stream."""
        took_s = []
        if segment.needs_sync(size):
            began = time.perf_counter()
            segment.sync()
            took_s.append(time.perf_counter() - began)
        if entries is not None:
            segment.publish_sealed(entries if isinstance(entries, bytes) else seal(entries))
        return took_s


def _sealed(parts: Iterable[Entries | bytes]) -> Iterator[bytes]:
    """The entries as they are written to a file, joined into pieces of about a megabyte: few writes for small requests,
    and no second copy of all entries that waited for a slow disk."""
    waiting: list[bytes] = []
    size = 0
    for part in parts:
        waiting.append(part if isinstance(part, bytes) else seal(part))
        size += len(waiting[-1])
        if size >= _PIECE_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)
