"""Retention between store and meta: by capture's ticks and by ``cdc maintain``; subscribers that come, go, lag and are
cut off; and what ``cdc status`` shows of them."""

from __future__ import annotations

import json
import threading
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from structlog.testing import capture_logs

from cdc.base.errors import ConfigError, CutOffError, LeaseHeldError, StorageError, UsageError
from cdc.batches.retention import holders, make_cleaner
from cdc.batches.service import BatchService
from cdc.binlog.sql.schemas import Schemas, TableSchema
from cdc.cli.main import main
from cdc.config import DestinationConfig, load
from cdc.event_store.transaction_log import TransactionLog
from cdc.meta import open_meta
from cdc.store.formats.layout import schemas_folder
from cdc.store.reader.reader import StoreReader
from cdc.store.retention.cleaner import LogCleaner
from cdc.store.retention.disk import DiskWatch, FillLevel, Ratios
from cdc.testing.disk import FakeClock, FakeDisk
from cdc.testing.transactions import make_transactions
from cdc.watch.status import collect
from tests.support.unit_batches import IDENTITY, Clock, make_config
from tests.support.unit_retention import age, fill, last_seqs, names
from tests.support.unit_store import all_seqs

NOW = datetime.now(UTC)
NOW_US = int(NOW.timestamp() * 1_000_000)


def change(config: DestinationConfig, **store: Any) -> DestinationConfig:
    """The same configuration with other keys of ``store``."""
    document = yaml.safe_load(config.file.read_text())
    document["store"].update(store)
    config.file.write_text(yaml.safe_dump(document))
    return load(config.file)


@pytest.fixture
def config(tmp_path: Path) -> DestinationConfig:
    config = make_config(tmp_path)
    fill(config.store.path, 50, tables=("orders", "items"))
    age(config.store.path, [100.0] * len(names(config.store.path)), NOW_US)
    open_meta(config).bind_source(IDENTITY)
    return config


def service(config: DestinationConfig, clock: Clock | None = None) -> BatchService:
    return BatchService(config, clock=clock or (lambda: NOW))


def cleaner(config: DestinationConfig, disk: FakeDisk | None = None) -> LogCleaner:
    watch = DiskWatch(config.store.path, Ratios(), usage=disk or FakeDisk(), clock=FakeClock())
    return make_cleaner(config, open_meta(config), watch=watch, clock=lambda: NOW)


def ack_until(config: DestinationConfig, subscriber: str, seq: int) -> None:
    service(config).subscribe(subscriber)
    while open_meta(config).cursor(subscriber) < seq:
        lease = service(config).get("t", subscriber=subscriber)
        assert lease is not None
        service(config).ack(lease.batch, lease.token, subscriber=subscriber)


