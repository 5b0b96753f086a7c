"""Flume's memory channel: its rules, and each of its known faults, which must not be here."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable

import pytest

from cdc.base.errors import ChannelFullError, ConfigError, StoreClosedError, StoreLimitError, TransactionStateError
from cdc.event_store.channel.channel import MemoryChannel
from cdc.event_store.channel.transaction import ChannelTransaction
from cdc.testing.threads import ThreadCall, took_s
from cdc.testing.transactions import make_transactions

QUICK_S = 0.15


def make_channel(
    capacity: int = 10, transaction_capacity: int = 10, byte_capacity: int = 100_000, keep_alive_s: float = QUICK_S
) -> MemoryChannel[str]:
    """Returns a channel of strings that counts a byte for each letter and keeps no bytes free."""
    return MemoryChannel(
        capacity=capacity,
        transaction_capacity=transaction_capacity,
        byte_capacity=byte_capacity,
        byte_capacity_buffer_percentage=0,
        keep_alive_s=keep_alive_s,
        size_of=len,
    )


def put(to: MemoryChannel[str], *items: str) -> None:
    with to.transaction() as transaction:
        for item in items:
            transaction.put(item)


def take(source: MemoryChannel[str], count: int = 1) -> list[str]:
    with source.transaction() as transaction:
        return [item for _ in range(count) if (item := transaction.take()) is not None]


def opened(channel: MemoryChannel[str]) -> ChannelTransaction[str]:
    transaction = channel.transaction()
    transaction.begin()
    return transaction


def collect_after(call: Callable[[], None]) -> None:
    call()
    gc.collect()


@pytest.mark.rule("flume-channel-1")
def test_the_defaults_are_flumes() -> None:
    """capacity, transactionCapacity, byteCapacityBufferPercentage, keep-alive; the byte capacity is our own."""
    channel = MemoryChannel[str]()
    assert (channel.capacity, channel.transaction_capacity) == (100, 100)
    assert (channel.byte_capacity_buffer_percentage, channel.keep_alive_s) == (20, 3.0)


# transactions


def test_whole_transactions_of_a_source_go_through() -> None:
    transactions = make_transactions(5, rows=50)
    channel = MemoryChannel[object](keep_alive_s=QUICK_S)
    with channel.transaction() as putting:
        for item in transactions:
            putting.put(item)
    slots = sum(-(-t.size_bytes // 100) for t in transactions)
    assert channel.metrics().held_bytes == slots * 100
    with channel.transaction() as taking:
        assert all(taking.take() is item for item in transactions)
    assert channel.metrics().held_bytes == 0


@pytest.mark.rule("flume-channel-7", "flume-channel-14")
def test_nothing_of_a_put_is_seen_before_its_commit() -> None:
    channel = make_channel()
    transaction = opened(channel)
    transaction.put("a")
    transaction.put("b")
    assert take(channel) == []
    assert transaction.take() is None, "not even by itself"
    transaction.commit()
    transaction.close()
    assert take(channel, 2) == ["a", "b"]


@pytest.mark.rule("flume-channel-15")
def test_nothing_that_is_taken_is_gone_before_the_commit() -> None:
    channel = make_channel()
    put(channel, "a", "b", "c", "d")
    transaction = opened(channel)
    assert [transaction.take() for _ in range(3)] == ["a", "b", "c"]
    assert channel.metrics().held_events == 4
    transaction.rollback()
    transaction.close()
    assert take(channel, 4) == ["a", "b", "c", "d"]


@pytest.mark.rule("flume-channel-15")
def test_takes_that_are_rolled_back_crosswise_keep_their_order() -> None:
    """In Flume the one that rolls back last comes first."""
    channel = make_channel()
    put(channel, "a", "b", "c", "d", "e")
    first, second = opened(channel), opened(channel)
    assert [first.take(), second.take(), first.take(), second.take()] == ["a", "b", "c", "d"]
    first.rollback()
    second.rollback()
    assert take(channel, 5) == ["a", "b", "c", "d", "e"]


@pytest.mark.rule("flume-channel-11")
def test_puts_and_takes_of_one_transaction_hold_together() -> None:
    channel = make_channel(capacity=2, transaction_capacity=2)
    put(channel, "a", "b")
    with channel.transaction() as transaction:
        for item in [transaction.take(), transaction.take()]:
            assert item is not None
            transaction.put(item.upper())
    assert take(channel, 2) == ["A", "B"], "what was taken makes room for what is put"


def test_a_block_that_fails_is_rolled_back() -> None:
    channel = make_channel()
    put(channel, "a")
    transaction = channel.transaction()

    def fail() -> None:
        with transaction:
            transaction.take()
            transaction.put("b")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert transaction.state == "CLOSED"
    assert take(channel, 2) == ["a"]


def test_a_block_may_commit_or_roll_back_itself() -> None:
    channel = make_channel()
    with channel.transaction() as transaction:
        transaction.put("a")
        transaction.commit()
    with channel.transaction() as transaction:
        transaction.put("b")
        transaction.rollback()
    assert take(channel, 2) == ["a"]


@pytest.mark.rule("flume-channel-10")
def test_a_take_waits_for_an_item() -> None:
    channel = make_channel(keep_alive_s=20)
    taking = ThreadCall(lambda: take(channel))
    assert taking.waits()
    put(channel, "a")
    assert taking.result() == ["a"]


@pytest.mark.rule("flume-channel-10")
def test_a_take_gives_up_after_the_keep_alive() -> None:
    channel = make_channel()
    assert took_s(lambda: take(channel)) >= QUICK_S
    assert channel.metrics().event_take_attempt_count == 1
    assert channel.metrics().event_take_success_count == 0


def test_a_rollback_wakes_a_take() -> None:
    channel = make_channel(keep_alive_s=20)
    put(channel, "a")
    transaction = opened(channel)
    transaction.take()
    taking = ThreadCall(lambda: take(channel))
    assert taking.waits()
    transaction.rollback()
    assert taking.result() == ["a"]


# wrong states


STEPS: dict[str, list[Callable[[ChannelTransaction[str]], object]]] = {
    "NEW": [],
    "OPEN": [lambda t: t.begin()],
    "COMPLETED": [lambda t: t.begin(), lambda t: t.commit()],
    "CLOSED": [lambda t: t.begin(), lambda t: t.rollback(), lambda t: t.close()],
}


@pytest.mark.rule("flume-channel-6")
@pytest.mark.parametrize(
    ("state", "call"),
    [
        (state, call)
        for state, allowed in (("NEW", ["begin"]), ("OPEN", ["put", "take", "commit", "rollback"]), ("COMPLETED", []), ("CLOSED", []))
        for call in ("begin", "put", "take", "commit", "rollback")
        if call not in allowed
    ],
)  # fmt: skip
def test_a_call_in_a_wrong_state_is_an_error(state: str, call: str) -> None:
    channel = make_channel()
    transaction = channel.transaction()
    for step in STEPS[state]:
        step(transaction)
    calls: dict[str, Callable[[], object]] = {
        "begin": transaction.begin,
        "put": lambda: transaction.put("a"),
        "take": transaction.take,
        "commit": transaction.commit,
        "rollback": transaction.rollback,
    }
    with pytest.raises(TransactionStateError, match=rf"{call}\(\) needs .* this is {state}"):
        calls[call]()
    assert transaction.state == state
    if state == "OPEN":
        transaction.rollback()
    transaction.close()
    transaction.close()
    channel.close()


def test_a_transaction_closed_while_open_is_an_error_and_rolled_back() -> None:
    channel = make_channel()
    put(channel, "a", "b")
    transaction = opened(channel)
    transaction.take()
    transaction.put("c")
    with pytest.raises(TransactionStateError, match="1 puts and 1 takes"):
        transaction.close()
    assert transaction.state == "CLOSED"
    assert take(channel, 3) == ["a", "b"]
    channel.close()


def test_a_transaction_garbage_collected_while_open_loses_nothing_and_is_an_error_at_close() -> None:
    channel = make_channel()
    put(channel, "a", "b", "c")

    def leave_open() -> None:
        transaction = opened(channel)
        assert [transaction.take(), transaction.take()] == ["a", "b"]

    with pytest.warns(ResourceWarning, match="left open"):
        collect_after(leave_open)
    assert take(channel, 3) == ["a", "b", "c"]
    with pytest.raises(TransactionStateError, match="1 were left open"):
        channel.close()
    channel.close()


def test_a_transaction_collected_under_the_channels_lock_does_not_block() -> None:
    """Garbage is collected wherever memory is allocated, inside the channel's own calls too."""
    channel = make_channel()
    put(channel, "a")
    open_transactions = [opened(channel)]
    open_transactions[0].take()
    with channel._queue.lock, pytest.warns(ResourceWarning, match="left open"):
        collect_after(open_transactions.clear)
    assert take(channel) == ["a"]
    with pytest.raises(TransactionStateError):
        channel.close()


