"""A lake in S3: real Spark with S3A against a server in this process. Names, the guard of commits, and requests."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import cdc
from cdc.base.errors import ConfigError, TargetError
from cdc.base.targets import table_path
from cdc.cli import check_local
from cdc.client import open_batches
from cdc.disk import object_stores
from cdc.lake import pipeline
from cdc.lake.attestation.check import check_tables
from cdc.lake.attestation.statement import make_statement
from cdc.lake.delta import proof
from cdc.lake.runtime import connect_server, session
from cdc.testing.servers import Server, free_port
from cdc.watch import status
from tests.support import java_classes
from tests.support.apply import LOCAL_CONF, Loop, spark_of
from tests.support.s3 import KEY, SECRET, S3Server, serve

Database = Callable[[Server], str]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of logs are kept for this test alone; jars are shared."""
    monkeypatch.setattr("cdc.lake.delta.mirrors.cache_dir", lambda: tmp_path / "cache")
    monkeypatch.setattr(proof, "_looked_at", {})
    monkeypatch.setenv("TOWPATH_TEST_S3", SECRET)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    """One server for all tests of this module, so that one Spark session serves them."""
    with serve("lake") as server:
        yield server


def made(
    folder: Path, source: Server, db: str, s3: S3Server, *, target: str = "s3a://lake/tables", **more: Any
) -> Loop:
    access = f"{{endpoint: '{s3.endpoint}', access_key_id: {KEY}, secret_access_key_env: TOWPATH_TEST_S3}}"
    return Loop(folder, source, db, target=target, s3=access, **more)


def rows(loop: Loop, table: str) -> list[tuple[Any, ...]]:
    path = table_path(loop.config.apply.target, loop.db, table)
    return sorted(tuple(row) for row in spark_of(loop).read.format("delta").load(path).collect())


def source_rows(loop: Loop, table: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in loop.select(table)]


NAMES = ("plain", "with space", "größe", "100%", "a%20b", "a+b")


@pytest.mark.long
def test_the_whole_loop(mysql9: Server, tmp_path: Path, database: Database, s3: S3Server) -> None:
    loop = made(tmp_path, mysql9, database(mysql9), s3)
    for name in NAMES:
        loop.sql(
            f"CREATE TABLE `{name}` (id INT PRIMARY KEY, v VARCHAR(20))",
            f"INSERT INTO `{name}` VALUES (1, 'a'), (2, 'b')",
        )
    loop.capture()
    assert [f.level for f in check_local.examine(loop.config) if f.subject == "target"] == ["ok"]
    loop.apply_all()
    first = max(manifest.last_seq for manifest in open_batches(loop.config).acked_manifests())
    for name in NAMES:
        loop.sql(f"UPDATE `{name}` SET v = 'c' WHERE id = 2", f"INSERT INTO `{name}` VALUES (3, 'd')")
    loop.capture()
    loop.apply_all()
    for name in NAMES:
        assert rows(loop, name) == source_rows(loop, name)
    for name in NAMES:  # percent-encoded, and so a percent sign of the encoding is one of the key
        folder = quote(name, safe="")
        assert s3.filesystem().exists(f"lake/tables/{loop.db}/{folder}/_delta_log/00000000000000000000.json")

    report = pipeline.verify(loop.config)
    assert report.exit_code == 0, report
    frames = cdc.read_as_of(spark_of(loop), loop.config, seq=first)
    assert sorted(tuple(row) for row in frames[f"{loop.db}.a+b"].collect()) == [(1, "a"), (2, "b")]
    done = pipeline.maintain(loop.config, [], store_only=False, vacuum=True)
    assert {table["note"] for table in done["tables"]} == {None}
    loop.sql("UPDATE `plain` SET v = 'e'")
    loop.capture()
    loop.apply_all()
    assert rows(loop, "plain") == source_rows(loop, "plain")


