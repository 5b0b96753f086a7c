"""Faults of a source against the whole of capture. Each case ends with every transaction stored once, or with an error
that names the position."""

from __future__ import annotations

import os
import random
import threading
from contextlib import closing

import pytest

from cdc.base.errors import (
    CdcError,
    CorruptStreamError,
    DamagedError,
    IdentityError,
    SourceRefusedError,
    StorageError,
    UsageError,
)
from cdc.binlog.constants import EventType
from cdc.binlog.positions import make_seq
from cdc.capture import Capture, reconnect
from cdc.config import DestinationConfig
from cdc.store.formats.index import IndexFile
from cdc.store.formats.layout import list_segments
from cdc.store.writer.log import RelayLog
from cdc.store.writer.segment import SegmentWriter
from cdc.testing.source import BitFlip, Cut, ErrorPacket, FakeSource, Fault, History, Omit, Stall, sample_history
from cdc.testing.source.check import find_problems
from cdc.testing.source.harness import SessionHarness
from cdc.testing.source.history import EXCLUDED, random_history
from tests.slow.capture.support import Configure

GIB = 1 << 30
SEEDS = int(os.environ.get("TOWPATH_SOURCE_SEEDS", "3"))


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconnect, "_FIRST_PAUSE_S", 0.01)


def dumped(history: History, count: int) -> int:
    """Returns the size in bytes of the first ``count`` packets of a dump from the beginning."""
    return sum(len(event) + 5 for event in history.dump(history.files[0].name, 4)[:count])


def sizes(config: DestinationConfig) -> int:
    return sum(segment.stat().st_size for segment in list_segments(config.store.path))


# --- a transaction that breaks off


@pytest.fixture
def torn() -> tuple[History, list[Fault]]:
    """A history with a large transaction, and faults in the one after it. One read then contains the end of the whole
    transaction and the part of the one that breaks off."""
    history = History()
    history.transaction([("orders", [1])])
    history.transaction([("lines", range(100_000))] * 4)
    history.transaction([("orders", [2])])
    events = history.dump(history.files[0].name, 4)
    last = len(events) - 3
    at = dumped(history, last) + 40
    return history, [BitFlip(at), ErrorPacket(last, 1927, "Connection was killed"), Cut(at)]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_torn_transaction_is_cut_off(configure: Configure, torn: tuple[History, list[Fault]], number: int) -> None:
    history, faults = torn
    with FakeSource(history) as source:
        harness = SessionHarness(configure(source), source)
        config = configure(source)
        with closing(harness):
            # Reads of this size end inside the large transaction.
            error = harness.connect(history, faults[number], piece=700_000)
            assert error is not None
            assert find_problems(config.store.path, history, whole=False, before=history.transactions[1].seq) == []
            assert harness.connect(history) is None
        assert find_problems(config.store.path, history) == []


def test_nothing_is_appended_after_an_incomplete_transaction(configure: Configure) -> None:
    """The relay log itself discards an incomplete transaction."""
    history = sample_history()
    with FakeSource(history) as source:
        config = configure(source)
        harness = SessionHarness(config, source)
        assert harness.connect(history) is None
        log = harness.log
        size = sizes(config)
        description = history.files[-1].events[0][1]
        for _ in range(3):
            end = log.begin(0, history.files[-1].name, history.end.pos, description, 1)
            log.append(memoryview(b"half a transaction"))
        assert log.begin(0, history.files[-1].name, history.end.pos, description, 1) == end
        assert sizes(config) == size
        harness.close()
    assert find_problems(config.store.path, history) == []


@pytest.mark.parametrize("file", [0, 1])
def test_a_format_description_that_is_missing_ends_the_connection(configure: Configure, file: int) -> None:
    history = History()
    for n in range(2):
        history.transaction([("orders", [n])])
        history.rotate()
    history.transaction([("orders", [2])])
    events = history.dump(history.files[0].name, 4)
    described = [number for number, event in enumerate(events) if event[4] == EventType.FORMAT_DESCRIPTION]
    with FakeSource(history) as source:
        config = configure(source)
        harness = SessionHarness(config, source)
        with closing(harness):
            error = harness.connect(history, Omit(described[file]))
            assert isinstance(error, CorruptStreamError)
            assert "format description" in error.message
            assert find_problems(config.store.path, history, whole=False) == []
            assert harness.connect(history) is None
        assert find_problems(config.store.path, history) == []


