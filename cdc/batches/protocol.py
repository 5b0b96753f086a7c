"""The contract of the batch protocol: of a store on this machine, or through a server."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from cdc.batches.lease import Lease
    from cdc.batches.manifest import Manifest
    from cdc.meta import Gap, Meta, Outstanding, Subscription, TableRecord
    from cdc.store.reader.batch_builder import Limits


class Batches(Protocol):
    """The methods that :class:`~cdc.batches.service.BatchService` and
    :class:`~cdc.client.batches.RemoteBatchService` share. The first one describes each of them."""

    meta: Meta

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
    ) -> Lease | None: ...

    def get_following(
        self, acked: Lease, owner: str, *, wait_s: float | None = None, until: datetime | None = None
    ) -> Lease | None: ...

    def next_seq(self, subscriber: str = "apply") -> int | None: ...

    def last_seq(self) -> int: ...

    def ack(self, batch: int, token: str, *, subscriber: str = "apply", results: Any = None) -> None: ...

    def rollback(self, batch: int, token: str, *, subscriber: str = "apply") -> list[int]: ...

    def release(self, owner: str, *, subscriber: str = "apply") -> list[int]: ...

    def check(self, batch: int, token: str, *, subscriber: str = "apply") -> Outstanding: ...

    def resume(self, batch: int, fingerprint: str, *, subscriber: str = "apply") -> Lease: ...

    def renew(self, batch: int, token: str, *, subscriber: str = "apply", lease_s: float | None = None) -> datetime: ...

    def outstanding(self, subscriber: str = "apply") -> list[Outstanding]: ...

    def subscribe(self, subscriber: str, table_filter: str | None = None) -> Subscription: ...

    def unsubscribe(self, subscriber: str) -> None: ...

    def subscription(self, subscriber: str = "apply") -> Subscription: ...

    def accept_beginning(self, subscriber: str = "apply") -> Gap: ...

    def accept_tables(self, subscriber: str, tables: Mapping[str, TableRecord | None]) -> list[Gap]: ...

    def acked_manifests(self, subscriber: str = "apply", *, after_batch: int = 0) -> list[Manifest]: ...
