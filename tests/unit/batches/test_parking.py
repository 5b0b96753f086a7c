"""Parked tables: the records of the meta, the locks, and what retention keeps for them."""

from __future__ import annotations

import os
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cdc.base.errors import LeaseHeldError, NeedsSnapshotError, UsageError
from cdc.batches import parking
from cdc.batches.manifest import Parking, TableResult
from cdc.batches.parking import (
    TableGate,
    commit_lock,
    excluded_tables,
    job_lock,
    keep_from,
    park,
    park_excluded,
    park_left_out,
    unpark,
)
from cdc.batches.retention import holders
from cdc.config.store import RetainConfig
from cdc.config.tables import TablesConfig
from cdc.meta import Outstanding, ParkedTable, Subscription, UnknownColumns
from cdc.meta.file import FileMeta
from cdc.testing.meta_contract import add_batch

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
LATER = datetime(2026, 11, 22, 13, 0, tzinfo=UTC)
T = "shop.orders"


@pytest.fixture
def meta(tmp_path: Path) -> FileMeta:
    meta = FileMeta(tmp_path / "meta", "shop")
    meta.subscribe("apply")
    return meta


def parked(meta: FileMeta) -> dict[str, ParkedTable]:
    return meta.read().subscription("apply").parked


def outstanding(batch: int, after: int, last: int) -> Outstanding:
    return Outstanding(
        batch=batch, first_seq=after + 1, last_seq=last, after_seq=after, owner="me", token="t", expires=LATER
    )


def record(due: str = "retry", keep: int | None = 5) -> ParkedTable:
    return ParkedTable.model_validate({"due": due, "reason": "r", "since": NOW, "keep_seq": keep})


def test_an_ack_parks_what_the_merge_left_out() -> None:
    subscription = Subscription()
    left_out = Parking(due="retry", reason="no room", keep_seq=7)
    park_left_out(subscription, [TableResult(table=T, parked=left_out), TableResult(table="shop.items")], NOW)
    assert subscription.parked == {T: ParkedTable(due="retry", reason="no room", since=NOW, keep_seq=7)}


def test_an_ack_records_the_columns_that_have_to_be_read() -> None:
    subscription = Subscription()
    columns = UnknownColumns(seq=9, names=("id", "t"))
    left_out = Parking(due="snapshot", reason="DDL", keep_seq=7, columns=columns)
    park_left_out(subscription, [TableResult(table=T, parked=left_out)], NOW)
    assert subscription.parked == {T: ParkedTable(due="snapshot", reason="DDL", since=NOW, keep_seq=7, columns=columns)}
    # A table that failed before still needs the changes since then; one that is read as a whole needs none.
    subscription = Subscription(parked={T: record("retry", 5)})
    park_left_out(subscription, [TableResult(table=T, parked=left_out)], LATER)
    entry = subscription.parked[T]
    assert (entry.due, entry.keep_seq, entry.columns, entry.since) == ("snapshot", 5, columns, NOW)
    subscription = Subscription(parked={T: record("snapshot", None)})
    park_left_out(subscription, [TableResult(table=T, parked=left_out)], LATER)
    assert subscription.parked[T].columns is None


def test_columns_are_those_of_an_error() -> None:
    assert UnknownColumns.of(NeedsSnapshotError("m", seq=9, columns=("t",))) == UnknownColumns(seq=9, names=("t",))
    assert UnknownColumns.of(NeedsSnapshotError("m", seq=9)) is None
    assert UnknownColumns.of(UsageError("m")) is None


def test_empty_keys_of_a_parked_table_are_not_written() -> None:
    assert set(record().model_dump()) == {"due", "reason", "since", "keep_seq"}
    columns = UnknownColumns(seq=9, names=("t",))
    whole = record().model_copy(update={"columns": columns})
    assert ParkedTable.model_validate_json(whole.model_dump_json()) == whole


@pytest.mark.parametrize(
    ("before", "now", "due", "keep"),
    [
        (record("retry", 5), Parking(due="retry", reason="again", keep_seq=90), "retry", 5),
        (record("retry", 5), Parking(due="snapshot", reason="DDL"), "snapshot", None),
        (record("snapshot", None), Parking(due="retry", reason="again", keep_seq=90), "snapshot", None),
    ],
)
def test_a_table_that_is_parked_again_loses_nothing(
    before: ParkedTable, now: Parking, due: str, keep: int | None
) -> None:
    subscription = Subscription(parked={T: before})
    park_left_out(subscription, [TableResult(table=T, parked=now)], LATER)
    assert (subscription.parked[T].due, subscription.parked[T].keep_seq, subscription.parked[T].since) == (
        due,
        keep,
        NOW,
    )


