"""The standby: it copies its master's store, survives failures, and can take over."""

from __future__ import annotations

import errno
import socket
import struct
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from cdc.base.addresses import Address
from cdc.base.errors import (
    ConfigError,
    IdentityError,
    LeaseHeldError,
    StorageError,
    VersionError,
)
from cdc.capture.replication import require_no_standby
from cdc.cli.main import main
from cdc.copies.standby import protocol
from cdc.copies.standby.protocol import (
    Channel,
    Formats,
    FrameKind,
    Refuse,
    expect,
    new_nonce,
    parse_message,
    require_known_formats,
    sign_message,
)
from cdc.copies.standby.role import (
    LeadershipEpoch,
    become_master,
    read_epoch,
    write_epoch,
)
from cdc.disk import files
from cdc.event_store.transaction_log import TransactionLog
from cdc.store.formats import layout
from cdc.store.formats.index import seal
from cdc.store.formats.state import CaptureState, read_capture_state, write_capture_state
from cdc.store.reader.reader import StoreReader
from cdc.store.retention.cleaner import remove_until
from cdc.store.writer.durability import PutStatus
from cdc.store.writer.log import RelayLog
from cdc.testing.faults import FaultyFiles
from cdc.testing.threads import ThreadCall
from cdc.testing.transactions import make_transactions
from tests.support.standby import ANY_PORT, QUICK, Standby
from tests.support.unit_standby import (
    SEGMENT_BYTES,
    OpenLog,
    caught_up,
    expect_refusal,
    fill,
    follow,
    frame_bytes,
    greet_as_master,
    open_log,
    pair,
    same,
    seqs,
    serve,
    until,
    welcome,
)

SECRET = b"a secret of more than 16 bytes"


def test_a_master_that_does_not_know_the_secret_gets_nothing(stack: ExitStack, tmp_path: Path) -> None:
    """The fake master repeats what a real one has sent."""
    server = socket.create_server(tuple(ANY_PORT))
    stack.callback(server.close)

    def pretend() -> bytes:
        connection, _ = server.accept()
        channel = Channel(connection, send_timeout_s=5)
        channel.send(FrameKind.CHALLENGE, new_nonce())
        data = expect(channel, FrameKind.HELLO, 5)
        channel.send(
            FrameKind.WELCOME, sign_message(welcome(term=9), b"welcome", bytes(16), b"another secret than that")
        )
        said = expect_refusal(channel)
        channel.close()
        return data + said

    call = ThreadCall(pretend)
    standby = follow(stack, tmp_path / "s", Address(*server.getsockname()[:2]), secret=SECRET)
    assert isinstance(standby.wait(), ConfigError)
    assert SECRET not in call.result()
    assert read_epoch(tmp_path / "s") is None


def test_a_newer_master_is_refused_with_a_message(stack: ExitStack, tmp_path: Path) -> None:
    server = socket.create_server(tuple(ANY_PORT))
    stack.callback(server.close)

    def newer() -> Refuse:
        connection, _ = server.accept()
        connection.sendall(frame_bytes(FrameKind.CHALLENGE, bytes(16), version=2))
        channel = Channel(connection, send_timeout_s=5)
        said = parse_message(Refuse, expect_refusal(channel), "peer")
        channel.close()
        return said

    call = ThreadCall(newer)
    error = follow(stack, tmp_path / "s", Address(*server.getsockname()[:2])).wait()
    assert isinstance(error, VersionError)
    assert "version 2" in str(error)
    assert call.result().kind == "version"


@pytest.mark.rule("rocketmq-log-25")
def test_a_standby_is_byte_identical(stack: ExitStack, tmp_path: Path) -> None:
    transactions = make_transactions(900, tables=("shop.orders", "shop.items"), ddl_every=50)
    log = open_log(stack, tmp_path / "m")
    master = serve(stack, log, secret=SECRET)
    assert log.put(transactions[:400]) is PutStatus.SLAVE_NOT_AVAILABLE
    (tmp_path / "m" / "schemas" / "12.json").write_text('{"version": 1}')
    follow(stack, tmp_path / "s", master.address, secret=SECRET)
    caught_up(log, master)
    same(tmp_path / "m", tmp_path / "s")
    for n in range(400, 600):
        assert log.put(transactions[n : n + 1]) is PutStatus.PUT_OK
        assert seqs(tmp_path / "s")[-1] == transactions[n].seq, "PUT_OK says that the standby has it"
    (tmp_path / "m" / "schemas" / "13.json").write_text('{"version": 1, "tables": {}}')
    assert log.put(transactions[600:]) is PutStatus.PUT_OK
    same(tmp_path / "m", tmp_path / "s")
    assert len(layout.list_segments(tmp_path / "s")) > 3


