"""Rules of RocketMQ's commit log that no other test shows: names of segments, their ends, and puts across them."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cdc.base.errors import StorageError
from cdc.binlog.entry import ENTRY_SIZE, HEADER_SIZE
from cdc.binlog.file import scan
from cdc.binlog.positions import split_seq
from cdc.disk import files
from cdc.event_store.transaction import Transaction
from cdc.event_store.transaction_log import TransactionLog
from cdc.store.formats.index import read_entries
from cdc.store.formats.layout import index_path, list_segments
from cdc.store.writer.durability import PutStatus
from cdc.testing.binlog import BinlogBuilder
from cdc.testing.threads import ThreadCall, took_s
from cdc.testing.transactions import make_transactions, transactions_of
from tests.support.standby import open_master
from tests.support.unit_standby import FakeStandby
from tests.support.unit_store import all_seqs

LEAST_SEGMENT = 65536


class Disk(files.Files):
    """A disk whose flushes wait for :attr:`go`, except some that may pass; it can refuse new files."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.let_through = 0
        self.flushes = 0
        self.refuse_segments = False

    def fdatasync(self, fd: int) -> None:
        self.flushes += 1
        if self.let_through:
            self.let_through -= 1
        else:
            self.go.wait()
        super().fdatasync(fd)

    def open(self, path: Path, flags: int) -> int:
        if self.refuse_segments and flags & os.O_CREAT and path.suffix == ".binlog":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().open(path, flags)


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk()
    with files.use(disk):
        yield disk


def open_log(path: Path) -> TransactionLog:
    return TransactionLog(path, destination="shop", segment_bytes=LEAST_SEGMENT)


def seqs(transactions: list[Transaction]) -> list[int]:
    return [transaction.seq for transaction in transactions]


@pytest.mark.rule("rocketmq-log-2")
def test_a_segments_name_is_where_it_begins(tmp_path: Path) -> None:
    """RocketMQ names a file by its first offset in the whole log, Towpath by its position in the source's binlog.

    The name has epoch, file number and offset. So names sort in the order of the log, and the seq of a transaction is
    enough to find its segment.
    """
    transactions = make_transactions(300, rows=200)
    log = open_log(tmp_path)
    for n in range(0, 300, 10):
        log.put(transactions[n : n + 10])
    log.close()
    segments = list_segments(tmp_path)
    assert len(segments) > 3
    transaction_by_seq = {t.seq: t for t in transactions}
    for segment in segments:
        epoch, number, offset = (int(part) for part in segment.name.removesuffix(".binlog").split("-"))
        first = transaction_by_seq[int(read_entries(segment)["seq"][0])]
        assert (epoch, number) == (split_seq(first.seq).epoch, split_seq(first.seq).file_number)
        assert offset == split_seq(first.seq).offset - first.size_bytes


@pytest.mark.rule("rocketmq-log-4", "rocketmq-log-5", "rocketmq-log-21")
def test_no_filler_at_the_end_and_no_transaction_across_two_segments(tmp_path: Path) -> None:
    """RocketMQ pads the end of a file if the next message does not fit.

    Here the transaction that reaches the size is the last one of the segment, whole, whatever its size. So none is too
    large to be put.
    """
    small, large = make_transactions(6), make_transactions(8, rows=50_000)[6:]
    assert large[0].size_bytes > 3 * LEAST_SEGMENT
    log = open_log(tmp_path)
    for transactions in (small[:3], small[3:], large[:1], large[1:]):
        assert log.put(transactions) is PutStatus.PUT_OK
    log.close()
    first, second = list_segments(tmp_path)
    assert [int(s) for s in read_entries(first)["seq"]] == seqs([*small, large[0]])
    assert [int(s) for s in read_entries(second)["seq"]] == seqs([large[1]])
    for segment in (first, second):
        scanned, entries = scan(segment), read_entries(segment)
        assert scanned.damage is None
        assert int(entries["offset"][-1] + entries["length"][-1]) == scanned.size, "it ends where its last one ends"


@pytest.mark.rule("rocketmq-log-10")
def test_puts_that_wait_across_segments_are_done_by_one_flush_of_each(tmp_path: Path, disk: Disk) -> None:
    """RocketMQ's group commit tries twice, because a message may be in the next file.

    Here one flush covers all files of the waiting puts, so that none has to wait again.
    """
    transactions = make_transactions(200, rows=200)
    log = open_log(tmp_path)
    disk.flushes = 0
    disk.go.clear()
    futures = [log.put_async([transaction], timeout_s=60) for transaction in transactions]
    assert not any(future.done() for future in futures)
    assert all_seqs(tmp_path) == []
    disk.go.set()
    assert {future.result(30) for future in futures} == {PutStatus.PUT_OK}
    segments = list_segments(tmp_path)
    assert len(segments) > 2
    assert all_seqs(tmp_path) == seqs(transactions)
    # One flush may have begun with the first put; a finished segment's index is flushed, too.
    assert disk.flushes <= 1 + 2 * len(segments)
    log.close()


