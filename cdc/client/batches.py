"""The batch protocol through a server. Each call may be repeated when its answer is lost: see decision 0090."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdc.base.errors import LeaseHeldError, StoreIncompleteError, UsageError
from cdc.batches.lease import Lease, new_token
from cdc.batches.manifest import Manifest
from cdc.batches.manifest_files import parse_manifest
from cdc.batches.operations import remote
from cdc.batches.protocol import Batches
from cdc.client.meta import RemoteMeta
from cdc.client.reader import RemoteReader
from cdc.meta import Meta, Outstanding, State, Subscription
from cdc.meta.state import check_name
from cdc.wire.connection import Connection
from cdc.wire.files import uri_of
from cdc.wire.protocol import LONGEST_WAIT_S, error_of

if TYPE_CHECKING:
    from cdc.config import BatchConfig
    from cdc.store.reader.batch_builder import Limits

_LEAST_ROUND_S = 0.5
"""The least time from one question for a batch to the next."""


class RemoteBatchService:
    """Implements :class:`~cdc.batches.protocol.Batches` by asking the server. Limits, leases that last as this
    configuration says, waits, and paths of files need more than a call."""

    def __init__(self, connection: Connection, batch: BatchConfig, *, mixes: bool = False) -> None:
        """``mixes``: whether new batches may hold rows and DDL statements."""
        self.connection, self._batch, self._mixes = connection, batch, mixes
        self._remote = RemoteMeta(connection)
        self.meta: Meta = self._remote

    # --- the protocol

    def get(
        self,
        owner: str,
        *,
        subscriber: str = "apply",
        limits: Limits | None = None,
        wait_s: float | None = None,
        lease_s: float | None = None,
        ahead: bool = False,
        until: datetime | None = None,
        token: str | None = None,
    ) -> Lease | None:
        """Raises UsageError for ``limits``, which are set where the server runs."""
        if limits is not None:
            raise UsageError(
                "the limits of a batch are set where the server runs", remedy="Change the section batch there."
            )
        return self._get(
            {
                "owner": owner,
                "lease_s": self._batch.lease_s if lease_s is None else lease_s,
                "ahead": ahead,
                "token": token or new_token(),
            },
            check_name(subscriber),
            until,
            wait_s,
        )

    def get_following(
        self, acked: Lease, owner: str, *, wait_s: float | None = None, until: datetime | None = None
    ) -> Lease | None:
        return self._get(
            {
                "owner": owner,
                "lease_s": self._batch.lease_s,
                "acked": acked.batch,
                "acked_token": acked.token,
                "token": new_token(),
            },
            acked.manifest.subscriber,
            until,
            wait_s,
        )

    def _get(
        self, arguments: dict[str, Any], subscriber: str, until: datetime | None, wait_s: float | None
    ) -> Lease | None:
        default_s = self._batch.max_wait_s if until is None else self._batch.until_wait_s
        deadline = time.monotonic() + (default_s if wait_s is None else wait_s)
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            remaining = {
                **arguments,
                **({"mixes": True} if self._mixes else {}),
                "until": None if until is None else until.isoformat(),
                "wait_s": min(left_s, LONGEST_WAIT_S),
            }
            began = time.monotonic()
            try:
                document = self._call("get", subscriber, remaining)
                if document is not None:
                    return self._lease(document)
                if until is not None or time.monotonic() >= deadline:
                    return None
            except StoreIncompleteError:
                if time.monotonic() >= deadline:
                    raise
            # A server that stops does not wait, and another one comes soon.
            time.sleep(max(0.0, min(began + _LEAST_ROUND_S, deadline) - time.monotonic()))

    next_seq = remote(Batches.next_seq)
    last_seq = remote(Batches.last_seq)
    ack = remote(Batches.ack)
    rollback = remote(Batches.rollback)
    release = remote(Batches.release)
    _check = remote(Batches.check)
    _renew = remote(Batches.renew)

    def check(self, batch: int, token: str, *, subscriber: str = "apply") -> Outstanding:
        """Also raises MetaUnavailableError if this process has lost a lock that it needs for its next commit."""
        self._remote.require_locks()
        return self._check(batch, token, subscriber=subscriber)

    def resume(self, batch: int, fingerprint: str, *, subscriber: str = "apply") -> Lease:
        return self._lease(self._call("resume", subscriber, {"batch": batch, "fingerprint": fingerprint}))

    def renew(self, batch: int, token: str, *, subscriber: str = "apply", lease_s: float | None = None) -> datetime:
        lease_s = self._batch.lease_s if lease_s is None else lease_s
        return self._renew(batch, token, subscriber=subscriber, lease_s=lease_s)

    def obstacle(
        self, owner: str, until: datetime | None = None, *, subscriber: str = "apply"
    ) -> LeaseHeldError | StoreIncompleteError | None:
        """Returns the error with which :meth:`get` would end if it did not wait; None if nothing is in its way."""
        arguments = {"owner": owner, "until": None if until is None else until.isoformat()}
        error = error_of(self._call("obstacle", subscriber, arguments))
        assert error is None or isinstance(error, LeaseHeldError | StoreIncompleteError)
        return error

    def outstanding(self, subscriber: str = "apply") -> list[Outstanding]:
        subscription = self._state(subscriber).subscriptions.get(subscriber)
        return [] if subscription is None else subscription.outstanding

    # --- subscribers

    subscribe = remote(Batches.subscribe)
    unsubscribe = remote(Batches.unsubscribe)
    accept_beginning = remote(Batches.accept_beginning)
    accept_tables = remote(Batches.accept_tables)

    def subscription(self, subscriber: str = "apply") -> Subscription:
        return self._state(subscriber).subscription(subscriber)

    def acked_manifests(self, subscriber: str = "apply", *, after_batch: int = 0) -> list[Manifest]:
        manifests: list[Manifest] = []
        while True:
            after = manifests[-1].batch if manifests else after_batch
            more = self._call("manifests", subscriber, {"after_batch": after})
            manifests += [manifest_of(self.connection, document) for document in more]
            if not more:
                return manifests

    # --- inside a call

    def _call(self, operation: str, subscriber: str, arguments: dict[str, Any] | None = None) -> Any:
        return self.connection.call(operation, {"subscriber": check_name(subscriber), **(arguments or {})})

    def _state(self, subscriber: str) -> State:
        """Returns the part of the meta that the subscriber may see. Raises UsageError if the token belongs to another
        one."""
        return State.model_validate(self._call("state", subscriber))

    def _lease(self, document: Any) -> Lease:
        manifest = manifest_of(self.connection, document["manifest"])
        return Lease(
            manifest, Path(document["manifest_path"]), document["token"], datetime.fromisoformat(document["expires"])
        )


class RemoteTableBatches:
    """The changes of single tables at a server; see :class:`~cdc.batches.table_batches.TableBatches`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.meta: Meta = RemoteMeta(connection)
        self.reader = RemoteReader(connection)

    @contextmanager
    def next(
        self, table: str, after_seq: int, until_seq: int | None = None, *, whole: bool = False
    ) -> Iterator[Manifest | None]:
        arguments = {"table": table, "after_seq": after_seq, "until_seq": until_seq, "whole": whole}
        document = self._connection.call("table_batch", arguments)
        yield None if document is None else manifest_of(self._connection, document)


def manifest_of(connection: Connection, document: dict[str, Any]) -> Manifest:
    """Returns the manifest of an answer, with URIs of this server in place of paths below the store's folder. Raises
    DamagedError, VersionError."""
    manifest = parse_manifest(json.dumps(document).encode(), connection.place)
    return manifest.model_copy(
        update={
            "ranges": tuple(
                byte_range
                if "://" in byte_range.path
                else byte_range.model_copy(update={"path": uri_of(connection, byte_range.path)})
                for byte_range in manifest.ranges
            ),
            "schema_path": manifest.schema_path
            if manifest.schema_path is None or "://" in manifest.schema_path
            else uri_of(connection, manifest.schema_path),
        }
    )
