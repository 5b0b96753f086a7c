"""Columns that get another policy afterwards: ``cdc remask`` rewrites the values that are in the lake."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from cdc.base.errors import TargetError, TokenError
from cdc.batches.service import BatchService
from cdc.cli.main import main as cdc
from cdc.lake import pipeline
from cdc.lake.apply.commit import Commit
from cdc.lake.delta.tables import recorded_policies, target_of
from cdc.lake.jobs.as_of import read_as_of
from cdc.lake.jobs.results import TableRemask
from cdc.lake.runtime.session import acquire
from cdc.meta import open_meta
from cdc.store.reader.reader import StoreReader
from cdc.testing.servers import Server
from tests.integration.test_apply_policies import KEY, digest
from tests.support.apply import Loop
from tests.support.groups import TABLES, Member, members

Database = Callable[[Server], str]
MODES = ("upsert", "append", "soft_delete", "scd2")
EVERY = (
    "id INT PRIMARY KEY, email VARCHAR(50), phone VARCHAR(20), note TEXT, pin INT, fee DECIMAL(10,2), f FLOAT, d DOUBLE,"
    " ts TIMESTAMP(3) NULL, dt DATETIME(6), day DATE, raw VARBINARY(9), big BIGINT UNSIGNED, y YEAR, flag BIT(4),"
    " one TINYINT(1), doc JSON, at TIME(2), kind ENUM('x', 'ü'), part INT DEFAULT 3, `odd name` INT DEFAULT 4"
)
ROW = (
    "'ada@x', '+49 30é😀23', 'secret note', 7, 1.50, 0.1, 1e20, '2024-01-02 03:04:05.678', '2024-01-02 03:04:05.6',"
    " '0999-01-01', 'ab', 18446744073709551615, 2024, b'101', 2, '{\"n\": [1]}', '-12:00:01.50', 'ü', 3, 4"
)


@pytest.fixture(autouse=True)
def _hash_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOWPATH_TEST_HASH_KEY", KEY)


def ways(results: list[TableRemask]) -> dict[str, str | None]:
    return {result.table.partition(".")[2]: result.way for result in results}


def content(loop: Loop, table: str) -> bytes:
    """Returns the bytes of all files of a Delta table's newest version."""
    return b"".join(Path(file).read_bytes() for file in DeltaTable(str(loop.path(table))).file_uris())


def refused(loop: Loop, words: str = "Run `cdc remask shop") -> None:
    """Merges a batch that has to be refused."""
    lease = loop.fetch()
    with pytest.raises(TargetError, match=words):
        pipeline.merge(loop.config, lease)
    BatchService(loop.config).rollback(lease.batch, lease.token)


