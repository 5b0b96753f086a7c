"""The ledger reports gaps, doubles and foreign histories, even if Delta has removed old commits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from cdc.batches.manifest import Acked, Manifest, Parking, TableResult
from cdc.lake.delta.tables import target_of
from cdc.lake.verify.ledger import Ledger, LedgerEntry, LedgerReport, TableCommits, read_commits
from cdc.meta import Gap, TableRecord
from cdc.testing.pipeline import sample_manifest
from tests.support.compare import ledger_table
from tests.support.unit_batches import make_config
from tests.unit.lake.delta.test_proof import clean_the_log, commit, make

NOW = datetime(2026, 11, 22, 6, 0, tzinfo=UTC)
A, B = "shop.a", "shop.b"


def entry(
    batch: int, after_seq: int, last_seq: int, first_seq: int, *, begins: int = 0, epoch: int = 0, server: str = "u"
) -> LedgerEntry:
    return LedgerEntry(batch, batch, epoch, server, first_seq, after_seq, last_seq, begins, 0)


def table(
    *commits: LedgerEntry, whole: bool = True, record: int | None = None, applied: int | None = None
) -> TableCommits:
    reached = max((c.last_seq for c in commits), default=0) if applied is None else applied
    table_record = None if record is None else TableRecord(0, 1, record, "id")
    return TableCommits(commits, reached, 0, whole, table_record)


def acked(batch: int, after_seq: int, last_seq: int, *changed: str, by_hand: bool = False) -> Manifest:
    results = [TableResult(table=name, delta_version=1, applied_seq=last_seq) for name in changed]
    return sample_manifest(batch).model_copy(
        update={
            "after_seq": after_seq,
            "last_seq": last_seq,
            "tables": changed,
            "acked": Acked(time=NOW, tables=() if by_hand else tuple(results)),
        }
    )


def check(*commits: LedgerEntry, manifests: Sequence[Manifest] = (), gaps: Sequence[Gap] = ()) -> LedgerReport:
    return Ledger({A: table(*commits)}, manifests, gaps).check()[A]


def test_batches_follow_one_another() -> None:
    assert check(entry(1, 0, 10, 0), entry(2, 10, 20, 10), entry(3, 20, 30, 20)).ok


def test_a_batch_without_changes_of_the_table_is_joined_by_another_tables_commit_or_its_manifest() -> None:
    mine = table(entry(1, 0, 10, 0), entry(3, 20, 30, 10))
    other = table(entry(2, 10, 20, 0))
    manifests = [acked(3, 20, 30, A)]
    assert Ledger({A: mine, B: other}, manifests).check()[A].ok
    assert Ledger({A: mine}, [acked(2, 10, 20, B), *manifests]).check()[A].ok


def test_a_store_begun_again_is_a_gap_although_each_commit_follows_the_tables_own_position() -> None:
    """The second store begins at 20."""
    report = check(entry(1, 0, 10, 0), entry(2, 20, 30, 10, begins=20))
    assert report.gaps == [(10, 20)]
    assert report.faults == ["shop.a: nothing proves what was applied between 10 and 20"]


def test_a_hole_between_kept_manifests_is_a_gap() -> None:
    report = check(entry(1, 0, 10, 0), entry(3, 20, 30, 10), manifests=[acked(1, 0, 10, A), acked(3, 20, 30, A)])
    assert report.gaps == [(10, 20)]


def test_batches_whose_manifests_are_gone_leave_no_gap() -> None:
    """The store of the later commit had the transactions between, and they were acked."""
    assert check(entry(1, 0, 10, 0), entry(3, 20, 30, 10), manifests=[acked(3, 20, 30, A)]).ok


def test_an_accepted_gap_is_reported_but_is_no_fault() -> None:
    gap = Gap(after_seq=10, until_seq=20, reason="x", accepted=NOW)
    report = check(entry(1, 0, 10, 0), entry(2, 20, 30, 10, begins=20), gaps=[gap])
    assert report.ok and report.accepted == [(10, 20)]


def test_a_position_that_was_not_reached_is_a_gap() -> None:
    assert check(entry(1, 0, 10, 0), entry(3, 20, 30, 20)).gaps == [(10, 20)]
    assert Ledger({A: table(entry(1, 0, 10, 0), applied=50)}).check()[A].gaps == [(10, 50)]


def test_a_batch_that_ends_where_the_table_was_is_a_double() -> None:
    assert "which an earlier one had reached" in check(entry(1, 0, 10, 0), entry(2, 0, 10, 0)).faults[0]


def test_a_statement_that_writes_the_table_anew_begins_its_generation() -> None:
    """The new generation is complete up to the statement from its beginning, and the statement's batch is its entry."""
    begun, later = replace(entry(2, 10, 20, 10), generation=1), replace(entry(3, 20, 30, 20), generation=1)
    anew = replace(table(begun, later), since_seq=20)
    assert Ledger({A: anew}, [acked(2, 10, 20, A), acked(3, 20, 30, A)]).check()[A].ok
    twice = replace(table(begun, replace(begun, version=3), later), since_seq=20)
    assert "which an earlier one had reached" in Ledger({A: twice}).check()[A].faults[0]
    first = replace(table(entry(2, 10, 20, 10)), since_seq=20)  # created at 20, it had these changes already
    assert "which an earlier one had reached" in Ledger({A: first}).check()[A].faults[0]
    renamed = replace(table(replace(entry(2, 10, 20, 10), version=0)), since_seq=20)  # made by RENAME TABLE
    assert Ledger({A: renamed}, [acked(2, 10, 20, A)]).check()[A].ok


