"""SIGKILL of master and standby under load: what was acknowledged with PUT_OK is on whichever survives.

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

from cdc.addresses import Address
from cdc.event_store.transaction import Transaction
from cdc.event_store.transaction_log import TransactionLog
from cdc.log import configure
from cdc.replication.follower import Follower
from cdc.replication.role import read_epoch
from cdc.store.formats import layout
from cdc.store.formats.index import IndexFile
from cdc.store.writer.durability import PutStatus
from cdc.testing.servers import HOST, free_port
from cdc.testing.transactions import make_transactions
from tests.support.standby import QUICK, digests, open_master

KILLS = int(os.environ.get("TOWPATH_STANDBY_KILLS", "3"))
SEED = int(os.environ.get("TOWPATH_SEED") or 20_240_601)
PUTTERS = 4
SEGMENT_BYTES = 100_000
FORK = get_context("fork")


def be_master(store: Path, journal: Path, pool: list[Transaction], address: Address) -> None:
    """Several putters take transactions in turn; each notes the status that it got, after it got it. SIGTERM: no more
    is put, and once the standby has everything, this ends."""
    configure("console")
    log = TransactionLog(store, destination="shop", segment_bytes=SEGMENT_BYTES)
    newest = log.last_seq or 0
    rest = iter([t for t in pool if t.seq > newest])
    master = open_master(log, listen=address, timeout_s=2)
    order, stop = threading.Lock(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    fd = os.open(journal, os.O_WRONLY | os.O_APPEND)

    def putter(seed: int) -> None:
        choose = random.Random(seed)
        while not stop.is_set():
            with order:  # seqs rise: whoever takes the next transactions puts them before anybody else
                some = [next(rest) for _ in range(choose.choice((1, 1, 2, 5)))]
                future = log.put_async(some, timeout_s=10)
            status = future.result()
            os.write(fd, "".join(f"{t.seq} {status.name}\n" for t in some).encode())
            if status is PutStatus.SLAVE_NOT_AVAILABLE:
                time.sleep(0.002)  # leave the standby a chance

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
    """Follow until SIGTERM."""
    configure("console")
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    Follower(store, destination="shop", master=address, segment_bytes=SEGMENT_BYTES, timing=QUICK).run(stop)
    os._exit(0)


class Pair:
    """Two stores, two processes, and what was acknowledged."""

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
        found = [line.split() for line in self.journal.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return [(int(seq), PutStatus[status]) for seq, status in found]

    def wait_for(self, status: PutStatus | None) -> None:
        """A put that is answered so (None: in any way) from now on."""
        before, deadline = len(self.lines()), time.monotonic() + 60
        while not any(status in (None, one) for _, one in self.lines()[before:]):
            assert time.monotonic() < deadline, f"no put is answered {'' if status is None else status.name}"
            assert self.master.is_alive(), f"the master has ended with {self.master.exitcode}"
            assert self.standby.is_alive(), f"the standby has ended with {self.standby.exitcode}"
            time.sleep(0.005)

    def kill_standby(self) -> None:
        kill(self.standby)
        self.require(self.standby_store, {PutStatus.PUT_OK}, 0)
        self.standby = self._start_standby()

    def kill_master(self, *, also_standby: bool, take_over: bool) -> bool:
        """The standby, killed too or ended, must have what was acknowledged; then either goes on as the master. Answers
        whether it was the standby: one that has not followed this master yet cannot take over from it."""
        kill(self.master)
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
        """Whatever has happened, nobody is left behind."""
        for process in (self.master, self.standby):
            if process.is_alive():
                process.kill()
                process.join()

    def require(self, store: Path, statuses: set[PutStatus], since: int) -> None:
        """Opened as a take-over would open it: whole transactions in order, and all that were answered so."""
        TransactionLog(store, destination="shop", segment_bytes=SEGMENT_BYTES).close()
        there = 0
        for segment in layout.list_segments(store):
            data = segment.read_bytes()
            for entry in IndexFile(segment).entries:
                offset, length = int(entry["offset"]), int(entry["length"])
                assert self.number[int(entry["seq"])] == there, "a gap, or a transaction twice"
                assert data[offset : offset + length] == self.pool[there].data
                there += 1
        told = [self.number[seq] for seq, status in self.lines()[since:] if status in statuses]
        assert max(told, default=-1) < there, f"{store.name} has {there} transactions, {max(told)} was acknowledged"


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
    """Whatever is killed, and whoever goes on."""
    victims = ["master"] * KILLS + ["standby"] * KILLS
    dice.shuffle(victims)
    take_overs = 0
    for n, victim in enumerate(victims):
        # Most often in the middle of what is replicated, at times while the standby still catches up.
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
    term = read_epoch(pair.standby_store)
    assert term is not None
    assert term.number == 1 + take_overs
    counts = Counter(status.name for _, status in pair.lines())
    assert counts["PUT_OK"] > 10 * KILLS
    print(f"{len(victims)} kills, {take_overs} take-overs, {dict(counts)}")
