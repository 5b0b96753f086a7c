"""Rules of Canal that no other test shows, among them differences that its users should know."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from cdc.base.errors import BatchOrderError, SourceUnavailableError, UsageError
from cdc.base.patterns import is_list
from cdc.binlog.events import QueryEvent
from cdc.binlog.framer import Decision
from cdc.binlog.positions import BinlogPosition
from cdc.capture.statement_filter import StatementFilter
from cdc.config import SourceConfig, TablesConfig
from cdc.event_store.contract import EventStore
from cdc.event_store.file_store import RelayLogStore
from cdc.event_store.memory_store import MemoryStore
from cdc.source import dump
from cdc.source.dump import DumpStream
from cdc.store.formats.layout import list_segments
from cdc.store.formats.state import TableNumbers
from cdc.store.reader.batch_builder import TableFilter, join_filters
from cdc.store.reader.reader import StoreReader
from cdc.store.writer.durability import PutStatus
from cdc.store.writer.log import RelayLog
from cdc.testing.threads import ThreadCall, took_s
from cdc.testing.transactions import make_transactions
from tests.support.unit_batches import NumberStore, make_config, make_service

# the store


@pytest.mark.rule("canal-ring-15")
def test_a_memsize_get_waits_for_batch_size_units_of_bytes() -> None:
    """``get(batchSize)`` in MEMSIZE waits for ``batchSize × bufferMemUnit`` bytes; the default unit is 1,024."""
    transactions = make_transactions(40, rows=100)
    size = transactions[0].size_bytes
    units = 3
    enough = -(-units * 1024 // size)
    assert 2 <= enough < 39
    store = MemoryStore()
    store.put(transactions[: enough - 1])
    waiting = ThreadCall(lambda: store.get(units))
    assert waiting.waits(), f"{(enough - 1) * size} bytes of {units * 1024} are there"
    store.put(transactions[enough - 1 : enough + 1])
    taken = waiting.result().transactions
    assert sum(t.size_bytes for t in taken) <= units * 1024 < (enough + 1) * size
    assert [t.seq for t in taken] == [t.seq for t in transactions[: len(taken)]]


@pytest.mark.rule("canal-ring-5")
def test_an_itemsize_put_looks_at_what_is_acked_not_at_what_is_got() -> None:
    """``put + n − bufferSize ≤ min(get, ack)``: ack is never above get, so a get alone frees no room."""
    transactions = make_transactions(4, ddl_every=1)  # two events each
    store = MemoryStore(buffer_size=4, batch_mode="itemsize", ddl_isolation=False)
    store.put(transactions[:2])
    store.try_get(4)
    assert (store.put_sequence, store.get_sequence, store.ack_sequence) == (3, 3, -1)
    assert store.try_put(transactions[2:3]) is PutStatus.STORE_FULL
    store.ack(transactions[0].position)
    assert store.try_put(transactions[2:3]) is PutStatus.PUT_OK, "3 + 2 − 4 ≤ 1"
    assert store.try_put(transactions[3:]) is PutStatus.STORE_FULL, "5 + 2 − 4 > 1"


@pytest.mark.rule("canal-server-17")
@pytest.mark.parametrize("kind", ["memory", "file"])
@pytest.mark.parametrize("size", [0, -1, -1000])
def test_a_fetch_size_of_zero_or_less_is_refused(tmp_path: Path, kind: str, size: int) -> None:
    """Canal uses 1,000 instead."""
    store: EventStore = MemoryStore() if kind == "memory" else RelayLogStore.open(tmp_path, destination="shop")
    with store:
        store.put(make_transactions(1))
        calls: list[Callable[[], object]] = [lambda: store.get(size), lambda: store.try_get(size)]
        for call in calls:
            with pytest.raises(UsageError, match=f"batch size of {size} makes no sense"):
                call()


@pytest.mark.rule("canal-server-15")
@pytest.mark.parametrize("kind", ["memory", "file"])
def test_time_outs_none_waits_and_zero_does_not(tmp_path: Path, kind: str) -> None:
    """In Canal's server it is the reverse: a missing time-out returns at once, and 0 waits."""
    store: EventStore = MemoryStore() if kind == "memory" else RelayLogStore.open(tmp_path, destination="shop")
    transactions = make_transactions(3, rows=100)
    with store:
        store.put(transactions[:1])
        assert len(ThreadCall(lambda: store.get(1 << 30, timeout_s=0)).result(5).transactions) == 1
        store.rollback()
        counts: list[int] = []
        assert took_s(lambda: counts.append(len(store.get(1 << 30, timeout_s=0.2).transactions))) >= 0.2
        assert counts == [1]
        store.rollback()
        more_than_one = {"memory": 1, "file": 6}[kind]  # KiB, and events
        waiting = ThreadCall(lambda: store.get(more_than_one))
        assert waiting.waits(0.3), "None is without limit"
        store.put(transactions[1:])
        assert waiting.result().transactions[0].seq == transactions[0].seq


