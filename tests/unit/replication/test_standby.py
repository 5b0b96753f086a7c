"""A standby: its protocol, how it follows, what it cuts, and who is refused."""

from __future__ import annotations

import os
import random
import shutil
import socket
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from cdc.addresses import Address
from cdc.binlog.entry import ENTRY_SIZE, HEADER_SIZE
from cdc.errors import (
    CdcError,
    ConfigError,
    CorruptStreamError,
    DamagedError,
    IdentityError,
    LeaseHeldError,
    PeerUnavailableError,
    VersionError,
)
from cdc.event_store.transaction import Transaction
from cdc.event_store.transaction_log import TransactionLog
from cdc.replication import protocol
from cdc.replication.protocol import (
    Channel,
    FrameParser,
    Hello,
    Kind,
    Refuse,
    Welcome,
    expect,
    new_nonce,
    parse_message,
    sign_message,
    verify_message,
)
from cdc.replication.role import LeadershipEpoch, become_master, read_epoch, read_status, require_follows, write_epoch
from cdc.store.formats import layout
from cdc.store.formats.index import IndexFile, seal
from cdc.store.reader.reader import StoreReader
from cdc.store.retention.cleaner import remove_until
from cdc.store.writer.durability import PutStatus
from cdc.store.writer.log import RelayLog
from cdc.testing.threads import Call
from cdc.testing.transactions import make_transactions
from tests.support.standby import ANY_PORT, QUICK, digests
from tests.support.unit_standby import (
    SEGMENT_BYTES,
    FakeStandby,
    RelayLogOf,
    caught_up,
    expect_refusal,
    follow,
    greet_as_master,
    open_log,
    same,
    seqs,
    serve,
    until,
    welcome,
)

SECRET = b"a secret of more than 16 bytes"
GOLDEN = Path(__file__).parents[2] / "golden" / "standby-v1.frames"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def fill(path: Path, made: list[Transaction]) -> None:
    with ExitStack() as stack:
        assert open_log(stack, path).put(made) is PutStatus.PUT_OK


# frames


def whole(kind: Kind, payload: bytes, *, version: int = 1) -> bytes:
    return protocol.frame_header(kind, payload, version=version) + payload


def test_a_frame_in_any_pieces() -> None:
    data = whole(Kind.DATA, bytes(8) + b"events") + whole(Kind.HEARTBEAT, bytes(16))
    for cut in range(len(data)):
        found = FrameParser("peer")
        found.feed(data[:cut])
        got = []
        while frame := found.next():
            got.append(frame)
        found.feed(data[cut:])
        while frame := found.next():
            got.append(frame)
        assert got == [(Kind.DATA, bytes(8) + b"events"), (Kind.HEARTBEAT, bytes(16))]


def test_every_flipped_byte_of_a_frame_is_noticed() -> None:
    data = whole(Kind.REPORT, struct.pack("<QQ", 7, 8) + b"name")
    for at in range(len(data)):
        found = FrameParser("peer")
        found.feed(data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :])
        if at in (8, 9):  # the length: more is waited for, and what comes next does not fit
            assert found.next() is None
            found.feed(data * 500)
        with pytest.raises((CorruptStreamError, VersionError)):
            found.next()


def test_a_newer_frame_is_refused_by_name_and_a_newer_refusal_is_read() -> None:
    found = FrameParser("10.0.0.7:4100")
    found.feed(whole(Kind.HELLO, b"{}", version=2))
    with pytest.raises(VersionError, match=r"10\.0\.0\.7:4100.*version 2.*knows 1.*same Towpath"):
        found.next()
    again = FrameParser("peer")
    again.feed(whole(Kind.REFUSE, b'{"error":"no"}', version=2))
    assert again.next() == (Kind.REFUSE, b'{"error":"no"}')