def test_a_plain_column_is_hashed_afterwards(
    tmp_path: Path, mysql9: Server, database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = Loop(
        tmp_path, mysql9, database(mysql9), overrides="DB.t: {columns: {}}", apply="hash_key_env: TOWPATH_TEST_HASH_KEY"
    )
    loop.sql("CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(20), b VARCHAR(20), c INT)")
    loop.sql("INSERT INTO t VALUES (1, 'zora', '12345', 7), (2, NULL, NULL, NULL)")
    loop.capture()
    loop.apply_all()
    assert pipeline.remask(loop.config) == []
    loop.edit("{columns: {}}", "{columns: {a: hash, b: {mask: 2}, c: drop}}")
    loop.sql("INSERT INTO t VALUES (3, 'eve', '678', 8)")
    loop.capture()
    refused(loop)
    command = ["--conf-dir", str(loop.config.file.parent), "remask", "shop"]
    assert cdc([*command, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "from the rows in the lake" in shown and "old versions of the Delta table" in shown
    assert cdc([*command, "--json", "--vacuum"]) == 0
    [table] = json.loads(capsys.readouterr().out)["tables"]
    assert (table["way"], table["done"], table["files_deleted"]) == ("lake", True, 1)
    assert {remains["what"] for remains in table["remains"]} == {
        "least and greatest values of columns, in Delta's log", "the binlog as it was received",
    }  # fmt: skip
    loop.apply_all()
    assert loop.delta("t") == [
        {"id": 1, "a": digest("zora"), "b": "***45"},
        {"id": 2, "a": None, "b": None},
        {"id": 3, "a": digest("eve"), "b": "*78"},
    ]
    files = b"".join(file.read_bytes() for file in loop.path("t").rglob("*.parquet"))
    assert files and b"zora" not in files and b"12345" not in files


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["mysql9", "mariadb11"])
def test_every_mode_equals_a_table_that_always_had_the_policy(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, database: Database
) -> None:
    server: Server = request.getfixturevalue(kind)
    # With partitions, and with a column whose name needs Delta's column mapping.
    overrides = ", ".join(f"DB.{mode}: {{mode: {mode}, partition_by: [part]}}" for mode in MODES)
    overrides = overrides.replace("upsert,", "upsert, columns: {},").replace("scd2,", "scd2, columns: {},")
    apply = "hash_key_env: TOWPATH_TEST_HASH_KEY, types: {tinyint(1): boolean}, columns: {pin: keep}"
    loop = Loop(tmp_path, server, database(server), overrides=overrides, apply=apply)
    for mode in MODES:
        loop.sql(
            f"CREATE TABLE {mode} ({EVERY})",
            f"INSERT INTO {mode} VALUES (1, {ROW}), (2{', NULL' * 20})",
            f"INSERT INTO {mode} (id, email, f, d) VALUES (3, 'gone@x', -0.0, -1.5)",
            f"UPDATE {mode} SET phone = '1234567' WHERE id = 2",
            f"DELETE FROM {mode} WHERE id = 3",
        )
    loop.capture()
    loop.apply_all()
    hashes = ", ".join(
        f"{name}: hash"
        for name in ("fee", "f", "d", "ts", "dt", "day", "raw", "big", "y", "flag", "one", "doc", "at", "kind")
    )
    loop.edit(
        "columns: {pin: keep}",
        f"columns: {{email: hash, phone: {{mask: 2}}, note: drop, pin: null, {hashes}}}",
    )
    loop.edit("columns: {}", "columns: {id: hash}")
    # Whatever came meanwhile waits, and is applied behind the remask.
    loop.sql(*[f"INSERT INTO {mode} (id, email) VALUES (4, 'later@x')" for mode in MODES])
    loop.capture()
    assert ways(pipeline.plan_remask(loop.config)) == dict.fromkeys(MODES, "lake")
    assert ways(pipeline.remask(loop.config)) == dict.fromkeys(MODES, "lake")
    assert pipeline.plan_remask(loop.config) == []
    for mode in MODES:
        assert not [word for word in (b"ada@x", b"gone@x", b"secret", b"49 30") if word in content(loop, mode)]
    loop.apply_all()
    remasked = rows(loop)
    assert {mode: len(remasked[mode]) for mode in MODES} == {"upsert": 3, "append": 6, "soft_delete": 4, "scd2": 5}
    # The store has everything from the beginning: a replay makes the tables by the policies alone.
    assert {mode: tables(loop, mode).properties["towpath.begins_seq"] != "" for mode in MODES} == dict.fromkeys(
        MODES, True
    )
    pipeline.replay(loop.config, [f"{loop.db}.{mode}" for mode in MODES])
    assert rows(loop) == remasked
    report = pipeline.verify(loop.config)
    assert {table.table: table.checksums.differences for table in report.tables if not table.ok} == {}
    assert report.exit_code == 0, report


def tables(loop: Loop, table: str) -> Any:
    return target_of(loop.config, f"{loop.db}.{table}").state()


def rows(loop: Loop) -> dict[str, list[tuple[str, ...]]]:
    """Returns the rows of each table, sorted, as texts by the names of columns."""
    spark = acquire(loop.config.spark).spark
    frames = {mode: spark.read.format("delta").load(str(loop.path(mode))) for mode in MODES}
    return {
        mode: sorted(
            tuple(f"{name}={row[name]}" for name in sorted(frame.columns) if name != "pin") for row in frame.collect()
        )
        for mode, frame in frames.items()
    }


@pytest.mark.long
@pytest.mark.timeout(900)
def test_what_the_rows_do_not_tell_comes_from_the_store_or_the_source(
    tmp_path: Path, mysql9: Server, database: Database
) -> None:
    overrides = "DB.t: {columns: {a: hash}}, DB.log: {mode: append, columns: {a: hash}}"
    loop = Loop(tmp_path, mysql9, database(mysql9), overrides=overrides, apply="hash_key_env: TOWPATH_TEST_HASH_KEY")
    for table in ("t", "log"):
        loop.sql(f"CREATE TABLE {table} (id INT PRIMARY KEY, a VARCHAR(20))", f"INSERT INTO {table} VALUES (1, 'ada')")
    loop.capture()
    loop.apply_all()
    loop.edit("{columns: {a: hash}}, ", "{columns: {a: keep}}, ")
    loop.edit("{mode: append, columns: {a: hash}}", "{mode: append, columns: {a: keep}}")
    assert ways(pipeline.remask(loop.config)) == {"log": "store", "t": "store"}
    assert loop.delta("t") == [{"id": 1, "a": "ada"}]
    # A snapshot that was read by the plain policy does not serve a replay by another one.
    pipeline.snapshot(loop.config, [f"{loop.db}.t"])
    loop.edit("{columns: {a: keep}}, ", "{columns: {a: hash}}, ")
    [result] = pipeline.remask(loop.config)
    assert result.way == "lake" and "rows that a snapshot has read" in {remains.what for remains in result.remains}
    assert loop.delta("t") == [{"id": 1, "a": digest("ada")}]
    loop.edit("{columns: {a: hash}}, ", "{columns: {a: {mask: 1}}}, ")
    loop.edit("{mode: append, columns: {a: keep}}", "{mode: append, columns: {a: drop}}")
    [of_log, of_t] = pipeline.plan_remask(loop.config)
    assert (of_log.way, of_t.way) == ("lake", "source")
    assert "the lake has only hashes of a" in of_t.why
    results = pipeline.remask(loop.config)
    assert loop.delta("t") == [{"id": 1, "a": "**a"}]
    assert ways(results) == {"log": "lake", "t": "source"}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_changed_policy_is_refused_wherever_it_could_mix(
    tmp_path: Path,
    mysql9: Server,
    database: Database,
) -> None:
    overrides = "DB.t: {columns: {}}, DB.marked: {mode: soft_delete, columns: {}}"
    loop = Loop(tmp_path, mysql9, database(mysql9), overrides=overrides, apply="columns: {z: drop}")
    for table in ("t", "marked"):
        loop.sql(f"CREATE TABLE {table} (id INT PRIMARY KEY, a VARCHAR(20))", f"INSERT INTO {table} VALUES (1, 'ada')")
    loop.capture()
    loop.apply_all()
    loop.sql("INSERT INTO t VALUES (2, 'eve')")
    loop.capture()
    last = StoreReader(loop.config.store.path).last_seq()
    loop.edit("columns: {z: drop}", "columns: {a: {mask: 1}, z: drop}")
    with pytest.raises(TargetError, match=r"by the policy keep, and the changes up to .* would get the policy mask: 1"):
        read_as_of(acquire(loop.config.spark).spark, loop.config, seq=last, tables=[f"{loop.db}.t"])
    refused(loop)
    loop.edit("columns: {a: {mask: 1}, z: drop}", "columns: {z: drop}")
    loop.apply_all()
    # A DDL statement records the policies of all columns.
    loop.sql("ALTER TABLE t ADD COLUMN b INT", "ALTER TABLE marked ADD COLUMN b INT")
    loop.capture()
    loop.edit("columns: {z: drop}", "columns: {a: {mask: 1}, z: drop}")
    refused(loop)
    assert recorded_policies(tables(loop, "t")) == {}
    assert ways(pipeline.remask(loop.config)) == {"t": "lake", "marked": "lake"}
    loop.apply_all()
    assert loop.delta("t") == [{"id": 1, "a": "**a", "b": None}, {"id": 2, "a": "**e", "b": None}]
    # A snapshot keeps the history of the other modes.
    loop.edit("columns: {a: {mask: 1}, z: drop}", "columns: {a: {mask: 0}, z: drop}")
    with pytest.raises(TargetError, match=r"by the policy mask: 1 so far.* Run `cdc remask shop"):
        pipeline.snapshot(loop.config, [f"{loop.db}.marked"])
    assert ways(pipeline.remask(loop.config)) == {"t": "lake", "marked": "lake"}
    pipeline.snapshot(loop.config, [f"{loop.db}.marked"])
    assert [row["a"] for row in loop.delta("marked")] == ["***"]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_rows_that_a_statement_or_a_foreign_key_moves_are_not_mixed(
    tmp_path: Path, mariadb11: Server, database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = Loop(tmp_path, mariadb11, database(mariadb11), apply="columns: {z: drop}")
    by_day = "PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20))"
    loop.sql(
        "CREATE TABLE parent (id INT PRIMARY KEY)",
        "CREATE TABLE child (id INT PRIMARY KEY, p INT, a VARCHAR(20), FOREIGN KEY (p) REFERENCES parent (id)"
        " ON DELETE SET NULL)",
        "CREATE TABLE earlier (id INT PRIMARY KEY, a VARCHAR(20))",
        f"CREATE TABLE parts (id INT PRIMARY KEY, a VARCHAR(20)) {by_day}",
        "CREATE TABLE beside (id INT PRIMARY KEY, a VARCHAR(20))",
        "INSERT INTO parent VALUES (1), (2)",
        "INSERT INTO child VALUES (1, 1, 'ada'), (2, 2, 'eve')",
        "INSERT INTO earlier VALUES (1, 'ada')",
        "INSERT INTO parts VALUES (1, 'ada'), (11, 'eve')",
        "INSERT INTO beside VALUES (12, 'zoe')",
    )
    loop.capture()
    loop.apply_all()
    before, after = "columns: {z: drop}", "columns: {a: {mask: 1}, z: drop}"
    for number, statement in enumerate((
        "DELETE FROM parent WHERE id = 1",
        "RENAME TABLE earlier TO later",
        "ALTER TABLE parts EXCHANGE PARTITION p1 WITH TABLE beside",
    )):  # fmt: skip
        loop.sql(statement)
        loop.capture()
        loop.edit(before, after)
        refused(loop)
        names = ("child", "parts", "beside", "earlier" if number < 2 else "later")
        assert all(recorded_policies(tables(loop, name)) == {} for name in names)
        loop.edit(after, before)
        loop.apply_all()
    assert loop.delta("child") == [{"id": 1, "p": None, "a": "ada"}, {"id": 2, "p": 2, "a": "eve"}]
    for name in ("child", "later", "parts", "beside"):
        loop.require_equal(name)
    # Whoever asks is told before a batch fails.
    loop.edit(before, after)
    conf = ["--conf-dir", str(loop.config.file.parent)]
    assert cdc([*conf, "check", "shop"]) == 2
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{loop.db}.child has a by the policy keep in the lake, and the configuration says mask: 1" in shown
    migration = tmp_path / "migration.sql"
    migration.write_text(f"USE {loop.db};\nALTER TABLE child ADD COLUMN b INT;\n", encoding="utf-8")
    cdc([*conf, "plan", "shop", str(migration)])
    assert "cdc remask shop" in " ".join(capsys.readouterr().out.split())


KILLING = """
import os, signal, sys
from cdc.cli.main import main
from cdc.lake.jobs import remask

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

moment = sys.argv[1]
replace = remask._Case._replace
if moment == "before the commit":
    remask._Case._replace = die
elif moment == "in the statement":
    from cdc.decode import policies
    from cdc.lake.runtime import driver
    import threading, time
    statement = remask.rewrite_statement
    def slow(*arguments, **options):
        pid = driver.pid()
        def kill():
            time.sleep(float(sys.argv[2]))
            os.kill(pid, signal.SIGKILL)
            die()
        threading.Thread(target=kill, daemon=True).start()
        return statement(*arguments, **options)
    remask.rewrite_statement = slow
elif moment == "after the commit":
    remask.finish = die
elif moment == "before it is level":
    remask.bring_level = die
sys.exit(main(sys.argv[3:]))
"""


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_killed_remask_is_run_again(tmp_path: Path, mysql9: Server, database: Database) -> None:
    overrides = "DB.t: {columns: {}}"
    loop = Loop(tmp_path, mysql9, database(mysql9), overrides=overrides, apply="hash_key_env: TOWPATH_TEST_HASH_KEY")
    loop.sql("CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(20), b VARCHAR(20))")
    loop.sql("INSERT INTO t VALUES (1, 'ada', 'one')")
    loop.capture()
    loop.apply_all()
    kills = [
        ("before the commit", "0"), ("in the statement", "0.2"), ("in the statement", "1.5"), ("after the commit", "0"),
        ("before it is level", "0"),
    ]  # fmt: skip
    policy, expected = "{columns: {}}", [("ada", "one")]
    for number, (moment, delay_s) in enumerate(kills):
        # Each round changes another way that the rows tell: fewer and fewer characters are shown.
        after = f"{{columns: {{b: {{mask: {9 - number}}}}}}}"
        loop.edit(policy, after)
        policy = after
        arguments = [moment, delay_s, "--conf-dir", str(loop.config.file.parent), "remask", "shop"]
        done = subprocess.run([sys.executable, "-c", KILLING, *arguments], check=False, timeout=300)
        assert done.returncode == -signal.SIGKILL
        parked = open_meta(loop.config).read().subscription("apply").parked
        assert parked[f"{loop.db}.t"].reason == "A remask is under way."
        loop.sql(f"INSERT INTO t VALUES ({number + 2}, 'more', 'longer text {number}')")
        expected.append(("more", f"longer text {number}"))
        loop.capture()
        loop.apply_all()  # goes on without the table
        pipeline.remask(loop.config)
        assert not open_meta(loop.config).read().subscription("apply").parked
        shown = 9 - number
        assert [(row["a"], row["b"]) for row in loop.delta("t")] == [
            (a, "*" * max(len(b) - shown, 0) + b[-shown:]) for a, b in expected
        ]
    report = pipeline.verify(loop.config)
    assert report.exit_code == 0, report


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_member_of_a_group_rewrites_its_own_rows(
    tmp_path: Path, mysql9: Server, mariadb11: Server, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    eu, us = members(mysql9, mariadb11, tmp_path, database)
    for loop in (eu, us):
        loop.capture()
        for table in TABLES:
            loop.sql(f"INSERT INTO {table} VALUES (1, 5, 'old'), (2, NULL, NULL)")
            loop.sql(f"UPDATE {table} SET note = 'a note' WHERE id = 1")
        loop.capture()
        loop.apply_all()
    eu.edit("schema_changes: additive", "schema_changes: additive, columns: {note: {mask: 2}, v: 'null'}")

    def own(loop: Member) -> list[tuple[Any, Any, Any]]:
        return [(r["id"], r["v"], r["note"]) for r in loop.delta("mirror", order="id") if r["_source"] == loop.name]

    # Killed between the properties and the rows: the table still says what its rows have.

    def killed(*_: Any) -> None:
        raise TokenError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(Commit, "execute_with", killed)
        with pytest.raises(TokenError):
            pipeline.remask(eu.config)
    assert recorded_policies(tables(eu, "mirror")) == {}
    assert own(eu) == [(1, 5, "a note"), (2, None, None)]
    eu.sql("INSERT INTO mirror VALUES (3, 3, 'three')")
    eu.capture()
    eu.apply_all()
    assert ways(pipeline.remask(eu.config)) == dict.fromkeys(TABLES, "lake")
    for table in TABLES:
        notes = {row["note"] for row in eu.delta(table) if row["_source"] == "eu"}
        assert {"****te", None} <= notes <= {"****te", "***ee", "*ld", None}
        assert {row["note"] for row in eu.delta(table) if row["_source"] == "us"} <= {"a note", "old", None}
    befores = [row["_before"] for row in eu.delta("log") if row["_source"] == "eu" and row["_op"] == "update"]
    assert [(before["v"], before["note"]) for before in befores] == [(None, "*ld")]
    assert own(eu) == [(1, None, "****te"), (2, None, None), (3, None, "***ee")]
    assert own(us) == [(1, 5, "a note"), (2, None, None)]
    assert recorded_policies(tables(eu, "mirror")) == {"note": "mask: 2", "v": "null"}
    assert recorded_policies(tables(us, "mirror")) == {}
    with pytest.raises(TargetError, match="of a shared table cannot be deleted at once"):
        pipeline.remask(eu.config, [f"{eu.db}.mirror"], vacuum=True)
    eu.edit("columns: {note: {mask: 2}, v: 'null'}", "hash_key_env: TOWPATH_TEST_HASH_KEY, columns: {v: hash}")
    [planned] = pipeline.plan_remask(eu.config, [f"{eu.db}.mirror"])
    assert "the lake has no values of v" in planned.why
