"""A meta in memory that several processes share, and that is stored periodically, after Canal's MixedMetaManager.

``cdc server`` uses it for a store in its memory (``meta.kind: mixed``): the meta is a file in the machine's shared
memory, which the server and its capture change, and the server alone copies it each second to a file on a disk or to
ZooKeeper. Decision 0118 says what a crash may lose.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from cdc.base.errors import CdcError
from cdc.base.log import get_logger
from cdc.meta.base import DurableMeta, Meta
from cdc.meta.state import State

RESERVED_IDS = 1 << 20
"""The number of batch ids that are stored ahead as used, so that none is used again after a crash, however many were
handed out since the last write."""
_HOLD_S = 30.0
_log = get_logger(__name__)


class MixedMeta(Meta):
    """The meta ``shared``, which is lost with the machine's memory, and its copy in ``durable``.

    :meth:`begin` loads the copy before anything else is done. The source, subscribers and their filters are stored
    before a change of them ends, cursors and batches every ``period_s`` seconds, many changes in one write. A failed
    write is logged and tried again. :meth:`close` stores what is pending.
    """

    def __init__(self, shared: Meta, durable: DurableMeta, *, period_s: float = 1.0) -> None:
        self._shared, self._durable, self._period_s = shared, durable, period_s
        self._storing = threading.Lock()
        self._stored: State | None = None
        """The state that ``durable`` has; None before :meth:`begin`."""
        self._ending = threading.Event()
        self._flusher: threading.Thread | None = None

    @property
    def place(self) -> str:
        return self._durable.place

    def begin(self) -> None:
        """Makes this process the holder of ``durable``, and replaces what is shared by what is stored. Raises
        LeaseHeldError if another process holds it, and what ``durable`` raises."""
        try:
            self._durable.hold(_HOLD_S)
            stored = self._durable.read()
            with self._shared.change() as state:
                state.destination, state.source = stored.destination, stored.source
                state.subscriptions = stored.copied().subscriptions
        except BaseException:
            self._durable.close()
            raise
        self._stored = stored
        self._flusher = threading.Thread(target=self._flush_by_period, name="meta-flush", daemon=True)
        self._flusher.start()

    def read(self) -> State:
        return self._shared.read()

    @contextmanager
    def change(self) -> Iterator[State]:
        with ExitStack() as until_shared, self._shared.change() as state:
            before = state.copied()
            yield state
            if _must_store_now(before, state):
                # Held until the shared meta has the change too: a flush in between would store the state before it.
                until_shared.enter_context(self._storing)
                self._store(state)

    @contextmanager
    def lock(self, name: str, what: str, *, wait_s: float = 0.0, shared: bool = False) -> Iterator[None]:
        with self._shared.lock(name, what, wait_s=wait_s, shared=shared):
            yield

    def flush(self) -> None:
        """Stores pending changes now. Raises what ``durable`` raises."""
        with self._storing:
            state = self._shared.read()
            if state != self._stored:
                self._store(state)

    def close(self) -> None:
        if self._ending.is_set():
            return
        self._ending.set()
        try:
            if self._flusher is not None:
                self._flusher.join()
                with self._storing:
                    self._store(self._shared.read(), clean=True)
        finally:
            self._shared.close()
            self._durable.close()

    def _store(self, state: State, *, clean: bool = False) -> None:
        """Writes a state. The caller holds ``_storing``. ``clean``: the last write, so no ids are stored ahead."""
        state = state.copied()
        self._durable.hold(0)
        with self._durable.change() as stored:
            stored.destination, stored.source = state.destination, state.source
            stored.subscriptions = state.copied().subscriptions
            for subscription in stored.subscriptions.values() if not clean else ():
                subscription.next_batch += RESERVED_IDS
        self._stored = state

    def _flush_by_period(self) -> None:
        due = time.monotonic() + self._period_s
        while not self._ending.wait(max(0.0, due - time.monotonic())):
            due = time.monotonic() + self._period_s
            try:
                self.flush()
            except CdcError as error:
                _log.warning("cursors not stored; trying again", place=self.place, reason=str(error))


def _must_store_now(before: State, after: State) -> bool:
    """Whether a change is of the source, of subscribers or of their filters."""
    if (before.destination, before.source) != (after.destination, after.source):
        return True
    old, new = (
        {name: subscription.filter for name, subscription in state.subscriptions.items()} for state in (before, after)
    )
    return old != new
