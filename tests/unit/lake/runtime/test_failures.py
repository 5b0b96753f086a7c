"""Errors from workers and from Java as errors of Towpath."""

from __future__ import annotations

import pytest
from delta.exceptions import ProtocolChangedException

import cdc.base.errors
from cdc.base.errors import CdcError, MergeFailedError, PermanentError, TargetError
from cdc.lake.runtime.failures import again_if_concurrent, explain, find_error, is_concurrent, marked_errors


def test_errors_cross_from_workers_to_the_driver() -> None:
    error = cdc.base.errors.DamagedError("fails its check", place="segment 1, position 7", remedy="Restore it.")
    with pytest.raises(RuntimeError) as raised, marked_errors():
        raise error
    wrapped = f"org.apache.spark.SparkException: Job aborted\n  Traceback …\nRuntimeError: {raised.value}\n\tat java…"
    received = find_error(wrapped)
    assert type(received) is cdc.base.errors.DamagedError
    assert str(received) == str(error)
    assert str(explain(RuntimeError(wrapped), "shop.t")) == str(error)
    assert find_error("nothing of ours") is None
    assert find_error("towpath-error:{broken}:end") is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("[DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION] Cannot create table", TargetError),
        ("java.lang.OutOfMemoryError: Java heap space\n\tat org.x", MergeFailedError),
        ("Answer from Java side is empty", MergeFailedError),
        ("org.apache.spark.sql.AnalysisException: [DATATYPE_MISMATCH] Cannot resolve it", PermanentError),
        ("org.apache.spark.sql.AnalysisException: [TABLE_OR_VIEW_NOT_FOUND] The table", MergeFailedError),
        ("org.apache.spark.SparkArithmeticException: [NUMERIC_VALUE_OUT_OF_RANGE] The value", PermanentError),
        ("[DELTA_VIOLATE_CONSTRAINT] CHECK constraint low (n < 10) violated by row with values:", TargetError),
        ("Check or Invariant (n < 10) violated by value in row: [1, 11]", TargetError),
        ("[DELTA_CANNOT_MODIFY_APPEND_ONLY] This table is configured to only allow appends.", TargetError),
        ("[DELTA_NOT_NULL_CONSTRAINT_VIOLATED] NOT NULL constraint violated for column: n.", TargetError),
    ],
)
def test_foreign_errors_become_a_sentence(text: str, kind: type[CdcError]) -> None:
    error = explain(RuntimeError(text), "shop.t")
    assert type(error) is kind
    assert "shop.t" in str(error)
    assert "\n" not in str(error)
    assert is_concurrent(RuntimeError("io.delta.exceptions.ConcurrentTransactionException: x"))
    assert not is_concurrent(RuntimeError(text))


def test_a_conflict_passes_whatever_spark_says_besides() -> None:
    text = "io.delta.exceptions.MetadataChangedException: org.apache.spark.sql.AnalysisException: [DELTA] x"
    assert type(explain(RuntimeError(text), "shop.t")) is MergeFailedError


def test_a_conflict_is_known_by_the_class_that_delta_spark_gives_it() -> None:
    assert is_concurrent(ProtocolChangedException("[DELTA_PROTOCOL_CHANGED] The protocol version has been changed."))


CONFLICT = "io.delta.exceptions.ConcurrentAppendException: x"


@pytest.mark.parametrize(
    ("errors", "columns", "calls"),
    [
        ([], "a", 1),
        ([CONFLICT, CONFLICT], "aaaaa", 3),
        ([CONFLICT] * 9, "a" * 9, None),  # all attempts
        (["Cannot cast"], "aba", 2),  # another writer has changed the columns
        (["Cannot cast"], "aa", None),
        (["Cannot cast", "Cannot cast"], "abbb", None),
        (["Connection refused"], "ab", None),
    ],
)
def test_a_statement_is_tried_again_after_a_commit_of_another_writer(
    errors: list[str], columns: str, calls: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    errors_left, seen = list(errors), iter(columns)
    called: list[None] = []

    def work() -> int:
        called.append(None)
        if errors_left:
            raise RuntimeError(errors_left.pop(0))
        return len(called)

    def find() -> int:
        return again_if_concurrent(work, "shop.orders", 4, lambda: next(seen))

    if calls is None:
        with pytest.raises(RuntimeError, match=errors[-1][:20]):
            find()
    else:
        assert find() == calls
