"""Cleaning, metrics, closing, what outlives that, and many threads at once."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import pytest

from cdc.errors import StoreClosedError
from cdc.store.contract import EventStore
from cdc.store.transaction import Events, Transaction
from cdc.testing.store_contract.base import ALL, EVENTS, SEED, MakeStore, StoreTests, needs
from cdc.testing.threads import Call
from cdc.testing.transactions import make_transactions


class Keeping(StoreTests):
    """Cleaning, metrics, closing, what outlives that, and many threads at once."""

    # cleaning

    def test_readers_go_on_behind_what_is_removed(self, store: EventStore) -> None:
        made = make_transactions(5)
        self.fill(store, made)
        store.try_get(1)
        store.clean_until(made[2].position)
        assert self.seqs(store.try_get(1)) == [made[3].seq]
        assert self.seqs(store.try_get(ALL, start=made[0].position)) == [t.seq for t in made[3:]]
        assert store.first_position() == made[3].position
        store.rollback()
        assert self.seqs(store.try_get(ALL)) == [t.seq for t in made[3:]]

    def test_what_is_removed_cannot_be_acked(self, store: EventStore) -> None:
        made = make_transactions(3)
        self.fill(store, made)
        store.try_get(ALL)
        store.clean_until(made[1].position)
        self.refuse_ack(store, made[0].position)
        self.refuse_ack(store, made[1].position)
        store.ack(made[2].position)

    def test_removing_what_is_gone_is_nothing(self, store: EventStore) -> None:
        made = make_transactions(4)
        store.clean_until(made[0].position)
        self.fill(store, made)
        store.try_get(self.batch_size(store, made[:2]))
        store.ack(made[1].position)
        store.clean_until(made[0].position)
        store.clean_until(made[1].position)
        assert store.first_position() == made[2].position
        assert self.seqs(store.try_get(ALL)) == [t.seq for t in made[2:]]

    def test_removing_everything_up_to_the_newest(self, store: EventStore) -> None:
        made = make_transactions(3)
        self.fill(store, made[:2])
        store.clean_until(made[1].position)
        assert self.seqs(store.try_get(ALL)) == []
        self.fill(store, made)
        assert self.seqs(store.try_get(ALL)) == [made[2].seq]

    def test_clean_all_removes_everything(self, store: EventStore) -> None:
        made = make_transactions(4)
        self.fill(store, made[:3])
        store.try_get(1)
        store.clean_all()
        assert (store.first_position(), store.latest_position()) == (None, None)
        assert self.seqs(store.try_get(ALL)) == []
        store.rollback()
        assert self.seqs(store.try_get(ALL)) == []
        self.refuse_ack(store, made[0].position)
        assert store.metrics().held_events == 0
        assert store.metrics().held_bytes == 0

    def test_sequence_numbers_still_rise_after_clean_all(self, store: EventStore) -> None:
        made = make_transactions(4)
        store.clean_all()
        self.fill(store, made[:3])
        store.clean_all()
        self.fill(store, made)
        assert self.seqs(store.try_get(ALL)) == [made[3].seq]
        assert store.latest_position() == made[3].position

    # metrics

    def test_what_goes_through_is_counted(self, store: EventStore) -> None:
        made = make_transactions(6, rows=2, tables=("shop.orders", "shop.items"), ddl_every=6)
        sizes = [t.size_bytes for t in made]
        self.fill(store, made)
        self.fill(store, made)
        store.try_get(self.batch_size(store, made[:3]))
        store.ack(made[1].position)
        found = store.metrics()
        assert (found.put_transactions, found.put_rows, found.put_bytes) == (6, 5, sum(sizes))
        assert (found.get_transactions, found.get_bytes) == (3, sum(sizes[:3]))
        assert (found.ack_transactions, found.ack_bytes) == (2, sum(sizes[:2]))
        assert (found.held_events, found.held_bytes) == (3 * EVENTS + 2, sum(sizes[2:]))
        assert found.table_rows == {"shop.orders": 3, "shop.items": 2}
        assert set(found.table_delay_s) == {"shop.orders", "shop.items"}

    def test_delays_are_since_the_commit(self, store: EventStore) -> None:
        made = make_transactions(1)
        self.fill(store, made)
        store.try_get(ALL)
        store.ack(made[0].position)
        found = store.metrics()
        since_s = time.time() - made[0].commit_time_us / 1e6
        for delay_s in (found.put_delay_s, found.get_delay_s, found.ack_delay_s, found.table_delay_s["shop.orders"]):
            assert 0 <= since_s - delay_s < 30
        assert found.put_delay_s <= found.get_delay_s <= found.ack_delay_s

    # closing

    def test_closing_ends_a_get_that_waits(self, store: EventStore) -> None:
        waiting = Call(lambda: store.get(ALL))
        assert waiting.waits()
        store.close()
        with pytest.raises(StoreClosedError):
            waiting.result()

    @needs("limited")
    def test_closing_ends_a_put_that_waits(self, small: EventStore) -> None:
        made = make_transactions(4)
        self.fill(small, made[:3])
        waiting = Call(lambda: small.put(made[3:]))
        assert waiting.waits()
        small.close()
        with pytest.raises(StoreClosedError):
            waiting.result()

    def test_a_closed_store_refuses_calls(self, store: EventStore) -> None:
        made = make_transactions(1)
        self.fill(store, made)
        batch = store.try_get(ALL)
        store.close()
        store.close()
        calls: list[Callable[[], object]] = [
            lambda: store.put(made),
            lambda: store.try_put(made),
            lambda: store.get(1),
            lambda: store.try_get(1),
            lambda: store.ack(made[0].position),
            store.rollback,
            lambda: store.rollback(batch),
        ]
        for call in calls:
            with pytest.raises(StoreClosedError):
                Call(call).result()

    def test_a_store_is_closed_where_its_block_ends(self, make_store: MakeStore) -> None:
        with make_store() as store:
            self.fill(store, make_transactions(1))
        with pytest.raises(StoreClosedError):
            store.try_get(1)

    # a durable store

    @needs("durable")
    def test_what_was_put_is_there_after_reopening(self, make_store: MakeStore) -> None:
        made = make_transactions(5)
        store = make_store()
        self.fill(store, made[:4])
        store.try_get(1)
        with self.reopen(store) as again:
            assert again.latest_position() == made[3].position
            assert self.seqs(again.try_get(ALL)) == [t.seq for t in made[:4]], "what was not acked comes again"
            self.fill(again, made)
            assert self.seqs(again.try_get(ALL)) == [made[4].seq]

    # threads

    def test_puts_from_many_threads_stay_whole(self, store: EventStore) -> None:
        """Each thread puts all transactions, in lists of its own cut; each is stored once, and in order."""
        made = make_transactions(120)

        def put(step: int) -> None:
            for n in range(0, len(made), step):
                self.fill(store, made[n : n + step])

        for call in [Call(lambda step=step: put(step)) for step in (1, 3, 7, 11)]:  # type: ignore[misc]
            call.result()
        assert self.seqs(store.try_get(ALL)) == [t.seq for t in made]

    def test_gets_from_many_threads_hand_out_each_transaction_once(self, store: EventStore) -> None:
        made = make_transactions(200)
        found: list[int] = []
        lock = threading.Lock()

        def get() -> None:
            while batch := store.get(self.batch_size(store, made[:3]), timeout_s=0.3).transactions:
                with lock:
                    found.extend(t.seq for t in batch)

        calls = [Call(get) for _ in range(3)]
        for n in range(0, len(made), 10):
            self.fill(store, made[n : n + 10])
        for call in calls:
            call.result()
        assert sorted(found) == [t.seq for t in made]

    def test_one_writes_and_one_reads(self, make_store: MakeStore) -> None:
        """Random lists, batch sizes, acks and rollbacks: what is acked is everything, once, in order."""
        print(f"TOWPATH_SEED={SEED}")
        made = make_transactions(400, ddl_every=17)
        with make_store(64) as store:

            def write() -> None:
                chance, n = random.Random(SEED), 0
                while n < len(made):
                    count = chance.randint(1, 12)
                    again = chance.randint(0, min(n, 3))
                    self.fill(store, made[n - again : n + count - again])
                    n += count - again if count > again else 0

            writing = Call(write)
            chance = random.Random(SEED + 1)
            done: list[int] = []
            while len(done) < len(made):
                found = self.some_batches(store, made, chance)
                if found and chance.random() < 0.2:
                    n = chance.randrange(len(found))
                    store.rollback(found[n] if chance.random() < 0.5 or n else None)
                    found = found[:n]
                for batch in found:
                    assert batch.ack is not None
                    store.ack(batch.ack)
                    done += self.seqs(batch)
            writing.result()
            assert done == [t.seq for t in made]
            assert self.seqs(store.try_get(ALL)) == []

    def some_batches(self, store: EventStore, made: list[Transaction], chance: random.Random) -> list[Events]:
        """One to three, all outstanding."""
        sizes = [self.batch_size(store, made[: chance.randint(1, 6)]) for _ in range(chance.randint(1, 3))]
        return [batch for size in sizes if (batch := store.get(size, timeout_s=0.01)).transactions]
