"""Rows that are lost on the way into Spark stop the batch, by the metrics of the commit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from cdc.base.errors import TargetError
from cdc.batches.service import BatchService
from cdc.lake import pipeline
from cdc.lake.apply import commit, merge
from cdc.lake.rows import changes, key_plan
from cdc.testing.servers import Server
from tests.support.apply import Loop

Database = Callable[[Server], str]
TABLE = "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))"
FILL = f"INSERT INTO t VALUES {', '.join(f'({i}, NULL)' for i in range(20))}"
ABOVE = ["INSERT INTO t VALUES (100, 'new')", "INSERT INTO t VALUES (101, 'new')"]
CHANGES = ["UPDATE t SET v = 'x' WHERE id < 3", "DELETE FROM t WHERE id = 5"]


@pytest.mark.parametrize(
    ("mode", "statements"),
    [
        pytest.param("upsert", ABOVE, id="upsert-insert-only"),
        pytest.param("soft_delete", CHANGES, id="soft_delete-general", marks=pytest.mark.long),
        pytest.param("upsert", CHANGES, id="upsert-general", marks=pytest.mark.long),
        pytest.param("soft_delete", ABOVE, id="soft_delete-insert-only", marks=pytest.mark.long),
    ],
)
def test_a_batch_of_which_spark_reads_fewer_rows_is_refused_until_the_table_is_rebuilt(
    mode: str,
    statements: list[str],
    mysql9: Server,
    tmp_path: Path,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9), overrides=f"DB.t: {{mode: {mode}}}")
    loop.sql(TABLE, FILL)
    loop.capture()
    loop.apply_all()
    loop.sql(*statements)
    loop.capture()
    whole = key_plan.planned_frame

    def with_loss(*given: Any, **options: Any) -> Any:
        rows = whole(*given, **options)
        return rows.limit(rows.count() - 1)

    # As on a Connect server of others: without a statement, nothing is committed (test_row_replacement.py).
    monkeypatch.setattr(commit, "replace_rows", lambda *_given, **_options: None)
    monkeypatch.setattr(merge, "may_change", lambda *_: False)
    lease = loop.fetch()
    with monkeypatch.context() as patch:
        patch.setattr(merge, "planned_frame", with_loss)
        with pytest.raises(TargetError, match=r"lacks changes: Spark read \d of the \d rows.*cdc replay"):
            pipeline.merge(loop.config, lease)
    BatchService(loop.config).rollback(lease.batch, lease.token)
    # The position is in the table, but the batch does not pass, and neither does the next one.
    with pytest.raises(TargetError, match="lacks changes"):
        pipeline.merge(loop.config, lease := loop.fetch())
    BatchService(loop.config).rollback(lease.batch, lease.token)
    pipeline.replay(loop.config, [f"{loop.db}.t"])
    loop.sql("INSERT INTO t VALUES (200, 'after')")
    loop.capture()
    loop.apply_all()
    rows = loop.delta("t", "*" if mode == "upsert" else "id, v, _deleted")
    lake_rows = [{"id": row["id"], "v": row["v"]} for row in rows if not row.get("_deleted")]
    assert lake_rows == loop.select("t")


@pytest.mark.parametrize("small", [True, pytest.param(False, marks=pytest.mark.long)])
def test_commits_say_how_many_rows_they_were_given(
    small: bool, mysql9: Server, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into an empty table, above all keys, between them, and deletes of rows that never were there."""
    if not small:
        monkeypatch.setattr(changes, "SMALL_BYTES", 0)
    loop = Loop(tmp_path, mysql9, database(mysql9))
    given = []
    for statements in (
        [TABLE],
        ["INSERT INTO t VALUES (1, 'a'), (2, 'b'), (9, 'c')", "UPDATE t SET v = 'd' WHERE id = 2", "DELETE FROM t WHERE id = 9"],
        [*ABOVE, "DELETE FROM t WHERE id = 100"],
        ["INSERT INTO t VALUES (50, 'x'), (51, 'y')", "DELETE FROM t WHERE id >= 50"],
        ["UPDATE t SET v = 'z'"],
    ):  # fmt: skip
        loop.sql(*statements)
        loop.capture()
        loop.apply_all()
        loop.require_equal("t")
        newest = DeltaTable(str(loop.path("t"))).history(1)[0]
        entry = json.loads(newest.get("userMetadata", "{}"))
        if "source_rows" in entry:
            given.append((entry["source_rows"], entry["source_upserts"]))
            assert int(newest["operationMetrics"]["numSourceRows"]) >= entry["source_rows"]
    assert given == [(3, 2), (2, 1), (3, 0), (2, 2)]
