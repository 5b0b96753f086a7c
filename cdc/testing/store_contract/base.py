"""What a store declares of itself, and what its tests use."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Protocol, TypeVar

import pytest

from cdc.errors import BatchError
from cdc.store.contract import EventStore
from cdc.store.transaction import Events, Position, PutStatus, Transaction

ALL = 1 << 40
"""A batch size that everything fits in."""
EVENTS = 5
"""Events of each transaction here: GTID, BEGIN, table map, rows, commit. A DDL has two."""
SEED = int(os.environ.get("TOWPATH_SEED") or 20_240_601)

F = TypeVar("F", bound=Callable[..., Any])


class MakeStore(Protocol):
    """Makes a new, empty store. With ``events`` (a power of two) a limited store has room for exactly so many."""

    def __call__(self, events: int | None = None) -> EventStore: ...


def needs(capability: str) -> Callable[[F], F]:
    """The test is only collected for stores that declare this."""

    def mark(test: F) -> F:
        test._needs = capability  # type: ignore[attr-defined]
        return test

    return mark


class StoreTests:
    """What the groups of tests have in common."""

    limited: ClassVar[bool] = True
    """Has it a limit of events, so that a put waits for room? Where not, the tests of full stores are left out."""
    durable: ClassVar[bool] = False
    """Does what was put outlive :meth:`reopen`?"""
    put_ok: ClassVar[frozenset[PutStatus]] = frozenset({PutStatus.PUT_OK})
    """What a put that was stored may answer."""

    # what a subclass overrides

    @pytest.fixture
    def make_store(self) -> MakeStore:
        raise NotImplementedError("a subclass of StoreContract overrides the fixture make_store")

    def batch_size(self, store: EventStore, transactions: Sequence[Transaction]) -> int:
        """The batch size that these, and no more, fit in; best one that they fill."""
        return sum(t.events for t in transactions)

    def reopen(self, store: EventStore) -> EventStore:
        """Close a durable store, and open it again."""
        raise NotImplementedError("a subclass of StoreContract that is durable overrides reopen")

    # what the tests use

    @pytest.fixture
    def store(self, make_store: MakeStore) -> Iterator[EventStore]:
        with make_store() as store:
            yield store

    @pytest.fixture
    def small(self, make_store: MakeStore) -> Iterator[EventStore]:
        """Room for 16 events: three transactions, and one event more."""
        with make_store(16) as store:
            yield store

    def fill(self, store: EventStore, transactions: Sequence[Transaction]) -> None:
        assert store.put(transactions, timeout_s=30) in self.put_ok

    @staticmethod
    def seqs(events: Events) -> list[int]:
        return [t.seq for t in events.transactions]

    def refuse_ack(self, store: EventStore, position: Position) -> None:
        """A BatchError that names the position, and nothing has changed."""
        before, first = store.metrics(), store.first_position()
        with pytest.raises(BatchError) as error:
            store.ack(position)
        assert position.file in str(error.value)
        assert str(position.pos) in str(error.value)
        after = store.metrics()
        assert store.first_position() == first
        assert (after.ack_transactions, after.held_events) == (before.ack_transactions, before.held_events)