def test_what_is_no_frame() -> None:
    for data, what in (
        (b"GET / HTTP/1.1\r\n", "does not speak"),
        (whole(Kind.DATA, b"")[:8] + struct.pack("<II", protocol.MAX_PAYLOAD + 1, 0), "a frame of 16777217 bytes"),
    ):
        found = FrameParser("peer")
        found.feed(data)
        with pytest.raises(CorruptStreamError, match=what):
            found.next()
    found = FrameParser("peer")
    head = struct.pack("<4sHHI", b"TPSB", 1, 99, 0)
    found.feed(head + zlib.crc32(head).to_bytes(4, "little"))
    with pytest.raises(CorruptStreamError, match="unknown kind 99"):
        found.next()


def test_frames_of_version_1_are_read_for_ever() -> None:
    """One of each kind, as version 1 wrote them."""
    found = FrameParser("peer")
    found.feed(GOLDEN.read_bytes())
    got = []
    while frame := found.next():
        got.append(frame)
    assert [frame.kind for frame in got] == list(Kind)
    by_kind = dict(got)
    hello = parse_message(
        Hello, verify_message(by_kind[Kind.HELLO], b"hello", by_kind[Kind.CHALLENGE], SECRET, "peer"), "peer"
    )
    assert (hello.destination, hello.term, hello.last_seq) == ("shop", 3, 17179869311)
    nonce = bytes.fromhex(hello.nonce)
    welcome = parse_message(Welcome, verify_message(by_kind[Kind.WELCOME], b"welcome", nonce, SECRET, "peer"), "peer")
    assert welcome.segments == ["000-0000001-00000000004.binlog"]
    assert parse_message(Refuse, by_kind[Kind.REFUSE], "peer").kind == "identity"


# the secret


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


def test_a_master_that_does_not_know_the_secret_gets_nothing(stack: ExitStack, tmp_path: Path) -> None:
    """Somebody who only repeats what a master says."""
    server = socket.create_server(tuple(ANY_PORT))
    stack.callback(server.close)

    def pretend() -> bytes:
        connection, _ = server.accept()
        channel = Channel(connection, send_timeout_s=5)
        channel.send(Kind.CHALLENGE, new_nonce())
        data = expect(channel, Kind.HELLO, 5)
        channel.send(Kind.WELCOME, sign_message(welcome(term=9), b"welcome", bytes(16), b"another secret than that"))
        said = expect_refusal(channel)
        channel.close()
        return data + said

    call = Call(pretend)
    standby = follow(stack, tmp_path / "s", Address(*server.getsockname()[:2]), secret=SECRET)
    assert isinstance(standby.wait(), ConfigError)
    assert SECRET not in call.result()
    assert read_epoch(tmp_path / "s") is None


def test_a_recorded_greeting_is_worth_nothing(stack: ExitStack, tmp_path: Path) -> None:
    nonce, other = new_nonce(), new_nonce()
    data = sign_message(Refuse(error="x"), b"hello", nonce, SECRET)
    assert verify_message(data, b"hello", nonce, SECRET, "peer") == data[32:]
    for purpose, challenge in ((b"hello", other), (b"welcome", nonce)):
        with pytest.raises(ConfigError, match="same secret"):
            verify_message(data, purpose, challenge, SECRET, "peer")


# versions


def test_a_newer_standby_is_refused_with_a_sentence(stack: ExitStack, tmp_path: Path) -> None:
    master = serve(stack, open_log(stack, tmp_path / "m"))
    with socket.create_connection((master.address.host, master.address.port)) as connection:
        channel = Channel(connection, send_timeout_s=5)
        expect(channel, Kind.CHALLENGE, 5)
        connection.sendall(whole(Kind.HELLO, b"what only version 2 knows", version=2))
        said = parse_message(Refuse, expect_refusal(channel), "peer")
    assert said.kind == "version"
    assert "version 2" in said.error and "knows 1" in said.error


def test_a_newer_master_is_refused_with_a_sentence(stack: ExitStack, tmp_path: Path) -> None:
    server = socket.create_server(tuple(ANY_PORT))
    stack.callback(server.close)

    def newer() -> Refuse:
        connection, _ = server.accept()
        connection.sendall(whole(Kind.CHALLENGE, bytes(16), version=2))
        channel = Channel(connection, send_timeout_s=5)
        said = parse_message(Refuse, expect_refusal(channel), "peer")
        channel.close()
        return said

    call = Call(newer)
    error = follow(stack, tmp_path / "s", Address(*server.getsockname()[:2])).wait()
    assert isinstance(error, VersionError)
    assert "version 2" in str(error)
    assert call.result().kind == "version"