def test_a_transaction_larger_than_a_frame_is_copied(stack: ExitStack, tmp_path: Path) -> None:
    transactions = make_transactions(3, rows=700_000)
    assert transactions[0].size_bytes > 2 * protocol.CHUNK_BYTES
    log = open_log(stack, tmp_path / "m")
    master = serve(stack, log)
    follow(stack, tmp_path / "s", master.address)
    until(lambda: bool(master.standbys()) and master.standbys()[0].connected, "a standby")
    assert log.put(transactions, timeout_s=30) is PutStatus.PUT_OK
    same(tmp_path / "m", tmp_path / "s")


def test_entries_without_bytes_are_copied(stack: ExitStack, tmp_path: Path) -> None:
    """Capture writes entries without bytes; one segment here has nothing else."""
    transactions = make_transactions(4)
    first = transactions[0]
    log = RelayLog(tmp_path / "m", destination="shop", segment_bytes=SEGMENT_BYTES)
    stack.callback(log.close)
    master = serve(stack, log)
    follow(stack, tmp_path / "s", master.address)
    source = first.source
    for number, transaction in enumerate(transactions):
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


def test_the_standby_removes_what_retention_removes(stack: ExitStack, tmp_path: Path) -> None:
    transactions = make_transactions(900)
    log = open_log(stack, tmp_path / "m")
    master = serve(stack, log)
    first = follow(stack, tmp_path / "s", master.address)
    log.put(transactions[:500])
    caught_up(log, master)
    remove_until(tmp_path / "m", transactions[299].seq)
    same(tmp_path / "m", tmp_path / "s")
    first.close()
    assert log.put(transactions[500:]) in (PutStatus.SLAVE_NOT_AVAILABLE, PutStatus.FLUSH_SLAVE_TIMEOUT)
    remove_until(tmp_path / "m", transactions[-1].seq)  # beyond what the standby has
    follow(stack, tmp_path / "s", master.address)
    caught_up(log, master)
    same(tmp_path / "m", tmp_path / "s")
    assert not (tmp_path / "s" / "cut").exists()


def test_the_copy_is_a_store_that_can_be_opened(stack: ExitStack, tmp_path: Path) -> None:
    transactions = make_transactions(300)
    log = open_log(stack, tmp_path / "m")
    master = serve(stack, log)
    standby = follow(stack, tmp_path / "s", master.address)
    log.put(transactions[:200])
    caught_up(log, master)
    with pytest.raises(LeaseHeldError):
        TransactionLog(tmp_path / "s", destination="shop", segment_bytes=SEGMENT_BYTES)
    standby.close()
    assert not (tmp_path / "s" / "abort").exists(), "it ended in order"
    with OpenLog(tmp_path / "s") as other:
        assert other.last_seq == transactions[199].seq
        assert other.put(transactions) is PutStatus.PUT_OK
    assert seqs(tmp_path / "s") == [t.seq for t in transactions]


def test_a_silent_master_is_left_and_tried_again(stack: ExitStack, tmp_path: Path) -> None:
    server = socket.create_server(tuple(ANY_PORT))
    stack.callback(server.close)
    standby = follow(stack, tmp_path / "s", Address(*server.getsockname()[:2]))
    for _ in range(2):
        server.settimeout(QUICK.greeting_s + 5)
        connection, _ = server.accept()
        channel = greet_as_master(connection)
        stack.callback(channel.close)
        expect(channel, FrameKind.FOLLOW, 5)
    assert standby.error is None


