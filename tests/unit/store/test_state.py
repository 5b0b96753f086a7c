"""The beginning of a store: what is recorded, the error for a cursor before it, and how a gap is accepted."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from cdc.base.errors import (
    CutOffError,
    DamagedError,
    GapChangedError,
    IdentityError,
    StorageError,
    StoreIncompleteError,
    UsageError,
)
from cdc.batches.subscribers import beginning_gap, table_gaps
from cdc.cli.main import main
from cdc.config import DestinationConfig
from cdc.copies.standby.copy import Copy
from cdc.copies.standby.snapshot import read_small, small_files
from cdc.store.formats import layout
from cdc.store.formats.checkpoint import CheckpointWriter
from cdc.store.formats.state import Beginning, TableNumbers, read_beginning, record_beginning
from cdc.store.reader.batch_builder import Limits
from cdc.store.reader.reader import StoreReader
from tests.support.unit_batches import NumberStore, make_config, make_service, make_store

GOLDEN = Path(__file__).parents[2] / "golden"
BEGINS = Beginning(10, "binlog.000001", 10, None, 1_795_327_144_603_000, "started again")


@pytest.fixture
def config(tmp_path: Path) -> DestinationConfig:
    return make_config(tmp_path)


def test_version_2_is_read_for_ever(tmp_path: Path) -> None:
    layout.create(tmp_path, "shop")
    shutil.copy(GOLDEN / "store-v2.json", tmp_path / "store.json")
    gtid = "6f5c1f0e-c5f4-11f0-9d0a-0242ac110002:1-3"
    assert read_beginning(tmp_path) == Beginning(
        206158430365, "binlog.000012", 157, gtid, 1_795_327_144_603_000, "started again"
    )


def test_of_a_store_of_version_1_the_first_segment_tells() -> None:
    beginning = StoreReader(GOLDEN / "store-v1").beginning()
    assert beginning == Beginning(17179869188, "binlog.000001", 4, None, 0, "not recorded")


def test_a_new_store_has_no_beginning_until_capture_reads(tmp_path: Path) -> None:
    assert read_beginning(tmp_path) is None
    layout.create(tmp_path, "shop")
    assert read_beginning(tmp_path) is None
    record_beginning(tmp_path, BEGINS)
    assert read_beginning(tmp_path) == BEGINS
    layout.create(tmp_path, "shop")
    # A start that came to nothing is repeated, and the reason is still that of the first try.
    record_beginning(tmp_path, replace(BEGINS, seq=12, pos=12, reason="first start"))
    assert read_beginning(tmp_path) == replace(BEGINS, seq=12, pos=12)


def test_a_store_records_how_names_compare(tmp_path: Path) -> None:
    layout.create(tmp_path, "shop")
    layout.create(tmp_path, "shop", lower_case_table_names=1)  # it has no table yet
    numbers = TableNumbers(tmp_path)
    assert numbers.number("Shop.Orders") == numbers.number("SHOP.ORDERS") == 0 and numbers.names == ["shop.orders"]
    layout.create(tmp_path, "shop", lower_case_table_names=2)  # compares as 1 does
    with pytest.raises(IdentityError, match=r"captured with lower_case_table_names 2, and .* is 0"):
        layout.create(tmp_path, "shop")


@pytest.mark.parametrize(("name", "is_refused"), [("shop.orders", False), ("shop.Orders", True)])
def test_a_store_of_an_earlier_version_has_the_names_of_the_server(tmp_path: Path, name: str, is_refused: bool) -> None:
    layout.create(tmp_path, "shop")
    document = json.loads((tmp_path / "store.json").read_bytes())
    del document["lower_case_table_names"]
    (tmp_path / "store.json").write_text(json.dumps(document))
    TableNumbers(tmp_path).number(name)
    if is_refused:
        with pytest.raises(IdentityError, match="captured with lower_case_table_names 0"):
            layout.create(tmp_path, "shop", lower_case_table_names=1)
        return
    layout.create(tmp_path, "shop", lower_case_table_names=1)
    assert layout.ignores_case(tmp_path)


@pytest.mark.parametrize("begins", [[], {"seq": "x"}, {"seq": 1}, {**BEGINS.__dict__, "reason": "because"}])
def test_a_damaged_beginning_is_refused(tmp_path: Path, begins: object) -> None:
    layout.create(tmp_path, "shop")
    path = tmp_path / "store.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"begins": begins}))
    with pytest.raises(DamagedError, match="not a store's beginning"):
        read_beginning(tmp_path)


def test_every_manifest_says_where_the_store_begins(config: DestinationConfig) -> None:
    service = make_service(config, NumberStore(last=13, begins=BEGINS))
    lease = service.get("me")
    assert lease is not None and lease.manifest.store_begins is not None
    begins = lease.manifest.store_begins
    assert (begins.seq, begins.file, begins.pos, begins.reason) == (10, "binlog.000001", 10, "started again")
    assert begins.time == "2026-11-22T05:59:04.603000Z"
    assert service.subscription().since_seq == 10


def acked(config: DestinationConfig, store: NumberStore) -> int:
    """Acks the first batch; the cursor is after it then."""
    service = make_service(config, store)
    lease = service.get("me", limits=Limits(max_transactions=3))
    assert lease is not None
    service.ack(lease.batch, lease.token)
    return service.subscription().acked_seq


def test_a_store_begun_anew_behind_the_cursor_is_refused(config: DestinationConfig) -> None:
    assert acked(config, NumberStore(last=3)) == 3
    service = make_service(config, NumberStore(last=20, begins=BEGINS))
    with pytest.raises(CutOffError) as caught:
        service.get("me")
    said = str(caught.value)
    for part in ("begins at 10", "binlog.000001:10", "started again", "cursor 3", "cdc batch accept-gap shop"):
        assert part in said
    assert service.subscription().acked_seq == 3


def test_a_cursor_that_never_acked_is_measured_from_where_it_began(config: DestinationConfig) -> None:
    """Its first batch may have been merged before the kill, and later transactions are gone."""
    first = replace(BEGINS, seq=2, pos=2, reason="first start")
    assert make_service(config, NumberStore(last=5, begins=first)).get("me") is not None
    with pytest.raises(CutOffError, match="cursor 2"):
        make_service(config, NumberStore(last=20, begins=BEGINS)).get("me")


def test_a_store_begun_anew_before_the_cursor_goes_on(config: DestinationConfig) -> None:
    assert acked(config, NumberStore(last=3)) == 3
    service = make_service(config, NumberStore(last=20, begins=replace(BEGINS, seq=3, pos=3)))
    lease = service.get("me")
    assert lease is not None and lease.manifest.after_seq == 3


def test_an_accepted_gap_is_recorded_and_carried(config: DestinationConfig) -> None:
    acked(config, NumberStore(last=3))
    service = make_service(config, NumberStore(last=20, begins=BEGINS))
    gap = service.accept_beginning()
    assert (gap.after_seq, gap.until_seq, gap.table) == (3, 10, None)
    lease = service.get("me")
    assert lease is not None and lease.manifest.after_seq == 10
    assert [(g.after_seq, g.until_seq, g.reason) for g in lease.manifest.gaps] == [(3, 10, gap.reason)]
    service.ack(lease.batch, lease.token)
    assert service.subscription().gaps == [gap]


def test_a_gap_that_is_not_there_cannot_be_accepted(config: DestinationConfig) -> None:
    """Otherwise the next gap, which nobody has seen, would be accepted too."""
    service = make_service(config, NumberStore(last=3))
    lease = service.get("me")
    assert lease is not None
    service.ack(lease.batch, lease.token)
    with pytest.raises(UsageError, match="has no gap that was not accepted"):
        service.accept_beginning()


def test_a_gap_that_has_changed_since_it_was_shown_is_not_accepted(config: DestinationConfig) -> None:
    acked(config, NumberStore(last=3))
    shown = beginning_gap(make_service(config, NumberStore(last=20, begins=BEGINS)).subscription(), "apply", 10)
    meta = config.meta.path.joinpath("meta.json")
    before = meta.read_bytes()
    further = make_service(config, NumberStore(last=30, begins=replace(BEGINS, seq=25, pos=25)))
    with pytest.raises(GapChangedError, match=r"after 3 up to 10 of all tables .*; now it is .* after 3 up to 25"):
        further.accept_beginning(expected=shown)
    assert meta.read_bytes() == before
    service = make_service(config, NumberStore(last=20, begins=BEGINS))
    assert service.accept_beginning(expected=shown).until_seq == 10


def test_tables_are_not_accepted_after_another_ack(config: DestinationConfig) -> None:
    acked(config, NumberStore(last=3))
    service = make_service(config, NumberStore(last=6))
    shown = table_gaps(service.subscription(), {"shop.orders": None})
    assert [(gap.after_seq, gap.until_seq, gap.table) for gap in shown] == [(0, 3, "shop.orders")]
    lease = service.get("me")
    assert lease is not None
    service.ack(lease.batch, lease.token)
    with pytest.raises(GapChangedError, match=r"up to 3 of shop\.orders"):
        service.accept_tables("apply", {"shop.orders": None}, shown)
    assert service.subscription().gaps == []


def test_an_outstanding_batch_of_another_store_comes_again_in_a_new_one(config: DestinationConfig) -> None:
    store = NumberStore(last=6)
    service = make_service(config, store)
    lease = service.get("me", limits=Limits(max_transactions=3))
    assert lease is not None
    text = lease.manifest_path.read_text().replace('"offset": 100', '"offset": 150')
    lease.manifest_path.write_text(text)
    repeated = service.get("me", limits=Limits(max_transactions=3))
    assert repeated is not None
    assert (repeated.batch, repeated.manifest.first_seq, repeated.manifest.ranges[0].offset) == (
        lease.batch + 1,
        1,
        100,
    )


# --- a missing store


@pytest.mark.parametrize("remains", ["nothing", "an empty folder"])
def test_a_store_that_the_meta_knows_and_that_is_not_there_is_an_error(config: DestinationConfig, remains: str) -> None:
    acked(config, NumberStore(last=3))
    if remains == "an empty folder":
        config.store.path.mkdir(parents=True)
    before = config.meta.path.joinpath("meta.json").read_bytes()
    service = make_service(config, StoreReader(config.store.path))  # type: ignore[arg-type]
    with pytest.raises(StorageError) as caught:
        service.get("me")
    assert caught.value.retryable
    for part in (str(config.store.path), "cursor is at 3", "Mount its disk", "cdc capture shop"):
        assert part in str(caught.value)
    assert config.meta.path.joinpath("meta.json").read_bytes() == before


def test_an_empty_store_behind_a_cursor_is_an_error(config: DestinationConfig) -> None:
    acked(config, NumberStore(last=3))
    layout.create(config.store.path, "shop")
    with pytest.raises(StorageError, match="the store is empty, but the cursor is at 3"):
        make_service(config, StoreReader(config.store.path)).get("me")  # type: ignore[arg-type]


def test_a_destination_that_never_captured_has_nothing_to_do_and_says_so(
    config: DestinationConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--conf-dir", str(config.file.parent), "apply", "shop"]) == 0
    said = capsys.readouterr()
    assert "nothing was captured yet" in said.err.lower()
    assert not config.meta.path.exists() or not list(config.meta.path.glob("meta.json"))


def test_a_run_up_to_a_time_without_any_store_is_not_complete(config: DestinationConfig) -> None:
    from datetime import UTC, datetime

    from cdc.batches.service import BatchService

    with pytest.raises(StoreIncompleteError):
        BatchService(config).get("me", until=datetime(2026, 1, 1, tzinfo=UTC), wait_s=0)
    assert not config.meta.path.joinpath("meta.json").exists()


def test_the_command_accepts_and_status_shows(config: DestinationConfig, capsys: pytest.CaptureFixture[str]) -> None:
    acked(config, NumberStore(last=3))
    make_store(config.store.path)
    begins = read_beginning(config.store.path)
    assert begins is not None
    run = ["--conf-dir", str(config.file.parent)]
    assert main([*run, "batch", "get", "shop"]) == 2
    assert "accept-gap" in capsys.readouterr().err
    assert main([*run, "batch", "accept-gap", "shop", "--json"]) == 0
    (gap,) = json.loads(capsys.readouterr().out)["gaps"]
    assert (gap["after_seq"], gap["until_seq"], gap["table"]) == (3, begins.seq, None)
    assert main([*run, "status", "shop", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["store"]["begins"]["seq"] == begins.seq
    assert document["subscriptions"][0]["gaps"] == [gap]
    assert main([*run, "status", "shop"]) == 0
    assert f"lacks the transactions after 3 up to {begins.seq}" in capsys.readouterr().out
    assert main([*run, "batch", "get", "shop", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gaps"][0]["until_seq"] == begins.seq


def test_a_standby_takes_the_beginning_from_its_master(tmp_path: Path) -> None:
    master, standby = tmp_path / "master", tmp_path / "standby"
    for store in (master, standby):
        layout.create(store, "shop")
    record_beginning(master, BEGINS)
    content = read_small(master, "store.json")
    assert content is not None and "store.json" in small_files(master)
    Copy(standby, CheckpointWriter(standby, lambda: 0), "peer", 0).file("store.json", content)
    assert read_beginning(standby) == BEGINS
