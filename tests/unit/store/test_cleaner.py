"""Retention: the segments that are removed, what holds them back, and the store after a kill between any two steps."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cdc.base.errors import CutOffError, DamagedError, StorageError, VersionError
from cdc.store.formats.index import SegmentStats, StoreStats, read_entries
from cdc.store.formats.layout import index_path, list_segments, schemas_folder, segments_folder
from cdc.store.formats.missing import Removed, kept_names, read_removed
from cdc.store.reader.batch_builder import Limits
from cdc.store.reader.reader import StoreReader
from cdc.store.retention.cleaner import Holder, Removal, RetentionRules, backlogs, remove_until, retain
from tests.support.unit_retention import HOUR_US, age, files, fill, last_seqs, names
from tests.support.unit_store import all_seqs

GOLDEN = Path(__file__).parents[2] / "golden"
NOW = 1_800_000_000_000_000
DAY_S = 86400.0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of about eight segments; each test copies it."""
    path = tmp_path_factory.mktemp("retention") / "store"
    fill(path, 100)
    assert len(names(path)) >= 6
    return path


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    import shutil

    shutil.copytree(made, tmp_path / "store")
    return tmp_path / "store"


def old(store: Path, hours: float = 100) -> None:
    age(store, [hours] * len(names(store)), NOW)


def run(store: Path, *acked: int, **more: object) -> Removal:
    rules = RetentionRules(**more)  # type: ignore[arg-type]
    return retain(store, [Holder(f"s{n}", seq) for n, seq in enumerate(acked)], rules, now_us=NOW)


@pytest.mark.rule("canal-ring-36")
def test_acked_by_all_and_old_enough(store: Path) -> None:
    old(store)
    before, ends = names(store), last_seqs(store)
    removal = run(store, ends[-1], ends[2])
    assert [segment.name for segment in removal.removed] == before[:3]
    assert {segment.why for segment in removal.removed} == {"acked"}
    assert names(store) == before[3:]
    assert files(store) == {name + end for name in before[3:] for end in ("", ".index")}
    assert StoreReader(store).removed_seq() == ends[2]
    assert removal.bytes_left == sum((segments_folder(store) / name).stat().st_size for name in files(store))
    assert run(store, ends[-1], ends[2]).removed == ()


@pytest.mark.rule("canal-meta-11")
def test_a_segment_acked_but_for_its_last_transaction_stays(store: Path) -> None:
    old(store)
    seqs, ends = all_seqs(store), last_seqs(store)
    assert run(store, seqs[seqs.index(ends[0]) - 1]).removed == ()
    assert len(run(store, ends[0]).removed) == 1


def test_age_is_that_of_the_last_entry(store: Path) -> None:
    count, ends = len(names(store)), last_seqs(store)
    age(store, [80, 73, 71, *[1.0] * (count - 3)], NOW)
    assert len(run(store, ends[-1]).removed) == 2
    assert run(store, ends[-1], acked_for_s=None).removed == ()
    assert len(run(store, ends[-1], acked_for_s=3600 * 70.0).removed) == 1


def test_the_newest_segment_stays_whatever_its_age(store: Path) -> None:
    old(store, 10_000)
    before, ends = names(store), last_seqs(store)
    assert len(run(store, ends[-1], unacked_for_s=DAY_S, max_bytes=1).removed) == len(before) - 1
    assert names(store) == before[-1:]
    assert StoreReader(store).last_seq() == ends[-1]


def test_the_segment_of_the_last_entry_stays_under_an_empty_newest_one(store: Path) -> None:
    old(store)
    before, ends = names(store), last_seqs(store)
    newest = list_segments(store)[-1]
    data = newest.read_bytes()[: int(read_entries(newest)["offset"][0])]
    empty = newest.with_name("000-0000002-00000000004.binlog")
    empty.write_bytes(data)
    index_path(empty).write_bytes(index_path(newest).read_bytes()[:128])
    run(store, ends[-1])
    assert names(store) == [before[-1], empty.name]


def test_without_a_subscriber_nothing_is_acked(store: Path) -> None:
    old(store)
    assert run(store, max_bytes=1).removed == ()


@pytest.mark.rule("canal-ring-36")
def test_an_unacked_segment_goes_only_if_the_user_said_so(store: Path) -> None:
    old(store, 1000)
    ends = last_seqs(store)
    removal = run(store, ends[-1], 0, max_bytes=1)
    assert removal.removed == () and removal.over_bytes == removal.bytes_left - 1
    removal = run(store, ends[-1], 0, unacked_for_s=999 * 3600.0)
    assert {segment.why for segment in removal.removed} == {"unacked"} and len(names(store)) == 1
    assert removal.cut_off == ("s1",)