def test_a_newer_term_file_is_refused(tmp_path: Path) -> None:
    write_epoch(tmp_path, LeadershipEpoch(1, "ab", "standby"))
    assert read_epoch(tmp_path) == LeadershipEpoch(1, "ab", "standby")
    text = (tmp_path / "term.json").read_text()
    (tmp_path / "term.json").write_text(text.replace('"version": 1', '"version": 2'))
    with pytest.raises(VersionError, match=r"term\.json"):
        read_epoch(tmp_path)
    for bad in (text.replace('"standby"', '"slave"'), text.replace('"term": 1', '"term": 0'), "[]"):
        (tmp_path / "term.json").write_text(bad)
        with pytest.raises(DamagedError, match="not a sound leadership epoch"):
            read_epoch(tmp_path)


# following


@pytest.mark.rule("rocketmq-log-25")
def test_a_standby_is_byte_identical(stack: ExitStack, tmp_path: Path) -> None:
    made = make_transactions(900, tables=("shop.orders", "shop.items"), ddl_every=50)
    log = open_log(stack, tmp_path / "m")
    master = serve(stack, log, secret=SECRET)
    assert log.put(made[:400]) is PutStatus.SLAVE_NOT_AVAILABLE
    (tmp_path / "m" / "schemas" / "12.json").write_text('{"version": 1}')
    follow(stack, tmp_path / "s", master.address, secret=SECRET)
    caught_up(log, master)
    same(tmp_path / "m", tmp_path / "s")
    for n in range(400, 600):
        assert log.put(made[n : n + 1]) is PutStatus.PUT_OK
        assert seqs(tmp_path / "s")[-1] == made[n].seq, "PUT_OK says that the standby has it"
    (tmp_path / "m" / "schemas" / "13.json").write_text('{"version": 1, "tables": {}}')
    assert log.put(made[600:]) is PutStatus.PUT_OK
    same(tmp_path / "m", tmp_path / "s")
    assert len(layout.list_segments(tmp_path / "s")) > 3


def test_a_transaction_larger_than_a_piece(stack: ExitStack, tmp_path: Path) -> None:
    made = make_transactions(3, rows=700_000)
    assert made[0].size_bytes > 2 * protocol.CHUNK_BYTES
    log = open_log(stack, tmp_path / "m")
    master = serve(stack, log)
    follow(stack, tmp_path / "s", master.address)
    until(lambda: bool(master.standbys()) and master.standbys()[0].connected, "a standby")
    assert log.put(made, timeout_s=30) is PutStatus.PUT_OK
    same(tmp_path / "m", tmp_path / "s")


def test_capture_s_stream_of_bytes_with_positions(stack: ExitStack, tmp_path: Path) -> None:
    """Entries without bytes, and a segment that has nothing else."""
    made = make_transactions(4)
    first = made[0]
    log = RelayLog(tmp_path / "m", destination="shop", segment_bytes=SEGMENT_BYTES)
    stack.callback(log.close)
    master = serve(stack, log)
    follow(stack, tmp_path / "s", master.address)
    source = first.source
    for number, transaction in enumerate(made):
        offset = log.begin(0, f"binlog.00000{number + 1}", 4, source.format_description, 1)
        entry = transaction.entry.copy()
        entry["seq"] += number << 34
        entry["offset"] = offset
        if number % 2:
            entry["length"] = entry["events"] = entry["row_events"] = entry["checksum"] = entry["table_mask"] = 0
            entry["flags"] = 2
        else:
            log.tables.number("shop.orders")
            log.append(memoryview(transaction.data))
        log.publish(entry)
        caught_up(log, master)
        same(tmp_path / "m", tmp_path / "s")
    assert StoreReader(tmp_path / "s").last_seq() == log.last_seq
    assert len(layout.list_segments(tmp_path / "s")) == 4


