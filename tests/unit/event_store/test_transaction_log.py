"""The transaction log: group commit, statuses, order, the two flush policies, standbys, and failures."""

from __future__ import annotations

import errno
import inspect
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cdc.base.errors import ConfigError, LeaseHeldError, StorageError, StoreClosedError, UsageError
from cdc.binlog.file import scan
from cdc.config import StoreConfig
from cdc.copies.standby.settings import MasterSettings
from cdc.disk import files
from cdc.event_store.file_store import RelayLogStore
from cdc.event_store.transaction import Transaction
from cdc.event_store.transaction_log import TransactionLog
from cdc.store.formats.index import IndexFile
from cdc.store.formats.layout import list_segments
from cdc.store.reader.batch_builder import Limits
from cdc.store.reader.reader import StoreReader
from cdc.store.writer.durability import FlushPolicy, PutStatus
from cdc.testing.binlog import BinlogBuilder
from cdc.testing.stores import Filler
from cdc.testing.threads import ThreadCall
from cdc.testing.transactions import make_transactions, transactions_of
from tests.support.unit_store import all_seqs

OK = PutStatus.PUT_OK


class Disk(files.Files):
    """A disk whose flushes can be slow, stop, or fail."""

    def __init__(self) -> None:
        self.flushes = 0
        self.sleep_s = 0.0
        self.fails = False
        self.go = threading.Event()
        self.go.set()

    def fdatasync(self, fd: int) -> None:
        self.flushes += 1
        self.go.wait()
        time.sleep(self.sleep_s)
        if self.fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().fdatasync(fd)


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk()
    with files.use(disk):
        yield disk


def open_log(path: Path, **options: Any) -> TransactionLog:
    return TransactionLog(path, destination="shop", **{"segment_bytes": 1 << 30, **options})


def seqs(transactions: Sequence[Transaction]) -> list[int]:
    return [transaction.seq for transaction in transactions]


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.001)


# --- stored transactions


def test_what_is_put_is_what_capture_would_have_stored(tmp_path: Path) -> None:
    log = BinlogBuilder()
    for n in range(5):
        log.transaction("shop", "orders", [n])
    with_stream = Filler(tmp_path / "stream")
    with_stream.put(log)
    with_stream.close()
    with_put = open_log(tmp_path / "put")
    assert with_put.put(transactions_of(log)) is OK
    with_put.close()
    (a,), (b,) = list_segments(tmp_path / "stream"), list_segments(tmp_path / "put")
    first, second = np.array(IndexFile(a).entries), np.array(IndexFile(b).entries)
    for entries, segment in ((first, a), (second, b)):
        assert segment.read_bytes()[int(entries["offset"][0]) :] == b"".join(log.events[1:])
        entries["store_time_us"] = entries["crc"] = 0
    assert first.tobytes() == second.tobytes()


@pytest.mark.rule("rocketmq-log-5")
def test_a_segment_of_puts_is_a_binlog_file(tmp_path: Path) -> None:
    transactions = make_transactions(300, rows=200)
    log = open_log(tmp_path, segment_bytes=65536)
    log.put(transactions[:150])
    for transaction in transactions[150:]:
        log.put([transaction])
    log.close()
    segments = list_segments(tmp_path)
    assert len(segments) > 3
    for segment in segments:
        scanned = scan(segment)
        assert scanned.damage is None and scanned.end == scanned.size < 65536 + 2000
    assert all_seqs(tmp_path) == seqs(transactions)
    picked = StoreReader(tmp_path).select(0, Limits())
    assert picked is not None and picked.transactions == 300 and picked.tables == ("shop.orders",)


@pytest.mark.parametrize("tables", [("shop.orders",), ("shop.orders", "shop.items", "shop.stock")])
def test_many_at_once_are_stored_as_one_by_one(tmp_path: Path, tables: tuple[str, ...]) -> None:
    """A record batch gives the same entries as single records; also if some are stored already, and over several
    segments."""
    transactions = make_transactions(900, rows=100, tables=tables, ddl_every=40)
    singly, at_once = open_log(tmp_path / "a", segment_bytes=65536), open_log(tmp_path / "b", segment_bytes=65536)
    for transaction in transactions:
        singly.put([transaction])
    told: list[int] = []
    at_once.on_put = lambda new: told.extend(seqs(new))
    for start, stop in ((0, 1), (1, 300), (200, 400), (350, 350), (0, 401), (401, 900)):
        assert at_once.put(transactions[start:stop]) is OK
    assert told == seqs(transactions) and at_once.published == singly.published == 900
    assert at_once.written == singly.written and at_once.metrics().put_bytes == singly.metrics().put_bytes
    singly.close()
    at_once.close()
    first_segments, second_segments = list_segments(tmp_path / "a"), list_segments(tmp_path / "b")
    assert [s.name for s in first_segments] == [s.name for s in second_segments] and len(first_segments) > 3
    for a, b in zip(first_segments, second_segments, strict=True):
        assert a.read_bytes() == b.read_bytes()
        left, right = (
            IndexFile(a).verified(0, len(IndexFile(a).entries)),
            IndexFile(b).verified(0, len(IndexFile(b).entries)),
        )
        for entries in (left, right):
            entries["store_time_us"] = entries["crc"] = 0
        assert left.tobytes() == right.tobytes()


