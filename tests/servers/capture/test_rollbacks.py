"""Changes in the binlog that the server took back: rows behind a savepoint, statements that failed after they began,
and MEMORY tables after a restart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pymysql
import pytest

from cdc.base.errors import UnsupportedEventError
from cdc.capture import Capture
from cdc.config import DestinationConfig
from cdc.decode.reader import read
from cdc.store.formats.index import IndexFile
from cdc.store.formats.layout import list_segments
from cdc.testing.servers import Server
from tests.servers.capture.test_capture import configure

Database = Callable[[Server], str]
LARGE = 400
"""Rows of 64 KiB: more than what capture holds back of an open transaction."""


@pytest.fixture(params=["mariadb11", pytest.param("mariadb10", marks=pytest.mark.long)])
def mariadb(request: pytest.FixtureRequest) -> Server:
    server: Server = request.getfixturevalue(request.param)
    return server


def begin(folder: Path, server: Server, database: Database, *tables: str, store: str = "") -> DestinationConfig:
    """Captures from behind the creation of these tables on."""
    db = database(server)
    run(server, db, *tables)
    config = configure(folder, server, db, store=store)
    Capture(config).run(until_current=True)
    return config


def run(server: Server, db: str, *statements: str) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"USE `{db}`")
        for statement in statements:
            cursor.execute(statement)


def name_of(config: DestinationConfig) -> str:
    return config.tables.include[0].partition("\\")[0]


def captured(config: DestinationConfig, table: str) -> list[int]:
    Capture(config).run(until_current=True)
    batches = read(config.store.path, table=f"{name_of(config)}.{table}")
    return [number for batch in batches for number in batch.column("id").to_pylist()]


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_large_part_of_a_transaction_is_taken_back(
    mariadb: Server, database: Database, tmp_path: Path, encrypted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOWPATH_TEST_KEY", "00" * 32)
    store = ", encryption: {key_env: TOWPATH_TEST_KEY}" if encrypted else ""
    config = begin(tmp_path, mariadb, database, "CREATE TABLE t (id INT PRIMARY KEY, v LONGTEXT)", store=store)
    large = [f"INSERT INTO t VALUES ({{}} + {n}, REPEAT('x', 65536))" for n in range(LARGE)]
    run(
        mariadb,
        name_of(config),
        "BEGIN",
        "INSERT INTO t VALUES (1, 'first')",
        "SAVEPOINT a",
        *[statement.format(1000) for statement in large],
        "CREATE TEMPORARY TABLE x (id INT)",
        "ROLLBACK TO SAVEPOINT a",
        "INSERT INTO t VALUES (2, 'second')",
        "COMMIT",
    )
    assert captured(config, "t") == [1, 2]
    run(mariadb, name_of(config), "BEGIN", *[statement.format(3000) for statement in large],
        "CREATE TEMPORARY TABLE x (id INT)", "ROLLBACK", "INSERT INTO t VALUES (3, 'third')")  # fmt: skip
    assert captured(config, "t") == [1, 2, 3], "capture proves the source by the transaction before, and goes on"
    run(mariadb, name_of(config), "BEGIN", "SAVEPOINT a", *[statement.format(5000) for statement in large],
        "CREATE TEMPORARY TABLE x (id INT)", "ROLLBACK TO a", "COMMIT", "INSERT INTO t VALUES (4, 'fourth')")  # fmt: skip
    assert captured(config, "t") == [1, 2, 3, 4]
    size = sum(path.stat().st_size for path in list_segments(config.store.path))
    assert size < 1 << 20, "nothing of what was taken back is in the store"
    rows = sum(int(IndexFile(path).entries["row_events"].sum()) for path in list_segments(config.store.path))
    assert rows == 4


def test_rows_of_other_engines_stay(mariadb: Server, database: Database, tmp_path: Path) -> None:
    config = begin(
        tmp_path,
        mariadb,
        database,
        "CREATE TABLE t (id INT PRIMARY KEY) ENGINE = InnoDB",
        "CREATE TABLE loose (id INT PRIMARY KEY) ENGINE = MyISAM",
    )
    run(
        mariadb,
        name_of(config),
        "INSERT INTO loose VALUES (1)",
        "INSERT INTO t VALUES (1)",
        "BEGIN",
        "SAVEPOINT a",
        "UPDATE t, loose SET t.id = t.id + 10, loose.id = loose.id + 10",
        "CREATE TEMPORARY TABLE x (id INT)",
        "ROLLBACK TO SAVEPOINT a",
        "COMMIT",
    )
    assert captured(config, "loose") == [1, 1, 11], "an insert, and the update's two images"
    assert captured(config, "t") == [1]


def test_a_failed_alter_is_not_followed(mariadb: Server, database: Database, tmp_path: Path) -> None:
    config = begin(
        tmp_path, mariadb, database, "CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1), (2, 1)"
    )
    with pytest.raises(pymysql.err.IntegrityError):
        run(mariadb, name_of(config), "SET SESSION binlog_alter_two_phase = 1", "ALTER TABLE t ADD UNIQUE (v)")
    run(mariadb, name_of(config), "INSERT INTO t VALUES (3, 1)", "SET SESSION binlog_alter_two_phase = 1",
        "ALTER TABLE t CHANGE v w INT")  # fmt: skip
    assert captured(config, "t") == [3]
    statements = [
        entry for path in list_segments(config.store.path) for entry in IndexFile(path).entries if entry["flags"] & 1
    ]
    assert len(statements) == 1


@pytest.mark.parametrize("kind", ["mysql56", pytest.param("mysql57", marks=pytest.mark.long), "mysql9", "mariadb11"])
def test_a_memory_table_is_empty_after_a_restart(kind: str, tmp_path: Path) -> None:
    """MySQL before 8.0 writes DELETE as text. A DELETE of a user is refused, since triggers may act on other tables."""
    with Server(kind, folder=tmp_path / "server") as server:
        server.execute("CREATE DATABASE e1", "CREATE TABLE e1.`me m` (id INT) ENGINE = MEMORY",
                       "CREATE TABLE e1.kept (id INT) ENGINE = MyISAM")  # fmt: skip
        config = configure(tmp_path, server, "e1")
        Capture(config).run(until_current=True)
        run(server, "e1", "INSERT INTO `me m` VALUES (1)", "COMMIT")
        server.halt()
        server.restart()
        run(server, "e1", "SELECT * FROM `me m`", "INSERT INTO `me m` VALUES (2)", "COMMIT")
        Capture(config).run(until_current=True)
        flags = [int(f) for path in list_segments(config.store.path) for f in IndexFile(path).entries["flags"]]
        assert sum(flag & 1 for flag in flags) == 1
        run(server, "e1", "SET binlog_format = STATEMENT", "DELETE FROM `e1`.`kept`", "COMMIT")
        with pytest.raises(UnsupportedEventError, match=r"changes e1.kept, and the binlog has its text"):
            Capture(config).run(until_current=True)
