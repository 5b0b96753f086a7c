"""Ack, rollback, and the positions that they leave."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cdc.errors import BatchError
from cdc.store.contract import EventStore
from cdc.store.transaction import Events
from cdc.testing.store_contract.base import ALL, StoreTests
from cdc.testing.threads import Call
from cdc.testing.transactions import make_transactions


class Settling(StoreTests):
    """Ack, rollback, and the positions that they leave."""

    # ack

    def test_what_is_acked_never_comes_again(self, store: EventStore) -> None:
        made = make_transactions(5)
        self.fill(store, made)
        store.try_get(self.batch_size(store, made[:3]))
        store.ack(made[2].position)
        store.rollback()
        assert self.seqs(store.try_get(ALL)) == [t.seq for t in made[3:]]

    def test_an_ack_may_end_inside_a_batch(self, store: EventStore) -> None:
        made = make_transactions(4)
        self.fill(store, made)
        store.try_get(ALL)
        store.ack(made[1].position)
        store.rollback()
        assert self.seqs(store.try_get(ALL)) == [t.seq for t in made[2:]]

    def test_an_ack_covers_what_lies_before(self, store: EventStore) -> None:
        made = make_transactions(4)
        self.fill(store, made)
        for _ in range(3):
            store.try_get(1)
        store.ack(made[2].position)
        assert store.first_position() == made[3].position
        store.rollback()
        assert self.seqs(store.try_get(ALL)) == [made[3].seq]

    def test_an_ack_of_what_was_not_handed_out_is_an_error(self, store: EventStore) -> None:
        made = make_transactions(3)
        self.refuse_ack(store, made[0].position)
        self.fill(store, made[:2])
        self.refuse_ack(store, made[0].position)
        store.try_get(1)
        self.refuse_ack(store, made[1].position)
        self.refuse_ack(store, made[2].position)
        store.ack(made[0].position)

    def test_an_ack_twice_is_an_error(self, store: EventStore) -> None:
        made = make_transactions(3)
        self.fill(store, made)
        store.try_get(ALL)
        store.ack(made[1].position)
        self.refuse_ack(store, made[1].position)
        self.refuse_ack(store, made[0].position)

    def test_an_ack_after_a_rollback_is_an_error(self, store: EventStore) -> None:
        made = make_transactions(1)
        self.fill(store, made)
        store.try_get(ALL)
        store.rollback()
        self.refuse_ack(store, made[0].position)

    @pytest.mark.parametrize("other", [{"seq": 1}, {"pos": 1}, {"file": "binlog.000009"}, {"commit_time_us": 1}])
    def test_an_ack_needs_exactly_this_position(self, store: EventStore, other: dict[str, Any]) -> None:
        """Seq, journal, offset and time, as Canal compares them."""
        made = make_transactions(2)
        self.fill(store, made)
        store.try_get(ALL)
        position = made[1].position
        others = {
            key: getattr(position, key) + value if isinstance(value, int) else value for key, value in other.items()
        }
        self.refuse_ack(store, replace(position, **others))
        store.ack(position)

    # rollback

    def test_a_rollback_hands_out_again_what_was_not_acked(self, store: EventStore) -> None:
        made = make_transactions(6)
        self.fill(store, made)
        store.try_get(self.batch_size(store, made[:2]))
        store.ack(made[1].position)
        first = store.try_get(self.batch_size(store, made[2:4]))
        store.try_get(1)
        store.rollback()
        again = store.try_get(self.batch_size(store, made[2:4]))
        assert self.seqs(again) == self.seqs(first) == [t.seq for t in made[2:4]]
        assert [t.data for t in again.transactions] == [t.data for t in first.transactions]

    def test_a_rollback_of_nothing_is_nothing(self, store: EventStore) -> None:
        made = make_transactions(2)
        store.rollback()
        self.fill(store, made)
        store.rollback()
        store.rollback(store.get(1, start=made[1].position, timeout_s=0))
        assert self.seqs(store.try_get(ALL)) == [t.seq for t in made]

    def test_a_rollback_from_a_batch_on(self, store: EventStore) -> None:
        made = make_transactions(5)
        self.fill(store, made)
        store.try_get(1)
        second = store.try_get(self.batch_size(store, made[1:3]))
        store.try_get(1)
        store.rollback(second)
        assert self.seqs(store.try_get(ALL)) == [t.seq for t in made[1:]]
        store.rollback()
        assert self.seqs(store.try_get(ALL)) == [t.seq for t in made]

    def test_batches_before_the_one_rolled_back_stay_outstanding(self, store: EventStore) -> None:
        made = make_transactions(3)
        self.fill(store, made)
        store.try_get(1)
        second = store.try_get(1)
        store.rollback(second)
        store.ack(made[0].position)
        self.refuse_ack(store, made[1].position)
        assert self.seqs(store.try_get(ALL)) == [t.seq for t in made[1:]]

    def test_a_rollback_of_a_batch_keeps_the_part_that_was_acked(self, store: EventStore) -> None:
        made = make_transactions(4)
        self.fill(store, made)
        batch = store.try_get(ALL)
        store.ack(made[1].position)
        store.rollback(batch)
        assert self.seqs(store.try_get(ALL)) == [t.seq for t in made[2:]]

    def test_a_rollback_of_a_batch_that_is_not_outstanding_is_an_error(self, store: EventStore) -> None:
        made = make_transactions(4)
        self.fill(store, made)
        acked, second = store.try_get(1), store.try_get(1)
        store.ack(made[0].position)
        with pytest.raises(BatchError):
            store.rollback(acked)
        store.rollback(second)
        with pytest.raises(BatchError):
            store.rollback(second)
        never = Events([made[2]], made[2].position, made[2].position, made[2].position)
        with pytest.raises(BatchError):
            store.rollback(never)
        assert self.seqs(store.try_get(ALL)) == [t.seq for t in made[1:]]

    def test_a_rollback_wakes_a_get_that_waits(self, store: EventStore) -> None:
        made = make_transactions(2)
        self.fill(store, made)
        store.try_get(ALL)
        waiting = Call(lambda: store.get(self.batch_size(store, made)))
        assert waiting.waits()
        store.rollback()
        assert self.seqs(waiting.result()) == [t.seq for t in made]

    # positions

    def test_an_empty_store_has_no_positions(self, store: EventStore) -> None:
        assert store.first_position() is None
        assert store.latest_position() is None

    def test_the_first_position_is_the_oldest_not_acked(self, store: EventStore) -> None:
        made = make_transactions(3)
        self.fill(store, made)
        assert store.first_position() == made[0].position
        store.try_get(ALL)
        assert store.first_position() == made[0].position
        store.ack(made[0].position)
        assert store.first_position() == made[1].position
        store.ack(made[2].position)
        assert store.first_position() == made[2].position, "all are acked: the last one"

    def test_the_latest_position_is_the_newest(self, store: EventStore) -> None:
        made = make_transactions(4)
        self.fill(store, made[:1])
        assert store.latest_position() == made[0].position
        self.fill(store, made[1:3])
        store.try_get(ALL)
        assert store.latest_position() == made[2].position
        store.ack(made[2].position)
        assert store.latest_position() == made[2].position
        self.fill(store, made[3:])
        assert (store.first_position(), store.latest_position()) == (made[3].position,) * 2
