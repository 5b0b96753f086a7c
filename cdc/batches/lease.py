"""Leases of batches: the lease itself, its renewal during a merge, and the owner that commands act as."""

from __future__ import annotations

import hashlib
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cdc.base.errors import BatchError, CdcError, TokenError, UsageError
from cdc.base.log import get_logger
from cdc.base.units import iso_time
from cdc.batches.manifest import Manifest
from cdc.disk.durable import locked, locked_as_it_is
from cdc.disk.permissions import CHANGE, secure_folder

if TYPE_CHECKING:
    from cdc.config import DestinationConfig

OWNER_LOCK_NAME = "apply.lock"
_log = get_logger(__name__)


@dataclass(frozen=True)
class Lease:
    """A batch, and the right to end it. Ack, rollback, check and renew demand ``token`` until ``expires`` (aware)."""

    manifest: Manifest
    manifest_path: Path
    """The manifest's file, on the machine that has the meta."""
    token: str
    expires: datetime

    @property
    def fingerprint(self) -> str:
        """Identifies this lease among all leases of its batch, without revealing the token."""
        return fingerprint(self.token)

    @property
    def batch(self) -> int:
        """The batch's id."""
        return self.manifest.batch

    def as_dict(self) -> dict[str, Any]:
        """Returns ``batch``, ``token``, ``expires``, ``manifest_path`` and then the manifest's keys, for JSON."""
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
        """Restores the lease from :meth:`as_dict`, in a process that merges for another one. Raises UsageError."""
        try:
            token, expires, path = data["token"], datetime.fromisoformat(data["expires"]), Path(data["manifest_path"])
            manifest = Manifest.model_validate(data)
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"this is not a lease as `cdc batch get --json` prints it: {error}") from None
        return cls(manifest, path, token, expires)


def new_token() -> str:
    """Returns a random token for a lease."""
    return secrets.token_hex(16)


def fingerprint(token: str) -> str:
    """Returns the first 32 hexadecimal digits of the token's SHA-256. The token cannot be derived from them."""
    return hashlib.sha256(token.encode()).hexdigest()[:32]


# renewal ----------------------------------------------------------------------------------------------------------


class SupportsRenew(Protocol):
    """The part of :class:`cdc.batches.service.BatchService` that renewal needs."""

    def renew(self, batch: int, token: str, *, subscriber: str = "apply", lease_s: float | None = None) -> datetime: ...


@contextmanager
def renewed(
    service: SupportsRenew,
    lease: Lease,
    lease_s: float,
    stop: Callable[[], None],
    now: Callable[[], datetime],
) -> Iterator[None]:
    """Renews the lease while the block runs: at its start, every third of ``lease_s``, and after it has succeeded.

    So the ack after the block has the whole lease left. If another owner has taken the batch, or the lease expired
    because it could not be renewed, ``stop`` is called once, in another thread; it must end the block. Then TokenError
    or BatchError is raised with the reason, whatever the block returns or raises.
    """
    renewer = LeaseRenewer(service, lease, lease_s, stop, now)
    renewer.renew()
    thread = threading.Thread(target=renewer.run, name="renew-lease", daemon=True)
    thread.start()
    try:
        yield
    except Exception as error:
        renewer.end(thread)
        if renewer.lost is not None:
            raise renewer.lost from error
        raise
    except BaseException:  # Ctrl-C, or the end of the process
        renewer.end(thread)
        raise
    renewer.end(thread)
    if renewer.lost is not None:
        raise renewer.lost
    renewer.renew()


class LeaseRenewer:
    """Renews one lease, on a thread that runs :meth:`run`."""

    def __init__(
        self,
        service: SupportsRenew,
        lease: Lease,
        lease_s: float,
        stop: Callable[[], None],
        now: Callable[[], datetime],
    ) -> None:
        self._service, self._lease, self._lease_s, self._stop, self._now = service, lease, lease_s, stop, now
        self._expires = lease.expires
        self._done = threading.Event()
        self.lost: BatchError | None = None
        """Why the lease was lost; None while it is held."""

    def renew(self) -> None:
        """Renews the lease now. Raises what the service raises."""
        manifest = self._lease.manifest
        self._expires = self._service.renew(
            manifest.batch, self._lease.token, subscriber=manifest.subscriber, lease_s=self._lease_s
        )

    def run(self) -> None:
        """Renews every third of the lease until :meth:`end` is called or the lease is lost."""
        pause_s = self._lease_s / 3
        while not self._done.wait(pause_s):
            pause_s = self._lease_s / 3
            try:
                self.renew()
                continue
            except BatchError as error:
                self.lost = error
            except CdcError as error:  # a full disk, or a lock held by another: try again soon, while the lease lasts
                pause_s = self._lease_s / 12
                if self._now() < self._expires:
                    _log.warning("lease not renewed; trying again", batch=self._lease.batch, reason=str(error))
                    continue
                self.lost = TokenError(
                    f"the lease of batch {self._lease.batch} expired at {iso_time(self._expires)}: it could not be "
                    f"renewed ({error})",
                    remedy="Get the batch again for a valid token.",
                )
            _log.error("lease lost; stopping the merge", batch=self._lease.batch, reason=str(self.lost))
            self._stop()
            return

    def end(self, thread: threading.Thread) -> None:
        """Stops the renewal and waits for the thread."""
        self._done.set()
        thread.join()


# the owner --------------------------------------------------------------------------------------------------------


def cli_owner(config: DestinationConfig, owner: str | None = None) -> str:
    """Returns the owner that a command acts as: ``owner`` if one is named, else ``cli:<host>:<absolute configuration
    file>``. Raises UsageError for a named owner that is empty, as a variable may be that is not set.

    A command that is started again is the same owner, and need not wait for its own lease.
    """
    if owner is not None:
        if not owner.strip():
            raise UsageError("--owner is empty", remedy="Name an owner, or leave the option out.")
        return owner
    return f"cli:{socket.gethostname()}:{config.file}"


@contextmanager
def exclusive(config: DestinationConfig) -> Iterator[None]:
    """Makes this the only command that works as :func:`cli_owner`, until the block or the process ends.

    Raises LeaseHeldError, naming the other process, if there is one.
    """
    if config.store.kind == "server":  # the owner's name has the host, so a lock of this machine is enough
        with locked_as_it_is(config.file, f"another `cdc` command for {config.name}"):
            yield
        return
    secure_folder(config.meta.path, config.meta.permissions, CHANGE)
    with locked(config.meta.path / OWNER_LOCK_NAME, f"another `cdc` command for {config.name}"):
        yield