def test_a_subscriber_that_lags_less_is_not_cut_off(store: Path) -> None:
    count, ends = len(names(store)), last_seqs(store)
    age(store, [200, 100, *[50.0] * (count - 2)], NOW)
    removal = run(store, ends[-1], 0, acked_for_s=3600.0, unacked_for_s=150 * 3600.0)
    assert len(removal.removed) == 1


def test_above_max_bytes_acked_segments_go_oldest_first(store: Path) -> None:
    age(store, [1.0] * len(names(store)), NOW)
    ends = last_seqs(store)
    total = sum((segments_folder(store) / name).stat().st_size for name in files(store))
    removal = run(store, ends[3], max_bytes=total - 1)
    assert [segment.why for segment in removal.removed] == ["room"] and removal.over_bytes == 0
    removal = run(store, ends[3], max_bytes=1000)
    assert len(removal.removed) == 3 and removal.over_bytes == removal.bytes_left - 1000


def test_under_pressure_acked_segments_go_whatever_their_age(store: Path) -> None:
    age(store, [1.0] * len(names(store)), NOW)
    ends = last_seqs(store)
    removal = retain(store, [Holder("s", ends[3])], RetentionRules(), now_us=NOW, by_age=False, wanted_bytes=90_000)
    assert [segment.why for segment in removal.removed] == ["disk", "disk"]


def test_by_age_only_at_its_hour(store: Path) -> None:
    old(store)
    ends = last_seqs(store)
    assert retain(store, [Holder("s", ends[-1])], RetentionRules(), now_us=NOW, by_age=False).removed == ()


def test_a_batch_in_use_keeps_its_segments(store: Path) -> None:
    old(store, 1000)
    seqs, ends = all_seqs(store), last_seqs(store)
    batch = (seqs[seqs.index(ends[1]) + 1], ends[3])
    rules = RetentionRules(unacked_for_s=999 * 3600.0)
    removal = retain(store, [Holder("s", ends[1], (batch,))], rules, now_us=NOW)
    assert len(removal.removed) == 2 and names(store)
    selection = StoreReader(store).select(ends[1], Limits())
    assert selection is not None and selection.first_seq == batch[0]


def test_a_dry_run_changes_nothing(store: Path) -> None:
    old(store)
    before = {p: p.read_bytes() for p in store.rglob("*") if p.is_file() and p.name != "retention.lock"}
    removal = retain(store, [Holder("s", last_seqs(store)[2])], RetentionRules(), now_us=NOW, dry_run=True)
    assert len(removal.removed) == 3
    assert {p: p.read_bytes() for p in store.rglob("*") if p.is_file() and p.name != "retention.lock"} == before


def test_a_segment_whose_index_lacks_transactions_stays(store: Path) -> None:
    old(store)
    ends = last_seqs(store)
    index = index_path(list_segments(store)[1])
    index.write_bytes(index.read_bytes()[:-128])
    assert len(run(store, ends[-1]).removed) == 1


def test_remove_until_takes_whole_segments(store: Path) -> None:
    seqs, ends, before = all_seqs(store), last_seqs(store), names(store)
    remove_until(store, seqs[seqs.index(ends[1]) + 1])
    assert names(store) == before[2:]
    remove_until(store, ends[4], in_use=[(seqs[seqs.index(ends[2]) + 1], ends[4])])
    assert names(store) == before[3:]
    remove_until(store, 1 << 62)
    assert names(store) == before[-1:]


# --- readers


def test_a_reader_that_was_cut_off_gets_an_error_and_nothing_else(store: Path) -> None:
    seqs, ends = all_seqs(store), last_seqs(store)
    remove_until(store, ends[1])
    reader = StoreReader(store)
    for after in (0, seqs[3], seqs[seqs.index(ends[1]) - 1]):
        with pytest.raises(CutOffError, match=rf"after {after} .* up to {ends[1]} .*removed.*unsubscribe"):
            reader.select(after, Limits())
    selection = reader.select(ends[1], Limits())
    assert selection is not None and selection.first_seq == seqs[seqs.index(ends[1]) + 1] == reader.first_seq()
    begin = reader.select(reader.removed_seq(), Limits())
    assert begin is not None and begin.first_seq == reader.first_seq()


