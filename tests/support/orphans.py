"""A driver that is overtaken: it is held before a statement, while others merge the same changes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from cdc.base.errors import BatchError
from cdc.batches.lease import Lease
from cdc.batches.service import BatchService
from cdc.lake import pipeline
from cdc.lake.apply import commit
from tests.support.apply import Loop


def merge_overtaken(
    loop: Loop,
    lease: Lease,
    monkeypatch: pytest.MonkeyPatch,
    others: Callable[[], object],
    *,
    is_meant: Callable[[str], bool] = lambda table: True,
) -> None:
    """Merges a batch. Before the first statement of a table that is meant, the batch is rolled back and ``others`` run;
    then the statement runs. The check of another table may come after the rollback, and end the merge."""
    held: list[str] = []
    config = loop.config

    def elsewhere(table: str) -> None:
        if held or not is_meant(table):
            return
        held.append(table)
        BatchService(loop.config).rollback(lease.batch, lease.token)
        others()

    monkeypatch.setattr(commit, "before_statement", elsewhere)
    with suppress(BatchError):
        pipeline.merge(config, lease)
    assert held
