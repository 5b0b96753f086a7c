"""Leases: the right to end a batch until a moment, its renewal, and the owner that commands act as."""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from cdc.batches.manifest import Manifest
from cdc.config import DestinationConfig
from cdc.durable import locked
from cdc.errors import BatchError, CdcError, TokenError, UsageError
from cdc.log import get_logger
from cdc.permissions import CHANGE, secure_folder
from cdc.units import iso_time


@dataclass(frozen=True)
class Lease:
    """What ``get`` hands out. ``token`` is demanded by ack, rollback, check and renew until ``expires`` (aware)."""

    manifest: Manifest
    manifest_path: Path
    token: str
    expires: datetime

    @property
    def fingerprint(self) -> str:
        """Tells this lease from all others of its batch, and does not give its token away."""
        return fingerprint(self.token)

    @property
    def batch(self) -> int:
        """The batch's id."""
        return self.manifest.batch

    def as_dict(self) -> dict[str, Any]:
        """For JSON: ``batch``, ``token``, ``expires`` and ``manifest_path``, then the manifest's own keys."""
        manifest = self.manifest.model_dump(mode="json", exclude={"acked"})
        return {
            "batch": manifest.pop("batch"),
            "token": self.token,
            "expires": iso_time(self.expires),
            "manifest_path": str(self.manifest_path),
            **manifest,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Lease:
        """What :meth:`as_dict` made, back again; for a process that merges on another's behalf."""
        try:
            token, expires, path = data["token"], datetime.fromisoformat(data["expires"]), Path(data["manifest_path"])
            manifest = Manifest.model_validate(data)
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"this is not a lease as `cdc batch get --json` prints it: {error}") from None
        return cls(manifest, path, token, expires)


def fingerprint(token: str) -> str:
    """The first 32 hexadecimal digits of the token's SHA-256; tokens are random, so nobody gets from it to them."""
    return hashlib.sha256(token.encode()).hexdigest()[:32]


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
    keeper = LeaseRenewer(service, lease, lease_s, stop, now)
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


class LeaseRenewer:
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


LOCK_NAME = "apply.lock"


def cli_owner(config: DestinationConfig) -> str:
    """``cli:<host>:<absolute configuration file>``: who restarts a command is the same owner and need not wait."""
    return f"cli:{socket.gethostname()}:{config.file}"


@contextmanager
def exclusive(config: DestinationConfig, *, wait_s: float = 0.0) -> Iterator[None]:
    """Be the only command that works as :func:`cli_owner`, until the block or the process ends.

    Raises LeaseHeldError, naming the other's process id, when it does not end within ``wait_s``.
    """
    secure_folder(config.meta.path, config.meta.permissions, CHANGE)
    with locked(config.meta.path / LOCK_NAME, f"another `cdc` command for {config.name}", wait_s=wait_s):
        yield
