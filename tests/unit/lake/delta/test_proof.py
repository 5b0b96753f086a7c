"""The lake is proved before a merge: harmless commits pass, losses are refused. Real Delta logs, without Spark."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from cdc.base.errors import CdcError, TargetError, UsageError
from cdc.base.targets import DESTINATION_PROPERTY, SHARED_PROPERTY, SINCE_PROPERTY, application_id
from cdc.batches.manifest import Manifest, StoreBeginning, TableResult
from cdc.batches.results import record_tables
from cdc.batches.subscribers import accept_tables
from cdc.config import DestinationConfig
from cdc.event_store.memory_meta import MemoryMeta
from cdc.lake.delta import proof
from cdc.lake.delta.log import (
    KEPT_TRANSACTIONS,
    LEDGER_DEPTH,
    TRANSACTION_RETENTION,
    DeltaState,
    commits_since,
    read_state,
    state_before,
    table_record,
)
from cdc.lake.delta.proof import prove, prove_idle, retention_is_long
from cdc.lake.delta.tables import Target, target_of
from cdc.meta import Gap, Subscription, TableRecord
from cdc.testing.pipeline import sample_manifest
from tests.support.unit_batches import make_config

TABLE = "shop.orders"
ROWS = pa.table({"id": [1, 2]})
PROPERTIES = {
    DESTINATION_PROPERTY: "shop",
    "towpath.generation": "0",
    SINCE_PROPERTY: "100",
    TRANSACTION_RETENTION: KEPT_TRANSACTIONS,
}


@pytest.fixture(params=[False, True], ids=["owned", "shared"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> DestinationConfig:
    config = make_config(tmp_path)
    return config.model_copy(update={"apply": config.apply.model_copy(update={"shared": request.param})})


@pytest.fixture
def target(config: DestinationConfig) -> Target:
    return target_of(config, TABLE)


def make(target: Target, **properties: str) -> None:
    """Creates an empty table as Spark does. ``deltalake`` refuses unknown properties, so they are written by hand."""
    configuration = {target.stored_name(name): value for name, value in {**PROPERTIES, **properties}.items()}
    if target.apply.shared:
        configuration[SHARED_PROPERTY] = "true"
        del configuration[DESTINATION_PROPERTY]
    write_deltalake(target.path, ROWS.slice(0, 0))
    first = Path(target.path) / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in first.read_text().splitlines()]
    for action in actions:
        if "metaData" in action:
            action["metaData"]["configuration"] = configuration
    first.write_text("".join(json.dumps(action) + "\n" for action in actions))


def commit(target: Target, last_seq: int, *, transaction: bool = True, generation: int = 0) -> None:
    """Writes a commit of Towpath."""
    before = target.state()
    assert before is not None
    entry = {"destination": "shop", "table": target.table, "last_seq": last_seq, "generation": generation, "batch": 1}
    entry |= {"first_seq": before.applied_seq, "after_seq": before.applied_seq, "epoch": 0, "server_uuid": "u"}
    ids = [Transaction(application_id("shop", target.table, generation), last_seq)] if transaction else []
    write_deltalake(
        target.path,
        ROWS,
        mode="append",
        commit_properties=CommitProperties(app_transactions=ids, custom_metadata={"userMetadata": json.dumps(entry)}),
    )


def ack(target: Target, subscription: Subscription) -> None:
    """Records what the ack of a batch records."""
    state = target.state()
    assert state is not None
    version = state.version_of(state.applied_seq)
    result = TableResult(
        table=target.table,
        delta_version=state.version if version is None else version,
        delta_id=state.id,
        applied_seq=state.applied_seq,
        generation=state.generation,
    )
    record_tables(subscription, [result])
    subscription.acked_seq = max(subscription.acked_seq, state.applied_seq)


def batch(after_seq: int = 500, begins_seq: int = 100) -> Manifest:
    begins = StoreBeginning(seq=begins_seq, file="binlog.000001", pos=100, reason="first start")
    return sample_manifest(7).model_copy(update={"after_seq": after_seq, "store_begins": begins})


def proved(target: Target, subscription: Subscription, *, created_here: bool = False, begins_seq: int = 100) -> None:
    prove(target, target.state(), batch(begins_seq=begins_seq), subscription, created_here=created_here)


@pytest.fixture
def subscription(target: Target) -> Subscription:
    """A subscriber that has acked two batches of the table."""
    subscription = Subscription(since_seq=100)
    make(target)
    ack(target, subscription)
    commit(target, 300)
    commit(target, 500)
    ack(target, subscription)
    return subscription


def test_the_record_of_a_table(target: Target, subscription: Subscription) -> None:
    record = subscription.table(TABLE)
    assert record == TableRecord(0, 2, 500, str(DeltaTable(target.path).metadata().id))
    ahead = TableResult(table=TABLE, delta_version=1, delta_id=record.delta_id, applied_seq=300)
    record_tables(subscription, [ahead])
    assert subscription.table(TABLE) == record, "a record never goes back"
    proved(target, subscription)


# --- what passes ---------------------------------------------------------------------------------------------------


def foreign_append(target: Target) -> None:
    write_deltalake(target.path, ROWS, mode="append", commit_properties=CommitProperties(custom_metadata={"who": "me"}))


def foreign_property(target: Target) -> None:
    DeltaTable(target.path).alter.set_table_properties({"delta.logRetentionDuration": "interval 3 days"})


def optimise_and_vacuum(target: Target) -> None:
    DeltaTable(target.path).optimize.compact()
    DeltaTable(target.path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


def clean_the_log(target: Target) -> None:
    """Removes all commits but the newest, as Delta's log retention does."""
    DeltaTable(target.path).create_checkpoint()
    for file in sorted((Path(target.path) / "_delta_log").glob("*.json"))[:-1]:
        file.unlink()