@pytest.mark.long
def test_what_was_signed_is_found_in_the_object_store(
    mysql9: Server, tmp_path: Path, database: Database, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = made(tmp_path, mysql9, database(mysql9), s3)
    loop.sql("CREATE TABLE `a%20b` (id INT PRIMARY KEY)", "INSERT INTO `a%20b` VALUES (1), (2), (3)")
    loop.capture()
    loop.apply_all()
    path = table_path(loop.config.apply.target, loop.db, "a%20b")
    spark = spark_of(loop)
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 2")
    statement = make_statement(loop.config, pipeline.verify(loop.config))
    assert statement["predicate"]["state"] == "differs"
    assert [subject["annotations"]["deleted_rows"] for subject in statement["subject"]] == [1]
    monkeypatch.setattr(object_stores, "_lakes", {})  # as in a process that has loaded no configuration
    for name, value in (("ACCESS_KEY_ID", KEY), ("SECRET_ACCESS_KEY", SECRET), ("ENDPOINT_URL", s3.endpoint)):
        monkeypatch.setenv(f"AWS_{name}", value)
    (check,) = check_tables(statement)
    assert (check.state, check.files, check.faults) == ("intact", 1, [])
    (name,) = s3.filesystem().glob(f"lake/tables/{loop.db}/{quote('a%20b', safe='')}/*.parquet")
    data = s3.filesystem().cat_file(name)
    s3.filesystem().pipe_file(name, data[:200] + bytes([data[200] ^ 1]) + data[201:])
    (check,) = check_tables(statement)
    assert check.state == "changed" and "(3 rows: id from 1 to 3) was changed" in check.faults[0]


@pytest.mark.long
def test_a_commit_of_another_driver_is_not_replaced(
    mysql9: Server, tmp_path: Path, database: Database, s3: S3Server
) -> None:
    """Between Spark's look at the log and its own commit, another writer commits the same version."""
    loop = made(tmp_path, mysql9, database(mysql9), s3)
    loop.sql("CREATE TABLE `ö%20b` (id INT PRIMARY KEY, v VARCHAR(20))", "INSERT INTO `ö%20b` VALUES (1, 'a')")
    loop.capture()
    loop.apply_all()
    log = f"lake/tables/{loop.db}/%C3%B6%2520b/_delta_log"
    taken = int(max(s3.filesystem().glob(f"{log}/*.json")).rpartition("/")[2][:20]) + 1
    name = f"{log}/{taken:020d}.json"
    other = json.dumps({"txn": {"appId": "another", "version": 1}}) + "\n"

    def commit_first(request: str) -> None:
        if request == f"PUT /{name}":
            s3.before = None
            s3.filesystem().pipe_file(name, other.encode(), mode="create")

    loop.sql("INSERT INTO `ö%20b` VALUES (2, 'b')")
    loop.capture()
    s3.requests.clear()
    s3.before = commit_first
    try:
        loop.apply_all()
    finally:
        s3.before = None
    puts = [
        request
        for request in s3.requests
        if request.startswith(f"PUT /{log}/") and request.split()[1].endswith(".json")
    ]
    assert [put.removeprefix(f"PUT /{log}/{taken:020d}"[:-1]) for put in puts] == [
        f"{taken % 10}.json 200", f"{taken % 10}.json 412", f"{taken % 10 + 1}.json 200"
    ]  # fmt: skip
    assert s3.filesystem().cat_file(name) == other.encode()
    assert rows(loop, "ö%20b") == source_rows(loop, "ö%20b")
    assert pipeline.verify(loop.config).exit_code == 0


@pytest.mark.long
def test_a_store_that_replaces_commits_is_refused(
    mysql9: Server, tmp_path: Path, database: Database, s3: S3Server
) -> None:
    from cdc.lake.runtime.guard import prove_guard

    loop = made(tmp_path, mysql9, database(mysql9), s3)
    spark = spark_of(loop)
    s3.ignores_conditions = True
    try:
        with pytest.raises(ConfigError, match=r"lets two drivers replace each other's commits.*single_driver"):
            prove_guard(spark, loop.config.spark)
        findings = [f for f in check_local.examine(loop.config) if f.subject == "target"]
        assert [f.level for f in findings] == ["error"]
        assert "no conditional puts" in findings[0].message
    finally:
        s3.ignores_conditions = False
    prove_guard(spark, loop.config.spark)
    assert s3.filesystem().glob("lake/tables/_towpath_check*") == []


def test_an_unchanged_table_costs_two_requests_and_a_replaced_one_is_noticed(
    mysql9: Server, tmp_path: Path, database: Database, s3: S3Server
) -> None:
    loop = made(tmp_path, mysql9, database(mysql9), s3)
    for name in ("busy", "100% idle"):
        loop.sql(f"CREATE TABLE `{name}` (id INT PRIMARY KEY)", f"INSERT INTO `{name}` VALUES (1)")
    loop.capture()
    loop.apply_all()
    for value in (2, 3):
        loop.sql(f"INSERT INTO busy VALUES ({value})")
        loop.capture()
    proof._looked_at.clear()  # as in a new process
    s3.requests.clear()
    loop.apply_all(transactions=1)
    seen = list(s3.requests)
    requests = [request for request in seen if f"/{loop.db}/100%25%20idle/" in request]
    assert [(request.split()[0], request.split()[-1]) for request in requests] == [("GET", "206"), ("GET", "404")], (
        requests
    )
    status.collect(loop.config)
    s3.requests.clear()
    status.collect(loop.config)
    requests = s3.of(f"/{loop.db}/100%25%20idle/")
    assert [(request.split()[0], request.split()[-1]) for request in requests] == [("HEAD", "200"), ("GET", "404")], (
        requests
    )

    files = s3.filesystem()
    files.rm(f"lake/tables/{loop.db}/100%25%20idle", recursive=True)
    proof._looked_at.clear()
    loop.sql("INSERT INTO busy VALUES (4)")
    loop.capture()
    with pytest.raises(TargetError, match=r"the Delta table is gone"):
        loop.apply_all()


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", ["submit", "connect"])
def test_drivers_in_other_processes(
    mysql9: Server, tmp_path: Path, database: Database, s3: S3Server, way: str, capfd: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    master = "master: 'local-cluster[1,1,1024]'" if way == "submit" else f"remote: 'sc://localhost:{port}'"
    loop = made(tmp_path, mysql9, database(mysql9), s3, spark=f"{{{master}, conf: {LOCAL_CONF}}}")
    loop.sql(
        "CREATE TABLE `a%20b` (id INT PRIMARY KEY, v VARCHAR(20))", "INSERT INTO `a%20b` VALUES (1, 'a'), (2, 'b')"
    )
    loop.capture()
    if way == "connect":
        connect_server.start(loop.config.spark, port, lambda _: None)
    try:
        loop.apply_all()
        loop.sql("UPDATE `a%20b` SET v = 'c' WHERE id = 2")
        loop.capture()
        loop.apply_all()
        report = pipeline.verify(loop.config)
        assert report.exit_code == 0, report
        commands = [file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline") if os.access(file, os.R_OK)]
        assert not any(SECRET.encode() in command for command in commands)
    finally:
        session.discard()
        if way == "connect":
            connect_server.stop(port)
    assert SECRET not in "".join(capfd.readouterr())


def test_the_jar_of_java_classes_is_made_of_its_sources() -> None:
    """``scripts/make-java-classes.sh`` makes it anew."""
    kept = java_classes.kept()
    assert {name: content for name, content in kept.items() if name.endswith(".java")} == java_classes.sources()
    classes = {f"{name.removesuffix('.class').partition('$')[0]}.class" for name in kept if name.endswith(".class")}
    assert classes == {name.replace(".java", ".class") for name in java_classes.sources()}


@pytest.mark.long
def test_the_java_classes_are_those_that_a_compiler_makes() -> None:
    kept = java_classes.kept()
    assert {name: content for name, content in kept.items() if name.endswith(".class")} == java_classes.compiled()
