"""Chunk files of a snapshot that become files of the Delta table: with changes in between, kills, and other writers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from cdc.base.errors import RetryableError
from cdc.batches.service import BatchService
from cdc.lake import pipeline
from cdc.lake.delta.adoption import Adoption, ParquetFile
from cdc.lake.jobs import load
from cdc.source.snapshot.reader import SegmentReader
from cdc.source.snapshot.records import ChunkRange, ChunkRecord
from cdc.testing.servers import Server
from tests.support.apply import Loop
from tests.support.capturing import capturing

Database = Callable[[Server], str]
CHUNK_ROWS = 500


class Filled(Loop):
    """A destination with ``start: snapshot``, whose table ``t`` has eight chunks."""

    def __init__(self, folder: Path, server: Server, db: str, **settings: str) -> None:
        snapshot = f"{{chunk_rows: {CHUNK_ROWS}, parallel: 1}}"
        super().__init__(folder, server, db, start="snapshot", snapshot=snapshot, **settings)
        self.table = f"{db}.t"
        self.sql(
            "CREATE TABLE t (id VARCHAR(20) NOT NULL, k INT NOT NULL, v INT, at TIMESTAMP(6) NULL, d DATE, "
            "n DECIMAL(12,3), PRIMARY KEY (id, k))",
            *[
                "INSERT INTO t VALUES "
                + ", ".join(
                    f"('k{i:05d}', {i}, {i}, '2024-01-01 00:00:00.000{i % 1000:03d}', '2024-02-03', {i}.125)"
                    for i in range(n, n + 500)
                )
                for n in range(0, 4000, 500)
            ],
            "ANALYZE TABLE t",
        )
        self.capture()

    def snapshot(self) -> None:
        with capturing(self.config):
            pipeline.snapshot(self.config, [self.table])

    def names(self) -> set[str]:
        """Returns the files of the newest version."""
        return {Path(file).name for file in DeltaTable(str(self.path("t"))).file_uris()}


class Seen:
    """The files that a load took over, and the rows that it had Spark write."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken: list[int] = []
        self.written = 0
        add_files, add_rows = Adoption.add_files, Adoption.add_rows

        def files(adoption: Adoption, chunks: list[ParquetFile]) -> None:
            self.taken.append(len([chunk for chunk in chunks if chunk.footer.num_rows]))
            add_files(adoption, chunks)

        def rows(adoption: Adoption, chunk_rows: Any) -> None:
            self.written += 1
            add_rows(adoption, chunk_rows)

        monkeypatch.setattr(Adoption, "add_files", files)
        monkeypatch.setattr(Adoption, "add_rows", rows)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    return Seen(monkeypatch)


@pytest.mark.parametrize("kind", [pytest.param("mysql9", marks=pytest.mark.long), "mariadb11"])
def test_only_chunks_with_changed_keys_are_written_anew(
    kind: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    seen: Seen,
) -> None:
    server: Server = request.getfixturevalue(kind)
    loop = Filled(tmp_path, server, database(server))
    read_chunk, calls = SegmentReader.read_chunk, []

    def reading(reader: SegmentReader, conn: Any, chunk: ChunkRange) -> ChunkRecord:
        """Changes rows of the first chunks once they are read."""
        chunk_rows = read_chunk(reader, conn, chunk)
        calls.append(chunk_rows)
        if len(calls) == 3:
            loop.sql(
                "UPDATE t SET v = -1 WHERE k = 7",
                "DELETE FROM t WHERE k = 8",
                "UPDATE t SET id = 'K00009' WHERE k = 9",  # the same key for the server, another one for the lake
                "UPDATE t SET id = 'zz', k = 90000 WHERE k = 10",
                "INSERT INTO t VALUES ('k00010x', 10, 1, NULL, NULL, NULL)",
                "UPDATE t SET v = -2 WHERE k = 700",
            )
        return chunk_rows

    with monkeypatch.context() as patched:
        patched.setattr(SegmentReader, "read_chunk", reading)
        loop.snapshot()
    chunks = len([call for call in calls if call.rows])
    assert seen.written == 1 and len(seen.taken) == 1
    assert chunks - 4 <= seen.taken[0] < chunks, "the chunks of the changed keys, and perhaps that of the moved row"
    loop.require_equal("t", "2")
    assert loop.version("t") == 0, "one commit"

    # Without changes in between Spark writes nothing.
    before = loop.names()
    loop.sql("UPDATE t SET v = 5 WHERE k < 50")
    loop.snapshot()
    assert seen.written == 1 and len(seen.taken) == 2
    loop.require_equal("t", "2")
    assert not loop.names() & before
    assert BatchService(loop.config).subscription().parked == {}
    loop.sql("UPDATE t SET v = 6 WHERE k BETWEEN 40 AND 60", "DELETE FROM t WHERE k = 3999")
    loop.capture()
    loop.apply_all()
    loop.require_equal("t", "2")
    pipeline.replay(loop.config, [loop.table])  # from the files of the snapshot, which stayed
    assert len(seen.taken) == 4  # those of the table that was built beside, too
    loop.require_equal("t", "2")