def test_a_list_over_two_source_files(tmp_path: Path) -> None:
    first = make_transactions(3)
    log = BinlogBuilder()
    for n in range(2):
        log.transaction("shop", "items", [n])
    second = transactions_of(log, file="binlog.000002", tables=("shop.items",))
    relay = open_log(tmp_path)
    assert relay.put([*first, *second]) is OK
    relay.close()
    assert [segment.name[:11] for segment in list_segments(tmp_path)] == ["000-0000001", "000-0000002"]
    assert all_seqs(tmp_path) == seqs([*first, *second])
    picked = StoreReader(tmp_path).select(first[-1].seq, Limits())
    assert picked is not None and picked.tables == ("shop.items",), "the store has numbers of its own for tables"


@pytest.mark.rule("rocketmq-log-7")
def test_nothing_of_a_list_is_visible_before_all_of_it_is_durable(tmp_path: Path, disk: Disk) -> None:
    log = BinlogBuilder()
    log.transaction("shop", "orders", [1])
    made = [*make_transactions(2), *transactions_of(log, file="binlog.000002")]
    relay = open_log(tmp_path)
    disk.go.clear()
    call = ThreadCall(lambda: relay.put(made))
    assert call.waits()
    assert all_seqs(tmp_path) == []
    disk.go.set()
    assert call.result() is OK
    assert all_seqs(tmp_path) == seqs(made)
    relay.close()


def test_reopening_goes_on_in_the_same_segment(tmp_path: Path) -> None:
    transactions = make_transactions(6)
    for n in range(0, 6, 2):
        log = open_log(tmp_path)
        assert log.last_seq == (transactions[n - 1].seq if n else None)
        assert log.put(transactions[: n + 2]) is OK, "stored transactions are ignored"
        log.close()
    assert len(list_segments(tmp_path)) == 1
    assert all_seqs(tmp_path) == seqs(transactions)


def test_a_gap_of_4_gib_begins_a_new_segment(tmp_path: Path) -> None:
    near, far = make_transactions(2)
    entry = far.entry.copy()
    entry["seq"] += 1 << 32
    far = Transaction(entry, far.data, far.source, far.tables)
    log = open_log(tmp_path)
    log.put([near])
    log.put([far])
    log.close()
    assert len(list_segments(tmp_path)) == 2
    last = list_segments(tmp_path)[-1]
    assert scan(last).rows[0, 0] == far.seq, "a scan gives it the same seq"


@pytest.mark.rule("rocketmq-log-21")
@pytest.mark.parametrize("what", ["length", "file", "tables", "bytes"])
@pytest.mark.parametrize("before", [0, 30])
def test_what_is_no_transaction_is_refused_whole(tmp_path: Path, what: str, before: int) -> None:
    *more, good, other = make_transactions(before + 2)
    entry, data, source, tables = other.entry.copy(), other.data, other.source, other.tables
    if what == "length":
        data += b"!"
    elif what == "file":
        entry["seq"] += 1 << 34
    elif what == "tables":
        tables = ()
    else:
        data, entry["length"] = b"", 0
    log = open_log(tmp_path)
    with pytest.raises(UsageError, match=f"seq {int(entry['seq'][0])}"):
        log.put([*more, good, Transaction(entry, data, source, tables)])
    assert log.put([good]) is OK, "nothing of the list was put, and the log goes on"
    log.close()
    assert all_seqs(tmp_path) == [good.seq]