def test_a_channel_closed_while_a_transaction_is_open_is_an_error() -> None:
    channel = make_channel()
    transaction = opened(channel)
    transaction.put("a")
    with pytest.raises(TransactionStateError, match="closed while 1 of its transactions are open"):
        channel.close()
    with pytest.raises(StoreClosedError):
        transaction.commit()
    with pytest.raises(StoreClosedError):
        transaction.put("b")
    with pytest.raises(StoreClosedError):
        transaction.take()
    assert transaction.rollback() == ["a"]
    transaction.close()
    with pytest.raises(StoreClosedError):
        channel.transaction().begin()


def test_the_error_of_a_block_is_not_hidden_by_an_open_transaction() -> None:
    open_transactions: list[ChannelTransaction[str]] = []

    def block(error: Exception | None) -> None:
        with make_channel() as channel:
            open_transactions.append(opened(channel))
            if error is not None:
                raise error

    with pytest.raises(ZeroDivisionError):
        block(ZeroDivisionError())
    with pytest.raises(TransactionStateError):
        block(None)
    for transaction in open_transactions:
        transaction.rollback()


def test_closing_ends_who_waits() -> None:
    channel = make_channel(capacity=1, transaction_capacity=1, keep_alive_s=20)
    put(channel, "a")
    putting = ThreadCall(lambda: put(channel, "b"))
    resizing = ThreadCall(lambda: channel.resize(byte_capacity=100))
    resizing.result()
    assert putting.waits()
    empty = make_channel(keep_alive_s=20)
    taking = ThreadCall(lambda: take(empty))
    assert taking.waits()
    for each in (channel, empty):
        with pytest.raises(TransactionStateError):
            each.close()
    for call in (putting, taking):
        with pytest.raises(StoreClosedError):
            call.result()


