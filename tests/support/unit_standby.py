"""Masters and standbys for tests: real ones, and fake ones that say what they are told to."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from cdc.addresses import Address
from cdc.event_store.transaction_log import TransactionLog
from cdc.replication.master import Master
from cdc.replication.protocol import (
    Channel,
    Formats,
    Hello,
    Kind,
    Welcome,
    expect,
    new_nonce,
    parse_message,
    sign_message,
)
from cdc.store.formats import layout
from cdc.store.formats.index import IndexFile
from cdc.store.writer.log import LogWriter
from tests.support.standby import Standby, digests, open_master

SEGMENT_BYTES = 65536
FORMATS = Formats(store=1, index=1)


def open_log(stack: ExitStack, path: Path) -> TransactionLog:
    log = TransactionLog(path, destination="shop", segment_bytes=SEGMENT_BYTES)
    stack.callback(log.close)
    return log


def serve(stack: ExitStack, log: LogWriter, **options: object) -> Master:
    master = open_master(log, **options)  # type: ignore[arg-type]
    stack.callback(master.close)
    return master


def follow(stack: ExitStack, path: Path, master: Address, **options: object) -> Standby:
    standby = Standby(path, master, **options)  # type: ignore[arg-type]
    stack.callback(standby.close)
    return standby


def caught_up(log: LogWriter, master: Master) -> None:
    log.flush()
    assert master.wait_until(log.last_seq or 0, 10), master.standbys()


def until(condition: Callable[[], bool], what: str, limit_s: float = 10) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {limit_s} s"
        time.sleep(0.005)


def same(one: Path, other: Path) -> None:
    """Equal in all that is copied; small files may come up to a heartbeat later."""
    with suppress(AssertionError):
        until(lambda: digests(one) == digests(other), "equal stores")
    assert digests(other) == digests(one)


def seqs(path: Path) -> list[int]:
    found: list[int] = []
    for segment in layout.list_segments(path):
        entries = IndexFile(segment).entries
        found += [int(seq) for seq in entries["seq"][entries["length"] > 0]]
    return found


def expect_refusal(channel: Channel) -> bytes:
    frame = channel.receive(5)
    assert frame is not None
    assert frame.kind is Kind.REFUSE
    return frame.payload


class RelayLogOf(ExitStack):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def __enter__(self) -> TransactionLog:  # type: ignore[override]
        return open_log(self, self._path)


class FakeStandby:
    """Greets, follows from the beginning, and reports what it is told to."""

    def __init__(self, stack: ExitStack, master: Master) -> None:
        self.channel = Channel(socket.create_connection((master.address.host, master.address.port)), send_timeout_s=5)
        stack.callback(self.channel.close)
        expect(self.channel, Kind.CHALLENGE, 5)
        hello = Hello(
            destination="shop",
            nonce=bytes(16).hex(),
            towpath="1",
            term=0,
            state="none",
            mastership="",
            segment="",
            size_bytes=0,
            last_seq=0,
            tail_crc=0,
            files={},
        )
        self.channel.send(Kind.HELLO, sign_message(hello, b"hello", b"", None))
        expect(self.channel, Kind.WELCOME, 5)
        self.channel.send(Kind.FOLLOW, b'{"have":[]}')

    def report(self, *, seq: int) -> None:
        self.channel.send(Kind.REPORT, struct.pack("<QQ", seq, 0))


def welcome(**changes: object) -> Welcome:
    """Of a master of term 1 whose store is empty."""
    fields = {
        "term": 1,
        "mastership": "ab",
        "towpath": "1",
        "formats": FORMATS,
        "heartbeat_s": 1,
        "segments": [],
        "removed_seq": 0,
        "given_up": False,
    }
    return Welcome.model_validate(fields | changes)


def greet_as_master(connection: socket.socket, **changes: object) -> Channel:
    """What a master of term 1 without a secret and without segments says, up to its WELCOME; ``changes``: other fields
    of that."""
    channel = Channel(connection, send_timeout_s=5)
    channel.send(Kind.CHALLENGE, new_nonce())
    hello = parse_message(Hello, expect(channel, Kind.HELLO, 5)[32:], "peer")
    channel.send(Kind.WELCOME, sign_message(welcome(**changes), b"welcome", bytes.fromhex(hello.nonce), None))
    return channel
