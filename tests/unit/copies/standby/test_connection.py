"""A master's connection to a standby: greeting, refusals and reports."""

from __future__ import annotations

import json
import socket
import struct
from contextlib import ExitStack
from pathlib import Path

import pytest

from cdc.base.errors import (
    ConfigError,
    IdentityError,
)
from cdc.copies.standby import master as master_module
from cdc.copies.standby import protocol
from cdc.copies.standby.protocol import (
    Channel,
    FrameKind,
    Refuse,
    expect,
    parse_message,
)
from cdc.store.formats import layout
from cdc.store.writer.durability import PutStatus
from cdc.testing.transactions import make_transactions
from tests.support.unit_standby import (
    FakeStandby,
    caught_up,
    expect_refusal,
    follow,
    frame_bytes,
    open_log,
    same,
    seqs,
    serve,
    until,
)

HELLO: dict[str, object] = {
    "destination": "shop",
    "nonce": bytes(16).hex(),
    "towpath": "1",
    "term": 0,
    "state": "none",
    "mastership": "",
    "segment": "",
    "size_bytes": 0,
    "last_seq": 0,
    "tail_crc": 0,
    "files": {},
}


SECRET = b"a secret of more than 16 bytes"


@pytest.mark.parametrize(("mine", "theirs"), [(SECRET, None), (None, SECRET), (SECRET, SECRET + b"!")])
def test_another_secret_is_refused_on_both_sides(
    stack: ExitStack, tmp_path: Path, mine: bytes | None, theirs: bytes | None, capfd: pytest.CaptureFixture[str]
) -> None:
    log = open_log(stack, tmp_path / "m")
    master = serve(stack, log, secret=mine)
    assert log.put(make_transactions(1)) is PutStatus.SLAVE_NOT_AVAILABLE
    error = follow(stack, tmp_path / "s", master.address, secret=theirs).wait()
    assert isinstance(error, ConfigError)
    assert "secret" in str(error)
    said = capfd.readouterr()
    assert SECRET.decode() not in said.out + said.err + str(error)
    assert "standby refused" in said.out + said.err
    assert seqs(tmp_path / "s") == []


def test_a_newer_standby_is_refused_with_a_message(stack: ExitStack, tmp_path: Path) -> None:
    master = serve(stack, open_log(stack, tmp_path / "m"))
    with socket.create_connection((master.address.host, master.address.port)) as connection:
        channel = Channel(connection, send_timeout_s=5)
        expect(channel, FrameKind.CHALLENGE, 5)
        connection.sendall(frame_bytes(FrameKind.HELLO, b"what only version 2 knows", version=2))
        said = parse_message(Refuse, expect_refusal(channel), "peer")
    assert said.kind == "version"
    assert "version 2" in said.error and "knows 1" in said.error


def test_another_destination_is_refused(stack: ExitStack, tmp_path: Path) -> None:
    master = serve(stack, open_log(stack, tmp_path / "m"))
    error = follow(stack, tmp_path / "s", master.address, destination="other").wait()
    assert isinstance(error, IdentityError)
    assert "'other'" in str(error) and "'shop'" in str(error)


def test_a_report_of_transactions_never_sent_is_refused(stack: ExitStack, tmp_path: Path) -> None:
    transactions = make_transactions(2)
    log = open_log(stack, tmp_path / "m")
    master = serve(stack, log, timeout_s=2)
    fake = FakeStandby(stack, master)
    fake.report(seq=1 << 60)
    frame = fake.channel.receive(5)
    while frame is not None and frame.kind is not FrameKind.REFUSE:
        frame = fake.channel.receive(5)
    assert frame is not None
    assert b"only 0 was sent" in frame.payload
    assert log.put(transactions) is PutStatus.SLAVE_NOT_AVAILABLE


def test_damage_at_the_master_is_logged_on_both_sides(
    stack: ExitStack, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = open_log(stack, tmp_path / "m")
    log.put(make_transactions(900))
    index = layout.index_path(layout.list_segments(tmp_path / "m")[0])
    data = bytearray(index.read_bytes())
    data[-20] ^= 1
    index.write_bytes(data)
    master = serve(stack, log)
    standby = follow(stack, tmp_path / "s", master.address)
    said: list[str] = []

    def both() -> bool:
        said.append(capfd.readouterr().err)
        text = "".join(said)
        return "standby refused" in text and "refused by the other side: entry" in text

    until(both, "both sides say it")
    assert standby.error is None


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (FrameKind.FOLLOW, b'{"have":[{"segment":"x","size_bytes":-1,"entries":0}]}'),
        (FrameKind.FOLLOW, b'{"have":[{"segment":"x","size_bytes":0,"entries":%d}]}' % 10**30),
        (FrameKind.FETCH, b'{"segment":"000-0000001-00000000004.binlog","start":-5,"stop":9}'),
        (FrameKind.COMPARE, b'{"segment":"../../etc/passwd","start":0,"stop":0,"of":"index"}'),
        (FrameKind.COMPARE, b'{"segment":"000-0000001-00000000004.binlog","start":0,"stop":%d,"of":"log"}' % 10**40),
        (FrameKind.REPORT, bytes(16)),
    ],
)
def test_invalid_frames_from_a_standby_are_refused(
    stack: ExitStack, tmp_path: Path, kind: FrameKind, payload: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    log = open_log(stack, tmp_path / "m")
    master = serve(stack, log)
    log.put(make_transactions(3))
    channel = greet(stack, master)
    channel.send(kind, payload)
    expect_refusal(channel)
    follow(stack, tmp_path / "s", master.address)
    caught_up(log, master)
    same(tmp_path / "m", tmp_path / "s")
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(("key", "value"), [("last_seq", -1), ("size_bytes", 10**30), ("nonce", "ab")])
def test_an_invalid_greeting_is_refused(stack: ExitStack, tmp_path: Path, key: str, value: object) -> None:
    master = serve(stack, open_log(stack, tmp_path / "m"))
    channel = Channel(socket.create_connection((master.address.host, master.address.port)), send_timeout_s=5)
    stack.callback(channel.close)
    expect(channel, FrameKind.CHALLENGE, 5)
    hello = {**HELLO, key: value}
    channel.send(FrameKind.HELLO, bytes(32) + json.dumps(hello).encode())
    expect_refusal(channel)


def greet(stack: ExitStack, master: master_module.Master) -> Channel:
    channel = Channel(socket.create_connection((master.address.host, master.address.port)), send_timeout_s=5)
    stack.callback(channel.close)
    expect(channel, FrameKind.CHALLENGE, 5)
    channel.send(FrameKind.HELLO, bytes(32) + json.dumps(HELLO).encode())
    expect(channel, FrameKind.WELCOME, 5)
    return channel


def test_a_greeting_larger_than_the_limit_is_refused(stack: ExitStack, tmp_path: Path) -> None:
    master = serve(stack, open_log(stack, tmp_path / "m"))
    channel = Channel(socket.create_connection((master.address.host, master.address.port)), send_timeout_s=5)
    stack.callback(channel.close)
    expect(channel, FrameKind.CHALLENGE, 5)
    channel.socket.sendall(struct.pack("<4sHHII", b"TPSB", 1, FrameKind.HELLO, protocol.MAX_GREETING + 1, 0))
    assert b"the limit here is" in expect_refusal(channel)