def test_capture_and_put_exclude_each_other_while_the_store_is_open(tmp_path: Path) -> None:
    """A put could fall into an unfinished transaction of capture's stream."""
    filler = Filler(tmp_path / "a")
    log = BinlogBuilder()
    log.transaction("shop", "orders", [1])
    filler.put(log)
    with pytest.raises(LeaseHeldError, match="writes this store"):
        open_log(tmp_path / "a")
    assert not hasattr(filler.store, "put")
    log.transaction("shop", "orders", [2])
    filler.close()
    puts = open_log(tmp_path / "b")
    puts.put(make_transactions(1))
    with pytest.raises(LeaseHeldError, match="writes this store"):
        Filler(tmp_path / "b")
    assert not hasattr(puts, "begin")
    puts.close()


# --- group commit


@pytest.mark.rule("rocketmq-log-8")
@pytest.mark.parametrize("lead", [True, False])
def test_many_putters_share_flushes(tmp_path: Path, disk: Disk, lead: bool) -> None:
    transactions = make_transactions(640)
    disk.sleep_s = 0.002
    log = open_log(tmp_path, lead_puts=lead)
    disk.flushes = 0
    lock, left = threading.Lock(), iter(transactions)
    statuses: list[PutStatus] = []

    def put() -> None:
        # What is put later has the higher seq: taking and appending have to be one step.
        while True:
            with lock:
                transaction = next(left, None)
                if transaction is None:
                    return
                future = log.put_async([transaction])
            statuses.append(future.result())

    calls = [ThreadCall(put) for _ in range(32)]
    for call in calls:
        call.result()
    assert statuses == [OK] * 640
    assert log.metrics().flushes.count == disk.flushes <= 640 // 8
    assert all_seqs(tmp_path) == seqs(transactions)
    log.close()


@pytest.mark.rule("rocketmq-log-8")
@pytest.mark.parametrize("lead", [True, False])
def test_puts_of_many_threads_that_wait(tmp_path: Path, disk: Disk, lead: bool) -> None:
    """Each thread puts the whole history. A put of ignored transactions still waits until they are durable."""
    transactions = make_transactions(200)
    disk.sleep_s = 0.002
    log = open_log(tmp_path, lead_puts=lead)

    def put(step: int) -> None:
        for n in range(0, len(transactions), step):
            assert log.put(transactions[n : n + step]) is OK
            assert log.flushed.seq >= transactions[min(n + step, len(transactions)) - 1].seq

    for call in [ThreadCall(lambda step=1 + n % 3: put(step)) for n in range(16)]:  # type: ignore[misc]
        call.result()
    log.close()
    assert all_seqs(tmp_path) == seqs(transactions)


@pytest.mark.rule("rocketmq-log-9")
def test_a_single_putter_flushes_on_its_own_thread(tmp_path: Path, disk: Disk, monkeypatch: Any) -> None:
    threads = set()
    before = disk.fdatasync

    def fdatasync(fd: int) -> None:
        threads.add(threading.current_thread().name)
        before(fd)

    log = open_log(tmp_path)
    monkeypatch.setattr(disk, "fdatasync", fdatasync)
    for transaction in make_transactions(5):
        log.put([transaction])
    assert threads == {threading.current_thread().name}
    log.close()


# --- statuses


@pytest.mark.rule("rocketmq-log-11")
def test_a_put_that_waits_too_long_is_told_and_stored_all_the_same(tmp_path: Path, disk: Disk) -> None:
    transactions = make_transactions(3)
    log = open_log(tmp_path)
    disk.go.clear()
    began = time.monotonic()
    assert log.put(transactions[:1], timeout_s=0.05) is PutStatus.FLUSH_DISK_TIMEOUT
    assert log.put(transactions[1:2], timeout_s=0.05) is PutStatus.FLUSH_DISK_TIMEOUT
    assert log.put(transactions[:2], timeout_s=0.05) is PutStatus.FLUSH_DISK_TIMEOUT, "ignored, and not durable yet"
    assert 0.15 <= time.monotonic() - began < 30
    assert all_seqs(tmp_path) == []
    disk.go.set()
    assert log.put(transactions) is OK
    assert log.metrics().put_timeouts == 3
    log.close()
    assert all_seqs(tmp_path) == seqs(transactions)


