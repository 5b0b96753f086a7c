"""The contracts of store and meta through Canal's protocol: a client over TCP, with each kind of store and meta.

The suite of stores runs as it is, with an event store whose transactions come from a server. Canal's protocol cannot be
asked for all of its promises:

- *Positions.* A get has no start position, and no request returns the first or latest position of the store. The
  server keeps where a client is.
- *Cleaning and the store's counters* are the server's business.
- *A store that is full*: capture, and not a client, waits for room. ``tests/servers/server/test_memory.py`` shows it
  with a real source.
- *Putting*: the protocol has no puts. Those of the suite go into the store that the server serves.

The suite of metas is about a state that a program reads and changes as a whole; a client sees of it what it gets after a
subscription, an ack, a rollback or a restart. So its promises that a client can see are asked here, under their names.
Not asked: the identity of the source, locks, changes of many threads or processes (the server alone changes the meta),
cursors that are set to any number, and given ids of batches.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cdc.base.errors import BatchError, UsageError
from cdc.connector import Batch, TcpConnector
from cdc.event_store.contract import EventStore
from cdc.event_store.transaction import Transaction
from cdc.testing.store_contract import MakeStore, StoreContract
from cdc.testing.transactions import make_transactions
from tests.contract.tcp_support import KINDS, Destination, Kind, TcpStore
from tests.support.canal_client import CanalRefusedError, RawClient

NOT_ASKED = (
    # positions
    "test_a_get_from_a_position_begins_after_it",
    "test_a_get_from_a_position_included",
    "test_the_first_event_after_a_subscription_is_not_lost",
    "test_a_get_from_an_acked_position_begins_after_the_last_ack",
    "test_a_get_from_a_position_can_be_acked",
    "test_a_get_goes_on_after_the_last_that_was_returned",
    "test_a_get_from_a_position_waits",
    "test_a_rollback_of_nothing_does_nothing",  # with a batch from a position
    "test_the_first_position_is_the_oldest_not_acked",
    "test_the_latest_position_is_the_newest",  # and the first one
    "test_an_ack_covers_what_lies_before",  # by the first position; below
    # cleaning and counters
    "test_readers_go_on_after_what_is_removed",
    "test_what_is_removed_cannot_be_acked",
    "test_removing_what_is_gone_does_nothing",
    "test_removing_everything_up_to_the_newest",
    "test_clean_all_removes_everything",
    "test_sequence_numbers_still_rise_after_clean_all",
    "test_what_goes_through_is_counted",
    "test_delays_are_since_the_commit",
)
QUICK = (KINDS[1],)
"""The kinds with which each run tries the suite of stores; the others are long."""


def _params(quick: Sequence[Kind]) -> list[object]:
    return [pytest.param(kind, id=kind.name, marks=[] if kind in quick else pytest.mark.long) for kind in KINDS]


@pytest.fixture
def destination(
    request: pytest.FixtureRequest, kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Destination]:
    monkeypatch.setattr("cdc.config.memory.SHARED_MEMORY", tmp_path / "memory")
    (tmp_path / "memory").mkdir()
    destination = Destination(tmp_path, kind, lambda: str(request.getfixturevalue("zookeeper").url))
    yield destination
    destination.stop()


class TestStoreOverTcp(StoreContract):
    limited = False
    durable = True

    @pytest.fixture(params=_params(QUICK))
    def kind(self, request: pytest.FixtureRequest) -> Kind:
        kind: Kind = request.param
        return kind

    @pytest.fixture
    def make_store(self, destination: Destination) -> MakeStore:
        return lambda events=None: TcpStore(destination)

    def reopen(self, store: EventStore) -> EventStore:
        assert isinstance(store, TcpStore)
        return store.reopen()

    @pytest.mark.long
    def test_one_writes_and_one_reads(self, make_store: MakeStore) -> None:
        super().test_one_writes_and_one_reads(make_store)

    @pytest.mark.long
    def test_gets_from_many_threads_return_each_transaction_once(self, store: EventStore) -> None:
        super().test_gets_from_many_threads_return_each_transaction_once(store)

    @pytest.mark.long
    def test_puts_from_many_threads_stay_whole(self, store: EventStore) -> None:
        super().test_puts_from_many_threads_stay_whole(store)

    def test_acks_in_order_cover_what_lies_before(self, store: EventStore) -> None:
        transactions = make_transactions(4)
        self.fill(store, transactions)
        for _ in range(3):
            store.try_get(1)
        store.ack(transactions[2].position)
        store.rollback()
        assert self.seqs(store.try_get(1 << 40)) == [transactions[3].seq]

    def test_all_rows_come(self, store: EventStore) -> None:
        transactions = make_transactions(40, rows=30)
        self.fill(store, transactions)
        assert self.seqs(store.try_get(1 << 40)) == [transaction.seq for transaction in transactions]
        assert isinstance(store, TcpStore)
        assert store.rows == 40 * 30

    def test_what_was_acked_does_not_come_again_after_a_restart(
        self, make_store: MakeStore, destination: Destination
    ) -> None:
        """Unless the meta was in memory."""
        transactions = make_transactions(6)
        store = make_store()
        self.fill(store, transactions[:4])
        for _ in range(3):
            store.try_get(1)
        store.ack(transactions[1].position)
        with self.reopen(store) as reopened:
            self.fill(reopened, transactions[4:])
            first = 0 if destination.kind.forgets else 2
            assert self.seqs(reopened.try_get(1 << 40)) == [transaction.seq for transaction in transactions[first:]]


for _name in NOT_ASKED:
    assert getattr(StoreContract, _name) is not None
    setattr(TestStoreOverTcp, _name, None)


def ids(batches: Sequence[Batch]) -> list[int]:
    """The rows of batches."""
    return [int(row.new["id"] or 0) for batch in batches for entry in batch.entries for row in entry.rows]


def every(connector: TcpConnector, *, ack: bool = True) -> list[Batch]:
    """All batches that there are."""
    batches = []
    while batch := connector.get_without_ack():
        batches.append(batch)
        if ack:
            connector.ack(batch.id, confirm=True)
    return batches


def rows(first: int, last: int) -> list[Transaction]:
    """Transactions ``first`` to ``last`` of one row each, whose id is the number of the transaction; of two tables in
    turn."""
    transactions = make_transactions(last, rows=1, tables=("shop.orders", "shop.items"))
    return transactions[first - 1 :]


@pytest.mark.parametrize("kind", _params((KINDS[2],)))
class TestMetaOverTcp:
    """The meta as a client sees it. The row of transaction n has the id n - 1."""

    def test_subscribe_again_replaces_the_filter_and_keeps_the_cursor(self, destination: Destination) -> None:
        destination.put(rows(1, 4))
        with destination.connect() as client:
            first = client.get_without_ack()
            assert ids([first]) == [0, 1, 2, 3]
            client.ack(first.id, confirm=True)
            destination.put(rows(5, 8))
            held = client.get_without_ack()
            assert ids([held]) == [4, 5, 6, 7]
            client.subscribe(r"shop\.orders")
            assert ids(every(client)) == [4, 6], "what is not acked comes again, by the new filter"

    def test_the_filter_is_kept_with_its_subscriber(self, destination: Destination) -> None:
        destination.put(rows(1, 4))
        for client_id, table in ((1001, "orders"), (1002, "items")):
            destination.connect(client_id, rf"shop\.{table}").close()
        destination.restart()
        expected = {1001: [0, 2], 1002: [1, 3]}
        if destination.kind.forgets:
            expected = {1001: [0, 1, 2, 3], 1002: [0, 1, 2, 3]}
        for client_id, expected_ids in expected.items():
            with destination.connect(client_id) as client:  # without a filter: the one that is there stays
                assert ids(every(client)) == expected_ids

    def test_unsubscribe_removes_the_cursor_and_nothing_else(self, destination: Destination) -> None:
        destination.put(rows(1, 4))
        with destination.connect() as client, destination.connect(1002) as other:
            assert ids(every(client)) == ids(every(other)) == [0, 1, 2, 3]
            client.unsubscribe()
            with pytest.raises(UsageError, match="should subscribe first"):
                client.get_without_ack()
            client.subscribe()
            assert ids(every(client)) == [0, 1, 2, 3]
            assert ids(every(other)) == []

    @pytest.mark.parametrize("name", ["", "abc", "40000", "1001/x"])
    def test_invalid_names_are_refused(self, destination: Destination, name: str) -> None:
        with RawClient(destination.port, client_id=name).login() as client, pytest.raises(CanalRefusedError):
            client.subscribe()

    def test_batch_ids_grow_even_after_rollbacks_and_restarts(self, destination: Destination) -> None:
        destination.put(rows(1, 4))
        seen: list[int] = []
        for _ in range(2):
            with destination.connect() as client:
                seen.append(client.get_without_ack(1).id)
                client.rollback(confirm=True)
                seen.append(client.get_without_ack(1).id)
            destination.restart()
            time.sleep(0.002)
        assert seen == sorted(set(seen))

    def test_acking_another_than_the_first_names_both_and_changes_nothing(self, destination: Destination) -> None:
        destination.put(make_transactions(8, rows=60))
        with RawClient(destination.port).login().subscribe() as client:
            first, second = client.get(1), client.get(1)
            client.ack(second.id)
            with pytest.raises(CanalRefusedError, match=f"batchId:{second.id} is not the firstly:{first.id}"):
                client.answer()
            client.ack(first.id)
            client.ack(second.id)
            assert client.get(1).id > second.id

    def test_where_a_get_starts(self, destination: Destination) -> None:
        """After the batches that are outstanding; else after the cursor; else at the store's first transaction."""
        destination.put(rows(1, 3))
        with destination.connect() as client:
            assert ids([client.get_without_ack()]) == [0, 1, 2]
            destination.put(rows(4, 6))
            assert ids([client.get_without_ack()]) == [3, 4, 5]
            client.rollback(confirm=True)
            assert ids(every(client)) == [0, 1, 2, 3, 4, 5]
            destination.put(rows(7, 7))
        with destination.connect() as client:
            assert ids(every(client)) == [6]

    def test_rollback_of_a_batch_rolls_back_the_later_ones(self, destination: Destination) -> None:
        with destination.connect() as client:
            batches = []
            for first in (1, 4, 7):
                destination.put(rows(first, first + 2))
                batches.append(client.get_without_ack())
            client.rollback(batches[1].id, confirm=True)
            client.ack(batches[0].id, confirm=True)
            with pytest.raises(BatchError):
                client.ack(batches[2].id)
            assert ids(every(client)) == [3, 4, 5, 6, 7, 8]

    def test_everything_acked_is_there_when_it_is_opened_again(self, destination: Destination) -> None:
        destination.put(rows(1, 3))
        with destination.connect() as client:
            client.ack(client.get_without_ack().id, confirm=True)
            destination.put(rows(4, 6))
            assert ids([client.get_without_ack()]) == [3, 4, 5]
        destination.restart()
        destination.put(rows(7, 7))
        with destination.connect() as client:
            assert ids(every(client)) == list(range(0 if destination.kind.forgets else 3, 7))

    def test_a_cursor_moves_over_what_its_filter_leaves_out(self, destination: Destination) -> None:
        """To the end of a store in memory, of which it would hold back all others; of one on a disk by segments."""
        destination.put(rows(1, 8))
        with destination.connect(table_filter=r"shop\.none") as client:
            assert every(client) == []
            cursor = destination.served.meta.cursor("canal-1001")
            end = destination.log.last_seq if destination.kind.store == "memory" else 0
            assert cursor == end
            destination.put(rows(9, 9))
            client.subscribe(r"shop\..*")
            assert ids(every(client)) == (list(range(8, 9)) if end else list(range(9)))
