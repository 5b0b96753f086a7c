"""The contract of :class:`cdc.event_store.contract.EventStore` as tests. Subclass it for a store, and run it with
pytest.

::

    class TestMyStore(StoreContract):
        limited = False

        @pytest.fixture
        def make_store(self, tmp_path):
            return lambda events=None: MyStore(tmp_path)

        def batch_size(self, store, transactions):
            return sum(t.size_bytes for t in transactions)

A subclass declares what its store can do; tests of anything else are not collected for it. Random tests print their
seed; ``TOWPATH_SEED`` sets another.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Protocol, TypeVar

import pytest

from cdc.base.errors import BatchError, StoreClosedError, StoreLimitError
from cdc.event_store.contract import EventStore
from cdc.event_store.transaction import Events, LogPosition, Transaction
from cdc.store.writer.durability import PutStatus
from cdc.testing.threads import ThreadCall, took_s
from cdc.testing.transactions import make_transactions

ALL = 1 << 40
"""A batch size that is never reached."""
EVENTS = 5
"""Events of each transaction in these tests: GTID, BEGIN, table map, rows, commit. A DDL has two."""
SEED = int(os.environ.get("TOWPATH_SEED") or 20_240_601)

F = TypeVar("F", bound=Callable[..., Any])


class MakeStore(Protocol):
    """Makes a new, empty store. With ``events`` (a power of two) a limited store has room for exactly so many."""

    def __call__(self, events: int | None = None) -> EventStore: ...


def needs(capability: str) -> Callable[[F], F]:
    """Marks a test that is only collected for stores that declare this capability."""

    def mark(test: F) -> F:
        test._needs = capability  # type: ignore[attr-defined]
        return test

    return mark


class StoreContract:
    """Tests every rule of the contract. Subclasses override the fixture ``make_store``, and declare the capabilities of
    their store."""

    limited: ClassVar[bool] = True
    """Whether the store has a limit of events, so that a put waits for room. If not, tests of full stores are left
    out."""
    durable: ClassVar[bool] = False
    """Whether transactions survive :meth:`reopen`."""
    put_ok: ClassVar[frozenset[PutStatus]] = frozenset({PutStatus.PUT_OK})
    """The statuses that a successful put may return."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in dir(cls):
            capability = getattr(getattr(cls, name), "_needs", None)
            if capability is not None and not getattr(cls, capability):
                setattr(cls, name, None)

    # overridden by subclasses

    @pytest.fixture
    def make_store(self) -> MakeStore:
        raise NotImplementedError("a subclass of StoreContract overrides the fixture make_store")

    def batch_size(self, store: EventStore, transactions: Sequence[Transaction]) -> int:
        """Returns a batch size that fits these transactions and no more; best one that they fill."""
        return sum(t.events for t in transactions)

    def reopen(self, store: EventStore) -> EventStore:
        """Closes a durable store, and opens it again."""
        raise NotImplementedError("a subclass of StoreContract that is durable overrides reopen")

    # used by the tests

    @pytest.fixture
    def store(self, make_store: MakeStore) -> Iterator[EventStore]:
        with make_store() as store:
            yield store

    @pytest.fixture
    def small(self, make_store: MakeStore) -> Iterator[EventStore]:
        """A store with room for 16 events: three transactions, and one more event."""
        with make_store(16) as store:
            yield store

    def fill(self, store: EventStore, transactions: Sequence[Transaction]) -> None:
        assert store.put(transactions, timeout_s=30) in self.put_ok

    @staticmethod
    def seqs(events: Events) -> list[int]:
        return [t.seq for t in events.transactions]

    # put

    def test_what_is_put_comes_out_unchanged_and_in_order(self, store: EventStore) -> None:
        put = make_transactions(20, rows=4, tables=("shop.orders", "shop.items"), ddl_every=7)
        self.fill(store, put[:9])
        self.fill(store, put[9:])
        transactions: list[Transaction] = []
        while events := store.try_get(ALL).transactions:
            transactions += events
        assert [t.position for t in transactions] == [t.position for t in put]
        assert [t.data for t in transactions] == [t.data for t in put]
        for what in ("events", "row_events", "ddl", "tables", "commit_time_us"):
            assert [getattr(t, what) for t in transactions] == [getattr(t, what) for t in put], what
        assert {t.source for t in transactions} == {put[0].source}

    def test_putting_nothing_is_done_at_once(self, store: EventStore) -> None:
        assert store.put([]) is PutStatus.PUT_OK
        assert store.put([], timeout_s=0) is PutStatus.PUT_OK
        assert store.try_put([]) is PutStatus.PUT_OK
        assert store.latest_position() is None

    def test_waiting_for_more_moves_nothing(self, store: EventStore) -> None:
        assert not store.wait_for_more(0) and not store.wait_for_more(0.05)
        transactions = make_transactions(3)
        thread = threading.Thread(target=lambda: self.fill(store, transactions))
        thread.start()
        assert store.wait_for_more(30)
        thread.join()
        assert store.wait_for_more(0)
        got = store.get(self.batch_size(store, transactions), timeout_s=30)
        assert self.seqs(got) == [t.seq for t in transactions]
        assert not store.wait_for_more(0.05)
        store.rollback()
        assert store.wait_for_more(30)

    def test_waiting_for_more_ends_when_the_store_is_closed(self, make_store: MakeStore) -> None:
        store = make_store()
        thread = threading.Timer(0.1, store.close)
        thread.start()
        with pytest.raises(StoreClosedError):
            store.wait_for_more(30)
        thread.join()

    def test_try_put_stores(self, store: EventStore) -> None:
        transactions = make_transactions(2)
        assert store.try_put(transactions) in self.put_ok
        assert self.seqs(store.try_get(ALL)) == [t.seq for t in transactions]

    def test_a_transaction_read_again_is_ignored(self, store: EventStore) -> None:
        transactions = make_transactions(6)
        self.fill(store, transactions[:4])
        self.fill(store, transactions[:4])
        self.fill(store, transactions[2:])
        self.fill(store, [transactions[5], transactions[0], transactions[5]])
        assert self.seqs(store.try_get(ALL)) == [t.seq for t in transactions]

    def test_an_acked_transaction_read_again_is_ignored(self, store: EventStore) -> None:
        transactions = make_transactions(3)
        self.fill(store, transactions)
        store.try_get(ALL)
        store.ack(transactions[2].position)
        self.fill(store, transactions)
        assert self.seqs(store.try_get(ALL)) == []

    # put, where room ends

    @needs("limited")
    def test_a_put_waits_for_room_until_an_ack(self, small: EventStore) -> None:
        transactions = make_transactions(4)
        self.fill(small, transactions[:3])
        waiting = ThreadCall(lambda: small.put(transactions[3:]))
        assert waiting.waits()
        small.try_get(self.batch_size(small, transactions[:1]))
        assert waiting.waits(), "outstanding transactions still take room"
        small.ack(transactions[0].position)
        assert waiting.result() in self.put_ok
        assert self.seqs(small.try_get(ALL)) == [t.seq for t in transactions[1:]]

    @needs("limited")
    def test_a_put_times_out(self, small: EventStore) -> None:
        transactions = make_transactions(4)
        self.fill(small, transactions[:3])
        status: list[PutStatus] = []
        assert took_s(lambda: status.append(small.put(transactions[3:], timeout_s=0.2))) >= 0.2
        assert status == [PutStatus.STORE_FULL]
        assert small.latest_position() == transactions[2].position
        small.try_get(ALL)
        small.ack(transactions[2].position)
        assert small.put(transactions[3:], timeout_s=0.2) in self.put_ok, "the same put may be tried again"
        assert self.seqs(small.try_get(ALL)) == [transactions[3].seq]

    @needs("limited")
    def test_try_put_does_not_wait(self, small: EventStore) -> None:
        transactions = make_transactions(4)
        self.fill(small, transactions[:3])
        assert ThreadCall(lambda: small.try_put(transactions[3:])).result() is PutStatus.STORE_FULL
        assert small.latest_position() == transactions[2].position

    @needs("limited")
    def test_a_list_is_put_whole_or_not_at_all(self, small: EventStore) -> None:
        transactions = make_transactions(5)
        self.fill(small, transactions[:2])
        assert small.try_put(transactions[2:]) is PutStatus.STORE_FULL
        assert self.seqs(small.try_get(ALL)) == [t.seq for t in transactions[:2]]
        waiting = ThreadCall(lambda: small.put(transactions[2:]))
        small.ack(transactions[0].position)
        assert waiting.waits(), "there is room for two of three"
        assert self.seqs(small.try_get(ALL)) == []
        small.ack(transactions[1].position)
        assert waiting.result() in self.put_ok
        assert self.seqs(small.try_get(ALL)) == [t.seq for t in transactions[2:]]

    @needs("limited")
    def test_a_rollback_makes_no_room(self, small: EventStore) -> None:
        transactions = make_transactions(4)
        self.fill(small, transactions[:3])
        small.try_get(ALL)
        small.rollback()
        assert small.try_put(transactions[3:]) is PutStatus.STORE_FULL

    @needs("limited")
    def test_a_full_store_still_ignores_what_it_has(self, small: EventStore) -> None:
        transactions = make_transactions(3)
        self.fill(small, transactions)
        assert ThreadCall(lambda: small.put(transactions)).result() in self.put_ok
        assert ThreadCall(lambda: small.put([])).result() is PutStatus.PUT_OK
        assert small.try_put(transactions) in self.put_ok

    @needs("limited")
    def test_a_transaction_that_never_fits_is_an_error_at_once(self, make_store: MakeStore) -> None:
        transactions = make_transactions(2)
        with make_store(4) as store:
            with pytest.raises(StoreLimitError, match=str(transactions[0].position.pos)):
                ThreadCall(lambda: store.put(transactions[:1])).result()
            with pytest.raises(StoreLimitError):
                store.try_put(transactions[:1])
            assert store.latest_position() is None

    @needs("limited")
    def test_a_list_that_never_fits_is_an_error_at_once(self, small: EventStore) -> None:
        transactions = make_transactions(5)
        with pytest.raises(StoreLimitError):
            ThreadCall(lambda: small.put(transactions)).result()
        assert small.latest_position() is None
        self.fill(small, transactions[:2])
        self.fill(small, transactions[:3])
        assert small.latest_position() == transactions[2].position

    @needs("limited")
    def test_a_put_that_waits_is_not_overtaken(self, small: EventStore) -> None:
        """The overtaking put has the higher seq: the waiting one would be ignored as a repetition, and lost."""
        transactions = make_transactions(7)
        self.fill(small, transactions[:2])
        first = ThreadCall(lambda: small.put(transactions[2:5]))
        assert first.waits()
        second = ThreadCall(lambda: small.put(transactions[5:6]))
        assert second.waits(), "there is room for it, but not before the first"
        assert small.try_put(transactions[6:]) is PutStatus.STORE_FULL
        small.try_get(ALL)
        small.ack(transactions[1].position)
        assert first.result() in self.put_ok
        assert self.seqs(small.try_get(ALL)) == [t.seq for t in transactions[2:5]]
        small.ack(transactions[4].position)
        assert second.result() in self.put_ok
        assert self.seqs(small.try_get(ALL)) == [transactions[5].seq]

    @needs("limited")
    def test_a_put_that_times_out_lets_the_next_one_go(self, small: EventStore) -> None:
        transactions = make_transactions(6)
        self.fill(small, transactions[:2])
        first = ThreadCall(lambda: small.put(transactions[2:5], timeout_s=0.3))
        assert first.waits()
        second = ThreadCall(lambda: small.put(transactions[5:]))
        assert first.result() is PutStatus.STORE_FULL
        assert second.result() in self.put_ok
        assert small.latest_position() == transactions[5].position

    @needs("limited")
    def test_the_same_put_twice_at_once_is_stored_once(self, small: EventStore) -> None:
        transactions = make_transactions(6)
        self.fill(small, transactions[:3])
        calls = [ThreadCall(lambda: small.put(transactions[3:])) for _ in range(2)]
        assert all(call.waits() for call in calls)
        small.try_get(ALL)
        small.ack(transactions[2].position)
        assert all(call.result() in self.put_ok for call in calls)
        assert self.seqs(small.try_get(ALL)) == [t.seq for t in transactions[3:]]

    @needs("limited")
    @pytest.mark.parametrize("clean", ["all", "until"])
    def test_cleaning_wakes_a_put(self, small: EventStore, clean: str) -> None:
        transactions = make_transactions(4)
        self.fill(small, transactions[:3])
        waiting = ThreadCall(lambda: small.put(transactions[3:]))
        assert waiting.waits()
        if clean == "all":
            small.clean_all()
        else:
            small.clean_until(transactions[0].position)
        assert waiting.result() in self.put_ok
        assert small.latest_position() == transactions[3].position

    @needs("limited")
    def test_put_and_get_do_not_wait_for_each_other(self, small: EventStore) -> None:
        """A get asks for more than the store has room for, and a put waits for the ack of transactions that were not
        returned."""
        transactions = make_transactions(4)
        getting = ThreadCall(lambda: small.get(ALL))
        self.fill(small, transactions[:3])
        assert getting.waits()
        putting = ThreadCall(lambda: small.put(transactions[3:]))
        assert self.seqs(getting.result()) == [t.seq for t in transactions[:3]]
        small.ack(transactions[2].position)
        assert putting.result() in self.put_ok

    @needs("limited")
    def test_a_get_does_not_wait_on_once_a_put_found_no_room(self, small: EventStore) -> None:
        transactions = make_transactions(4)
        self.fill(small, transactions[:3])
        assert small.try_put(transactions[3:]) is PutStatus.STORE_FULL
        assert self.seqs(ThreadCall(lambda: small.get(ALL)).result()) == [t.seq for t in transactions[:3]]

    # get

    def test_a_batch_is_as_large_as_asked_for(self, store: EventStore) -> None:
        transactions = make_transactions(7)
        self.fill(store, transactions)
        assert self.seqs(store.get(self.batch_size(store, transactions[:3]), timeout_s=30)) == [
            t.seq for t in transactions[:3]
        ]
        assert self.seqs(store.try_get(self.batch_size(store, transactions[3:5]))) == [t.seq for t in transactions[3:5]]
        assert self.seqs(store.try_get(ALL)) == [t.seq for t in transactions[5:]]
        assert self.seqs(store.try_get(ALL)) == []

    def test_a_batch_never_holds_a_part_of_a_transaction(self, store: EventStore) -> None:
        transactions = make_transactions(3)
        self.fill(store, transactions)
        assert self.seqs(store.try_get(self.batch_size(store, transactions[:2]) - 1)) == [transactions[0].seq]

    def test_the_first_transaction_is_returned_whatever_its_size(self, store: EventStore) -> None:
        transactions = make_transactions(2, rows=2000)
        self.fill(store, transactions)
        assert self.seqs(store.try_get(1)) == [transactions[0].seq]
        assert self.seqs(store.get(1, timeout_s=30)) == [transactions[1].seq]

    def test_the_positions_of_a_batch(self, store: EventStore) -> None:
        transactions = make_transactions(4)
        self.fill(store, transactions)
        events = store.try_get(self.batch_size(store, transactions[:3]))
        assert (events.start, events.end, events.ack) == (
            transactions[0].position,
            transactions[2].position,
            transactions[2].position,
        )
        last = store.try_get(ALL)
        assert (last.start, last.end, last.ack) == (transactions[3].position,) * 3

    def test_a_position_carries_journal_offset_time_server_and_gtid(self, store: EventStore) -> None:
        transactions = make_transactions(2)
        self.fill(store, transactions)
        end = store.try_get(ALL).end
        assert end is not None
        assert (end.file, end.server_id) == ("binlog.000001", 1)
        assert end.gtid == "01010101-0101-0101-0101-010101010101:2"
        assert end.commit_time_us == 1_700_000_000_000_002
        assert end.pos == transactions[0].position.pos + transactions[1].size_bytes

    def test_nothing_there_is_an_empty_batch(self, store: EventStore) -> None:
        for events in (store.try_get(ALL), store.get(ALL, timeout_s=0), store.get(1, timeout_s=0.05)):
            assert self.seqs(events) == []
            assert (events.start, events.end, events.ack) == (None, None, None)

    def test_a_get_waits_for_a_whole_batch(self, store: EventStore) -> None:
        transactions = make_transactions(4)
        self.fill(store, transactions[:2])
        waiting = ThreadCall(lambda: store.get(self.batch_size(store, transactions[:3])))
        assert waiting.waits()
        self.fill(store, transactions[2:])
        assert self.seqs(waiting.result()) == [t.seq for t in transactions[:3]]

    def test_a_get_waits_for_the_first_transaction(self, store: EventStore) -> None:
        transactions = make_transactions(1)
        waiting = ThreadCall(lambda: store.get(1))
        assert waiting.waits()
        self.fill(store, transactions)
        assert self.seqs(waiting.result()) == [transactions[0].seq]

    def test_a_get_returns_what_there_is_after_its_time_out(self, store: EventStore) -> None:
        transactions = make_transactions(3)
        self.fill(store, transactions[:2])
        batches: list[Events] = []
        assert took_s(lambda: batches.append(store.get(ALL, timeout_s=0.2))) >= 0.2
        assert self.seqs(batches[0]) == [t.seq for t in transactions[:2]]

    def test_try_get_does_not_wait(self, store: EventStore) -> None:
        transactions = make_transactions(2)
        self.fill(store, transactions)
        assert self.seqs(ThreadCall(lambda: store.try_get(ALL)).result()) == [t.seq for t in transactions]
        assert self.seqs(ThreadCall(lambda: store.try_get(ALL)).result()) == []

    def test_several_batches_may_be_outstanding(self, store: EventStore) -> None:
        transactions = make_transactions(4)
        self.fill(store, transactions)
        batches = [store.try_get(1) for _ in range(4)]
        assert [self.seqs(batch) for batch in batches] == [[t.seq] for t in transactions]
        for batch in batches:
            assert batch.ack is not None
            store.ack(batch.ack)

    # get, from a position

    def test_a_get_from_a_position_begins_after_it(self, store: EventStore) -> None:
        transactions = make_transactions(5)
        self.fill(store, transactions)
        assert self.seqs(store.try_get(ALL, start=transactions[1].position)) == [t.seq for t in transactions[2:]]
        assert self.seqs(store.try_get(1, start=transactions[0].position)) == [transactions[1].seq], (
            "an outstanding transaction again"
        )
        assert self.seqs(store.try_get(ALL, start=transactions[4].position)) == []

    def test_a_get_from_a_position_included(self, store: EventStore) -> None:
        transactions = make_transactions(3)
        self.fill(store, transactions)
        assert self.seqs(store.try_get(ALL, start=transactions[1].position, included=True)) == [
            t.seq for t in transactions[1:]
        ]
        assert self.seqs(store.try_get(1, start=transactions[0].position, included=True)) == [transactions[0].seq]

    def test_the_first_event_after_a_subscription_is_not_lost(self, store: EventStore) -> None:
        """Canal's reason for ``included``: a new subscriber begins at the store's first position."""
        transactions = make_transactions(3)
        self.fill(store, transactions)
        first = store.first_position()
        assert self.seqs(store.try_get(ALL, start=first, included=True)) == [t.seq for t in transactions]
        store.ack(transactions[1].position)
        first = store.first_position()
        assert self.seqs(store.try_get(ALL, start=first, included=True)) == [transactions[2].seq]
        store.ack(transactions[2].position)
        first = store.first_position()
        assert self.seqs(store.try_get(ALL, start=first, included=True)) == [], "acked: never again"

    def test_a_get_from_an_acked_position_begins_after_the_last_ack(self, store: EventStore) -> None:
        transactions = make_transactions(4)
        self.fill(store, transactions)
        store.try_get(ALL)
        store.ack(transactions[1].position)
        assert self.seqs(store.try_get(ALL, start=transactions[0].position)) == [t.seq for t in transactions[2:]]
        assert self.seqs(store.try_get(ALL, start=transactions[1].position, included=True)) == [
            t.seq for t in transactions[2:]
        ]

    def test_a_get_from_a_position_can_be_acked(self, store: EventStore) -> None:
        transactions = make_transactions(4)
        self.fill(store, transactions)
        assert self.seqs(store.try_get(ALL, start=transactions[1].position)) == [t.seq for t in transactions[2:]]
        store.ack(transactions[3].position)
        assert store.first_position() == transactions[3].position
        assert self.seqs(store.try_get(ALL)) == []

    def test_a_get_goes_on_after_the_last_that_was_returned(self, store: EventStore) -> None:
        """Reading outstanding transactions a second time does not move the reader back."""
        transactions = make_transactions(4)
        self.fill(store, transactions)
        store.try_get(self.batch_size(store, transactions[:3]))
        assert self.seqs(store.try_get(1, start=transactions[0].position)) == [transactions[1].seq]
        assert self.seqs(store.try_get(1)) == [transactions[3].seq]

    def test_a_get_from_a_position_waits(self, store: EventStore) -> None:
        transactions = make_transactions(3)
        self.fill(store, transactions[:2])
        waiting = ThreadCall(lambda: store.get(1, start=transactions[1].position))
        assert waiting.waits()
        self.fill(store, transactions[2:])
        assert self.seqs(waiting.result()) == [transactions[2].seq]

    # DDL

    def test_a_ddl_comes_alone(self, store: EventStore) -> None:
        transactions = make_transactions(12, ddl_every=3)
        assert [n for n, t in enumerate(transactions) if t.ddl] == [2, 5, 8, 11]
        self.fill(store, transactions)
        seqs = [self.seqs(store.try_get(ALL)) for _ in range(8)]
        assert seqs == [
            [t.seq for t in transactions[low:high]]
            for low, high in ((0, 2), (2, 3), (3, 5), (5, 6), (6, 8), (8, 9), (9, 11), (11, 12))
        ]

    def test_ddls_one_after_another_come_one_by_one(self, store: EventStore) -> None:
        transactions = make_transactions(3, ddl_every=1)
        self.fill(store, transactions)
        assert [self.seqs(store.try_get(ALL)) for _ in range(4)] == [*([t.seq] for t in transactions), []]

    def test_a_get_does_not_wait_for_what_a_ddl_forbids(self, store: EventStore) -> None:
        """With a DDL after it, or in it, the batch cannot grow."""
        transactions = make_transactions(2, ddl_every=2)
        self.fill(store, transactions)
        assert self.seqs(ThreadCall(lambda: store.get(ALL)).result()) == [transactions[0].seq]
        assert self.seqs(ThreadCall(lambda: store.get(ALL)).result()) == [transactions[1].seq]

    def test_a_ddl_wakes_a_get_that_waits(self, store: EventStore) -> None:
        transactions = make_transactions(2, ddl_every=2)
        self.fill(store, transactions[:1])
        waiting = ThreadCall(lambda: store.get(ALL))
        assert waiting.waits()
        self.fill(store, transactions[1:])
        assert self.seqs(waiting.result()) == [transactions[0].seq]

    # ack

    def test_what_is_acked_never_comes_again(self, store: EventStore) -> None:
        transactions = make_transactions(5)
        self.fill(store, transactions)
        store.try_get(self.batch_size(store, transactions[:3]))
        store.ack(transactions[2].position)
        store.rollback()
        assert self.seqs(store.try_get(ALL)) == [t.seq for t in transactions[3:]]

    def test_an_ack_may_end_inside_a_batch(self, store: EventStore) -> None:
        transactions = make_transactions(4)
        self.fill(store, transactions)
        store.try_get(ALL)
        store.ack(transactions[1].position)
        store.rollback()
        assert self.seqs(store.try_get(ALL)) == [t.seq for t in transactions[2:]]

    def test_an_ack_covers_what_lies_before(self, store: EventStore) -> None:
        transactions = make_transactions(4)
        self.fill(store, transactions)
        for _ in range(3):
            store.try_get(1)
        store.ack(transactions[2].position)
        assert store.first_position() == transactions[3].position
        store.rollback()
        assert self.seqs(store.try_get(ALL)) == [transactions[3].seq]

    def refuse_ack(self, store: EventStore, position: LogPosition) -> None:
        """Requires a BatchError that names the position, and that nothing has changed."""
        before, first = store.metrics(), store.first_position()
        with pytest.raises(BatchError) as error:
            store.ack(position)
        assert position.file in str(error.value)
        assert str(position.pos) in str(error.value)
        after = store.metrics()
        assert store.first_position() == first
        assert (after.ack_transactions, after.held_events) == (before.ack_transactions, before.held_events)

    def test_an_ack_of_what_was_not_returned_is_an_error(self, store: EventStore) -> None:
        transactions = make_transactions(3)
        self.refuse_ack(store, transactions[0].position)
        self.fill(store, transactions[:2])
        self.refuse_ack(store, transactions[0].position)
        store.try_get(1)
        self.refuse_ack(store, transactions[1].position)
        self.refuse_ack(store, transactions[2].position)
        store.ack(transactions[0].position)

    def test_an_ack_twice_is_an_error(self, store: EventStore) -> None:
        transactions = make_transactions(3)
        self.fill(store, transactions)
        store.try_get(ALL)
        store.ack(transactions[1].position)
        self.refuse_ack(store, transactions[1].position)
        self.refuse_ack(store, transactions[0].position)

    def test_an_ack_after_a_rollback_is_an_error(self, store: EventStore) -> None:
        transactions = make_transactions(1)
        self.fill(store, transactions)
        store.try_get(ALL)
        store.rollback()
        self.refuse_ack(store, transactions[0].position)

    @pytest.mark.parametrize("other", [{"seq": 1}, {"pos": 1}, {"file": "binlog.000009"}, {"commit_time_us": 1}])
    def test_an_ack_needs_exactly_this_position(self, store: EventStore, other: dict[str, Any]) -> None:
        """By seq, journal, offset and time, as Canal compares positions."""
        transactions = make_transactions(2)
        self.fill(store, transactions)
        store.try_get(ALL)
        position = transactions[1].position
        others = {
            key: getattr(position, key) + value if isinstance(value, int) else value for key, value in other.items()
        }
        self.refuse_ack(store, replace(position, **others))
        store.ack(position)

    # rollback

    def test_a_rollback_returns_again_what_was_not_acked(self, store: EventStore) -> None:
        transactions = make_transactions(6)
        self.fill(store, transactions)
        store.try_get(self.batch_size(store, transactions[:2]))
        store.ack(transactions[1].position)
        first = store.try_get(self.batch_size(store, transactions[2:4]))
        store.try_get(1)
        store.rollback()
        again = store.try_get(self.batch_size(store, transactions[2:4]))
        assert self.seqs(again) == self.seqs(first) == [t.seq for t in transactions[2:4]]
        assert [t.data for t in again.transactions] == [t.data for t in first.transactions]

    def test_a_rollback_of_nothing_does_nothing(self, store: EventStore) -> None:
        transactions = make_transactions(2)
        store.rollback()
        self.fill(store, transactions)
        store.rollback()
        store.rollback(store.get(1, start=transactions[1].position, timeout_s=0))
        assert self.seqs(store.try_get(ALL)) == [t.seq for t in transactions]

    def test_a_rollback_from_a_batch_on(self, store: EventStore) -> None:
        transactions = make_transactions(5)
        self.fill(store, transactions)
        store.try_get(1)
        second = store.try_get(self.batch_size(store, transactions[1:3]))
        store.try_get(1)
        store.rollback(second)
        assert self.seqs(store.try_get(ALL)) == [t.seq for t in transactions[1:]]
        store.rollback()
        assert self.seqs(store.try_get(ALL)) == [t.seq for t in transactions]

    def test_batches_before_the_one_rolled_back_stay_outstanding(self, store: EventStore) -> None:
        transactions = make_transactions(3)
        self.fill(store, transactions)
        store.try_get(1)
        second = store.try_get(1)
        store.rollback(second)
        store.ack(transactions[0].position)
        self.refuse_ack(store, transactions[1].position)
        assert self.seqs(store.try_get(ALL)) == [t.seq for t in transactions[1:]]

    def test_a_rollback_of_a_batch_keeps_the_part_that_was_acked(self, store: EventStore) -> None:
        transactions = make_transactions(4)
        self.fill(store, transactions)
        batch = store.try_get(ALL)
        store.ack(transactions[1].position)
        store.rollback(batch)
        assert self.seqs(store.try_get(ALL)) == [t.seq for t in transactions[2:]]

    def test_a_rollback_of_a_batch_that_is_not_outstanding_is_an_error(self, store: EventStore) -> None:
        transactions = make_transactions(4)
        self.fill(store, transactions)
        acked, second = store.try_get(1), store.try_get(1)
        store.ack(transactions[0].position)
        with pytest.raises(BatchError):
            store.rollback(acked)
        store.rollback(second)
        with pytest.raises(BatchError):
            store.rollback(second)
        never = Events([transactions[2]], transactions[2].position, transactions[2].position, transactions[2].position)
        with pytest.raises(BatchError):
            store.rollback(never)
        assert self.seqs(store.try_get(ALL)) == [t.seq for t in transactions[1:]]

    def test_a_rollback_wakes_a_get_that_waits(self, store: EventStore) -> None:
        transactions = make_transactions(2)
        self.fill(store, transactions)
        store.try_get(ALL)
        waiting = ThreadCall(lambda: store.get(self.batch_size(store, transactions)))
        assert waiting.waits()
        store.rollback()
        assert self.seqs(waiting.result()) == [t.seq for t in transactions]

    # positions

    def test_an_empty_store_has_no_positions(self, store: EventStore) -> None:
        assert store.first_position() is None
        assert store.latest_position() is None

    def test_the_first_position_is_the_oldest_not_acked(self, store: EventStore) -> None:
        transactions = make_transactions(3)
        self.fill(store, transactions)
        assert store.first_position() == transactions[0].position
        store.try_get(ALL)
        assert store.first_position() == transactions[0].position
        store.ack(transactions[0].position)
        assert store.first_position() == transactions[1].position
        store.ack(transactions[2].position)
        assert store.first_position() == transactions[2].position, "all are acked: the last one"

    def test_the_latest_position_is_the_newest(self, store: EventStore) -> None:
        transactions = make_transactions(4)
        self.fill(store, transactions[:1])
        assert store.latest_position() == transactions[0].position
        self.fill(store, transactions[1:3])
        store.try_get(ALL)
        assert store.latest_position() == transactions[2].position
        store.ack(transactions[2].position)
        assert store.latest_position() == transactions[2].position
        self.fill(store, transactions[3:])
        assert (store.first_position(), store.latest_position()) == (transactions[3].position,) * 2

    # cleaning

    def test_readers_go_on_after_what_is_removed(self, store: EventStore) -> None:
        transactions = make_transactions(5)
        self.fill(store, transactions)
        store.try_get(1)
        store.clean_until(transactions[2].position)
        assert self.seqs(store.try_get(1)) == [transactions[3].seq]
        assert self.seqs(store.try_get(ALL, start=transactions[0].position)) == [t.seq for t in transactions[3:]]
        assert store.first_position() == transactions[3].position
        store.rollback()
        assert self.seqs(store.try_get(ALL)) == [t.seq for t in transactions[3:]]

    def test_what_is_removed_cannot_be_acked(self, store: EventStore) -> None:
        transactions = make_transactions(3)
        self.fill(store, transactions)
        store.try_get(ALL)
        store.clean_until(transactions[1].position)
        self.refuse_ack(store, transactions[0].position)
        self.refuse_ack(store, transactions[1].position)
        store.ack(transactions[2].position)

    def test_removing_what_is_gone_does_nothing(self, store: EventStore) -> None:
        transactions = make_transactions(4)
        store.clean_until(transactions[0].position)
        self.fill(store, transactions)
        store.try_get(self.batch_size(store, transactions[:2]))
        store.ack(transactions[1].position)
        store.clean_until(transactions[0].position)
        store.clean_until(transactions[1].position)
        assert store.first_position() == transactions[2].position
        assert self.seqs(store.try_get(ALL)) == [t.seq for t in transactions[2:]]

    def test_removing_everything_up_to_the_newest(self, store: EventStore) -> None:
        transactions = make_transactions(3)
        self.fill(store, transactions[:2])
        store.clean_until(transactions[1].position)
        assert self.seqs(store.try_get(ALL)) == []
        self.fill(store, transactions)
        assert self.seqs(store.try_get(ALL)) == [transactions[2].seq]

    def test_clean_all_removes_everything(self, store: EventStore) -> None:
        transactions = make_transactions(4)
        self.fill(store, transactions[:3])
        store.try_get(1)
        store.clean_all()
        assert (store.first_position(), store.latest_position()) == (None, None)
        assert self.seqs(store.try_get(ALL)) == []
        store.rollback()
        assert self.seqs(store.try_get(ALL)) == []
        self.refuse_ack(store, transactions[0].position)
        assert store.metrics().held_events == 0
        assert store.metrics().held_bytes == 0

    def test_sequence_numbers_still_rise_after_clean_all(self, store: EventStore) -> None:
        transactions = make_transactions(4)
        store.clean_all()
        self.fill(store, transactions[:3])
        store.clean_all()
        self.fill(store, transactions)
        assert self.seqs(store.try_get(ALL)) == [transactions[3].seq]
        assert store.latest_position() == transactions[3].position

    # metrics

    def test_what_goes_through_is_counted(self, store: EventStore) -> None:
        transactions = make_transactions(6, rows=2, tables=("shop.orders", "shop.items"), ddl_every=6)
        sizes = [t.size_bytes for t in transactions]
        self.fill(store, transactions)
        self.fill(store, transactions)
        store.try_get(self.batch_size(store, transactions[:3]))
        store.ack(transactions[1].position)
        metrics = store.metrics()
        assert (metrics.put_transactions, metrics.put_rows, metrics.put_bytes) == (6, 5, sum(sizes))
        assert (metrics.get_transactions, metrics.get_bytes) == (3, sum(sizes[:3]))
        assert (metrics.ack_transactions, metrics.ack_bytes) == (2, sum(sizes[:2]))
        assert (metrics.held_events, metrics.held_bytes) == (3 * EVENTS + 2, sum(sizes[2:]))
        assert metrics.table_rows == {"shop.orders": 3, "shop.items": 2}
        assert set(metrics.table_delay_s) == {"shop.orders", "shop.items"}

    def test_delays_are_since_the_commit(self, store: EventStore) -> None:
        transactions = make_transactions(1)
        self.fill(store, transactions)
        store.try_get(ALL)
        store.ack(transactions[0].position)
        metrics = store.metrics()
        since_s = time.time() - transactions[0].commit_time_us / 1e6
        for delay_s in (
            metrics.put_delay_s,
            metrics.get_delay_s,
            metrics.ack_delay_s,
            metrics.table_delay_s["shop.orders"],
        ):
            assert 0 <= since_s - delay_s < 30
        assert metrics.put_delay_s <= metrics.get_delay_s <= metrics.ack_delay_s

    # closing

    def test_closing_ends_a_get_that_waits(self, store: EventStore) -> None:
        waiting = ThreadCall(lambda: store.get(ALL))
        assert waiting.waits()
        store.close()
        with pytest.raises(StoreClosedError):
            waiting.result()

    @needs("limited")
    def test_closing_ends_a_put_that_waits(self, small: EventStore) -> None:
        transactions = make_transactions(4)
        self.fill(small, transactions[:3])
        waiting = ThreadCall(lambda: small.put(transactions[3:]))
        assert waiting.waits()
        small.close()
        with pytest.raises(StoreClosedError):
            waiting.result()

    def test_a_closed_store_refuses_calls(self, store: EventStore) -> None:
        transactions = make_transactions(1)
        self.fill(store, transactions)
        batch = store.try_get(ALL)
        store.close()
        store.close()
        calls: list[Callable[[], object]] = [
            lambda: store.put(transactions),
            lambda: store.try_put(transactions),
            lambda: store.get(1),
            lambda: store.try_get(1),
            lambda: store.ack(transactions[0].position),
            store.rollback,
            lambda: store.rollback(batch),
        ]
        for call in calls:
            with pytest.raises(StoreClosedError):
                ThreadCall(call).result()

    def test_a_store_is_closed_at_the_end_of_its_block(self, make_store: MakeStore) -> None:
        with make_store() as store:
            self.fill(store, make_transactions(1))
        with pytest.raises(StoreClosedError):
            store.try_get(1)

    # a durable store

    @needs("durable")
    def test_what_was_put_is_there_after_reopening(self, make_store: MakeStore) -> None:
        transactions = make_transactions(5)
        store = make_store()
        self.fill(store, transactions[:4])
        store.try_get(1)
        with self.reopen(store) as again:
            assert again.latest_position() == transactions[3].position
            assert self.seqs(again.try_get(ALL)) == [t.seq for t in transactions[:4]], "what was not acked comes again"
            self.fill(again, transactions)
            assert self.seqs(again.try_get(ALL)) == [transactions[4].seq]

    # threads

    def test_puts_from_many_threads_stay_whole(self, store: EventStore) -> None:
        """Each thread puts all transactions, in lists of its own; each is stored once, and in order."""
        transactions = make_transactions(120)

        def put(step: int) -> None:
            for n in range(0, len(transactions), step):
                self.fill(store, transactions[n : n + step])

        for call in [ThreadCall(lambda step=step: put(step)) for step in (1, 3, 7, 11)]:  # type: ignore[misc]
            call.result()
        assert self.seqs(store.try_get(ALL)) == [t.seq for t in transactions]

    def test_gets_from_many_threads_return_each_transaction_once(self, store: EventStore) -> None:
        transactions = make_transactions(200)
        seqs: list[int] = []
        lock = threading.Lock()

        def get() -> None:
            while batch := store.get(self.batch_size(store, transactions[:3]), timeout_s=0.3).transactions:
                with lock:
                    seqs.extend(t.seq for t in batch)

        calls = [ThreadCall(get) for _ in range(3)]
        for n in range(0, len(transactions), 10):
            self.fill(store, transactions[n : n + 10])
        for call in calls:
            call.result()
        assert sorted(seqs) == [t.seq for t in transactions]

    def test_one_writes_and_one_reads(self, make_store: MakeStore) -> None:
        """With random lists, batch sizes, acks and rollbacks every transaction is acked once, in order."""
        print(f"TOWPATH_SEED={SEED}")
        transactions = make_transactions(400, ddl_every=17)
        with make_store(64) as store:

            def write() -> None:
                chance, n = random.Random(SEED), 0
                while n < len(transactions):
                    count = chance.randint(1, 12)
                    again = chance.randint(0, min(n, 3))
                    self.fill(store, transactions[n - again : n + count - again])
                    n += count - again if count > again else 0

            writing = ThreadCall(write)
            chance = random.Random(SEED + 1)
            done: list[int] = []
            while len(done) < len(transactions):
                batches = self.some_batches(store, transactions, chance)
                if batches and chance.random() < 0.2:
                    n = chance.randrange(len(batches))
                    store.rollback(batches[n] if chance.random() < 0.5 or n else None)
                    batches = batches[:n]
                for batch in batches:
                    assert batch.ack is not None
                    store.ack(batch.ack)
                    done += self.seqs(batch)
            writing.result()
            assert done == [t.seq for t in transactions]
            assert self.seqs(store.try_get(ALL)) == []

    def some_batches(self, store: EventStore, transactions: list[Transaction], chance: random.Random) -> list[Events]:
        """Gets one to three batches, all outstanding."""
        sizes = [self.batch_size(store, transactions[: chance.randint(1, 6)]) for _ in range(chance.randint(1, 3))]
        return [batch for size in sizes if (batch := store.get(size, timeout_s=0.01)).transactions]