# capacities


@pytest.mark.rule("flume-channel-8")
def test_a_full_put_list_says_to_commit_more_often() -> None:
    channel = make_channel(transaction_capacity=2)
    with channel.transaction() as transaction:
        transaction.put("a")
        transaction.put("b")
        with pytest.raises(ChannelFullError, match=r"transaction_capacity: the put list .* 2 items.*Commit more often"):
            transaction.put("c")
    assert take(channel, 2) == ["a", "b"]
    assert channel.metrics().channel_size == 0


@pytest.mark.rule("flume-channel-9")
def test_a_full_take_list_says_to_commit_more_often() -> None:
    channel = make_channel(transaction_capacity=2)
    put(channel, "a", "b")
    put(channel, "c")
    with channel.transaction() as transaction:
        assert [transaction.take(), transaction.take()] == ["a", "b"]
        with pytest.raises(ChannelFullError, match=r"transaction_capacity: the take list .* 2 items"):
            transaction.take()
    assert take(channel) == ["c"]


@pytest.mark.rule("flume-channel-11")
def test_a_commit_waits_for_room() -> None:
    channel = make_channel(capacity=2, transaction_capacity=2, keep_alive_s=20)
    put(channel, "a", "b")
    putting = ThreadCall(lambda: put(channel, "c", "d"))
    assert putting.waits()
    assert take(channel) == ["a"]
    assert putting.waits(), "there is room for one of two"
    assert take(channel) == ["b"]
    putting.result()
    assert take(channel, 2) == ["c", "d"]


def test_a_take_that_is_not_committed_makes_no_room() -> None:
    channel = make_channel(capacity=1, transaction_capacity=1)
    put(channel, "a")
    taking = opened(channel)
    taking.take()
    with pytest.raises(ChannelFullError, match=r"^capacity: no room for the commit after .*: 1 of 1 items"):
        put(channel, "b")
    taking.rollback()
    assert take(channel) == ["a"]


@pytest.mark.rule("flume-channel-13")
@pytest.mark.parametrize(
    ("capacity", "byte_capacity", "named"),
    [(2, 10_000, "^capacity: .* 2 of 2 items"), (10, 1_000, "^byte_capacity: .* 800 of 1000 bytes")],
)
def test_a_commit_without_room_names_the_capacity(capacity: int, byte_capacity: int, named: str) -> None:
    channel = make_channel(capacity, min(10, capacity), byte_capacity)
    put(channel, "a" * 400, "b" * 400)
    transaction = opened(channel)
    transaction.put("c" * 300)
    with pytest.raises(ChannelFullError, match=named):
        transaction.commit()
    assert transaction.state == "OPEN"
    take(channel)
    transaction.commit()
    transaction.close()
    assert [item[0] for item in take(channel, 2)] == ["b", "c"]


