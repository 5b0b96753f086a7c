"""Reading transactions from a dump: packets in pieces of any size, large events, checksums, damage."""

from __future__ import annotations

import random
import struct
from types import TracebackType
from typing import Any, Self

import pytest

from cdc.base.errors import CdcError, CorruptStreamError, DamagedError, SourceRefusedError
from cdc.binlog.constants import EventType
from cdc.binlog.events import make_rotate
from cdc.binlog.gtid_events import parse_gtid_list, parse_previous_gtids
from cdc.binlog.gtids import GtidSet, MariadbGtid
from cdc.config import SourceConfig
from cdc.source import scan
from cdc.source.scan import read_file_start, read_transactions
from cdc.testing.binlog import BinlogBuilder, packets_of
from tests.support.rare_events import tagged

SOURCE = SourceConfig(url="mysql://u@h", server_id=7)
UUID = "01010101-0101-0101-0101-010101010101"
EOF = b"\1\0\0\0\xfe"


class Dump:
    """Hands over a stream in pieces."""

    def __init__(self, stream: bytes, pieces: random.Random | None) -> None:
        self._stream, self._at, self._pieces = stream, 0, pieces

    def recv_into(self, buffer: memoryview) -> int:
        size = min(len(buffer), len(self._stream) - self._at)
        if self._pieces is not None:
            size = min(size, self._pieces.randint(1, 40))
        if not size:
            raise CorruptStreamError("the stream has ended")
        buffer[:size] = self._stream[self._at : self._at + size]
        self._at += size
        return size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(stream: bytes, pieces: random.Random | None = None) -> None:
        monkeypatch.setattr(scan, "short_dump", lambda source, position: Dump(stream, pieces))

    return make


def sample() -> BinlogBuilder:
    log = BinlogBuilder()
    log.event(EventType.PREVIOUS_GTIDS, bytes(8))
    log.transaction("shop", "orders", [1, 2])
    log.ddl("CREATE TABLE shop.x (id INT)")
    log.event(EventType.GTID_TAGGED, tagged(b"tag", 5, 1_700_000_000_000_009))
    log.query("BEGIN")
    log.xid()
    return log


@pytest.mark.parametrize("pieces", [True, False])
def test_transactions_with_positions_gtids_and_times(serve: Any, pieces: bool, seed: int) -> None:
    log = sample()
    ends = [0, *(int.from_bytes(event[13:17], "little") for event in log.events)]
    serve(log.packets + EOF, random.Random(seed) if pieces else None)
    transactions = list(read_transactions(SOURCE, "binlog.000001"))
    assert [transaction.gtid for transaction in transactions] == [f"{UUID}:1", f"{UUID}:2", f"{UUID[:-2]}fe:tag:5"]
    assert [transaction.time_us for transaction in transactions] == [log.timestamp * 10**6 + n for n in (1, 2, 9)]
    assert [(transaction.begin.pos, transaction.end.pos) for transaction in transactions] == [
        (ends[2], ends[7]),
        (ends[7], ends[9]),
        (ends[9], ends[12]),
    ]
    start = read_file_start(SOURCE, "binlog.000001")
    assert start.created_s == log.timestamp and start.gtids == GtidSet()


@pytest.mark.parametrize("size", [0xFFFFFF - 1, 0xFFFFFF, 0xFFFFFF + 1, 2 * 0xFFFFFF, 40_000_000])
def test_an_event_of_several_packets_is_passed_over(serve: Any, size: int) -> None:
    log = BinlogBuilder()
    log.gtid()
    log.query("BEGIN")
    log.event(EventType.WRITE_ROWS, bytes(size - 1 - 19 - 4))  # with the status byte, a payload of this size
    log.xid()
    log.transaction("shop", "orders", [1])
    serve(log.packets + EOF)
    transactions = list(read_transactions(SOURCE, "binlog.000001"))
    assert [transaction.end.pos for transaction in transactions] == [
        int.from_bytes(log.events[n][13:17], "little") for n in (4, 9)
    ]