def restore_to_the_same(target: Target) -> None:
    foreign_append(target)
    DeltaTable(target.path).restore(2)


HARMLESS: list[Callable[[Target], None]] = [
    foreign_append,
    foreign_property,
    optimise_and_vacuum,
    clean_the_log,
    restore_to_the_same,
    lambda target: commit(target, 700),  # killed between the commit and the ack
]


@pytest.mark.parametrize("what", range(len(HARMLESS)))
def test_what_loses_nothing_passes(
    config: DestinationConfig, target: Target, subscription: Subscription, what: int
) -> None:
    HARMLESS[what](target)
    proved(target, subscription)
    prove_idle(config, batch(), subscription, ())


# --- what is refused -----------------------------------------------------------------------------------------------


def remove(target: Target) -> None:
    shutil.rmtree(target.path)


def remove_the_log(target: Target) -> None:
    shutil.rmtree(Path(target.path))
    (Path(target.path) / "_delta_log").mkdir(parents=True)


def replace_by_another(target: Target) -> None:
    remove(target)
    make(target)
    commit(target, 300)
    foreign_append(target)


def older_copy(target: Target) -> None:
    for file in sorted((Path(target.path) / "_delta_log").glob("*.json"))[-1:]:
        file.unlink()


def older_copy_with_more_on_top(target: Target) -> None:
    older_copy(target)
    foreign_append(target)
    foreign_append(target)


def restore(target: Target) -> None:
    DeltaTable(target.path).restore(1)


def restore_under_maintenance(target: Target) -> None:
    restore(target)
    optimise_and_vacuum(target)


def restore_what_was_not_acked(target: Target) -> None:
    """Delta still shows the position as applied."""
    commit(target, 700)
    DeltaTable(target.path).restore(2)


def restore_and_clean_the_log(target: Target) -> None:
    """A consumer restores, shortens the log's retention, and Delta removes the commit that says so."""
    restore(target)
    foreign_property(target)
    clean_the_log(target)


def compact_and_clean_the_log(target: Target) -> None:
    """The commits are gone before apply has read them, so their effect is unknown."""
    optimise_and_vacuum(target)
    foreign_property(target)
    clean_the_log(target)


HARMFUL: list[tuple[Callable[[Target], None], str]] = [
    (remove, "is gone.*; it had changes up to 500"),
    (remove_the_log, "is gone|cannot be read"),
    (replace_by_another, "was replaced"),
    (older_copy, "version 1, and version 2"),
    (older_copy_with_more_on_top, "changes up to 300 .*500"),
    (restore, "version 3 of the Delta table is a RESTORE to version 1"),
    (restore_under_maintenance, "RESTORE to version 1"),
    (restore_what_was_not_acked, "RESTORE to version 2"),
    (compact_and_clean_the_log, "are not in its history any more"),
    (restore_and_clean_the_log, "versions 3 to 3 of the Delta table are not in its history any more"),
]