def test_what_retention_removes_goes_at_the_standby_too(stack: ExitStack, tmp_path: Path) -> None:
    made = make_transactions(900)
    log = open_log(stack, tmp_path / "m")
    master = serve(stack, log)
    first = follow(stack, tmp_path / "s", master.address)
    log.put(made[:500])
    caught_up(log, master)
    remove_until(tmp_path / "m", made[299].seq)
    same(tmp_path / "m", tmp_path / "s")
    first.close()
    assert log.put(made[500:]) in (PutStatus.SLAVE_NOT_AVAILABLE, PutStatus.FLUSH_SLAVE_TIMEOUT)
    remove_until(tmp_path / "m", made[-1].seq)  # beyond what the standby has
    follow(stack, tmp_path / "s", master.address)
    caught_up(log, master)
    same(tmp_path / "m", tmp_path / "s")
    assert not (tmp_path / "s" / "cut").exists()


def test_a_standby_is_a_store_that_can_be_opened(stack: ExitStack, tmp_path: Path) -> None:
    made = make_transactions(300)
    log = open_log(stack, tmp_path / "m")
    master = serve(stack, log)
    standby = follow(stack, tmp_path / "s", master.address)
    log.put(made[:200])
    caught_up(log, master)
    with pytest.raises(LeaseHeldError):
        TransactionLog(tmp_path / "s", destination="shop", segment_bytes=SEGMENT_BYTES)
    standby.close()
    assert not (tmp_path / "s" / "abort").exists(), "it ended in order"
    with RelayLogOf(tmp_path / "s") as other:
        assert other.last_seq == made[199].seq
        assert other.put(made) is PutStatus.PUT_OK
    assert seqs(tmp_path / "s") == [t.seq for t in made]


# statuses


@pytest.mark.rule("rocketmq-log-27")
def test_slave_not_available_at_once(stack: ExitStack, tmp_path: Path) -> None:
    log = open_log(stack, tmp_path / "m")
    serve(stack, log, timeout_s=30)
    began = time.monotonic()
    assert log.put(make_transactions(1), timeout_s=30) is PutStatus.SLAVE_NOT_AVAILABLE
    assert time.monotonic() - began < 5


@pytest.mark.rule("rocketmq-log-26")
def test_flush_slave_timeout_where_the_standby_hangs(stack: ExitStack, tmp_path: Path) -> None:
    """RocketMQ's FLUSH_SLAVE_TIMEOUT: written here, and no word of the standby within the time."""
    made = make_transactions(2)
    log = open_log(stack, tmp_path / "m")
    master = serve(stack, log, timeout_s=0.2)
    fake = FakeStandby(stack, master)
    fake.report(seq=0)
    until(lambda: bool(master.standbys()) and master.standbys()[0].connected, "a standby")
    assert log.put(made[:1], timeout_s=30) is PutStatus.FLUSH_SLAVE_TIMEOUT
    fake.report(seq=made[0].seq)
    assert master.wait_until(made[0].seq, 5)
    waiting = Call(lambda: log.put(made[1:], timeout_s=0.1))
    assert waiting.result() is PutStatus.FLUSH_SLAVE_TIMEOUT
    assert seqs(tmp_path / "m") == [t.seq for t in made]


@pytest.mark.rule("rocketmq-log-27")
def test_a_standby_that_goes_away_ends_the_waiting(stack: ExitStack, tmp_path: Path) -> None:
    log = open_log(stack, tmp_path / "m")
    master = serve(stack, log, timeout_s=30)
    fake = FakeStandby(stack, master)
    fake.report(seq=0)
    until(lambda: bool(master.standbys()) and master.standbys()[0].connected, "a standby")
    waiting = Call(lambda: log.put(make_transactions(1), timeout_s=30))
    assert waiting.waits()
    fake.channel.close()
    assert waiting.result() is PutStatus.SLAVE_NOT_AVAILABLE


