"""Batches into Delta tables: equal to SELECT, each change exactly once; and refused batches."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from deltalake import DeltaTable

from cdc.base.errors import (
    DamagedError,
    IdentityError,
    MergeFailedError,
    TargetError,
    TokenError,
)
from cdc.base.targets import application_id
from cdc.batches.service import BatchService
from cdc.config import load
from cdc.lake import pipeline
from cdc.lake.apply import commit
from cdc.lake.runtime import driver, session
from cdc.store.reader.batch_builder import Limits
from cdc.testing.servers import Server
from tests.support.apply import COMPILED, COMPILED_CONF, OWNER, Loop
from tests.support.orphans import merge_overtaken

Database = Callable[[Server], str]


@pytest.fixture
def db(mysql9: Server, database: Database) -> str:
    return database(mysql9)


@pytest.fixture
def loop(tmp_path: Path, mysql9: Server, db: str) -> Loop:
    """``mirror`` in mode upsert and ``log`` in mode append; the Delta tables do not exist yet."""
    return Loop(tmp_path, mysql9, db, overrides="DB.log: {mode: append}", spark=COMPILED)


TABLES = (
    "CREATE TABLE mirror (id INT PRIMARY KEY, v VARCHAR(20))",
    "CREATE TABLE log (id INT PRIMARY KEY, v VARCHAR(20))",
)


def changes(first: int, count: int) -> list[str]:
    """Inserts into both tables, then updates of each row but the first."""
    out = []
    for i in range(first, first + count):
        out += [f"INSERT INTO {table} VALUES ({i}, 'new')" for table in ("mirror", "log")]
    for i in range(first + 1, first + count):
        out += [f"UPDATE {table} SET v = 'v{i}' WHERE id = {i}" for table in ("mirror", "log")]
    return out


def expected_log(count: int) -> list[tuple[str, int]]:
    return [("insert", i) for i in range(count)] + [("update", i) for i in range(1, count)]


@pytest.mark.parametrize("kind", ["mysql9", pytest.param("mariadb11", marks=pytest.mark.long)])
def test_tables_equal_select(kind: str, tmp_path: Path, request: pytest.FixtureRequest, database: Database) -> None:
    server: Server = request.getfixturevalue(kind)
    overrides = "DB.log: {mode: append}, DB.pairs: {keys: [a, b]}"
    loop = Loop(tmp_path, server, database(server), overrides=overrides, spark=COMPILED)
    loop.sql(
        "CREATE TABLE customers (id INT UNSIGNED AUTO_INCREMENT PRIMARY KEY, name VARCHAR(40) NOT NULL,"
        " balance DECIMAL(12,2), born DATE, seen TIMESTAMP(3) NULL, at DATETIME(6), k ENUM('a','b'), raw VARBINARY(9))",
        "CREATE TABLE log (id BIGINT PRIMARY KEY, note TEXT)",
        "CREATE TABLE pairs (a VARCHAR(20) NOT NULL, b INT NOT NULL, v DOUBLE)",
        "CREATE TABLE empty_one (id INT PRIMARY KEY, big BIGINT UNSIGNED)",
        "CREATE TABLE `odd, name` (`a key` VARCHAR(20) PRIMARY KEY, `x;y` INT)",
        *[
            f"INSERT INTO customers (name, balance, born, seen, at, k, raw) VALUES"
            f" ('né{i}', {i}.25, '2001-02-0{i}', '2026-01-02 03:04:05.678', '1960-02-03 04:05:06.000007', 'b', x'00ff0{i}')"
            for i in range(1, 9)
        ],
        "UPDATE customers SET balance = -balance WHERE id < 4",
        "DELETE FROM customers WHERE id IN (4, 5)",
        "UPDATE customers SET id = id + 1000 WHERE id IN (6, 7)",
        "UPDATE customers SET id = id + 1 WHERE id < 4 ORDER BY id DESC",
        "INSERT INTO log VALUES (1, 'a'), (2, 'b')",
        "UPDATE log SET note = NULL WHERE id = 1",
        "DELETE FROM log WHERE id = 2",
        "INSERT INTO pairs VALUES ('p', 1, 1.5), ('q', 0, 2.5), ('r', 0, 3)",
        "UPDATE pairs SET b = 7 WHERE a = 'p'",
        "UPDATE pairs SET v = 9 WHERE a = 'q'",
        "DELETE FROM pairs WHERE a = 'r'",
        "INSERT INTO `odd, name` VALUES ('x`y', 1), ('z', 2)",
        "DELETE FROM `odd, name` WHERE `a key` = 'z'",
    )
    loop.capture()
    results_by_table = loop.apply_all()
    loop.require_equal("customers")
    loop.require_equal("pairs")
    assert DeltaTable(str(loop.path("empty_one"))).to_pyarrow_table().num_rows == 0
    log = loop.delta("log", order="_seq, _row")
    assert [(r["_op"], r["id"], r["note"], r["_before"]) for r in log] == [
        ("insert", 1, "a", None),
        ("insert", 2, "b", None),
        ("update", 1, None, {"id": 1, "note": "a"}),
        ("delete", 2, "b", {"id": 2, "note": "b"}),
    ]
    assert all(r["_gtid"] and r["_commit_time"] for r in log)
    inserted = sum(r.inserted for r in results_by_table["log"])
    assert inserted == 4

    # A name that becomes %20 in the lake: Spark reads it, and another batch finds its position.
    warm = session.acquire(loop.config.spark)
    odd = warm.spark.read.format("delta").load(str(loop.path("odd, name"))).collect()
    assert [tuple(row) for row in odd] == [("x`y", 1)]
    loop.sql("UPDATE `odd, name` SET `x;y` = 5", "UPDATE customers SET name = 'x' WHERE id = 1006")
    loop.capture()
    results = {r.table.partition(".")[2]: r for r in loop.apply()}
    assert (results["odd, name"].updated, results["odd, name"].skipped) == (1, 0)
    loop.require_equal("customers")


def test_the_ledger_and_the_position_commit_with_the_rows(loop: Loop) -> None:
    loop.sql(*TABLES, *changes(0, 2))
    loop.capture()
    loop.apply_all()
    lease_seqs = []
    for table, mode in (("mirror", "upsert"), ("log", "append")):
        delta = DeltaTable(str(loop.path(table)))
        documents = [json.loads(c["userMetadata"]) for c in delta.history() if "userMetadata" in c]
        assert all(document["run"]["host"] for document in documents)  # those of ALTER and of new tables too
        commits = [document for document in documents if "last_seq" in document]
        newest = commits[0]
        assert set(newest) == {
            "destination", "batch", "epoch", "server_uuid", "first_seq", "after_seq", "last_seq", "gtid", "table", "mode",
                "store_begins", "generation", "run", *(("source_rows", "source_upserts") if mode == "upsert" else ()),
        }  # fmt: skip
        assert (newest["destination"], newest["table"], newest["mode"]) == ("shop", f"{loop.db}.{table}", mode)
        assert delta.transaction_version(application_id("shop", newest["table"])) == newest["last_seq"]
        # Each commit goes on where the one before ended.
        assert [c["first_seq"] for c in commits[:-1]] == [c["last_seq"] for c in commits[1:]]
        assert commits[-1]["first_seq"] == 0
        lease_seqs.append(newest["last_seq"])
    assert lease_seqs[0] == lease_seqs[1]


def test_the_same_batch_again_changes_nothing(loop: Loop) -> None:
    loop.sql(*TABLES, *changes(0, 3))
    loop.capture()
    while (lease := loop.fetch()).manifest.ddl:
        pipeline.finalize(loop.config, lease, True, pipeline.merge(loop.config, lease))
    first = pipeline.merge(loop.config, lease)
    repeated = pipeline.merge(loop.config, lease)
    assert {r.table.partition(".")[2]: r.inserted for r in first} == {"log": 5, "mirror": 3}
    assert [(r.inserted, r.updated, r.deleted, r.skipped) for r in repeated] == [(0, 0, 0, 5), (0, 0, 0, 5)]
    assert [(r.table, r.delta_version) for r in repeated] == [(r.table, r.delta_version) for r in first]
    pipeline.finalize(loop.config, lease, True, repeated)
    pipeline.finalize(loop.config, lease, True, repeated)
    loop.require_equal("mirror")
    assert loop.changelog("log") == expected_log(3)


@pytest.mark.long
def test_the_same_batch_again_from_a_server_that_names_no_columns(
    tmp_path: Path, mysql56: Server, database: Database
) -> None:
    loop = Loop(tmp_path, mysql56, database(mysql56), spark=COMPILED)
    file = loop.config.file
    file.write_text(re.sub(r"start: \{[^}]*\}", "start: now", file.read_text(encoding="utf-8")), encoding="utf-8")
    loop.config = load(file)
    loop.capture()
    loop.sql("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(10))")
    loop.capture()
    loop.sql("INSERT INTO t VALUES (1, 'a'), (2, 'b')", "UPDATE t SET v = 'c' WHERE id = 2")
    loop.capture()
    loop.apply()
    lease = loop.fetch()
    assert [result.inserted for result in pipeline.merge(loop.config, lease)] == [2]
    [repeated] = pipeline.merge(loop.config, lease)
    assert (repeated.inserted, repeated.updated, repeated.skipped) == (0, 0, 3)
    pipeline.finalize(loop.config, lease, True, [repeated])
    loop.require_equal("t")


@pytest.mark.long
def test_other_batch_boundaries_after_a_rollback(loop: Loop) -> None:
    loop.sql(*TABLES, *changes(0, 4))
    loop.capture()
    loop.apply()  # both tables
    for transactions in (3, 7, 2, 5):
        lease = loop.fetch(transactions)
        pipeline.merge(loop.config, lease)
        pipeline.finalize(loop.config, lease, False)
    loop.apply_all(4)
    loop.require_equal("mirror")
    assert loop.changelog("log") == expected_log(4)


@pytest.mark.parametrize(
    ("ours", "theirs"), [(None, 3), *(pytest.param(*sizes, marks=pytest.mark.long) for sizes in ((3, None), (5, 5)))]
)
def test_an_orphan_commits_between_position_and_statement(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, ours: int | None, theirs: int | None
) -> None:
    """The driver is held before its statement of ``log``; meanwhile its batch is rolled back, and others merge the
    same changes in batches of another size. Then our statement runs."""
    loop.sql(*TABLES, *changes(0, 4))
    loop.capture()
    loop.apply()  # both tables
    lease = loop.fetch(ours)
    merge_overtaken(loop, lease, monkeypatch, lambda: loop.apply(theirs), is_meant=lambda table: table.endswith(".log"))
    loop.apply_all(2)
    loop.require_equal("mirror")
    assert loop.changelog("log") == expected_log(4)


def test_a_dead_driver_fails_the_batch_and_the_next_run_has_a_new_one(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop.sql(*TABLES, *changes(0, 2))
    loop.capture()
    loop.apply()  # both tables

    def kill(table: str) -> None:
        pid = driver.pid()
        if pid is not None:
            os.kill(pid, signal.SIGKILL)

    lease = loop.fetch()
    with monkeypatch.context() as patch:
        patch.setattr(commit, "before_statement", kill)
        with pytest.raises(MergeFailedError, match="driver ended"):
            pipeline.merge(loop.config, lease)
    pipeline.finalize(loop.config, lease, False)
    loop.apply_all()
    loop.require_equal("mirror")
    assert loop.changelog("log") == expected_log(2)


@pytest.mark.long
def test_ddl_that_passes(tmp_path: Path, mysql9: Server, db: str) -> None:
    loop = Loop(tmp_path, mysql9, db, overrides="DB.log: {mode: append}, DB.made: {mode: append}", spark=COMPILED)
    loop.sql(
        *TABLES,
        "INSERT INTO mirror VALUES (1, 'a')",
        "INSERT INTO log VALUES (1, 'a')",
        "CREATE INDEX i ON mirror (v)",
        "ALTER TABLE mirror ADD COLUMN first_one INT FIRST, ADD COLUMN `odd, one` VARCHAR(9) NULL DEFAULT NULL AFTER id",
        "ALTER TABLE log ADD COLUMN extra TIMESTAMP NULL",
        "INSERT INTO mirror (id, v, `odd, one`) VALUES (2, 'b', 'c')",
        "INSERT INTO log VALUES (2, 'b', '2026-01-01 00:00:00')",
        "ALTER TABLE log COMMENT 'x', ENGINE=InnoDB",
        "UPDATE log SET v = 'z' WHERE id = 1",
        "CREATE TABLE made AS SELECT id, v FROM mirror",
        "CREATE TABLE liked LIKE mirror",
    )
    loop.capture()
    loop.apply_all()
    assert list(loop.delta("mirror")[0]) == ["first_one", "id", "odd, one", "v"]
    loop.require_equal("mirror", "2")
    assert [(r["id"], r["v"], r["_before"]) for r in loop.delta("log", order="_seq, _row")] == [
        (1, "a", None),
        (2, "b", None),
        (1, "z", {"id": 1, "v": "a", "extra": None}),
    ]
    assert [(r["_op"], r["id"]) for r in loop.delta("made", order="_seq, _row")] == [("insert", 1), ("insert", 2)]
    assert loop.delta("liked") == []


def test_create_table_select_brings_its_rows(tmp_path: Path, mysql9: Server, db: str) -> None:
    loop = Loop(tmp_path, mysql9, db, overrides="DB.made: {keys: [id]}", spark=COMPILED)
    loop.sql(
        TABLES[0],
        "INSERT INTO mirror VALUES (1, 'a'), (2, 'b')",
        "CREATE TABLE made AS SELECT * FROM mirror WHERE id > 1",
    )
    loop.capture()
    loop.apply_all()
    loop.require_equal("made")
    assert loop.delta("made") == [{"id": 2, "v": "b"}]


def test_one_bad_table_leaves_the_others_done(loop: Loop) -> None:
    loop.sql(*TABLES, *changes(0, 2))
    loop.capture()
    folder = loop.path("mirror")
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    lease = loop.fetch()
    with pytest.raises(TargetError, match="not a Delta table"):
        pipeline.merge(loop.config, lease)
    assert DeltaTable(str(loop.path("log"))).version() == 1, "made, and the position committed"
    pipeline.finalize(loop.config, lease, False)
    assert (folder / "notes.txt").read_text() == "mine"
    shutil.rmtree(folder)
    loop.apply_all()
    loop.require_equal("mirror")
    assert loop.changelog("log") == expected_log(2)


@pytest.mark.rule("canal-server-13")
def test_tables_of_others_are_refused(loop: Loop, tmp_path: Path, mysql9: Server) -> None:
    loop.sql(*TABLES, *changes(0, 1))
    loop.capture()
    loop.apply_all()
    second = Loop(tmp_path, mysql9, loop.db, name="second", spark=COMPILED)
    loop.sql("INSERT INTO mirror VALUES (50, 'x')")
    second.capture()
    with pytest.raises(TargetError, match="belongs to the destination 'shop'"):
        second.apply_all()
    loop.capture()
    override = loop.config.tables.model_copy(update={"overrides": {}})
    changed = loop.config.model_copy(update={"tables": override})
    loop.sql("INSERT INTO log VALUES (51, 'x')")
    loop.capture()
    lease = loop.fetch()
    with pytest.raises(TargetError, match="was created in mode append, the configuration says upsert"):
        pipeline.merge(changed, lease)


def test_batches_of_another_history_are_refused(loop: Loop) -> None:
    loop.sql(*TABLES, *changes(0, 1))
    loop.capture()
    loop.apply_all()
    loop.sql("INSERT INTO mirror VALUES (60, 'x')")
    loop.capture()
    lease = loop.fetch()
    other = replace(lease, manifest=lease.manifest.model_copy(update={"server_uuid": "another"}))
    with pytest.raises(IdentityError, match="comes from server another"):
        pipeline.merge(loop.config, other)
    with pytest.raises(TokenError):
        pipeline.merge(loop.config, replace(lease, token="wrong"))
    pipeline.merge(loop.config, lease)
    pipeline.finalize(loop.config, lease, True, [])
    loop.require_equal("mirror")


def test_a_damaged_segment_is_named(loop: Loop) -> None:
    loop.sql(*TABLES, *changes(0, 3))
    loop.capture()
    loop.apply()  # both tables
    lease = loop.fetch()
    part = lease.manifest.ranges[0]
    content = bytearray(Path(part.path).read_bytes())
    at = content.index(b"new", part.offset)
    content[at] ^= 0xFF
    Path(part.path).write_bytes(content)
    with pytest.raises(DamagedError) as raised:
        pipeline.merge(loop.config, lease)
    assert Path(part.path).name in str(raised.value)
    assert "Traceback" not in str(raised.value)


@contextmanager
def command_lines() -> Iterator[set[str]]:
    """Yields the command lines of all child processes, sampled while the block runs."""
    lines: set[str] = set()
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.3):
            for child in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    lines.add(" ".join(child.cmdline()))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield lines
    finally:
        done.set()
        thread.join()


@pytest.mark.long  # test_submitted_jobs.py has a merge as well
def test_under_spark_submit(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the program itself, with a local master. No setting is on a command line."""
    loop.sql(*TABLES, *changes(0, 2))
    loop.capture()
    loop.apply()  # both tables
    lease = loop.fetch()
    secret = "hunter-0815"
    more = {
        "spark.hadoop.fs.s3a.secret.key": secret,
        "spark.driver.extraJavaOptions": f"{COMPILED_CONF['spark.driver.extraJavaOptions']} -Dpassword={secret}",
    }
    submitted = loop.config.spark.model_copy(update={"conf": loop.config.spark.conf | more})
    monkeypatch.setattr(pipeline, "_is_submitted", lambda _: True)
    with command_lines() as lines:
        results = pipeline.merge(loop.config.model_copy(update={"spark": submitted}), lease)
    assert any("SparkSubmit" in line and "--properties-file" in line for line in lines)
    assert not [line for line in lines if secret in line]
    assert {r.table.partition(".")[2]: r.inserted for r in results} == {"mirror": 2, "log": 3}
    pipeline.finalize(loop.config, lease, True, results)
    loop.require_equal("mirror")
    assert BatchService(loop.config).get(OWNER, limits=Limits(), wait_s=0) is None
