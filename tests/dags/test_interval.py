"""With ``airflow.until: interval_end`` a run applies its data interval, in as many batches as needed."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cdc.airflow import build_dags
from cdc.base.errors import MergeFailedError, StoreIncompleteError
from cdc.testing.pipeline import FakePipeline, sample_manifest

States = dict[str, str | None]
DATE = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)


@pytest.fixture
def apply(
    write_conf: Callable[..., Any], run_dag: Callable[..., States], pipeline: FakePipeline
) -> Callable[..., States]:
    pipeline.waiting = [sample_manifest(number) for number in (1, 2, 3)]

    def run(retries: int = 0) -> States:
        return run_dag(build_dags(write_conf(retries=retries, until="interval_end"))["apply_shop"], DATE)

    return run


def failing(pipeline: FakePipeline, step: str, *outcomes: Exception | None) -> None:
    """Each call of a step raises the next of these errors, or none."""
    left = list(outcomes)

    def act() -> None:
        error = left.pop(0) if left else None
        if error is not None:
            raise error

    pipeline.fail[step] = act


def test_a_run_for_a_date_applies_all_batches_of_its_interval(
    apply: Callable[..., States], pipeline: FakePipeline
) -> None:
    assert apply()["run"] == "success"
    assert pipeline.acked == [1, 2, 3]
    assert pipeline.rolled_back == []
    (until,) = set(pipeline.limits)
    assert until is not None
    assert until - DATE in (timedelta(0), timedelta(seconds=5)), "the end of the interval of that date"


def test_the_interval_has_the_length_of_the_schedule(write_conf: Callable[..., Any]) -> None:
    from cdc.airflow.compat import DeltaDataIntervalTimetable

    dag = build_dags(write_conf(until="interval_end"))["apply_shop"]
    assert isinstance(dag.schedule, DeltaDataIntervalTimetable)
    assert build_dags(write_conf())["apply_shop"].schedule == timedelta(seconds=5)


def test_a_failed_merge_rolls_back_what_is_outstanding_and_keeps_what_is_acked(
    apply: Callable[..., States], pipeline: FakePipeline
) -> None:
    failing(pipeline, "merge", None, MergeFailedError("the driver was killed"))
    assert apply() == {"run": "failed", "fetch": "success", "merge": "failed", "finalize": "failed"}
    assert (pipeline.acked, pipeline.rolled_back) == ([1], [2])
    assert apply()["run"] == "success"
    assert pipeline.acked == [1, 2, 3]


def test_a_retry_goes_on_where_the_try_before_it_ended(apply: Callable[..., States], pipeline: FakePipeline) -> None:
    failing(pipeline, "merge", None, MergeFailedError("once"))
    assert apply(retries=1)["run"] == "success"
    assert (pipeline.acked, pipeline.rolled_back) == ([1, 2, 3], [])


def test_an_incomplete_store_fails_the_run_and_what_was_merged_is_acked(
    apply: Callable[..., States], pipeline: FakePipeline
) -> None:
    failing(pipeline, "fetch", None, None, StoreIncompleteError("complete up to 09:59 only"))
    assert apply()["run"] == "failed"
    assert (pipeline.acked, pipeline.rolled_back) == ([1, 2], [])
    assert apply()["run"] == "success"
    assert pipeline.acked == [1, 2, 3]


def test_the_interval_is_not_limited_by_the_time_of_a_run(
    write_conf: Callable[..., Any], run_dag: Callable[..., States], pipeline: FakePipeline
) -> None:
    pipeline.waiting = [sample_manifest(number) for number in (1, 2, 3)]
    pipeline.fail["merge"] = lambda: time.sleep(0.02)
    assert run_dag(build_dags(write_conf(until="interval_end", run_for="0.01"))["apply_shop"], DATE)["run"] == "success"
    assert pipeline.acked == [1, 2, 3], "a green run says that its interval is applied"


def test_nothing_in_the_interval_is_a_success(apply: Callable[..., States], pipeline: FakePipeline) -> None:
    pipeline.waiting.clear()
    assert apply() == {"run": "success", "fetch": "success", "merge": "skipped", "finalize": "skipped"}
