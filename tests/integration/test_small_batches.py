"""Small batches that delta-rs merges: without a JVM, with the same rows and ledger as Spark's, and beside orphans of
either engine."""

from __future__ import annotations

import json
import os
import random
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from cdc.base.errors import MergeFailedError
from cdc.batches.service import BatchService
from cdc.config.apply import SmallBatches
from cdc.lake import pipeline
from cdc.lake.apply import commit
from cdc.lake.delta.log import read_state
from cdc.lake.runtime import session
from cdc.testing.servers import Server
from tests.support.apply import LOCAL_CONF, Loop
from tests.support.compare import mirror_faults
from tests.support.orphans import merge_overtaken
from tests.support.random_keys import RandomChanges, make_tables
from tests.support.type_matrix import catalog, plan, workload
from tests.support.type_matrix.special import LARGE

Database = Callable[[Server], str]
DELTA_RS = "small_batches: {engine: deltalake, max_rows: 100000}"
TABLE = "CREATE TABLE t (Id INT PRIMARY KEY, v VARCHAR(20), `order` DECIMAL(20,4), at DATETIME(6))"

QUICK = [
    ("upsert", "deltalake", "spark", None, 3),
    ("soft_delete", "spark", "deltalake", 3, None),
    ("upsert", "deltalake", "deltalake", 5, 5),
]
"""The orphans of ``make test``: mode, engines, and transactions in a batch. The others come with ``make test-long``."""


def engine_of(loop: Loop, table: str = "t") -> str:
    """Returns what made the newest commit."""
    return str(DeltaTable(str(loop.path(table))).history(1)[0].get("engineInfo")).partition(":")[0]


