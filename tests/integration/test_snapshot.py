"""Snapshots into Delta: tables that were there before capture are filled beside the stream, and equal SELECT."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cdc import pipeline
from cdc.batches.service import BatchService
from cdc.capture import Capture
from cdc.config import load
from cdc.errors import StoreIncompleteError, UsageError
from cdc.table_jobs.snapshot import due_tables
from cdc.testing.servers import Server
from tests.support.apply import Loop

Database = Callable[[Server], str]


class Started(Loop):
    """A destination with ``start: snapshot``."""

    def __init__(self, folder: Path, server: Server, db: str, **settings: str) -> None:
        super().__init__(folder, server, db, **settings)
        file = self.config.file
        text = file.read_text(encoding="utf-8")
        begin = text.index("start: {file")
        end = text.index("}", begin) + 1
        file.write_text(
            text[:begin] + "start: snapshot" + text[end:] + "snapshot: {chunk_rows: 50}\n", encoding="utf-8"
        )
        self.config = load(file)

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Runs capture while the block lasts."""
        stop = threading.Event()
        thread = threading.Thread(target=lambda: Capture(self.config).run(stop), name="capture")
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(60)


@pytest.mark.parametrize("kind", ["mysql9", "mariadb11"])
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

    with loop.capturing():
        writer = threading.Thread(target=write)
        writer.start()
        try:
            found = pipeline.snapshot(loop.config)
        finally:
            stop.set()
            writer.join()
    assert [one.table for one in found] == [f"{loop.db}.{name}" for name in ("empty_one", "pair", "t")]
    assert found[2].chunks > 10
    assert due_tables(loop.config) == []
    assert BatchService(loop.config).subscription().parked == {}
    loop.capture()
    loop.apply_all()
    for table in ("t", "pair", "empty_one"):
        loop.require_equal(table, "2" if table == "pair" else "1")

    # The same tables again, from the source and from the store.
    loop.sql("UPDATE t SET note = 'later' WHERE id < 500", "DELETE FROM pair WHERE b = 1")
    loop.capture()
    with loop.capturing():
        pipeline.snapshot(loop.config, [f"{loop.db}.t"])
    loop.apply_all()
    loop.require_equal("t")
    loop.require_equal("pair", "2")
    replayed = pipeline.replay(loop.config, [f"{loop.db}.t", f"{loop.db}.pair"])
    assert [one.table for one in replayed] == [f"{loop.db}.t", f"{loop.db}.pair"]
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
    with loop.capturing():
        (found,) = pipeline.snapshot(loop.config)
    assert (found.table, found.rows) == (f"{loop.db}.old", 2)
    loop.require_equal("old")


def test_without_capture_the_load_waits_and_says_so(
    tmp_path: Path, mysql9: Server, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cdc.table_jobs import snapshot

    monkeypatch.setattr(snapshot, "STORE_WAIT_S", 0.5)
    loop = Started(tmp_path, mysql9, database(mysql9))
    loop.sql("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    loop.capture()
    loop.sql("INSERT INTO t VALUES (3)")
    with pytest.raises(StoreIncompleteError, match="Capture is not running: start `cdc capture shop`"):
        pipeline.snapshot(loop.config)
    assert due_tables(loop.config) == [f"{loop.db}.t"]
    loop.capture()
    (found,) = pipeline.snapshot(loop.config)  # the chunk that was read is used
    assert (found.rows, found.reread) == (3, 0)
    loop.require_equal("t")


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
    with loop.capturing():
        pipeline.snapshot(loop.config)
    for mode in modes:
        loop.sql(f"UPDATE {mode} SET v = 'z' WHERE id = 1", f"DELETE FROM {mode} WHERE id = 2")
    loop.capture()
    loop.apply_all()

    def rows(mode: str, *names: str) -> list[tuple[object, ...]]:
        found = loop.delta(mode, order="id, _seq")
        return [tuple(row[name] for name in names) for row in found]

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
    with loop.capturing():
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
