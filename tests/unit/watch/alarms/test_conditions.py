"""The conditions that raise an alarm, from the status of a real store and meta."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cdc.batches.service import BatchService
from cdc.config import DestinationConfig
from cdc.meta import ParkedTable
from cdc.store.formats.state import CaptureState, StoreLock, write_capture_state
from cdc.watch.alarms.conditions import Condition, Facts, all_kinds, conditions, unreadable
from cdc.watch.status import collect
from tests.support.alarms import with_alarms
from tests.support.commit_times import SECOND, T0, fill
from tests.support.unit_batches import IDENTITY, make_config

NOW_S = T0 / SECOND + 10
EVIL = "<script>alert(1)</script>"


@pytest.fixture
def config(tmp_path: Path) -> DestinationConfig:
    made = with_alarms(make_config(tmp_path), command=["x"], lag_s=100)
    fill(made.store.path, [1, 2, 3, 4])
    BatchService(made).meta.bind_source(IDENTITY)
    state(made)
    return made


def state(config: DestinationConfig, **changes: Any) -> None:
    values: dict[str, Any] = {
        "pid": os.getpid(), "connected": True, "file": "binlog.000001", "pos": 4, "gtid": None, "time_us": T0,
        "complete_until_us": T0 + 9 * SECOND, "ended": False, "purge_left": 1.0, "purge": "far",
    }  # fmt: skip
    write_capture_state(config.store.path, CaptureState(**{**values, **changes}))


def conditions_of(
    config: DestinationConfig, *, now_s: float = NOW_S, facts: Facts | None = None, change: Any = None
) -> list[Condition]:
    document = collect(config, lake=False)
    for subscription in document["subscriptions"]:
        subscription["lag_s"] = 10.0  # the store's transactions are of another year
    if change is not None:
        change(document)
    return list(conditions(config, document, now_s, facts).conditions)


def kinds(config: DestinationConfig, **more: Any) -> list[str]:
    return [condition.kind for condition in conditions_of(config, **more)]


def test_nothing_is_wrong_with_a_capture_that_runs(config: DestinationConfig) -> None:
    lock = StoreLock(config.store.path)
    try:
        assert kinds(config) == []
        state(config, connected=False, error="no route to host")
        (condition,) = conditions_of(config)
        assert (condition.kind, condition.severity) == ("capture_disconnected", "critical")
        assert "no route to host" in condition.detail
        look = conditions(config, collect(config, lake=False), NOW_S)
        assert "capture_failed" in look.unknown, "it may fail again"
    finally:
        lock.release()


def test_a_capture_that_has_ended(config: DestinationConfig) -> None:
    state(config, ended=True)
    assert kinds(config) == [], "somebody has stopped it"
    state(config, ended=False)
    assert kinds(config) == ["capture_down"], "it was killed"
    state(config, ended=True, error=f"unknown event {EVIL}")
    (condition,) = conditions_of(config)
    assert (condition.kind, condition.at_once) == ("capture_failed", True)
    assert EVIL in condition.detail
    assert kinds(config, facts=Facts(is_wanted=False)) == [], "an operator has stopped it"
    assert conditions_of(config, facts=Facts(failure="it broke"))[0].detail == "it broke"


def test_lag_of_the_store(config: DestinationConfig) -> None:
    state(config, ended=True)
    assert kinds(config, now_s=NOW_S + 98) == []
    (condition,) = conditions_of(config, now_s=NOW_S + 200)
    assert (condition.kind, condition.summary) == ("capture_lag", "The store of shop is 3 min 21 s behind its source.")


def test_the_source_is_near_its_purge(config: DestinationConfig) -> None:
    state(config, ended=True, purge_left=0.1, purge="1 GiB of the binlog are unread")
    (condition,) = conditions_of(config)
    assert (condition.kind, condition.severity) == ("source_purge", "critical")
    assert "1 GiB" in condition.detail and "binlog_expire_logs_seconds" in condition.detail
    state(config, ended=True, purge_left=None, purge=None)
    assert "source_purge" in conditions(config, collect(config, lake=False), NOW_S).unknown


@pytest.mark.parametrize(
    ("level", "expected"),
    [("ok", []), ("warn", ["disk_fills_up"]), ("clean", ["disk_fills_up"]), ("stop", ["disk_fills_up", "disk_full"])],
)
def test_disk(config: DestinationConfig, level: str, expected: list[str]) -> None:
    state(config, ended=True)

    def fill_up(document: dict[str, Any]) -> None:
        document["retention"]["disk"] |= {"level": level, "used_ratio": 0.912}

    assert kinds(config, change=fill_up) == expected


def test_archive(config: DestinationConfig) -> None:
    state(config, ended=True)

    def fail(document: dict[str, Any]) -> None:
        document["archive"] = {
            "uri": "s3://b", "segments": 1, "behind": {"segments": 2, "bytes": 5, "since": None},
            "failing_since": "2026-11-24T12:00:00Z", "error": "access denied",
        }  # fmt: skip

    (condition,) = conditions_of(config, change=fail)
    assert condition.kind == "archive_fails"
    assert condition.summary.startswith(
        "Nothing is copied to the archive since 2026-11-24T12:00:00Z (2 finished segments"
    )


def subscriber(config: DestinationConfig, **changes: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        (subscription,) = document["subscriptions"]
        for key, value in changes.items():
            subscription[key] = {**subscription[key], **value} if isinstance(subscription[key], dict) else value

    return change


def test_subscribers(config: DestinationConfig) -> None:
    state(config, ended=True)
    service = BatchService(config)
    lease = service.get("owner", wait_s=0)
    assert lease is not None
    assert kinds(config) == []
    assert kinds(config, change=subscriber(config, lag_s=101.0)) == ["subscriber_lag"]
    assert kinds(config, change=subscriber(config, cut_off=True)) == ["subscriber_cut_off"]
    (condition,) = conditions_of(
        config, change=subscriber(config, held_back={"lost": True, "bytes": 7, "since": "then"})
    )
    assert (condition.kind, condition.subscriber) == ("subscriber_holds_back", "apply")
    assert condition.summary == (
        "subscriber apply seems lost. It holds back 7 B, the oldest since then. Start it, or remove it with "
        "`cdc batch unsubscribe`."
    )
    assert kinds(config, change=subscriber(config, before_beginning=True)) == ["subscriber_before_store"]
    later = (datetime.now(UTC) + timedelta(hours=1)).timestamp()
    (condition,) = [
        condition for condition in conditions_of(config, now_s=later) if condition.kind == "batch_abandoned"
    ]
    assert "Its owner owner died" in condition.detail


def test_a_run_that_failed(config: DestinationConfig) -> None:
    """A rollback that no ack has followed."""
    state(config, ended=True)
    service = BatchService(config)
    for number in (1, 2):
        lease = service.get("owner", wait_s=0)
        assert lease is not None
        service.rollback(lease.batch, lease.token)
        (condition,) = conditions_of(config)
        assert (condition.kind, condition.subscriber) == ("run_failed", "apply")
        assert condition.detail.startswith(f"{number} batches in a row were rolled back.")
    lease = service.get("owner", wait_s=0)
    assert lease is not None
    assert kinds(config) == ["run_failed"], "the next one may fail, too"
    service.ack(lease.batch, lease.token, results=[])
    assert kinds(config) == []


def test_parked_tables(config: DestinationConfig) -> None:
    state(config, ended=True)
    assert BatchService(config).get("owner", wait_s=0) is not None
    parked = ParkedTable(due="retry", reason="it failed.", since=datetime.now(UTC))
    with BatchService(config).meta.change() as changed:
        changed.subscription("apply").parked[f"shop.{EVIL}"] = parked
    (condition,) = conditions_of(config)
    assert (condition.kind, condition.table) == ("table_parked", f"shop.{EVIL}")
    with BatchService(config).meta.change() as changed:
        for number in range(99):
            changed.subscription("apply").parked[f"shop.t{number}"] = parked
    many = conditions_of(config)
    assert len(many) == 51
    assert many[-1].summary == "Apply leaves out 50 more tables of shop."


def test_a_status_that_cannot_be_read_hides_nothing(config: DestinationConfig) -> None:
    look = unreadable(config, "the disk hangs.", Facts(failure="it broke"))
    assert [condition.kind for condition in look.conditions] == ["status_unreadable", "capture_failed"]
    assert look.unknown == {*all_kinds()} - {"status_unreadable", "capture_failed"}


def test_what_is_ignored(config: DestinationConfig) -> None:
    ignoring = with_alarms(config, command=["x"], ignore=["capture_down", "source_purge"])
    state(config, purge_left=0.0)
    assert kinds(config) == ["capture_down", "source_purge"]
    assert kinds(ignoring) == []
