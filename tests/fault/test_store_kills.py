"""SIGKILL of a store's writer under load: nothing acknowledged is missing, and no part of a transaction is visible.

``TOWPATH_STORE_KILLS`` sets how often (20 in ``make test``, 200 in ``make test-soak``).
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from cdc.event_store.transaction import Transaction
from cdc.event_store.transaction_log import TransactionLog
from cdc.store.formats import layout
from cdc.store.formats.index import IndexFile
from cdc.store.reader.reader import StoreReader
from cdc.store.writer.durability import FlushPolicy, PutStatus
from cdc.testing.transactions import make_transactions
from tests.support.processes import read_whole_lines

KILLS = int(os.environ.get("TOWPATH_STORE_KILLS", "20"))
PUTTERS = 8
SEGMENT_BYTES = 200_000


def put_for_ever(store: Path, journal: Path, pool: list[Transaction], policy: FlushPolicy) -> None:
    """Several threads put transactions in turn; each records the status after it got it."""
    log = TransactionLog(store, destination="shop", segment_bytes=SEGMENT_BYTES, policy=policy)
    newest = log.last_seq or 0
    transactions = iter([t for t in pool if t.seq > newest])
    order = threading.Lock()
    fd = os.open(journal, os.O_WRONLY | os.O_APPEND)

    def putter(seed: int) -> None:
        choose = random.Random(seed)
        while True:
            with order:  # seqs rise: whoever takes the next transactions puts them before anybody else
                some = [next(transactions) for _ in range(choose.choice((1, 1, 2, 5)))]
                future = log.put_async(some)
            status = future.result()
            os.write(fd, "".join(f"{t.seq} {status.name}\n" for t in some).encode())

    threads = [threading.Thread(target=putter, args=(n,)) for n in range(PUTTERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def wait_for_more(journal: Path) -> None:
    before, deadline = journal.stat().st_size, time.monotonic() + 60
    while journal.stat().st_size == before:
        assert time.monotonic() < deadline, "nothing is put"
        time.sleep(0.002)


def visible(store: Path) -> list[tuple[int, Path, int, int]]:
    """Returns every visible transaction: seq, segment, offset, length."""
    ranges = []
    for segment in layout.list_segments(store):
        entries = IndexFile(segment).entries
        entries = entries[entries["length"] > 0]
        ranges += [(int(e["seq"]), segment, int(e["offset"]), int(e["length"])) for e in np.array(entries)]
    return ranges


@pytest.mark.rule("canal-ring-34")
@pytest.mark.parametrize(
    "policy",
    [
        FlushPolicy(),
        pytest.param(FlushPolicy(mode="async", interval_s=0.02), marks=pytest.mark.long),
        pytest.param(FlushPolicy(mode="async", interval_s=60.0, thorough_interval_s=60.0), marks=pytest.mark.long),
    ],
    ids=["sync", "async", "async-late"],
)
def test_nothing_acknowledged_is_missing(policy: FlushPolicy, tmp_path: Path, seed: int) -> None:
    store, journal = tmp_path / "store", tmp_path / "journal"
    journal.touch()
    pool = make_transactions(150_000, rows=4)
    number = {t.seq: n for n, t in enumerate(pool)}
    moments = random.Random(seed)
    fork = get_context("fork")
    checked = 0
    for _ in range(KILLS):
        process = fork.Process(target=put_for_ever, args=(store, journal, pool, policy))
        process.start()
        assert process.pid is not None
        wait_for_more(journal)
        time.sleep(moments.uniform(0.0, 0.1))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == -signal.SIGKILL

        TransactionLog(store, destination="shop", segment_bytes=SEGMENT_BYTES).close()
        stored = visible(store)
        assert [number[seq] for seq, *_ in stored] == list(range(len(stored)))  # a prefix: no gap, none twice
        for seq, segment, offset, length in stored[checked:]:
            with segment.open("rb") as file:
                file.seek(offset)
                assert file.read(length) == pool[number[seq]].data
        checked = len(stored)
        lines = [line.split() for line in read_whole_lines(journal)]
        acknowledged = [int(seq) for seq, status in lines if status == PutStatus.PUT_OK.name]
        assert max(number[seq] for seq in acknowledged) < len(stored)
    assert len(acknowledged) > KILLS
    assert StoreReader(store).last_seq() == pool[checked - 1].seq
    print(f"{checked} transactions, {len(acknowledged)} acknowledged, {KILLS} kills")
