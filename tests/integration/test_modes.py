"""The modes soft_delete and scd2 under random histories, batch boundaries, repeats and orphans, and row by row."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cdc.base.errors import BatchError, TokenError
from cdc.batches.service import BatchService
from cdc.lake import pipeline
from cdc.lake.apply import commit
from cdc.testing.servers import Server
from tests.support.apply import Loop
from tests.support.histories import Histories, History, tables

OVERRIDES = ", ".join(
    f"DB.{mode}_{name}: {{mode: {mode}{', keys: [k]' if name == 'plain' else ''}}}"
    for mode in ("soft_delete", "scd2")
    for name in ("one", "two", "plain")
)


def naive(row: dict[str, Any], names: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(row[name] for name in names)


def require_versions(loop: Loop, history: History, seqs: dict[int, int]) -> None:
    """Checks that the table holds exactly the model's versions. ``seqs``: the seq of each transaction, where known."""
    names = (*history.keys, "n", "tx", "_valid_from", "_valid_to", "_current")
    rows = loop.delta(history.name)
    lake_rows = sorted((naive(row, names) for row in rows), key=repr)
    expected = sorted(
        (
            (
                *version.row,
                version.valid_from.replace(tzinfo=None),
                version.valid_to.replace(tzinfo=None) if version.valid_to else None,
                version.valid_to is None,
            )
            for versions in history.versions.values()
            for version in versions
        ),
        key=repr,
    )
    assert lake_rows == expected
    for row in rows:
        assert seqs.setdefault(row["tx"], row["_seq"]) == row["_seq"], "two seqs of one transaction"
    known_seqs = [seqs[tx] for tx in sorted(seqs)]
    assert known_seqs == sorted(set(known_seqs))


def require_marked(loop: Loop, history: History, seqs: dict[int, int]) -> None:
    names = (*history.keys, "n", "tx", "_deleted", "_commit_time")
    rows = loop.delta(history.name)
    lake_rows = sorted((naive(row, names) for row in rows), key=repr)
    expected = sorted(
        ((*marked.row, marked.deleted, marked.time.replace(tzinfo=None)) for marked in history.marked.values()),
        key=repr,
    )
    assert lake_rows == expected
    for row in rows:
        if not row["_deleted"]:
            assert seqs.setdefault(row["tx"], row["_seq"]) == row["_seq"]


def require_source(loop: Loop, history: History) -> None:
    """The model's state, the current rows in Delta and SELECT are the same."""
    where = "_current" if history.name.startswith("scd2") else "NOT _deleted"
    rows = [
        row for row in loop.delta(history.name) if (row["_current"] if where == "_current" else not row["_deleted"])
    ]
    names = (*history.keys, "n", "tx")
    lake_rows = sorted((naive(row, names) for row in rows), key=repr)
    assert lake_rows == sorted((naive(row, names) for row in loop.select(history.name)), key=repr)
    assert lake_rows == sorted(history.state.values(), key=repr)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_random_histories_under_repeats_and_orphans(
    mariadb11: Server, tmp_path: Path, database: Callable[[Server], str], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver is held before a statement; meanwhile its batch is rolled back, and another one merges a batch of other
    boundaries, shorter or longer. Then the statement of the first runs as that of an orphan. Schema changes have a
    table for themselves, so neither of the two batches has DDL (test_schema_changes.py has its orphans)."""
    rng = random.Random(f"{seed} modes")
    loop = Loop(tmp_path, mariadb11, database(mariadb11), overrides=OVERRIDES)
    work = Histories(mariadb11, loop.db, rng, [*tables("soft_delete"), *tables("scd2")])
    for round_ in range(2):
        work.run(rng.randrange(25, 40))
        loop.capture()
        take_over(loop, rng, monkeypatch)
        loop.apply_all(6 if round_ == 0 else None)
        seqs: dict[int, int] = {}
        for history in work.histories:
            (require_versions if history.name.startswith("scd2") else require_marked)(loop, history, seqs)
            require_source(loop, history)


def take_over(loop: Loop, rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    """Merges a batch twice; or holds one of rows before a random table's statement, merges another one of rows in its
    place, and lets the statement run."""
    lease, theirs = loop.fetch(rng.choice((3, 8, 20))), rng.choice((2, 5, 12, 25))
    stopped: list[str] = []

    def elsewhere(table: str) -> None:
        if not lease.manifest.ddl and not stopped and rng.random() < 0.5:
            stopped.append(table)
            service = BatchService(loop.config)
            service.rollback(lease.batch, lease.token)
            other = loop.fetch(theirs)
            if other.manifest.ddl:  # it would wait for the statement that this thread holds
                service.rollback(other.batch, other.token)
                return
            pipeline.finalize(loop.config, other, True, pipeline.merge(loop.config, other))

    with monkeypatch.context() as patch, suppress(BatchError, TokenError):
        patch.setattr(commit, "before_statement", elsewhere)
        results = pipeline.merge(loop.config, lease)
        if not stopped:
            pipeline.merge(loop.config, lease)
            pipeline.finalize(loop.config, lease, True, results)