# filters


@pytest.mark.rule("canal-server-12")
@pytest.mark.parametrize("pattern", [r"shop\..*,crm\..*", r"shop\.orders, shop\.items", r"(?:a|b)\.c,d\.[,]"])
def test_expressions_joined_by_commas_are_refused(tmp_path: Path, pattern: str) -> None:
    """Canal separates expressions by commas. As one expression they would silently match nothing, in a subscription and
    in the captured tables."""
    with pytest.raises(UsageError, match=r"has a comma.*its own --filter"):
        TableFilter(pattern)
    with pytest.raises(UsageError, match="has a comma"):
        join_filters([r"shop\..*", pattern])
    service = make_service(make_config(tmp_path), NumberStore(last=1))
    with pytest.raises(UsageError, match="has a comma"):
        service.subscribe("audit", pattern)
    assert service.meta.subscriptions() == {}
    for key in ("include", "exclude"):
        with pytest.raises(ValueError, match="has a comma, which does not separate expressions here"):
            TablesConfig.model_validate({"include": ["x"], key: [pattern]})


@pytest.mark.parametrize(
    ("pattern", "table"),
    [(r"shop\.a{1,3}", "shop.aa"), (r"shop\.a{0,2}", "shop.a"), (r"shop\.[a,b]", "shop.,"), (r"a\,b\.[],]", "a,b.]")],
)
def test_a_comma_may_stand_in_an_expression(pattern: str, table: str) -> None:
    assert not is_list(pattern)
    assert TableFilter(pattern).matches(table)


@pytest.mark.rule("canal-server-12")
@pytest.mark.parametrize("pattern", ["", " "])
def test_an_empty_filter_is_refused(pattern: str) -> None:
    """It would match nothing, but its author means all tables."""
    with pytest.raises(UsageError, match=r"would match no table\. Leave it out"):
        TableFilter(pattern)


# DDL


@pytest.mark.rule("canal-ring-27")
@pytest.mark.parametrize(
    "sql",
    [
        "ALTER TABLE t ADD COLUMN c INT",
        "CREATE TABLE t (id INT)",
        "DROP TABLE t",
        "RENAME TABLE t TO u",
        "TRUNCATE TABLE t",
        "CREATE INDEX i ON t (a)",
        "DROP INDEX i ON t",
    ],
)
def test_every_statement_that_canal_isolates_is_a_ddl_here(tmp_path: Path, sql: str) -> None:
    """Canal's types ALTER, CREATE, ERASE, RENAME, TRUNCATE, CINDEX and DINDEX."""
    statements = StatementFilter(TablesConfig(include=(r"shop\.t",)), TableNumbers(tmp_path))
    query = QueryEvent(db="shop", sql=sql, timestamp=0, thread_id=1, error_code=0)
    decision, ended = statements.statement(query, "here")
    assert replace(decision, altered=frozenset(), named=frozenset()) == Decision(True, ddl=True, table_mask=1)
    assert not ended
    decision, _ = statements.statement(replace(query, db="elsewhere"), "here")
    assert not decision.keep, "of tables that are not captured there is nothing to isolate"