@pytest.mark.rule("rocketmq-log-9")
def test_a_leader_that_gives_up_is_replaced(tmp_path: Path, disk: Disk) -> None:
    transactions = make_transactions(4)
    log = open_log(tmp_path)
    disk.go.clear()
    calls = [ThreadCall(lambda: log.put(transactions[:1], timeout_s=30))]
    wait_until(lambda: disk.flushes > 0)
    for n, timeout_s in ((2, 0.05), (3, 30.0), (4, 0.05)):
        calls.append(ThreadCall(lambda n=n, timeout_s=timeout_s: log.put(transactions[:n], timeout_s=timeout_s)))  # type: ignore[misc]
        wait_until(lambda n=n: log.last_seq == transactions[n - 1].seq)  # type: ignore[misc]
    assert [calls[1].result(), calls[3].result()] == [PutStatus.FLUSH_DISK_TIMEOUT] * 2
    disk.go.set()
    assert [calls[0].result(), calls[2].result()] == [OK] * 2
    log.flush()
    assert all_seqs(tmp_path) == seqs(transactions)
    log.close()


@pytest.mark.rule("rocketmq-log-11")
def test_a_put_that_leads_says_when_it_was_late(tmp_path: Path, disk: Disk) -> None:
    log = open_log(tmp_path, policy=FlushPolicy(slow_flush_s=0.1, slow_put_s=0.1))
    transactions = make_transactions(2)
    disk.sleep_s = 1.2
    assert log.put(transactions[:1], timeout_s=1.0) is PutStatus.FLUSH_DISK_TIMEOUT
    disk.sleep_s = 0.0
    metrics = log.metrics()
    assert (metrics.flushes.slow, metrics.puts.slow) == (1, 1)
    assert metrics.flushes.longest_s >= 1.2
    log.close()
    assert all_seqs(tmp_path) == seqs(transactions[:1])


@pytest.mark.rule("rocketmq-log-12")
def test_a_put_need_not_wait(tmp_path: Path, disk: Disk) -> None:
    transactions = make_transactions(2)
    log = open_log(tmp_path)
    disk.go.clear()
    assert ThreadCall(lambda: log.put(transactions, wait=False)).result() is OK
    assert all_seqs(tmp_path) == []
    disk.go.set()
    wait_until(lambda: all_seqs(tmp_path) == seqs(transactions))
    log.close()


@pytest.mark.rule("rocketmq-log-30")
def test_futures_complete_in_order_with_their_status(tmp_path: Path, disk: Disk) -> None:
    transactions = make_transactions(5)
    log = open_log(tmp_path)
    order: list[int] = []
    disk.go.clear()
    futures = [log.put_async([t], timeout_s=0.05 if n == 1 else 30) for n, t in enumerate(transactions[:4])]
    for n, future in enumerate(futures):
        future.add_done_callback(lambda _, n=n: order.append(n))  # type: ignore[misc]
    time.sleep(0.1)
    assert not futures[0].done()
    assert futures[2].cancel(), "its status is dropped, and it is stored all the same"
    disk.go.set()
    assert [futures[n].result(10) for n in (0, 1, 3)] == [OK, PutStatus.FLUSH_DISK_TIMEOUT, OK]
    futures[3].add_done_callback(lambda _: order.append(log.put(transactions).stored))
    wait_until(lambda: len(order) == 5)
    assert [n for n in order if n != 2] == [0, 1, 3, True]
    log.close()
    assert all_seqs(tmp_path) == seqs(transactions)


@pytest.mark.rule("rocketmq-log-16", "rocketmq-log-24")
def test_a_slow_flush_is_logged_and_counted(tmp_path: Path, disk: Disk, capsys: pytest.CaptureFixture[str]) -> None:
    log = open_log(tmp_path, policy=FlushPolicy(slow_flush_s=0.02, slow_put_s=0.02))
    transactions = make_transactions(4)
    log.put(transactions[:1])
    disk.sleep_s = 0.03
    log.put(transactions[1:2])
    disk.sleep_s = 0
    log.put(transactions[2:])
    metrics = log.metrics()
    log.close()
    assert metrics.flushes.slow >= 1 and metrics.puts.slow >= 1
    assert metrics.flushes.count == 3 and metrics.puts.count == 3 and metrics.put_transactions == 4
    assert (
        metrics.flushes.longest_s >= 0.03
        and 0 < metrics.flushes.p50_s <= metrics.flushes.p99_s <= metrics.flushes.longest_s
    )
    output = capsys.readouterr()
    assert "slow flush" in output.out + output.err and "slow put" in output.out + output.err


# --- failures


