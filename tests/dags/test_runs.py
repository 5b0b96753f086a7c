"""A run takes batch after batch, and acks each by itself."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import CapturingLogger

from cdc.airflow import TowpathMergeOperator, build_dags, xcom
from cdc.base.errors import MergeFailedError, TargetError
from cdc.batches import results
from cdc.batches.manifest import TableResult
from cdc.config import load
from cdc.testing.pipeline import FakePipeline, sample_manifest

States = dict[str, str | None]
Apply = Callable[..., States]


@pytest.fixture
def apply(write_conf: Callable[..., Any], run_dag: Callable[..., States], pipeline: FakePipeline) -> Apply:
    pipeline.waiting = [sample_manifest(number) for number in (1, 2, 3)]

    def run(retries: int = 0, run_for: str = "5m") -> States:
        return run_dag(build_dags(write_conf(retries=retries, run_for=run_for))["apply_shop"])

    return run


def raising(*outcomes: Exception | None) -> Callable[[], None]:
    """Returns a step that raises the next of these errors, or nothing."""
    left = list(outcomes)

    def step() -> None:
        error = left.pop(0) if left else None
        if error is not None:
            raise error

    return step


def test_a_run_applies_what_waits_in_one_session(apply: Apply, pipeline: FakePipeline) -> None:
    assert apply() == {"run": "success", "fetch": "success", "merge": "success", "finalize": "success"}
    assert (pipeline.acked, pipeline.rolled_back, pipeline.sessions) == ([1, 2, 3], [], 1)


def test_what_comes_after_the_beginning_is_left_to_the_next_run(apply: Apply, pipeline: FakePipeline) -> None:
    """Under steady traffic a run ends, and the commits do not become small."""
    pipeline.fail["merge"] = lambda: pipeline.waiting.append(sample_manifest(pipeline.waiting[-1].batch + 1))
    assert apply()["run"] == "success"
    assert pipeline.acked == [1, 2, 3]
    assert [manifest.batch for manifest in pipeline.waiting] == [4, 5, 6]
    assert apply()["run"] == "success"
    assert pipeline.acked == [1, 2, 3, 4, 5, 6]


def test_a_run_whose_time_is_spent_is_a_success_and_the_next_one_goes_on(apply: Apply, pipeline: FakePipeline) -> None:
    pipeline.fail["merge"] = lambda: time.sleep(0.02)
    for number in (1, 2, 3):
        assert apply(run_for="0.01")["run"] == "success"
        assert pipeline.acked == list(range(1, number + 1))
    assert (pipeline.waiting, pipeline.rolled_back) == ([], [])


def test_a_failure_in_the_middle_keeps_what_was_acked(apply: Apply, pipeline: FakePipeline) -> None:
    pipeline.fail["merge"] = raising(None, TargetError("is not a Delta table"))
    assert apply(retries=2) == {"run": "failed", "fetch": "success", "merge": "failed", "finalize": "failed"}
    assert (pipeline.acked, pipeline.rolled_back) == ([1], [2])
    assert apply()["run"] == "success"
    assert pipeline.acked == [1, 2, 3]


def test_a_retry_goes_on_where_the_try_before_it_ended(apply: Apply, pipeline: FakePipeline) -> None:
    pipeline.fail["merge"] = raising(None, MergeFailedError("the driver was killed"), None)
    assert apply(retries=1)["run"] == "success"
    assert (pipeline.acked, pipeline.rolled_back) == ([1, 2, 3], [])


def test_a_retry_after_everything_was_acked_is_a_success(apply: Apply, pipeline: FakePipeline) -> None:
    """The last ack of a killed try may be the last thing that it did."""
    seen: list[int] = []

    def acks_and_dies() -> None:
        seen.append(1)
        if len(seen) == 1:
            lease = next(iter(pipeline.leases.values()))
            pipeline.waiting = pipeline.waiting[:1]
            pipeline.finalize(load(pipeline.folder / "conf" / "shop.yaml"), lease, True, [])
            raise MergeFailedError("killed after the ack")

    pipeline.fail["merge"] = acks_and_dies
    assert apply(retries=1) == {"run": "success", "fetch": "success", "merge": "success", "finalize": "success"}
    assert (pipeline.acked, pipeline.rolled_back) == ([1], [])


def test_each_batch_has_a_line_and_each_table_one_for_the_run(
    write_conf: Callable[..., Any],
    pipeline: FakePipeline,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TowpathMergeOperator, "log", logging.getLogger("tests.lines"))
    pipeline.waiting = [sample_manifest(1), sample_manifest(2)]
    pipeline.results = [
        TableResult(table="shop.orders", inserted=3, updated=1, files=2, seconds=0.5, delta_version=7),
        TableResult(table="shop.items", skipped=4),
    ]
    file = write_conf() / "shop.yaml"
    lease = pipeline.fetch(load(file), "airflow:apply_shop")
    assert lease is not None
    task = TowpathMergeOperator(task_id="merge", conf_file=str(file))
    lines_of_tables = CapturingLogger()  # Airflow drops INFO in these tests
    monkeypatch.setattr(results, "_log", lines_of_tables)
    with caplog.at_level(logging.INFO):
        merged = task.execute({"ti": Fetched(xcom.from_lease(lease, None))})  # type: ignore[typeddict-item]
    assert (merged["batch"], merged["acked"], len(merged["results"])) == (2, 1, 2)
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("Batch")]
    assert lines == [
        "Batch 1: 1 transactions, 1 row events of shop.orders (seq 1 to 1).",
        "Batch 1, shop.orders: 3 inserted, 1 updated, 0 deleted, 0 skipped; version 7, 0.5 s.",
        "Batch 1, shop.items: 0 inserted, 0 updated, 0 deleted, 4 skipped; version None, 0.0 s.",
        "Batch 1 is acked.",
        "Batch 2: 1 transactions, 1 row events of shop.orders (seq 2 to 2).",
        "Batch 2, shop.orders: 3 inserted, 1 updated, 0 deleted, 0 skipped; version 7, 0.5 s.",
        "Batch 2, shop.items: 0 inserted, 0 updated, 0 deleted, 4 skipped; version None, 0.0 s.",
    ]
    counts = ("table", "changes", "inserted", "updated", "deleted", "skipped", "seconds", "files", "batches")
    *calls, run = lines_of_tables.calls
    assert [call.args for call in calls] == [
        ("shop.items: 0 inserted, 0 updated, 0 deleted, 8 skipped in 2 batches; no version, 0.0 s.", "table applied"),
        ("shop.orders: 6 inserted, 2 updated, 0 deleted in 2 batches; version 7, 1.0 s.", "table applied"),
    ]
    sentence, event = run.args
    assert re.fullmatch(r"The run merged 2 batches in \d+\.\d s\.", sentence)
    assert event == "run applied"
    assert [[call.kwargs[key] for key in counts] for call in calls] == [
        ["shop.items", 0, 0, 0, 0, 8, 0.0, 0, 2],
        ["shop.orders", 8, 6, 2, 0, 0, 1.0, 4, 2],
    ]


def test_a_killed_merge_begins_no_other_batch(write_conf: Callable[..., Any], pipeline: FakePipeline) -> None:
    pipeline.waiting = [sample_manifest(1), sample_manifest(2)]
    file = write_conf() / "shop.yaml"
    task = TowpathMergeOperator(task_id="merge", conf_file=str(file))
    lease = pipeline.fetch(load(file), "airflow:apply_shop")
    assert lease is not None
    pipeline.fail["merge"] = task.on_kill
    merged = task.execute({"ti": Fetched(xcom.from_lease(lease, None))})  # type: ignore[typeddict-item]
    assert (merged["batch"], pipeline.acked) == (1, []), "finalize decides, by the state that Airflow sets"
    assert pipeline.calls == ["fetch", "merge", "stop"]


class Fetched:
    """The task instance of a first try, with the XCom of fetch."""

    try_number = 1

    def __init__(self, value: dict[str, Any]) -> None:
        self._value = value

    def xcom_pull(self, task_ids: str) -> dict[str, Any]:
        assert task_ids == "fetch"
        return self._value
