"""Keeping a lease while a long merge runs, and stopping the merge when the lease is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from cdc.batches.lease import iso_time
from cdc.errors import BatchError, CdcError, TokenError
from cdc.log import get_logger

if TYPE_CHECKING:
    from cdc.batches.lease import Lease

_log = get_logger(__name__)


class Renewing(Protocol):
    """What renewal needs; :class:`cdc.batches.service.BatchService` has it."""

    def renew(self, batch: int, token: str, *, subscriber: str = "apply", lease_s: float | None = None) -> datetime: ...


@contextmanager
def renewed(
    service: Renewing,
    lease: Lease,
    lease_s: float,
    stop: Callable[[], None],
    now: Callable[[], datetime],
) -> Iterator[None]:
    """Prolong the lease when the block begins, every third of ``lease_s`` while it runs, and when it has ended well, so
    that who acks has the whole lease for that.

    When another has taken the batch, or the lease could not be renewed until it had expired, ``stop`` is called once,
    in another thread: it must end what the block does. Whatever the block then raises or returns, TokenError or
    BatchError is raised, with what became of the lease.
    """
    keeper = _Keeper(service, lease, lease_s, stop, now)
    keeper.renew()
    thread = threading.Thread(target=keeper.run, name="renew-lease", daemon=True)
    thread.start()
    try:
        yield
    except Exception as error:
        keeper.end(thread)
        if keeper.lost is not None:
            raise keeper.lost from error
        raise
    except BaseException:  # Ctrl-C, or the end of the process
        keeper.end(thread)
        raise
    keeper.end(thread)
    if keeper.lost is not None:
        raise keeper.lost
    keeper.renew()


class _Keeper:
    def __init__(
        self,
        service: Renewing,
        lease: Lease,
        lease_s: float,
        stop: Callable[[], None],
        now: Callable[[], datetime],
    ) -> None:
        self._service, self._lease, self._lease_s, self._stop, self._now = service, lease, lease_s, stop, now
        self._expires = lease.expires
        self._done = threading.Event()
        self.lost: BatchError | None = None

    def renew(self) -> None:
        manifest = self._lease.manifest
        self._expires = self._service.renew(
            manifest.batch, self._lease.token, subscriber=manifest.subscriber, lease_s=self._lease_s
        )

    def run(self) -> None:
        pause_s = self._lease_s / 3
        while not self._done.wait(pause_s):
            pause_s = self._lease_s / 3
            try:
                self.renew()
                continue
            except BatchError as error:
                self.lost = error
            except CdcError as error:  # a full disk, or a lock that is held: soon again, while the lease lasts
                pause_s = self._lease_s / 12
                if self._now() < self._expires:
                    _log.warning("the lease was not renewed", batch=self._lease.batch, reason=str(error))
                    continue
                self.lost = TokenError(
                    f"the lease of batch {self._lease.batch} expired at {iso_time(self._expires)}: it could not be "
                    f"renewed ({error})",
                    remedy="Get the batch again for a valid token.",
                )
            _log.error("the lease is lost, the merge is stopped", batch=self._lease.batch, reason=str(self.lost))
            self._stop()
            return

    def end(self, thread: threading.Thread) -> None:
        self._done.set()
        thread.join()