def test_a_table_of_the_lake_that_is_left_out_waits_for_a_snapshot() -> None:
    names = ["shop.kept", "shop.gone", "shop.failed", "shop.waits", "shop.unknown"]
    subscription = Subscription(
        tables=dict.fromkeys(names[:-1], "0 1 5 id"),
        parked={"shop.failed": record("retry", 5), "shop.waits": record("snapshot", None)},
    )
    tables = TablesConfig(include=("shop\\.kept",))
    excluded = excluded_tables(subscription, tables, names)
    assert excluded == ["shop.gone", "shop.failed"]
    park_excluded(subscription, excluded, LATER)
    assert {table: (row.due, row.keep_seq, row.since) for table, row in subscription.parked.items()} == {
        "shop.gone": ("snapshot", None, LATER),
        "shop.failed": ("snapshot", None, LATER),
        "shop.waits": ("snapshot", None, NOW),
    }
    assert excluded_tables(subscription, tables, names) == []


def test_a_table_comes_back_at_the_end_of_the_last_outstanding_batch(meta: FileMeta) -> None:
    park(meta, "apply", T, record())
    meta.update_cursor("apply", 10)
    add_batch(meta, "apply", outstanding(1, 10, 20))
    add_batch(meta, "apply", outstanding(2, 20, 30))
    for reached in (0, 9, 10, 20, 29):
        assert unpark(meta, "apply", TableResult(table=T, applied_seq=reached), reached) == 30
        assert T in parked(meta)
    level = TableResult(table=T, applied_seq=30, delta_version=4, delta_id="i", generation=1)
    assert unpark(meta, "apply", level, 30) is None
    subscription = meta.read().subscription("apply")
    assert subscription.parked == {}
    table = subscription.table(T)
    assert table is not None and (table.generation, table.version, table.applied_seq) == (1, 4, 30)
    with pytest.raises(UsageError, match=f"table {T} is not parked"):
        unpark(meta, "apply", level, 30)


def test_parking_waits_for_a_running_commit_and_no_other_follows(meta: FileMeta) -> None:
    gate, inside, done = TableGate(meta, "apply"), threading.Event(), threading.Event()
    order: list[str] = []

    def merge() -> None:
        with gate.enter(T) as entry:
            assert entry is None
            inside.set()
            done.wait(10)
            order.append("committed")

    merging = threading.Thread(target=merge)
    merging.start()
    assert inside.wait(10)

    def park_it() -> None:
        park(meta, "apply", T, record())
        order.append("parked")

    parking = threading.Thread(target=park_it)
    parking.start()
    parking.join(0.2)
    assert parking.is_alive() and parked(meta) == {}
    done.set()
    merging.join(10)
    parking.join(10)
    assert order == ["committed", "parked"]
    with gate.enter(T) as entry:
        assert entry == record()


def test_one_job_works_on_a_table_and_tables_do_not_wait_for_each_other(meta: FileMeta) -> None:
    held = pytest.raises(LeaseHeldError, match=r"another snapshot or replay of table shop\.orders \(process \d+\)")
    with job_lock(meta, T), job_lock(meta, "shop.items"), commit_lock(meta, T, shared=False), held, job_lock(meta, T):
        raise AssertionError("two jobs at once")


def test_merges_do_not_wait_for_each_other(meta: FileMeta) -> None:
    gate = TableGate(meta, "apply")
    with gate.enter(T) as first, gate.enter(T) as other:  # an orphan, and its successor
        assert first is None and other is None


def test_a_long_wait_for_a_schema_change_names_the_process(meta: FileMeta, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parking, "QUIET_WAIT_S", 0.05)
    gate, inside, done = TableGate(meta, "apply"), threading.Event(), threading.Event()

    def alter() -> None:
        with gate.enter(T, alone=True):
            inside.set()
            assert done.wait(10)

    orphan = threading.Thread(target=alter)
    orphan.start()
    assert inside.wait(10)
    with capture_logs() as logs:
        threading.Timer(0.3, done.set).start()
        with gate.enter(T) as entry:
            assert entry is None
    orphan.join(10)
    assert [(line["event"], line["table"]) for line in logs] == [("waiting for another commit to the table", T)]
    assert f"process {os.getpid()}" in logs[0]["reason"]
    monkeypatch.setattr(parking, "COMMIT_WAIT_S", 0.1)
    held = pytest.raises(LeaseHeldError, match=f"a commit to table {T}")
    with gate.enter(T, alone=True), held, gate.enter(T):
        raise AssertionError("a merge beside a schema change")


def test_names_of_tables_become_names_of_files(meta: FileMeta) -> None:
    with job_lock(meta, "a/..b.c d/../x"):
        pass
    assert [file.name for file in (meta.path / "locks").iterdir()] == ["job-a%2F.%2Eb%2Ec%20d%2F%2E%2E%2Fx"]


def test_retention_keeps_what_a_parked_table_needs(meta: FileMeta) -> None:
    meta.update_cursor("apply", 100)
    park(meta, "apply", T, record("retry", 40))
    park(meta, "apply", "shop.items", record("snapshot", None))
    acked_by_holder = {holder.name: holder.acked_seq for holder in holders(meta.subscriptions(), RetainConfig(), NOW)}
    assert acked_by_holder == {"apply": 100, f"apply: parked table {T}": 40}
    keep_from(meta, "apply", T, 60)
    assert {holder.acked_seq for holder in holders(meta.subscriptions(), RetainConfig(), NOW)} == {100, 60}
