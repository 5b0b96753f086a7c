"""The contract of every store: put, get, ack, rollback over whole transactions, with the sequences put ≥ get ≥ ack.

The rules are those of Canal's event store (``CanalEventStore``): what lies between ack and get is outstanding, what
lies between get and put can be read, and a put that would pass the unacked part of a limited store waits. The suite in
:mod:`cdc.testing.store_contract` holds for each implementation, anybody's own included.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from cdc.store.transaction import Events, Position, PutStatus, StoreMetrics, Transaction


class EventStore(ABC):
    """Transactions of one source, in order of seq, for one reader. Every method may be called from any thread."""

    @abstractmethod
    def put(self, transactions: Sequence[Transaction], *, timeout_s: float | None = None) -> PutStatus:
        """Store all of them or none, in order; an empty list is PUT_OK at once. Waits for room, at most ``timeout_s``
        (None: without limit), then STORE_FULL. A transaction whose seq is not above the newest is passed over: it is
        the same one, read again. Raises StoreLimitError at once for a transaction that could never fit."""

    @abstractmethod
    def try_put(self, transactions: Sequence[Transaction]) -> PutStatus:
        """:meth:`put` without waiting for room."""

    @abstractmethod
    def get(
        self,
        batch_size: int,
        *,
        start: Position | None = None,
        included: bool = False,
        timeout_s: float | None = None,
    ) -> Events:
        """The next transactions behind ``start`` (None: behind the last that was handed out), the transaction at
        ``start`` itself too where ``included``. Waits until a whole ``batch_size`` is there, at most ``timeout_s``
        (None: without limit), then hands out what there is. Never a part of a transaction; the first one is handed out
        whatever its size; a DDL comes alone."""

    @abstractmethod
    def try_get(self, batch_size: int, *, start: Position | None = None, included: bool = False) -> Events:
        """:meth:`get` without waiting."""

    @abstractmethod
    def ack(self, position: Position) -> None:
        """Everything up to this position is done: it is never handed out again, and its room may be used. Raises
        BatchError where no transaction that was handed out and not acked ends there."""

    @abstractmethod
    def rollback(self, batch: Events | None = None) -> None:
        """Hand out again what was handed out and not acked: all of it, or from this batch on. Raises BatchError where
        the batch is not outstanding."""

    @abstractmethod
    def first_position(self) -> Position | None:
        """The oldest transaction not acked; where all are, the last acked one; None in a store without any."""

    @abstractmethod
    def latest_position(self) -> Position | None:
        """The newest transaction."""

    @abstractmethod
    def clean_until(self, position: Position) -> None:
        """Remove what lies up to a position, acked or not; readers go on behind it."""

    @abstractmethod
    def clean_all(self) -> None:
        """Remove everything. Sequence numbers still only rise afterwards."""

    @abstractmethod
    def metrics(self) -> StoreMetrics:
        """What went through it, and what it holds."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what it holds; calls that wait end with StoreClosedError. Closing twice is nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