def test_a_standby_too_far_behind_is_not_waited_for(stack: ExitStack, tmp_path: Path) -> None:
    """RocketMQ's haSlaveFallbehindMax."""
    made = make_transactions(400)
    log = open_log(stack, tmp_path / "m")
    log.put(made[:300])
    master = serve(stack, log, timeout_s=30, max_behind_bytes=20_000)
    fake = FakeStandby(stack, master)
    fake.report(seq=0)
    until(lambda: bool(master.standbys()) and master.standbys()[0].behind_bytes > 20_000, "a standby far behind")
    began = time.monotonic()
    assert log.put(made[300:], timeout_s=30) is PutStatus.SLAVE_NOT_AVAILABLE
    assert time.monotonic() - began < 5


@pytest.mark.rule("rocketmq-log-29")
def test_an_asynchronous_master_does_not_wait(stack: ExitStack, tmp_path: Path) -> None:
    made = make_transactions(20)
    log = open_log(stack, tmp_path / "m")
    master = serve(stack, log, role="async_master")
    assert log.put(made[:10]) is PutStatus.PUT_OK
    follow(stack, tmp_path / "s", master.address)
    assert log.put(made[10:]) is PutStatus.PUT_OK
    caught_up(log, master)
    same(tmp_path / "m", tmp_path / "s")


def test_a_silent_standby_is_dead(stack: ExitStack, tmp_path: Path) -> None:
    master = serve(stack, open_log(stack, tmp_path / "m"))
    fake = FakeStandby(stack, master)
    fake.report(seq=0)
    until(lambda: bool(master.standbys()) and master.standbys()[0].connected, "a standby")
    until(lambda: not any(one.connected for one in master.standbys()), "its end", QUICK.dead_s + 3)


def test_a_silent_master_is_dead(stack: ExitStack, tmp_path: Path) -> None:
    """The standby connects again by itself."""
    server = socket.create_server(tuple(ANY_PORT))
    stack.callback(server.close)
    standby = follow(stack, tmp_path / "s", Address(*server.getsockname()[:2]))
    for _ in range(2):
        server.settimeout(QUICK.greeting_s + 5)
        connection, _ = server.accept()
        channel = greet_as_master(connection)
        stack.callback(channel.close)
        expect(channel, Kind.FOLLOW, 5)
    assert standby.error is None


def test_garbage_from_the_master_changes_nothing(stack: ExitStack, tmp_path: Path) -> None:
    """Names that lead out of the store, bytes at wrong places, entries that do not fit."""
    server = socket.create_server(tuple(ANY_PORT))
    stack.callback(server.close)
    made = make_transactions(1)[0]
    entry = made.entry.copy()
    entry["offset"] = 4
    name = b"000-0000001-00000000004.binlog"
    bad: list[list[tuple[Kind, bytes]]] = [
        [(Kind.SEGMENT, b"../../etc/passwd")],
        [(Kind.FILE, struct.pack("<H", 11) + b"../evil.json" + b"{}")],
        [(Kind.FILE, struct.pack("<H", 9) + b"term.json" + b"{}")],
        [(Kind.FORGET, b"term.json")],
        [(Kind.FORGET, b"segments/../term.json")],
        [(Kind.DATA, bytes(8) + b"abc")],
        [(Kind.SEGMENT, name), (Kind.DATA, struct.pack("<Q", 5) + b"abc")],
        [(Kind.SEGMENT, name), (Kind.ENTRIES, bytes(8) + bytes(128))],
        [(Kind.SEGMENT, name), (Kind.ENTRIES, bytes(8) + seal(entry))],
        [(Kind.SEGMENT, name), (Kind.DATA, bytes(12)), (Kind.ENTRIES, struct.pack("<Q", 1) + seal(entry))],
        [(Kind.COMPARED, b"{}")],
    ]
    standby = follow(stack, tmp_path / "s", Address(*server.getsockname()[:2]))
    server.settimeout(10)
    for sent in bad:
        connection, _ = server.accept()
        channel = greet_as_master(connection)
        with suppress(IdentityError):
            expect(channel, Kind.FOLLOW, 5)
        for kind, payload in sent:
            channel.send(kind, payload)
        answer = channel.receive(5)
        while answer is not None and answer.kind is Kind.REPORT:
            answer = channel.receive(5)
        assert answer is not None and answer.kind is Kind.REFUSE, sent
        channel.close()
    assert standby.error is None
    assert seqs(tmp_path / "s") == []
    assert read_epoch(tmp_path / "s") == LeadershipEpoch(1, "ab", "standby", compared=name.decode())
    assert {path.name for path in tmp_path.iterdir()} == {"s"}


