"""SIGKILL of master and standby under load: all transactions acknowledged with PUT_OK are on the survivor.

``TOWPATH_STANDBY_KILLS`` sets how often each side is killed (3; more in ``make test-soak``), ``TOWPATH_SEED`` when.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from cdc.base.addresses import Address
from cdc.base.log import configure
from cdc.copies.standby.follower import Follower
from cdc.copies.standby.role import read_epoch
from cdc.event_store.transaction import Transaction
from cdc.event_store.transaction_log import TransactionLog
from cdc.store.formats import layout
from cdc.store.formats.index import IndexFile
from cdc.store.writer.durability import PutStatus
from cdc.testing.servers import HOST, free_port
from cdc.testing.transactions import make_transactions
from tests.support.processes import read_whole_lines
from tests.support.standby import QUICK, digests, open_master

KILLS = int(os.environ.get("TOWPATH_STANDBY_KILLS", "3"))
SEED = int(os.environ.get("TOWPATH_SEED") or 20_240_601)
PUTTERS = 4
SEGMENT_BYTES = 100_000
FORK = get_context("fork")


def be_master(store: Path, journal: Path, pool: list[Transaction], address: Address) -> None:
    """Runs a master. Several putters take transactions in turn and record the status of each put.

    At SIGTERM they stop, and the process ends once the standby has everything.
    """
    configure("console")
    log = TransactionLog(store, destination="shop", segment_bytes=SEGMENT_BYTES)
    newest = log.last_seq or 0
    transactions = iter([t for t in pool if t.seq > newest])
    master = open_master(log, listen=address, timeout_s=2)
    order, stop = threading.Lock(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    fd = os.open(journal, os.O_WRONLY | os.O_APPEND)

    def putter(seed: int) -> None:
        choose = random.Random(seed)
        while not stop.is_set():
            with order:  # seqs must increase: the putter that takes the next transactions puts them first
                some = [next(transactions) for _ in range(choose.choice((1, 1, 2, 5)))]
                future = log.put_async(some, timeout_s=10)
            status = future.result()
            os.write(fd, "".join(f"{t.seq} {status.name}\n" for t in some).encode())
            if status is PutStatus.SLAVE_NOT_AVAILABLE:
                time.sleep(0.002)  # give the standby time to connect

    threads = [threading.Thread(target=putter, args=(n,)) for n in range(PUTTERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    caught_up = master.wait_until(log.last_seq or 0, 30)
    master.close()
    log.close()
    os._exit(0 if caught_up else 3)


def be_standby(store: Path, address: Address) -> None:
    """Runs a standby until SIGTERM."""
    configure("console")
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    Follower(store, destination="shop", master=address, segment_bytes=SEGMENT_BYTES, timing=QUICK).run(stop)
    os._exit(0)


class Pair:
    """Two stores, their processes, and the acknowledged puts."""

    def __init__(self, folder: Path, pool: list[Transaction]) -> None:
        self.pool = pool
        self.number = {t.seq: n for n, t in enumerate(pool)}
        self.master_store, self.standby_store = folder / "a", folder / "b"
        self.journal = folder / "journal"
        self.journal.touch()
        self.since = 0
        """Lines of the journal before the last take-over."""
        self.address = Address(HOST, free_port())
        self.master = self._start_master()
        self.standby = self._start_standby()

    def _start_master(self) -> BaseProcess:
        self.address = Address(HOST, free_port())
        arguments = (self.master_store, self.journal, self.pool, self.address)
        process = FORK.Process(target=be_master, args=arguments)
        process.start()
        return process

    def _start_standby(self) -> BaseProcess:
        process = FORK.Process(target=be_standby, args=(self.standby_store, self.address))
        process.start()
        return process

    def lines(self) -> list[tuple[int, PutStatus]]:
        """Returns seq and status of each acknowledged transaction."""
        whole, _, _ = self.journal.read_text().rpartition("\n")
        return [(int(seq), PutStatus[status]) for seq, status in map(str.split, whole.splitlines())]

    def wait_for(self, status: PutStatus | None) -> None:
        """Waits for the next put with this status (None: any status)."""
        before, deadline = len(self.lines()), time.monotonic() + 60
        while not any(status in (None, line_status) for _, line_status in self.lines()[before:]):
            assert time.monotonic() < deadline, f"no put is answered {'' if status is None else status.name}"
            assert self.master.is_alive(), f"the master has ended with {self.master.exitcode}"
            assert self.standby.is_alive(), f"the standby has ended with {self.standby.exitcode}"
            time.sleep(0.005)

    def kill_standby(self) -> None:
        """Kills the standby, checks its store, and starts it again."""
        kill(self.standby)
        self.require(self.standby_store, {PutStatus.PUT_OK}, 0)
        self.standby = self._start_standby()

    def kill_master(self, *, also_standby: bool, take_over: bool) -> bool:
        """Kills the master, ends or kills the standby, and checks that the standby has all acknowledged transactions.

        Then one of them continues as the master. Returns whether the standby did: it cannot take over from a master
        that it has not followed yet.
        """
        kill(self.master)
        read_whole_lines(self.journal)
        if also_standby:
            kill(self.standby)
        else:
            end(self.standby)
        self.require(self.standby_store, {PutStatus.PUT_OK}, 0)
        self.require(self.master_store, {s for s in PutStatus if s.stored}, self.since)
        ours, theirs = read_epoch(self.standby_store), read_epoch(self.master_store)
        assert theirs is not None
        take_over = take_over and ours is not None and ours.id == theirs.id
        if take_over:
            self.since = len(self.lines())
            self.master_store, self.standby_store = self.standby_store, self.master_store
        self.master = self._start_master()
        self.standby = self._start_standby()
        return take_over

    def kill_all(self) -> None:
        """Ends both processes, whatever has happened."""
        for process in (self.master, self.standby):
            if process.is_alive():
                process.kill()
                process.join()

    def require(self, store: Path, statuses: set[PutStatus], since: int) -> None:
        """Opens a store as a take-over does, and checks that it has whole transactions in order, and all with these
        statuses."""
        TransactionLog(store, destination="shop", segment_bytes=SEGMENT_BYTES).close()
        count = 0
        for segment in layout.list_segments(store):
            data = segment.read_bytes()
            for entry in IndexFile(segment).entries:
                offset, length = int(entry["offset"]), int(entry["length"])
                assert self.number[int(entry["seq"])] == count, "a gap, or a transaction twice"
                assert data[offset : offset + length] == self.pool[count].data
                count += 1
        acknowledged = [self.number[seq] for seq, status in self.lines()[since:] if status in statuses]
        assert max(acknowledged, default=-1) < count, (
            f"{store.name} has {count} transactions, {max(acknowledged)} was acknowledged"
        )


def kill(process: BaseProcess) -> None:
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def end(process: BaseProcess) -> None:
    process.terminate()
    process.join(60)
    assert process.exitcode == 0


@pytest.mark.rule("rocketmq-log-25")
def test_nothing_acknowledged_is_missing_on_the_survivor(tmp_path: Path) -> None:
    print(f"TOWPATH_SEED={SEED}")
    dice = random.Random(SEED)
    pair = Pair(tmp_path, make_transactions(60_000 + 20_000 * KILLS, rows=2))
    try:
        kill_at_random(pair, dice)
    finally:
        pair.kill_all()


def kill_at_random(pair: Pair, dice: random.Random) -> None:
    """Kills master and standby in random order; either one continues as the master."""
    victims = ["master"] * KILLS + ["standby"] * KILLS
    dice.shuffle(victims)
    take_overs = 0
    for n, victim in enumerate(victims):
        # Mostly during replication, sometimes while the standby is still catching up.
        pair.wait_for(PutStatus.PUT_OK if n == 0 or dice.random() < 0.8 else None)
        time.sleep(dice.uniform(0.0, 0.3))
        if victim == "standby":
            pair.kill_standby()
        else:
            wanted = dice.random() < 0.7
            take_overs += pair.kill_master(also_standby=dice.random() < 0.5, take_over=wanted)
    pair.wait_for(PutStatus.PUT_OK)
    end(pair.master)
    end(pair.standby)
    assert digests(pair.standby_store) == digests(pair.master_store)
    pair.require(pair.standby_store, {PutStatus.PUT_OK}, 0)
    epoch = read_epoch(pair.standby_store)
    assert epoch is not None
    assert epoch.number == 1 + take_overs
    counts = Counter(status.name for _, status in pair.lines())
    assert counts["PUT_OK"] > 10 * KILLS
    print(f"{len(victims)} kills, {take_overs} take-overs, {dict(counts)}")
