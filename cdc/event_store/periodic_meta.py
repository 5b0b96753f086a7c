"""A meta in memory that is stored periodically, after Canal's PeriodMixedMetaManager and FileMixedMetaManager.

It is for one process that acks more often than a disk or ZooKeeper can store. Over
:class:`~cdc.meta.zookeeper.ZooKeeperMeta` it is Canal's period-mixed manager, over :class:`~cdc.meta.file.FileMeta` its
file-mixed one. No configuration selects it. ``docs/decisions/0013`` says what a crash may lose.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from cdc.base.errors import CdcError, LeaseHeldError, UsageError
from cdc.base.log import get_logger
from cdc.event_store.memory_meta import NamedLock
from cdc.meta.base import DurableMeta, Meta
from cdc.meta.state import State

RESERVED_IDS = 1000
"""How many batch ids are stored ahead as used, so that none is used again after a crash."""

_log = get_logger(__name__)


class PeriodicMeta(Meta):
    """The meta of one destination in one process. ``close`` stores pending changes and closes ``durable``.

    The source, subscribers and their filters are stored at once. Cursors and batches are stored every ``period_s``
    seconds if they changed, several changes in one write. A failed write is logged and tried again. If another process
    changed ``durable``, nothing is written any more, and every call except :meth:`read` raises LeaseHeldError.
    """

    def __init__(self, durable: DurableMeta, *, period_s: float = 1.0, lock_wait_s: float = 30.0) -> None:
        if not period_s > 0:
            raise UsageError(f"period_s: {period_s} must be more than 0")
        self._durable = durable
        self._period_s = period_s
        self._lock_wait_s = lock_wait_s
        self._changing = NamedLock(lock_wait_s)  # held during a change
        self._storing = threading.Lock()  # held during a write; acquired after _changing, never before it
        self._known: State | None = None  # replaced, never changed in place
        self._stored = State()  # the value of `_known` that is stored
        self._on_disk: list[State] = []  # what may be stored: two states if the answer to a write was lost
        self._reserved: dict[str, int] = {}
        self._failure: CdcError | None = None
        self._flusher: threading.Thread | None = None
        self._ending = threading.Event()

    @property
    def place(self) -> str:
        return self._durable.place

    def read(self) -> State:
        if self._known is None:
            with self._changing.hold(self.place):
                self._load()
        assert self._known is not None
        return self._known.model_copy(deep=True)

    @contextmanager
    def change(self) -> Iterator[State]:
        with self._changing.hold(self.place):
            known = self._load()
            if self._failure is not None:
                raise self._failure
            state = known.model_copy(deep=True)
            yield state
            if state == known:
                return
            state = state.model_copy(deep=True)  # the block may keep its object
            if self._must_store_now(known, state):
                with self._storing:
                    self._store(state)
                    self._known = state
            self._known = state
            self._start_flusher()

    @contextmanager
    def lock(self, name: str, what: str, *, wait_s: float = 0.0, shared: bool = False) -> Iterator[None]:
        with self._durable.lock(name, what, wait_s=wait_s, shared=shared):
            yield

    def flush(self) -> None:
        """Stores pending changes now. Raises what the durable meta raises."""
        with self._storing:
            if self._known is not None and self._known is not self._stored:
                self._store(self._known)

    def close(self) -> None:
        with self._changing.hold(self.place):
            if self._ending.is_set():
                return
            self._ending.set()
            if self._flusher is not None:
                self._flusher.join()
            try:
                if self._failure is not None:
                    raise self._failure
                if self._known is not None and (self._known is not self._stored or self._reserved):
                    with self._storing:
                        self._store(self._known, clean=True)
            finally:
                self._durable.close()

    # inside -----------------------------------------------------------------------------------------------------

    def _load(self) -> State:
        if self._ending.is_set():
            raise UsageError("was closed", place=self.place)
        if self._known is None:
            self._durable.hold(self._lock_wait_s)
            state = self._durable.read()
            self._on_disk = [state.model_copy(deep=True)]
            self._known = self._stored = state
        return self._known

    def _must_store_now(self, before: State, after: State) -> bool:
        """Whether a change must be stored at once: of identity or subscribers, or beyond the batch ids stored ahead."""
        if (before.destination, before.source) != (after.destination, after.source):
            return True
        filters = [{name: s.filter for name, s in state.subscriptions.items()} for state in (before, after)]
        ids = any(s.next_batch > self._reserved.get(name, 0) for name, s in after.subscriptions.items())
        return filters[0] != filters[1] or ids

    def _store(self, state: State, *, clean: bool = False) -> None:
        """Writes a state. ``clean``: it is the last write, so no ids are stored ahead."""
        self._durable.hold(0)
        with self._durable.change() as there:
            if there not in self._on_disk:
                raise LeaseHeldError(
                    "was changed by another process while this one kept it in memory",
                    place=self.place,
                    remedy="Let only one process use it, and start this one again: it continues from what is stored.",
                )
            before = there.model_copy(deep=True)
            there.destination, there.source = state.destination, state.source
            there.subscriptions = state.model_copy(deep=True).subscriptions
            reserved = {name: self._reserve(name, s.next_batch) for name, s in state.subscriptions.items()}
            for name, known in there.subscriptions.items() if not clean else ():
                known.next_batch = reserved[name]
            self._on_disk = [before, there.model_copy(deep=True)]
        self._on_disk = self._on_disk[1:]
        self._reserved, self._stored = reserved, state

    def _reserve(self, name: str, next_batch: int) -> int:
        reserved = self._reserved.get(name, 0)
        return reserved if next_batch <= reserved else next_batch + RESERVED_IDS

    def _start_flusher(self) -> None:
        if self._flusher is None or not self._flusher.is_alive():
            self._flusher = threading.Thread(target=self._flush_by_period, name="meta-flush", daemon=True)
            self._flusher.start()

    def _flush_by_period(self) -> None:
        due = time.monotonic() + self._period_s
        while not self._ending.wait(max(0.0, due - time.monotonic())):
            due = time.monotonic() + self._period_s
            try:
                self.flush()
            except LeaseHeldError as error:
                self._failure = error  # another process has taken over: write nothing any more
                return
            except CdcError as error:
                if not error.retryable:
                    self._failure = error
                    return
                _log.warning("cursors not stored; trying again", place=self.place, reason=str(error))
