"""Rows replaced by key in Delta's own transaction: against the MERGE, beside other writers, and where it is not done."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from cdc.base.errors import MergeFailedError, RetryableError
from cdc.lake import pipeline
from cdc.lake.apply import commit, merge
from cdc.lake.delta import files, row_replacement
from cdc.lake.delta.row_replacement import LoggedTable, NewRows, Replaced
from cdc.lake.rows import changes
from cdc.lake.runtime.driver_jvm import DriverJvm
from cdc.lake.runtime.session import acquire
from cdc.testing.servers import Server
from tests.support.apply import Loop
from tests.support.compare import mirror_faults

Database = Callable[[Server], str]
TABLE = "CREATE TABLE t (a INT, b VARCHAR(20), v VARCHAR(40), n DECIMAL(12, 3), d DATETIME(3), PRIMARY KEY (a, b))"
Ways = list[str]


@pytest.fixture(autouse=True)
def by_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets Spark replace rows in small tables, too, whose rows would be replaced in this process."""
    monkeypatch.setattr(merge, "may_change", lambda *_: False)


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Ways:
    """Collects the way in which each table was merged: ``rows`` or ``statement``."""
    ways: Ways = []

    def seen(jvm: DriverJvm, table: LoggedTable, new: NewRows, *, marks: bool) -> Replaced | None:
        replaced = row_replacement.replace_rows(jvm, table, new, marks=marks)
        ways.append("statement" if replaced is None else "rows")
        return replaced

    monkeypatch.setattr(commit, "replace_rows", seen)
    return ways


def values(rows: range, text: str) -> str:
    return f"INSERT INTO t VALUES {', '.join(f'''({i % 7}, 'k{i}', '{text}', {i}.125, '2026-01-02 03:04:05.678')''' for i in rows)}"


def newest(loop: Loop) -> dict[str, int]:
    """Returns the metrics of the table's last commit."""
    last_commit = DeltaTable(str(loop.path("t"))).history(1)[0]
    assert last_commit["operation"] == "MERGE"
    return {name: int(value) for name, value in last_commit["operationMetrics"].items()}


def run(loop: Loop, *statements: str) -> dict[str, int]:
    loop.sql(*statements)
    loop.capture()
    loop.apply_all()
    loop.require_equal("t", "1, 2")
    return newest(loop)


@pytest.mark.parametrize("small", [True, pytest.param(False, marks=pytest.mark.long)])
def test_only_files_of_which_rows_stay_are_written_again(
    mysql9: Server, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch, ways: Ways, small: bool
) -> None:
    monkeypatch.setattr(row_replacement, "_TINY_BYTES", 0)
    if not small:
        monkeypatch.setattr(changes, "SMALL_BYTES", 0)
    loop = Loop(tmp_path, mysql9, database(mysql9))
    run(loop, TABLE, values(range(100), "a"))
    metrics = run(loop, values(range(100, 150), "b"))
    assert (metrics["numTargetRowsInserted"], metrics["numTargetFilesRemoved"]) == (50, 0)
    # All rows of the second file go, and none of it is copied.
    metrics = run(loop, "UPDATE t SET v = CONCAT(v, '!') WHERE v = 'b'")
    assert (metrics["numTargetRowsUpdated"], metrics["numTargetRowsCopied"], metrics["numTargetFilesRemoved"]) == (
        50,
        0,
        1,
    )
    metrics = run(
        loop, "UPDATE t SET v = 'x' WHERE b = 'k3'", "DELETE FROM t WHERE b = 'k4'", values(range(200, 201), "c")
    )
    assert metrics["numTargetRowsCopied"] == 98
    assert [metrics[f"numTargetRows{what}"] for what in ("Updated", "Deleted", "Inserted")] == [1, 1, 1]
    assert metrics["numSourceRows"] == 3
    # A key that moves is a delete and an insert; a row that comes and goes leaves nothing.
    metrics = run(
        loop, "UPDATE t SET b = 'k3b' WHERE b = 'k3'", values(range(300, 301), "c"), "DELETE FROM t WHERE b = 'k300'"
    )
    assert [metrics[f"numTargetRows{what}"] for what in ("Updated", "Deleted", "Inserted")] == [0, 1, 1]
    assert set(ways) == {"rows"}
    run(loop, "DELETE FROM t")
    assert loop.delta("t") == []


