"""kill -9 of ``cdc snapshot --where`` while it reads a part of a table, before its MERGE, and before the table's return.

Apply then brings the table level with the rows that the part has at that moment, and the repeated command replaces
them. Nothing is lost or doubled in either order.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from cdc.batches.service import BatchService
from cdc.lake import pipeline
from cdc.lake.jobs.table_part import PartRequest
from cdc.testing.servers import Server
from tests.fault.test_column_kills import chunks, kill_at
from tests.support.apply import Loop
from tests.support.capturing import capturing
from tests.support.compare import ledger_faults

Database = Callable[[Server], str]
ROWS = 60


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("applies", [False, True])
@pytest.mark.parametrize("moment", ["chunk", "statement", "level"])
def test_a_snapshot_of_a_part_is_killed(
    moment: str, applies: bool, tmp_path: Path, mariadb11: Server, database: Database
) -> None:
    loop = Loop(tmp_path, mariadb11, database(mariadb11), snapshot="{chunk_rows: 5, parallel: 1}")
    values = ", ".join(f"({i}, {i % 3}, 'v{i}')" for i in range(ROWS))
    loop.sql("CREATE TABLE t (id INT PRIMARY KEY, tenant INT, v VARCHAR(20))", f"INSERT INTO t VALUES {values}")
    loop.capture()
    loop.apply_all()
    lake = DeltaTable(str(loop.path("t")))
    lake.update(predicate="id < 40 AND tenant = 1", updates={"v": "'damaged'"})
    lake.delete("id < 20 AND tenant = 2")
    lake.update(predicate="id = 7", updates={"tenant": "2"})
    where = "id >= 1 AND tenant BETWEEN 1 AND 2"
    with capturing(loop.config):
        kill_at(loop, moment, tmp_path / "held", 3, f"{loop.db}.t", "--where", where)
        parked = BatchService(loop.config).subscription().parked[f"{loop.db}.t"]
        assert (parked.due, parked.reason) == ("retry", "A part of the table is being loaded.")
        done = chunks(loop)
        assert len(done) == 3 if moment == "chunk" else len(done) > 6
    loop.sql(
        "UPDATE t SET v = 'later' WHERE id % 5 = 0",
        "UPDATE t SET tenant = tenant + 1 WHERE id % 7 = 0",
        "DELETE FROM t WHERE id % 11 = 3",
        "INSERT INTO t VALUES (1000, 1, 'new'), (1001, 0, 'new')",
    )
    if applies:
        loop.capture()
        loop.apply_all()
        pipeline.retry_parked(loop.config)
        assert BatchService(loop.config).subscription().parked == {}
    with capturing(loop.config):
        (result,) = pipeline.snapshot(loop.config, [f"{loop.db}.t"], part=PartRequest.of(None, where))
        assert (result.differed or 0) > 0 or moment == "level"
    loop.capture()
    loop.apply_all()
    assert BatchService(loop.config).subscription().parked == {} and chunks(loop) == {}
    loop.require_equal("t")
    assert not ledger_faults(loop.config.apply.target, loop.db, "t", loop.config.meta.path)