def use(loop: Loop, engine: str) -> None:
    """Lets this engine merge the following small batches."""
    limit = 100_000 if engine == "deltalake" else None
    small = SmallBatches.model_validate({"engine": engine, "max_rows": limit})
    loop.config = loop.config.model_copy(
        update={"apply": loop.config.apply.model_copy(update={"small_batches": small})}
    )


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Returns a function after whose call Spark cannot be used any more."""

    def refused(*_given: object) -> None:
        raise AssertionError("Spark was asked for")

    return lambda: monkeypatch.setattr(session, "acquire", refused)


@pytest.mark.parametrize("mode", ["upsert", pytest.param("soft_delete", marks=pytest.mark.long)])
def test_few_changes_need_no_spark(
    mode: str, mysql9: Server, tmp_path: Path, database: Database, no_spark: Callable[[], None]
) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9), apply=DELTA_RS, overrides=f"DB.t: {{mode: {mode}}}")
    loop.sql(TABLE, "INSERT INTO t VALUES (1, 'a', 1.5, '2020-01-01 00:00:00.123456'), (2, 'b', NULL, NULL)")
    loop.capture()
    loop.apply_all()
    no_spark()
    loop.sql(
        "INSERT INTO t VALUES (3, 'c', 99999999999.9999, '1969-12-31 23:59:59.999999'), (4, 'd', 4, NULL)",
        "UPDATE t SET v = 'changed' WHERE Id = 1",
        "DELETE FROM t WHERE Id = 2",
        "UPDATE t SET Id = 5 WHERE Id = 4",
        "INSERT INTO t VALUES (6, 'gone', 6, NULL)",
        "DELETE FROM t WHERE Id = 6",
    )
    loop.capture()
    [result] = loop.apply_all()["t"]
    assert engine_of(loop) == "delta-rs"
    assert (result.inserted, result.updated, result.deleted) == ((2, 1, 1) if mode == "upsert" else (4, 2, 0))
    if mode == "upsert":
        loop.require_equal("t")
    else:
        rows = loop.delta("t", '"Id", v, "order", at, _deleted', "1")
        assert [
            {k: v for k, v in row.items() if k != "_deleted"} for row in rows if not row["_deleted"]
        ] == loop.select("t")
        assert [row["Id"] for row in rows if row["_deleted"]] == [2, 4, 6]
    # A delete of a row that the lake does not have changes nothing, but the position is committed.
    loop.sql("INSERT INTO t VALUES (7, 'x', 1, NULL)", "DELETE FROM t WHERE Id = 7")
    loop.capture()
    [result] = loop.apply_all()["t"]
    state = read_state(str(loop.path("t")), "shop", f"{loop.db}.t")
    assert state is not None
    assert (result.applied_seq, result.delta_version) == (state.applied_seq, state.version)
    assert [m["first_seq"] for _, m in state.ledger[:-1]] == [m["last_seq"] for _, m in state.ledger[1:]]
    assert state.applied_seq == BatchService(loop.config).last_seq()


@pytest.mark.long
def test_random_keys_and_values_of_every_type(mariadb11: Server, tmp_path: Path, database: Database, seed: int) -> None:
    rng = random.Random(f"{seed} small")
    loop = Loop(tmp_path, mariadb11, database(mariadb11), apply=DELTA_RS)
    tables = make_tables(rng, "mariadb", 9)
    loop.sql(*(table.create() for table in tables))
    changes = RandomChanges(mariadb11, loop.db, rng)
    engines = set()
    for count in (20, 20, 5):
        changes.run(tables, count)
        loop.capture()
        loop.apply_all()
        engines |= {engine_of(loop, table.name) for table in tables}
        faults = [
            f"{table.types}: {fault}"
            for table in tables
            for fault in mirror_faults(mariadb11, loop.config.apply.target, loop.db, table.name, table.select)
        ]
        assert not faults, "\n".join(faults)
    assert "delta-rs" in engines


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("mode", "ours", "theirs", "our_size", "their_size"),
    [
        pytest.param(mode, *engines, *sizes, marks=() if (mode, *engines, *sizes) in QUICK else pytest.mark.long)
        for mode in ("upsert", "soft_delete")
        for engines in (("deltalake", "spark"), ("spark", "deltalake"), ("deltalake", "deltalake"))
        for sizes in ((None, 3), (3, None), (5, 5))
    ],
)
def test_an_orphan_commits_between_plan_and_statement(
    mode: str,
    ours: str,
    theirs: str,
    our_size: int | None,
    their_size: int | None,
    mysql9: Server,
    tmp_path: Path,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9), apply=f"mode: {mode}")
    loop.sql("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))", "INSERT INTO t VALUES (-1, 'first')")
    loop.capture()
    loop.apply_all()
    loop.sql(*(f"INSERT INTO t VALUES ({i}, 'new')" for i in range(7)))
    loop.sql("UPDATE t SET v = 'changed' WHERE id IN (1, 4)", "INSERT INTO t VALUES (10, 'new')")
    loop.sql("DELETE FROM t WHERE id = 10", "UPDATE t SET id = 20 WHERE id = 0")
    loop.capture()
    use(loop, ours)
    lease = loop.fetch(our_size)
    held: list[int] = []

    def others() -> None:
        held.append(loop.version("t"))
        use(loop, theirs)
        loop.apply(their_size)
        assert loop.version("t") == held[0] + 1
        assert engine_of(loop) == ("delta-rs" if theirs == "deltalake" else "Apache-Spark/4.2.0 Delta-Lake/4.4.0")

    merge_overtaken(loop, lease, monkeypatch, others)
    if ours == "deltalake":
        assert loop.version("t") == held[0] + 1  # no commit on top of one that it has not seen
    loop.apply_all(2)
    rows = loop.delta("t", "*", "1")
    lake_rows = [{"id": row["id"], "v": row["v"]} for row in rows if not row.get("_deleted")]
    assert lake_rows == loop.select("t")
    if mode == "soft_delete":
        assert [row["id"] for row in rows if row["_deleted"]] == [0, 10]


def test_a_repeated_batch_is_counted_and_not_merged(
    mysql9: Server, tmp_path: Path, database: Database, no_spark: Callable[[], None]
) -> None:
    """The driver died between the commit and the ack."""
    loop = Loop(tmp_path, mysql9, database(mysql9), apply=DELTA_RS)
    loop.sql(TABLE, "INSERT INTO t VALUES (1, 'a', 1.5, NULL)")
    loop.capture()
    loop.apply_all()
    no_spark()
    loop.sql("INSERT INTO t VALUES (2, 'b', 1, NULL), (3, 'b', 1, NULL)", "UPDATE t SET v = 'c' WHERE Id > 1")
    loop.capture()
    lease = loop.fetch()
    pipeline.merge(loop.config, lease)
    version = loop.version("t")
    [repeated] = pipeline.merge(loop.config, lease)
    assert (repeated.skipped, repeated.inserted, repeated.updated, repeated.delta_version) == (4, 0, 0, version)
    assert loop.version("t") == version
    pipeline.finalize(loop.config, lease, True, [repeated])
    loop.require_equal("t")


def test_spark_skips_a_position_that_delta_rs_has_committed(
    mysql9: Server, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9))
    loop.sql(TABLE, "INSERT INTO t VALUES (1, 'a', 1.5, NULL)")
    loop.capture()
    loop.apply_all()
    loop.sql("INSERT INTO t VALUES (2, 'b', 1, NULL)")
    loop.capture()
    use(loop, "spark")
    lease = loop.fetch()
    held: list[str] = []

    def elsewhere(table: str) -> None:
        if not held:
            held.append(table)
            small = loop.config
            use(loop, "deltalake")
            pipeline.merge(loop.config, lease)
            loop.config = small

    monkeypatch.setattr(commit, "before_statement", elsewhere)
    [result] = pipeline.merge(loop.config, lease)
    assert (engine_of(loop), result.inserted, result.skipped) == ("delta-rs", 0, 1)
    spark = session.acquire(loop.config.spark).spark
    newest = spark.sql(f"DESCRIBE HISTORY delta.`{loop.path('t')}` LIMIT 1").collect()[0]
    assert json.loads(newest["userMetadata"])["last_seq"] == lease.manifest.last_seq
    assert (newest["operation"], newest["readVersion"]) == ("MERGE", newest["version"] - 1)


OF_SPARK = {
    "vectors": "ALTER TABLE {} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
    "feed": "ALTER TABLE {} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')",
    "checked": "ALTER TABLE {} ADD CONSTRAINT few CHECK (Id < 1000)",
}
"""Tables that delta-rs does not write, and what makes them so."""


@pytest.mark.long
def test_other_tables_are_left_to_spark(mysql9: Server, tmp_path: Path, database: Database) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9), apply=DELTA_RS)
    for table in (*OF_SPARK, "plain"):
        loop.sql(f"CREATE TABLE {table} (id INT PRIMARY KEY)", f"INSERT INTO {table} VALUES (1)")
    loop.capture()
    loop.apply_all()
    spark = session.acquire(loop.config.spark).spark
    for table, statement in OF_SPARK.items():
        assert engine_of(loop, table) == "delta-rs"
        spark.sql(statement.format(f"delta.`{loop.path(table)}`"))
    loop.sql(*(f"INSERT INTO {table} VALUES (2), (3)" for table in (*OF_SPARK, "plain")))
    loop.capture()
    loop.apply_all()
    for table in OF_SPARK:
        assert engine_of(loop, table).startswith("Apache-Spark"), table
        assert [row["id"] for row in loop.delta(table)] == [1, 2, 3]
    assert engine_of(loop, "plain") == "delta-rs"


def test_batches_above_the_limit_are_left_to_spark(mysql9: Server, tmp_path: Path, database: Database) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9), apply="small_batches: {engine: deltalake, max_rows: 1}")
    loop.sql(TABLE, "CREATE TABLE u (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1, 'a', 1.5, NULL)")
    loop.capture()
    loop.apply_all()
    loop.sql("INSERT INTO t VALUES (2, 'b', 1, NULL), (3, 'b', 1, NULL)", "INSERT INTO u VALUES (2)")
    loop.capture()
    loop.apply_all()
    assert engine_of(loop).startswith("Apache-Spark")
    assert engine_of(loop, "u") == "delta-rs"
    assert [row["Id"] for row in loop.delta("t", '"Id"')] == [1, 2, 3]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_type_is_the_same_by_either_engine(mysql9: Server, tmp_path: Path) -> None:
    """The edge values of each type that the server lists: one lake is filled by Spark and changed by delta-rs, which
    rewrites Spark's files, the other the other way round."""
    name = f"types_{secrets.token_hex(4)}"
    mysql9.execute(f"CREATE DATABASE `{name}`")
    try:
        with mysql9.connect() as connection:
            tables = [
                table
                for table in plan.tables(connection, catalog.read_catalog(connection, name))
                if table.group != LARGE
            ]
            folders = {engine: tmp_path / engine for engine in ("spark", "deltalake")}
            for folder in folders.values():
                folder.mkdir()
            loops = {engine: Loop(folder, mysql9, name) for engine, folder in folders.items()}
            workload.create(connection, name, tables)
            for loop in loops.values():
                loop.capture()
                loop.apply_all()
            merged = []
            for turn, engines in enumerate((("spark", "deltalake"), ("deltalake", "spark"))):
                if turn == 0:
                    workload.fill(connection, name, tables)
                else:
                    loops["spark"].sql(*(f"UPDATE {table.name} SET turn = 2 WHERE id % 7 = 1" for table in tables))
                for loop, engine in zip(loops.values(), engines, strict=True):
                    loop.capture()
                    use(loop, engine)
                    loop.apply_all()
                for table in tables:
                    first, other = (DeltaTable(str(loop.path(table.name))) for loop in loops.values())
                    assert _rows(first) == _rows(other), f"{table.name}, turn {turn}"
                    small = loops["deltalake" if turn == 0 else "spark"]
                    if engine_of(small, table.name) == "delta-rs":
                        merged.append((turn, table.name))
        assert {turn for turn, _ in merged} == {0, 1}
        unmerged = {table.name for table in tables} - {table for _, table in merged}
        assert len(unmerged) <= 2, unmerged
    finally:
        mysql9.execute(f"DROP DATABASE `{name}`")


