"""The standby protocol: frames, messages and signatures."""

from __future__ import annotations

import struct
import zlib
from contextlib import ExitStack
from pathlib import Path

import pytest

from cdc.base.errors import (
    CdcError,
    ConfigError,
    CorruptStreamError,
    PeerUnavailableError,
    VersionError,
)
from cdc.copies.standby import protocol
from cdc.copies.standby.protocol import (
    FrameKind,
    FrameParser,
    Hello,
    Refuse,
    Welcome,
    new_nonce,
    parse_message,
    sign_message,
    verify_message,
)
from tests.support.unit_standby import (
    frame_bytes,
)

GOLDEN = Path(__file__).parents[3] / "golden" / "standby-v1.frames"


SECRET = b"a secret of more than 16 bytes"


def test_a_frame_split_at_any_byte_is_parsed() -> None:
    data = frame_bytes(FrameKind.DATA, bytes(8) + b"events") + frame_bytes(FrameKind.HEARTBEAT, bytes(16))
    for cut in range(len(data)):
        parser = FrameParser("peer")
        parser.feed(data[:cut])
        got = []
        while frame := parser.next():
            got.append(frame)
        parser.feed(data[cut:])
        while frame := parser.next():
            got.append(frame)
        assert got == [(FrameKind.DATA, bytes(8) + b"events"), (FrameKind.HEARTBEAT, bytes(16))]


def test_every_flipped_byte_of_a_frame_is_detected() -> None:
    data = frame_bytes(FrameKind.REPORT, struct.pack("<QQ", 7, 8) + b"name")
    for at in range(len(data)):
        parser = FrameParser("peer")
        parser.feed(data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :])
        if at in (8, 9):  # the length: more is waited for, and what comes next does not fit
            assert parser.next() is None
            parser.feed(data * 500)
        with pytest.raises((CorruptStreamError, VersionError)):
            parser.next()


def test_a_newer_frame_is_refused_and_a_newer_refusal_is_read() -> None:
    parser = FrameParser("10.0.0.7:4100")
    parser.feed(frame_bytes(FrameKind.HELLO, b"{}", version=2))
    with pytest.raises(VersionError, match=r"10\.0\.0\.7:4100.*version 2.*knows 1.*same Towpath"):
        parser.next()
    second_parser = FrameParser("peer")
    second_parser.feed(frame_bytes(FrameKind.REFUSE, b'{"error":"no"}', version=2))
    assert second_parser.next() == (FrameKind.REFUSE, b'{"error":"no"}')


def test_bytes_that_are_not_a_frame_are_refused() -> None:
    for data, what in (
        (b"GET / HTTP/1.1\r\n", "does not speak"),
        (
            frame_bytes(FrameKind.DATA, b"")[:8] + struct.pack("<II", protocol.MAX_PAYLOAD + 1, 0),
            "a frame of 16777217 bytes",
        ),
    ):
        parser = FrameParser("peer")
        parser.feed(data)
        with pytest.raises(CorruptStreamError, match=what):
            parser.next()
    parser = FrameParser("peer")
    head = struct.pack("<4sHHI", b"TPSB", 1, 99, 0)
    parser.feed(head + zlib.crc32(head).to_bytes(4, "little"))
    with pytest.raises(CorruptStreamError, match="unknown kind 99"):
        parser.next()


def test_frames_of_version_1_are_read() -> None:
    """The golden file has one frame of each kind, as version 1 wrote it."""
    parser = FrameParser("peer")
    parser.feed(GOLDEN.read_bytes())
    got = []
    while frame := parser.next():
        got.append(frame)
    assert [frame.kind for frame in got] == list(FrameKind)
    by_kind = dict(got)
    hello = parse_message(
        Hello, verify_message(by_kind[FrameKind.HELLO], b"hello", by_kind[FrameKind.CHALLENGE], SECRET, "peer"), "peer"
    )
    assert (hello.destination, hello.term, hello.last_seq) == ("shop", 3, 17179869311)
    nonce = bytes.fromhex(hello.nonce)
    welcome = parse_message(
        Welcome, verify_message(by_kind[FrameKind.WELCOME], b"welcome", nonce, SECRET, "peer"), "peer"
    )
    assert welcome.segments == ["000-0000001-00000000004.binlog"]
    assert parse_message(Refuse, by_kind[FrameKind.REFUSE], "peer").kind == "identity"


def test_a_recorded_greeting_is_refused(stack: ExitStack, tmp_path: Path) -> None:
    nonce, other = new_nonce(), new_nonce()
    data = sign_message(Refuse(error="x"), b"hello", nonce, SECRET)
    assert verify_message(data, b"hello", nonce, SECRET, "peer") == data[32:]
    for purpose, challenge in ((b"hello", other), (b"welcome", nonce)):
        with pytest.raises(ConfigError, match="same secret"):
            verify_message(data, purpose, challenge, SECRET, "peer")


def test_lost_and_corrupt_connections_are_retryable() -> None:
    errors: list[type[CdcError]] = [PeerUnavailableError, CorruptStreamError]
    assert all(error.retryable for error in errors)