@pytest.mark.rule("flume-channel-12")
@pytest.mark.parametrize(("capacity", "byte_capacity"), [(2, 10_000), (10, 200), (2, 200)])
def test_a_commit_gives_up_after_one_keep_alive(capacity: int, byte_capacity: int) -> None:
    """Flume waits the keep-alive for bytes, then once more for slots; here both come out of one."""
    channel = make_channel(capacity, 2, byte_capacity, keep_alive_s=2.0)
    put(channel, "a", "b")
    transaction = opened(channel)
    transaction.put("c")

    def commit() -> None:
        with pytest.raises(ChannelFullError):
            transaction.commit()

    assert 2.0 <= took_s(commit) < 3.9
    assert transaction.rollback() == ["c"]
    assert take(channel, 2) == ["a", "b"]


@pytest.mark.rule("flume-channel-3")
def test_an_item_takes_a_slot_of_100_bytes_at_least() -> None:
    channel = make_channel(byte_capacity=1_000)
    put(channel, "", "a", "b" * 100, "c" * 101)
    assert channel.metrics().held_bytes == 500


@pytest.mark.rule("flume-channel-2")
def test_the_buffer_percentage_is_kept_free() -> None:
    channel = MemoryChannel[str](byte_capacity=10_000, byte_capacity_buffer_percentage=25, size_of=len)
    assert channel.byte_capacity == channel.metrics().byte_capacity == 7_500
    assert MemoryChannel[str]().byte_capacity == 268435456 * 8 // 10 // 100 * 100


def test_an_item_larger_than_the_channel_is_an_error_at_once() -> None:
    channel = make_channel(byte_capacity=500, keep_alive_s=20)
    with channel.transaction() as transaction:
        with pytest.raises(StoreLimitError, match="600 bytes, the channel has 500"):
            transaction.put("a" * 501)
        transaction.put("b" * 300)
        with pytest.raises(ChannelFullError, match=r"^byte_capacity: .*Commit more often"):
            transaction.put("c" * 201)
    assert channel.metrics().held_bytes == 300