def cdc(config: DestinationConfig, capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(["--conf-dir", str(config.file.parent), *arguments]) == code
    captured = capsys.readouterr()
    return captured.err if code else captured.out


# --- who holds the store back


def test_apply_is_waited_for_before_it_ever_read(config: DestinationConfig) -> None:
    for name in ("one", "two"):
        service(config).subscribe(name)
        ack_until(config, name, all_seqs(config.store.path)[-1])
    assert cleaner(config).run().removal.removed == ()
    other = change(config, retain={"wait_for": []})
    assert cleaner(other).run().removal.removed


def test_every_subscriber_counts(config: DestinationConfig) -> None:
    path = config.store.path
    ends = last_seqs(path)
    ack_until(config, "apply", ends[-1])
    service(config).subscribe("slow")
    assert cleaner(config).run().removal.removed == ()
    ack_until(config, "slow", ends[0])
    assert len(cleaner(config).run().removal.removed) == 1
    service(config).unsubscribe("slow")
    assert len(names(path)) > 1 and cleaner(config).run().removal.removed
    assert len(names(path)) == 1


def test_a_live_lease_is_in_use_an_expired_one_is_not(config: DestinationConfig) -> None:
    lease = service(config).get("t")
    assert lease is not None
    subscriptions = open_meta(config).read().subscriptions
    (holder,) = holders(subscriptions, config.store.retain, NOW)
    assert holder.in_use == ((lease.manifest.first_seq, lease.manifest.last_seq),)
    (holder,) = holders(subscriptions, config.store.retain, NOW + timedelta(hours=1))
    assert holder.in_use == ()


@pytest.mark.rule("canal-ring-36")
def test_a_lost_subscriber_is_named_once_an_hour(config: DestinationConfig) -> None:
    service(config).subscribe("lost")
    log_cleaner = cleaner(config)
    with capture_logs() as logs:
        for _ in range(3):
            outcome = log_cleaner.run()
    assert {held.name for held in outcome.backlogs if held.lost} == {"apply", "lost"}
    said = [entry for entry in logs if "seems lost" in entry["event"]]
    assert sorted(entry["subscriber"] for entry in said) == ["apply", "lost"]
    assert all("unsubscribe" in entry["remedy"] and entry["bytes"] > 0 and entry["since"] for entry in said)


def test_by_age_only_at_the_set_hour_but_by_hand_always(config: DestinationConfig) -> None:
    ack_until(config, "apply", last_seqs(config.store.path)[-1])
    hour = NOW.astimezone().hour
    never = change(config, retain={"delete_at": f"{(hour + 2) % 24:02}"})
    assert cleaner(never).run().removal.removed == ()
    assert cleaner(never).run(by_hand=True, dry_run=True).removal.removed
    twice_a_day = change(config, retain={"delete_at": f"{(hour + 2) % 24:02};{hour:02}"})
    assert cleaner(twice_a_day).run().removal.removed


# --- cut off


@pytest.fixture
def cut(config: DestinationConfig) -> DestinationConfig:
    """``slow`` has acked one batch and has another outstanding, its lease over; all is older than the limit."""
    config = change(config, retain={"acked_for": "1h", "unacked_for": "50h"})
    clock = Clock(NOW - timedelta(days=2))
    ack_until(config, "apply", last_seqs(config.store.path)[-1])
    lease = service(config, clock).get("t", subscriber="slow")
    assert lease is not None
    service(config, clock).ack(lease.batch, lease.token, subscriber="slow")
    assert service(config, clock).get("t", subscriber="slow") is not None
    with capture_logs() as logs:
        removal = cleaner(config).run().removal
    assert removal.cut_off == ("slow",) and len(names(config.store.path)) == 1
    (said,) = [entry for entry in logs if "cut off" in entry["event"]]
    assert (said["log_level"], said["subscriber"]) == ("error", "slow")
    return config


def test_a_subscriber_that_was_cut_off_gets_an_error_and_nothing_else(
    cut: DestinationConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CutOffError, match=r"were removed by retention"):
        service(cut).get("t", subscriber="slow")  # the outstanding batch, whose bytes are gone
    with open_meta(cut).change() as state:
        state.subscriptions["slow"].outstanding.clear()
    with pytest.raises(CutOffError):
        service(cut).get("t", subscriber="slow")
    text = cdc(cut, capsys, "batch", "get", "shop", "--subscriber", "slow", code=2)
    assert "removed by retention" in text and "unsubscribe" in text and text.count("\n") == 1
    status = json.loads(cdc(cut, capsys, "status", "shop", "--json"))
    assert {subscription["name"]: subscription["cut_off"] for subscription in status["subscriptions"]} == {
        "apply": False,
        "slow": True,
    }
    assert status["retention"]["removed_until"] > 0
    assert "slow was cut off" in cdc(cut, capsys, "status", "shop")


def test_the_way_out_begins_anew_and_says_what_is_missing(
    cut: DestinationConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    cdc(cut, capsys, "batch", "unsubscribe", "shop", "--subscriber", "slow")
    text = cdc(cut, capsys, "batch", "subscribe", "shop", "--subscriber", "slow")
    assert "Retention has removed" in text
    lease = service(cut).get("t", subscriber="slow")
    assert lease is not None and lease.manifest.first_seq == StoreReader(cut.store.path).first_seq()
    assert lease.batch > 2, "ids never come twice"


def test_a_new_subscriber_begins_at_what_is_left(cut: DestinationConfig) -> None:
    with capture_logs() as logs:
        lease = service(cut).get("t", subscriber="new")
    assert lease is not None and lease.manifest.first_seq == StoreReader(cut.store.path).first_seq()
    assert lease.manifest.after_seq == StoreReader(cut.store.path).removed_seq()
    assert any("begins at the first transaction left" in entry["event"] for entry in logs)


# --- filters


@pytest.mark.rule("canal-server-11")
def test_a_filtered_subscriber(config: DestinationConfig, capsys: pytest.CaptureFixture[str]) -> None:
    text = cdc(
        config, capsys, "batch", "subscribe", "shop", "--subscriber", "s", "--filter", "x", "--filter", r"shop\.items"
    )
    assert "is subscribed" in text
    lease = service(config).get("t", subscriber="s")
    assert lease is not None and lease.manifest.tables == ("shop.items",)
    assert lease.manifest.wants("shop.items") and not lease.manifest.wants("shop.orders")
    assert lease.manifest.transactions == 3  # max_transactions
    answer = json.loads(
        cdc(config, capsys, "batch", "subscribe", "shop", "--subscriber", "s", "--filter", "none", "--json")
    )
    assert (answer["is_new"], answer["filter"]) == (False, "none")
    nothing_known = TableSchema(columns=(), primary_key=())
    Schemas(tables={"shop.orders": nothing_known}).save(schemas_folder(config.store.path) / "1.json")
    for pattern, warns in (("none", True), (r"shop\.orders|none", False), (None, False)):
        with capture_logs() as logs:
            service(config).subscribe("s2", pattern)
        assert [log["event"] for log in logs if log["log_level"] == "warning"] == (
            ["the filter matches no captured table"] if warns else []
        )
    service(config).unsubscribe("s2")
    service(config).ack(lease.batch, lease.token, subscriber="s")
    assert service(config).get("t", subscriber="s") is None
    assert open_meta(config).cursor("s") == last_seqs(config.store.path)[-1], "nothing of it holds the store back"
    text = cdc(config, capsys, "batch", "subscribe", "shop", "--subscriber", "s", "--filter", "(", code=2)
    assert "is not a regular expression" in text


def test_what_a_filter_leaves_out_is_no_lag_and_holds_nothing_back(config: DestinationConfig) -> None:
    """Also for a subscriber that never reads: its cursor moves when retention runs."""
    service(config).subscribe("s", "none")
    ends = last_seqs(config.store.path)
    ack_until(config, "apply", ends[-1])
    assert open_meta(config).cursor("s") == 0
    status = collect(config)["subscriptions"][-1]
    assert (status["lag_s"], status["behind"]) == (0.0, {"transactions": 0, "bytes": 0})
    assert not status["held_back"]["lost"] and status["held_back"]["since"] is None
    ran = make_cleaner(config, open_meta(config)).run(by_hand=True)
    assert open_meta(config).cursor("s") == ends[-1] and not ran.removal.cut_off
    assert [segment.why for segment in ran.removal.removed] == ["acked"] * (len(ends) - 1)
    service(config).subscribe("s", None)
    status = collect(config)["subscriptions"][-1]
    assert status["behind"]["transactions"] == 0 and service(config).get("t", subscriber="s") is None


def test_unsubscribing(config: DestinationConfig, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="no subscriber 'nobody'"):
        service(config).unsubscribe("nobody")
    lease = service(config).get("t", subscriber="s")
    assert lease is not None
    with pytest.raises(LeaseHeldError, match="batch 1 is held by t"):
        service(config).unsubscribe("s")
    service(config).rollback(lease.batch, lease.token, subscriber="s")
    service(config).unsubscribe("s")
    assert "s" not in open_meta(config).subscriptions()
    service(config).subscribe("apply")
    assert "wait_for names it" in cdc(config, capsys, "batch", "unsubscribe", "shop", "--subscriber", "apply")


# --- commands


def test_maintain(config: DestinationConfig, capsys: pytest.CaptureFixture[str]) -> None:
    path = config.store.path
    ends = last_seqs(path)
    ack_until(config, "apply", ends[1])
    before = names(path)
    answer = json.loads(cdc(config, capsys, "maintain", "shop", "--dry-run", "--json"))
    assert (
        answer["dry_run"]
        and [segment["segment"] for segment in answer["removed"]] == before[:2]
        and names(path) == before
    )
    answer = json.loads(cdc(config, capsys, "maintain", "shop", "--json"))
    assert [(segment["segment"], segment["why"]) for segment in answer["removed"]] == [
        (name, "acked") for name in before[:2]
    ]
    assert names(path) == before[2:] and answer["removed_until"] == ends[1]
    (held,) = answer["subscriptions"]
    assert held["held_back"]["lost"] and held["held_back"]["bytes"] > 0
    text = cdc(config, capsys, "maintain", "shop")
    assert text.startswith("Nothing to remove.") and "Alarm: subscriber apply seems lost" in text
    assert "small files are compacted or clustered" in " ".join(cdc(config, capsys, "maintain", "--help").split())


def test_maintain_without_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = make_config(tmp_path)
    assert "there is no store yet" in cdc(config, capsys, "maintain", "shop", code=2)


# --- the disk


def test_under_pressure_what_is_acked_goes_at_once(config: DestinationConfig) -> None:
    path = config.store.path
    age(path, [0.1] * len(names(path)), NOW_US)
    ends = last_seqs(path)
    ack_until(config, "apply", ends[-1])
    total = sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
    log_cleaner = cleaner(config, FakeDisk(total * 2, used=int(total * 0.75), folder=path))
    assert log_cleaner.level() is FillLevel.CLEAN
    log_cleaner.tick("a segment")
    assert 1 < len(names(path)) < len(ends), "as much as is needed, and no more"
    fresh = cleaner(config, FakeDisk(total * 2, used=int(total * 0.75), folder=path))
    assert fresh.level() < FillLevel.CLEAN


def test_it_runs_once_a_minute_and_at_each_new_segment(
    config: DestinationConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_cleaner, runs = cleaner(config), []
    monkeypatch.setattr(log_cleaner, "run", lambda: runs.append(1))
    for segment in ("", "", "a", "a", "b", "b"):
        log_cleaner.tick(segment)
    assert len(runs) == 3


def test_capture_stands_still_while_the_disk_is_too_full(config: DestinationConfig) -> None:
    disk = FakeDisk(1_000_000, used=950_000)
    log_cleaner, stop = cleaner(config, disk), threading.Event()
    with capture_logs() as logs:
        assert [log_cleaner.wait_for_room(stop, 0.0) for _ in range(3)] == [False] * 3
    (said,) = [entry for entry in logs if "nothing is read from the source" in entry["event"]]
    assert "stop_ratio" in said["error"]
    disk.used = 100_000
    assert log_cleaner.wait_for_room(stop, 0.0)


@pytest.mark.rule("rocketmq-log-23")
def test_a_put_is_refused_before_the_disk_is_full(tmp_path: Path) -> None:
    """Nothing is lost: the same put goes in once there is room."""
    disk = FakeDisk(1_000_000, used=0)
    path = tmp_path / "store"
    watch = DiskWatch(path, usage=disk)
    transactions = make_transactions(4)
    with closing(TransactionLog(path, destination="shop", segment_bytes=1 << 20, check_room=watch.check)) as log:
        log.put(transactions[:2])
        disk.used = 900_000
        watch.look(1 << 30)
        with pytest.raises(StorageError, match="stop_ratio"):
            log.put(transactions[2:])
        assert StoreReader(path).totals().transactions == 2
        disk.used = 0
        log.put(transactions[2:])
    assert StoreReader(path).totals().transactions == 4


# --- the configuration


@pytest.mark.parametrize(
    ("store", "message"),
    [
        ({"retain": {"acked_for": "10h", "unacked_for": "2h", "lost_after": "1h"}}, "acked_for"),
        ({"retain": {"acked_for": None, "unacked_for": "48h"}}, "acked_for"),
        ({"retain": {"acked_for": "1h", "unacked_for": "5h"}}, "lost_after"),
        ({"retain": {"delete_at": "24"}}, "hour of the day"),
        ({"retain": {"delete_at": "four"}}, "hour of the day"),
        ({"retain": {"delete_at": True}}, "hour of the day"),
        ({"disk": {"warn_ratio": 0.9, "clean_ratio": 0.8}}, "must not fall"),
        ({"disk": {"stop_ratio": 1.5}}, "stop_ratio"),
    ],
)
def test_values_that_contradict_each_other(tmp_path: Path, store: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        change(make_config(tmp_path), **store)


def test_hours(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    for given, hours in (("04", (4,)), (4, (4,)), ("04;16", (4, 16)), (None, None)):
        assert change(config, retain={"delete_at": given}).store.retain.delete_at == hours