# who may follow whom


def test_another_destination_is_refused(stack: ExitStack, tmp_path: Path) -> None:
    master = serve(stack, open_log(stack, tmp_path / "m"))
    error = follow(stack, tmp_path / "s", master.address, destination="other").wait()
    assert isinstance(error, IdentityError)
    assert "'other'" in str(error) and "'shop'" in str(error)


def test_a_store_with_nothing_in_common_is_not_cut(stack: ExitStack, tmp_path: Path) -> None:
    fill(tmp_path / "s", make_transactions(3))
    before = digests(tmp_path / "s")
    log = open_log(stack, tmp_path / "m")
    master = serve(stack, log)
    error = follow(stack, tmp_path / "s", master.address).wait()
    assert isinstance(error, IdentityError)
    assert "none in common" in str(error)
    assert digests(tmp_path / "s") == before


def test_terms() -> None:
    master = LeadershipEpoch(4, "aa", "master")
    require_follows(None, master)
    require_follows(LeadershipEpoch(3, "bb", "master"), master)
    require_follows(LeadershipEpoch(4, "aa", "standby"), master)
    with pytest.raises(IdentityError, match="epoch 4, but the standby has already seen epoch 5"):
        require_follows(LeadershipEpoch(5, "bb", "standby"), master)
    with pytest.raises(IdentityError, match="two stores have taken over in the same leadership epoch 4"):
        require_follows(LeadershipEpoch(4, "bb", "standby"), master)


def test_a_take_over_is_a_new_term(tmp_path: Path) -> None:
    assert become_master(tmp_path, None, always=False) is None
    first = become_master(tmp_path, 7)
    assert first is not None
    assert (first.number, first.state, first.since_seq) == (1, "master", 7)
    assert become_master(tmp_path, 9) == first, "the epoch goes on"
    write_epoch(tmp_path, LeadershipEpoch(1, first.id, "standby"))
    second = become_master(tmp_path, 9, always=False)
    assert second is not None
    assert (second.number, second.since_seq) == (2, 9)
    assert second.id != first.id


def test_an_old_master_is_refused_by_who_knows_the_new_one(stack: ExitStack, tmp_path: Path) -> None:
    old, new, third = tmp_path / "old", tmp_path / "new", tmp_path / "third"
    made = make_transactions(30)
    old_log = open_log(stack, old)
    old_master = serve(stack, old_log)
    standby = follow(stack, new, old_master.address)
    old_log.put(made[:10])
    caught_up(old_log, old_master)
    standby.close()
    new_log = open_log(stack, new)
    new_master = serve(stack, new_log)
    other = follow(stack, third, new_master.address)
    new_log.put(made[:20])
    caught_up(new_log, new_master)
    other.close()
    error = follow(stack, third, old_master.address).wait()
    assert isinstance(error, IdentityError)
    assert "another store has taken over" in str(error)
    assert old_log.put(made[10:30]) is PutStatus.SLAVE_NOT_AVAILABLE
    assert seqs(third) == [t.seq for t in made[:20]]


def test_two_masters_of_one_term_do_not_follow_each_other(stack: ExitStack, tmp_path: Path) -> None:
    made = make_transactions(5)
    for name in ("a", "b"):
        fill(tmp_path / name, made)
        write_epoch(tmp_path / name, LeadershipEpoch(1, "cc", "standby"))
    become_master(tmp_path / "b", made[-1].seq)
    master = serve(stack, open_log(stack, tmp_path / "a"))
    error = follow(stack, tmp_path / "b", master.address).wait()
    assert isinstance(error, IdentityError)
    assert "same leadership epoch 2" in str(error)


