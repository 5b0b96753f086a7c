"""The store: puts compared with the disk's limit, group commit, selecting a batch, opening, the memory ring.

The disk's limit is a bare loop that writes the same bytes into one file, with one fdatasync after each write (sync), or
one at the end (async). Each number is the median of several rounds, in which the store and the bare loop alternate in
one folder.

    python benchmarks/store.py [--parts put,group,find,ring] [--rounds 5] [--scale 1] [--transactions 1e6]
        [--folder DIR]

``--transactions 100e6`` writes 12.8 GB of index and takes some minutes.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from cdc.base.log import configure
from cdc.binlog.entry import ENTRY, ENTRY_SIZE, HEADER_SIZE
from cdc.binlog.positions import make_file_name, make_seq, split_seq
from cdc.disk import files
from cdc.disk.durable import replace_file
from cdc.event_store.memory_store import MemoryStore
from cdc.event_store.transaction import SourceFile, Transaction
from cdc.event_store.transaction_log import TransactionLog
from cdc.store.formats import layout
from cdc.store.formats.checkpoint import FILE_NAME, Checkpoint, was_aborted
from cdc.store.formats.index import make_header, seal
from cdc.store.formats.segment_header import make_segment_header
from cdc.store.formats.state import TableNumbers
from cdc.store.reader.batch_builder import Limits
from cdc.store.reader.reader import StoreReader
from cdc.store.writer.durability import FlushPolicy, PutStatus
from cdc.store.writer.log import RelayLog
from cdc.testing.binlog import BinlogBuilder
from cdc.testing.transactions import make_transactions, transactions_of

INJECTED_S = 0.002
Ahead: TypeAlias = Literal["plain", "reserved", "zeroed"]
"""The preparation of a file: none; with reserved blocks (fallocate); filled with zeros."""
PUTTERS = (1, 2, 4, 8, 16, 32, 64)


class Kind(NamedTuple):
    """The size of a put, and how many puts a round of about one second has."""

    name: str
    rows: int
    transactions: int
    sync_puts: int
    async_puts: int


KINDS = (
    Kind("300 B", 3, 1, 2000, 20_000),
    Kind("16 KiB", 3270, 1, 1500, 10_000),
    Kind("100 × 300 B", 3, 100, 1500, 3000),
    Kind("1 MiB", 209_700, 1, 150, 300),
)


class Run(NamedTuple):
    """The result of one round: puts per second, latencies of a put in µs, number of fdatasyncs."""

    per_s: float
    p50_us: float
    p99_us: float
    flushes: int


def summary(took_s: float, times: list[float], flushes: int) -> Run:
    times.sort()
    last = len(times) - 1
    return Run(len(times) / took_s, times[last // 2] * 1e6, times[last * 99 // 100] * 1e6, flushes)


def at_rising_positions(made: Transaction, lists: int, each: int) -> Iterator[list[Transaction]]:
    """Yields ``lists`` lists of ``each`` copies of a transaction at rising positions of its file."""
    entries = np.repeat(made.entry, lists * each)
    entries["seq"] += np.arange(len(entries), dtype=np.uint64) * np.uint64(made.size_bytes)
    for n in range(0, len(entries), each):
        yield [Transaction(entries[k : k + 1], made.data, made.source, made.tables) for k in range(n, n + each)]


# --- puts, compared with a bare loop


def bare(folder: Path, data: bytes, count: int, *, sync: bool, ahead: Ahead = "plain", entries: int = 0) -> Run:
    """Writes the bytes ``count`` times into one file, with an fdatasync after each write or one at the end. Preparing
    the file (``ahead``) is not timed. Also writes ``entries`` entries of 128 bytes per write into a second file without
    syncing it, as an index does."""
    index_fd = os.open(folder / "entries", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    entry = bytes(ENTRY_SIZE * entries)
    fd = os.open(folder / "bare", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    if ahead == "reserved":
        keep_size = 1
        done = ctypes.CDLL(None, use_errno=True).fallocate(
            fd, keep_size, ctypes.c_long(0), ctypes.c_long(len(data) * count)
        )
        assert done == 0, os.strerror(ctypes.get_errno())
    elif ahead == "zeroed":
        files.write_all(fd, bytes(len(data) * count))
        os.fsync(fd)
        os.lseek(fd, 0, os.SEEK_SET)
    times = []
    began = time.perf_counter()
    for _ in range(count):
        start = time.perf_counter()
        files.write_all(fd, data)
        if sync:
            files.layer.fdatasync(fd)
        if entries:
            files.write_all(index_fd, entry)
        times.append(time.perf_counter() - start)
    files.layer.fdatasync(fd)
    took_s = time.perf_counter() - began
    os.close(fd)
    os.close(index_fd)
    os.unlink(folder / "bare")
    os.unlink(folder / "entries")
    os.sync()
    return summary(took_s, times, count if sync else 1)


def store_puts(
    folder: Path, lists: list[list[Transaction]], policy: FlushPolicy, putters: int = 1, lead: bool = True
) -> Run:
    """Puts the lists into a new store, and measures until the last status and the last flush."""
    path = folder / "store"
    log = TransactionLog(path, destination="bench", segment_bytes=1 << 40, policy=policy, lead_puts=lead)
    log.put(lists[0])
    times: list[float] = []
    flushes = log.flushes
    began = time.perf_counter()
    if putters == 1:
        for each in lists[1:]:
            start = time.perf_counter()
            assert log.put(each) is PutStatus.PUT_OK
            times.append(time.perf_counter() - start)
    else:
        _many(log, lists[1:], putters, times)
    log.flush()
    took_s = time.perf_counter() - began
    flushes = log.flushes - flushes
    log.close()
    shutil.rmtree(path)
    os.sync()
    return summary(took_s, times, flushes)


def capture_stream(folder: Path, kind: Kind, count: int, policy: FlushPolicy) -> Run:
    """Writes as capture does: appends bytes and publishes entries, without Transaction objects."""
    made = make_transactions(1, rows=kind.rows)[0]
    data = memoryview(made.data * kind.transactions)
    path, source = folder / "store", made.source
    log = RelayLog(path, destination="bench", segment_bytes=1 << 40, policy=policy)
    begin = log.begin(source.epoch, source.name, 4, source.format_description, source.server_id)
    places = np.arange(count * kind.transactions, dtype=np.uint64) * np.uint64(made.size_bytes)
    entries = np.repeat(made.entry, len(places))
    entries["seq"] += places
    entries["offset"] = places + begin
    times = []
    flushes = log.flushes
    began = time.perf_counter()
    for n in range(0, len(entries), kind.transactions):
        start = time.perf_counter()
        log.append(data)
        log.publish(entries[n : n + kind.transactions])
        if policy.mode == "sync":
            log.flush()
        times.append(time.perf_counter() - start)
    log.flush()
    took_s = time.perf_counter() - began
    flushes = log.flushes - flushes
    log.close()
    shutil.rmtree(path)
    os.sync()
    return summary(took_s, times, flushes)


def _many(log: TransactionLog, lists: list[list[Transaction]], putters: int, times: list[float]) -> None:
    left, lock = iter(lists), threading.Lock()

    def work() -> None:
        own = []
        while True:
            with lock:  # keeps the source's order; only the wait is outside
                each = next(left, None)
                if each is None:
                    break
                start = time.perf_counter()
                future = log.put_async(each)
            assert future.result() is PutStatus.PUT_OK
            own.append(time.perf_counter() - start)
        times.extend(own)

    threads = [threading.Thread(target=work) for _ in range(putters)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def put_part(folder: Path, options: argparse.Namespace, console: Console) -> None:
    for mode, goal in (("sync", "0.9"), ("async", "0.9")):
        table = Table(title=f"Puts, flush: {mode}, against a bare loop of the same writes", title_justify="left")
        columns: tuple[str, ...] = (
            "put",
            "bare/s",
            "ours/s",
            "MB/s",
            "ratio",
            "goal",
            "p50 µs",
            "p99 µs",
            "bare p50",
            "bare p99",
        )
        columns += ("flusher/s", "stream/s", "ratio", "with index", "ratio")
        for name in columns:
            table.add_column(name, justify="right")
        for kind in KINDS:
            made = make_transactions(1, rows=kind.rows)[0]
            data = made.data * kind.transactions
            count = max(20, int((kind.sync_puts if mode == "sync" else kind.async_puts) * options.scale))
            lists = list(at_rising_positions(made, count + 1, kind.transactions))
            policy = FlushPolicy("sync" if mode == "sync" else "async")
            pairs = [
                (
                    bare(folder, data, count, sync=mode == "sync"),
                    store_puts(folder, lists, policy),
                    capture_stream(folder, kind, count, policy),
                    bare(folder, data, count, sync=mode == "sync", entries=kind.transactions),
                )
                for _ in range(options.rounds)
            ]
            handed = store_puts(folder, lists, policy, lead=False)
            middle = sorted(pairs, key=lambda pair: pair[1].per_s)[len(pairs) // 2][1]
            per_s = statistics.median(pair[1].per_s for pair in pairs)
            table.add_row(
                kind.name,
                f"{statistics.median(pair[0].per_s for pair in pairs):,.0f}",
                f"{per_s:,.0f}",
                f"{per_s * len(data) / 1e6:,.1f}",
                f"{statistics.median(pair[1].per_s / pair[0].per_s for pair in pairs):.2f}",
                goal,
                f"{middle.p50_us:,.0f}",
                f"{middle.p99_us:,.0f}",
                f"{statistics.median(pair[0].p50_us for pair in pairs):,.0f}",
                f"{statistics.median(pair[0].p99_us for pair in pairs):,.0f}",
                f"{handed.per_s:,.0f}" if mode == "sync" else "",
                f"{statistics.median(pair[2].per_s for pair in pairs):,.0f}",
                f"{statistics.median(pair[2].per_s / pair[0].per_s for pair in pairs):.2f}",
                f"{statistics.median(pair[3].per_s for pair in pairs):,.0f}",
                f"{statistics.median(pair[1].per_s / pair[3].per_s for pair in pairs):.2f}",
            )
        console.print(table)
    console.print("flusher/s: puts if a separate thread makes every flush (lead_puts=False).")
    console.print("with index: the bare loop with index entries, and the ratio of ours to it.")
    console.print("stream/s: the same bytes and entries through append and publish, as capture writes.")
    _many_part(folder, options, console)


def _many_part(folder: Path, options: argparse.Namespace, console: Console) -> None:
    table = Table(title="Puts of 300 B by many threads, on this disk", title_justify="left")
    for name in ("putters", "sync/s", "p50 µs", "p99 µs", "puts per flush", "async/s", "p50 µs", "p99 µs"):
        table.add_column(name, justify="right")
    made = make_transactions(1)[0]
    for putters in PUTTERS:
        lists = list(at_rising_positions(made, max(100, int(options.scale * 4000)) + 1, 1))
        runs = [
            sorted(store_puts(folder, lists, policy, putters) for _ in range(options.rounds))[options.rounds // 2]
            for policy in (FlushPolicy(), FlushPolicy("async"))
        ]
        synced, unsynced = runs
        table.add_row(
            str(putters),
            f"{synced.per_s:,.0f}", f"{synced.p50_us:,.0f}", f"{synced.p99_us:,.0f}",
            f"{(len(lists) - 1) / synced.flushes:.1f}",
            f"{unsynced.per_s:,.0f}", f"{unsynced.p50_us:,.0f}", f"{unsynced.p99_us:,.0f}",
        )  # fmt: skip
    console.print(table)


# --- group commit


class SlowFlushes(files.Files):
    """A disk on which every flush takes 2 ms."""

    def fdatasync(self, fd: int) -> None:
        time.sleep(INJECTED_S)


def group_part(folder: Path, options: argparse.Namespace, console: Console) -> None:
    table = Table(title="Group commit with an injected flush of 2 ms", title_justify="left")
    for name in ("putters", "puts/s", "p50 µs", "p99 µs", "puts per flush", "relative to one flush per put", "goal"):
        table.add_column(name, justify="right")
    made = make_transactions(1)[0]
    with files.use(SlowFlushes()):
        bare_run = bare(folder, made.data, max(50, int(500 * options.scale)), sync=True)
        for putters in PUTTERS:
            lists = list(at_rising_positions(made, max(50, int(options.scale * 250)) * putters + 1, 1))
            runs = sorted(store_puts(folder, lists, FlushPolicy(), putters) for _ in range(options.rounds))
            run = runs[len(runs) // 2]
            table.add_row(
                str(putters), f"{run.per_s:,.0f}", f"{run.p50_us:,.0f}", f"{run.p99_us:,.0f}",
                f"{(len(lists) - 1) / run.flushes:.1f}", f"{run.per_s / bare_run.per_s:.1f}",
                "8" if putters == 32 else "",
            )  # fmt: skip
    console.print(table)
    console.print(f"One flush per put, in a bare loop: {bare_run.per_s:,.0f} per second.")


# --- preparing files, joining writes (docs/decisions/0016)


def disk_part(folder: Path, options: argparse.Namespace, console: Console) -> None:
    table = Table(
        title="Bare loops with an fdatasync per write, into files prepared in three ways", title_justify="left"
    )
    for name in ("write", "plain/s", "reserved/s", "ratio", "zeroed/s", "ratio", "plain p99 µs", "reserved", "zeroed"):
        table.add_column(name, justify="right")
    ways: tuple[Ahead, ...] = get_args(Ahead)
    for kind in KINDS:
        data = make_transactions(1, rows=kind.rows)[0].data * kind.transactions
        count = max(20, int(kind.sync_puts * options.scale))
        rounds = [[bare(folder, data, count, sync=True, ahead=way) for way in ways] for _ in range(options.rounds)]
        per_s = [statistics.median(runs[n].per_s for runs in rounds) for n in range(len(ways))]
        ratio = [statistics.median(runs[n].per_s / runs[0].per_s for runs in rounds) for n in range(len(ways))]
        p99 = [statistics.median(runs[n].p99_us for runs in rounds) for n in range(len(ways))]
        table.add_row(
            kind.name,
            f"{per_s[0]:,.0f}", f"{per_s[1]:,.0f}", f"{ratio[1]:.2f}", f"{per_s[2]:,.0f}", f"{ratio[2]:.2f}",
            *(f"{us:,.0f}" for us in p99),
        )  # fmt: skip
    console.print(table)
    table = Table(title="Into the page cache: each write alone, or joined into 64 KiB first", title_justify="left")
    for name in ("write", "plain/s", "joined/s", "plain µs", "joined µs"):
        table.add_column(name, justify="right")
    for kind in KINDS[:2]:
        data = make_transactions(1, rows=kind.rows)[0].data
        count = max(20, int(kind.async_puts * options.scale))
        plain_per_s = max(bare(folder, data, count, sync=False).per_s for _ in range(options.rounds))
        joined_per_s = max(_joined(folder, data, count) for _ in range(options.rounds))
        table.add_row(
            kind.name,
            f"{plain_per_s:,.0f}",
            f"{joined_per_s:,.0f}",
            f"{1e6 / plain_per_s:.2f}",
            f"{1e6 / joined_per_s:.2f}",
        )
    console.print(table)


def _joined(folder: Path, data: bytes, count: int) -> float:
    """Joins writes in a buffer before they go to the file, as RocketMQ's transient store pool does."""
    fd = os.open(folder / "bare", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    buffer = bytearray()
    began = time.perf_counter()
    for _ in range(count):
        buffer += data
        if len(buffer) >= 65536:
            files.write_all(fd, memoryview(buffer))
            buffer = bytearray()
    files.write_all(fd, memoryview(buffer))
    files.layer.fdatasync(fd)
    took_s = time.perf_counter() - began
    os.close(fd)
    os.unlink(folder / "bare")
    return count / took_s


# --- selecting a batch in a large store


BYTES_EACH = 300
CRASHED_MB = (1, 64, 256)
IN_SEGMENT = 2_000_000
_AT_ONCE = 500_000


def make_store(path: Path, transactions: int) -> list[int]:
    """Makes a store like one of capture's, but with sparse segment files: only the indexes have content. Returns some
    of its seqs."""
    layout.create(path, "bench")
    TableNumbers(path).number("shop.orders")
    made = make_transactions(1)[0]
    some = []
    segments = range(0, transactions, IN_SEGMENT)
    for number, start in enumerate(track(segments, description="making the store …", transient=True), start=1):
        count = min(IN_SEGMENT, transactions - start)
        file = make_file_name("binlog", number)
        begins = make_segment_header(made.source.format_description, file, 4, made.source.server_id)
        segment = layout.segments_folder(path) / layout.segment_name(0, number, 4)
        with segment.open("wb") as data, layout.index_path(segment).open("wb") as index:
            data.write(begins)
            data.truncate(len(begins) + count * BYTES_EACH)
            index.write(make_header())
            for first in range(0, count, _AT_ONCE):
                place = np.arange(first, min(first + _AT_ONCE, count), dtype=np.uint64)
                entries = np.repeat(made.entry, len(place))
                entries["offset"] = len(begins) + place * BYTES_EACH
                entries["length"] = BYTES_EACH
                entries["seq"] = make_seq(0, number, 4) + (place + 1) * BYTES_EACH
                entries["commit_time_us"] = entries["store_time_us"] = 1_700_000_000_000_000 + start + place
                index.write(seal(entries))
                some += entries["seq"][:: max(1, len(place) // 50)].tolist()
            index.flush()
            os.fdatasync(index.fileno())
    noted = Checkpoint(
        segment=segment.name,
        log_bytes=segment.stat().st_size,
        index_bytes=layout.index_path(segment).stat().st_size,
        seq=int(entries["seq"][-1]),
        time_us=time.time_ns() // 1000,
        tables=1,
        finished=True,
    )
    replace_file(path / FILE_NAME, noted.render())
    _close_with_small_segment(TransactionLog(path, destination="bench", segment_bytes=1 << 40))
    return some


def _to_crash(size_bytes: int) -> list[Transaction]:
    """Returns transactions of this total size, with rising positions, which recovery needs."""
    log = BinlogBuilder()
    while log.pos < size_bytes:
        log.transaction("shop", "orders", [0] * KINDS[1].rows)
    return transactions_of(log)


def _behind(path: Path, made: list[Transaction]) -> Iterator[Transaction]:
    """Yields the transactions again, in the source's next file."""
    number = split_seq(StoreReader(path).last_seq() or 0).file_number + 1
    source = SourceFile(0, make_file_name("binlog", number), made[0].source.format_description, 1)
    for transaction in made:
        entry = transaction.entry.copy()
        entry["seq"] = make_seq(0, number, split_seq(transaction.seq).offset)
        yield Transaction(entry, transaction.data, source, transaction.tables)


def _crash(path: Path, made: list[Transaction]) -> None:
    """Runs a writer in a child process that fills a segment, flushes it, and is killed."""
    child = os.fork()
    if child == 0:
        log = TransactionLog(path, destination="bench", segment_bytes=1 << 40, policy=FlushPolicy("async"))
        for transaction in _behind(path, made):
            log.put([transaction])
        log.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL and was_aborted(path)


def _close_with_small_segment(log: TransactionLog) -> None:
    """Closes the store after one more segment with a single transaction."""
    log.put(list(_behind(log.path, make_transactions(1))))
    log.close()


def find_part(folder: Path, options: argparse.Namespace, console: Console) -> None:
    path, count = folder / "large", int(options.transactions)
    assert ENTRY.itemsize == ENTRY_SIZE and HEADER_SIZE == ENTRY_SIZE
    some = make_store(path, count)
    table = Table(title=f"A store of {count:,} transactions, {count * ENTRY_SIZE / 1e9:.1f} GB of index")
    for name in ("what", "median ms", "p99 ms", "goal ms"):
        table.add_column(name, justify="right")
    random.Random(1).shuffle(some)

    def row(what: str, call: Callable[[int], object], goal: str) -> None:
        times = []
        for seq in some[:1000]:
            start = time.perf_counter()
            assert call(seq) is not None
            times.append(time.perf_counter() - start)
        times.sort()
        table.add_row(what, *(f"{times[n] * 1e3:.3f}" for n in (len(times) // 2, len(times) * 99 // 100)), goal)

    reader = StoreReader(path)
    row("a batch of 1 transaction", lambda seq: reader.select(seq, Limits(max_transactions=1)), "1")
    row("a batch of 100 transactions", lambda seq: reader.select(seq, Limits(max_transactions=100)), "1")
    row("the same with a new reader", lambda seq: StoreReader(path).select(seq, Limits(max_transactions=100)), "1")
    row("a batch of 1 MB", lambda seq: reader.select(seq, Limits(max_bytes=1_000_000)), "")
    opened = []
    for _ in range(5):
        start = time.perf_counter()
        log = TransactionLog(path, destination="bench", segment_bytes=1 << 40)
        opened.append(time.perf_counter() - start)
        log.close()
    table.add_row("opening after a clean stop", f"{statistics.median(opened) * 1e3:.1f}", "", "1000")
    made = _to_crash(CRASHED_MB[-1] * 1_000_000)
    for megabytes in CRASHED_MB:
        part = [transaction for transaction in made if split_seq(transaction.seq).offset <= megabytes * 1_000_000]
        opened = []
        for _ in range(3):
            _crash(path, part)
            start = time.perf_counter()
            log = TransactionLog(path, destination="bench", segment_bytes=1 << 40)
            opened.append(time.perf_counter() - start)
            _close_with_small_segment(log)
        size_bytes = layout.list_segments(path)[-2].stat().st_size
        what = f"opening after a crash, {size_bytes / 1e6:,.0f} MB in the last segment"
        table.add_row(what, f"{statistics.median(opened) * 1e3:.1f}", "", "")
    console.print(table)
    shutil.rmtree(path)


# --- the memory ring


def ring_part(folder: Path, options: argparse.Namespace, console: Console) -> None:
    made = make_transactions(1)[0]
    for each in (1, 100):
        lists = list(at_rising_positions(made, max(100, int(options.scale * 100_000 / each)), each))
        best = 0.0
        for _ in range(options.rounds):
            store = MemoryStore(buffer_size=16384, batch_mode="itemsize")
            began = time.perf_counter()
            for transactions in lists:
                store.put(transactions)
                batch = store.try_get(1 << 20)
                assert batch.ack is not None
                store.ack(batch.ack)
            best = max(best, len(lists) * each / (time.perf_counter() - began))
            store.close()
        console.print(f"Memory ring, {each} at a time: {best:,.0f} transactions per second through put, get and ack.")


PARTS = {"put": put_part, "group": group_part, "find": find_part, "ring": ring_part, "disk": disk_part}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--parts", default="put,group,find,ring", help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="factor for the number of puts in a round")
    parser.add_argument("--transactions", type=float, default=1e6, help="transactions in the store of the part find")
    parser.add_argument("--folder", type=Path, default=None, help="a folder on the disk to measure")
    options = parser.parse_args()
    chosen = options.parts.split(",")
    if unknown := [part for part in chosen if part not in PARTS]:
        parser.error(f"unknown part {unknown[0]!r}; known: {', '.join(PARTS)}")
    configure()
    console = Console(width=None if sys.stdout.isatty() else 160)
    with tempfile.TemporaryDirectory(prefix="towpath-bench-", dir=options.folder or os.environ.get("TMPDIR")) as folder:
        for part in chosen:
            PARTS[part](Path(folder), options, console)
    console.print(f"Medians of {options.rounds} rounds; {os.cpu_count()} CPUs.")


if __name__ == "__main__":
    main()