# the source's connection


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Yields the server's end of a dump connection."""
    ours, theirs = socket.socketpair()

    connection = SimpleNamespace(_sock=ours, thread_id=lambda: 7, _force_close=ours.close)
    monkeypatch.setattr(dump, "open_dump", lambda *_: connection)
    with ours, theirs:
        yield theirs


@pytest.mark.rule("canal-server-7")
def test_three_missed_heartbeats_are_a_dead_connection(wire: socket.socket) -> None:
    """Canal's heartbeat thread counts in this way. A heartbeat proves the connection alive as much as an event."""
    source = SourceConfig.model_validate({"url": "mysql://t@127.0.0.1:1", "server_id": 7, "heartbeat_s": 0.2})
    dump = DumpStream(source, BinlogPosition("binlog.000001", 4), "label", poll_s=0.02)
    buffer = memoryview(bytearray(64))
    began = time.monotonic()
    while time.monotonic() - began < 1.0:  # longer than three of them
        wire.sendall(b"beat")
        assert dump.recv_into(buffer) == 4
        assert dump.recv_into(buffer) == 0, "nothing for a moment is no error"

    def until_something_comes() -> None:
        while not dump.recv_into(buffer):
            pass

    def silence() -> None:
        with pytest.raises(
            SourceUnavailableError, match=r"the connection is dead: the server missed 3 heartbeats of 0.2 s"
        ):
            until_something_comes()

    assert 0.5 <= took_s(silence) < 5


# between parser and store


@pytest.mark.rule("canal-server-6")
def test_an_unfinished_transaction_is_on_the_disk_and_not_visible(tmp_path: Path) -> None:
    """Canal's transaction buffer holds events until their transaction ends; if it is full, it passes on a part of one.

    Here events go to the segment as they arrive, whatever their size, and readers wait for the end.
    """
    first, second = make_transactions(2, rows=1000)
    with closing(RelayLog(tmp_path, destination="shop", segment_bytes=1 << 20)) as log:
        log.tables.number("shop.orders")
        offset = log.begin(0, first.source.name, 4, first.source.format_description, 1)
        for transaction in (first, second):
            half = transaction.size_bytes // 2
            entry = transaction.entry.copy()
            entry["offset"] = offset
            log.append(memoryview(transaction.data[:half]))
            log.flush()
            (segment,) = list_segments(tmp_path)
            assert segment.stat().st_size == offset + half
            assert StoreReader(tmp_path).last_seq() == (None if transaction is first else first.seq)
            log.append(memoryview(transaction.data[half:]))
            log.flush()
            assert StoreReader(tmp_path).last_seq() == (None if transaction is first else first.seq)
            log.publish(entry)
            log.flush()
            assert StoreReader(tmp_path).last_seq() == transaction.seq
            offset += transaction.size_bytes


# batches


@pytest.mark.rule("canal-meta-12")
def test_a_later_ack_does_not_ack_the_earlier_ones(tmp_path: Path) -> None:
    service = make_service(make_config(tmp_path), NumberStore(last=9))
    leases = [service.get("o", ahead=True) for _ in range(3)]
    assert leases[2] is not None
    with pytest.raises(BatchOrderError, match="batch 3 cannot be acked: batch 1 is due first"):
        service.ack(leases[2].batch, leases[2].token)
    assert [entry.batch for entry in service.outstanding()] == [1, 2, 3]
    for lease in leases:
        assert lease is not None
        service.ack(lease.batch, lease.token)
    assert service.meta.cursor("apply") == 9


@pytest.mark.rule("canal-server-16")
def test_a_get_acks_nothing_by_itself(tmp_path: Path) -> None:
    """Canal's ``get`` is ``getWithoutAck`` and ``ack`` together; here it is the former alone."""
    config = make_config(tmp_path)
    lease = make_service(config, NumberStore(last=2)).get("o")
    assert lease is not None
    reopened = make_service(config, NumberStore(last=2))
    assert [entry.batch for entry in reopened.outstanding()] == [lease.batch]
    assert reopened.meta.cursor("apply") == 0
    same = reopened.get("o")
    assert same is not None and same.manifest == lease.manifest
