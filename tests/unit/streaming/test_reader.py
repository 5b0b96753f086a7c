"""A reader at a transaction that cannot be decoded, and capture's log without a server."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cdc.base.errors import StoreLimitError, UnsupportedError
from cdc.binlog.entry import ENTRY
from cdc.event_store.memory_meta import MemoryMeta
from cdc.event_store.memory_store import MemoryStore
from cdc.streaming.capture_log import RingLog
from cdc.streaming.cursors import Cursors
from cdc.streaming.decoder import BatchDecoder, DecodedBatch
from cdc.streaming.reader import Reader
from cdc.testing.transactions import make_transactions


class Ended:
    """A capture that has put everything."""

    has_ended = True
    is_stopping = False

    def raise_failure(self) -> None: ...


def make_reader(folder: Path, store: MemoryStore, log: RingLog) -> Reader:
    cursors = Cursors(folder / "cursors", MemoryMeta("stream"), ("default",))
    decoder = BatchDecoder(folder, log.tables, "source", verified=True)
    return Reader("default", store, 1 << 20, cursors, decoder, Ended(), lambda: None)  # type: ignore[arg-type]


def make_log(folder: Path, store: MemoryStore, most_bytes: int = 1 << 20) -> RingLog:
    return RingLog(
        folder,
        "stream",
        {"default": store},
        lambda _: 0,
        most_bytes=most_bytes,
        most_events=100,
        lower_case_table_names=0,
        on_begin=lambda _: None,
    )


def test_what_comes_before_an_undecodable_transaction_is_handed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transactions = make_transactions(9)
    bad = transactions[5].seq

    def decode(batch: DecodedBatch) -> None:
        if bad in batch.seqs:
            raise UnsupportedError("this cannot be decoded")

    monkeypatch.setattr(DecodedBatch, "decode", decode)
    with MemoryStore() as store:
        log = make_log(tmp_path, store)
        log.tables.number("shop.orders")
        store.put(transactions)
        reader = make_reader(tmp_path, store, log)
        for transaction in transactions[:5]:
            got = reader.get(1)
            assert got is not None and got.seq == transaction.seq
            got.ack()
        for _ in range(2):
            with pytest.raises(UnsupportedError):
                reader.get(1)
        assert reader.cursor == transactions[4].seq
        log.close()


def test_the_log_puts_whole_transactions_of_the_bytes_that_came_in_parts(tmp_path: Path) -> None:
    transactions = make_transactions(4)
    source = transactions[0].source
    stream = b"".join(transaction.data for transaction in transactions)
    entries = np.concatenate([transaction.entry for transaction in transactions])
    lengths = entries["length"].astype(np.int64)
    entries["offset"] = np.cumsum(lengths) - lengths
    with MemoryStore() as store:
        log = make_log(tmp_path, store)
        for table in transactions[0].tables:
            log.tables.number(table)
        assert log.begin(source.epoch, source.name, 4, source.format_description, source.server_id) == 0
        middle = int(lengths[0]) + 10
        log.append(memoryview(stream[:middle]), int(lengths[0]))
        log.publish(entries[:1])
        log.append(memoryview(b"rolled back"))
        log.drop_unfinished(middle)
        log.append(memoryview(stream[middle:]), len(stream))
        assert b"".join(log.read_unfinished(int(lengths[0]))) == stream[int(lengths[0]) :]
        log.publish(entries[1:])
        got = store.try_get(1 << 20).transactions
        assert [t.data for t in got] == [t.data for t in transactions]
        assert log.last_seq == transactions[-1].seq and log.published == log.visible == 4
        mark = log.mark
        last = transactions[-1]
        assert mark is not None and (mark.seq, mark.commit_time_us) == (last.seq, last.commit_time_us)
        assert mark.server_id == last.source.server_id
        assert ENTRY.itemsize * 4 == entries.nbytes
        log.close()
        log.close()


def test_the_log_refuses_a_transaction_above_the_limit_before_it_is_whole(tmp_path: Path) -> None:
    (transaction,) = make_transactions(1)
    source = transaction.source
    with MemoryStore() as store:
        log = make_log(tmp_path, store, most_bytes=1000)
        log.begin(source.epoch, source.name, 4, source.format_description, source.server_id)
        log.append(memoryview(bytes(900)))
        with pytest.raises(StoreLimitError, match=r"more than 1,000 bytes"):
            log.append(memoryview(bytes(200)))
        log.drop_unfinished()
        log.append(memoryview(bytes(900)))
        log.close()