def test_a_reader_inside_removed_segments_never_gets_later_ones(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The segment is removed between the listing and the opening of its index."""
    import cdc.store.reader.reader as module

    ends, real = last_seqs(store), kept_names

    def listing(path: Path) -> list[str]:
        listed = real(path)
        monkeypatch.setattr(module, "kept_names", real)
        remove_until(path, ends[2])
        return listed

    monkeypatch.setattr(module, "kept_names", listing)
    with pytest.raises(CutOffError):
        StoreReader(store).select(0, Limits())


def test_reading_a_range_that_is_gone_is_an_error(store: Path) -> None:
    from cdc.decode import decode_range

    selection = StoreReader(store).select(0, Limits(max_transactions=2))
    assert selection is not None
    remove_until(store, last_seqs(store)[0])
    (piece,) = selection.ranges
    with pytest.raises((DamagedError, StorageError)):
        list(decode_range(piece.path, piece.offset, piece.length, table="shop.orders"))


def test_a_store_that_was_read_anew_from_the_source_cuts_nobody_off(store: Path, made: Path) -> None:
    import shutil

    seqs = all_seqs(store)
    remove_until(store, last_seqs(store)[2])
    shutil.rmtree(segments_folder(store))
    shutil.copytree(segments_folder(made), segments_folder(store))
    selection = StoreReader(store).select(seqs[1], Limits())
    assert selection is not None and selection.first_seq == seqs[2]


def test_what_is_held_back_and_who_is_lost(store: Path) -> None:
    count, ends, seqs = len(names(store)), last_seqs(store), all_seqs(store)
    age(store, [50.0] * 2 + [1.0] * (count - 2), NOW)
    some = [Holder("all", ends[-1]), Holder("fresh", ends[1]), Holder("lost", seqs[0])]
    by_name = {backlog.name: backlog for backlog in backlogs(StoreReader(store), some, lost_after_s=DAY_S, now_us=NOW)}
    assert (by_name["all"].bytes, by_name["all"].since_us, by_name["all"].lost) == (0, None, False)
    assert by_name["fresh"].since_us == NOW - HOUR_US and not by_name["fresh"].lost
    assert by_name["lost"].lost and by_name["lost"].transactions == len(seqs) - 1
    assert by_name["lost"].since_us == NOW - 50 * HOUR_US


def test_schemas_that_nobody_needs_go(store: Path) -> None:
    ends, seqs = last_seqs(store), all_seqs(store)
    folder = schemas_folder(store)
    for seq in (1, seqs[2], seqs[5], ends[1] + 1, ends[3]):
        (folder / f"{seq}.json").write_text("{}")
    needed = {after: StoreReader(store).schema_path(after) for after in seqs if after > ends[1]}
    remove_until(store, ends[1])
    assert sorted(int(p.stem) for p in folder.iterdir()) == [seqs[5], ends[1] + 1, ends[3]]
    assert {after: StoreReader(store).schema_path(after) for after in seqs if after > ends[1]} == needed


# --- removed.json and kills


def test_a_damaged_or_newer_mark_is_refused(store: Path) -> None:
    path = store / "removed.json"
    for text in ("", "[]", '{"version": 1}', '{"version": 1, "seq": "x", "commit_time_us": 0, "removing": []}'):
        path.write_text(text)
        with pytest.raises(DamagedError, match=r"removed\.json.*Restore it"):
            StoreReader(store).select(0, Limits())
    path.write_text(json.dumps({"version": 2}))
    with pytest.raises(VersionError, match="version 2"):
        StoreReader(store).first_seq()


def test_files_of_version_1_are_read(store: Path) -> None:
    """The low-water mark and the stats as the first version wrote them."""
    import shutil

    shutil.copy(GOLDEN / "removed-v1.json", store / "removed.json")
    assert read_removed(store) == Removed(26_000, 1_700_000_000_000_042, ("000-0000001-00000000004.binlog",))
    assert kept_names(store) == names(store)[1:]
    shutil.copy(GOLDEN / "counts-v1.json", store / "counts.json")
    assert StoreStats(store).by_segment == {
        "000-0000001-00000026000.binlog": SegmentStats(7, 5, 4_711, 1_700_000_000_000_099)
    }


def test_one_retention_at_a_time(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second run waits for the first; a dying process releases its lock."""
    import cdc.store.formats.missing as module
    from cdc.base.errors import LeaseHeldError
    from cdc.disk.durable import locked

    monkeypatch.setattr(module, "_LOCK_WAIT_S", 0.05)
    with locked(store / "retention.lock", "a test"), pytest.raises(LeaseHeldError, match=str(os.getpid())):
        remove_until(store, 1)
    remove_until(store, 1)
