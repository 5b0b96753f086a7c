"""Large batches whose files become files of the table: against SELECT and Spark, beside other writers, after kills, and
where it is not done."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from cdc.lake import pipeline
from cdc.lake.apply import table_changes
from cdc.lake.delta import local_tables
from cdc.lake.delta.local_tables import Change, LocalTable
from cdc.lake.rows import changes, key_plan
from cdc.lake.runtime.session import acquire
from cdc.testing.servers import Server
from tests.integration.test_local_tables import (
    SIMPLE,
    by_spark,
    create,
    metrics_of,
    require_statistics,
    row,
    run,
    simple,
    statistics,
)
from tests.support.apply import OWNER, Loop
from tests.support.compare import delta_rows, mirror_faults

Database = Callable[[Server], str]
SHOWN = {"bits": "bits + 0", "lasting": "CAST(lasting AS CHAR)"}


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch is large, and has several splits."""
    monkeypatch.setattr(changes, "SMALL_BYTES", 0)
    monkeypatch.setattr(table_changes, "SPLIT_BYTES", 3000)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Collects for each table of a batch that came so far whether it was changed in this process."""
    done: list[bool] = []
    change = local_tables.change

    def seen(*given: Any) -> Any:
        replaced = change(*given)
        done.append(replaced is not None)
        return replaced

    monkeypatch.setattr(local_tables, "change", seen)
    return done


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["mysql9", pytest.param("mariadb11", marks=pytest.mark.long)])
def test_random_batches_change_rows_as_by_spark(
    request: pytest.FixtureRequest,
    kind: str,
    tmp_path: Path,
    database: Database,
    here: list[bool],
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    """Merges the same batches into two destinations, here and by Spark from the same kind of files."""
    server, batches = request.getfixturevalue(kind), 6
    chance = random.Random(f"{seed} {kind} taken files")
    db = database(server)
    native, spark = Loop(tmp_path, server, db), Loop(tmp_path, server, db, name="other", target="other-lake")
    native.sql(create("t"))
    for number in range(batches + 1):
        rows = [row(chance, i % 7, f"k{i}") for i in range(100 * number, 100 * number + chance.randrange(20, 60))]
        some, other = (f"b LIKE '%{chance.randrange(10)}'" for _ in range(2))
        steps = [
            f"UPDATE t SET v = v + 1, name = NULL WHERE {some}",
            f"UPDATE t SET v = v + 1 WHERE {some}",
            f"DELETE FROM t WHERE {other}",
            f"UPDATE t SET a = a + 7 WHERE b LIKE '%{chance.randrange(10)}{chance.randrange(10)}'",
            f"INSERT INTO t VALUES {row(chance, 99, f'x{number}')}",
            f"DELETE FROM t WHERE b = 'x{number}'",
        ]
        native.sql(f"INSERT INTO t VALUES {', '.join(rows)}", *(chance.sample(steps, 4) if number else []))
        if number == batches:
            native.sql("DELETE FROM t")
        monkeypatch.setattr(key_plan, "KEPT_BYTES", chance.choice([0, 5000, 1 << 30]))
        native.capture()
        native.apply_all()
        with by_spark():
            spark.capture()
            spark.apply_all()
        assert mirror_faults(server, native.config.apply.target, db, "t", SHOWN) == []
        columns = DeltaTable(str(native.path("t"))).schema().to_arrow().names
        ours, theirs = (delta_rows(loop.config.apply.target, db, "t", columns) for loop in (native, spark))
        assert ours == theirs
        assert all(
            metrics_of(native)[f"numTargetRows{what}"] == metrics_of(spark)[f"numTargetRows{what}"]
            for what in ("Inserted", "Updated", "Deleted")
        )
        require_statistics(native, "t")
    assert len(here) > batches and all(here)


def test_files_are_as_the_table_asks(mysql9: Server, tmp_path: Path, database: Database, here: list[bool]) -> None:
    """Deletion vectors and constraints."""
    loop = Loop(tmp_path, mysql9, database(mysql9))

    def step(*statements: str) -> None:
        here.clear()
        loop.sql(*statements)
        loop.capture()
        loop.apply_all()
        loop.require_equal("t")

    def insert(numbers: range) -> str:
        return f"INSERT INTO t VALUES {', '.join(f'({i}, {i})' for i in numbers)}"

    step("CREATE TABLE t (id INT PRIMARY KEY, v INT)", insert(range(60)))
    assert here == [True]
    spark, path = acquire(loop.config.spark).spark, loop.path("t")
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    step(insert(range(100, 130)))  # no file has these keys
    assert here == [True]
    assert [stats.get("tightBounds") for stats in statistics(DeltaTable(str(path))).values()].count(True) > 0
    step("UPDATE t SET v = v + 1")
    assert here == []
    spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT few CHECK (id < 1000)")
    step(insert(range(200, 230)))
    assert here == []


def test_batches_follow_small_ones_of_delta_rs(
    mysql9: Server, tmp_path: Path, database: Database, here: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves no checksums, and its files have texts of another Arrow type."""
    loop = Loop(tmp_path, mysql9, database(mysql9), apply="small_batches: {engine: deltalake, max_rows: 1000}")
    for number in range(3):
        monkeypatch.setattr(changes, "SMALL_BYTES", 0)
        run(loop, *([] if number else [SIMPLE]), simple(range(100 * number, 100 * number + 60), "a"))
        monkeypatch.setattr(changes, "SMALL_BYTES", 1 << 20)
        run(loop, "UPDATE t SET v = CONCAT(v, 'ä') WHERE a = 3", "DELETE FROM t WHERE a = 4")
    assert here == [True] * 3
    writers = [pq.read_metadata(path).created_by for path in loop.path("t").glob("*.parquet")]
    assert {writer.split()[0] for writer in writers} == {"parquet-rs", "parquet-cpp-arrow"}


