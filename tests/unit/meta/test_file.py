"""The meta file: refusals, and changes that are made as a whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cdc.base.errors import (
    ConfigError,
    DamagedError,
    IdentityError,
    LeaseHeldError,
    StorageError,
    UsageError,
    VersionError,
)
from cdc.meta import Gap, HistoryMark, Outstanding, ParkedTable, SourceIdentity, State, UnknownColumns
from cdc.meta.file import FileMeta, checksum, parse, render
from cdc.testing.meta_contract import add_batch

GOLDEN = Path(__file__).parents[2] / "golden"
EXPIRES = datetime(2026, 11, 21, 12, tzinfo=UTC)


def entry(batch: int, after: int, last: int) -> Outstanding:
    return Outstanding(
        batch=batch, first_seq=after + 1, last_seq=last, after_seq=after, owner="o", token=f"t{batch}", expires=EXPIRES
    )


@pytest.fixture
def meta(tmp_path: Path) -> FileMeta:
    meta = FileMeta(tmp_path / "deep" / "meta", "shop")
    meta.subscribe("apply", r"shop\..*")
    return meta


def test_reading_creates_nothing(tmp_path: Path) -> None:
    assert FileMeta(tmp_path / "meta").read().subscriptions == {}
    assert list(tmp_path.iterdir()) == []


def test_a_change_is_seen_by_another_process(meta: FileMeta) -> None:
    add_batch(meta, "apply", entry(1, 0, 5))
    meta.update_cursor("apply", 0)
    other = FileMeta(meta.path, "shop").read()
    assert other.destination == "shop"
    assert other.subscriptions["apply"].filter == r"shop\..*"
    assert other.subscriptions["apply"].outstanding == [entry(1, 0, 5)]


def test_the_same_content_is_parsed_once(meta: FileMeta, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch reads the meta for each of its tables."""
    parsed = []

    def counted(data: bytes, place: str) -> State:
        parsed.append(data)
        return parse(data, place)

    monkeypatch.setattr("cdc.meta.file.parse", counted)
    add_batch(meta, "apply", entry(1, 0, 5))
    parsed.clear()
    assert [meta.read().subscription("apply").next_batch for _ in range(5)] == [2] * 5
    assert len(parsed) == 1
    FileMeta(meta.path, "shop").update_cursor("apply", 3)
    assert meta.read().subscription("apply").acked_seq == 3
    meta.file.write_bytes(meta.file.read_bytes().replace(b'"acked_seq": 3', b'"acked_seq": 4'))
    with pytest.raises(DamagedError, match="checksum is wrong"):
        meta.read()


def test_what_a_reader_does_to_a_snapshot_changes_no_other(meta: FileMeta) -> None:
    with meta.change() as state:
        subscription = state.subscription("apply")
        subscription.add(entry(1, 0, 5))
        subscription.tables["shop.t"] = "0 1 5 id"
    before = render(meta.read())
    taken = meta.read()
    subscription = taken.subscription("apply")
    subscription.outstanding[0].owner = "other"
    subscription.outstanding[0].replaced.append("t0")
    subscription.remember(subscription.outstanding.pop(), "acked")
    subscription.tables["shop.u"] = subscription.tables.pop("shop.t")
    subscription.parked["shop.t"] = ParkedTable(due="retry", reason="it failed", since=EXPIRES)
    subscription.gaps.append(Gap(after_seq=1, until_seq=2, reason="a test", accepted=EXPIRES))
    subscription.acked_seq = 9
    taken.subscriptions["more"] = subscription
    taken.source = SourceIdentity(server_uuid="u", flavor="mysql", base_name="binlog", epoch=0)
    assert render(meta.read()) == before == meta.file.read_bytes()


def test_subscribing_again_replaces_the_filter_and_keeps_the_cursor(meta: FileMeta) -> None:
    meta.update_cursor("apply", 7)
    meta.subscribe("apply", "other")
    assert meta.cursor("apply") == 7
    assert meta.subscriptions()["apply"].filter == "other"


def test_source_is_bound_once(meta: FileMeta) -> None:
    identity = SourceIdentity(server_uuid="u1", flavor="mysql", base_name="binlog", epoch=0, start_gtid="a:1-5")
    assert meta.source() is None
    assert meta.bind_source(identity) == identity
    later = identity.model_copy(update={"start_gtid": "a:1-900"})
    assert meta.bind_source(later) == identity  # start_gtid is kept from the first time
    for key, value in {"server_uuid": "u2", "flavor": "mariadb", "base_name": "mysql-bin", "epoch": 1}.items():
        with pytest.raises(IdentityError, match=str(getattr(identity, key))) as caught:
            meta.bind_source(identity.model_copy(update={key: value}))
        assert str(value) in str(caught.value)
    assert meta.source() == identity


def test_another_destinations_folder_is_refused(meta: FileMeta) -> None:
    with pytest.raises(IdentityError, match="belongs to destination 'shop', not to 'other'"):
        FileMeta(meta.path, "other").read()


def test_an_exception_leaves_the_file_as_it_was(meta: FileMeta) -> None:
    before = meta.file.read_bytes()

    def clear_and_fail() -> None:
        with meta.change() as state:
            state.subscriptions.clear()
            state.subscription("apply")

    with pytest.raises(UsageError):
        clear_and_fail()
    assert meta.file.read_bytes() == before


def test_an_unchanged_state_is_not_written(meta: FileMeta) -> None:
    inode = meta.file.stat().st_ino
    with meta.change():
        pass
    assert meta.file.stat().st_ino == inode


def test_changes_of_many_threads_are_all_kept(meta: FileMeta) -> None:
    def work() -> None:
        for _ in range(10):
            with FileMeta(meta.path, "shop").change() as state:
                state.subscriptions["apply"].acked_seq += 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert meta.cursor("apply") == 40


