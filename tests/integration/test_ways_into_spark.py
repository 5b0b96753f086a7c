"""Random keys of every type through each way into Spark. The window over the data source's rows is the reference."""

from __future__ import annotations

import errno
import json
import os
import random
import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from cdc.base.errors import MergeFailedError, PermanentError
from cdc.decode import layouts
from cdc.lake import pipeline
from cdc.lake.apply import merge, table_changes
from cdc.lake.apply.commit import Commit, MergeStats
from cdc.lake.apply.merge import RowKeys, TableMerge
from cdc.lake.apply.rows import latest
from cdc.lake.delta import files
from cdc.lake.delta.tables import target_of
from cdc.lake.rows import changes, key_plan
from cdc.lake.rows.columns import columns_of_layout
from cdc.lake.rows.data_source import register
from cdc.lake.rows.key_plan import FileOutput, make_plan, planned_frame
from cdc.lake.rows.row_choice import RowChoice
from cdc.lake.rows.row_files import RowFiles, TableRowFiles, row_files
from cdc.lake.rows.split_reader import SplitReader
from cdc.lake.runtime import session
from cdc.lake.runtime.session import TableSession, setting_of
from cdc.testing.servers import Server
from tests.support.apply import Loop
from tests.support.compare import mirror_faults
from tests.support.random_keys import RandomChanges, make_tables

Database = Callable[[Server], str]
SMALL_BYTES = files.SMALL_BYTES
PASS_OVER = {"spark.sql.files.ignoreCorruptFiles": "true", "spark.sql.files.ignoreMissingFiles": "true"}


