"""Snapshots into Delta: tables that were there before capture are filled beside the stream, and equal SELECT."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cdc.base.errors import CutOffError, IdentityError, SourceRefusedError, StoreIncompleteError, UsageError
from cdc.batches.service import BatchService
from cdc.config import load as load_config
from cdc.lake import pipeline
from cdc.lake.jobs import snapshot as snapshot_job
from cdc.lake.jobs.job import Job
from cdc.lake.jobs.snapshot import due_tables
from cdc.source.snapshot import SnapshotFiles
from cdc.testing.servers import Server
from tests.support.apply import Loop
from tests.support.capturing import capturing

Database = Callable[[Server], str]


class Started(Loop):
    """A destination with ``start: snapshot``."""

    def __init__(self, folder: Path, server: Server, db: str, **settings: str) -> None:
        super().__init__(folder, server, db, start="snapshot", snapshot="{chunk_rows: 50}", **settings)


@pytest.mark.long
def test_a_server_that_names_no_columns(tmp_path: Path, mysql9: Server, database: Database) -> None:
    """Names, signs and members come from the server's tables, also after the columns changed places."""
    loop = Started(tmp_path, mysql9, database(mysql9))
    loop.sql(
        "SET GLOBAL binlog_row_metadata = MINIMAL",
        "CREATE TABLE t (id INT PRIMARY KEY, a INT UNSIGNED, b INT UNSIGNED, e ENUM('red', 'blue'), j JSON)",
        """INSERT INTO t VALUES (1, 4294967295, 1, 'blue', '{"k": [1]}'), (2, 3, 4, 'red', NULL)""",
    )
    try:
        loop.capture()
        with capturing(loop.config):
            pipeline.snapshot(loop.config)
        loop.sql("UPDATE t SET a = a - 1", "INSERT INTO t VALUES (3, 5, 4294967295, NULL, '[]')")
        loop.sql("ALTER TABLE t CHANGE a b INT UNSIGNED, CHANGE b a INT UNSIGNED, ADD c VARCHAR(5) DEFAULT 'x' FIRST")
        loop.sql("UPDATE t SET a = 7 WHERE id = 1", "DELETE FROM t WHERE id = 2")
        loop.capture()
    finally:
        mysql9.execute("SET GLOBAL binlog_row_metadata = FULL")
    loop.apply_all()
    loop.require_equal("t", order="id")


@pytest.mark.parametrize("kind", [pytest.param("mysql9", marks=pytest.mark.long), "mariadb11"])
def test_tables_start_full_and_follow(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, database: Database
) -> None:
    server: Server = request.getfixturevalue(kind)
    loop = Started(tmp_path, server, database(server))
    loop.sql(
        "CREATE TABLE t (id INT PRIMARY KEY, v INT, note VARCHAR(20))",
        "CREATE TABLE pair (a VARCHAR(10) NOT NULL, b INT NOT NULL, v DECIMAL(8,2), PRIMARY KEY (a, b))",
        "CREATE TABLE empty_one (id INT PRIMARY KEY)",
        *[
            f"INSERT INTO t VALUES {', '.join(f'({i}, {i}, NULL)' for i in range(n, n + 100))}"
            for n in range(0, 1000, 100)
        ],
        "INSERT INTO pair VALUES ('x', 1, 1.5), ('X', 2, 2.5), ('é', 3, NULL)",
    )
    with pytest.raises(UsageError, match="nothing was captured yet"):
        pipeline.snapshot(loop.config)
    loop.capture()
    assert due_tables(loop.config) == [f"{loop.db}.{name}" for name in ("empty_one", "pair", "t")]
    stop = threading.Event()

    def write() -> None:
        """Changes the very rows that are read."""
        i = 0
        while not stop.is_set():
            i += 1
            loop.sql(
                f"UPDATE t SET v = v + 1 WHERE id % 7 = {i % 7}",
                f"DELETE FROM t WHERE id = {i % 900}",
                f"INSERT INTO t VALUES ({10_000 + i}, {i}, 'new')",
                f"UPDATE t SET id = id + 20000 WHERE id = {950 + i % 40}",
                f"UPDATE pair SET v = {i}.25 WHERE b = {i % 3 + 1}",
            )

    with capturing(loop.config):
        writer = threading.Thread(target=write)
        writer.start()
        try:
            snapshot = pipeline.snapshot(loop.config)
        finally:
            stop.set()
            writer.join()
    assert [result.table for result in snapshot] == [f"{loop.db}.{name}" for name in ("empty_one", "pair", "t")]
    assert snapshot[2].chunks > 10
    assert due_tables(loop.config) == []
    assert BatchService(loop.config).subscription().parked == {}
    loop.capture()
    loop.apply_all()
    for table in ("t", "pair", "empty_one"):
        loop.require_equal(table, "2" if table == "pair" else "1")

    # The same tables again, from the source and from the store.
    loop.sql("UPDATE t SET note = 'later' WHERE id < 500", "DELETE FROM pair WHERE b = 1")
    loop.capture()
    with capturing(loop.config):
        pipeline.snapshot(loop.config, [f"{loop.db}.t"])
    loop.apply_all()
    loop.require_equal("t")
    loop.require_equal("pair", "2")
    replayed = pipeline.replay(loop.config, [f"{loop.db}.t", f"{loop.db}.pair"])
    assert [result.table for result in replayed] == [f"{loop.db}.t", f"{loop.db}.pair"]
    loop.require_equal("t")
    loop.require_equal("pair", "2")
    loop.sql("UPDATE t SET note = 'last' WHERE id < 700")
    loop.capture()
    loop.apply_all()
    loop.require_equal("t")