def _rows(delta: DeltaTable) -> list[str]:
    """Returns the rows of a table, in which -0.0 differs from 0.0 and NaN is NaN."""
    rows = pa.table(QueryBuilder().register("t", delta).execute("SELECT * FROM t ORDER BY id")).to_pylist()
    return [repr(row) for row in rows]


def test_an_error_of_delta_rs_fails_the_batch(
    mysql9: Server, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9), apply=DELTA_RS)
    loop.sql(TABLE, "INSERT INTO t VALUES (1, 'a', 1.5, NULL)")
    loop.capture()
    loop.apply_all()
    loop.sql("UPDATE t SET v = 'b'")
    loop.capture()
    file = next(loop.path("t").glob("*.parquet"))
    hidden = file.rename(file.with_suffix(".hidden"))
    lease, version = loop.fetch(), loop.version("t")
    with pytest.raises(MergeFailedError, match="delta-rs could not merge it"):
        pipeline.merge(loop.config, lease)
    assert loop.version("t") == version
    hidden.rename(file)
    pipeline.finalize(loop.config, lease, True, pipeline.merge(loop.config, lease))
    loop.require_equal("t")


_MERGE = """
import sys
from pathlib import Path
from cdc.lake import pipeline
from cdc.batches.service import BatchService
from cdc.config import load
from cdc.lake.runtime import session

def refused(*_):
    raise AssertionError("Spark was asked for")

session.acquire = refused
config = load(Path(sys.argv[1]))
lease = BatchService(config).get("test", wait_s=0)
pipeline.merge(config, lease)
print("merged", flush=True)
"""