@pytest.mark.long
def test_most_chunks_changed_and_a_wider_table(
    tmp_path: Path, mysql9: Server, database: Database, monkeypatch: pytest.MonkeyPatch, seen: Seen
) -> None:
    loop = Filled(tmp_path, mysql9, database(mysql9))
    read_chunk, calls = SegmentReader.read_chunk, []

    def reading(reader: SegmentReader, conn: Any, chunk: ChunkRange) -> ChunkRecord:
        chunk_rows = read_chunk(reader, conn, chunk)
        calls.append(chunk_rows)
        if len(calls) == 6:
            loop.sql("UPDATE t SET v = v + 1")
        return chunk_rows

    with monkeypatch.context() as patched:
        patched.setattr(SegmentReader, "read_chunk", reading)
        loop.snapshot()
    assert seen.taken == [], "Spark writes the whole table"
    loop.require_equal("t", "2")
    loop.sql("ALTER TABLE t ADD COLUMN more BIGINT UNSIGNED DEFAULT 18446744073709551615")
    loop.capture()
    loop.snapshot()
    assert len(seen.taken) == 1
    loop.require_equal("t", "2")


class Killed(BaseException):
    """Stands for kill -9."""


def test_a_load_that_is_killed_before_its_commit_begins_again(
    tmp_path: Path, mysql9: Server, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Filled(tmp_path, mysql9, database(mysql9))

    def kill(*_: object) -> None:
        raise Killed

    for version in (0, 1):  # a table that is not there yet, and one that is
        with monkeypatch.context() as patched:
            patched.setattr(Adoption, "commit", kill)
            with pytest.raises(Killed):
                loop.snapshot()
        leftovers = {file.name for file in loop.path("t").glob("part-*.parquet")}
        assert leftovers, "files that no commit names"
        with monkeypatch.context() as patched:
            patched.setattr(SegmentReader, "read_chunk", kill)  # no chunk is read again
            loop.snapshot()
        assert loop.version("t") == version
        assert len(loop.names()) == len({file.name for file in loop.path("t").glob("part-*.parquet")} - leftovers)
        loop.require_equal("t", "2")


@pytest.mark.long
def test_another_writer_in_between_is_a_conflict_and_nothing_is_lost(
    tmp_path: Path, mysql9: Server, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Filled(tmp_path, mysql9, database(mysql9))
    loop.snapshot()
    path = str(loop.path("t"))
    commit = Adoption.commit

    def late(adoption: Adoption, application: str, seq: int, metadata: str) -> None:
        row = DeltaTable(path).to_pyarrow_table().slice(0, 1)
        write_deltalake(path, row, mode="append")
        commit(adoption, application, seq, metadata)

    with monkeypatch.context() as patched:
        patched.setattr(Adoption, "commit", late)
        with pytest.raises(RetryableError, match="another writer has committed to the table"):
            loop.snapshot()
    assert loop.version("t") == 1
    with monkeypatch.context() as patched:
        patched.setattr(SegmentReader, "read_chunk", late)  # no chunk is read again
        loop.snapshot()
    loop.require_equal("t", "2")
    metadata = json.loads(DeltaTable(path).history(1)[0]["userMetadata"])
    assert metadata["rebuild"]["kind"] == "snapshot" and metadata["generation"] == 1


@pytest.mark.long
def test_names_and_properties_that_spark_must_write(
    tmp_path: Path, mysql9: Server, database: Database, monkeypatch: pytest.MonkeyPatch, seen: Seen
) -> None:
    loop = Filled(tmp_path, mysql9, database(mysql9), overrides="DB.j: {types: {json: variant}}")
    loop.sql(
        "CREATE TABLE spaced (id INT PRIMARY KEY, `a b` INT)",
        "INSERT INTO spaced VALUES (1, 2)",
        "CREATE TABLE j (id INT PRIMARY KEY, doc JSON)",
        """INSERT INTO j VALUES (1, '{"a": 1}')""",
        "CREATE TABLE nothing (id INT PRIMARY KEY)",
    )
    loop.capture()
    with capturing(loop.config):
        pipeline.snapshot(loop.config, [f"{loop.db}.{name}" for name in ("spaced", "j")])
    assert seen.taken == []
    loop.require_equal("spaced")
    with capturing(loop.config):
        pipeline.snapshot(loop.config, [f"{loop.db}.nothing"])
    assert seen.taken == [0]
    loop.require_equal("nothing")

    # A property that somebody gave the table, and that concerns its files, stays; so does one that does not.
    loop.snapshot()
    assert len(seen.taken) == 2
    from cdc.lake.runtime.session import acquire

    spark = acquire(loop.config.spark).spark
    spark.sql(f"ALTER TABLE delta.`{loop.path('t')}` SET TBLPROPERTIES ('team' = 'us')")
    loop.snapshot()
    assert len(seen.taken) == 3
    spark.sql(f"ALTER TABLE delta.`{loop.path('t')}` ADD CONSTRAINT sound CHECK (k >= 0)")
    loop.snapshot()
    assert len(seen.taken) == 3
    loop.require_equal("t", "2")
    properties = DeltaTable(str(loop.path("t"))).metadata().configuration
    assert properties["team"] == "us" and properties["delta.constraints.sound"] == "k >= 0"


def test_the_statement_is_not_needed(
    tmp_path: Path, mariadb11: Server, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without changes in between a mirror is loaded, first and again, without Spark reading a row."""
    loop = Filled(tmp_path, mariadb11, database(mariadb11))

    def fail(*_: object) -> None:
        raise AssertionError("Spark has read the rows")

    monkeypatch.setattr(load, "replace_table", fail)
    monkeypatch.setattr(load, "state_of_snapshot", fail)
    for _ in range(2):
        loop.snapshot()
        loop.require_equal("t", "2")