@pytest.mark.long
def test_a_small_table_is_joined_with_the_new_rows(
    mysql9: Server, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch, ways: Ways
) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9))
    run(loop, TABLE, values(range(100), "a"))
    run(loop, values(range(100, 150), "b"))
    gone = (values(range(300, 301), "c"), "DELETE FROM t WHERE b = 'k300'")
    changed = ("UPDATE t SET v = 'x' WHERE b IN ('k3', 'k103')", "DELETE FROM t WHERE b = 'k4'")
    metrics = run(loop, *changed, values(range(200, 203), "c"), *gone)
    assert [metrics[f"numTargetRows{what}"] for what in ("Updated", "Deleted", "Inserted", "Copied")] == [2, 1, 3, 147]
    assert (metrics["numTargetFilesRemoved"], metrics["numTargetFilesAdded"], metrics["numSourceRows"]) == (1, 1, 7)

    # Two rows with one key do not fit the counts of a join. Both go, file by file.
    table = DeltaTable(str(loop.path("t")))
    row = pa.table(QueryBuilder().register("t", table).execute("SELECT * FROM t WHERE b = 'k3'"))
    write_deltalake(table, row, mode="append")
    loop.sql("UPDATE t SET v = 'z' WHERE b = 'k7'")  # a commit of Delta, with a checksum
    loop.capture()
    loop.apply_all()
    joined = row_replacement._Replacement._joined
    outcomes: list[Any] = []
    monkeypatch.setattr(row_replacement._Replacement, "_joined", lambda self: outcomes.append(joined(self)))
    metrics = run(loop, "UPDATE t SET v = 'y' WHERE b = 'k3'")
    assert outcomes == [None]
    assert metrics["numTargetRowsUpdated"] == 2
    assert set(ways) == {"rows"}
    run(loop, "DELETE FROM t")
    assert loop.delta("t") == []


@pytest.mark.parametrize(
    ("overrides", "batches"),
    [
        ("", 2),
        pytest.param("", 20, marks=pytest.mark.long),
        pytest.param("DB.t: {deletion_vectors: true}", 20, marks=pytest.mark.long),
        pytest.param("DB.t: {deletion_vectors: true, partition_by: [a]}", 8, marks=pytest.mark.long),
        pytest.param("mapped", 8, marks=pytest.mark.long),
        pytest.param("DB.t: {partition_by: [a]}", 8, marks=pytest.mark.long),
        pytest.param("DB.t: {cluster_by: [a]}", 8, marks=pytest.mark.long),
    ],
)
@pytest.mark.timeout(900)
def test_random_batches_leave_the_rows_of_the_source(
    mysql9: Server,
    tmp_path: Path,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    ways: Ways,
    overrides: str,
    batches: int,
) -> None:
    monkeypatch.setattr(files, "SCATTERED_BYTES", 1)
    monkeypatch.setattr(row_replacement, "_FEW_ROWS", 50)
    is_mapped = overrides == "mapped"
    loop = Loop(tmp_path, mysql9, database(mysql9), overrides="" if is_mapped else overrides)
    run(loop, TABLE, values(range(300), "a"))
    if is_mapped:
        properties = (
            "'delta.columnMapping.mode' = 'name', 'delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '5'"
        )
        acquire(loop.config.spark).spark.sql(f"ALTER TABLE delta.`{loop.path('t')}` SET TBLPROPERTIES ({properties})")
    chance = random.Random(batches)
    for number in range(batches):
        monkeypatch.setattr(changes, "SMALL_BYTES", chance.choice([0, 1 << 20]))
        monkeypatch.setattr(row_replacement, "_TINY_BYTES", chance.choice([0, 1 << 20]))
        first = 1000 * (number + 1)
        statements = [
            values(range(first, first + chance.randrange(1, 60)), "new"),
            f"UPDATE t SET v = CONCAT(v, '{number}'), n = n + 1 WHERE a IN ({chance.randrange(7)}, {chance.randrange(7)})",
            f"UPDATE t SET d = NULL WHERE b LIKE 'k{chance.randrange(10)}%5'",
            f"DELETE FROM t WHERE b LIKE '%{chance.randrange(10)}'",
            f"UPDATE t SET a = a + 7 WHERE b LIKE '%{chance.randrange(10)}{chance.randrange(10)}'",
        ]
        run(loop, *chance.sample(statements, 3))
    assert set(ways) == {"rows"}


