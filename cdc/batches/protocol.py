"""The contract of the batch protocol: of a store on this machine, or through a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from pydantic import BeforeValidator, Field, PlainSerializer

from cdc.batches.results import read_results
from cdc.meta import Gap, Meta, Outstanding, Subscription, TableRecord

if TYPE_CHECKING:
    from cdc.batches.lease import Lease
    from cdc.batches.manifest import Manifest
    from cdc.store.reader.batch_builder import Limits

Results = Annotated[Any, BeforeValidator(read_results)]
"""Results of a merge, as :func:`~cdc.batches.results.read_results` takes them."""
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Expiry = Annotated[datetime, PlainSerializer(datetime.isoformat)]
RecordAsText = Annotated[
    TableRecord,
    BeforeValidator(lambda value: TableRecord.of(value) if isinstance(value, str) else value),
    PlainSerializer(lambda record: record.text),
]
"""In JSON the record's text."""


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

    def ack(self, batch: int, token: str, *, subscriber: str = "apply", results: Results = None) -> None: ...

    def rollback(self, batch: int, token: str, *, subscriber: str = "apply") -> list[int]: ...

    def release(self, owner: str, *, subscriber: str = "apply") -> list[int]: ...

    def check(self, batch: int, token: str, *, subscriber: str = "apply") -> Outstanding: ...

    def resume(self, batch: int, fingerprint: str, *, subscriber: str = "apply") -> Lease: ...

    def renew(self, batch: int, token: str, *, subscriber: str = "apply", lease_s: Seconds | None = None) -> Expiry: ...

    def outstanding(self, subscriber: str = "apply") -> list[Outstanding]: ...

    def subscribe(self, subscriber: str, table_filter: str | None = None) -> Subscription: ...

    def unsubscribe(self, subscriber: str) -> None: ...

    def subscription(self, subscriber: str = "apply") -> Subscription: ...

    def accept_beginning(self, subscriber: str = "apply", expected: Gap | None = None) -> Gap: ...

    def accept_tables(
        self, subscriber: str, tables: Mapping[str, RecordAsText | None], expected: Sequence[Gap] | None = None
    ) -> list[Gap]: ...

    def acked_manifests(self, subscriber: str = "apply", *, after_batch: int = 0) -> list[Manifest]: ...
