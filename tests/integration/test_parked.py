"""A table that fails is left out while the others go on, its changes are kept, and it comes back."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cdc.base.errors import MergeFailedError, TargetError
from cdc.batches.retention import holders
from cdc.batches.service import BatchService
from cdc.config.store import RetainConfig
from cdc.config.tables import ApplyOverrides
from cdc.lake.apply import commit
from cdc.lake.apply.schema import spark_lake
from cdc.lake.jobs.parked import left_out
from cdc.lake.jobs.retry import retry_parked
from cdc.lake.jobs.snapshot import take_snapshots
from cdc.meta import ParkedTable
from cdc.source.preflight import check_source
from cdc.testing.servers import Server
from tests.support.apply import Loop

Database = Callable[[Server], str]


@pytest.fixture
def loop(tmp_path: Path, mysql9: Server, database: Database) -> Loop:
    loop = Loop(tmp_path, mysql9, database(mysql9), apply="on_error: park")
    loop.sql(
        "CREATE TABLE a (id INT PRIMARY KEY, v INT)",
        "CREATE TABLE b (id INT PRIMARY KEY, v INT)",
        "INSERT INTO a VALUES (1, 1), (2, 2)",
        "INSERT INTO b VALUES (1, 1), (2, 2)",
    )
    loop.capture()
    loop.apply_all()
    return loop


def parked(loop: Loop) -> dict[str, ParkedTable]:
    return BatchService(loop.config).subscription().parked


def test_a_table_that_is_gone_is_parked_and_comes_back_with_its_changes(loop: Loop, tmp_path: Path) -> None:
    cursor = BatchService(loop.config).subscription().acked_seq
    shutil.move(loop.path("a"), tmp_path / "away")
    loop.sql("UPDATE a SET v = 10 WHERE id = 1", "UPDATE b SET v = 10 WHERE id = 1", "INSERT INTO a VALUES (3, 3)")
    loop.capture()
    results = loop.apply_all()
    assert [result.parked is not None for result in results["a"]] == [True]
    loop.require_equal("b")
    record = parked(loop)[f"{loop.db}.a"]
    assert (record.due, record.keep_seq) == ("retry", cursor)
    assert "the Delta table is gone" in record.reason

    # It stays out, and nothing of it is lost, while the others go on and retention waits for it.
    loop.sql("DELETE FROM a WHERE id = 2", "DELETE FROM b WHERE id = 2")
    loop.capture()
    assert "a" not in loop.apply_all()
    loop.require_equal("b")
    subscriptions = BatchService(loop.config).meta.subscriptions()
    held = holders(subscriptions, RetainConfig(), record.since)
    assert min(subscription.acked_seq for subscription in held) == cursor
    assert retry_parked(loop.config) == []  # it is still gone
    assert parked(loop)[f"{loop.db}.a"].keep_seq == cursor

    shutil.move(tmp_path / "away", loop.path("a"))
    assert [done.table for done in retry_parked(loop.config)] == [f"{loop.db}.a"]
    assert parked(loop) == {}
    loop.require_equal("a")
    loop.sql("INSERT INTO a VALUES (4, 4)")
    loop.capture()
    assert [result.inserted for result in loop.apply_all()["a"]] == [1]
    loop.require_equal("a")


def test_a_table_that_loses_its_primary_key_is_parked_and_capture_goes_on(loop: Loop) -> None:
    table = f"{loop.db}.a"
    loop.sql("ALTER TABLE a DROP PRIMARY KEY", "INSERT INTO a VALUES (3, 3)", "INSERT INTO b VALUES (3, 3)")
    loop.capture()
    loop.sql("INSERT INTO b VALUES (4, 4)")
    loop.capture()  # the server shows a table without a key when capture starts again
    [finding] = [f for f in check_source(loop.config) if f.level == "error"]
    assert (finding.subject, finding.stops) == (f"table {table}", "apply")
    assert "mode: append" in str(finding.remedy)
    loop.apply_all()
    loop.require_equal("b")
    reason = parked(loop)[table].reason
    assert "ALTER TABLE a DROP PRIMARY KEY" in reason
    assert "Give it keys: [...]" in reason

    loop.config.tables.overrides[table] = ApplyOverrides(keys=["id"])
    assert [done.table for done in retry_parked(loop.config)] == [table]
    loop.require_equal("a")


@pytest.mark.long
def test_a_table_that_fails_before_it_is_created_comes_back(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(table: str, *_: str) -> None:
        if table.endswith((".c", ".d")):
            raise RuntimeError("the object store answers 503")

    loop.sql("CREATE TABLE c (id INT PRIMARY KEY, v INT)", "INSERT INTO c VALUES (1, 1)", "INSERT INTO b VALUES (3, 3)")
    loop.sql("CREATE TABLE d (id INT PRIMARY KEY)", "DROP TABLE d")
    loop.capture()
    with monkeypatch.context() as patch:
        patch.setattr(commit, "before_statement", fail)
        patch.setattr(spark_lake, "before_step", fail)
        loop.apply_all()
        assert f"{loop.db}.c" in parked(loop)
        assert retry_parked(loop.config) == []
    loop.require_equal("b")
    assert not loop.path("c").exists()
    assert f"{loop.db}.c" in [done.table for done in retry_parked(loop.config)]
    assert parked(loop) == {}
    loop.require_equal("c")


@pytest.mark.long
def test_a_batch_that_is_outstanding_meanwhile_is_waited_for(loop: Loop, tmp_path: Path) -> None:
    shutil.move(loop.path("a"), tmp_path / "away")
    loop.sql("UPDATE a SET v = 10 WHERE id = 1")
    loop.capture()
    loop.apply_all()
    shutil.move(tmp_path / "away", loop.path("a"))
    loop.sql("UPDATE a SET v = 11 WHERE id = 1", "UPDATE b SET v = 11 WHERE id = 1")
    loop.capture()
    lease = loop.fetch()  # it leaves the parked table out; the catch-up must take its changes, too
    from cdc.lake import pipeline

    results = pipeline.merge(loop.config, lease)
    assert [result.table for result in results] == [f"{loop.db}.b"]
    assert len(retry_parked(loop.config)) == 1
    loop.require_equal("a")
    pipeline.finalize(loop.config, lease, True, results)
    assert parked(loop) == {}
    loop.sql("UPDATE a SET v = 12 WHERE id = 1")
    loop.capture()
    loop.apply_all()
    loop.require_equal("a")
    loop.require_equal("b")


def test_without_parking_the_whole_batch_is_blocked(tmp_path: Path, mysql9: Server, database: Database) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9), apply="on_error: park", overrides="DB.a: {on_error: block}")
    loop.sql("CREATE TABLE a (id INT PRIMARY KEY, v INT)", "INSERT INTO a VALUES (1, 1)")
    loop.capture()
    loop.apply_all()
    shutil.rmtree(loop.path("a"))
    loop.sql("UPDATE a SET v = 10 WHERE id = 1")
    loop.capture()
    with pytest.raises((TargetError, MergeFailedError), match="the Delta table is gone"):
        loop.apply()
    assert parked(loop) == {}


def test_a_table_that_is_gone_while_it_has_no_changes_is_parked_alone(loop: Loop, tmp_path: Path) -> None:
    loop.sql("UPDATE b SET v = 20 WHERE id = 1")
    shutil.move(loop.path("a"), tmp_path / "away")
    loop.capture()
    loop.apply_all()
    loop.require_equal("b")
    assert list(parked(loop)) == [f"{loop.db}.a"]
    assert "the Delta table is gone" in parked(loop)[f"{loop.db}.a"].reason
    shutil.move(tmp_path / "away", loop.path("a"))
    assert len(retry_parked(loop.config)) == 1
    assert parked(loop) == {}


@pytest.mark.parametrize("kind", ["mysql9", pytest.param("mariadb11", marks=pytest.mark.long)])
@pytest.mark.parametrize("binlog_format", ["STATEMENT", pytest.param("MIXED", marks=pytest.mark.long)])
def test_rows_of_a_query_that_is_in_the_binlog_as_text_need_a_snapshot(
    binlog_format: str, kind: str, request: pytest.FixtureRequest, tmp_path: Path, database: Callable[[Server], str]
) -> None:
    server: Server = request.getfixturevalue(kind)
    loop = Loop(tmp_path, server, database(server), apply="on_error: park")
    loop.sql(
        "CREATE TABLE t (id INT PRIMARY KEY, v INT)",
        "INSERT INTO t VALUES (1, 1), (2, 2)",
        "CREATE TABLE replaced (id INT PRIMARY KEY)",
        "INSERT INTO replaced VALUES (7)",
        "CREATE TABLE rows_follow (PRIMARY KEY (id)) AS SELECT * FROM t",
        f"SET SESSION binlog_format = {binlog_format}",
        "CREATE TABLE a (PRIMARY KEY (id)) AS SELECT * FROM t",
        "CREATE TABLE b (id INT PRIMARY KEY, v INT) IGNORE (SELECT * FROM t)",
        "CREATE TABLE IF NOT EXISTS t (id INT PRIMARY KEY, v INT) SELECT 3 AS id, 3 AS v",
        *(
            (
                "CREATE TABLE c (PRIMARY KEY (id)) TABLE t",
                "CREATE TABLE d (id INT PRIMARY KEY, v INT) AS WITH w AS (SELECT * FROM t) SELECT * FROM w",
                "CREATE TABLE e (PRIMARY KEY (column_0)) VALUES ROW(1, 2), ROW(3, 4)",
            )
            if kind == "mysql9"
            else ("CREATE OR REPLACE TABLE replaced (PRIMARY KEY (id)) AS SELECT * FROM t",)
        ),
        "SET SESSION binlog_format = ROW",
        "DELETE FROM a WHERE id = 1",
        "INSERT INTO b VALUES (4, 4)",
    )
    loop.capture()
    loop.apply_all()
    as_text = {"a", *("cde" if kind == "mysql9" else ["replaced"])}
    if binlog_format == "STATEMENT":
        as_text.add("b")  # in MIXED, IGNORE is unsafe as text, and the server writes rows instead
    assert {entry.table.partition(".")[2] for entry in left_out(loop.config)} == as_text
    take_snapshots(loop.config)
    loop.capture()
    loop.apply_all()
    assert left_out(loop.config) == []
    for table in {"t", "rows_follow", "replaced", "b", *as_text}:
        loop.require_equal(table)