@pytest.mark.timeout(600)
def test_a_kill_between_files_and_commit_leaves_the_table_as_it_was(
    mysql9: Server, tmp_path: Path, database: Database, no_spark: Callable[[], None]
) -> None:
    """A process is killed when its merge has begun to write a file of many rows, and the batch is merged again."""
    loop = Loop(tmp_path, mysql9, database(mysql9), apply=DELTA_RS)
    loop.sql(
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(200), turn INT)", "INSERT INTO t VALUES (0, REPEAT('x', 200), 0)"
    )
    for bit in range(17):
        loop.sql(f"INSERT INTO t SELECT id + {1 << bit}, SHA2(id + {bit}, 512), 0 FROM t")
    loop.capture()
    loop.apply_all()
    no_spark()
    loop.sql("UPDATE t SET turn = turn + 1, v = 'changed' WHERE id % 10000 = 7")
    loop.capture()
    folder, kills = loop.path("t"), 0
    for _ in range(3):
        before, version = {*os.listdir(folder)}, loop.version("t")
        process = subprocess.Popen(
            [sys.executable, "-c", _MERGE, str(loop.config.file)], stdout=subprocess.PIPE, text=True
        )
        while process.poll() is None and not {*os.listdir(folder)} - before:
            time.sleep(0.001)
        process.kill()
        out, _ = process.communicate()
        assert "Spark" not in out
        if loop.version("t") > version:
            break  # it was faster than the kill
        assert {*os.listdir(folder)} - before, "it ended without a file"
        kills += 1
    assert kills
    loop.apply_all()
    loop.require_equal("t")


@pytest.mark.long
def test_many_tables_that_need_spark_share_one_driver(
    tmp_path: Path, mysql9: Server, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column whose name Parquet refuses takes a table to Spark. The batch counts once, not once for each table, by
    which the driver would be replaced while others merge."""
    session.discard()
    conf = {key: value for key, value in LOCAL_CONF.items() if "Java" not in key}  # which would name a compiler
    loop = Loop(tmp_path, mysql9, database(mysql9), apply=DELTA_RS, spark=f"{{master: 'local[2]', conf: {conf}}}")
    tables = [f"t{number}" for number in range(3)]
    loop.sql(*[f"CREATE TABLE {table} (id INT PRIMARY KEY, `a 1` LONGTEXT)" for table in tables])
    loop.capture()
    lease = loop.fetch()
    monkeypatch.setattr(session, "_SHORT_BYTES", lease.manifest.bytes * 2)
    results = pipeline.merge(loop.config, lease)
    assert sorted(result.table for result in results) == [f"{loop.db}.{table}" for table in tables]
    pipeline.finalize(loop.config, lease, True, results)
    session.discard()