def test_invalid_frames_from_the_master_change_nothing(stack: ExitStack, tmp_path: Path) -> None:
    """Names that lead out of the store, bytes at wrong offsets, entries that do not fit."""
    server = socket.create_server(tuple(ANY_PORT))
    stack.callback(server.close)
    made = make_transactions(1)[0]
    entry = made.entry.copy()
    entry["offset"] = 4
    name = b"000-0000001-00000000004.binlog"
    bad: list[list[tuple[FrameKind, bytes]]] = [
        [(FrameKind.SEGMENT, b"../../etc/passwd")],
        [(FrameKind.FILE, struct.pack("<H", 11) + b"../evil.json" + b"{}")],
        [(FrameKind.FILE, struct.pack("<H", 9) + b"term.json" + b"{}")],
        [(FrameKind.FORGET, b"term.json")],
        [(FrameKind.FORGET, b"segments/../term.json")],
        [(FrameKind.DATA, bytes(8) + b"abc")],
        [(FrameKind.SEGMENT, name), (FrameKind.DATA, struct.pack("<Q", 5) + b"abc")],
        [(FrameKind.SEGMENT, name), (FrameKind.ENTRIES, bytes(8) + bytes(128))],
        [(FrameKind.SEGMENT, name), (FrameKind.ENTRIES, bytes(8) + seal(entry))],
        [
            (FrameKind.SEGMENT, name),
            (FrameKind.DATA, bytes(12)),
            (FrameKind.ENTRIES, struct.pack("<Q", 1) + seal(entry)),
        ],
        [(FrameKind.COMPARED, b"{}")],
    ]
    standby = follow(stack, tmp_path / "s", Address(*server.getsockname()[:2]))
    server.settimeout(10)
    for sent in bad:
        connection, _ = server.accept()
        channel = greet_as_master(connection)
        with suppress(IdentityError):
            expect(channel, FrameKind.FOLLOW, 5)
        for kind, payload in sent:
            channel.send(kind, payload)
        answer = channel.receive(5)
        while answer is not None and answer.kind is FrameKind.REPORT:
            answer = channel.receive(5)
        assert answer is not None and answer.kind is FrameKind.REFUSE, sent
        channel.close()
    assert standby.error is None
    assert seqs(tmp_path / "s") == []
    assert read_epoch(tmp_path / "s") == LeadershipEpoch(1, "ab", "standby", compared=name.decode())
    assert {path.name for path in tmp_path.iterdir()} == {"s"}


def test_a_standby_that_knows_a_newer_master_refuses_the_old_one(stack: ExitStack, tmp_path: Path) -> None:
    old, new, third = tmp_path / "old", tmp_path / "new", tmp_path / "third"
    transactions = make_transactions(30)
    old_log = open_log(stack, old)
    old_master = serve(stack, old_log)
    standby = follow(stack, new, old_master.address)
    old_log.put(transactions[:10])
    caught_up(old_log, old_master)
    standby.close()
    new_log = open_log(stack, new)
    new_master = serve(stack, new_log)
    other = follow(stack, third, new_master.address)
    new_log.put(transactions[:20])
    caught_up(new_log, new_master)
    other.close()
    error = follow(stack, third, old_master.address).wait()
    assert isinstance(error, IdentityError)
    assert "another store has taken over" in str(error)
    assert old_log.put(transactions[10:30]) is PutStatus.SLAVE_NOT_AVAILABLE
    assert seqs(third) == [t.seq for t in transactions[:20]]


def test_two_masters_of_one_epoch_do_not_follow_each_other(stack: ExitStack, tmp_path: Path) -> None:
    transactions = make_transactions(5)
    for name in ("a", "b"):
        fill(tmp_path / name, transactions)
        write_epoch(tmp_path / name, LeadershipEpoch(1, "cc", "standby"))
    become_master(tmp_path / "b", transactions[-1].seq)
    master = serve(stack, open_log(stack, tmp_path / "a"))
    error = follow(stack, tmp_path / "b", master.address).wait()
    assert isinstance(error, IdentityError)
    assert "same leadership epoch 2" in str(error)


def test_opening_a_standby_s_store_as_master_takes_over(stack: ExitStack, tmp_path: Path) -> None:
    """All transactions that arrived whole are in the store."""
    transactions = make_transactions(40)
    log = open_log(stack, tmp_path / "m")
    master = serve(stack, log)
    standby = follow(stack, tmp_path / "s", master.address)
    log.put(transactions[:30])
    caught_up(log, master)
    master.close()
    standby.close()
    with OpenLog(tmp_path / "s") as taken:
        epoch = become_master(tmp_path / "s", taken.last_seq)
        assert epoch is not None
        assert (epoch.number, epoch.since_seq) == (2, transactions[29].seq)
        taken.put(transactions)
    assert seqs(tmp_path / "s") == [t.seq for t in transactions]


def test_a_master_that_is_down_is_tried_again(stack: ExitStack, tmp_path: Path) -> None:
    log = open_log(stack, tmp_path / "m")
    master = serve(stack, log)
    address = master.address
    master.close()
    standby = follow(stack, tmp_path / "s", address)
    time.sleep(0.2)
    restarted = serve(stack, log, listen=address)
    log.put(make_transactions(3))
    caught_up(log, restarted)
    assert standby.error is None


