"""The meta of a destination at a server: it is read there, and changed by the server alone."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from cdc.base.errors import CdcError, LeaseHeldError, MetaUnavailableError, UnsupportedError
from cdc.base.log import get_logger
from cdc.batches.manifest import TableResult
from cdc.batches.operations import remote
from cdc.batches.parking import ParkingRecords
from cdc.meta import Meta, ParkedTable, State
from cdc.wire.connection import Connection
from cdc.wire.protocol import LOCK_TTL_S

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
_log = get_logger(__name__)


class RemoteMeta(Meta, ParkingRecords):
    """The part of a meta that a subscriber may see: the source, and its own subscription."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._locks = locks_of(connection)

    @property
    def place(self) -> str:
        return self.connection.place

    def read(self) -> State:
        return State.model_validate(self.connection.call("state"))

    def change(self) -> AbstractContextManager[State]:
        raise UnsupportedError(
            "the meta is changed by the server alone",
            place=self.place,
            remedy="Do this where the server runs, with the configuration there.",
        )

    @contextmanager
    def lock(self, name: str, what: str, *, wait_s: float = 0.0, shared: bool = False) -> Iterator[None]:
        held = self._locks.acquire(name, what, wait_s, shared=shared)
        try:
            yield
        finally:
            self._locks.release(held)

    def require_locks(self) -> None:
        """Raises MetaUnavailableError if this process has lost a lock that it needs."""
        self._locks.require()

    # --- parked tables

    def park(self, subscriber: str, table: str, parked: ParkedTable) -> ParkedTable | None:
        self.require_locks()
        return self._park(subscriber, table, parked)

    def keep_from(self, subscriber: str, table: str, keep_seq: int | None = None) -> None:
        self.require_locks()
        self._keep_from(subscriber, table, keep_seq)

    def unpark(self, subscriber: str, result: TableResult, level_seq: int) -> int | None:
        self.require_locks()
        return self._unpark(subscriber, result, level_seq)

    def release_parked(self, subscriber: str, table: str) -> None:
        self.require_locks()
        self._release_parked(subscriber, table)

    _park = remote(ParkingRecords.park)
    _keep_from = remote(ParkingRecords.keep_from)
    _unpark = remote(ParkingRecords.unpark)
    _release_parked = remote(ParkingRecords.release_parked)


# --- locks


@dataclass(eq=False)
class _Held:
    id: str
    name: str
    what: str
    shared: bool
    until: float
    """A time of the monotonic clock, from which on the server may release the lock."""
    lost: str | None = None
    """Why the lock was lost."""


class RemoteLocks:
    """The locks that this process holds at a server. One thread renews them while there are any.

    A lock that the server does not know any more, because it was started again or this process stood still, is taken
    again. If another has it by then, it is lost: :meth:`require` says so before the next statement.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._held: dict[str, _Held] = {}
        self._mutex = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self, name: str, what: str, wait_s: float, *, shared: bool) -> _Held:
        """Takes a lock. Raises LeaseHeldError if another holder does not release it within ``wait_s``."""
        held = _Held(secrets.token_hex(16), name, what, shared, 0.0)
        deadline, pause_s = time.monotonic() + wait_s, _FIRST_PAUSE_S
        while True:
            try:
                self._take(held)
                break
            except LeaseHeldError:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        with self._mutex:
            self._held[held.id] = held
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="renew-locks", daemon=True)
                self._thread.start()
        return held

    def release(self, held: _Held) -> None:
        """Releases a lock. If the server cannot be reached, it releases the lock by itself later."""
        with self._mutex:
            self._held.pop(held.id, None)
        try:
            gone = self._connection.call("unlock", {"ids": [held.id]})
        except CdcError as error:
            _log.warning("lock not released; the server does so itself", lock=held.name, reason=str(error))
            return
        if gone or held.lost is not None:
            _log.warning("a lock was lost while it was used", lock=held.name, reason=held.lost or "not renewed in time")

    def require(self) -> None:
        """Raises MetaUnavailableError if one of the locks is lost, or may be."""
        now = time.monotonic()
        with self._mutex:
            for held in self._held.values():
                if held.lost is not None or held.until <= now:
                    raise MetaUnavailableError(
                        f"the lock {held.name} is lost: {held.lost or 'it could not be renewed in time'}",
                        place=self._connection.place,
                        remedy="Start the work again: what was committed stays, and is not done twice.",
                    )

    def _take(self, held: _Held) -> None:
        began = time.monotonic()
        self._connection.call("lock", {"id": held.id, "name": held.name, "what": held.what, "shared": held.shared})
        held.until = began + LOCK_TTL_S

    def _run(self) -> None:
        while True:
            self._wake.wait(LOCK_TTL_S / 3)
            with self._mutex:
                held = list(self._held.values())
                if not held:
                    self._thread = None
                    return
            self._renew(held)

    def _renew(self, held: list[_Held]) -> None:
        began = time.monotonic()
        try:
            gone = set(self._connection.call("renew_locks", {"ids": [lock.id for lock in held]}, once=True))
        except CdcError as error:
            _log.warning("locks not renewed; trying again", place=self._connection.place, reason=str(error))
            return
        for lock in held:
            if lock.id not in gone:
                lock.until = began + LOCK_TTL_S
            elif lock.lost is None and lock.id in self._held:
                try:
                    self._take(lock)
                    _log.info("lock taken again: the server had released it", lock=lock.name)
                except CdcError as error:
                    lock.lost = str(error)


_all: dict[Connection, RemoteLocks] = {}
_all_mutex = threading.Lock()


def locks_of(connection: Connection) -> RemoteLocks:
    """Returns the locks of this process at a server. All metas of a connection share them."""
    with _all_mutex:
        return _all.setdefault(connection, RemoteLocks(connection))