@pytest.mark.rule("rocketmq-log-23")
@pytest.mark.parametrize("lead", [True, False])
def test_after_a_failed_flush_nothing_goes_on(tmp_path: Path, disk: Disk, lead: bool) -> None:
    transactions = make_transactions(6)
    log = open_log(tmp_path, lead_puts=lead)
    assert log.put(transactions[:2]) is OK
    flushes = disk.flushes
    disk.go.clear()
    disk.fails = True
    first = ThreadCall(lambda: log.put(transactions[:3]))
    wait_until(lambda: log.last_seq == transactions[2].seq and disk.flushes > flushes)
    second = ThreadCall(lambda: log.put(transactions[:4]))
    wait_until(lambda: log.last_seq == transactions[3].seq)
    future = log.put_async(transactions[:5])
    flushes = disk.flushes
    disk.go.set()
    for call in (first.result, second.result, future.result):
        with pytest.raises(StorageError, match="Input/output error"):
            call()
    disk.fails = False
    for operation in (
        lambda: log.put(transactions),
        lambda: log.put([]),
        lambda: log.put_async(transactions),
        log.flush,
    ):
        with pytest.raises(StorageError, match="Input/output error"):
            operation()
    assert disk.flushes == flushes, "a failed flush is not repeated"
    log.close()
    assert all_seqs(tmp_path) == seqs(transactions[:2])
    log = open_log(tmp_path)
    assert log.last_seq == transactions[1].seq, "bytes that the failed flush left in the page cache do not count"
    assert log.put(transactions) is OK
    log.close()
    assert all_seqs(tmp_path) == seqs(transactions)


def test_a_failed_write_ends_the_log(tmp_path: Path, disk: Disk, monkeypatch: Any) -> None:
    transactions = make_transactions(4)
    log = open_log(tmp_path)
    log.put(transactions[:1])

    def write(fd: int, data: bytes | memoryview) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(disk, "write", write)
        with pytest.raises(StorageError, match="No space left"):
            log.put(transactions)
    with pytest.raises(StorageError, match="No space left"):
        log.put(transactions)
    log.close()
    log = open_log(tmp_path)
    assert log.put(transactions) is OK
    log.close()
    assert all_seqs(tmp_path) == seqs(transactions)


@pytest.mark.rule("rocketmq-log-17")
def test_a_flush_that_fails_at_the_close_is_told(tmp_path: Path, disk: Disk) -> None:
    log = open_log(tmp_path, policy=FlushPolicy("async"))
    transactions = make_transactions(2)
    log.put(transactions[:1])
    log.flush()
    assert log.put(transactions) is OK
    disk.fails = True
    with pytest.raises(StorageError, match="Input/output error"):
        log.close()
    log.close()
    assert all_seqs(tmp_path) == seqs(transactions[:1])


@pytest.mark.rule("rocketmq-log-23")
def test_a_closed_log_refuses_puts(tmp_path: Path, disk: Disk) -> None:
    transactions = make_transactions(2)
    log = open_log(tmp_path)
    disk.go.clear()
    call = ThreadCall(lambda: log.put(transactions[:1]))
    assert call.waits()
    closing = ThreadCall(log.close)
    disk.go.set()
    assert call.result() is OK
    closing.result()
    with pytest.raises(StoreClosedError):
        log.put(transactions)
    with pytest.raises(StoreClosedError):
        log.put_async(transactions)
    with pytest.raises(StoreClosedError):
        log.wait_flushed(1 << 62)


# --- races between a flush and the end of the log