def test_a_table_waits_for_its_snapshot_and_the_others_go_on(
    tmp_path: Path, mysql9: Server, database: Database
) -> None:
    loop = Started(tmp_path, mysql9, database(mysql9))
    loop.sql("CREATE TABLE old (id INT PRIMARY KEY, v INT)", "INSERT INTO old VALUES (1, 1), (2, 2)")
    loop.capture()
    loop.sql("UPDATE old SET v = 7 WHERE id = 1", "CREATE TABLE new (id INT PRIMARY KEY)", "INSERT INTO new VALUES (1)")
    loop.capture()
    loop.apply_all()
    loop.require_equal("new")
    assert not loop.path("old").exists()
    (record,) = BatchService(loop.config).subscription().parked.values()
    assert record.due == "snapshot" and "has not been loaded yet" in record.reason
    assert due_tables(loop.config) == [f"{loop.db}.old"]
    with capturing(loop.config):
        (loaded,) = pipeline.snapshot(loop.config)
    assert (loaded.table, loaded.rows) == (f"{loop.db}.old", 2)
    loop.require_equal("old")


def test_without_capture_the_load_waits_and_says_so(
    tmp_path: Path, mysql9: Server, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cdc.lake.jobs import snapshot

    monkeypatch.setattr(snapshot, "STORE_WAIT_S", 0.5)
    loop = Started(tmp_path, mysql9, database(mysql9))
    loop.sql("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    loop.capture()
    loop.sql("INSERT INTO t VALUES (3)")
    with pytest.raises(StoreIncompleteError, match="Capture is not running: start `cdc capture shop`"):
        pipeline.snapshot(loop.config)
    assert due_tables(loop.config) == [f"{loop.db}.t"]
    loop.capture()
    (loaded,) = pipeline.snapshot(loop.config)  # the chunk that was read is used
    assert (loaded.rows, loaded.reread) == (3, 0)
    loop.require_equal("t")


@pytest.mark.long
def test_the_rows_of_a_snapshot_come_behind_the_changes_of_its_seq(
    tmp_path: Path, mysql9: Server, database: Database
) -> None:
    """A changelog has both with the same _seq and _row if the snapshot lies where the last change was."""
    loop = Started(tmp_path, mysql9, database(mysql9), overrides="DB.log: {mode: append}")
    loop.sql("CREATE TABLE log (id INT PRIMARY KEY, v VARCHAR(10))", "INSERT INTO log VALUES (1, 'a')")
    loop.capture()
    with capturing(loop.config):
        pipeline.snapshot(loop.config)
    loop.sql("UPDATE log SET v = 'b'")
    loop.capture()
    loop.apply_all()
    with capturing(loop.config):
        pipeline.snapshot(loop.config, [f"{loop.db}.log"])
    first, change, last = loop.delta("log", order="_seq, _op = 'snapshot', _row")
    assert [(row["_op"], row["v"]) for row in (first, change, last)] == [
        ("snapshot", "a"),
        ("update", "b"),
        ("snapshot", "b"),
    ]
    assert (change["_seq"], change["_row"]) == (last["_seq"], last["_row"])


@pytest.mark.long
def test_each_mode_begins_with_a_snapshot_and_takes_another_one(
    tmp_path: Path, mysql9: Server, database: Database
) -> None:
    modes = ("append", "soft_delete", "scd2")
    loop = Started(
        tmp_path, mysql9, database(mysql9), overrides=", ".join(f"DB.{mode}: {{mode: {mode}}}" for mode in modes)
    )
    for mode in modes:
        loop.sql(
            f"CREATE TABLE {mode} (id INT PRIMARY KEY, v VARCHAR(10))",
            f"INSERT INTO {mode} VALUES (1, 'a'), (2, 'b'), (3, 'c')",
        )
    loop.capture()
    with capturing(loop.config):
        pipeline.snapshot(loop.config)
    for mode in modes:
        loop.sql(f"UPDATE {mode} SET v = 'z' WHERE id = 1", f"DELETE FROM {mode} WHERE id = 2")
    loop.capture()
    loop.apply_all()

    def rows(mode: str, *names: str) -> list[tuple[object, ...]]:
        delta = loop.delta(mode, order="id, _seq")
        return [tuple(row[name] for name in names) for row in delta]

    assert rows("append", "_op", "id", "v") == [
        ("snapshot", 1, "a"),
        ("update", 1, "z"),
        ("snapshot", 2, "b"),
        ("delete", 2, "b"),
        ("snapshot", 3, "c"),
    ]
    assert rows("soft_delete", "id", "v", "_deleted") == [(1, "z", False), (2, "b", True), (3, "c", False)]
    assert rows("scd2", "id", "v", "_current") == [(1, "a", False), (1, "z", True), (2, "b", False), (3, "c", True)]

    # Rows that change without the binlog are found by another snapshot, and the history stays.
    with mysql9.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_log_bin = 0")
        for mode in modes:
            cursor.execute(f"UPDATE `{loop.db}`.`{mode}` SET v = 'new' WHERE id = 3")
            cursor.execute(f"DELETE FROM `{loop.db}`.`{mode}` WHERE id = 1")
        connection.commit()
    with capturing(loop.config):
        pipeline.snapshot(loop.config, [f"{loop.db}.{mode}" for mode in modes])
    assert rows("append", "_op", "id", "v")[-1] == ("snapshot", 3, "new")
    assert len(rows("append", "_op")) == 6
    assert rows("soft_delete", "id", "v", "_deleted") == [(1, "z", True), (2, "b", True), (3, "new", False)]
    assert rows("scd2", "id", "v", "_current") == [
        (1, "a", False),
        (1, "z", False),
        (2, "b", False),
        (3, "c", False),
        (3, "new", True),
    ]


@pytest.mark.long
def test_versions_are_corrected_at_the_position_of_their_last_change(
    tmp_path: Path, mysql9: Server, database: Database
) -> None:
    """Two snapshots at one position, with rows that changed between them without the binlog."""
    loop = Started(tmp_path, mysql9, database(mysql9), overrides="DB.t: {mode: scd2}")
    loop.sql("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)")
    loop.capture()
    with capturing(loop.config):
        pipeline.snapshot(loop.config)
    loop.sql("SET sql_log_bin = 0", "UPDATE t SET v = 10 WHERE id = 1", "DELETE FROM t WHERE id = 2")
    with capturing(loop.config):
        pipeline.snapshot(loop.config, [f"{loop.db}.t"])
    versions = [(row["id"], row["v"], row["_current"]) for row in loop.delta("t", order="id, _seq")]
    assert versions == [(1, 10, True), (2, 2, False), (3, 3, True)]


@pytest.mark.timeout(900)
@pytest.mark.long
def test_a_table_that_was_written_anew_is_replayed_without_a_snapshot(
    tmp_path: Path, mysql9: Server, database: Database
) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9))
    loop.sql(
        "CREATE TABLE t (id INT PRIMARY KEY, v INT)",
        "INSERT INTO t VALUES (1, 1)",
        "CREATE TABLE u LIKE t",
        "INSERT INTO u VALUES (5, 5)",
        "ALTER TABLE t MODIFY v VARCHAR(9)",
        "INSERT INTO t VALUES (2, 'b')",
        "RENAME TABLE u TO w",
    )
    loop.capture()
    loop.apply_all()
    for _ in range(2):
        pipeline.replay(loop.config, [f"{loop.db}.t"])
        loop.require_equal("t")
    loop.require_equal("w")
    with pytest.raises(CutOffError, match=r"took over rows of another table.*cdc snapshot"):
        pipeline.replay(loop.config, [f"{loop.db}.w"])


