"""The buffer of a store in memory: what it holds, when capture waits, and what goes when all have acked it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cdc.base.errors import RetryableError, StoreLimitError
from cdc.binlog.positions import make_seq
from cdc.capture.memory_room import MemoryRoom
from cdc.config import DestinationConfig, load
from cdc.config.memory import full_mark, in_memory
from cdc.meta import Meta, open_meta
from cdc.store.formats.layout import list_segments
from cdc.store.formats.state import Beginning, record_beginning
from cdc.store.reader.reader import StoreReader
from cdc.store.writer.memory_log import MemoryLog
from cdc.testing.binlog import BinlogBuilder
from cdc.testing.stores import Filler

BEGIN = make_seq(0, 1, 4)
STOP = threading.Event()


class MemoryFiller(Filler):
    """Fills a store in memory."""

    def __init__(self, config: DestinationConfig) -> None:
        store = config.store
        self.store: MemoryLog = MemoryLog(
            store.path,
            destination="shop",
            segment_bytes=store.segment_bytes,
            max_transaction_bytes=store.max_transaction_bytes,
        )
        self._segment_bytes = store.segment_bytes
        self._framer = None


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DestinationConfig:
    monkeypatch.setattr("cdc.config.memory.SHARED_MEMORY", tmp_path / "shm")
    (tmp_path / "conf").mkdir()
    file = tmp_path / "conf" / "shop.yaml"
    document = {
        "source": {"url": "mysql://t@127.0.0.1:1", "server_id": 7, "start": "now"},
        "tables": {"include": [r"shop\..*"]},
        "store": {"kind": "memory", "buffer_size": 256, "max_transaction_bytes": 1 << 20},
        "meta": {"kind": "memory"},
        "server": {"canal": {"enabled": True}, "capture": "always"},
    }
    file.write_text(yaml.safe_dump(document))
    return in_memory(load(file))


@pytest.fixture
def filler(config: DestinationConfig) -> Iterator[MemoryFiller]:
    filler = MemoryFiller(config)
    record_beginning(config.store.path, Beginning(BEGIN, "binlog.000001", 4, None, 0, "first start"))
    yield filler
    filler.close()


@pytest.fixture
def meta(config: DestinationConfig) -> Meta:
    return open_meta(config)


def subscribe(meta: Meta, name: str, position: int = BEGIN) -> None:
    with meta.change() as state:
        meta_state = state.subscriptions
        from cdc.meta import Subscription

        meta_state[name] = Subscription(since_seq=position)


def fill(filler: MemoryFiller, log: BinlogBuilder, transactions: int) -> int:
    """Appends transactions of about 16 KiB, and returns the newest seq."""
    for _ in range(transactions):
        log.transaction("shop", "orders", list(range(3200)))
    filler.put(log)
    assert filler.store.last_seq is not None
    return filler.store.last_seq


def test_capture_waits_until_all_have_acked(config: DestinationConfig, filler: MemoryFiller, meta: Meta) -> None:
    room, log = MemoryRoom(config, meta, filler.store), BinlogBuilder()
    mark = full_mark(config.store.run_folder)
    assert room.wait_for_room(STOP)
    half = fill(filler, log, 8)
    assert room.wait_for_room(STOP), f"{filler.store.held_bytes} of {256 << 10}"
    whole = fill(filler, log, 24)
    assert filler.store.held_bytes > 256 << 10
    assert not room.wait_for_room(STOP), "nobody reads"
    assert mark.exists()
    subscribe(meta, "canal-1")
    subscribe(meta, "canal-2")
    assert not room.wait_for_room(STOP)
    meta.update_cursor("canal-1", whole)
    assert not room.wait_for_room(STOP), "one of two"
    assert "have not acked" in str(room.error()) and isinstance(room.error(), RetryableError)
    segments = len(list_segments(config.store.path))
    meta.update_cursor("canal-2", half)
    assert not room.wait_for_room(STOP), "a quarter of it"
    meta.update_cursor("canal-2", whole)
    assert room.wait_for_room(STOP)
    assert not mark.exists()
    assert filler.store.held_bytes == filler.store.held_events == 0
    assert len(list_segments(config.store.path)) < segments


def test_what_one_cannot_get_any_more_holds_nothing(
    config: DestinationConfig, filler: MemoryFiller, meta: Meta
) -> None:
    """A cursor before the store's beginning, of which the source has purged what follows."""
    room = MemoryRoom(config, meta, filler.store)
    subscribe(meta, "canal-1", BEGIN - 1)
    newest = fill(filler, BinlogBuilder(), 40)
    subscribe(meta, "canal-2")
    assert not room.wait_for_room(STOP)
    meta.update_cursor("canal-2", newest)
    assert room.wait_for_room(STOP)


def test_a_log_that_is_opened_again_counts_what_it_has(
    config: DestinationConfig, filler: MemoryFiller, meta: Meta
) -> None:
    room = MemoryRoom(config, meta, filler.store)
    fill(filler, BinlogBuilder(), 40)
    held = filler.store.held_bytes, filler.store.held_events
    assert not room.wait_for_room(STOP)
    filler.close()
    reopened = MemoryFiller(config)
    try:
        room = MemoryRoom(config, meta, reopened.store)
        assert (reopened.store.held_bytes, reopened.store.held_events) == held
        assert not room.wait_for_room(STOP)
    finally:
        reopened.close()


def test_a_transaction_above_the_limit_is_refused_and_the_log_goes_on(
    config: DestinationConfig, filler: MemoryFiller
) -> None:
    log = BinlogBuilder()
    newest = fill(filler, log, 1)
    large = BinlogBuilder()
    large.transaction("shop", "orders", list(range(3200)))
    large.gtid()
    large.query("BEGIN")
    large.table_map("shop", "orders")
    for _ in range(80):
        large.rows("shop", "orders", list(range(3200)))
    large.xid()
    with pytest.raises(StoreLimitError, match=r"more than 1,048,576 bytes.*max_transaction_bytes"):
        filler.put(large)
    filler.store.drop_unfinished()
    filler.store.flush()
    assert StoreReader(config.store.path).last_seq() == newest
    assert fill(filler, log, 1) > newest