def test_positions_beyond_four_gibibytes(serve: Any) -> None:
    log = BinlogBuilder()
    log.transaction("shop", "orders", [1])
    log.pos = (1 << 32) - 150
    begin = log.pos
    log.transaction("shop", "orders", [2])
    log.transaction("shop", "orders", [3])
    serve(log.packets + EOF)
    transactions = list(read_transactions(SOURCE, "binlog.000001"))
    assert (
        transactions[1].begin.pos == begin
        and transactions[2].begin == transactions[1].end
        and transactions[2].end.pos == log.pos > 1 << 32
    )


def test_the_next_file_begins_at_four(serve: Any) -> None:
    first, second = BinlogBuilder(), BinlogBuilder()
    first.transaction("shop", "orders", [1])
    first.event(EventType.ROTATE, struct.pack("<Q", 4) + b"binlog.000002")
    second.transaction("shop", "orders", [2])
    packets = [first.packets, *(packets_of(event) for event in (make_rotate("binlog.000002", 4, 1), *second.events))]
    serve(b"".join(packets) + EOF)
    transactions = list(read_transactions(SOURCE, "binlog.000001"))
    assert [transaction.begin.file for transaction in transactions] == ["binlog.000001", "binlog.000002"]
    assert transactions[1].begin.pos == int.from_bytes(second.events[0][13:17], "little")


def test_an_error_of_the_server_is_explained(serve: Any) -> None:
    text = b"\xff\xd4\x04#HY000Could not find first log file name in binary log index file"
    serve(len(text).to_bytes(3, "little") + b"\0" + text)
    with pytest.raises(SourceRefusedError, match=r"no longer has the binlog at binlog\.000001:4"):
        list(read_transactions(SOURCE, "binlog.000001"))


def test_damage_anywhere_is_an_error_or_changes_no_gtid(serve: Any, seed: int) -> None:
    rng = random.Random(seed)
    stream = sample().packets + EOF
    serve(stream)
    whole = {transaction.gtid for transaction in read_transactions(SOURCE, "binlog.000001")}
    for at in range(len(stream)):
        damaged = bytearray(stream)
        damaged[at] ^= 1 << rng.randrange(8)
        serve(bytes(damaged))
        try:
            assert {transaction.gtid for transaction in read_transactions(SOURCE, "binlog.000001")} <= whole
        except CdcError:
            continue


def test_the_sets_of_earlier_files() -> None:
    a, b = bytes(range(16)), bytes(range(1, 17))

    def intervals(*ranges: tuple[int, int]) -> bytes:
        return struct.pack("<Q", len(ranges)) + b"".join(struct.pack("<QQ", first, last + 1) for first, last in ranges)

    plain = bytes(19) + struct.pack("<Q", 2) + a + intervals((1, 5), (7, 7)) + b + intervals((3, 4))
    names = ["00010203-0405-0607-0809-0a0b0c0d0e0f", "01020304-0506-0708-090a-0b0c0d0e0f10"]
    assert str(parse_previous_gtids(plain)) == f"{names[0]}:1-5:7,{names[1]}:3-4"
    with_tags = bytes(19) + struct.pack("<Q", 1 << 56 | 2 << 8 | 1)
    with_tags += a + b"\0" + intervals((1, 5)) + a + b"\6tag" + intervals((2, 2))
    assert str(parse_previous_gtids(with_tags)) == f"{names[0]}:1-5:tag:2"
    listed = bytes(19) + struct.pack("<I", 2) + struct.pack("<IIQIIQ", 0, 1, 5, 7, 2, 9)
    assert parse_gtid_list(listed) == (MariadbGtid(0, 1, 5), MariadbGtid(7, 2, 9))
    for event, parse in ((plain, parse_previous_gtids), (with_tags, parse_previous_gtids), (listed, parse_gtid_list)):
        for length in range(19, len(event)):
            with pytest.raises(DamagedError):
                parse(event[:length])