def test_rows_are_marked_in_deletion_vectors_and_marks_grow(
    mysql9: Server, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch, ways: Ways
) -> None:
    monkeypatch.setattr(files, "SCATTERED_BYTES", 1)
    loop = Loop(tmp_path, mysql9, database(mysql9), overrides="DB.t: {deletion_vectors: true}")
    run(loop, TABLE, values(range(500), "a"))
    run(loop, "UPDATE t SET v = 'x' WHERE b IN ('k3', 'k400')")
    metrics = run(loop, "UPDATE t SET v = 'y' WHERE b IN ('k3', 'k401')", "DELETE FROM t WHERE b = 'k402'")
    assert metrics["numTargetRowsCopied"] == 0
    # The file of the two rows goes as a whole; that of the 500 stays with three more marks.
    cardinality = [
        json.loads(line)["add"]["deletionVector"]["cardinality"]
        for line in (loop.path("t") / "_delta_log" / f"{loop.version('t'):020}.json").read_text().splitlines()
        if '"deletionVector":{' in line and line.startswith('{"add"')
    ]
    assert 4 in cardinality
    # A batch that rewrites the file takes the marks along.
    metrics = run(loop, "UPDATE t SET v = 'z' WHERE b LIKE '%1'")
    assert metrics["numTargetRowsUpdated"] == len(loop.select("t")) - len(
        [1 for r in loop.select("t") if r["v"] != "z"]
    )
    assert set(ways) == {"rows"}


def test_tables_whose_commits_say_more_are_merged_by_the_statement(
    mysql9: Server, tmp_path: Path, database: Database, ways: Ways
) -> None:
    properties = "DB.t: {properties: {delta.enableChangeDataFeed: 'true'}}"
    loop = Loop(tmp_path, mysql9, database(mysql9), overrides=properties)
    run(loop, TABLE, values(range(20), "a"))
    run(loop, "UPDATE t SET v = 'x' WHERE b = 'k3'")
    assert set(ways) == {"statement"}
    assert newest(loop)["numTargetChangeFilesAdded"] >= 1


def during(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> list[str]:
    """Lets something happen once, after the new rows were written and before their commit. Returns the number of times
    that rows were written, as a list that grows."""
    write = row_replacement._Replacement._write_files
    writes: list[str] = []

    def acting(self: Any, rows: Any) -> Any:
        added = write(self, rows)
        writes.append("written")
        if len(writes) == 1:
            act()
        return added

    monkeypatch.setattr(row_replacement._Replacement, "_write_files", acting)
    return writes


@pytest.mark.long
@pytest.mark.parametrize(
    "other", ["delete", *(pytest.param(operation, marks=pytest.mark.long) for operation in ("optimize", "insert"))]
)
def test_another_writer_commits_between_search_and_commit(
    mysql9: Server, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """The commit is refused by Delta, and the table is merged again on top of the other one's."""
    monkeypatch.setattr(row_replacement, "_TINY_BYTES", 0)  # two files, which OPTIMIZE joins
    loop = Loop(tmp_path, mysql9, database(mysql9))
    run(loop, TABLE, values(range(50), "a"))
    run(loop, values(range(50, 60), "a"))
    loop.sql("UPDATE t SET v = 'x' WHERE b IN ('k3', 'k55')", "DELETE FROM t WHERE b = 'k4'")
    loop.capture()

    def act() -> None:
        table = DeltaTable(str(loop.path("t")))
        if other == "delete":
            table.delete("b = 'k3'")
        elif other == "optimize":
            table.optimize.compact()
        else:  # a second row with the same key
            row = pa.table(QueryBuilder().register("t", table).execute("SELECT * FROM t WHERE b = 'k3'"))
            write_deltalake(table, row, mode="append")

    writes = during(monkeypatch, act)
    version = loop.version("t")
    loop.apply_all()
    assert loop.version("t") == version + 2
    assert len(writes) == 2
    loop.require_equal("t", "1, 2")


def test_an_orphan_of_the_same_batch_commits_between_search_and_commit(
    mysql9: Server, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9))
    run(loop, TABLE, values(range(50), "a"))
    loop.sql("UPDATE t SET v = 'x' WHERE b = 'k3'", values(range(60, 70), "b"), "DELETE FROM t WHERE b = 'k61'")
    loop.capture()
    lease = loop.fetch()
    writes = during(monkeypatch, lambda: pipeline.merge(loop.config, lease))
    version = loop.version("t")
    results = pipeline.merge(loop.config, lease)
    assert loop.version("t") == version + 1  # the orphan's
    assert len(writes) == 2  # the orphan's, and ours, which was not committed
    pipeline.finalize(loop.config, lease, True, results)
    loop.require_equal("t", "1, 2")


@pytest.mark.parametrize("step", ["joined", "read", pytest.param("written", marks=pytest.mark.long)])
def test_rows_that_are_lost_on_the_way_are_found_before_the_commit(
    mysql9: Server, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9))
    run(loop, TABLE, values(range(10), "a"))
    loop.sql("UPDATE t SET v = 'x' WHERE a < 5")
    loop.capture()
    lease = loop.fetch()
    version = loop.version("t")

    class Less(row_replacement._Replacement):
        def _joined(self) -> Any:
            self.rows = self.rows.limit(2)
            assert super()._joined() is None
            return None

        def _keys(self) -> Any:
            if step == "read":
                self.rows = self.rows.limit(2)
            return super()._keys()

        def _write(self, keys: Any, rewritten: Any) -> Any:
            if step == "written":
                self.rows = self.rows.limit(2)
            return super()._write(keys, rewritten)

    with monkeypatch.context() as patch:
        patch.setattr(row_replacement, "_Replacement", Less)
        patch.setattr(row_replacement, "_TINY_BYTES", 1 << 20 if step == "joined" else 0)
        with pytest.raises(
            RetryableError,
            match=rf"Spark has {'written' if step == 'written' else 'read'} .* rows; nothing was committed",
        ):
            pipeline.merge(loop.config, lease)
    assert loop.version("t") == version
    pipeline.finalize(loop.config, lease, True, pipeline.merge(loop.config, lease))
    loop.require_equal("t", "1, 2")