def test_a_holder_that_does_not_finish_is_named(meta: FileMeta) -> None:
    other = FileMeta(meta.path, "shop", lock_wait_s=0.05)
    with meta.change(), pytest.raises(LeaseHeldError, match=f"process {os.getpid()}"), other.change():
        pass


def test_each_flipped_or_missing_byte_is_found_and_nothing_is_overwritten(meta: FileMeta) -> None:
    add_batch(meta, "apply", entry(1, 0, 5))
    good = meta.file.read_bytes()
    state = meta.read()
    damaged = 0
    for at in range(len(good)):
        for bad in (good[:at], good[:at] + bytes([good[at] ^ 0x15]) + good[at + 1 :]):
            try:
                parsed = parse(bad, "meta.json")
            except (DamagedError, VersionError):
                damaged += 1
            else:  # white space only
                assert parsed == state
    assert damaged > len(good)
    for bad in (b"", good[:-20], good.replace(b'"acked_seq": 0', b'"acked_seq": 1')):
        meta.file.write_bytes(bad)
        with pytest.raises(DamagedError, match="Nothing was changed") as caught:
            meta.update_cursor("apply", 3)
        assert str(meta.file) in str(caught.value)
        assert meta.file.read_bytes() == bad


def test_an_unknown_key_with_a_right_checksum_is_refused(meta: FileMeta) -> None:
    document = json.loads(meta.file.read_bytes())
    document["body"]["colour"] = "blue"
    document["checksum"] = checksum(document["body"])
    with pytest.raises(DamagedError, match=r"body\.colour"):
        parse(json.dumps(document).encode(), "meta.json")


@pytest.mark.parametrize("version", ["1", None, 0, True])
def test_impossible_versions_are_damage(meta: FileMeta, version: object) -> None:
    document = json.loads(meta.file.read_bytes()) | {"version": version}
    with pytest.raises(DamagedError, match="impossible format version"):
        parse(json.dumps(document).encode(), "meta.json")


def test_a_newer_version_is_refused(meta: FileMeta) -> None:
    document = json.loads(meta.file.read_bytes()) | {"version": 7, "checksum": "of another kind"}
    meta.file.write_text(json.dumps(document))
    with pytest.raises(VersionError, match="format version 7; this Towpath knows 6"):
        meta.update_cursor("apply", 3)


def test_version_6_is_read(tmp_path: Path) -> None:
    shutil.copy(GOLDEN / "meta-v6.json", tmp_path / "meta.json")
    state = FileMeta(tmp_path, "shop").read()
    subscription = state.subscriptions["apply"]
    mark, last = subscription.mark, subscription.outstanding[0].mark
    assert mark is not None and last is not None
    assert (mark.seq, mark.commit_time_us, mark.server_id) == (subscription.acked_seq, 1795430471123456, 1)
    assert mark.gtids == "6f5c1f0e-c5f4-11f0-9d0a-0242ac110002:1-7"
    assert (last.seq, last.gtid) == (223338300299, "81a3c8d4-e76c-11f1-9013-02fc00000001:4")
    assert render(state) == (GOLDEN / "meta-v6.json").read_bytes()


def test_version_5_is_read_and_written_as_version_6(tmp_path: Path) -> None:
    shutil.copy(GOLDEN / "meta-v5.json", tmp_path / "meta.json")
    meta = FileMeta(tmp_path, "shop")
    source, subscription = meta.read().source, meta.read().subscriptions["apply"]
    assert source is not None and source.began is not None
    assert (source.epoch, source.address, source.began.pos) == (1, "db2.example:3306", 4711)
    assert source.of_seq(206158431791).server_uuid == "6f5c1f0e-c5f4-11f0-9d0a-0242ac110002"
    assert source.of_epoch(1) == source
    assert {name for name, table in subscription.parked.items() if table.columns is None} == {
        "shop.items",
        "shop.orders",
    }
    assert subscription.parked["shop.coupons"].columns == UnknownColumns(seq=206158431791, names=("code", "total"))
    assert subscription.mark == HistoryMark(
        seq=206158431791, gtid="6f5c1f0e-c5f4-11f0-9d0a-0242ac110002:7", file_created_s=1795327100
    )
    assert subscription.outstanding[0].mark is None
    meta.subscribe("other")
    written = json.loads(meta.file.read_bytes())
    before = json.loads((GOLDEN / "meta-v5.json").read_bytes())
    assert written["version"] == 6
    assert written["body"]["subscriptions"]["apply"] == before["body"]["subscriptions"]["apply"]


def test_a_version_that_no_release_has_written_is_refused(tmp_path: Path) -> None:
    document = json.loads((GOLDEN / "meta-v5.json").read_bytes()) | {"version": 4}
    (tmp_path / "meta.json").write_text(json.dumps(document))
    with pytest.raises(VersionError, match="format version 4; this Towpath reads versions from 5 on") as caught:
        FileMeta(tmp_path, "shop").read()
    assert "Restore the file from a copy" in str(caught.value)


def test_a_failed_write_leaves_the_old_file(meta: FileMeta, monkeypatch: pytest.MonkeyPatch) -> None:
    before = meta.file.read_bytes()

    def refuse(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(StorageError, match="No space left on device"):
        meta.update_cursor("apply", 9)
    assert meta.file.read_bytes() == before
    assert sorted(p.name for p in meta.path.iterdir()) == ["lock", "meta.json"]


def test_an_unusable_folder_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="Make the folder writable") as caught:
        FileMeta(tmp_path / "file" / "meta").subscribe("apply")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "x" * 65, "ä"])
def test_names_of_subscribers_are_names_of_folders(meta: FileMeta, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be the name of a subscriber"):
        meta.subscribe(name)
