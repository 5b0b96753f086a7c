"""The contract of every event store: put, get, ack and rollback of whole transactions, with put ≥ get ≥ ack.

The rules are those of Canal's event store (``CanalEventStore``). Transactions between ack and get are outstanding;
those between get and put can be read. A put that would overrun the unacked part of a limited store waits. The suite in
:mod:`cdc.testing.store_contract` holds for each implementation, and for those of users.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from cdc.base.closing import Closing
from cdc.event_store.transaction import Events, LogPosition, StoreMetrics, Transaction
from cdc.store.writer.durability import PutStatus


class EventStore(Closing):
    """Transactions of one source, in order of seq, for one reader. Every method may be called from any thread."""

    @abstractmethod
    def put(self, transactions: Sequence[Transaction], *, timeout_s: float | None = None) -> PutStatus:
        """Stores all of the transactions or none, in order; an empty list is PUT_OK at once.

        Waits for room, at most ``timeout_s`` (None: without limit), then returns STORE_FULL. A transaction whose seq is
        not above the newest is ignored: it is the same one, read again. Raises StoreLimitError at once for a
        transaction that could never fit.
        """

    @abstractmethod
    def try_put(self, transactions: Sequence[Transaction]) -> PutStatus:
        """:meth:`put` without waiting for room."""

    @abstractmethod
    def get(
        self,
        batch_size: int,
        *,
        start: LogPosition | None = None,
        included: bool = False,
        timeout_s: float | None = None,
    ) -> Events:
        """Returns the next transactions after ``start`` (None: after the last that was returned), including the one at
        ``start`` itself if ``included``.

        Waits until ``batch_size`` is reached, at most ``timeout_s`` (None: without limit), then returns what there is.
        Never returns a part of a transaction. The first one is returned whatever its size; a DDL comes alone.
        """

    def try_get(self, batch_size: int, *, start: LogPosition | None = None, included: bool = False) -> Events:
        """:meth:`get` without waiting."""
        return self.get(batch_size, start=start, included=included, timeout_s=0)

    @abstractmethod
    def wait_for_more(self, timeout_s: float | None = None) -> bool:
        """Waits until there is a transaction that no get has returned, at most ``timeout_s`` (None: without limit).
        Returns whether there is one. Moves nothing."""

    @abstractmethod
    def ack(self, position: LogPosition) -> None:
        """Acks everything up to this position: it is never returned again, and its room may be used. Raises BatchError
        unless an outstanding transaction ends there."""

    @abstractmethod
    def rollback(self, batch: Events | None = None) -> None:
        """Makes get return outstanding transactions again: all of them, or from this batch on. Raises BatchError if the
        batch is not outstanding."""

    @abstractmethod
    def first_position(self) -> LogPosition | None:
        """Returns the position of the oldest transaction that is not acked; if all are, that of the last acked one;
        None in an empty store."""

    @abstractmethod
    def latest_position(self) -> LogPosition | None:
        """Returns the position of the newest transaction; None in an empty store."""

    @abstractmethod
    def clean_until(self, position: LogPosition) -> None:
        """Removes everything up to a position, acked or not; readers go on after it."""

    @abstractmethod
    def clean_all(self) -> None:
        """Removes everything. Sequence numbers still only rise afterwards."""

    @abstractmethod
    def metrics(self) -> StoreMetrics:
        """Returns the store's counters and sizes."""

    @abstractmethod
    def close(self) -> None:
        """Releases the store's resources; calls that wait end with StoreClosedError. May be called twice."""
