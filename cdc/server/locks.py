"""The locks of a meta that clients hold: the server holds them for as long as a client renews them.

A lock of the meta belongs to a process. Here that is the server, so that jobs on this machine and clients elsewhere
exclude each other. A client that dies, or cannot reach the server, loses its locks after ``LOCK_TTL_S``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass

from cdc.base.errors import TokenError
from cdc.base.log import get_logger
from cdc.meta import Meta
from cdc.wire.protocol import LOCK_TTL_S

MOST_LOCKS = 10_000
"""The most locks that one subscriber may hold."""
_log = get_logger(__name__)


@dataclass
class _Held:
    name: str
    subscriber: str
    until: float
    """The time at which the lock expires, by the clock of the table of locks."""
    release: ExitStack


class LockTable:
    """The locks of one destination's clients. Safe in any thread."""

    def __init__(self, meta: Meta, *, ttl_s: float = LOCK_TTL_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._meta, self._ttl_s, self._clock = meta, ttl_s, clock
        self._held: dict[str, _Held] = {}
        self._mutex = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def acquire(self, lock_id: str, name: str, what: str, subscriber: str, *, shared: bool) -> None:
        """Takes a lock without waiting, under an id that the client has made at random. Taking it again by the same id
        renews it. Raises LeaseHeldError."""
        self.expire()
        with self._mutex:
            lock = self._held.get(lock_id)
            if lock is not None:
                if lock.subscriber != subscriber or lock.name != name:
                    raise TokenError("this id belongs to another lock", place=name)
                lock.until = self._clock() + self._ttl_s
                return
            if sum(lock.subscriber == subscriber for lock in self._held.values()) >= MOST_LOCKS:
                raise TokenError(f"{subscriber} holds {MOST_LOCKS} locks", remedy="End the clients that hold them.")
        with ExitStack() as stack:
            stack.enter_context(self._meta.lock(name, what, wait_s=0.0, shared=shared))
            with self._mutex:
                self._held[lock_id] = _Held(name, subscriber, self._clock() + self._ttl_s, stack.pop_all())

    def renew(self, ids: Iterable[str], subscriber: str) -> list[str]:
        """Renews locks, and returns the ids of those that the client does not hold any more."""
        self.expire()
        lost = []
        with self._mutex:
            for lock_id in ids:
                lock = self._held.get(lock_id)
                if lock is None or lock.subscriber != subscriber:
                    lost.append(lock_id)
                else:
                    lock.until = self._clock() + self._ttl_s
        return lost

    def release(self, lock_id: str, subscriber: str) -> bool:
        """Releases a lock; returns whether the client still held it."""
        with self._mutex:
            lock = self._held.get(lock_id)
            if lock is None or lock.subscriber != subscriber:
                return False
            del self._held[lock_id]
        lock.release.close()
        return True

    def expire(self) -> None:
        """Releases the locks that were not renewed in time."""
        now = self._clock()
        with self._mutex:
            late = [lock_id for lock_id, lock in self._held.items() if lock.until <= now]
            gone = [self._held.pop(lock_id) for lock_id in late]
        for lock in gone:
            lock.release.close()
            _log.warning("lock released: its client has not renewed it", lock=lock.name, subscriber=lock.subscriber)

    def close(self) -> None:
        """Releases all locks."""
        with self._mutex:
            gone, self._held = list(self._held.values()), {}
        for lock in gone:
            lock.release.close()
