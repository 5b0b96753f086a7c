"""The master: how a put waits for standbys."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from cdc.base.errors import (
    ConfigError,
    PeerUnavailableError,
)
from cdc.copies.standby import master as master_module
from cdc.copies.standby.protocol import (
    DATA,
    Channel,
)
from cdc.store.writer.durability import PutStatus
from cdc.testing.threads import ThreadCall
from cdc.testing.transactions import make_transactions
from tests.support.standby import QUICK, digests
from tests.support.unit_standby import (
    FakeStandby,
    caught_up,
    follow,
    open_log,
    same,
    seqs,
    serve,
    until,
)


@pytest.mark.rule("rocketmq-log-27")
def test_without_a_standby_a_put_ends_at_once(stack: ExitStack, tmp_path: Path) -> None:
    log = open_log(stack, tmp_path / "m")
    serve(stack, log, timeout_s=30)
    began = time.monotonic()
    assert log.put(make_transactions(1), timeout_s=30) is PutStatus.SLAVE_NOT_AVAILABLE
    assert time.monotonic() - began < 20


@pytest.mark.rule("rocketmq-log-26")
def test_a_put_times_out_if_the_standby_hangs(stack: ExitStack, tmp_path: Path) -> None:
    """RocketMQ's FLUSH_SLAVE_TIMEOUT: the put is written, but the standby does not report it in time."""
    transactions = make_transactions(2)
    log = open_log(stack, tmp_path / "m")
    master = serve(stack, log, timeout_s=0.2)
    fake = FakeStandby(stack, master)
    fake.report(seq=0)
    until(lambda: bool(master.standbys()) and master.standbys()[0].connected, "a standby")
    assert log.put(transactions[:1], timeout_s=30) is PutStatus.FLUSH_SLAVE_TIMEOUT
    fake.report(seq=transactions[0].seq)
    assert master.wait_until(transactions[0].seq, 5)
    waiting = ThreadCall(lambda: log.put(transactions[1:], timeout_s=2))
    assert waiting.result() is PutStatus.FLUSH_SLAVE_TIMEOUT
    assert seqs(tmp_path / "m") == [t.seq for t in transactions]


@pytest.mark.rule("rocketmq-log-27")
def test_a_put_ends_when_the_standby_disconnects(stack: ExitStack, tmp_path: Path) -> None:
    log = open_log(stack, tmp_path / "m")
    master = serve(stack, log, timeout_s=30)
    fake = FakeStandby(stack, master)
    fake.report(seq=0)
    until(lambda: bool(master.standbys()) and master.standbys()[0].connected, "a standby")
    waiting = ThreadCall(lambda: log.put(make_transactions(1), timeout_s=30))
    assert waiting.waits()
    fake.channel.close()
    assert waiting.result() is PutStatus.SLAVE_NOT_AVAILABLE


def test_a_put_does_not_wait_for_a_standby_too_far_behind(stack: ExitStack, tmp_path: Path) -> None:
    """RocketMQ's haSlaveFallbehindMax."""
    transactions = make_transactions(400)
    log = open_log(stack, tmp_path / "m")
    log.put(transactions[:300])
    master = serve(stack, log, timeout_s=30, max_behind_bytes=20_000)
    fake = FakeStandby(stack, master)
    fake.report(seq=0)
    until(lambda: bool(master.standbys()) and master.standbys()[0].behind_bytes > 20_000, "a standby far behind")
    began = time.monotonic()
    assert log.put(transactions[300:], timeout_s=30) is PutStatus.SLAVE_NOT_AVAILABLE
    assert time.monotonic() - began < 20


@pytest.mark.rule("rocketmq-log-29")
def test_an_asynchronous_master_does_not_wait(stack: ExitStack, tmp_path: Path) -> None:
    transactions = make_transactions(20)
    log = open_log(stack, tmp_path / "m")
    master = serve(stack, log, role="async_master")
    assert log.put(transactions[:10]) is PutStatus.PUT_OK
    follow(stack, tmp_path / "s", master.address)
    assert log.put(transactions[10:]) is PutStatus.PUT_OK
    caught_up(log, master)
    same(tmp_path / "m", tmp_path / "s")


def test_a_silent_standby_is_disconnected(stack: ExitStack, tmp_path: Path) -> None:
    master = serve(stack, open_log(stack, tmp_path / "m"))
    fake = FakeStandby(stack, master)
    fake.report(seq=0)
    until(lambda: bool(master.standbys()) and master.standbys()[0].connected, "a standby")
    until(lambda: not any(standby.connected for standby in master.standbys()), "its end", QUICK.dead_s + 3)


def test_a_port_in_use_is_an_error_that_names_it(stack: ExitStack, tmp_path: Path) -> None:
    master = serve(stack, open_log(stack, tmp_path / "m"))
    with pytest.raises(ConfigError, match=f"cannot listen at {master.address}"):
        serve(stack, open_log(stack, tmp_path / "n"), listen=master.address)


def test_a_connection_that_breaks_at_once_does_not_stop_the_master(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other side is gone before its connection was accepted."""
    broken: list[int] = []

    class Once(Channel):
        def __init__(self, connection: socket.socket, *, send_timeout_s: float) -> None:
            if not broken:
                broken.append(1)
                connection.close()
                raise PeerUnavailableError("the connection broke", place="peer")
            super().__init__(connection, send_timeout_s=send_timeout_s)

    monkeypatch.setattr(master_module, "Channel", Once)
    log = open_log(stack, tmp_path / "m")
    master = serve(stack, log)
    follow(stack, tmp_path / "s", master.address)
    log.put(make_transactions(3))
    caught_up(log, master)
    assert broken
    assert digests(tmp_path / "s") == digests(tmp_path / "m")
    assert DATA.size == 8