def test_whoever_flushes_is_waited_for_before_the_files_are_closed(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write fails while another thread flushes: the flush still uses the descriptors, and its put succeeds."""
    transactions = make_transactions(2)
    log = open_log(tmp_path)
    disk.go.clear()
    flushing = ThreadCall(lambda: log.put(transactions[:1]))
    wait_until(lambda: disk.flushes > 0)

    def write(fd: int, data: bytes | memoryview) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(disk, "write", write)
        with pytest.raises(StorageError, match="No space left"):
            log.put(transactions)
    closing = ThreadCall(log.close)
    assert closing.waits() and flushing.waits()
    disk.go.set()
    assert flushing.result() is OK
    closing.result()
    assert all_seqs(tmp_path) == seqs(transactions[:1])
    log = open_log(tmp_path)
    assert log.put(transactions) is OK
    log.close()
    assert all_seqs(tmp_path) == seqs(transactions)


@pytest.mark.parametrize("lead", [True, False])
def test_a_failed_flush_is_cut_off_before_the_store_can_be_opened_again(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, lead: bool
) -> None:
    """Otherwise transactions that another writer has acknowledged since could be cut off with it."""
    transactions = make_transactions(3)
    log = open_log(tmp_path, lead_puts=lead)
    log.put(transactions[:1])
    may_cut, cut = threading.Event(), disk.ftruncate

    def ftruncate(fd: int, size: int) -> None:
        may_cut.wait(30)
        cut(fd, size)

    monkeypatch.setattr(disk, "ftruncate", ftruncate)
    disk.go.clear()
    disk.fails = True
    first = ThreadCall(lambda: log.put(transactions[:2]))
    wait_until(lambda: log.last_seq == transactions[1].seq)
    second = ThreadCall(lambda: log.put(transactions))
    wait_until(lambda: log.last_seq == transactions[2].seq)
    disk.go.set()
    with pytest.raises(StorageError, match="Input/output error"):
        second.result()
    closing = ThreadCall(log.close)
    assert closing.waits()
    may_cut.set()
    closing.result()
    with pytest.raises(StorageError, match="Input/output error"):
        first.result()
    disk.fails = False
    log = open_log(tmp_path)
    assert log.last_seq == transactions[0].seq
    log.close()


def test_a_log_that_has_failed_is_not_taken_for_flushed(tmp_path: Path, disk: Disk) -> None:
    """A failure empties the queue; a later put of the same transactions must not return PUT_OK."""
    log = open_log(tmp_path)
    log._flusher.fail(StorageError("as if a flush had failed"))
    assert not log._flusher.clear
    with pytest.raises(StorageError, match="as if"):
        log._flusher.flush()
    with pytest.raises(StorageError, match="as if"):
        log.close()


def test_an_interrupted_put_leaves_the_flushing_to_others(tmp_path: Path, disk: Disk) -> None:
    """Ctrl-C while a put waits for another one's flush, and before it flushes itself: no put waits for it for ever."""
    transactions = make_transactions(5)
    log = open_log(tmp_path)
    disk.go.clear()
    first = ThreadCall(lambda: log.put(transactions[:1]))
    wait_until(lambda: disk.flushes > 0)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            log.put(transactions[:2], timeout_s=None)
    finally:
        signal.signal(signal.SIGALRM, before)
    later = ThreadCall(lambda: log.put(transactions[:3]))
    wait_until(lambda: log.last_seq == transactions[2].seq)
    disk.go.set()
    assert first.result() is OK and later.result() is OK
    log.on_put = interrupt
    with pytest.raises(KeyboardInterrupt):
        log.put(transactions[:4])
    log.on_put = None
    assert ThreadCall(lambda: log.put(transactions)).result() is OK
    ThreadCall(log.close).result()
    assert all_seqs(tmp_path) == seqs(transactions)


def test_a_callback_that_fails_ends_nothing(tmp_path: Path, disk: Disk) -> None:
    """Neither ends the thread that flushes nor the one that completes futures."""
    transactions = make_transactions(6)
    before = set(threading.enumerate())
    log = open_log(tmp_path, lead_puts=False)

    def fails(*_: object) -> None:
        raise SystemExit if _ else ValueError

    moves: list[int] = []
    log.on_moved += [lambda: moves.append(log.flushed.seq), fails]
    assert log.put(transactions[:1]) is OK and log.put(transactions[:2]) is OK
    disk.go.clear()
    futures = [log.put_async([transaction]) for transaction in transactions[2:]]
    futures[0].add_done_callback(fails)
    closes = futures[1]
    closes.add_done_callback(lambda _: log.close())
    disk.go.set()
    assert [future.result(10) for future in futures] == [OK] * 4
    wait_until(lambda: len(moves) > 2)
    log.close()
    wait_until(lambda: set(threading.enumerate()) <= before)
    assert all_seqs(tmp_path) == seqs(transactions)
    open_log(tmp_path).close()


# --- asynchronous flush


@pytest.mark.rule(
    "rocketmq-log-3",
    "rocketmq-log-11",
    "rocketmq-log-13",
    "rocketmq-log-14",
    "rocketmq-log-16",
    "rocketmq-log-24",
    "rocketmq-log-28",
)
def test_the_defaults_are_rocketmqs() -> None:
    """syncFlushTimeout; flushIntervalCommitLog, flushCommitLogLeastPages, flushCommitLogThoroughInterval; the limits for
    slow puts and flushes; haSlaveFallbehindMax. The mode (sync) and the segment's size are our own."""
    policy = FlushPolicy()
    assert (policy.interval_s, policy.least_pages, policy.thorough_interval_s) == (0.5, 4, 10.0)
    assert (policy.slow_flush_s, policy.slow_put_s) == (0.5, 0.5)
    for put in (TransactionLog.put, TransactionLog.put_async):
        assert inspect.signature(put).parameters["timeout_s"].default == 5.0
    master = inspect.signature(MasterSettings).parameters
    assert (master["timeout_s"].default, master["max_behind_bytes"].default) == (5.0, 256 << 20)
    assert policy.mode == StoreConfig.model_fields["flush"].default == "sync"
    assert StoreConfig.model_fields["segment_bytes"].default == 256 << 20


@pytest.mark.rule("rocketmq-log-13")
def test_after_a_long_silence_an_asynchronous_put_is_flushed_at_once(tmp_path: Path) -> None:
    now = [1000.0]
    log = open_log(tmp_path, policy=FlushPolicy("async", thorough_interval_s=600), clock=lambda: now[0])
    transactions = make_transactions(3)
    log.put(transactions[:1])
    assert log.wait_flushed(transactions[0].seq - 1, 10)
    log.put(transactions[:2])
    assert not log.wait_flushed(transactions[0].seq, 0.1), "too few bytes, too soon after the last flush"
    now[0] += 600
    log.put(transactions)
    log.flush()
    now[0] += 600
    assert all_seqs(tmp_path) == seqs(transactions)
    log.close()


@pytest.mark.rule("rocketmq-log-13")
def test_when_an_asynchronous_flush_is_due() -> None:
    policy = FlushPolicy("async", interval_s=0.5, least_pages=4, thorough_interval_s=10.0)
    assert policy.due_in_s(0.0, 4 * 4096) == 0.5
    assert policy.due_in_s(0.6, 4 * 4096) == 0.0
    assert policy.due_in_s(0.6, 4 * 4096 - 1) == pytest.approx(9.4)
    assert policy.due_in_s(10.0, 1) == 0.0
    assert FlushPolicy().due_in_s(0.0, 1) == 0.0


@pytest.mark.rule("rocketmq-log-13")
@pytest.mark.parametrize("pages", [0, 4, 1000])
def test_asynchronous_flush_by_pages_and_by_time(tmp_path: Path, disk: Disk, pages: int) -> None:
    """10 pages wait: they are flushed after the interval, or after the thorough one if they are too few."""
    policy = FlushPolicy("async", interval_s=0.05, least_pages=pages, thorough_interval_s=2.0)
    transactions = make_transactions(3, rows=4100)
    log = open_log(tmp_path, policy=policy)
    log.put(transactions[:1])
    log.flush()
    began = time.monotonic()
    assert log.put(transactions) is OK
    assert all_seqs(tmp_path) == seqs(transactions[:1])
    assert log.wait_flushed(transactions[1].seq, 10)
    took_s = time.monotonic() - began
    assert took_s >= 1.95 if pages == 1000 else 0.04 <= took_s < 1.95
    log.close()


@pytest.mark.rule("rocketmq-log-15", "rocketmq-log-17")
def test_asynchronous_puts_do_not_wait(tmp_path: Path, disk: Disk) -> None:
    transactions = make_transactions(50)
    log = open_log(tmp_path, policy=FlushPolicy("async", interval_s=0.01, least_pages=0, thorough_interval_s=0.01))
    disk.go.clear()
    for transaction in transactions:
        assert ThreadCall(lambda t=transaction: log.put([t])).result() is OK  # type: ignore[misc]
        assert log.put_async([transaction]).done()
    assert all_seqs(tmp_path) == []
    disk.go.set()
    log.close()
    assert all_seqs(tmp_path) == seqs(transactions), "flushed at the close"


@pytest.mark.rule("rocketmq-log-22")
def test_a_store_that_cannot_keep_up_is_full(tmp_path: Path, disk: Disk, monkeypatch: Any) -> None:
    monkeypatch.setattr("cdc.event_store.transaction_log.DIRTY_BYTES", 1000)
    transactions = make_transactions(8)
    store = RelayLogStore.open(tmp_path, destination="shop", policy=FlushPolicy("async"))
    disk.go.clear()
    assert store.put(transactions[:6]) is OK
    assert store.put(transactions, timeout_s=0.05) is PutStatus.STORE_FULL
    assert store.try_put(transactions) is PutStatus.STORE_FULL
    disk.go.set()
    assert store.put(transactions, timeout_s=30) is OK
    store.close()
    assert all_seqs(tmp_path) == seqs(transactions)


@pytest.mark.parametrize("options", [{"interval_s": 0}, {"least_pages": -1}, {"interval_s": 11.0}])
def test_contradictory_policies_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="interval"):
        FlushPolicy("async", **options)