def test_an_orphans_batch_with_other_bounds_is_no_double() -> None:
    manifests = [acked(2, 0, 8, A), acked(3, 8, 15, A)]
    assert check(entry(1, 0, 10, 0), entry(3, 8, 15, 10), manifests=manifests).ok


def test_foreign_epochs_and_servers() -> None:
    assert "epoch 0, after one of epoch 1" in check(entry(1, 0, 10, 0, epoch=1), entry(2, 10, 20, 10)).faults[0]
    assert "server v, after one of server u" in check(entry(1, 0, 10, 0), entry(2, 10, 20, 10, server="v")).faults[0]


def test_a_batch_that_was_acked_and_left_no_commit() -> None:
    """Its commit was undone, or the batch was acked by hand."""
    manifests = [acked(1, 0, 10, A), acked(2, 10, 20, A), acked(3, 20, 30, A)]
    report = check(entry(1, 0, 10, 0), entry(3, 20, 30, 10), manifests=manifests)
    assert report.gaps == [(10, 20)] and "batch 2 was acked with its changes" in report.faults[0]
    manifests[1] = acked(2, 10, 20, A, by_hand=True)
    report = check(entry(1, 0, 10, 0), entry(3, 20, 30, 10), manifests=manifests)
    assert report.gaps == [(10, 20)] and "batch 2 was acked by hand" in report.faults[0]


def test_a_batch_that_left_the_table_where_it_was_needs_no_commit() -> None:
    """Its results name each table that has a version of another member."""
    unmoved = TableResult(table=A, delta_version=2, applied_seq=15)  # a snapshot has brought it there
    batch = acked(2, 10, 20)
    assert batch.acked is not None
    batch = batch.model_copy(update={"acked": batch.acked.model_copy(update={"tables": (unmoved,)})})
    manifests = [acked(1, 0, 10, A), batch, acked(3, 20, 30, A)]
    assert check(entry(1, 0, 10, 0), entry(3, 20, 30, 10), manifests=manifests).ok


def test_the_metas_record_proves_commits_that_delta_removed() -> None:
    remaining = (entry(8, 70, 80, 60), entry(9, 80, 90, 80))
    assert Ledger({A: table(*remaining, whole=False, record=80)}).check()[A].ok
    report = Ledger({A: table(*remaining, whole=False, record=40)}).check()[A]
    assert report.gaps == [(40, 60)]
    assert Ledger({A: table(whole=False, record=90, applied=90)}).check()[A].ok
    assert not Ledger({A: table(whole=False, record=80, applied=90)}).check()[A].ok


def test_entries_of_version_1_follow_the_tables_own_positions() -> None:
    old = {"destination": "shop", "table": A, "batch": 1, "epoch": 0, "server_uuid": "u", "first_seq": 5, "last_seq": 9}
    history: list[dict[str, Any]] = [
        {"version": 3, "userMetadata": json.dumps(old)},
        {"version": 2},
        {"version": 1, "userMetadata": "x"},
    ]
    (table_commit,) = read_commits(history, "shop", A, 0)
    assert (table_commit.version, table_commit.after_seq, table_commit.store_begins) == (3, 5, None)


def test_a_real_log_that_was_pruned(tmp_path: Path) -> None:
    """Delta's log retention makes a checkpoint and removes commits: the transaction survives, its entries do not."""
    place = target_of(make_config(tmp_path), A)
    make(place)
    for seq in (300, 500, 700):
        commit(place, seq)
    identity = str(DeltaTable(place.path).metadata().id)
    clean_the_log(place)
    commits = ledger_table(DeltaTable(place.path), A, TableRecord(0, 2, 500, identity))
    assert not commits.whole and commits.applied_seq == 700
    assert [c.last_seq for c in commits.commits] == [700]
    assert Ledger({A: commits}).check()[A].ok
    lost = ledger_table(DeltaTable(place.path), A, TableRecord(0, 1, 300, identity))
    assert Ledger({A: lost}).check()[A].gaps == [(300, 500)]


def rebuilt(batch: int, seq: int) -> LedgerEntry:
    return replace(entry(batch, seq, seq, seq), rebuild="snapshot")


def test_a_rebuild_needs_nothing_before_it() -> None:
    assert check(rebuilt(0, 500), entry(2, 500, 520, 500), manifests=[acked(1, 0, 400, A)]).ok
    assert check(rebuilt(0, 500), entry(2, 510, 520, 500, begins=510)).gaps == [(500, 510)]
    # A rewind: the new generation begins before what the former one had.
    assert check(rebuilt(0, 5), entry(0, 5, 20, 5)).ok


def test_what_a_parked_table_left_out_is_missing_only_when_it_is_not_parked_any_more() -> None:
    left_out = acked(2, 10, 20).model_copy(
        update={
            "tables": (A,),
            "acked": Acked(
                time=NOW, tables=(TableResult(table=A, parked=Parking(due="retry", reason="A reason.", keep_seq=10)),)
            ),
        }
    )
    commits = table(entry(1, 0, 10, 0))
    assert Ledger({A: replace(commits, parked=True)}, [left_out]).check()[A].ok
    assert Ledger({A: commits}, [left_out]).check()[A].gaps == [(10, 20)]
    assert Ledger({A: table(entry(1, 0, 10, 0), entry(0, 10, 20, 10))}, [left_out]).check()[A].ok
