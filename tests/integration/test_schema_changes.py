"""DDL of the source reaches Delta: columns, types, truncates, drops and renames, by every policy, exactly once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc import pipeline
from cdc.errors import CdcError
from cdc.testing.servers import Server
from spark_jobs.apply.schema import evolve
from spark_jobs.runtime import session
from tests.support.apply import Loop
from tests.support.compare import ordered

Database = Callable[[Server], str]
CREATE = "CREATE TABLE {} (id INT PRIMARY KEY, a INT, b VARCHAR(20), c DECIMAL(10,2), d DATE, e TINYINT)"
ROWS = "INSERT INTO {} VALUES (1, 10, 'one', 1.25, '2024-02-03', 5), (2, NULL, NULL, NULL, NULL, NULL)"
OWN = {"_op", "_seq", "_row", "_commit_time", "_gtid", "_before", "_deleted", "_valid_from", "_valid_to", "_current"}


@pytest.fixture(autouse=True)
def _hook() -> Iterator[None]:
    yield
    evolve.before_step = lambda table, step: None


@pytest.fixture
def loop(tmp_path: Path, mysql9: Server, database: Database) -> Loop:
    return Loop(tmp_path, mysql9, database(mysql9))


def rows(loop: Loop, table: str, where: str = "true") -> tuple[list[str], list[Any]]:
    """Returns the source's columns and their rows as Spark shows them."""
    frame = session.acquire(loop.config.spark).spark.read.format("delta").load(str(loop.path(table))).where(where)
    names = [name for name in frame.columns if name not in OWN]
    quoted = ["`" + name.replace("`", "``") + "`" for name in names]
    return names, ordered(tuple(row) for row in frame.select(*quoted).collect())


def require_equal(loop: Loop, table: str, where: str = "true") -> None:
    names, found = rows(loop, table, where)
    selected = loop.select(table)
    assert found == ordered(tuple(row.values()) for row in selected)
    assert not selected or names == list(selected[0])


STEPS = "DROP c, CHANGE a b BIGINT, CHANGE b a TEXT AFTER d, MODIFY e INT FIRST, ADD c INT DEFAULT 3 AFTER id"


class Killed(Exception):
    """Stands for a kill: nothing of the driver's memory is used afterwards."""


@pytest.mark.timeout(900)
def test_a_kill_between_each_two_steps(loop: Loop) -> None:
    """Each driver does one step of the statement, and dies before its second."""
    loop.sql(CREATE.format("t"), ROWS.format("t"))
    loop.capture()
    loop.apply_all()
    loop.sql(f"ALTER TABLE t {STEPS}", "UPDATE t SET a = 'new' WHERE id = 1")
    loop.capture()
    lease, steps, done = loop.fetch(), [], False
    while not done:
        seen: list[str] = []

        def die(table: str, step: str, seen: list[str] = seen) -> None:
            seen.append(step)
            if len(seen) == 2:
                raise Killed(step)

        evolve.before_step = die
        try:
            results = pipeline.merge(loop.config, lease)
            done = True
        except CdcError:
            steps.append(seen[0])
            assert len(steps) < 30
    assert len(steps) > 6
    assert len(set(steps)) == len(steps)  # none is done twice
    evolve.before_step = lambda table, step: None
    pipeline.finalize(loop.config, lease, True, results)
    loop.apply_all()
    require_equal(loop, "t")