@pytest.mark.rule("flume-channel-4", "flume-channel-5")
@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"capacity": 0}, "transaction_capacity|capacity"),
        ({"transaction_capacity": 0}, "transaction_capacity: 0"),
        ({"transaction_capacity": 101}, "transaction_capacity: 101 is more than the capacity of 100"),
        ({"byte_capacity": 124}, "byte_capacity: 124"),
        ({"byte_capacity": -1}, "byte_capacity: -1"),
        ({"byte_capacity_buffer_percentage": 100}, "byte_capacity_buffer_percentage: 100"),
        ({"byte_capacity_buffer_percentage": -1}, "byte_capacity_buffer_percentage: -1"),
        ({"keep_alive_s": -1}, "keep_alive_s: -1"),
    ],
)
def test_settings_that_contradict_are_refused(settings: dict[str, int], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        MemoryChannel(**settings)  # type: ignore[arg-type]


# resizing


@pytest.mark.rule("flume-channel-17")
def test_growing_is_immediate_and_wakes_a_commit() -> None:
    channel = make_channel(capacity=1, transaction_capacity=1, byte_capacity=100, keep_alive_s=20)
    put(channel, "a")
    putting = ThreadCall(lambda: put(channel, "b"))
    assert putting.waits()
    channel.resize(capacity=2)
    assert putting.waits(), "the bytes are still short"
    channel.resize(byte_capacity=200)
    putting.result()
    assert (channel.capacity, channel.byte_capacity) == (2, 200)
    assert take(channel) + take(channel) == ["a", "b"]


def test_shrinking_what_is_free_is_immediate() -> None:
    channel = make_channel(capacity=10, transaction_capacity=2, keep_alive_s=20)
    put(channel, "a", "b")
    ThreadCall(lambda: channel.resize(capacity=2, byte_capacity=200)).result(10)
    assert (channel.capacity, channel.byte_capacity) == (2, 200)


@pytest.mark.rule("flume-channel-18")
def test_shrinking_below_what_is_queued_waits_for_takes() -> None:
    channel = make_channel(capacity=4, transaction_capacity=2, keep_alive_s=20)
    put(channel, "a", "b")
    put(channel, "c", "d")
    resizing = ThreadCall(lambda: channel.resize(capacity=2))
    assert resizing.waits()
    assert channel.capacity == 4
    putting = ThreadCall(lambda: put(channel, "e"))
    take(channel)
    assert putting.waits(), "commits keep to the new size already, or a shrinking might never come to an end"
    assert resizing.waits(0.01)
    take(channel)
    resizing.result()
    assert putting.waits()
    assert take(channel) == ["c"]
    putting.result()
    assert channel.capacity == 2
    assert take(channel, 2) == ["d", "e"]


@pytest.mark.rule("flume-channel-18")
@pytest.mark.parametrize(
    ("sizes", "named"),
    [
        ({"capacity": 2}, "^capacity: resizing was aborted: 3 items .* the new size is 2"),
        ({"byte_capacity": 200}, "^byte_capacity: resizing was aborted: 300 bytes .* the new size is 200"),
    ],
)
def test_shrinking_is_given_up_and_the_old_size_stays(sizes: dict[str, int], named: str) -> None:
    channel = make_channel(capacity=4, transaction_capacity=2, byte_capacity=400)
    put(channel, "a", "b")
    put(channel, "c")
    with pytest.raises(ChannelFullError, match=named):
        channel.resize(**sizes)
    assert (channel.capacity, channel.byte_capacity) == (4, 400)
    assert (channel.metrics().channel_capacity, channel.metrics().byte_capacity) == (4, 400)
    put(channel, "d")
    assert take(channel, 2) + take(channel, 2) == ["a", "b", "c", "d"]


@pytest.mark.rule("flume-channel-18")
def test_a_shrinking_waits_the_keep_alive_before_it_is_given_up() -> None:
    channel = make_channel(capacity=2, transaction_capacity=1)
    put(channel, "a")
    put(channel, "b")

    def shrink() -> None:
        with pytest.raises(ChannelFullError, match="resizing was aborted"):
            channel.resize(capacity=1)

    assert took_s(shrink) >= QUICK_S


def test_a_size_that_contradicts_is_refused_and_changes_nothing() -> None:
    channel = make_channel(capacity=10, transaction_capacity=5)
    with pytest.raises(ConfigError, match="transaction_capacity"):
        channel.resize(capacity=4)
    with pytest.raises(ConfigError, match="byte_capacity"):
        channel.resize(capacity=8, byte_capacity=99)
    assert channel.capacity == 10


# counters


@pytest.mark.rule("flume-channel-19")
def test_counters() -> None:
    channel = make_channel(capacity=8, transaction_capacity=4)
    put(channel, "a", "b", "c")
    transaction = opened(channel)
    transaction.put("d")
    transaction.rollback()
    take(channel)
    transaction = opened(channel)
    transaction.take()
    metrics = channel.metrics()
    assert (metrics.event_put_attempt_count, metrics.event_put_success_count) == (4, 3)
    assert (metrics.event_take_attempt_count, metrics.event_take_success_count) == (2, 1)
    assert (metrics.channel_size, metrics.channel_capacity, metrics.channel_fill_percentage) == (1, 8, 12.5)
    assert (metrics.held_events, metrics.held_bytes) == (2, 200)
    transaction.rollback()
    assert channel.metrics().channel_size == 2


# the known faults of Flume's channel


def held(channel: MemoryChannel[str]) -> tuple[int, int]:
    metrics = channel.metrics()
    return metrics.held_events, metrics.held_bytes


@pytest.mark.rule("flume-channel-20")
def test_fault_bytes_of_a_commit_with_no_more_puts_than_takes_are_counted() -> None:
    """Flume takes bytes only where puts outnumber takes, and gives them back at each take: the count drifts up."""
    channel = make_channel(byte_capacity=1_000)
    for _ in range(5):
        put(channel, "a")
        with channel.transaction() as transaction:
            assert transaction.take() == "a"
            transaction.put("b" * 900)
        assert held(channel) == (1, 900)
        with pytest.raises(ChannelFullError, match="byte_capacity"):
            put(channel, "c" * 200)
        take(channel)
        assert held(channel) == (0, 0)


@pytest.mark.rule("flume-channel-20")
def test_fault_a_rolled_back_put_gives_back_no_bytes_that_it_never_had() -> None:
    channel = make_channel(byte_capacity=1_000)
    put(channel, "a" * 500)
    for _ in range(5):
        transaction = opened(channel)
        transaction.put("b" * 400)
        transaction.rollback()
        assert held(channel) == (1, 500)
    with pytest.raises(ChannelFullError, match="byte_capacity"):
        put(channel, "c" * 600)


@pytest.mark.rule("flume-channel-13")
def test_fault_a_commit_that_finds_no_room_keeps_no_bytes() -> None:
    channel = make_channel(capacity=1, transaction_capacity=1, byte_capacity=1_000)
    put(channel, "a")
    for _ in range(3):
        with pytest.raises(ChannelFullError, match="capacity"):
            put(channel, "b" * 800)
        assert held(channel) == (1, 100)
    take(channel)
    put(channel, "b" * 1_000)


@pytest.mark.rule("flume-channel-20")
def test_fault_a_rolled_back_take_keeps_its_bytes() -> None:
    channel = make_channel(byte_capacity=1_000)
    put(channel, "a" * 700)
    for _ in range(3):
        transaction = opened(channel)
        transaction.take()
        assert held(channel) == (1, 700)
        transaction.rollback()
        assert held(channel) == (1, 700)
    with pytest.raises(ChannelFullError, match="byte_capacity"):
        put(channel, "b" * 400)


def test_fault_a_shrinking_that_is_given_up_is_not_shown_as_done() -> None:
    """Flume shows, and reckons the next resizing from, a byte capacity that never came into force."""
    channel = make_channel(byte_capacity=1_000)
    put(channel, "a" * 700)
    with pytest.raises(ChannelFullError):
        channel.resize(byte_capacity=500)
    assert channel.byte_capacity == 1_000
    channel.resize(byte_capacity=1_100)
    put(channel, "b" * 400)
    assert held(channel) == (2, 1_100)
    with pytest.raises(ChannelFullError):
        put(channel, "c")


@pytest.mark.rule("flume-channel-16", "flume-channel-22")
def test_fault_a_put_that_is_rolled_back_is_not_lost() -> None:
    """A source that does not repeat it loses it in Flume; here it has it in its hand, and may commit once more."""
    channel = make_channel(capacity=1, transaction_capacity=1)
    put(channel, "a")
    transaction = opened(channel)
    transaction.put("b")
    with pytest.raises(ChannelFullError):
        transaction.commit()
    returned = transaction.rollback()
    transaction.close()
    take(channel)
    put(channel, *returned)
    assert take(channel) == ["b"]


@pytest.mark.rule("flume-channel-5")
def test_fault_an_invalid_value_is_not_replaced_by_a_default() -> None:
    """Flume warns, and goes on with a default that nobody asked for."""
    with pytest.raises(ConfigError, match="capacity"):
        MemoryChannel(capacity=-5)


# threads


@pytest.mark.rule("flume-channel-14", "flume-channel-20")
def test_many_threads(seed: int) -> None:
    """Random sizes, commits and rollbacks on both sides: everything once, each source's in order, no byte too many."""
    channel: MemoryChannel[tuple[int, int, int]] = MemoryChannel(
        capacity=30, transaction_capacity=8, byte_capacity=5_000, byte_capacity_buffer_percentage=0, keep_alive_s=0.02,
        size_of=lambda item: item[2],
    )  # fmt: skip
    total, sources = 400, 3

    def source(which: int) -> None:
        chance, n = random.Random(seed + which), 0
        waiting: list[tuple[int, int, int]] = []
        while n < total or waiting:
            while n < total and len(waiting) < chance.randint(1, 8):
                waiting.append((which, n, chance.randint(0, 500)))
                n += 1
            transaction = channel.transaction()
            transaction.begin()
            for item in waiting:
                transaction.put(item)
            try:
                transaction.commit()
                waiting = []
            except ChannelFullError:
                waiting = transaction.rollback()
            transaction.close()

    taken: list[tuple[int, int, int]] = []

    def sink() -> None:
        chance = random.Random(seed - 1)
        while len(taken) < total * sources:
            transaction = channel.transaction()
            transaction.begin()
            items = [item for _ in range(chance.randint(1, 8)) if (item := transaction.take()) is not None]
            if chance.random() < 0.3:
                transaction.rollback()
            else:
                transaction.commit()
                taken.extend(items)
            transaction.close()

    calls = [ThreadCall(lambda which=which: source(which)) for which in range(sources)]  # type: ignore[misc]
    calls.append(ThreadCall(sink))
    for call in calls:
        call.result(60)
    for which in range(sources):
        assert [n for source, n, _ in taken if source == which] == list(range(total))
    metrics = channel.metrics()
    assert (metrics.held_events, metrics.held_bytes, metrics.channel_size) == (0, 0, 0)
    assert metrics.event_put_success_count == metrics.event_take_success_count == total * sources
    channel.close()