@pytest.mark.long
def test_a_snapshot_overtakes_schema_changes_and_the_history_stays(
    tmp_path: Path, mysql9: Server, database: Database
) -> None:
    modes = ("append", "soft_delete", "scd2")
    overrides = ", ".join(f"DB.{mode}: {{mode: {mode}}}" for mode in modes)
    loop = Started(tmp_path, mysql9, database(mysql9), overrides=overrides)
    loop.capture()
    for mode in modes:
        loop.sql(
            f"CREATE TABLE {mode} (id INT PRIMARY KEY, v VARCHAR(10), at DATETIME(3), gone INT)",
            f"INSERT INTO {mode} VALUES (1, '10', '2024-05-01 10:00:00.125', 1), (2, 'x', NULL, 2)",
            f"DELETE FROM {mode} WHERE id = 2",
        )
    loop.capture()
    loop.apply_all()
    for mode in modes:
        loop.sql(
            f"ALTER TABLE {mode} RENAME COLUMN at TO moment, ADD COLUMN more INT DEFAULT 7 AFTER id",
            f"ALTER TABLE {mode} DROP COLUMN gone, MODIFY v INT",  # only the server knows what texts become
            f"INSERT INTO {mode} VALUES (3, 8, 30, NULL)",
        )
    loop.capture()
    with capturing(loop.config):
        pipeline.snapshot(loop.config, [f"{loop.db}.{mode}" for mode in modes])
    assert not BatchService(loop.config).subscription().parked
    for mode in modes:
        loop.sql(f"UPDATE {mode} SET v = v + 1")
    loop.capture()
    loop.apply_all()

    def rows(mode: str, *names: str) -> list[tuple[object, ...]]:
        return [tuple(row[name] for name in names) for row in loop.delta(mode, order="id, _seq")]

    moment = datetime(2024, 5, 1, 10, 0, 0, 125000, tzinfo=UTC).replace(tzinfo=None)
    assert rows("append", "_op", "id", "more", "v", "moment") == [
        ("insert", 1, None, "10", moment),
        ("snapshot", 1, 7, "10", moment),
        ("update", 1, 7, "11", moment),
        ("insert", 2, None, "x", None),
        ("delete", 2, None, "x", None),
        ("snapshot", 3, 8, "30", None),
        ("update", 3, 8, "31", None),
    ]
    # No integer was in the text of the deleted row.
    deleted = (2, None, None, None)
    assert rows("soft_delete", "id", "more", "v", "moment", "_deleted") == [
        (1, 7, 11, moment, False),
        (*deleted, True),
        (3, 8, 31, None, False),
    ]
    versions = rows("scd2", "id", "more", "v", "moment", "_current")
    assert [row for row in versions if row[-1]] == [(1, 7, 11, moment, True), (3, 8, 31, None, True)]
    assert (*deleted, False) in versions and (1, None, 10, moment, False) in versions
    for mode in modes:
        own = [name for name in loop.delta(mode)[0] if not name.startswith("_")]
        assert own == list(loop.select(mode)[0])


