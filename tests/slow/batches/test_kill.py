"""A SIGKILL at any moment of get, ack and rollback leaves meta and manifests whole, and loses no batch."""

from __future__ import annotations

import os
import random
import signal
import time
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path

from cdc.batches.manifest_files import load_manifest
from cdc.config import DestinationConfig
from tests.support.processes import read_whole_lines
from tests.support.unit_batches import NumberStore, make_config, make_service

KILLS = 20
SEED = 20261121


def loop(config: DestinationConfig, journal: Path, seed: int) -> None:
    """Gets and acks for ever, sometimes ahead, sometimes with a rollback; records each ack after it is done."""
    service = make_service(config, NumberStore(last=1 << 30))
    choose = random.Random(seed)
    with journal.open("ab", buffering=0) as log:
        while True:
            lease = service.get("owner")
            assert lease is not None
            if choose.random() < 0.3:
                service.get("owner", ahead=True)
            if choose.random() < 0.2:
                service.rollback(lease.batch, lease.token)
                continue
            manifest = lease.manifest
            service.ack(lease.batch, lease.token, results=[{"table": "shop.orders", "delta_version": lease.batch}])
            log.write(f"{manifest.after_seq} {manifest.last_seq} {lease.batch}\n".encode())


def wait_for_more(journal: Path) -> None:
    """Waits until another ack is recorded; the kill then falls anywhere in the batches after it."""
    before, deadline = journal.stat().st_size, time.monotonic() + 60
    while journal.stat().st_size == before:
        assert time.monotonic() < deadline, "nothing is acked"
        time.sleep(0.005)


def test_sigkill_at_random_moments(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    journal = tmp_path / "journal"
    journal.touch()
    moments = random.Random(SEED)
    print(f"seed {SEED}")
    fork = get_context("fork")
    acked_before = 0
    for kill in range(KILLS):
        process = fork.Process(target=loop, args=(config, journal, SEED + kill))
        process.start()
        assert process.pid is not None
        wait_for_more(journal)
        time.sleep(moments.uniform(0.0, 0.15))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == -signal.SIGKILL
        lines = read_whole_lines(journal)

        service = make_service(config, NumberStore(last=1 << 30))
        subscription = service.meta.read().subscription("apply")
        assert subscription.acked_seq >= acked_before
        acked_before = subscription.acked_seq
        end = subscription.acked_seq
        for entry in subscription.outstanding:
            manifest = load_manifest(service.manifests.path("apply", entry.batch))
            assert (manifest.after_seq, manifest.last_seq) == (entry.after_seq, entry.last_seq)
            assert entry.after_seq == end
            end = entry.last_seq
        assert subscription.next_batch > max((e.batch for e in subscription.outstanding), default=0)

    acks = [tuple(map(int, line.split())) for line in lines]
    assert len(acks) >= KILLS
    assert acked_before >= acks[-1][1]
    assert [batch for _, _, batch in acks] == sorted({batch for _, _, batch in acks})
    for (_, last, _), (after, _, _) in pairwise(acks):
        assert last <= after  # no batch comes again; a gap is an ack that was killed before it was recorded