@pytest.mark.parametrize("wrong", ["fewer rows", pytest.param("other rows", marks=pytest.mark.long)])
def test_a_wrong_bitmap_of_rows_that_go_is_found(
    mysql9: Server, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    """Delta's aggregate gives another bitmap than the rows that the join found. Its number of rows tells, and nothing is
    committed. With the right number, the comparison with SELECT tells: the tests would find such a fault."""
    monkeypatch.setattr(files, "SCATTERED_BYTES", 1)
    loop = Loop(tmp_path, mysql9, database(mysql9), overrides="DB.t: {deletion_vectors: true}")
    run(loop, TABLE, values(range(500), "a"))
    run(loop, "UPDATE t SET v = 'w' WHERE b = 'k9'")  # the table gets vectors, by a commit of its own
    loop.sql("UPDATE t SET v = 'x' WHERE b IN ('k3', 'k400')", "DELETE FROM t WHERE b = 'k77'")
    loop.capture()
    lease = loop.fetch()
    version = loop.version("t")

    class Wrong(row_replacement._Replacement):
        def _bitmap(self, numbers: Any) -> Any:
            return super()._bitmap(numbers.multiply(0) if wrong == "fewer rows" else numbers.plus(1))

    with monkeypatch.context() as patch:
        patch.setattr(row_replacement, "_Replacement", Wrong)
        if wrong == "other rows":
            pipeline.finalize(loop.config, lease, True, pipeline.merge(loop.config, lease))
            assert mirror_faults(mysql9, loop.config.apply.target, loop.db, "t")
            return
        with pytest.raises(RetryableError, match="Spark has found again 1 of 3 rows; nothing was committed"):
            pipeline.merge(loop.config, lease)
    assert loop.version("t") == version
    pipeline.finalize(loop.config, lease, True, pipeline.merge(loop.config, lease))
    loop.require_equal("t", "1, 2")


def test_a_merge_that_did_nothing_is_not_acked(
    mysql9: Server, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9))
    run(loop, TABLE, values(range(3), "a"))
    loop.sql("UPDATE t SET v = 'x' WHERE b = 'k1'")
    loop.capture()
    lease = loop.fetch()
    with monkeypatch.context() as patch:
        patch.setattr(commit, "replace_rows", lambda *_given, **_options: Replaced(0, 1, 0))
        with pytest.raises(MergeFailedError, match=r"the Delta table has changes up to .* after those up to"):
            pipeline.merge(loop.config, lease)
    pipeline.finalize(loop.config, lease, True, pipeline.merge(loop.config, lease))
    loop.require_equal("t", "1, 2")
