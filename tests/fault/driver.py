"""A process with a Spark driver that a test controls: one JSON list a line on standard input, one answer a line.

- ``["get", owner, transactions, lease_s]`` → the number of tables in the batch, null, or an error's class;
- ``["merge", pause]`` → "merged" or an error's class. ``pause``: each table's statement is held by
  :func:`tests.support.pause.pause` at ``pause.DB.TABLE``, with its kind; null: none is. The lease is renewed as often as
  ``get`` asked;
- ``["limits", small, scattered]`` → "done". Changes of at least ``small`` bytes are read by tasks of Spark, and files of
  at least ``scattered`` bytes together are large enough to mark rows in deletion vectors;
- ``["ack"]`` and ``["rollback"]`` → "done" or an error's class;
- ``["rows", path, columns]`` → the rows of a Delta table as Spark shows them.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cdc.base.errors import CdcError
from cdc.batches.lease import Lease
from cdc.batches.manifest import TableResult
from cdc.batches.service import BatchService
from cdc.config import load
from cdc.lake import pipeline
from cdc.lake.apply import commit
from cdc.lake.delta import files
from cdc.lake.rows import changes
from cdc.lake.runtime import session
from cdc.store.reader.batch_builder import Limits
from tests.support.compare import ordered
from tests.support.pause import pause


class _Current(threading.local):
    kind = "delta-rs"
    """The kind of this thread's statement; Spark's are noted by :func:`_noting`."""


_current = _Current()


def _noting(execute: Callable[..., commit.MergeStats]) -> Callable[..., commit.MergeStats]:
    """Lets Spark's statements note their kinds, and the transactions that replace rows instead of them."""

    def noted(self: commit.Commit, statement: str | None, *instead: Any) -> commit.MergeStats:
        if statement is None:  # only the position is committed
            return execute(self, statement, *instead)
        changing = "rewrites files" if self.use_vectors is not True else "marks rows"
        _current.kind = changing if " WHEN MATCHED " in statement else "inserts"
        try:
            return execute(self, statement, *instead)
        finally:
            _current.kind = "delta-rs"

    return noted


def _noting_small(execute: Callable[..., commit.MergeStats | None]) -> Callable[..., commit.MergeStats | None]:
    """Lets the changes of small tables for which no statement was made note their kind."""

    def noted(self: commit.Commit, *ways: Any) -> commit.MergeStats | None:
        before = _current.kind
        _current.kind = "rewrites files" if before == "delta-rs" else before
        try:
            return execute(self, *ways)
        finally:
            _current.kind = before

    return noted


class Driver:
    """A process with a Spark session of its own, and the batch that it fetched last."""

    def __init__(self, file: Path) -> None:
        self.config = load(file)
        self.lease: Lease | None = None
        self.lease_s = self.config.batch.lease_s
        self.results: list[TableResult] = []

    def get(self, owner: str, transactions: int | None, lease_s: float | None) -> int | None:
        limits = Limits(max_transactions=transactions)
        self.lease_s = self.config.batch.lease_s if lease_s is None else lease_s
        self.lease = BatchService(self.config).get(owner, limits=limits, wait_s=0, lease_s=lease_s)
        return None if self.lease is None else len(self.lease.manifest.tables)

    def merge(self, held: str | None) -> str:
        assert self.lease is not None
        commit.before_statement = (
            (lambda table: None) if held is None else (lambda table: pause(Path(f"{held}.{table}"), _current.kind))
        )
        batch = self.config.batch.model_copy(update={"lease_s": self.lease_s})
        self.results = pipeline.merge(self.config.model_copy(update={"batch": batch}), self.lease)
        return "merged"

    def ack(self) -> str:
        assert self.lease is not None
        pipeline.finalize(self.config, self.lease, True, self.results)
        return "done"

    def rollback(self) -> str:
        assert self.lease is not None
        pipeline.finalize(self.config, self.lease, False)
        return "done"

    def limits(self, small: int, scattered: int) -> str:
        changes.SMALL_BYTES, files.SCATTERED_BYTES = small, scattered
        return "done"

    def rows(self, path: str, columns: list[str]) -> list[str]:
        spark = session.acquire(self.config.spark).spark
        rows = spark.read.format("delta").load(path).select(*columns).collect()
        return [repr(row) for row in ordered(tuple(row) for row in rows)]


def main() -> None:
    # Output of Spark must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    driver = Driver(Path(sys.argv[1]))
    commit.Commit.execute = _noting(commit.Commit.execute)  # type: ignore[method-assign]
    commit.Commit.execute_by = _noting_small(commit.Commit.execute_by)  # type: ignore[method-assign]
    session.acquire(driver.config.spark)
    answers.write('"ready"\n')
    answers.flush()
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        answer: Any
        try:
            answer = getattr(driver, name)(*arguments)
        except CdcError as error:
            print(error, file=sys.stderr)
            answer = type(error).__name__
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    session.discard()


if __name__ == "__main__":
    main()
