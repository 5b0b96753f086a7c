"""Puts of a process that is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cdc.event_store.transaction_log import TransactionLog
from tests.support.unit_store import all_seqs

LEAST_SEGMENT = 65536


def open_log(path: Path) -> TransactionLog:
    return TransactionLog(path, destination="shop", segment_bytes=LEAST_SEGMENT)


WRITER = """
import sys
from pathlib import Path
from cdc.store.writer.durability import FlushPolicy
from cdc.event_store.transaction_log import TransactionLog
from cdc.testing.transactions import make_transactions

policy = FlushPolicy("async", interval_s=600, thorough_interval_s=600)
log = TransactionLog(Path(sys.argv[1]), destination="shop", segment_bytes=1 << 30, policy=policy)
for transaction in make_transactions(2_000):
    print(transaction.seq, log.put([transaction]).name, flush=True)
sys.stdin.read()
"""


@pytest.mark.rule("rocketmq-log-18")
def test_asynchronous_puts_outlive_a_sigkill(tmp_path: Path) -> None:
    """RocketMQ's transient pool loses them. Here a put is in the kernel's page cache when it is answered.

    The flush that would make it visible is ten minutes away.
    """
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "store")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdout is not None
        answered = [writer.stdout.readline().split() for _ in range(300)]
        writer.kill()
        assert writer.wait() == -signal.SIGKILL
        answered += [line.split() for line in writer.stdout if line.endswith("\n")]
    assert {status for _, status in answered} == {"PUT_OK"}
    assert len(all_seqs(tmp_path / "store")) < 300, "most of it was not flushed"
    open_log(tmp_path / "store").close()
    seqs = all_seqs(tmp_path / "store")
    assert seqs[: len(answered)] == [int(seq) for seq, _ in answered]
