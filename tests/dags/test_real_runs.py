"""The apply DAG with a real source, store, Spark and lake."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from deltalake import DeltaTable

from cdc.airflow import build_dags
from cdc.base.errors import MergeFailedError
from cdc.batches.service import BatchService
from cdc.lake.apply import commit
from tests.dags.conftest import retry_at_once
from tests.support.apply import Loop

States = dict[str, str | None]


@pytest.fixture
def loop(new_loop: Loop) -> Loop:
    new_loop.sql("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))", "INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    new_loop.sql(*(f"ALTER TABLE t ADD COLUMN c{n} INT" for n in range(3)), "UPDATE t SET c0 = id")
    new_loop.capture()
    return new_loop


@pytest.fixture
def apply(loop: Loop, run_dag: Callable[..., States]) -> Callable[[], States]:
    def run() -> States:
        return run_dag(build_dags(loop.config.file.parent, ["apply"])["apply_shop"])

    return run


def acked_seq(loop: Loop) -> int:
    return BatchService(loop.config).subscription().acked_seq


@pytest.mark.long
def test_a_run_applies_statements_and_rows(loop: Loop, apply: Callable[[], States]) -> None:
    assert apply() == {"run": "success", "fetch": "success", "merge": "success", "finalize": "success"}
    service = BatchService(loop.config)
    assert (service.next_seq(), service.outstanding(), service.subscription().next_batch) == (None, [], 7)
    loop.require_equal("t")
    assert apply() == {"run": "success", "fetch": "success", "merge": "skipped", "finalize": "skipped"}


@pytest.mark.long  # test_runs.py has the same without Spark
def test_a_run_that_fails_in_the_middle_keeps_what_was_acked(
    loop: Loop, apply: Callable[[], States], monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_at_the_third_statement(monkeypatch, "the disk is full")
    run_without_retries(loop)
    assert apply() == {"run": "failed", "fetch": "success", "merge": "failed", "finalize": "failed"}
    acked = acked_seq(loop)
    assert acked > 0
    assert BatchService(loop.config).outstanding() == []
    assert apply()["run"] == "success"
    assert acked_seq(loop) > acked
    loop.require_equal("t")


def fail_at_the_third_statement(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    seen: list[str] = []

    def fails_at_the_third(table: str) -> Any:
        seen.append(table)
        if len(seen) == 3:
            raise MergeFailedError(reason)

    monkeypatch.setattr(commit, "before_statement", fails_at_the_third)


def run_without_retries(loop: Loop) -> None:
    text = loop.config.file.read_text(encoding="utf-8")
    loop.config.file.write_text(f"{text}airflow: {{retries: 0}}\n", encoding="utf-8")


@pytest.mark.long
def test_each_try_of_a_run_signs_its_own_commits(
    loop: Loop, apply: Callable[[], States], monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_at_the_third_statement(monkeypatch, "the driver was killed")
    retry_at_once(monkeypatch)
    assert apply()["run"] == "success"
    loop.require_equal("t")
    history = DeltaTable(str(loop.path("t"))).history()
    runs = [json.loads(entry["userMetadata"])["run"] for entry in reversed(history)]
    assert {(run["dag_id"], run["task_id"]) for run in runs} == {("apply_shop", "merge")}
    (run_id,) = {run["run_id"] for run in runs}
    tries = [run["try"] for run in runs]
    assert set(tries) == {1, 2}
    assert tries == sorted(tries)
    acked = [manifest.acked.run for manifest in BatchService(loop.config).acked_manifests() if manifest.acked]
    assert {run.run_id for run in acked if run} == {run_id}
    assert [run.task_id for run in acked if run][-1] == "finalize", "which acks the last batch"