@pytest.mark.parametrize("number", range(len(HARMFUL)))
@pytest.mark.parametrize("idle", [False, True])
def test_what_takes_back_changes_is_refused(
    config: DestinationConfig, target: Target, subscription: Subscription, number: int, idle: bool
) -> None:
    """Also if the batch has no changes of the table."""
    harm, sentence = HARMFUL[number]
    harm(target)

    def check() -> None:
        if idle:
            prove_idle(config, batch(), subscription, ())
        else:
            proved(target, subscription)

    with pytest.raises(CdcError, match=sentence) as caught:
        check()
    if isinstance(caught.value, TargetError):
        assert "cdc batch accept-gap shop --table shop.orders" in str(caught.value)
        assert TABLE in str(caught.value)


def test_commits_of_others_may_leave_the_history_once_they_were_seen(
    config: DestinationConfig, target: Target, subscription: Subscription
) -> None:
    optimise_and_vacuum(target)
    proof._looked_at.clear()
    record_tables(subscription, prove_idle(config, batch(), subscription, ()))
    optimise_and_vacuum(target)
    proof._looked_at.clear()
    record_tables(subscription, prove_idle(config, batch(), subscription, ()))
    proof._looked_at.clear()
    assert prove_idle(config, batch(), subscription, ()) == []
    clean_the_log(target)
    proved(target, subscription)
    commit(target, 700)
    ack(target, subscription)
    proved(target, subscription)


def test_a_restore_between_commits_of_others_passes(
    config: DestinationConfig, target: Target, subscription: Subscription
) -> None:
    for _ in range(2):
        foreign_append(target)
        proof._looked_at.clear()
        record_tables(subscription, prove_idle(config, batch(), subscription, ()))
    DeltaTable(target.path).restore(3)
    proved(target, subscription)
    DeltaTable(target.path).restore(1)
    with pytest.raises(TargetError, match="RESTORE to version 1"):
        proved(target, subscription)


def test_a_busy_table_is_not_looked_at_twice(
    config: DestinationConfig, target: Target, subscription: Subscription
) -> None:
    remove(target)
    prove_idle(config, batch(), subscription, {TABLE})