# --- standbys


class Standby:
    """Returns the given status, and records the calls."""

    def __init__(self, answer: PutStatus = OK) -> None:
        self.answer = answer
        self.asked: list[tuple[str, int, int]] = []

    def wait(self, segment_name: str, end_offset: int, seq: int, timeout_s: float | None) -> PutStatus:
        self.asked.append((segment_name, end_offset, seq))
        return self.answer


@pytest.mark.rule("rocketmq-log-19", "rocketmq-log-30")
@pytest.mark.parametrize("answer", [OK, PutStatus.FLUSH_SLAVE_TIMEOUT, PutStatus.SLAVE_NOT_AVAILABLE])
def test_a_put_asks_the_standby_once_it_is_flushed(tmp_path: Path, disk: Disk, answer: PutStatus) -> None:
    transactions = make_transactions(4)
    standby = Standby(answer)
    log = open_log(tmp_path)
    log.replication = standby
    assert log.put(transactions[:2]) is answer
    assert log.put_async(transactions[2:3]).result(10) is answer
    assert log.put(transactions[:3]) is answer, "ignored, and perhaps not at the standby yet"
    (segment,) = list_segments(tmp_path)
    ends = np.array(IndexFile(segment).entries)
    end = [int(e["offset"]) + int(e["length"]) for e in ends]
    name = segment.name
    assert standby.asked == [
        (name, end[1], transactions[1].seq),
        (name, end[2], transactions[2].seq),
        (name, end[2], transactions[2].seq),
    ]
    disk.go.clear()
    assert log.put(transactions, timeout_s=0.05) is PutStatus.FLUSH_DISK_TIMEOUT
    assert len(standby.asked) == 3, "no wait for the standby before the flush here"
    disk.go.set()
    log.close()