# rejoining


def test_a_former_master_cuts_what_the_standby_never_had(stack: ExitStack, tmp_path: Path) -> None:
    """The new master went on from the source in its own way: what only the old one has is kept beside."""
    old, new = tmp_path / "old", tmp_path / "new"
    made = make_transactions(900)
    log = open_log(stack, old)
    master = serve(stack, log)
    standby = follow(stack, new, master.address)
    log.put(made[:500])
    caught_up(log, master)
    standby.close()
    assert log.put(made[500:800]) is PutStatus.SLAVE_NOT_AVAILABLE
    master.close()
    log.close()
    new_log = open_log(stack, new)
    new_master = serve(stack, new_log)
    # In other pieces, and without every third: the same seqs, at other offsets.
    new_log.put([t for n, t in enumerate(made) if 500 <= n < 700 and n % 3])
    rejoined = follow(stack, old, new_master.address)
    caught_up(new_log, new_master)
    same(new, old)
    assert new_log.put(made[800:]) is PutStatus.PUT_OK
    same(new, old)
    kept = [path for path in (old / "cut").rglob("*") if path.is_file()]
    first_lost = made[501].data
    assert any(first_lost in path.read_bytes() for path in kept), kept
    assert any(made[799].data in path.read_bytes() for path in kept), kept
    term = read_epoch(old)
    assert term is not None
    assert (term.number, term.state) == (2, "standby")
    rejoined.close()
    with RelayLogOf(old) as again:
        assert again.last_seq == made[-1].seq


def test_an_index_made_anew_gets_the_master_s_entries_again(stack: ExitStack, tmp_path: Path) -> None:
    """Other times of storing, the same log: nothing is cut, and the indexes are equal afterwards."""
    made = make_transactions(500)
    log = open_log(stack, tmp_path / "m")
    master = serve(stack, log)
    standby = follow(stack, tmp_path / "s", master.address)
    log.put(made)
    caught_up(log, master)
    standby.close()
    last = layout.list_segments(tmp_path / "s")[-1]
    os.truncate(layout.index_path(last), HEADER_SIZE + 3 * ENTRY_SIZE)
    (tmp_path / "s" / "checkpoint").unlink()
    inode = last.stat().st_ino
    follow(stack, tmp_path / "s", master.address)
    caught_up(log, master)
    same(tmp_path / "m", tmp_path / "s")
    assert last.stat().st_ino == inode
    assert not (tmp_path / "s" / "cut").exists()


def test_a_store_is_taken_over_by_opening_it_as_master(stack: ExitStack, tmp_path: Path) -> None:
    """What came whole is there, whatever moment the standby was at."""
    made = make_transactions(40)
    log = open_log(stack, tmp_path / "m")
    master = serve(stack, log)
    standby = follow(stack, tmp_path / "s", master.address)
    log.put(made[:30])
    caught_up(log, master)
    master.close()
    standby.close()
    with RelayLogOf(tmp_path / "s") as taken:
        term = become_master(tmp_path / "s", taken.last_seq)
        assert term is not None
        assert (term.number, term.since_seq) == (2, made[29].seq)
        taken.put(made)
    assert seqs(tmp_path / "s") == [t.seq for t in made]


