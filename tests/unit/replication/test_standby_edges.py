"""A standby and what goes wrong beside it: retention, power cuts, other versions, a peer that means harm."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cdc import files
from cdc.addresses import Address
from cdc.binlog.entry import ENTRY_SIZE, HEADER_SIZE
from cdc.capture.replication import require_no_standby
from cdc.cli import main
from cdc.durable import replace_file
from cdc.errors import (
    CorruptStreamError,
    CutOffError,
    DamagedError,
    PeerUnavailableError,
    StorageError,
    VersionError,
)
from cdc.event_store.transaction import Transaction
from cdc.event_store.transaction_log import TransactionLog
from cdc.replication import copy, follower, protocol, reconcile
from cdc.replication import master as master_module
from cdc.replication import stream as stream_module
from cdc.replication.protocol import (
    DATA,
    Channel,
    Formats,
    Have,
    Kind,
    expect,
    require_known_formats,
)
from cdc.replication.role import LeadershipEpoch, PeerStatus, RoleStatus, read_epoch, read_status
from cdc.replication.stream import Stream
from cdc.store.formats import layout
from cdc.store.formats.index import IndexFile, make_header, seal
from cdc.store.formats.missing import LostRange, Removed, read_removed, require_kept, write_damaged, write_removed
from cdc.store.formats.segment_header import segment_header_size
from cdc.store.formats.state import CaptureState, TableNumbers, read_capture_state, write_capture_state
from cdc.store.retention.cleaner import remove_until
from cdc.store.writer.durability import PutStatus
from cdc.testing.faults import FaultyFiles
from cdc.testing.threads import Call
from cdc.testing.transactions import make_transactions
from tests.support.standby import ANY_PORT, Standby, digests
from tests.support.unit_standby import (
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
)

GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def pair(
    stack: ExitStack, folder: Path, made: list[Transaction]
) -> tuple[TransactionLog, master_module.Master, Standby]:
    """A master and a standby that has everything."""
    log = open_log(stack, folder / "m")
    master = serve(stack, log)
    standby = follow(stack, folder / "s", master.address)
    log.put(made)
    caught_up(log, master)
    return log, master, standby


# what the standby has confirmed, it has


@pytest.mark.parametrize("seed", range(6))
def test_a_power_cut_of_the_standby_takes_nothing_that_was_put_ok(stack: ExitStack, tmp_path: Path, seed: int) -> None:
    """Its page cache is worth nothing: what was confirmed is on its disk, and so are the names it lies under."""
    made = make_transactions(300)
    log = open_log(stack, tmp_path / "m")
    master = serve(stack, log)
    (tmp_path / "s").mkdir()
    faulty = FaultyFiles(tmp_path / "s")
    confirmed = 0
    with files.use(faulty):
        standby = Standby(tmp_path / "s", master.address)
        until(lambda: bool(master.standbys()) and master.standbys()[0].connected, "a standby")
        for n in range(0, 200 + 15 * seed, 5):
            status = log.put(made[n : n + 5])
            assert status is PutStatus.PUT_OK
            confirmed = made[n + 4].seq
        faulty.power_cut(seed=seed or None)
        log.put(made[290:])  # it is asked to write once more
        assert isinstance(standby.wait(), StorageError)
    with RelayLogOf(tmp_path / "s") as survivor:
        found = seqs(tmp_path / "s")
        assert survivor.last_seq is not None
        assert found == [t.seq for t in made[: len(found)]]
        assert found[-1] >= confirmed


@pytest.mark.parametrize("operation", ["fdatasync", "write"])
def test_what_the_standby_cannot_write_is_not_confirmed(stack: ExitStack, tmp_path: Path, operation: str) -> None:
    made = make_transactions(20)
    log = open_log(stack, tmp_path / "m")
    master = serve(stack, log, timeout_s=2)
    (tmp_path / "s").mkdir()
    faulty = FaultyFiles(tmp_path / "s")
    with files.use(faulty):
        standby = Standby(tmp_path / "s", master.address)
        until(lambda: bool(master.standbys()) and master.standbys()[0].connected, "a standby")
        assert log.put(made[:10]) is PutStatus.PUT_OK
        faulty.fail(operation, errno.EIO, name="*.binlog")  # type: ignore[arg-type]
        assert log.put(made[10:]) is PutStatus.SLAVE_NOT_AVAILABLE
        assert isinstance(standby.wait(), StorageError)
    follow(stack, tmp_path / "s", master.address)
    caught_up(log, master)
    same(tmp_path / "m", tmp_path / "s")


def test_a_report_of_what_was_never_sent_confirms_nothing(stack: ExitStack, tmp_path: Path) -> None:
    made = make_transactions(2)
    log = open_log(stack, tmp_path / "m")
    master = serve(stack, log, timeout_s=2)
    fake = FakeStandby(stack, master)
    fake.report(seq=1 << 60)
    frame = fake.channel.receive(5)
    while frame is not None and frame.kind is not Kind.REFUSE:
        frame = fake.channel.receive(5)
    assert frame is not None
    assert b"only 0 was sent" in frame.payload
    assert log.put(made) is PutStatus.SLAVE_NOT_AVAILABLE


def test_a_standby_whose_newest_segment_is_empty_may_report_the_one_before(stack: ExitStack, tmp_path: Path) -> None:
    """It was killed between the head of a segment and its first entry."""
    made = make_transactions(600)
    log, master, standby = pair(stack, tmp_path, made)
    standby.close()
    before, last = layout.list_segments(tmp_path / "s")[-2:]
    size = segment_header_size(last)
    there = int(IndexFile(before).entries["seq"][-1])
    have = [Have(segment=last.name, size_bytes=size, entries=0)]
    assert Stream(tmp_path / "m", lambda *_: None, have, [], {}).last_seq == there
    layout.index_path(last).write_bytes(make_header())
    os.truncate(last, size)
    (tmp_path / "s" / "checkpoint").unlink()
    again = follow(stack, tmp_path / "s", master.address)
    caught_up(log, master)
    same(tmp_path / "m", tmp_path / "s")
    assert again.error is None


# retention at the master


def test_retention_in_the_middle_of_the_comparison_cuts_nothing(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment that is gone at the master is not one that the master never had."""
    made = make_transactions(900)
    log, master, standby = pair(stack, tmp_path, made)
    standby.close()
    term = tmp_path / "s" / "term.json"
    term.write_text(json.dumps({**json.loads(term.read_text()), "compared": ""}))  # compare all of them
    times: list[int] = []

    def later(*arguments: object) -> object:
        if not times:
            remove_until(tmp_path / "m", made[400].seq)
        times.append(1)
        return reconcile.plan_reconcile(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(follower, "plan_reconcile", later)
    kept = [seq for seq in seqs(tmp_path / "s") if seq > made[-1].seq - (made[1].seq - made[0].seq) * 200]
    follow(stack, tmp_path / "s", master.address)
    until(lambda: len(times) > 1, "a second comparison")
    assert [seq for seq in seqs(tmp_path / "s") if seq >= kept[0]] == kept
    log.put(make_transactions(901)[900:])
    caught_up(log, master)
    same(tmp_path / "m", tmp_path / "s")
    assert not (tmp_path / "s" / "cut").exists()


def test_before_a_gap_the_standby_forgets_what_lies_before_it(stack: ExitStack, tmp_path: Path) -> None:
    """Else a reader of the standby's store would go over the gap, and nobody would tell it."""
    made = make_transactions(1200)
    log = open_log(stack, tmp_path / "m")
    log.put(made[:500])
    sent: list[tuple[Kind, bytes]] = []

    def send(kind: Kind, *parts: bytes) -> None:
        sent.append((kind, b"".join(parts)))

    stream = Stream(tmp_path / "m", send, [], [], {})
    stack.callback(stream.close)
    while stream.advance():
        pass
    before = {payload for kind, payload in sent if kind is Kind.SEGMENT}
    log.put(made[500:])
    remove_until(tmp_path / "m", made[1100].seq)
    sent.clear()
    while stream.advance():
        pass
    kinds = [kind for kind, _ in sent]
    behind = kinds.index(Kind.SEGMENT)
    forgotten = {payload.rpartition(b"/")[2] for kind, payload in sent[:behind] if kind is Kind.FORGET}
    assert before <= forgotten
    mark = next(n for n, (kind, payload) in enumerate(sent) if kind is Kind.FILE and b"removed.json" in payload)
    assert mark < kinds.index(Kind.FORGET)


@pytest.mark.parametrize("first", ["segments", "schemas", "store.json", "tables.json"])
def test_a_master_that_loses_its_store_does_not_take_the_copy_with_it(
    stack: ExitStack, tmp_path: Path, first: str
) -> None:
    """Its disk is unmounted, or its folder deleted, in whatever order: that is what a standby is for."""
    made = make_transactions(600)
    log = open_log(stack, tmp_path / "m")
    replace_file(tmp_path / "m" / "schemas" / "7.json", b'{"version": 1}')
    master = serve(stack, log)
    standby = follow(stack, tmp_path / "s", master.address)
    log.put(made)
    caught_up(log, master)
    same(tmp_path / "m", tmp_path / "s")
    before = digests(tmp_path / "s")
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    for name in (first, *(set(os.listdir(tmp_path / "m")) - {first})):
        (tmp_path / "m" / name).rename(hidden / name)
        time.sleep(0.4 if name == first else 0.0)  # some heartbeats
    time.sleep(0.4)
    assert digests(tmp_path / "s") == before
    standby.close()
    for name in os.listdir(hidden):  # so that the log can be closed
        if not (tmp_path / "m" / name).exists():
            (hidden / name).rename(tmp_path / "m" / name)
    assert digests(tmp_path / "s") == before


def test_nothing_follows_of_a_segment_that_was_forgotten(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention has marked it while half of it was sent; its files go a moment later."""
    monkeypatch.setattr(stream_module, "ENTRIES_AT_ONCE", 2)
    log = open_log(stack, tmp_path / "m")
    log.put(make_transactions(600))
    first, second = (one.name.encode() for one in layout.list_segments(tmp_path / "m")[:2])
    sent: list[tuple[Kind, bytes]] = []
    stream = Stream(tmp_path / "m", lambda kind, *parts: sent.append((kind, b"".join(parts))), [], [], {})
    stack.callback(stream.close)
    assert stream.advance()
    assert (Kind.SEGMENT, first) in sent
    last_seq = int(IndexFile(layout.list_segments(tmp_path / "m")[0]).entries["seq"][-1])
    write_removed(tmp_path / "m", Removed(last_seq, 1, (first.decode(),)))
    stream.tidy()
    assert sent.pop() == (Kind.FORGET, b"segments/" + first)
    sent.clear()
    assert stream.advance()
    assert sent[0] == (Kind.SEGMENT, second)


def test_a_damaged_last_entry_is_not_passed_over(stack: ExitStack, tmp_path: Path) -> None:
    """In the newest segment it may be one that is being written; in an earlier one it is damage."""
    log = open_log(stack, tmp_path / "m")
    log.put(make_transactions(900))
    index = layout.index_path(layout.list_segments(tmp_path / "m")[0])
    data = bytearray(index.read_bytes())
    data[-20] ^= 1
    index.write_bytes(data)
    stream = Stream(tmp_path / "m", lambda *_: None, [], [], {})
    stack.callback(stream.close)
    number = (len(data) - HEADER_SIZE) // ENTRY_SIZE - 1

    def send_all() -> None:
        while stream.advance():
            pass

    with pytest.raises(DamagedError, match=f"entry {number} has a wrong checksum"):
        send_all()


def test_a_damaged_master_says_so_on_both_sides(
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


def test_a_standby_s_store_is_not_for_maintain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_a_former_master_keeps_its_own_low_water_mark(stack: ExitStack, tmp_path: Path) -> None:
    """Its retention had gone further than the new master's: who misses the difference is told."""
    made = make_transactions(1200)
    log, master, standby = pair(stack, tmp_path, made[:900])
    standby.close()
    master.close()
    remove_until(tmp_path / "m", made[400].seq)
    log.close()
    mark = read_removed(tmp_path / "m").seq
    assert mark > 0
    with ExitStack() as inner:
        new_log = open_log(inner, tmp_path / "s")
        new_master = serve(inner, new_log)
        follow(inner, tmp_path / "m", new_master.address)
        assert new_log.put(made[900:1000]) in (PutStatus.PUT_OK, PutStatus.SLAVE_NOT_AVAILABLE)
        caught_up(new_log, new_master)
        assert read_removed(tmp_path / "m").seq == mark
        with pytest.raises(CutOffError):
            require_kept(tmp_path / "m", made[3].seq)
        remove_until(tmp_path / "s", made[600].seq)
        new_log.put(made[1000:])
        caught_up(new_log, new_master)
        same(tmp_path / "s", tmp_path / "m")


# what a former master knows too much


def test_a_former_master_with_more_tables_opens_after_a_kill(stack: ExitStack, tmp_path: Path) -> None:
    """Its checkpoint asked for three names; the new master's list has two."""
    common, own = make_transactions(60, tables=("shop.a", "shop.b")), make_transactions(90, tables=("shop.c",))[60:]
    log, master, standby = pair(stack, tmp_path, common)
    standby.close()
    log.put(own)
    assert len(TableNumbers(tmp_path / "m").names) == 3
    master.close()
    log.close()
    with ExitStack() as inner:
        new_log = open_log(inner, tmp_path / "s")
        new_master = serve(inner, new_log)
        follow(inner, tmp_path / "m", new_master.address)
        caught_up(new_log, new_master)
        same(tmp_path / "s", tmp_path / "m")
        ignore = shutil.ignore_patterns(".*.new")  # they come and go
        shutil.copytree(tmp_path / "m", tmp_path / "killed", ignore=ignore)  # what a kill leaves
    assert TableNumbers(tmp_path / "killed").names == ["shop.a", "shop.b"]
    with RelayLogOf(tmp_path / "killed") as opened:
        assert opened.last_seq == common[-1].seq


def test_what_capture_noted_of_another_store_goes(stack: ExitStack, tmp_path: Path) -> None:
    """``complete_until`` of a store that has been cut since would be a lie."""
    made = make_transactions(60)
    log, master, standby = pair(stack, tmp_path, made[:40])
    standby.close()
    log.put(made[40:])
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


@pytest.mark.parametrize("where", ["m", "s"])
def test_where_something_was_given_up_everything_is_compared(stack: ExitStack, tmp_path: Path, where: str) -> None:
    """A standby's index that was changed by hand is the master's again."""
    log, master, standby = pair(stack, tmp_path, make_transactions(900))
    standby.close()
    segment = layout.list_segments(tmp_path / "s")[0]
    index = layout.index_path(segment)
    entries = IndexFile(segment).entries.copy()
    entries["store_time_us"][3] += 7
    index.write_bytes(make_header() + seal(entries))
    first = int(entries["seq"][0])
    given = LostRange(
        segment.name, 4, 1, first, first, 1, ("shop.orders",), "passed over", "a test", "2026-01-01T00:00Z"
    )
    write_damaged(tmp_path / where, (given,))
    follow(stack, tmp_path / "s", master.address)
    caught_up(log, master)
    same(tmp_path / "m", tmp_path / "s")


# sizes and versions


def test_a_file_larger_than_a_frame(stack: ExitStack, tmp_path: Path) -> None:
    """The definitions of many thousand tables."""
    made = make_transactions(4)
    log, _, _ = pair(stack, tmp_path, made[:2])
    content = json.dumps({"version": 1, "tables": {f"shop.t{n}": "x" * 200 for n in range(100_000)}})
    assert len(content) > protocol.MAX_PAYLOAD
    replace_file(tmp_path / "m" / "schemas" / "7.json", content.encode())
    assert log.put(made[2:], timeout_s=30) is PutStatus.PUT_OK
    assert (tmp_path / "s" / "schemas" / "7.json").read_text() == content, "it is there before what needs it"
    same(tmp_path / "m", tmp_path / "s")


def make_copy(store: Path) -> copy.Copy:
    from cdc.store.formats.checkpoint import CheckpointWriter

    layout.create(store, "shop")
    return copy.Copy(store, CheckpointWriter(store, lambda: 0), "peer", 0)


def test_parts_of_files_that_do_not_fit_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = make_copy(tmp_path)
    one.file("tables.json", b'{"version"', whole=False)
    with pytest.raises(CorruptStreamError, match=r"in the middle of 'tables\.json'"):
        one.file("store.json", b"{}")
    monkeypatch.setattr(copy, "MAX_FILE", 100)
    with pytest.raises(CorruptStreamError, match="of more than 100 bytes"):
        one.file("tables.json", bytes(91), whole=False)
    with pytest.raises(CorruptStreamError, match="is not JSON"):
        make_copy(tmp_path).file("tables.json", b"{")
    assert not (tmp_path / "tables.json").exists()


def test_a_small_file_of_a_newer_version_is_not_taken(tmp_path: Path) -> None:
    one = make_copy(tmp_path)
    before = (tmp_path / "store.json").read_bytes()
    with pytest.raises(VersionError, match=r"store\.json.*version 99"):
        one.file("store.json", b'{"format": "towpath-store", "version": 99, "destination": "shop"}')
    assert (tmp_path / "store.json").read_bytes() == before


@pytest.mark.parametrize("what", ["store", "index"])
def test_a_master_that_writes_a_newer_format_is_refused_before_anything_is_written(
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

    call = Call(newer)
    error = follow(stack, tmp_path / "s", Address(*server.getsockname()[:2])).wait()
    assert isinstance(error, VersionError)
    assert f"writes version 2 of the {what} format; this Towpath knows 1" in str(error)
    assert b'"version"' in call.result()
    assert read_epoch(tmp_path / "s") is None
    require_known_formats(Formats(store=1, index=1), "peer")


def test_old_files_of_the_standby_are_read_for_ever(tmp_path: Path) -> None:
    shutil.copy(GOLDEN / "term-v1.json", tmp_path / "term.json")
    shutil.copy(GOLDEN / "standby-report-v1.json", tmp_path / "standby.json")
    assert read_epoch(tmp_path) == LeadershipEpoch(3, "ab" * 16, "standby", 0, "000-0000001-00000000004.binlog")
    peer = PeerStatus("10.0.0.7:4100", True, 17179869311, 4096)
    assert read_status(tmp_path) == RoleStatus("standby", 3, 4711, 1_700_000_000_000_000, (peer,))


@pytest.mark.parametrize(("name", "read"), [("term-v1.json", read_epoch), ("standby-report-v1.json", read_status)])
def test_newer_files_of_the_standby_are_refused(tmp_path: Path, name: str, read: Callable[[Path], object]) -> None:
    target = tmp_path / {"term-v1.json": "term.json", "standby-report-v1.json": "standby.json"}[name]
    target.write_text((GOLDEN / name).read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(VersionError, match=rf"{target.name}.*version 2; this Towpath knows 1.*newer one"):
        read(tmp_path)


# a peer that means harm


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (Kind.FOLLOW, b'{"have":[{"segment":"x","size_bytes":-1,"entries":0}]}'),
        (Kind.FOLLOW, b'{"have":[{"segment":"x","size_bytes":0,"entries":%d}]}' % 10**30),
        (Kind.FETCH, b'{"segment":"000-0000001-00000000004.binlog","start":-5,"stop":9}'),
        (Kind.COMPARE, b'{"segment":"../../etc/passwd","start":0,"stop":0,"of":"index"}'),
        (Kind.COMPARE, b'{"segment":"000-0000001-00000000004.binlog","start":0,"stop":%d,"of":"log"}' % 10**40),
        (Kind.REPORT, bytes(16)),
    ],
)
def test_a_standby_that_means_harm_is_refused(
    stack: ExitStack, tmp_path: Path, kind: Kind, payload: bytes, capfd: pytest.CaptureFixture[str]
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
def test_a_greeting_that_makes_no_sense_is_refused(stack: ExitStack, tmp_path: Path, key: str, value: object) -> None:
    master = serve(stack, open_log(stack, tmp_path / "m"))
    channel = Channel(socket.create_connection((master.address.host, master.address.port)), send_timeout_s=5)
    stack.callback(channel.close)
    expect(channel, Kind.CHALLENGE, 5)
    hello = {**HELLO, key: value}
    channel.send(Kind.HELLO, bytes(32) + json.dumps(hello).encode())
    expect_refusal(channel)


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


def greet(stack: ExitStack, master: master_module.Master) -> Channel:
    channel = Channel(socket.create_connection((master.address.host, master.address.port)), send_timeout_s=5)
    stack.callback(channel.close)
    expect(channel, Kind.CHALLENGE, 5)
    channel.send(Kind.HELLO, bytes(32) + json.dumps(HELLO).encode())
    expect(channel, Kind.WELCOME, 5)
    return channel


def test_no_more_than_a_greeting_is_held_for_a_stranger(stack: ExitStack, tmp_path: Path) -> None:
    master = serve(stack, open_log(stack, tmp_path / "m"))
    channel = Channel(socket.create_connection((master.address.host, master.address.port)), send_timeout_s=5)
    stack.callback(channel.close)
    expect(channel, Kind.CHALLENGE, 5)
    channel.socket.sendall(struct.pack("<4sHHII", b"TPSB", 1, Kind.HELLO, protocol.MAX_GREETING + 1, 0))
    assert b"the limit here is" in expect_refusal(channel)


def test_a_connection_that_breaks_at_once_does_not_end_the_listening(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the other side is gone before its connection was taken."""
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