def decode_in_tasks(patch: pytest.MonkeyPatch) -> None:
    """Lets the tasks decode the rows of a plan, as they do on other machines."""
    patch.setattr(TableSession, "is_local", False)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "way",
    [
        "plan and files",
        *(pytest.param(way, marks=pytest.mark.long) for way in ("plan and tasks", "window and tasks", "window here")),
    ],
)
def test_every_way_equals_select(
    way: str, mariadb11: Server, tmp_path: Path, database: Database, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan over changes that are decoded here is what all other tests with small batches use."""
    monkeypatch.setattr(files, "SMALL_BYTES", 0)  # statements name ranges of keys of every type
    if not way.endswith("here"):
        monkeypatch.setattr(changes, "SMALL_BYTES", 0)
    if way.endswith("tasks"):
        decode_in_tasks(monkeypatch)
    if way.startswith("window"):
        monkeypatch.setattr(merge, "make_plan", lambda *_arguments, **_options: None)
    rng = random.Random(f"{seed} {way}")
    loop = Loop(tmp_path, mariadb11, database(mariadb11))
    tables = make_tables(rng, "mariadb", 12)
    loop.sql(*(table.create() for table in tables))
    random_changes = RandomChanges(mariadb11, loop.db, rng)
    for count in (30, 5):
        random_changes.run(tables, count)
        loop.capture()
        loop.apply_all()
        faults = [
            f"{table.types}: {fault}"
            for table in tables
            for fault in mirror_faults(mariadb11, loop.config.apply.target, loop.db, table.name, table.select)
        ]
        assert not faults, "\n".join([f"seed {seed}", *faults[:20]])


def reference(table: TableMerge, reader: SplitReader) -> DataFrame:
    """Returns all changes as the data source gives them."""
    spark = table.session.spark
    options = {"table": reader.table, "columns": reader.columns, "values": reader.values}
    ranges = json.dumps([byte_range.model_dump() for byte_range in table.manifest.ranges])
    return spark.read.format(register(spark)).schema(reader.fields).options(ranges=ranges, **options).load()


def shown(rows: DataFrame) -> list[str]:
    records = rows.select(sorted(rows.columns)).toArrow().to_pylist()
    return sorted(repr(row) for row in records)


@pytest.mark.timeout(900)
@pytest.mark.long
@pytest.mark.parametrize("kind", ["mysql9", "mariadb11"])
def test_the_plan_and_the_window_give_the_same_rows(
    kind: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    database: Database,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server: Server = request.getfixturevalue(kind)
    rng = random.Random(f"{seed} {kind} plan")
    loop = Loop(tmp_path, server, database(server))
    tables = make_tables(rng, kind[:5] if kind.startswith("mysql") else "mariadb", 4)
    loop.sql(*(table.create() for table in tables))
    random_changes = RandomChanges(server, loop.db, rng)
    for _ in range(6):
        random_changes.run(tables, 12)
    loop.capture()
    while (lease := loop.fetch()).manifest.ddl:
        pipeline.finalize(loop.config, lease, True, pipeline.merge(loop.config, lease))
    warm = TableSession(session.acquire(loop.config.spark).spark)
    monkeypatch.setattr(table_changes, "SPLIT_BYTES", 2000)
    compared = 0
    for name, layout in layouts(lease.manifest.ranges, lease.manifest.tables).items():
        target = target_of(loop.config, name)
        columns = columns_of_layout(layout, target.policies)
        table_merge = TableMerge(warm, target, lease.manifest, layout, columns, None, lambda: None)
        keys = RowKeys(columns.keys(layout.primary_key), is_primary=True)
        columns = columns.exact(layout.primary_key)
        reader, splits = table_merge.changes.reader(columns, 0, "after"), table_merge.changes.splits(0)
        assert len(splits) > 1
        wanted = shown(latest(reference(table_merge, reader), keys.names, seen=True))
        narrow = table_merge.changes.reader(columns.only(keys.names), 0, "after")
        for place, kept in (("here", 0), ("tasks", 0), ("files", 1 << 30), ("files", 5000), ("files", 0)):
            monkeypatch.setattr(key_plan, "KEPT_BYTES", kept)
            with row_files(warm) as files:
                assert files is not None
                output = FileOutput(files, reader, seen=True) if place == "files" else None
                small = place == "here"
                plan = make_plan(reader if small else narrow, splits, keys.names, keep=small, output=output)
                assert plan is not None
                assert plan.rows == len(wanted)
                assert (plan.files is not None) == (place == "files")
                rows = shown(planned_frame(warm, reader, splits, plan, seen=True))
            assert rows == wanted, f"seed {seed}, {place}, {layout}"
            compared += len(rows)
    assert compared > 500


def test_too_many_keys_are_reduced_by_spark(
    mysql9: Server, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "SMALL_BYTES", 0)
    monkeypatch.setattr(key_plan, "MAX_BYTES", 1000)
    seen: list[Any] = []
    make = key_plan.make_plan
    monkeypatch.setattr(merge, "make_plan", lambda *given, **options: seen.append(make(*given, **options)))
    loop = Loop(tmp_path, mysql9, database(mysql9))
    loop.sql("CREATE TABLE t (id INT PRIMARY KEY, v INT)", *(f"INSERT INTO t VALUES ({i}, {i})" for i in range(40)))
    loop.capture()
    loop.apply_all()
    loop.require_equal("t")
    assert seen == [None]


@pytest.mark.parametrize(
    ("what", "where"),
    [
        ("other rows", "files"),
        pytest.param("other rows", "tasks", marks=pytest.mark.long),
        pytest.param("another number of rows", "tasks", marks=pytest.mark.long),
    ],
)
def test_a_wrong_bitmap_fails_the_batch(
    what: str, where: str, mysql9: Server, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that decodes the rows again finds that they are not those of the plan, and nothing is committed."""
    monkeypatch.setattr(changes, "SMALL_BYTES", 0)
    monkeypatch.setattr(key_plan, "KEPT_BYTES", 0)
    if where == "tasks":
        decode_in_tasks(monkeypatch)
    loop = Loop(tmp_path, mysql9, database(mysql9))
    loop.sql(
        "CREATE TABLE t (id INT PRIMARY KEY, v INT)",
        "INSERT INTO t VALUES (1, 1), (2, 2)",
        "UPDATE t SET v = 3 WHERE id = 1",
    )
    loop.capture()
    loop.apply()
    lease = loop.fetch()
    make = RowChoice.of

    def wrong(last: Any, seen: Any, keys: Any) -> RowChoice:
        if what == "other rows":
            choice = make(np.roll(last, 1), seen, keys)
            return replace(choice, checksum=make(last, seen, keys).checksum)
        return replace(make(last, seen, keys), rows=len(last) + 1)

    monkeypatch.setattr(RowChoice, "of", wrong)
    before = loop.version("t")
    with pytest.raises((PermanentError, MergeFailedError), match="other rows than the plan"):
        pipeline.merge(loop.config, lease)
    assert loop.version("t") == before
    monkeypatch.setattr(RowChoice, "of", make)
    loop.apply_all()
    loop.require_equal("t")


def test_a_bitmap_that_keeps_an_older_change_is_found(
    mysql9: Server, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No task can notice this, but the comparison with SELECT does: the tests would find a plan that is wrong."""
    monkeypatch.setattr(changes, "SMALL_BYTES", 0)
    decode_in_tasks(monkeypatch)
    make = RowChoice.of
    monkeypatch.setattr(RowChoice, "of", lambda last, seen, keys: make(np.roll(last, 1), seen, keys))
    loop = Loop(tmp_path, mysql9, database(mysql9))
    loop.sql(
        "CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1)", "UPDATE t SET v = 2",
        "UPDATE t SET v = 3",
    )  # fmt: skip
    loop.capture()
    loop.apply_all()
    assert mirror_faults(mysql9, loop.config.apply.target, loop.db, "t")


@pytest.mark.parametrize("kind", [TableRowFiles, pytest.param(RowFiles, marks=pytest.mark.long)])
def test_rows_that_cannot_be_written_are_decoded_by_tasks(
    kind: type, mysql9: Server, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full after the first file. The folder is gone afterwards."""
    monkeypatch.setattr(changes, "SMALL_BYTES", 0)
    folders: list[Path] = []

    def full(files: RowFiles | TableRowFiles, *_given: object) -> None:
        folders.append(files.folder)
        (files.folder / "0.parquet").write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(kind, "write", full)
    monkeypatch.setattr(merge, "_own_format", merge._own_format if kind is TableRowFiles else lambda *_: None)
    loop = Loop(tmp_path, mysql9, database(mysql9))
    loop.sql("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1), (2, 2)", "UPDATE t SET v = 3")
    loop.capture()
    loop.apply_all()
    loop.require_equal("t")
    assert folders and not any(folder.exists() for folder in folders)


@pytest.mark.parametrize("damage", ["truncated", pytest.param("removed", marks=pytest.mark.long)])
def test_files_that_change_before_they_are_read_fail_the_batch(
    damage: str, mysql9: Server, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the session tells Spark to pass over such files."""
    monkeypatch.setattr(changes, "SMALL_BYTES", 0)
    monkeypatch.setattr(table_changes, "SPLIT_BYTES", 300)
    loop = Loop(tmp_path, mysql9, database(mysql9))
    loop.sql("CREATE TABLE t (id INT PRIMARY KEY, v INT)", *(f"INSERT INTO t VALUES ({i}, {i})" for i in range(40)))
    loop.capture()
    loop.apply()
    monkeypatch.setattr(merge, "may_change", lambda *_: False)  # so that Spark reads them
    lease, made = loop.fetch(), TableRowFiles.frame

    def damaged(files: TableRowFiles, table: TableSession, fields: StructType) -> DataFrame:
        held.enter_context(setting_of(table.spark, PASS_OVER))
        rows = made(files, table, fields)
        written = sorted(files.folder.glob("*.parquet"))
        assert len(written) > 1
        if damage == "truncated":
            written[0].write_bytes(written[0].read_bytes()[:100])
        else:
            written[0].unlink()
        return rows

    before = loop.version("t")
    with monkeypatch.context() as patch, ExitStack() as held:
        patch.setattr(TableRowFiles, "frame", damaged)
        with pytest.raises(MergeFailedError):
            pipeline.merge(loop.config, lease)
    assert loop.version("t") == before
    loop.apply_all()
    loop.require_equal("t")


@pytest.mark.parametrize("small_bytes", [100, pytest.param(SMALL_BYTES, marks=pytest.mark.long)])
def test_the_statements_of_a_small_table_are_all_the_same(
    small_bytes: int, mysql9: Server, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that Spark compiles them once. Those of a larger table name the keys of their batch."""
    monkeypatch.setattr(files, "SMALL_BYTES", small_bytes)
    statements: list[str] = []
    execute = Commit.execute

    def watched(commit: Commit, statement: str, *instead: Any) -> MergeStats:
        statements.append(re.sub(r"towpath_rows_\w+", "rows", statement))
        return execute(commit, statement, *instead)

    loop = Loop(tmp_path, mysql9, database(mysql9))
    loop.sql("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1), (2, 2), (30, 3)")
    loop.capture()
    loop.apply_all()
    monkeypatch.setattr(Commit, "execute", watched)
    for key in (1, 30):
        loop.sql(f"UPDATE t SET v = v + 1 WHERE id = {key}")
        loop.capture()
        loop.apply_all()
    loop.require_equal("t")
    first, second = statements
    assert (first == second) == (small_bytes == SMALL_BYTES)
    assert ("t.`id` >= 30" in second) == (small_bytes != SMALL_BYTES)
