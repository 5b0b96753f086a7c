"""Making what was appended durable, then visible: group commit, and the two flush policies.

Whoever flushes takes everything that waits, so one ``fdatasync`` serves all transactions that arrived while the one
before it ran. A put that finds nobody at it leads: it flushes on its own thread, which spares two hand-overs; what
arrives meanwhile is flushed by one of those who wait for it, or by the flusher's thread where nobody does. Source:
RocketMQ's ``GroupCommitService`` and ``FlushRealTimeService``; ``docs/decisions/0015``.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from cdc.binlog.entry import Entries
from cdc.errors import CdcError, StorageError, StoreClosedError
from cdc.log import get_logger
from cdc.store.formats.index import seal
from cdc.store.writer.latency import Latencies, LatencyFigures
from cdc.store.writer.policy import PAGE_BYTES, FlushPolicy
from cdc.store.writer.segment import SegmentWriter

log = get_logger(__name__)


class Part(NamedTuple):
    """Transactions in one segment, which has to be durable up to ``size`` before their entries are written."""

    segment: SegmentWriter
    size: int
    entries: Entries | bytes | None = None
    """As an array, or sealed as they stand in the file."""


class Flushed(NamedTuple):
    """The end of what is durable and visible."""

    segment: str
    """Name of the segment's file; empty before the first."""
    end_offset: int
    seq: int


class Work:
    """Something to flush, whole: its entries become visible one right after another."""

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
        "parts",
        "size_bytes",
        "waiter",
    )

    def __init__(
        self,
        parts: tuple[Part, ...] = (),
        *,
        count: int = 0,
        end: Flushed | None = None,
        size_bytes: int = 0,
        finish: tuple[SegmentWriter, ...] = (),
        now: bool = False,
    ) -> None:
        self.parts = parts
        self.count = count
        """Entries in it."""
        self.end = end
        """Where the log ends with them."""
        self.size_bytes = size_bytes
        self.finish = finish
        """Segments that nothing is added to any more: closed afterwards."""
        self.now = now
        """Do not wait for the policy's times."""
        self.waiter: threading.Lock | None = None
        self.owner = 0
        """The thread that waits."""
        self.can_lead = self.leads = self.gone = self.done = False


