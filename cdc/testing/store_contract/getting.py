"""Getting: from the cursor, from a position, and around DDL."""

from __future__ import annotations

from cdc.store.contract import EventStore
from cdc.store.transaction import Events
from cdc.testing.store_contract.base import ALL, StoreTests
from cdc.testing.threads import Call, took_s
from cdc.testing.transactions import make_transactions


class Getting(StoreTests):
    """Getting: from the cursor, from a position, and around DDL."""

    # get

    def test_a_batch_is_as_large_as_asked_for(self, store: EventStore) -> None:
        made = make_transactions(7)
        self.fill(store, made)
        assert self.seqs(store.get(self.batch_size(store, made[:3]), timeout_s=30)) == [t.seq for t in made[:3]]
        assert self.seqs(store.try_get(self.batch_size(store, made[3:5]))) == [t.seq for t in made[3:5]]
        assert self.seqs(store.try_get(ALL)) == [t.seq for t in made[5:]]
        assert self.seqs(store.try_get(ALL)) == []

    def test_a_batch_never_holds_a_part_of_a_transaction(self, store: EventStore) -> None:
        made = make_transactions(3)
        self.fill(store, made)
        assert self.seqs(store.try_get(self.batch_size(store, made[:2]) - 1)) == [made[0].seq]

    def test_the_first_transaction_is_handed_out_whatever_its_size(self, store: EventStore) -> None:
        made = make_transactions(2, rows=2000)
        self.fill(store, made)
        assert self.seqs(store.try_get(1)) == [made[0].seq]
        assert self.seqs(store.get(1, timeout_s=30)) == [made[1].seq]

    def test_the_positions_of_a_batch(self, store: EventStore) -> None:
        made = make_transactions(4)
        self.fill(store, made)
        events = store.try_get(self.batch_size(store, made[:3]))
        assert (events.start, events.end, events.ack) == (made[0].position, made[2].position, made[2].position)
        last = store.try_get(ALL)
        assert (last.start, last.end, last.ack) == (made[3].position,) * 3

    def test_a_position_carries_journal_offset_time_server_and_gtid(self, store: EventStore) -> None:
        made = make_transactions(2)
        self.fill(store, made)
        end = store.try_get(ALL).end
        assert end is not None
        assert (end.file, end.server_id) == ("binlog.000001", 1)
        assert end.gtid == "01010101-0101-0101-0101-010101010101:2"
        assert end.commit_time_us == 1_700_000_000_000_002
        assert end.pos == made[0].position.pos + made[1].size_bytes

    def test_nothing_there_is_an_empty_batch(self, store: EventStore) -> None:
        for events in (store.try_get(ALL), store.get(ALL, timeout_s=0), store.get(1, timeout_s=0.05)):
            assert self.seqs(events) == []
            assert (events.start, events.end, events.ack) == (None, None, None)

    def test_a_get_waits_for_a_whole_batch(self, store: EventStore) -> None:
        made = make_transactions(4)
        self.fill(store, made[:2])
        waiting = Call(lambda: store.get(self.batch_size(store, made[:3])))
        assert waiting.waits()
        self.fill(store, made[2:])
        assert self.seqs(waiting.result()) == [t.seq for t in made[:3]]

    def test_a_get_waits_for_the_first_transaction(self, store: EventStore) -> None:
        made = make_transactions(1)
        waiting = Call(lambda: store.get(1))
        assert waiting.waits()
        self.fill(store, made)
        assert self.seqs(waiting.result()) == [made[0].seq]

    def test_a_get_hands_out_what_there_is_after_its_time(self, store: EventStore) -> None:
        made = make_transactions(3)
        self.fill(store, made[:2])
        found: list[Events] = []
        assert took_s(lambda: found.append(store.get(ALL, timeout_s=0.2))) >= 0.2
        assert self.seqs(found[0]) == [t.seq for t in made[:2]]

    def test_try_get_does_not_wait(self, store: EventStore) -> None:
        made = make_transactions(2)
        self.fill(store, made)
        assert self.seqs(Call(lambda: store.try_get(ALL)).result()) == [t.seq for t in made]
        assert self.seqs(Call(lambda: store.try_get(ALL)).result()) == []

    def test_several_batches_may_be_outstanding(self, store: EventStore) -> None:
        made = make_transactions(4)
        self.fill(store, made)
        batches = [store.try_get(1) for _ in range(4)]
        assert [self.seqs(batch) for batch in batches] == [[t.seq] for t in made]
        for batch in batches:
            assert batch.ack is not None
            store.ack(batch.ack)

    # get, from a position

    def test_a_get_from_a_position_begins_behind_it(self, store: EventStore) -> None:
        made = make_transactions(5)
        self.fill(store, made)
        assert self.seqs(store.try_get(ALL, start=made[1].position)) == [t.seq for t in made[2:]]
        assert self.seqs(store.try_get(1, start=made[0].position)) == [made[1].seq], "what was handed out, again"
        assert self.seqs(store.try_get(ALL, start=made[4].position)) == []

    def test_a_get_from_a_position_included(self, store: EventStore) -> None:
        made = make_transactions(3)
        self.fill(store, made)
        assert self.seqs(store.try_get(ALL, start=made[1].position, included=True)) == [t.seq for t in made[1:]]
        assert self.seqs(store.try_get(1, start=made[0].position, included=True)) == [made[0].seq]

    def test_the_first_event_after_a_subscription_is_not_lost(self, store: EventStore) -> None:
        """Canal's reason for ``included``: the store's first position is where a new subscriber begins."""
        made = make_transactions(3)
        self.fill(store, made)
        first = store.first_position()
        assert self.seqs(store.try_get(ALL, start=first, included=True)) == [t.seq for t in made]
        store.ack(made[1].position)
        first = store.first_position()
        assert self.seqs(store.try_get(ALL, start=first, included=True)) == [made[2].seq]
        store.ack(made[2].position)
        first = store.first_position()
        assert self.seqs(store.try_get(ALL, start=first, included=True)) == [], "acked: never again"

    def test_a_get_from_an_acked_position_begins_behind_the_last_ack(self, store: EventStore) -> None:
        made = make_transactions(4)
        self.fill(store, made)
        store.try_get(ALL)
        store.ack(made[1].position)
        assert self.seqs(store.try_get(ALL, start=made[0].position)) == [t.seq for t in made[2:]]
        assert self.seqs(store.try_get(ALL, start=made[1].position, included=True)) == [t.seq for t in made[2:]]

    def test_a_get_from_a_position_can_be_acked(self, store: EventStore) -> None:
        made = make_transactions(4)
        self.fill(store, made)
        assert self.seqs(store.try_get(ALL, start=made[1].position)) == [t.seq for t in made[2:]]
        store.ack(made[3].position)
        assert store.first_position() == made[3].position
        assert self.seqs(store.try_get(ALL)) == []

    def test_a_get_goes_on_behind_the_last_that_was_handed_out(self, store: EventStore) -> None:
        """A second look at what is outstanding does not turn the reader back."""
        made = make_transactions(4)
        self.fill(store, made)
        store.try_get(self.batch_size(store, made[:3]))
        assert self.seqs(store.try_get(1, start=made[0].position)) == [made[1].seq]
        assert self.seqs(store.try_get(1)) == [made[3].seq]

    def test_a_get_from_a_position_waits(self, store: EventStore) -> None:
        made = make_transactions(3)
        self.fill(store, made[:2])
        waiting = Call(lambda: store.get(1, start=made[1].position))
        assert waiting.waits()
        self.fill(store, made[2:])
        assert self.seqs(waiting.result()) == [made[2].seq]

    # DDL

    def test_a_ddl_comes_alone(self, store: EventStore) -> None:
        made = make_transactions(12, ddl_every=3)
        assert [n for n, t in enumerate(made) if t.ddl] == [2, 5, 8, 11]
        self.fill(store, made)
        found = [self.seqs(store.try_get(ALL)) for _ in range(8)]
        assert found == [
            [t.seq for t in made[low:high]]
            for low, high in ((0, 2), (2, 3), (3, 5), (5, 6), (6, 8), (8, 9), (9, 11), (11, 12))
        ]

    def test_ddls_one_after_another_come_one_by_one(self, store: EventStore) -> None:
        made = make_transactions(3, ddl_every=1)
        self.fill(store, made)
        assert [self.seqs(store.try_get(ALL)) for _ in range(4)] == [*([t.seq] for t in made), []]

    def test_a_get_does_not_wait_for_what_a_ddl_forbids(self, store: EventStore) -> None:
        """A DDL behind it, or in it: the batch cannot grow."""
        made = make_transactions(2, ddl_every=2)
        self.fill(store, made)
        assert self.seqs(Call(lambda: store.get(ALL)).result()) == [made[0].seq]
        assert self.seqs(Call(lambda: store.get(ALL)).result()) == [made[1].seq]

    def test_a_ddl_wakes_a_get_that_waits(self, store: EventStore) -> None:
        made = make_transactions(2, ddl_every=2)
        self.fill(store, made[:1])
        waiting = Call(lambda: store.get(ALL))
        assert waiting.waits()
        self.fill(store, made[1:])
        assert self.seqs(waiting.result()) == [made[0].seq]
