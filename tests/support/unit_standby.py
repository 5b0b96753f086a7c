"""Masters and standbys for tests: real ones, and fake ones that send what a test tells them."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from cdc.base.addresses import Address
from cdc.copies.standby.master import Master
from cdc.copies.standby.protocol import (
    Channel,
    Formats,
    FrameKind,
    Hello,
    Welcome,
    expect,
    frame_header,
    new_nonce,
    parse_message,
    sign_message,
)
from cdc.event_store.transaction import Transaction
from cdc.event_store.transaction_log import TransactionLog
from cdc.store.formats import layout
from cdc.store.formats.index import IndexFile
from cdc.store.writer.durability import PutStatus
from cdc.store.writer.log import LogWriter
from tests.support.standby import Standby, digests, open_master

SEGMENT_BYTES = 65536
FORMATS = Formats(store=1, index=1)


def open_log(stack: ExitStack, path: Path) -> TransactionLog:
    """Opens a store for writing until the end of the test."""
    log = TransactionLog(path, destination="shop", segment_bytes=SEGMENT_BYTES)
    stack.callback(log.close)
    return log


def serve(stack: ExitStack, log: LogWriter, **options: object) -> Master:
    """Makes an open store the master until the end of the test."""
    master = open_master(log, **options)  # type: ignore[arg-type]
    stack.callback(master.close)
    return master


def follow(stack: ExitStack, path: Path, master: Address, **options: object) -> Standby:
    """Starts a standby until the end of the test."""
    standby = Standby(path, master, **options)  # type: ignore[arg-type]
    stack.callback(standby.close)
    return standby


def caught_up(log: LogWriter, master: Master) -> None:
    """Waits until a standby has confirmed everything."""
    log.flush()
    assert master.wait_until(log.last_seq or 0, 10), master.standbys()


def until(condition: Callable[[], bool], what: str, limit_s: float = 10) -> None:
    """Waits until a condition holds; fails after ``limit_s``."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {limit_s} s"
        time.sleep(0.005)


def same(store: Path, copy: Path) -> None:
    """Waits until two stores are equal in all that is copied; small files may arrive a heartbeat later."""
    with suppress(AssertionError):
        until(lambda: digests(store) == digests(copy), "equal stores")
    assert digests(copy) == digests(store)


def seqs(path: Path) -> list[int]:
    """Returns the seqs of all transactions in a store."""
    all_seqs: list[int] = []
    for segment in layout.list_segments(path):
        entries = IndexFile(segment).entries
        all_seqs += [int(seq) for seq in entries["seq"][entries["length"] > 0]]
    return all_seqs


def fill(path: Path, transactions: list[Transaction]) -> None:
    """Writes a store with these transactions."""
    with ExitStack() as stack:
        assert open_log(stack, path).put(transactions) is PutStatus.PUT_OK


def frame_bytes(kind: FrameKind, payload: bytes, *, version: int = 1) -> bytes:
    """Returns a whole frame."""
    return frame_header(kind, payload, version=version) + payload


def pair(stack: ExitStack, folder: Path, transactions: list[Transaction]) -> tuple[TransactionLog, Master, Standby]:
    """Starts a master and a standby, and waits until the standby has everything."""
    log = open_log(stack, folder / "m")
    master = serve(stack, log)
    standby = follow(stack, folder / "s", master.address)
    log.put(transactions)
    caught_up(log, master)
    return log, master, standby


def expect_refusal(channel: Channel) -> bytes:
    """Returns the payload of the next frame, which must be a REFUSE."""
    frame = channel.receive(5)
    assert frame is not None
    assert frame.kind is FrameKind.REFUSE
    return frame.payload


class OpenLog(ExitStack):
    """Opens a store for writing in a ``with`` block."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def __enter__(self) -> TransactionLog:  # type: ignore[override]
        return open_log(self, self._path)


class FakeStandby:
    """Greets, follows from the beginning, and reports what a test tells it."""

    def __init__(self, stack: ExitStack, master: Master) -> None:
        self.channel = Channel(socket.create_connection((master.address.host, master.address.port)), send_timeout_s=5)
        stack.callback(self.channel.close)
        expect(self.channel, FrameKind.CHALLENGE, 5)
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
        self.channel.send(FrameKind.HELLO, sign_message(hello, b"hello", b"", None))
        expect(self.channel, FrameKind.WELCOME, 5)
        self.channel.send(FrameKind.FOLLOW, b'{"have":[]}')

    def report(self, *, seq: int) -> None:
        """Reports a seq as the newest one on its disk."""
        self.channel.send(FrameKind.REPORT, struct.pack("<QQ", seq, 0))


def welcome(**changes: object) -> Welcome:
    """Returns the WELCOME of a master of epoch 1 whose store is empty."""
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
    """Plays a master of epoch 1, without secret and segments, up to its WELCOME; ``changes`` are fields of that."""
    channel = Channel(connection, send_timeout_s=5)
    channel.send(FrameKind.CHALLENGE, new_nonce())
    hello = parse_message(Hello, expect(channel, FrameKind.HELLO, 5)[32:], "peer")
    channel.send(FrameKind.WELCOME, sign_message(welcome(**changes), b"welcome", bytes.fromhex(hello.nonce), None))
    return channel
