"""The batch, version and run that brought a change into a table: by commits, by manifests, and after RESTORE."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cdc.base.run_identity import RunIdentity
from cdc.batches.manifest import Manifest, Parking, TableResult
from cdc.batches.manifest_files import load_manifest
from cdc.config import DestinationConfig
from cdc.lake.writers import Writer, Writers, add_writers, run_address
from tests.support.unit_batches import make_config

GOLDEN = Path(__file__).parents[2] / "golden" / "manifest-v1.json"
TABLE = "shop.orders"
RUN = RunIdentity(dag_id="apply_shop", run_id="manual__1", task_id="merge", try_number=2)
OTHER = RunIdentity(host="h", command="cdc replay")


@pytest.fixture
def config(tmp_path: Path) -> DestinationConfig:
    return make_config(tmp_path)


def commit(version: int, first: int, last: int, run: RunIdentity | None = RUN, **keys: Any) -> dict[str, Any]:
    operation = {name: keys.pop(name) for name in ("operation", "operationMetrics") if name in keys}
    entry = {
        "destination": "shop", "table": TABLE, "batch": version, "first_seq": first, "last_seq": last, "generation": 0,
    }  # fmt: skip
    run_key = {} if run is None else {"run": run.document}
    return {"operation": "MERGE", "version": version, "userMetadata": json.dumps(entry | keys | run_key)} | operation


def restore(at: int, **parameters: Any) -> dict[str, Any]:
    return {"operation": "RESTORE", "version": at, "operationParameters": parameters}


def writers(config: DestinationConfig, *commits: dict[str, Any], **more: Any) -> Writers:
    return Writers(config, TABLE, commits, more.pop("generation", 0), **more)


def acked(results: list[TableResult], **update: Any) -> Manifest:
    manifest = load_manifest(GOLDEN)
    assert manifest.acked is not None
    changed = manifest.acked.model_copy(update={"tables": tuple(results), "run": update.pop("run", None)})
    return manifest.model_copy(update={"acked": changed, "after_seq": 10, "last_seq": 20, **update})


def test_the_commit_that_applied_a_change(config: DestinationConfig) -> None:
    """Commits of others, of tables beside it, and those of maintenance lie in between."""
    commit_writers = writers(
        config,
        {"operation": "OPTIMIZE", "version": 5, "userMetadata": json.dumps({"run": OTHER.document})},
        {"operation": "WRITE", "version": 4, "userMetadata": "not JSON"},
        commit(3, 20, 30),
        commit(2, 0, 99, table="shop.items"),
        commit(1, 10, 20, None),
        {"operation": "CREATE TABLE", "version": 0},
    )
    assert commit_writers.writer_of(30) == Writer(3, 3, None, RUN)
    assert commit_writers.writer_of(21) == Writer(3, 3, None, RUN)
    assert commit_writers.writer_of(20) == Writer(1, 1, None, None), "a commit of a version that recorded no run"
    assert commit_writers.writer_of(10) == commit_writers.writer_of(31) == Writer()


def test_a_table_that_was_built_again(config: DestinationConfig) -> None:
    snapshot = {"kind": "snapshot", "id": "a", "low_seq": 15}
    commit_writers = writers(
        config,
        commit(5, 25, 30, generation=1),
        commit(4, 25, 25, OTHER, generation=1, batch=0, rebuild=snapshot, operation="CREATE OR REPLACE TABLE"),
        commit(1, 10, 20),
    )
    assert commit_writers.writer_of(15) == commit_writers.writer_of(25) == Writer(None, 4, "snapshot", OTHER)
    assert commit_writers.writer_of(26) == Writer(5, 5, None, RUN)


@pytest.mark.parametrize("files", [0, 3])
def test_a_replay_of_a_range_leaves_earlier_rows_alone(config: DestinationConfig, files: int) -> None:
    replay = {"kind": "replay", "id": "a", "low_seq": None}
    metrics = {"numTargetFilesAdded": str(files)}
    commit_writers = writers(
        config,
        commit(4, 15, 20, OTHER, generation=1, batch=0),
        commit(3, 15, 15, OTHER, generation=1, batch=0, rebuild=replay, operationMetrics=metrics),
        commit(1, 10, 20),
    )
    assert commit_writers.writer_of(16) == Writer(None, 4, None, OTHER)
    assert commit_writers.writer_of(15) == (Writer(1, 1, None, RUN) if files == 0 else Writer(None, 3, "replay", OTHER))


def test_commits_that_restore_took_back(config: DestinationConfig) -> None:
    commits = [commit(3, 20, 30, OTHER), commit(2, 10, 20), commit(1, 0, 10)]
    commit_writers = writers(config, commit(5, 10, 30), restore(4, version="1", timestamp=None), *commits)
    assert commit_writers.writer_of(25) == commit_writers.writer_of(11) == Writer(5, 5, None, RUN)
    assert commit_writers.writer_of(5) == Writer(1, 1, None, RUN)
    # Restored once more, to before the first restoration: it counts no longer, and neither do the commits after it.
    commit_writers = writers(config, restore(6, version=3), commit(5, 10, 30), restore(4, version=1), *commits)
    assert commit_writers.writer_of(25) == Writer(3, 3, None, OTHER)


def test_after_a_restore_to_a_time_nothing_older_is_claimed(config: DestinationConfig) -> None:
    commit_writers = writers(
        config, commit(5, 20, 30), restore(4, version=None, timestamp="2026-03-01"), commit(1, 10, 20),
        acked=[acked([TableResult(table=TABLE, delta_version=1)])],
    )  # fmt: skip
    assert commit_writers.writer_of(25) == Writer(5, 5, None, RUN)
    assert commit_writers.writer_of(15) == Writer()


def test_manifests_tell_what_delta_has_removed(config: DestinationConfig) -> None:
    result = TableResult(table=TABLE, delta_version=7)
    commit_writers = writers(config, commit(9, 20, 30), acked=[acked([result], run=OTHER)])
    assert commit_writers.writer_of(15) == Writer(2, 7, None, OTHER)
    assert commit_writers.writer_of(5) == Writer()
    batch = acked([result]).model_copy(update={"run": RUN})
    assert writers(config, acked=[batch]).writer_of(15) == Writer(2, 7, None, RUN)
    assert writers(config, acked=[acked([result])]).writer_of(15) == Writer(2, 7, None, None), "an older version's"


@pytest.mark.parametrize(
    "result",
    [
        TableResult(table="shop.items", delta_version=7),
        TableResult(table=TABLE, delta_version=7, generation=1),
        TableResult(table=TABLE, parked=Parking(due="retry", reason="a fault")),
    ],
)
def test_a_batch_that_left_the_table_out_has_not_written_it(config: DestinationConfig, result: TableResult) -> None:
    assert writers(config, acked=[acked([result])]).writer_of(15) == Writer()


def test_addresses(config: DestinationConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW__API__BASE_URL", raising=False)
    assert run_address(config, RUN) is None
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://air.example/{team}/")
    odd = RUN.model_copy(update={"run_id": "a/b?c#d{e}é"})
    page = "/dags/apply_shop/runs/a%2Fb%3Fc%23d%7Be%7D%C3%A9/tasks/merge?try_number=2"
    assert run_address(config, odd) == f"https://air.example/{{team}}{page}"
    assert run_address(config, odd, "/base") == f"/base{page}"
    assert run_address(config, odd, "") == page
    assert run_address(config, OTHER) is None
    links = config.airflow.links.model_copy(update={"run": "https://x/{destination}/{dag_id}?{run_id}&{task_id}&{try}"})
    airflow = config.airflow.model_copy(update={"links": links})
    own = config.model_copy(update={"airflow": airflow})
    assert run_address(own, RUN, "/base") == "https://x/shop/apply_shop?manual__1&merge&2"


def test_changes_get_their_writers(config: DestinationConfig) -> None:
    changes: list[dict[str, Any]] = [{"seq": 15, "op": "insert"}, {"seq": 99}]
    add_writers(changes, config, writers(config, commit(1, 10, 20, OTHER)))
    assert changes == [
        {"seq": 15, "op": "insert", "batch": 1, "delta_version": 1, "rebuild": None, "run": OTHER.document,
         "run_url": None},
        {"seq": 99, "batch": None, "delta_version": None, "rebuild": None, "run": None, "run_url": None},
    ]  # fmt: skip
