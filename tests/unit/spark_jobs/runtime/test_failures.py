"""Errors from workers and from Java as errors of Towpath."""

from __future__ import annotations

import pytest

import cdc.errors
from cdc.errors import CdcError, MergeFailedError, TargetError
from spark_jobs.runtime.failures import explain, find_error, is_concurrent, marked_errors


def test_errors_cross_from_workers_to_the_driver() -> None:
    error = cdc.errors.DamagedError("fails its check", place="segment 1, position 7", remedy="Restore it.")
    with pytest.raises(RuntimeError) as raised, marked_errors():
        raise error
    wrapped = f"org.apache.spark.SparkException: Job aborted\n  Traceback …\nRuntimeError: {raised.value}\n\tat java…"
    found = find_error(wrapped)
    assert type(found) is cdc.errors.DamagedError
    assert str(found) == str(error)
    assert str(explain(RuntimeError(wrapped), "shop.t")) == str(error)
    assert find_error("nothing of ours") is None
    assert find_error("towpath-error:{broken}:end") is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("[DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION] Cannot create table", TargetError),
        ("java.lang.OutOfMemoryError: Java heap space\n\tat org.x", MergeFailedError),
        ("Answer from Java side is empty", MergeFailedError),
    ],
)
def test_foreign_errors_become_a_sentence(text: str, kind: type[CdcError]) -> None:
    error = explain(RuntimeError(text), "shop.t")
    assert type(error) is kind
    assert "shop.t" in str(error)
    assert "\n" not in str(error)
    assert is_concurrent(RuntimeError("io.delta.exceptions.ConcurrentTransactionException: x"))
    assert not is_concurrent(RuntimeError(text))