@pytest.mark.rule("rocketmq-log-7")
def test_nothing_of_a_list_is_visible_before_its_last_segment_is_flushed(tmp_path: Path, disk: Disk) -> None:
    """Messages of one put may be in two files: a flush of the first file alone makes none of them visible."""
    log = BinlogBuilder()
    log.transaction("shop", "orders", [1])
    made = [*make_transactions(2), *transactions_of(log, file="binlog.000002")]
    relay = open_log(tmp_path)
    disk.flushes, disk.let_through = 0, 1
    disk.go.clear()
    call = ThreadCall(lambda: relay.put(made))
    assert call.waits(0.3)
    assert disk.flushes == 2, "the first segment is flushed, the second one is at it"
    assert all_seqs(tmp_path) == []
    disk.go.set()
    assert call.result() is PutStatus.PUT_OK
    assert all_seqs(tmp_path) == seqs(made)
    relay.close()


# standbys


@pytest.mark.rule("rocketmq-log-28")
@pytest.mark.parametrize(
    ("max_behind_bytes", "answer"),
    [(20_000, PutStatus.SLAVE_NOT_AVAILABLE), (1 << 28, PutStatus.FLUSH_SLAVE_TIMEOUT)],
)
def test_a_live_standby_is_waited_for_only_if_it_is_near(
    tmp_path: Path, max_behind_bytes: int, answer: PutStatus
) -> None:
    """The standby answers all the time, but has nothing.

    If it is further behind than RocketMQ's haSlaveFallbehindMax, the put ends at once; else it waits for its time-out.
    """
    transactions = make_transactions(301)
    with ExitStack() as stack:
        log = open_log(tmp_path)
        stack.callback(log.close)
        log.put(transactions[:300])
        master = open_master(log, timeout_s=2.0, max_behind_bytes=max_behind_bytes)
        stack.callback(master.close)
        fake, stop = FakeStandby(stack, master), threading.Event()

        def report() -> None:
            while not stop.wait(0.05):
                fake.report(seq=0)

        reporting = ThreadCall(report)
        stack.callback(reporting.result)
        stack.callback(stop.set)
        deadline = time.monotonic() + 10
        while not any(standby.connected and standby.behind_bytes > 20_000 for standby in master.standbys()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        statuses: list[PutStatus] = []
        spent_s = took_s(lambda: statuses.append(log.put(transactions[300:], timeout_s=30)))
        assert statuses == [answer]
        assert (spent_s >= 2.0) is (answer is PutStatus.FLUSH_SLAVE_TIMEOUT)
        assert master.standbys()[0].connected, "it is not for want of a standby"


@pytest.mark.rule("rocketmq-log-19")
def test_the_statuses_of_a_put() -> None:
    """They are RocketMQ's, and one for a full store. Permanent failures are errors instead."""
    assert {status.name for status in PutStatus} == {
        "PUT_OK",
        "FLUSH_DISK_TIMEOUT",
        "FLUSH_SLAVE_TIMEOUT",
        "SLAVE_NOT_AVAILABLE",
        "STORE_FULL",
    }
    assert [status for status in PutStatus if not status.stored] == [PutStatus.STORE_FULL]


@pytest.mark.rule("rocketmq-log-20")
def test_a_segment_that_cannot_be_made_is_an_error(tmp_path: Path, disk: Disk) -> None:
    """RocketMQ's CREATE_MAPPED_FILE_FAILED. Acknowledged transactions are kept, and the next opening continues."""
    transactions = make_transactions(300, rows=200)
    log = open_log(tmp_path)
    assert log.put(transactions[:10]) is PutStatus.PUT_OK
    disk.refuse_segments = True
    with pytest.raises(StorageError, match="Too many open files"):
        log.put(transactions)
    with pytest.raises(StorageError, match="Too many open files"):
        log.put(transactions)
    log.close()
    disk.refuse_segments = False
    log = open_log(tmp_path)
    assert all_seqs(tmp_path)[:10] == seqs(transactions[:10])
    assert log.put(transactions) is PutStatus.PUT_OK
    log.close()
    assert all_seqs(tmp_path) == seqs(transactions)


@pytest.mark.rule("rocketmq-log-34")
def test_a_damaged_tail_is_cut_off_and_kept_beside(tmp_path: Path) -> None:
    """RocketMQ truncates behind the last good record. Here the truncated bytes are kept for examination, except those of
    an unfinished transaction, which the source still has."""
    transactions = make_transactions(5)
    log = open_log(tmp_path / "live")
    log.put(transactions)
    shutil.copytree(tmp_path / "live", tmp_path / "crashed")
    log.close()
    (segment,) = list_segments(tmp_path / "crashed")
    starts = [int(offset) for offset in read_entries(segment)["offset"]]
    data = bytearray(segment.read_bytes())
    data[starts[3] + 30] ^= 1
    segment.write_bytes(data)
    os.truncate(index_path(segment), HEADER_SIZE + 2 * ENTRY_SIZE)  # it lags: the last three were not acknowledged
    open_log(tmp_path / "crashed").close()
    assert all_seqs(tmp_path / "crashed") == seqs(transactions[:3])
    assert segment.read_bytes() == bytes(data[: starts[3]])
    (kept,) = segment.parent.glob("*.cut")
    assert kept.name == f"{segment.name}.{starts[3]}.cut"
    assert kept.read_bytes() == bytes(data[starts[3] :])