def test_every_cut_position_of_a_small_store(stack: ExitStack, tmp_path: Path) -> None:
    """The standby's segment ends at any byte, its index at any of some: it opens, agrees, and is equal afterwards.
    ``TOWPATH_STANDBY_CUTS=1`` tries every byte, else every 61st, and those around each transaction's end."""
    made = make_transactions(3)
    log = open_log(stack, tmp_path / "m")
    master = serve(stack, log)
    with ExitStack() as first:
        follow(first, tmp_path / "whole", master.address)
        log.put(made)
        caught_up(log, master)
    segment = layout.list_segments(tmp_path / "whole")[0]
    index = layout.index_path(segment)
    ends = [int(e["offset"] + e["length"]) for e in IndexFile(segment).entries]
    positions = [
        *range(0, segment.stat().st_size, int(os.environ.get("TOWPATH_STANDBY_CUTS") or 61)),
        *(end + more for end in ends for more in (-1, 0, 1) if end + more <= ends[-1]),
    ]
    for n, size in enumerate(positions):
        copy = tmp_path / f"s{n}"
        shutil.copytree(tmp_path / "whole", copy)
        (copy / "checkpoint").unlink()
        (copy / "abort").touch()
        torn = layout.segments_folder(copy) / segment.name
        os.truncate(torn, size)
        entries = sum(end <= size for end in ends)
        torn_index = layout.index_path(torn)
        os.truncate(torn_index, min(index.stat().st_size, HEADER_SIZE + entries * ENTRY_SIZE + n % 3 * 17))
        with ExitStack() as each:
            follow(each, copy, master.address)
            until(lambda copy=copy: seqs(copy) == [t.seq for t in made], f"a standby cut at byte {size}")  # type: ignore[misc]
            same(tmp_path / "m", copy)
        shutil.rmtree(copy)


def test_divergence_at_random_is_found_exactly(stack: ExitStack, tmp_path: Path) -> None:
    seed = int(os.environ.get("TOWPATH_SEED") or 20_240_601)
    print(f"TOWPATH_SEED={seed}")
    dice = random.Random(seed)
    made = make_transactions(700)
    for number in range(8):
        common, left_out = dice.randrange(1, 600), dice.randrange(0, 80)
        old, new = tmp_path / f"old{number}", tmp_path / f"new{number}"
        fill(new, made[:common])
        shutil.copytree(new, old)
        fill(old, made[: common + dice.randrange(0, 100)])
        had = seqs(old)
        with ExitStack() as each:
            log = open_log(each, new)
            # Where nothing was left out, the old one may be ahead, behind or equal.
            log.put(made[common + left_out : common + left_out + dice.randrange(1, 100)])
            shared = [s for s, t in zip(had, seqs(new), strict=False) if s == t]
            master = serve(each, log)
            follow(each, old, master.address)
            caught_up(log, master)
            same(new, old)
        kept = b"".join(path.read_bytes() for path in (old / "cut").rglob("*") if path.is_file())
        by_seq = {t.seq: t.data for t in made}
        assert all(by_seq[seq] in kept for seq in had[len(shared) :]), (number, common, left_out)
        assert not shared or by_seq[shared[0]] not in kept


# what is shown


def test_both_sides_tell_how_they_are(stack: ExitStack, tmp_path: Path) -> None:
    log = open_log(stack, tmp_path / "m")
    master = serve(stack, log)
    follow(stack, tmp_path / "s", master.address)
    log.put(make_transactions(10))
    caught_up(log, master)

    def told(path: Path, role: str) -> bool:
        found = read_status(path)
        return found is not None and found.role == role and found.term == 1 and any(p.connected for p in found.peers)

    until(lambda: told(tmp_path / "m", "sync_master"), "the master's status")
    until(lambda: told(tmp_path / "s", "standby"), "the standby's status")
    (tmp_path / "s" / "standby.json").write_text("{}")
    with pytest.raises(DamagedError, match="written again every second"):
        read_status(tmp_path / "s")


def test_a_port_in_use_is_named(stack: ExitStack, tmp_path: Path) -> None:
    master = serve(stack, open_log(stack, tmp_path / "m"))
    with pytest.raises(ConfigError, match=f"cannot listen at {master.address}"):
        serve(stack, open_log(stack, tmp_path / "n"), listen=master.address)


def test_a_master_that_is_not_there_is_tried_again(stack: ExitStack, tmp_path: Path) -> None:
    log = open_log(stack, tmp_path / "m")
    master = serve(stack, log)
    address = master.address
    master.close()
    standby = follow(stack, tmp_path / "s", address)
    time.sleep(0.2)
    again = serve(stack, log, listen=address)
    log.put(make_transactions(3))
    caught_up(log, again)
    assert standby.error is None


def test_errors_say_whether_trying_again_helps() -> None:
    errors: list[type[CdcError]] = [PeerUnavailableError, CorruptStreamError]
    assert all(error.retryable for error in errors)