# --- positions beyond 32 bits


def far_history(*, following: bool) -> History:
    """Returns a history with transactions on both sides of 4 GiB in one file."""
    history = History()
    for n in range(4):
        history.transaction([("orders", [n])])
        history.skip_bytes(GIB + GIB // 4)
    for n in range(4):
        history.transaction([("lines", [n])])
        history.transaction([(EXCLUDED, [n])])
    if following:
        history.rotate()
        history.transaction([("orders", [9])])
    return history


@pytest.mark.parametrize("following", [False, True])
def test_every_transaction_beyond_four_gibibytes_is_stored_once(configure: Configure, following: bool) -> None:
    history = far_history(following=following)
    assert history.transactions[3].end < 4 * GIB < history.transactions[4].start
    stream = dumped(history, len(history.dump(history.files[0].name, 4)))
    with FakeSource(history) as source:
        config = configure(source)
        harness = SessionHarness(config, source)
        for at in range(stream // 2, stream, 97):
            harness.connect(history, Cut(at))  # begins at the file's start if the store ends beyond 4 GiB
            harness.reopen()
        assert harness.connect(history) is None
        for _ in range(2):
            assert harness.connect(history) is None
        harness.close()
    assert find_problems(config.store.path, history) == []
    assert max(t.end for t in history.transactions) > 4 * GIB


def test_a_position_beyond_four_gibibytes_inside_a_transaction_is_another_history(configure: Configure) -> None:
    history = far_history(following=False)
    with FakeSource(history) as source:
        config = configure(source)
        harness = SessionHarness(config, source)
        assert harness.connect(history) is None
        changed = History()
        for n in range(4):
            changed.transaction([("orders", [n])])
            changed.skip_bytes(GIB + GIB // 4)
        changed.transaction([("lines", range(5000))])
        error = harness.connect(changed)
        assert isinstance(error, IdentityError)
        assert "binlog.000001" in str(error) and "reset" in str(error)
        harness.close()
    assert find_problems(config.store.path, history) == []


def test_a_segment_with_transactions_is_never_overwritten(configure: Configure) -> None:
    history = sample_history()
    with FakeSource(history) as source:
        config = configure(source)
        Capture(config).run(until_current=True)
    for segment in list_segments(config.store.path):
        with pytest.raises(StorageError, match="holds transactions"):
            SegmentWriter.create(segment, b"head", "binlog.000001")
    assert find_problems(config.store.path, history) == []


def test_stored_transactions_are_not_published_again(configure: Configure) -> None:
    history = sample_history()
    with FakeSource(history) as source:
        config = configure(source)
        Capture(config).run(until_current=True)
    log = RelayLog(config.store.path, destination=config.name, segment_bytes=1 << 28)
    with closing(log):
        entries = IndexFile(list_segments(config.store.path)[0]).entries.copy()
        with pytest.raises(UsageError, match="does not follow the newest one"):
            log.publish(entries)
    assert find_problems(config.store.path, history) == []


# --- a permanently damaged event


@pytest.mark.parametrize("until_current", [True, False])
def test_a_permanently_damaged_event_ends_capture_with_its_position(configure: Configure, until_current: bool) -> None:
    history = sample_history()
    damaged = history.transactions[-2]
    file, event = history.files[-1], damaged.events[3][0]
    number = next(n for n, (_, data) in enumerate(file.events) if data is event)
    start = file.events[number][0]
    file.events[number] = (start, event[:30] + bytes([event[30] ^ 1]) + event[31:])
    with FakeSource(history) as source:
        config = configure(source, max_failures=4)
        with pytest.raises(DamagedError) as caught:
            Capture(config).run(until_current=until_current)
        assert f"binlog.000002, position {start}" in str(caught.value)
        assert "checksum" in str(caught.value)
        assert len(source.dumps) == 1 + 4  # the first one stored something
        assert find_problems(config.store.path, history, whole=False, before=history.transactions[-3].seq) == []
        size = sizes(config)
        file.events[number] = (start, event)  # the file was repaired
        Capture(config).run(until_current=True)
    assert find_problems(config.store.path, history) == []
    assert size < sizes(config)


def test_a_server_that_always_stops_at_one_event_ends_capture(configure: Configure) -> None:
    history = sample_history()
    with FakeSource(history) as source:
        config = configure(source, max_failures=3)
        source.default_fault = ErrorPacket(3, 1105, "Unknown error")
        with pytest.raises(SourceRefusedError, match=r"position \d+: .*Unknown error") as caught:
            Capture(config).run()
        assert "3 connections in a row" in str(caught.value)
        assert find_problems(config.store.path, history, whole=False) == []


def test_connections_that_make_progress_are_not_limited(configure: Configure) -> None:
    history = History()
    for n in range(30):
        history.transaction([("orders", [n])])
    with FakeSource(history) as source:
        config = configure(source, max_failures=2)
        source.default_fault = Cut(1500)
        Capture(config).run(until_current=True)
        assert len(source.dumps) > 5
    assert find_problems(config.store.path, history) == []


def test_an_idle_connection_that_is_cut_is_no_damage(configure: Configure) -> None:
    history = sample_history()
    with FakeSource(history) as source:
        config = configure(source, max_failures=2)
        source.default_fault = Cut(1 << 30)
        stop = threading.Event()
        Capture(config, lambda _: stop.set() if len(source.dumps) > 4 else None).run(stop)
    assert find_problems(config.store.path, history) == []


def test_a_short_stall_is_waited_for(configure: Configure) -> None:
    history = sample_history()
    with FakeSource(history) as source:
        config = configure(source, heartbeat_s=2)
        source.next_faults = [Stall(dumped(history, 5), 0.3)]
        Capture(config).run(until_current=True)
        assert len(source.dumps) == 1
    assert find_problems(config.store.path, history) == []


def test_a_purged_file_is_named(configure: Configure) -> None:
    history = sample_history()
    with FakeSource(history) as source:
        config = configure(source)
        source.next_faults = [Cut(dumped(history, 6))]
        source.purged = set()
        harness = SessionHarness(config, source)
        harness.connect(history, Cut(dumped(history, 7)))
        harness.close()
        source.purged = {history.files[0].name}
        with pytest.raises(CdcError, match=r"binlog\.000001"):
            Capture(config).run(until_current=True)
    assert find_problems(config.store.path, history, whole=False) == []


# --- events that must be in memory as a whole


@pytest.mark.parametrize("table", ["orders", EXCLUDED])
@pytest.mark.parametrize("size", [(1 << 20) + 1, 3 << 20, (1 << 24) - 200, 33 << 20])
def test_a_table_map_larger_than_the_buffers(configure: Configure, table: str, size: int) -> None:
    history = History()
    history.transaction([("lines", [1])])
    history.large_table_map(table, size)
    history.transaction([("lines", [2])])
    with FakeSource(history) as source:
        config = configure(source)
        Capture(config).run(until_current=True)
        assert len(source.dumps) == 1
    assert find_problems(config.store.path, history) == []


def test_a_table_map_of_exactly_one_packet(configure: Configure) -> None:
    history = History()
    history.large_table_map("orders", 1000)
    event = next(data for data, name in history.transactions[0].events if name == "orders")
    exact = History()
    exact.large_table_map("orders", 1000 + 0xFFFFFF - 1 - len(event))
    exact.transaction([("orders", [2])])
    assert len(next(data for data, name in exact.transactions[0].events if name == "orders")) == 0xFFFFFE
    with FakeSource(exact) as source:
        config = configure(source)
        Capture(config).run(until_current=True)
    assert find_problems(config.store.path, exact) == []


# --- random faults


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_faults(configure: Configure, seed: int) -> None:
    rng = random.Random(seed)
    history = random_history(seed, transactions=80)
    size = dumped(history, len(history.dump(history.files[0].name, 4)))
    with FakeSource(history) as source:
        config = configure(source, max_failures=1000)
        harness = SessionHarness(config, source)
        for _ in range(25):
            at = rng.randrange(size)
            faults: list[Fault] = [
                Cut(at),
                BitFlip(at, rng.randrange(8)),
                ErrorPacket(rng.randrange(200), 1927, "killed"),
            ]
            fault = rng.choice(faults)
            harness.connect(history, fault, piece=rng.choice((1 << 20, 5000, 300)))
            assert find_problems(config.store.path, history, whole=False) == [], f"seed {seed}, {fault}"
            if rng.random() < 0.3:
                harness.reopen()
        assert harness.connect(history) is None
        harness.close()
    assert find_problems(config.store.path, history) == []
    assert make_seq(0, 1, 4) < max(history.expected())
