"""A schema that is created before its first rows: one batch creates all tables, the next one fills them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cdc.batches.service import BatchService
from cdc.store.reader.batch_builder import Limits
from cdc.testing.servers import Server
from tests.support.apply import OWNER, Loop

Database = Callable[[Server], str]
TABLES = 97
CREATE = "CREATE TABLE t{} (id INT PRIMARY KEY, v VARCHAR(20)) COMMENT = 'it''s; one'"


def batches(loop: Loop) -> list[tuple[int, bool, int]]:
    """Returns transactions, DDL flag and tables of each pending batch."""
    service, shapes = BatchService(loop.config), []
    while (lease := service.get(OWNER, limits=Limits(), ahead=True)) is not None:
        shapes.append((lease.manifest.transactions, lease.manifest.ddl, len(lease.manifest.tables)))
    service.release(OWNER)
    return shapes


@pytest.mark.parametrize("kind", ["mysql9", pytest.param("mariadb11", marks=pytest.mark.long)])
def test_tables_before_rows_are_one_batch(
    kind: str, request: pytest.FixtureRequest, database: Database, tmp_path: Path
) -> None:
    server = request.getfixturevalue(kind)
    loop = Loop(tmp_path, server, database(server))
    loop.sql(*(CREATE.format(n) for n in range(TABLES)), *(f"INSERT INTO t0 VALUES ({n}, 'a')" for n in range(217)))
    loop.capture()
    assert batches(loop) == [(TABLES, True, TABLES), (217, False, 2 if TABLES > 64 else 1)]


@pytest.mark.long
def test_a_run_makes_its_tables_and_changes_no_row(loop: Loop) -> None:
    names = ["t0", "t1", "t2", "t3"]
    loop.sql(*(CREATE.format(n) for n in range(4)), "CREATE INDEX i ON t1 (v)", "ALTER TABLE t1 COMMENT = 'two'")
    loop.sql("INSERT INTO t1 VALUES (1, 'a'), (2, 'b')", "INSERT INTO t2 VALUES (3, 'c')")
    loop.sql("ALTER TABLE t1 ADD INDEX j (id, v)", "CREATE TABLE t4 (id INT PRIMARY KEY)", "ALTER TABLE t2 ADD w INT")
    loop.sql("INSERT INTO t2 VALUES (4, 'd', 5)", "UPDATE t1 SET v = 'z' WHERE id = 1")
    loop.capture()
    assert [(transactions, ddl) for transactions, ddl, _ in batches(loop)] == [
        (6, True), (2, False), (2, True), (1, True), (2, False)
    ]  # fmt: skip
    results = loop.apply()
    assert {result.table.partition(".")[2] for result in results} >= set(names)
    for name in names:
        assert loop.delta(name) == []
    loop.apply_all()
    for name in [*names, "t4"]:
        loop.require_equal(name)


@pytest.fixture
def loop(tmp_path: Path, mysql9: Server, database: Database) -> Loop:
    return Loop(tmp_path, mysql9, database(mysql9))
