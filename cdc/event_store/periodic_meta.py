"""The meta in memory first, stored by period: Canal's PeriodMixedMetaManager and FileMixedMetaManager in one.

For one process that acks more often than a disk or ZooKeeper can be asked: over
:class:`~cdc.meta.zookeeper.ZooKeeperMeta` it is Canal's period-mixed manager, over :class:`~cdc.meta.file.FileMeta` its
file-mixed one. What a crash may lose, and what never: ``docs/decisions/0013``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from cdc.errors import CdcError, LeaseHeldError, UsageError
from cdc.event_store.memory_meta import NamedLock
from cdc.log import get_logger
from cdc.meta.base import DurableMeta, Meta
from cdc.meta.state import State

RESERVED_IDS = 1000
"""So many batch ids are stored ahead as used, that none comes twice after a crash."""

_log = get_logger(__name__)


class PeriodicMeta(Meta):
    """Meta of one destination in one process. ``close`` stores what is not stored yet, and closes ``durable``.

    At once stored: the source, subscribers and their filters. Every ``period_s`` seconds, several changes in one write:
    cursors and batches, if they changed. Where that fails, it is tried again, and the log says so; where another
    process changed what is below, nothing is written any more, and every call but :meth:`read` raises LeaseHeldError.
    """

    def __init__(self, durable: DurableMeta, *, period_s: float = 1.0, lock_wait_s: float = 30.0) -> None:
        if not period_s > 0:
            raise UsageError(f"period_s: {period_s} must be more than 0")
        self._durable = durable
        self._period_s = period_s
        self._lock_wait_s = lock_wait_s
        self._changing = NamedLock(lock_wait_s)  # who changes
        self._storing = threading.Lock()  # who stores; taken after the turn, never before it
        self._known: State | None = None  # replaced, never changed in place
        self._stored = State()  # the object of `_known` that is stored
        self._on_disk: list[State] = []  # what we may have written last: two, when an answer was lost
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
            state = state.model_copy(deep=True)  # the block may keep what it was given
            if self._at_once(known, state):
                with self._storing:
                    self._store(state)
                    self._known = state
            self._known = state
            self._run()

    def flush(self) -> None:
        """Store now what changed since the last time. Raises what the durable meta raises."""
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

    def _at_once(self, before: State, after: State) -> bool:
        """What is rare, or must not be forgotten: identity, subscribers, and batch ids beyond those stored ahead."""
        if (before.destination, before.source) != (after.destination, after.source):
            return True
        filters = [{name: s.filter for name, s in state.subscriptions.items()} for state in (before, after)]
        ids = any(s.next_batch > self._reserved.get(name, 0) for name, s in after.subscriptions.items())
        return filters[0] != filters[1] or ids

    def _store(self, state: State, *, clean: bool = False) -> None:
        """``clean``: nothing follows, so that no ids need be stored ahead."""
        self._durable.hold(0)
        with self._durable.change() as there:
            if there not in self._on_disk:
                raise LeaseHeldError(
                    "was changed by another process while this one kept it in memory",
                    place=self.place,
                    remedy="Let one process work with it, and start this one again: it goes on from what is stored.",
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

    def _run(self) -> None:
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
                self._failure = error  # another has taken over: nothing of ours may be stored any more
                return
            except CdcError as error:
                if not error.retryable:
                    self._failure = error
                    return
                _log.warning("cursors not stored, tried again", place=self.place, reason=str(error))
