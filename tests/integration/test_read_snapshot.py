"""Spark's tasks read the segments of snapshots, with the same result as threads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cdc.base.errors import UnsupportedError
from cdc.capture import Capture
from cdc.lake.jobs import read_snapshot
from cdc.lake.runtime import session
from cdc.source import snapshot
from cdc.source.snapshot.files import SnapshotFiles
from cdc.testing.servers import PASSWORD, Server
from tests.support.apply import LOCAL_CONF
from tests.support.snapshot_load import rows_of
from tests.support.snapshots import identity, select, write_config


@pytest.mark.long
def test_spark_reads_many_tables_and_names_the_one_that_fails(mariadb11: Server, database: Any, tmp_path: Path) -> None:
    db = database(mariadb11)
    mariadb11.execute(
        f"CREATE TABLE {db}.a (id INT PRIMARY KEY, v VARCHAR(9))",
        f"CREATE TABLE {db}.b (id INT PRIMARY KEY, v INT)",
        f"CREATE TABLE {db}.c (id INT PRIMARY KEY, d DATE)",
        f"INSERT INTO {db}.a SELECT seq, seq FROM {db}.seq_1_to_3000",
        f"INSERT INTO {db}.b SELECT seq, seq FROM {db}.seq_1_to_20",
        f"ANALYZE TABLE {db}.a, {db}.b",
    )
    with mariadb11.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = ''")
        cursor.execute(f"INSERT INTO {db}.c VALUES (1, '0000-00-00')")
    config = write_config(
        mariadb11,
        tmp_path,
        f"{db}\\..*",
        apply={"mode": "upsert", "zero_dates": "fail"},
        snapshot={"chunk_rows": 300, "parallel": 2},
        spark={"master": "local[2]", "conf": LOCAL_CONF},
    )
    Capture(config).run(until_current=True)
    spark = session.acquire(config.spark).spark
    tables = [f"{db}.{name}" for name in "abc"]
    loads = snapshot.take_all(config, tables, identity(mariadb11), read=read_snapshot.read_in_spark(spark))
    for name in "ab":
        files = loads[f"{db}.{name}"]
        assert isinstance(files, SnapshotFiles) and files.is_complete()
        assert sorted(map(repr, rows_of(files))) == sorted(map(repr, select(config, db, name).to_pylist()))
    assert len(rows_of(loads[f"{db}.a"])) == 3000  # type: ignore[arg-type]
    error = loads[f"{db}.c"]
    assert isinstance(error, UnsupportedError) and "zero or impossible date" in str(error)


def test_no_secret_is_sent_to_executors(mariadb11: Server, database: Any, tmp_path: Path) -> None:
    config = write_config(mariadb11, tmp_path, f"{database(mariadb11)}\\..*", apply={"mode": "upsert"})
    task = snapshot.SegmentTask(str(tmp_path / "nothing"), 0, 1)
    sent = json.dumps([config.file.read_text(), str(config.file), task.folder])
    assert PASSWORD not in sent.replace("password", "")
    (outcome,) = read_snapshot.read_part(config.file.read_text(), str(config.file), [task])
    assert outcome[0] == task and "no snapshot.json" in str(outcome[1])