def test_the_log_of_others_is_not_read_for_an_idle_table(
    config: DestinationConfig, target: Target, subscription: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    restore(target)
    for _ in range(LEDGER_DEPTH):
        foreign_append(target)
    tables_read: list[str] = []

    def look(state: DeltaState, table: str, version: int) -> list[dict[str, Any]]:
        tables_read.append(table)
        return commits_since(state, table, version)

    monkeypatch.setattr(proof, "commits_since", look)
    if config.apply.shared:
        for _ in range(2):
            prove_idle(config, batch(), subscription, ())
        assert not tables_read
    with pytest.raises(TargetError, match="version 3 of the Delta table is a RESTORE to version 1"):
        proved(target, subscription)
    assert tables_read == [TABLE]


# --- positions that Delta forgot -----------------------------------------------------------------------------------


def test_where_transaction_ids_expired_the_commits_tell(target: Target) -> None:
    make(target)
    commit(target, 500, transaction=False)
    state = target.state()
    assert state is not None and state.applied_seq == 500


def test_a_table_as_it_was_before_a_change(target: Target) -> None:
    make(target)
    for seq in (200, 300, 400):
        commit(target, seq)

    def before(seq: int) -> tuple[int, int, list[int]] | None:
        state = state_before(target.path, "shop", target.table, seq)
        return None if state is None else (state.version, state.applied_seq, [version for version, _ in state.ledger])

    assert before(500) == (3, 400, [3, 2, 1])
    assert before(400) == before(350) == (2, 300, [2, 1])
    assert before(250) == (1, 200, [1])


def test_an_older_generations_commits_do_not_count(target: Target) -> None:
    make(target, **{"towpath.generation": "1"})
    commit(target, 500, generation=0)
    commit(target, 300, generation=1)
    state = target.state()
    assert state is not None and (state.generation, state.applied_seq) == (1, 300)
    assert state.version_of(300) == 2


def test_no_position_at_all_though_one_was_acked(target: Target, subscription: Subscription) -> None:
    remove(target)
    make(target)
    for _ in range(3):
        foreign_append(target)
    subscription.tables[TABLE] = TableRecord(0, 2, 500, str(DeltaTable(target.path).metadata().id)).text
    with pytest.raises(TargetError, match=r"has changes up to 0 .*had those up to 500"):
        proved(target, subscription)


@pytest.mark.parametrize(
    ("text", "is_long"),
    [
        (KEPT_TRANSACTIONS, True),
        ("interval 4000 days", True),
        ("interval 30 days", False),
        ("interval 1 seconds", False),
        ("interval 5 years 3 days", False),
    ],
)
def test_long_retention(text: str, is_long: bool) -> None:
    assert retention_is_long(text) is is_long


# --- a meta without a record ---------------------------------------------------------------------------------------


def test_a_table_that_reaches_the_subscribers_beginning_passes(target: Target) -> None:
    make(target)
    proved(target, Subscription(since_seq=100))
    commit(target, 300)
    proved(target, Subscription(since_seq=300))


def test_a_table_before_the_subscribers_beginning_is_refused(target: Target) -> None:
    """Store and meta are lost, and capture started at another position."""
    make(target)
    commit(target, 300)
    with pytest.raises(TargetError, match=r"changes up to 300 .*after 1500 .*nothing proves"):
        proved(target, Subscription(since_seq=1500))
    gap = {"after_seq": 0, "until_seq": 1500, "reason": "x", "accepted": "2026-11-22T06:00:00Z"}
    proved(target, Subscription(since_seq=1500, gaps=[Gap.model_validate(gap)]))
    other = Gap.model_validate({**gap, "table": "shop.others"})
    with pytest.raises(TargetError):
        proved(target, Subscription(since_seq=1500, gaps=[other]))


def test_a_subscriber_of_format_1_is_taken_at_its_word(target: Target) -> None:
    make(target)
    commit(target, 300)
    proved(target, Subscription(acked_seq=5000))


def test_a_table_is_not_made_where_retention_has_removed_its_beginning(target: Target) -> None:
    """Meta and lake are lost, and the store no longer has its first transactions."""
    subscription = Subscription(acked_seq=900, since_seq=900)
    with pytest.raises(TargetError, match=r"changes up to 900 .*retention has removed"):
        proved(target, subscription)
    proved(target, subscription, created_here=True)
    proved(target, Subscription(since_seq=100))


# --- going on ------------------------------------------------------------------------------------------------------


def test_a_restored_table_is_taken_as_it_is_once_that_was_accepted(
    config: DestinationConfig, target: Target, subscription: Subscription
) -> None:
    restore(target)
    meta = MemoryMeta("shop")
    with meta.change() as state:
        state.subscriptions["apply"] = subscription
    accept_tables(meta, "apply", {TABLE: table_record(config, TABLE)})
    subscription = meta.read().subscription("apply")
    assert [(gap.table, gap.until_seq) for gap in subscription.gaps] == [(TABLE, 500)]
    proved(target, subscription)
    prove_idle(config, batch(), subscription, ())
    with pytest.raises(UsageError, match="is as it was at the last ack"):
        accept_tables(meta, "apply", {TABLE: table_record(config, TABLE)})
    restore(target)
    with pytest.raises(TargetError):
        proved(target, subscription)


def test_a_removed_table_is_made_anew_once_that_was_accepted(
    config: DestinationConfig, target: Target, subscription: Subscription
) -> None:
    remove(target)
    meta = MemoryMeta("shop")
    with meta.change() as state:
        state.subscriptions["apply"] = subscription
    accept_tables(meta, "apply", {TABLE: table_record(config, TABLE)})
    proved(target, meta.read().subscription("apply"))


def test_a_table_of_nobody_cannot_be_accepted(config: DestinationConfig) -> None:
    with pytest.raises(UsageError, match="is not a table of shop"):
        table_record(config, "crm.t")


def test_read_state_knows_the_tables_id(target: Target) -> None:
    make(target)
    state = read_state(target.path, "shop", TABLE)
    assert state is not None and state.id == str(DeltaTable(target.path).metadata().id)
