"""Random keys of every type through each way into Spark, in the modes that reduce changes; equal to SELECT."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from cdc.testing.servers import Server
from spark_jobs.source import changes
from tests.support.apply import Loop
from tests.support.compare import mirror_faults
from tests.support.random_keys import RandomChanges, make_tables


@pytest.mark.timeout(900)
def test_tasks_decode_what_is_not_small(
    mariadb11: Server,
    tmp_path: Path,
    database: Callable[[Server], str],
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(changes, "SMALL_BYTES", 0)
    rng = random.Random(f"{seed} ways")
    loop = Loop(tmp_path, mariadb11, database(mariadb11))
    tables = make_tables(rng, "mariadb", 9)
    loop.sql(*(table.create() for table in tables))
    random_changes = RandomChanges(mariadb11, loop.db, rng)
    for count in (30, 5):
        random_changes.run(tables, count)
        loop.capture()
        loop.apply_all()
        faults = [
            f"{table.types}: {fault}"
            for table in tables
            for fault in mirror_faults(mariadb11, loop.config.apply.target, loop.db, table.name, table.select)
        ]
        assert not faults, "\n".join([f"seed {seed}", *faults[:20]])