@pytest.mark.parametrize("other", ["delete", "optimize", pytest.param("orphan", marks=pytest.mark.long)])
def test_another_writer_commits_between_reading_and_commit(
    mysql9: Server, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """The commit is refused by Delta, and the table is merged again on top of the other one's."""
    loop = Loop(tmp_path, mysql9, database(mysql9))
    run(loop, SIMPLE, simple(range(50), "a"))
    run(loop, simple(range(50, 110), "a"))
    loop.sql("UPDATE t SET v = 'x' WHERE a < 3", simple(range(200, 230), "b"), "DELETE FROM t WHERE a = 4")
    loop.capture()
    lease, commit, tries = loop.fetch(), LocalTable.commit, 0

    def acting(table: LocalTable, change: Change) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            if other == "delete":
                DeltaTable(str(loop.path("t"))).delete("b = 'k7'")
            elif other == "optimize":
                DeltaTable(str(loop.path("t"))).optimize.compact()
            else:
                pipeline.merge(loop.config, lease)
        commit(table, change)

    monkeypatch.setattr(LocalTable, "commit", acting)
    version = loop.version("t")
    pipeline.finalize(loop.config, lease, True, pipeline.merge(loop.config, lease))
    assert (loop.version("t"), tries) == (version + (1 if other == "orphan" else 2), 2)
    loop.require_equal("t", "1, 2")  # a row that the other has deleted comes back with the batch


KILLED = """
import os, signal, sys
from cdc.batches.service import BatchService
from cdc.config import load
from cdc.lake import pipeline
from cdc.lake.apply import table_changes
from cdc.lake.delta.local_tables import LocalTable
from cdc.lake.rows import changes
from cdc.store.reader.batch_builder import Limits
from pathlib import Path

changes.SMALL_BYTES, table_changes.SPLIT_BYTES = 0, 3000
file, owner, method, when = sys.argv[1:]
work = getattr(LocalTable, method)

def dying(*given):
    if when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    work(*given)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(LocalTable, method, dying)
config = load(Path(file))
pipeline.merge(config, BatchService(config).get(owner, limits=Limits(), wait_s=0))
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "when"), [("take", "before"), ("take", "after"), ("commit", "before"), ("commit", "after")]
)
def test_a_killed_process_loses_nothing_and_applies_nothing_twice(
    mysql9: Server, tmp_path: Path, database: Database, method: str, when: str
) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9))
    run(loop, SIMPLE, simple(range(100), "a"))
    loop.sql(simple(range(100, 160), "b"), "UPDATE t SET v = 'x' WHERE a < 4", "DELETE FROM t WHERE a = 5")
    loop.capture()
    version = loop.version("t")
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(loop.config.file), OWNER, method, when], timeout=300, capture_output=True
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert loop.version("t") == version + ((method, when) == ("commit", "after"))
    loop.apply_all()
    loop.require_equal("t", "1, 2")
    assert loop.version("t") == version + 1
    assert metrics_of(loop)["numTargetRowsInserted"] == 51  # others are deleted in the same batch
