"""Why a table is behind: its lag, its position as time, its last merge, and the phases of the last run."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cdc.base.run_identity import RunIdentity, working_for
from cdc.base.units import iso_time_us
from cdc.batches import parking
from cdc.batches.manifest import Manifest, Parking, TableResult
from cdc.batches.manifest_files import load_manifest
from cdc.batches.results import phases_text
from cdc.batches.service import BatchService
from cdc.config import DestinationConfig
from cdc.meta import ParkedTable
from cdc.store.reader.reader import StoreReader
from cdc.watch import status
from cdc.watch.last_merges import last_merges, last_run, merge_text, run_text
from cdc.watch.page.board import BoardRow
from cdc.watch.page.render import card, destination
from tests.support.commit_times import fill
from tests.support.unit_batches import IDENTITY, make_config
from tests.unit.watch.page.test_pages import NoLinks

GOLDEN = Path(__file__).parents[2] / "golden" / "manifest-v1.json"
RUN = RunIdentity(dag_id="apply_shop", run_id="manual__1", task_id="merge", try_number=1)
PHASES = {"start": 6.2, "read": 0.25, "merge": 1.4}


@pytest.fixture
def applied() -> dict[str, int]:
    """The applied positions of the Delta tables a and b; there is no c yet."""
    return {}


@pytest.fixture
def config(tmp_path: Path, applied: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> DestinationConfig:
    """A store of six transactions in batches of up to three, and three tables that are in the lake."""
    config = make_config(tmp_path)
    fill(config.store.path, [1, 2, 3, 4, 5, 6])
    BatchService(config).meta.bind_source(IDENTITY)

    def tables(_config: DestinationConfig, _reader: object) -> tuple[list[dict[str, Any]], dict[str, tuple[str, ...]]]:
        row = {"mode": "upsert", "delta_version": 1, "path": "/lake", "note": None, "reader": None, "small_files": 0}
        return [row | {"table": f"shop.{name}", "applied_seq": applied.get(name)} for name in "abc"], {}

    monkeypatch.setattr(status, "_tables", tables)
    return config


def apply(config: DestinationConfig, *results: TableResult) -> int:
    """Acks a batch with these results. Returns its last seq."""
    service = BatchService(config)
    lease = service.get("test", wait_s=0)
    assert lease is not None
    service.ack(lease.batch, lease.token, results=results)
    return lease.manifest.last_seq


def test_tables_are_as_late_as_the_cursor_and_parked_ones_as_their_parking(
    config: DestinationConfig, applied: dict[str, int]
) -> None:
    merged = TableResult(table="shop.a", inserted=3, seconds=1.65, phases=PHASES)
    with working_for(RUN):
        first = apply(config, merged, TableResult(table="shop.b", parked=Parking(due="retry", reason="a fault")))
    applied |= {"a": first - 1, "b": first - 1}
    service = BatchService(config)
    hour_ago = datetime.now(UTC) - timedelta(hours=1)
    with service.meta.change() as state:
        parked = state.subscription("apply").parked
        parked["shop.b"] = parked["shop.b"].model_copy(update={"since": hour_ago})
    # A job that tries it once more, and fails, does not let it look fresh.
    second_entry = ParkedTable(due="retry", reason="another fault", since=datetime.now(UTC))
    parking.record_parked(service.meta, "apply", "shop.b", second_entry)

    document = status.collect(config)
    a, b, c = document["tables"]
    reader = StoreReader(config.store.path, "binlog")
    entry, before = reader.entry_at(first), reader.entry_at(first - 1)
    assert entry is not None
    assert before is not None
    assert a["applied_time"] == iso_time_us(int(entry["commit_time_us"])), "nothing of it lies up to the cursor"
    assert a["lag_s"] == document["subscriptions"][0]["lag_s"] > 0
    assert (a["parked_since"], a["last_merge"]["inserted"], a["last_merge"]["phases"]) == (None, 3, PHASES)
    assert b["lag_s"] == pytest.approx(3600, abs=60)
    assert b["applied_time"] == iso_time_us(int(before["commit_time_us"]))
    assert (b["last_merge"], b["parked_since"][:13]) == (None, hour_ago.isoformat()[:13])
    assert (c["lag_s"], c["applied_time"], c["last_merge"]) == (None, None, None)

    row = BoardRow("shop", config, document)
    page = destination(row, NoLinks(), "n")
    assert "3 inserted, 0 updated, 0 deleted, 1.6 s" in page or "3 inserted, 0 updated, 0 deleted, 1.7 s" in page
    assert "Spark start 6.2 s, read 0.2 s, merge 1.4 s" in page
    facts = {name: value for name, value, _ in card(row, NoLinks())["facts"]}
    assert "apply_shop, manual__1, merge, try 1" in facts["Last run"]

    apply(config, merged)
    applied |= {"a": 10**6}
    document = status.collect(config)
    assert document["tables"][0]["lag_s"] == 0.0
    facts = {name: value for name, value, _ in card(BoardRow("shop", config, document), NoLinks())["facts"]}
    assert re.fullmatch(r"1 h( \d+ s)? \(shop\.b is parked\), none otherwise", facts["Lag"])


def test_damaged_manifests_hide_nothing_else(config: DestinationConfig) -> None:
    apply(config)
    service = BatchService(config)
    service.manifests.path("apply", 1).write_bytes(b"{")
    document = status.collect(config)
    assert "is not whole JSON" in document["manifests_error"]
    assert (document["last_run"], len(document["tables"])) == (None, 3)
    row = card(BoardRow("shop", config, document), NoLinks())
    assert document["manifests_error"] in row["alarms"]


def acked(batch: int, run: RunIdentity | None, *results: TableResult) -> Manifest:
    manifest = load_manifest(GOLDEN)
    assert manifest.acked is not None
    update = {"tables": results, "run": run}
    return manifest.model_copy(update={"batch": batch, "acked": manifest.acked.model_copy(update=update)})


def test_the_last_run_is_all_batches_of_its_dag_run_whatever_the_try() -> None:
    result = TableResult(table="shop.a", updated=2, seconds=1.65, phases=PHASES)
    idle = TableResult(table="shop.a", idle=True, delta_version=9)
    batches = [
        acked(1, RUN.model_copy(update={"run_id": "manual__0"}), result),
        acked(2, RUN, result, TableResult(table="shop.b", phases={"start": 6.0, "read": 0.5})),
        acked(3, RUN.model_copy(update={"try_number": 2, "task_id": "finalize"}), result, idle),
    ]
    run = last_run(batches)
    assert run is not None
    assert (run["batches"], run["rows"], run["run"]["task_id"]) == (2, 4, "finalize")
    assert run["phases"] == {"start": 12.4, "read": 1.0, "merge": 2.8}
    assert run_text(run) == (
        "2 batches, 4 rows; Spark start 12.4 s, read 1.0 s, merge 2.8 s; apply_shop, manual__1, finalize, try 2"
    )
    assert last_merges(batches)["shop.a"]["batch"] == 3


def test_commands_are_told_apart_by_the_start_of_their_process() -> None:
    command = RunIdentity(host="h", command="cdc apply", started="2026-03-01T09:00:00+00:00")
    later = command.model_copy(update={"started": "2026-03-01T10:00:00+00:00"})
    batches = [acked(1, command), acked(2, later), acked(3, later)]
    run = last_run(batches)
    assert run is not None
    assert run["batches"] == 2


def test_manifests_of_older_versions() -> None:
    golden = load_manifest(GOLDEN)
    run = last_run([golden, golden.model_copy(update={"batch": 3})])
    assert run is not None
    assert (run["run"], run["batches"], run["phases"]) == (None, 1, {})
    assert golden.acked is not None
    merges = last_merges([golden])
    assert {*merges} == {result.table for result in golden.acked.tables}
    assert all(merge["phases"] == {} for merge in merges.values())
    assert last_run([]) is None
    assert run_text(run).startswith("1 batch, ")


def test_texts() -> None:
    assert phases_text({"commit": 0.1, "start": 6.25}) == "Spark start 6.2 s, commit 0.1 s"
    merge = {"inserted": 1203, "updated": 317, "deleted": 0, "seconds": 2.14}
    assert merge_text(merge) == "1,203 inserted, 317 updated, 0 deleted, 2.1 s"
