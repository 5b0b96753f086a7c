"""The memory store beyond the contract suite: slots, both batch modes, sequences, and the ring's wrap-around."""

from __future__ import annotations

import random
import weakref
from dataclasses import replace
from typing import Any

import pytest

from cdc.base.errors import ConfigError, StoreLimitError, UsageError
from cdc.event_store.memory_store import MemoryStore
from cdc.event_store.transaction import Events, Transaction
from cdc.store.writer.durability import PutStatus
from cdc.testing.threads import ThreadCall
from cdc.testing.transactions import make_transactions

ALL = 1 << 40
EVENTS = 5
"""Events of each transaction in these tests."""


def seqs(events: Events) -> list[int]:
    return [t.seq for t in events.transactions]


@pytest.mark.rule("canal-ring-2")
@pytest.mark.parametrize("size", [0, -1, 3, 12, 16383])
def test_a_buffer_size_that_is_no_power_of_two_is_refused(size: int) -> None:
    with pytest.raises(ConfigError, match=rf"store.buffer_size: {size} is not a power of two\. Take 16384"):
        MemoryStore(buffer_size=size)


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ({"buffer_unit_bytes": 0}, "store.buffer_unit_bytes: 0"),
        ({"batch_mode": "events"}, "store.batch_mode: 'events'"),
    ],
)
def test_other_wrong_settings_are_refused(setting: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        MemoryStore(**setting)


@pytest.mark.rule("canal-ring-3", "canal-ring-26")
def test_the_defaults_are_canals() -> None:
    store = MemoryStore()
    assert (store.buffer_size, store.buffer_unit_bytes, store.batch_mode, store.ddl_isolation) == (
        16384, 1024, "memsize", True,
    )  # fmt: skip


@pytest.mark.rule("canal-ring-1")
def test_sequences_count_events_from_minus_one() -> None:
    store = MemoryStore(buffer_size=64)
    assert (store.put_sequence, store.get_sequence, store.ack_sequence) == (-1, -1, -1)
    transactions = make_transactions(4, ddl_every=4)
    store.put(transactions)
    assert (store.put_sequence, store.get_sequence, store.ack_sequence) == (3 * EVENTS + 2 - 1, -1, -1)
    events = store.try_get(ALL)
    assert store.get_sequence == 3 * EVENTS - 1
    store.ack(transactions[0].position)
    assert (store.put_sequence, store.get_sequence, store.ack_sequence) == (16, 14, 4)
    store.rollback()
    assert store.get_sequence == store.ack_sequence == 4
    assert events.ack is not None
    store.clean_until(events.ack)
    assert (store.put_sequence, store.get_sequence, store.ack_sequence) == (16, 14, 14)
    store.clean_all()
    assert (store.put_sequence, store.get_sequence, store.ack_sequence) == (16, 16, 16)


@pytest.mark.rule("canal-ring-5")
def test_the_ring_may_be_filled_to_the_last_slot() -> None:
    transactions = make_transactions(16, ddl_every=1)
    store = MemoryStore(buffer_size=16, batch_mode="itemsize", ddl_isolation=False)
    assert store.put(transactions[:8]) is PutStatus.PUT_OK
    assert store.metrics().held_events == 16
    assert store.try_put(transactions[8:9]) is PutStatus.STORE_FULL
    assert seqs(store.get(16)) == [t.seq for t in transactions[:8]]


def test_a_transaction_without_events_takes_a_slot() -> None:
    made = [replace(t, entry=t.entry.copy()) for t in make_transactions(3)]
    for transaction in made:
        transaction.entry["events"] = 0
    store = MemoryStore(buffer_size=2, batch_mode="itemsize")
    assert store.put(made[:2]) is PutStatus.PUT_OK
    assert store.try_put(made[2:]) is PutStatus.STORE_FULL
    assert store.put_sequence == 1


# memsize


@pytest.mark.rule("canal-ring-6")
def test_memsize_looks_at_the_memory_before_the_put() -> None:
    """A transaction of any size fits while there is room, even one larger than the store."""
    transactions = make_transactions(4, rows=100)
    size = transactions[0].size_bytes
    assert size > 400
    store = MemoryStore(buffer_size=64, buffer_unit_bytes=(size + 64) // 64)
    assert store.put(transactions[:1]) is PutStatus.PUT_OK, "less than the limit is held, so another one fits"
    assert store.put(transactions[1:2]) is PutStatus.PUT_OK
    assert store.try_put(transactions[2:3]) is PutStatus.STORE_FULL
    tiny = MemoryStore(buffer_size=8, buffer_unit_bytes=1)
    assert tiny.put(transactions[:1]) is PutStatus.PUT_OK
    assert tiny.metrics().held_bytes == size > 8
    assert tiny.try_put(transactions[1:2]) is PutStatus.STORE_FULL
    tiny.try_get(1)
    tiny.ack(transactions[0].position)
    assert tiny.try_put(transactions[1:2]) is PutStatus.PUT_OK


@pytest.mark.rule("canal-ring-6")
def test_memsize_waits_at_exactly_the_limit() -> None:
    transactions = make_transactions(3)
    size = transactions[0].size_bytes
    assert transactions[1].size_bytes == size
    for limit, status in ((size, PutStatus.STORE_FULL), (size + 1, PutStatus.PUT_OK)):
        store = MemoryStore(buffer_size=1024, buffer_unit_bytes=1)
        entry = transactions[0].entry.copy()
        entry["length"] += 1024 - limit
        big = replace(transactions[0], entry=entry, data=transactions[0].data + bytes(1024 - limit))
        store.put([big])
        assert store.try_put(transactions[1:2]) is status


@pytest.mark.rule("canal-ring-6")
def test_memsize_still_needs_slots() -> None:
    transactions = make_transactions(4)
    store = MemoryStore(buffer_size=16)
    store.put(transactions[:3])
    assert store.try_put(transactions[3:]) is PutStatus.STORE_FULL
    with pytest.raises(StoreLimitError, match="20 events, the ring 16 slots"):
        MemoryStore(buffer_size=16).try_put(transactions)


def test_itemsize_does_not_look_at_bytes() -> None:
    transactions = make_transactions(3, rows=1000)
    store = MemoryStore(buffer_size=16, buffer_unit_bytes=1, batch_mode="itemsize")
    assert store.put(transactions, timeout_s=0) is PutStatus.PUT_OK


@pytest.mark.rule("canal-ring-7")
def test_a_transaction_weighs_the_event_lengths_of_its_headers() -> None:
    """Canal's MEMSIZE: an event counts with the ``event_length`` of its binlog header."""
    transactions = make_transactions(3, ddl_every=3)
    lengths = []
    for data in (t.data for t in transactions):
        at = 0
        while at < len(data):
            lengths.append(int.from_bytes(data[at + 9 : at + 13], "little"))
            at += lengths[-1]
    assert len(lengths) == sum(t.events for t in transactions) == 2 * EVENTS + 2
    store = MemoryStore()
    store.put(transactions)
    assert store.metrics().held_bytes == sum(lengths)


@pytest.mark.rule("canal-ring-15")
def test_a_batch_size_counts_events_or_units() -> None:
    transactions = make_transactions(6)
    store = MemoryStore(batch_mode="itemsize")
    store.put(transactions)
    assert len(store.try_get(2 * EVENTS).transactions) == 2
    assert len(store.try_get(3 * EVENTS + EVENTS - 1).transactions) == 3
    size = transactions[0].size_bytes
    store = MemoryStore(buffer_unit_bytes=size)
    store.put(transactions)
    assert len(store.try_get(2).transactions) == 2
    assert len(store.try_get(3).transactions) == 3


@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_size_that_makes_no_sense_is_refused(size: int) -> None:
    with pytest.raises(UsageError, match=f"batch size of {size}"):
        MemoryStore().try_get(size)


# DDL


@pytest.mark.rule("canal-ring-26")
def test_without_isolation_a_ddl_is_like_any_other() -> None:
    transactions = make_transactions(6, ddl_every=2)
    store = MemoryStore(ddl_isolation=False)
    store.put(transactions)
    assert seqs(store.try_get(ALL)) == [t.seq for t in transactions]
    waiting = ThreadCall(lambda: store.get(ALL, start=transactions[0].position))
    assert waiting.waits(), "nor does it end a batch"
    store.close()
    with pytest.raises(Exception, match="closed"):
        waiting.result()


# memory


@pytest.mark.rule("canal-ring-29")
def test_what_is_acked_is_let_go() -> None:
    transactions = make_transactions(6)
    alive = [weakref.ref(t) for t in transactions]
    positions = [t.position for t in transactions]
    store = MemoryStore(buffer_size=32)
    store.put(transactions)
    transactions.clear()
    del store.try_get(ALL).transactions[:]  # type: ignore[attr-defined]
    store.ack(positions[1])
    assert [ref() is None for ref in alive] == [True] * 2 + [False] * 4
    store.clean_until(positions[3])
    assert [ref() is None for ref in alive] == [True] * 4 + [False] * 2
    store.close()
    assert [ref() is None for ref in alive] == [True] * 6


@pytest.mark.rule("canal-ring-33")
def test_a_store_that_is_closed_holds_nothing() -> None:
    """Canal's ``cleanAll`` when its store is stopped."""
    store = MemoryStore()
    store.put(make_transactions(3))
    store.try_get(ALL)
    store.close()
    assert (store.metrics().held_events, store.metrics().held_bytes) == (0, 0)
    assert store.put_sequence == store.get_sequence == store.ack_sequence == 3 * EVENTS - 1


# against a model


class Model:
    """A model of the contract made of lists: the held transactions, and how many of them were returned."""

    def __init__(self, slots: int) -> None:
        self.slots, self.held, self.got, self.newest = slots, list[Transaction](), 0, -1

    def put(self, transactions: list[Transaction]) -> bool:
        new = [t for t in transactions if t.seq > self.newest]
        if new and sum(t.events for t in self.held + new) > self.slots:
            return False
        self.held += new
        self.newest = max([self.newest, *(t.seq for t in new)])
        return True

    def take(self, first: int, size: int) -> list[Transaction]:
        batch: list[Transaction] = []
        for transaction in self.held[first:]:
            if batch and (sum(t.events for t in batch) + transaction.events > size or transaction.ddl or batch[-1].ddl):
                break
            batch.append(transaction)
        if batch:
            self.got = max(self.got, first + len(batch))
        return batch

    def drop(self, count: int) -> None:
        self.held, self.got = self.held[count:], max(0, self.got - count)


@pytest.mark.rule("canal-ring-1")
@pytest.mark.parametrize("buffer_size", [8, 16, 64])
def test_random_calls_against_a_model(buffer_size: int, seed: int) -> None:
    """Compares each result over thousands of wrap-arounds."""
    chance = random.Random(seed)
    transactions = make_transactions(1500, ddl_every=5)
    store, model, n = MemoryStore(buffer_size=buffer_size, batch_mode="itemsize"), Model(buffer_size), 0
    while n < len(transactions):
        act = chance.random()
        if act < 0.4:
            # Slots are what a transaction asks for: no list is larger than the ring here.
            first = max(0, n - chance.randint(0, 2))
            some = transactions[first : first + chance.randint(0, 3)]
            if sum(t.events for t in some if t.seq > model.newest) > buffer_size:
                with pytest.raises(StoreLimitError):
                    store.try_put(some)
                continue
            stored = store.try_put(some).stored
            assert stored == model.put(some)
            n = max(n, first + len(some)) if stored else n
        elif act < 0.7:
            size = chance.randint(1, 20)
            assert seqs(store.try_get(size)) == [t.seq for t in model.take(model.got, size)]
        elif act < 0.75 and model.held:
            at, size, included = chance.randrange(len(model.held)), chance.randint(1, 20), chance.random() < 0.5
            events = store.try_get(size, start=model.held[at].position, included=included)
            assert seqs(events) == [t.seq for t in model.take(at if included else at + 1, size)]
        elif act < 0.9 and model.got:
            at = chance.randrange(model.got)
            store.ack(model.held[at].position)
            model.drop(at + 1)
        elif act < 0.96:
            store.rollback()
            model.got = 0
        elif act < 0.98 and model.held:
            at = chance.randrange(len(model.held))
            store.clean_until(model.held[at].position)
            model.drop(at + 1)
        first_position = store.first_position()
        if model.held:
            assert first_position == model.held[0].position
            assert store.latest_position() == model.held[-1].position
        assert store.metrics().held_events == sum(t.events for t in model.held)
        assert store.put_sequence - store.get_sequence == sum(t.events for t in model.held[model.got :])
        assert store.put_sequence - store.ack_sequence == store.metrics().held_events
        assert -1 <= store.ack_sequence <= store.get_sequence <= store.put_sequence


@pytest.mark.parametrize("what", ["length", "tables", "bytes"])
def test_an_entry_that_contradicts_its_transaction_is_refused(what: str) -> None:
    good, other = make_transactions(2)
    entry, data, tables = other.entry.copy(), other.data, other.tables
    if what == "length":
        data += b"!"
    elif what == "tables":
        tables = ()
    else:
        data, entry["length"] = b"", 0
    store = MemoryStore()
    with pytest.raises(UsageError, match=f"seq {other.seq}"):
        store.put([good, Transaction(entry, data, other.source, tables)])
    assert store.put([good, other]) is PutStatus.PUT_OK, "nothing of the list was put"


def with_events(transaction: Transaction, events: int) -> Transaction:
    entry = transaction.entry.copy()
    entry["events"] = events
    return replace(transaction, entry=entry)


def test_a_store_that_takes_larger_ones_takes_them_alone() -> None:
    small, large, next_one, larger = make_transactions(4)
    large, larger = with_events(large, 40), with_events(larger, 40)
    with MemoryStore(buffer_size=16, batch_mode="itemsize", takes_larger=True) as store:
        assert store.try_put([small]) is PutStatus.PUT_OK
        assert store.try_put([large]) is PutStatus.STORE_FULL  # something else is held
        first = store.try_get(100)
        assert store.try_put([large]) is PutStatus.STORE_FULL
        assert first.ack is not None
        store.ack(first.ack)
        assert store.try_put([large]) is PutStatus.PUT_OK
        assert store.try_put([next_one]) is PutStatus.STORE_FULL
        batch = store.try_get(1)
        assert [t.seq for t in batch.transactions] == [large.seq] and batch.ack is not None
        store.ack(batch.ack)
        assert store.try_put([next_one]) is PutStatus.PUT_OK
        with pytest.raises(StoreLimitError, match=r"put at once|has 40 events"):
            store.try_put([larger, *make_transactions(6)[4:]])