class Flusher:
    """Flushes work in order, one batch at a time, on the thread of somebody who waits or on its own.

    After a failure every call raises it: what the operating system said it had may be gone, and asking it again would
    not tell (a second ``fsync`` may succeed although the first one's pages were dropped).
    """

    def __init__(
        self,
        policy: FlushPolicy,
        *,
        last: Flushed,
        on_finished: Callable[[SegmentWriter], None],
        on_failure: Callable[[Iterable[SegmentWriter]], None],
        on_moved: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``on_finished`` is called with each finished segment, all of it visible and nothing behind it yet;
        ``on_failure`` once everybody knows of a failed flush, with the segments that may not be durable as far as they
        were to be; ``on_moved`` when more is visible, and when nothing more will be."""
        self.policy = policy
        self._on_finished = on_finished
        self._on_failure = on_failure
        self._on_moved = on_moved
        self.flushed = last
        self.visible = 0
        """Entries that readers can see since it was opened."""
        self.syncs = Latencies(policy.slow_flush_s)
        self.error: CdcError | None = None
        self._clock = clock
        self._mutex = threading.Lock()
        self._wake = threading.Condition(self._mutex)
        self._moved = threading.Condition(self._mutex)
        self._watchers = 0
        self._queue: deque[Work] = deque()
        self._queued_bytes = self._flushing_bytes = 0
        self._least_bytes = policy.least_pages * PAGE_BYTES
        self._now = self._busy = self._closing = False
        self._leader: Work | None = None
        """Who has been chosen to flush, and has not begun."""
        self._flushed_at = clock() - policy.thorough_interval_s
        self._thread = threading.Thread(target=self._run, name="flusher", daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        """Is nobody flushing, and nothing queued to be flushed at once?"""
        return not self._busy and not (self._now if self.policy.mode == "async" else self._queue)

    @property
    def clear(self) -> bool:
        """Is everything handed in durable and visible?"""
        with self._mutex:  # read one after the other, a batch could be taken out of the queue in between
            return not self._busy and not self._queue and self.error is None

    @property
    def waiting_bytes(self) -> int:
        """Of transactions that are not durable yet."""
        return self._queued_bytes + self._flushing_bytes

    @property
    def slow_lately(self) -> bool:
        """Did the last flush take too long?"""
        return self.syncs.last_s >= self.syncs.slow_s

    def figures(self) -> LatencyFigures:
        """Of the calls of fdatasync."""
        with self._mutex:
            return self.syncs.figures()

    def check(self) -> None:
        """Raises what ended it."""
        if self.error is not None:
            raise StorageError(self.error.message, place=self.error.place, remedy=self.error.remedy)
        if self._closing:
            raise StoreClosedError("the relay log is closed")

    # --- handing in

    def add(self, work: Work) -> None:
        """Have it flushed; does not wait."""
        with self._mutex:
            self._append(work)

    def add_waiting(self, work: Work, *, lead: bool = False) -> None:
        """Have it flushed; :meth:`wait` has to be called next. With ``lead`` that call flushes itself if nobody else is
        at it, however long it takes."""
        work.waiter = threading.Lock()
        work.waiter.acquire()
        work.can_lead, work.owner = lead, threading.get_ident()
        with self._mutex:
            self._append(work)

    def wait(self, work: Work, timeout_s: float | None) -> bool:
        """Wait for work of :meth:`add_waiting`; False when the time is over. Raises what ended the flusher."""
        assert work.waiter is not None
        if not work.leads and not work.waiter.acquire(timeout=-1 if timeout_s is None else max(0.0, timeout_s)):
            if self._gave_up(work):
                return False
        elif work.leads:
            with self._mutex:
                batch = self._take() if self._leader is work else None
            if batch is not None:  # else the log has failed before it began
                self._flush(batch)
        if not work.done:
            self.check()
            raise StoreClosedError("the relay log was closed")
        return True

    def abandon(self) -> None:
        """The call on this thread was interrupted: nobody counts on it to flush."""
        mine = threading.get_ident()
        with self._mutex:
            for work in self._queue:
                work.gone = work.gone or work.owner == mine
            if self._leader is not None and self._leader.gone:
                self._leader.leads, self._leader = False, None
                self._hand_on()

    def _gave_up(self, work: Work) -> bool:
        """Nobody waits for it any more; False where it has ended at this very moment."""
        with self._mutex:
            if work.done or self.error is not None:
                return False
            work.gone = True
            if work.leads:  # made leader just now
                work.leads, self._leader = False, None
                self._hand_on()
            return True

    def wait_moved(self, seq: int, timeout_s: float | None) -> bool:
        """Wait until something behind ``seq`` is visible. Raises StoreClosedError at the end, and what ended it."""
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
        """Wait until everything handed in so far is durable and visible, whatever the policy; False when the time is
        over."""
        self.check()
        if self.clear:
            return True
        work = Work(now=True)
        try:
            self.add_waiting(work, lead=lead)
            return self.wait(work, timeout_s)
        except BaseException:
            self.abandon()
            raise

    def close(self) -> None:
        """Flush what waits, and end, once nobody flushes any more. What was met is in ``error``."""
        with self._mutex:
            self._closing = True
            self._wake.notify_all()
            self._moved.notify_all()
        self._thread.join()
        self._tell()

    def fail(self, error: CdcError) -> None:
        """Nothing is flushed any more; everybody who waits gets this error, but for those whose flush is under way."""
        self._end(error, ())
        self._tell()

    def _end(self, error: CdcError, batch: Iterable[Work]) -> None:
        with self._mutex:
            if self.error is None:
                self.error = error
            if self._leader is not None:  # it has not begun, and will not
                self._busy = False
            for work in (*batch, *self._take()):
                if work.waiter is not None and not work.leads:
                    work.waiter.release()
            self._wake.notify_all()
            self._moved.notify_all()

    # --- who flushes; all under the mutex

    def _append(self, work: Work) -> None:
        """Queue it, and see that somebody flushes it."""
        self.check()
        before, self._queued_bytes = self._queued_bytes, self._queued_bytes + work.size_bytes
        was_empty = not self._queue
        self._queue.append(work)
        self._now = self._now or work.now
        if self._busy:
            return  # who flushes now will see to it
        if self.policy.mode == "sync" or work.now:
            if work.can_lead:
                work.leads = self._busy = True
                self._leader = work
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

    def _take(self) -> deque[Work]:
        batch, self._queue = self._queue, deque()
        self._leader = None
        self._flushing_bytes, self._queued_bytes, self._now = self._queued_bytes, 0, False
        return batch

    def _hand_on(self) -> None:
        """Whoever led has ended: somebody else goes on, if there is something to do."""
        self._busy = False
        if not self._queue and not self._closing and self.error is None:
            return
        if self._due_in_s() == 0.0:
            for work in self._queue:
                if work.can_lead and not work.gone:
                    assert work.waiter is not None
                    work.leads = self._busy = True
                    self._leader = work
                    work.waiter.release()
                    return
        self._wake.notify()

    # --- flushing

    def _run(self) -> None:
        while True:
            with self._mutex:
                while True:
                    # Whoever flushes still uses the files: they are closed after this thread's end.
                    if not self._busy and (self.error is not None or (self._closing and not self._queue)):
                        return
                    due_in_s = None if self._busy else self._due_in_s()
                    if due_in_s == 0.0:
                        break
                    self._wake.wait(due_in_s)
                self._busy = True
                batch = self._take()
            self._flush(batch)

    def _flush(self, batch: deque[Work]) -> None:
        try:
            took_s = self._write(batch)
        except CdcError as error:
            self._failed(error, batch)
            return
        except BaseException as error:  # an interrupt on the thread of somebody who leads
            self._failed(StorageError(f"a flush was interrupted: {type(error).__name__}"), batch)
            raise
        with self._mutex:
            self._flushed_at = self._clock()
            self._flushing_bytes = 0
            slow = [each_s for each_s in took_s if self.syncs.add(each_s)]
            for work in batch:
                work.done = True
                self.visible += work.count
                if work.end is not None:
                    self.flushed = work.end
                if work.waiter is not None and not work.leads:
                    work.waiter.release()
            if self._watchers:
                self._moved.notify_all()
            self._hand_on()
        self._tell()
        for each_s in slow:
            log.warning("slow flush", seconds=round(each_s, 3), limit_s=self.policy.slow_flush_s)

    def _failed(self, error: CdcError, batch: deque[Work]) -> None:
        with self._mutex:
            segments = dict.fromkeys(part.segment for work in (*batch, *self._queue) for part in work.parts)
        self._end(error, batch)
        try:
            self._on_failure(segments)  # may have to wait for an append that waits for a flush, so after the end
        finally:
            with self._mutex:
                self._hand_on()
        self._tell()

    def _tell(self) -> None:
        """A callback that fails is not the log's failure, nor may it end the thread that flushes."""
        try:
            self._on_moved()
        except Exception:
            log.exception("a call for what has moved failed")

    def _write(self, batch: deque[Work]) -> list[float]:
        """Make the log durable, all of it, then write the entries, in order. Returns seconds per fdatasync."""
        if len(batch) == 1 and len(batch[0].parts) == 1 and not batch[0].finish:
            return self._write_one(*batch[0].parts[0])
        sizes: dict[SegmentWriter, int] = {}
        entries: dict[SegmentWriter, list[bytes]] = {}
        finished: list[SegmentWriter] = []
        for work in batch:
            for segment, size, part in work.parts:
                sizes[segment] = max(size, sizes.get(segment, 0))
                if part is not None:
                    entries.setdefault(segment, []).append(part if isinstance(part, bytes) else seal(part))
            finished += work.finish
        took_s = []
        for segment, size in sizes.items():
            if size > segment.synced:
                began = time.perf_counter()
                segment.sync()
                took_s.append(time.perf_counter() - began)
        for segment in sizes:
            if parts := entries.get(segment):
                segment.publish_sealed(parts[0] if len(parts) == 1 else b"".join(parts))
            if segment in finished:
                self._on_finished(segment)
                segment.close()
        return took_s

    def _write_one(self, segment: SegmentWriter, size: int, entries: Entries | bytes | None) -> list[float]:
        """What :meth:`_write` comes to for a single put or a short piece of the stream."""
        took_s = []
        if size > segment.synced:
            began = time.perf_counter()
            segment.sync()
            took_s.append(time.perf_counter() - began)
        if entries is not None:
            segment.publish_sealed(entries if isinstance(entries, bytes) else seal(entries))
        return took_s