class Killed(BaseException):
    """Stands for kill -9."""


@pytest.mark.parametrize(
    ("moment", "mode"),
    [
        ("mark_loaded", "append"),
        ("unpark", "upsert"),
        pytest.param("mark_loaded", "upsert", marks=pytest.mark.long),
        pytest.param("unpark", "append", marks=pytest.mark.long),
    ],
)
def test_a_load_that_is_killed_after_its_commit_is_neither_repeated_nor_read_again(
    mode: str, moment: str, tmp_path: Path, mysql9: Server, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Started(tmp_path, mysql9, database(mysql9), overrides=f"DB.t: {{mode: {mode}}}")
    table = f"{loop.db}.t"
    # An existing table takes the rows of a second snapshot beside those that it has.
    loop.sql("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)")
    loop.capture()
    with capturing(loop.config):
        pipeline.snapshot(loop.config)
    loop.sql("UPDATE t SET v = 7 WHERE id = 1")
    loop.capture()

    def kill(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched, capturing(loop.config):
        patched.setattr(SnapshotFiles if moment == "mark_loaded" else Job, moment, kill)
        with pytest.raises(Killed):
            pipeline.snapshot(loop.config, [table])
    version = loop.version("t")
    loop.sql("UPDATE t SET v = 8 WHERE id = 2")
    loop.capture()
    with monkeypatch.context() as patched:
        patched.setattr(snapshot_job, "load_snapshot", kill)
        patched.setattr("cdc.source.snapshot.reader.SegmentReader.read_chunk", kill)
        with capturing(loop.config):
            (loaded,) = pipeline.snapshot(loop.config, [table])
    assert (loaded.rows, loaded.changes) == (3, 0)
    assert BatchService(loop.config).subscription().parked == {}
    loop.apply_all()
    assert loop.version("t") == version + 1
    if mode == "upsert":
        loop.require_equal("t")
        return
    rows = [(row["_op"], row["id"], row["v"]) for row in loop.delta("t", order="_seq, id")]
    first = [("snapshot", 1, 1), ("snapshot", 2, 2), ("snapshot", 3, 3)]
    reloaded = [("snapshot", 1, 7), ("snapshot", 2, 2), ("snapshot", 3, 3)]
    assert rows == [*first, *reloaded, ("update", 2, 8)]


def test_a_killed_snapshot_keeps_what_its_chunks_need_and_begins_anew_without_it(
    tmp_path: Path, mysql9: Server, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Started(tmp_path, mysql9, database(mysql9))
    text = loop.config.file.read_text(encoding="utf-8")
    loop.config.file.write_text(text.replace("store: {", "store: {segment_bytes: 65536, "), encoding="utf-8")
    loop.config = load_config(loop.config.file)
    loop.sql(
        "CREATE TABLE t (id INT PRIMARY KEY, v INT)",
        "CREATE TABLE u (id INT PRIMARY KEY, v MEDIUMTEXT)",
        f"INSERT INTO t VALUES {', '.join(f'({i}, {i})' for i in range(200))}",
    )
    loop.capture()
    name = f"{loop.db}.t"

    def kill(*_: object, **__: object) -> None:
        raise Killed

    def interrupted() -> int:
        """Kills a snapshot before its load, and returns what retention keeps for the table."""
        with monkeypatch.context() as patched, capturing(loop.config):
            patched.setattr("cdc.lake.jobs.snapshot._load", kill)
            with pytest.raises(Killed):
                pipeline.snapshot(loop.config, [name])
        kept = BatchService(loop.config).subscription().parked[name].keep_seq
        assert kept is not None
        return kept

    kept = interrupted()
    for number in range(4):
        loop.sql(f"INSERT INTO u VALUES ({number}, REPEAT('x', 70000))", f"UPDATE t SET v = -1 WHERE id = {number}")
    loop.capture()
    assert interrupted() == kept

    # Somebody has removed it nevertheless: the chunks are read again.
    with monkeypatch.context() as patched, capturing(loop.config):
        original, calls = SnapshotFiles.low_seq, []

        def low_seq(files: SnapshotFiles, reader: object, *, is_complete: bool = False) -> int:
            calls.append(files.id)
            if len(calls) == 1:
                raise IdentityError("the store begins behind the snapshot's first position")
            return original(files, reader, is_complete=is_complete)  # type: ignore[arg-type]

        patched.setattr(SnapshotFiles, "low_seq", low_seq)
        (loaded,) = pipeline.snapshot(loop.config, [name])
    assert loaded.reread == 1 and len(set(calls)) == 2
    loop.apply_all()
    loop.require_equal("t")


def test_a_table_that_waits_for_a_snapshot_and_is_dropped_does_not_stop_the_others(
    tmp_path: Path, mysql9: Server, database: Database
) -> None:
    loop = Started(tmp_path, mysql9, database(mysql9))
    loop.sql(
        "CREATE TABLE old (id INT PRIMARY KEY, v INT)",
        "CREATE TABLE kept (id INT PRIMARY KEY)",
        "INSERT INTO old VALUES (1, 1)",
        "INSERT INTO kept VALUES (1)",
    )
    loop.capture()
    loop.sql("UPDATE old SET v = 2")
    loop.capture()
    loop.apply_all()
    assert list(BatchService(loop.config).subscription().parked) == [f"{loop.db}.old"]
    # An account that may not see the table any more does not know whether it was dropped.
    mysql9.execute(
        "DROP USER IF EXISTS shortsighted@'%'",
        "CREATE USER shortsighted@'%' IDENTIFIED BY 'pw'",
        "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO shortsighted@'%'",
        f"GRANT SELECT ON {loop.db}.kept TO shortsighted@'%'",
    )
    usual = loop.config
    file = usual.file
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("mysql://t@", "mysql://shortsighted@"), encoding="utf-8")
    loop.config = load_config(file)
    loop.sql("CREATE TABLE new (id INT PRIMARY KEY)")  # capture looks at all tables
    loop.capture()
    loop.apply_all()
    with capturing(loop.config), pytest.raises(SourceRefusedError, match="nobody knows whether it was dropped"):
        pipeline.snapshot(loop.config)
    loop.require_equal("kept")
    assert list(BatchService(loop.config).subscription().parked) == [f"{loop.db}.old"]
    file.write_text(text, encoding="utf-8")
    loop.config = usual
    loop.sql("DROP TABLE old")
    loop.capture()
    loop.apply_all()
    with capturing(loop.config):
        assert pipeline.snapshot(loop.config) == []
    assert BatchService(loop.config).subscription().parked == {}
    loop.require_equal("kept")