@pytest.mark.parametrize("seed", range(6))
def test_a_power_cut_of_the_standby_loses_nothing_confirmed(stack: ExitStack, tmp_path: Path, seed: int) -> None:
    """The page cache is lost: confirmed bytes, and the names of their files, are on the disk."""
    transactions = make_transactions(300)
    log = open_log(stack, tmp_path / "m")
    master = serve(stack, log)
    (tmp_path / "s").mkdir()
    faulty = FaultyFiles(tmp_path / "s")
    confirmed = 0
    with files.use(faulty):
        standby = Standby(tmp_path / "s", master.address)
        until(lambda: bool(master.standbys()) and master.standbys()[0].connected, "a standby")
        for n in range(0, 200 + 15 * seed, 5):
            status = log.put(transactions[n : n + 5])
            assert status is PutStatus.PUT_OK
            confirmed = transactions[n + 4].seq
        faulty.power_cut(seed=seed or None)
        log.put(transactions[290:])  # it is asked to write once more
        assert isinstance(standby.wait(), StorageError)
    with OpenLog(tmp_path / "s") as survivor:
        stored = seqs(tmp_path / "s")
        assert survivor.last_seq is not None
        assert stored == [t.seq for t in transactions[: len(stored)]]
        assert stored[-1] >= confirmed


@pytest.mark.parametrize("operation", ["fdatasync", "write"])
def test_a_standby_confirms_only_what_it_has_written(stack: ExitStack, tmp_path: Path, operation: str) -> None:
    transactions = make_transactions(20)
    log = open_log(stack, tmp_path / "m")
    master = serve(stack, log, timeout_s=2)
    (tmp_path / "s").mkdir()
    faulty = FaultyFiles(tmp_path / "s")
    with files.use(faulty):
        standby = Standby(tmp_path / "s", master.address)
        until(lambda: bool(master.standbys()) and master.standbys()[0].connected, "a standby")
        assert log.put(transactions[:10]) is PutStatus.PUT_OK
        faulty.fail(operation, errno.EIO, name="*.binlog")  # type: ignore[arg-type]
        assert log.put(transactions[10:]) is PutStatus.SLAVE_NOT_AVAILABLE
        assert isinstance(standby.wait(), StorageError)
    follow(stack, tmp_path / "s", master.address)
    caught_up(log, master)
    same(tmp_path / "m", tmp_path / "s")


def test_maintain_refuses_the_store_of_a_standby(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "shop.yaml").write_text(
        "source: {url: 'mysql://cdc@127.0.0.1:1', server_id: 7}\ntables: {include: ['shop\\..*']}\n"
        "store: {path: ./store, standby: {role: standby, master: 'h:1'}}\nmeta: {path: ./meta}\napply: {target: ./lake}\n"
    )
    (tmp_path / "store").mkdir()
    assert main(["--conf-dir", str(conf), "maintain", "shop"]) == 2
    assert "follows another one" in capsys.readouterr().err
    assert callable(require_no_standby)


def test_files_about_the_former_store_are_removed(stack: ExitStack, tmp_path: Path) -> None:
    """``complete_until`` is wrong for a store that was truncated since."""
    transactions = make_transactions(60)
    log, master, standby = pair(stack, tmp_path, transactions[:40])
    standby.close()
    log.put(transactions[40:])
    write_capture_state(tmp_path / "m", CaptureState(1, True, "binlog.000001", 4, None, 1, 2))
    (tmp_path / "m" / "counts.json").write_text('{"version": 1, "segments": {}}')
    master.close()
    log.close()
    with ExitStack() as inner:
        new_log = open_log(inner, tmp_path / "s")
        new_master = serve(inner, new_log)
        follow(inner, tmp_path / "m", new_master.address)
        caught_up(new_log, new_master)
    assert read_capture_state(tmp_path / "m") is None
    assert not (tmp_path / "m" / "counts.json").exists()


@pytest.mark.parametrize("what", ["store", "index"])
def test_a_master_with_a_newer_format_is_refused_before_anything_is_written(
    stack: ExitStack, tmp_path: Path, what: str
) -> None:
    server = socket.create_server(tuple(ANY_PORT))
    stack.callback(server.close)
    formats = Formats(**{"store": 1, "index": 1, what: 2})

    def newer() -> bytes:
        connection, _ = server.accept()
        channel = greet_as_master(connection, towpath="9", formats=formats)
        said = expect_refusal(channel)
        channel.close()
        return said

    call = ThreadCall(newer)
    error = follow(stack, tmp_path / "s", Address(*server.getsockname()[:2])).wait()
    assert isinstance(error, VersionError)
    assert f"writes version 2 of the {what} format; this Towpath knows 1" in str(error)
    assert b'"version"' in call.result()
    assert read_epoch(tmp_path / "s") is None
    require_known_formats(Formats(store=1, index=1), "peer")