# --- the cursor


def test_the_cursor_is_kept_in_the_meta(tmp_path: Path) -> None:
    from cdc.meta.file import FileMeta

    transactions = make_transactions(5)
    meta = FileMeta(tmp_path / "meta", "shop")
    meta.subscribe("lake")
    with RelayLogStore.open(tmp_path / "store", destination="shop", meta=meta, subscriber="lake") as store:
        store.put(transactions)
        store.try_get(10)
        store.ack(transactions[1].position)
        assert meta.cursor("lake") == transactions[1].seq
    with RelayLogStore.open(tmp_path / "store", destination="shop", meta=meta, subscriber="lake") as store:
        assert store.first_position() == transactions[2].position
        assert seqs(store.try_get(1000).transactions) == seqs(transactions[2:])


@pytest.mark.rule("canal-ring-35", "flume-channel-23")
def test_many_subscribers_over_one_log(tmp_path: Path) -> None:
    transactions = make_transactions(9, tables=("shop.orders", "shop.items"), ddl_every=9)
    log = open_log(tmp_path)
    everything = RelayLogStore(log, owns_log=False)
    items = RelayLogStore(log, owns_log=False, table_filter=r"shop\.items")
    log.put(transactions)
    wanted = [t for t in transactions if "shop.items" in t.tables]
    assert 0 < len(wanted) < len(transactions)
    assert seqs(items.try_get(1000).transactions) == seqs(wanted)
    assert items.latest_position() == wanted[-1].position
    items.ack(wanted[-1].position)
    assert items.first_position() == wanted[-1].position
    assert seqs(everything.try_get(1000).transactions) == seqs(transactions[:8])
    with pytest.raises(StorageError, match="fails"), RelayLogStore(log, owns_log=False) as third:
        raise (
            StorageError("a block that fails") if third.first_position() == transactions[0].position else AssertionError
        )
    assert log.put(make_transactions(10)[9:]) is OK, "the log was not closed with a reader"
    log.close()


def test_cleaning_removes_whole_segments_only(tmp_path: Path) -> None:
    transactions = make_transactions(300, rows=200)
    with RelayLogStore.open(tmp_path, destination="shop", segment_bytes=65536) as store:
        store.put(transactions)
        segments = len(list_segments(tmp_path))
        assert segments > 3
        store.clean_until(transactions[150].position)
        assert 1 < len(list_segments(tmp_path)) < segments
        assert all_seqs(tmp_path)[0] <= transactions[151].seq
        assert seqs(store.try_get(1 << 40).transactions) == seqs(transactions[151:])
        store.clean_all()
        assert len(list_segments(tmp_path)) == 1
        assert store.latest_position() is None
    with RelayLogStore.open(tmp_path, destination="shop", segment_bytes=65536) as store:
        assert store.log.last_seq == transactions[-1].seq, "a repeated put is still ignored"
