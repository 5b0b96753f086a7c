"""Putting, and what happens where room ends."""

from __future__ import annotations

import pytest

from cdc.errors import StoreLimitError
from cdc.store.contract import EventStore
from cdc.store.transaction import PutStatus, Transaction
from cdc.testing.store_contract.base import ALL, MakeStore, StoreTests, needs
from cdc.testing.threads import Call, took_s
from cdc.testing.transactions import make_transactions


class Putting(StoreTests):
    """Putting, and what happens where room ends."""

    # put

    def test_what_is_put_comes_out_unchanged_and_in_order(self, store: EventStore) -> None:
        made = make_transactions(20, rows=4, tables=("shop.orders", "shop.items"), ddl_every=7)
        self.fill(store, made[:9])
        self.fill(store, made[9:])
        found: list[Transaction] = []
        while events := store.try_get(ALL).transactions:
            found += events
        assert [t.position for t in found] == [t.position for t in made]
        assert [t.data for t in found] == [t.data for t in made]
        for what in ("events", "row_events", "ddl", "tables", "commit_time_us"):
            assert [getattr(t, what) for t in found] == [getattr(t, what) for t in made], what
        assert {t.source for t in found} == {made[0].source}

    def test_putting_nothing_is_done_at_once(self, store: EventStore) -> None:
        assert store.put([]) is PutStatus.PUT_OK
        assert store.put([], timeout_s=0) is PutStatus.PUT_OK
        assert store.try_put([]) is PutStatus.PUT_OK
        assert store.latest_position() is None

    def test_try_put_stores(self, store: EventStore) -> None:
        made = make_transactions(2)
        assert store.try_put(made) in self.put_ok
        assert self.seqs(store.try_get(ALL)) == [t.seq for t in made]

    def test_a_transaction_read_again_is_passed_over(self, store: EventStore) -> None:
        made = make_transactions(6)
        self.fill(store, made[:4])
        self.fill(store, made[:4])
        self.fill(store, made[2:])
        self.fill(store, [made[5], made[0], made[5]])
        assert self.seqs(store.try_get(ALL)) == [t.seq for t in made]

    def test_an_acked_transaction_read_again_is_passed_over(self, store: EventStore) -> None:
        made = make_transactions(3)
        self.fill(store, made)
        store.try_get(ALL)
        store.ack(made[2].position)
        self.fill(store, made)
        assert self.seqs(store.try_get(ALL)) == []

    # put, where room ends

    @needs("limited")
    def test_a_put_waits_for_room_until_an_ack(self, small: EventStore) -> None:
        made = make_transactions(4)
        self.fill(small, made[:3])
        waiting = Call(lambda: small.put(made[3:]))
        assert waiting.waits()
        small.try_get(self.batch_size(small, made[:1]))
        assert waiting.waits(), "what is handed out still holds its room"
        small.ack(made[0].position)
        assert waiting.result() in self.put_ok
        assert self.seqs(small.try_get(ALL)) == [t.seq for t in made[1:]]

    @needs("limited")
    def test_a_put_gives_up_after_its_time(self, small: EventStore) -> None:
        made = make_transactions(4)
        self.fill(small, made[:3])
        status: list[PutStatus] = []
        assert took_s(lambda: status.append(small.put(made[3:], timeout_s=0.2))) >= 0.2
        assert status == [PutStatus.STORE_FULL]
        assert small.latest_position() == made[2].position
        small.try_get(ALL)
        small.ack(made[2].position)
        assert small.put(made[3:], timeout_s=0.2) in self.put_ok, "the same put may be tried again"
        assert self.seqs(small.try_get(ALL)) == [made[3].seq]

    @needs("limited")
    def test_try_put_does_not_wait(self, small: EventStore) -> None:
        made = make_transactions(4)
        self.fill(small, made[:3])
        assert Call(lambda: small.try_put(made[3:])).result() is PutStatus.STORE_FULL
        assert small.latest_position() == made[2].position

    @needs("limited")
    def test_a_list_is_put_whole_or_not_at_all(self, small: EventStore) -> None:
        made = make_transactions(5)
        self.fill(small, made[:2])
        assert small.try_put(made[2:]) is PutStatus.STORE_FULL
        assert self.seqs(small.try_get(ALL)) == [t.seq for t in made[:2]]
        waiting = Call(lambda: small.put(made[2:]))
        small.ack(made[0].position)
        assert waiting.waits(), "there is room for two of three"
        assert self.seqs(small.try_get(ALL)) == []
        small.ack(made[1].position)
        assert waiting.result() in self.put_ok
        assert self.seqs(small.try_get(ALL)) == [t.seq for t in made[2:]]

    @needs("limited")
    def test_a_rollback_makes_no_room(self, small: EventStore) -> None:
        made = make_transactions(4)
        self.fill(small, made[:3])
        small.try_get(ALL)
        small.rollback()
        assert small.try_put(made[3:]) is PutStatus.STORE_FULL

    @needs("limited")
    def test_a_full_store_still_passes_over_what_it_has(self, small: EventStore) -> None:
        made = make_transactions(3)
        self.fill(small, made)
        assert Call(lambda: small.put(made)).result() in self.put_ok
        assert Call(lambda: small.put([])).result() is PutStatus.PUT_OK
        assert small.try_put(made) in self.put_ok

    @needs("limited")
    def test_a_transaction_that_never_fits_is_an_error_at_once(self, make_store: MakeStore) -> None:
        made = make_transactions(2)
        with make_store(4) as store:
            with pytest.raises(StoreLimitError, match=str(made[0].position.pos)):
                Call(lambda: store.put(made[:1])).result()
            with pytest.raises(StoreLimitError):
                store.try_put(made[:1])
            assert store.latest_position() is None

    @needs("limited")
    def test_a_list_that_never_fits_is_an_error_at_once(self, small: EventStore) -> None:
        made = make_transactions(5)
        with pytest.raises(StoreLimitError):
            Call(lambda: small.put(made)).result()
        assert small.latest_position() is None
        self.fill(small, made[:2])
        self.fill(small, made[:3])
        assert small.latest_position() == made[2].position

    @needs("limited")
    def test_a_put_that_waits_is_not_overtaken(self, small: EventStore) -> None:
        """What overtook it has the higher seq: the one that waits would be passed over, and lost."""
        made = make_transactions(7)
        self.fill(small, made[:2])
        first = Call(lambda: small.put(made[2:5]))
        assert first.waits()
        second = Call(lambda: small.put(made[5:6]))
        assert second.waits(), "there is room for it, but not before the first"
        assert small.try_put(made[6:]) is PutStatus.STORE_FULL
        small.try_get(ALL)
        small.ack(made[1].position)
        assert first.result() in self.put_ok
        assert self.seqs(small.try_get(ALL)) == [t.seq for t in made[2:5]]
        small.ack(made[4].position)
        assert second.result() in self.put_ok
        assert self.seqs(small.try_get(ALL)) == [made[5].seq]

    @needs("limited")
    def test_a_put_that_gives_up_lets_the_next_one_go(self, small: EventStore) -> None:
        made = make_transactions(6)
        self.fill(small, made[:2])
        first = Call(lambda: small.put(made[2:5], timeout_s=0.3))
        assert first.waits()
        second = Call(lambda: small.put(made[5:]))
        assert first.result() is PutStatus.STORE_FULL
        assert second.result() in self.put_ok
        assert small.latest_position() == made[5].position

    @needs("limited")
    def test_the_same_put_twice_at_once_is_stored_once(self, small: EventStore) -> None:
        made = make_transactions(6)
        self.fill(small, made[:3])
        calls = [Call(lambda: small.put(made[3:])) for _ in range(2)]
        assert all(call.waits() for call in calls)
        small.try_get(ALL)
        small.ack(made[2].position)
        assert all(call.result() in self.put_ok for call in calls)
        assert self.seqs(small.try_get(ALL)) == [t.seq for t in made[3:]]

    @needs("limited")
    @pytest.mark.parametrize("clean", ["all", "until"])
    def test_cleaning_wakes_a_put(self, small: EventStore, clean: str) -> None:
        made = make_transactions(4)
        self.fill(small, made[:3])
        waiting = Call(lambda: small.put(made[3:]))
        assert waiting.waits()
        if clean == "all":
            small.clean_all()
        else:
            small.clean_until(made[0].position)
        assert waiting.result() in self.put_ok
        assert small.latest_position() == made[3].position

    @needs("limited")
    def test_put_and_get_do_not_wait_for_each_other(self, small: EventStore) -> None:
        """A get for more than the store has room for, and a put that waits for the ack of what was not got."""
        made = make_transactions(4)
        getting = Call(lambda: small.get(ALL))
        self.fill(small, made[:3])
        assert getting.waits()
        putting = Call(lambda: small.put(made[3:]))
        assert self.seqs(getting.result()) == [t.seq for t in made[:3]]
        small.ack(made[2].position)
        assert putting.result() in self.put_ok

    @needs("limited")
    def test_a_get_does_not_wait_on_once_a_put_found_no_room(self, small: EventStore) -> None:
        made = make_transactions(4)
        self.fill(small, made[:3])
        assert small.try_put(made[3:]) is PutStatus.STORE_FULL
        assert self.seqs(Call(lambda: small.get(ALL)).result()) == [t.seq for t in made[:3]]
