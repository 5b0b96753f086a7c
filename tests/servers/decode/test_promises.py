"""Promises of the decoder beyond the values themselves, which ``test_type_matrix`` compares, on servers' binlogs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc.base.errors import SourceRefusedError
from cdc.decode import DecodeOptions, DecodeStats, read
from cdc.testing.servers import Server
from tests.support.binlog_files import new_binlog_file

SERVERS = ("mysql9", "mariadb10", "mariadb11")
INVALID_DATES = "SET sql_mode = 'ALLOW_INVALID_DATES'"


def finished(server: Server, path: Path) -> Path:
    """Makes the server close a binlog file."""
    server.execute("FLUSH BINARY LOGS")
    return path


def decoded(batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("kind", SERVERS)
def test_zero_dates_are_counted(kind: str, request: pytest.FixtureRequest, database: Callable[[Server], str]) -> None:
    server: Server = request.getfixturevalue(kind)
    db = database(server)
    path = new_binlog_file(server)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(INVALID_DATES)
        cursor.execute(f"CREATE TABLE `{db}`.t (id INT PRIMARY KEY, d DATE NOT NULL, e DATETIME NOT NULL)")
        cursor.execute(f"INSERT INTO `{db}`.t VALUES (1, '0000-00-00', '2024-01-01'), (2, '2023-02-31', '0000-00-00')")
    path = finished(server, path)
    stats = DecodeStats()
    rows = decoded(list(read(path, table=f"{db}.t", stats=stats)))
    assert [r["d"] for r in rows] == [None, None]
    assert stats.null_dates == {"d": 2, "e": 1}
    assert (stats.rows, stats.events) == (2, 1)


@pytest.mark.parametrize("kind", SERVERS)
def test_changed_keys_and_meta_columns(
    kind: str, request: pytest.FixtureRequest, database: Callable[[Server], str]
) -> None:
    server: Server = request.getfixturevalue(kind)
    db = database(server)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE `{db}`.t (a INT, b VARCHAR(20), c INT, PRIMARY KEY (b, a))")
        cursor.execute(f"CREATE TABLE `{db}`.other (id INT PRIMARY KEY)")
        path = new_binlog_file(server)
        cursor.execute("BEGIN")
        cursor.execute(f"INSERT INTO `{db}`.other VALUES (1)")
        cursor.execute(f"INSERT INTO `{db}`.t VALUES (1, 'x', 10), (2, 'y', 20)")
        cursor.execute(f"UPDATE `{db}`.t SET c = c + 1 ORDER BY a")
        cursor.execute("COMMIT")
        cursor.execute(f"UPDATE `{db}`.t SET b = 'z' WHERE a = 2")
    path = finished(server, path)
    rows = decoded(list(read(path, table=f"{db}.t")))
    changes = [(r["_op"], r["_row"] >> 32, r["_row"] & 0xFFFFFFFF, r["a"], r["b"], r["c"]) for r in rows]
    assert changes == [
        (1, 0, 0, 1, "x", 10),
        (1, 0, 1, 2, "y", 20),
        (2, 1, 0, 1, "x", 11),
        (2, 1, 1, 2, "y", 21),
        (0, 0, 0, 2, "y", 21),
        (2, 0, 0, 2, "z", 21),
    ]
    assert len({r["_seq"] for r in rows}) == 2
    assert [r["_seq"] for r in rows] == sorted(r["_seq"] for r in rows)
    assert rows[4]["_gtid"] != rows[0]["_gtid"]
    assert abs((rows[0]["_commit_time"] - datetime.now(UTC)).total_seconds()) < 60
    both_images = decoded(list(read(path, table=f"{db}.t", options=DecodeOptions(images="both"))))
    assert [(r["_op"], r["a"], r["_before"] and r["_before"]["b"]) for r in both_images[-1:]] == [(2, 2, "y")]
    assert len(both_images) == 5


@pytest.mark.parametrize("kind", SERVERS)
def test_generated_columns_are_there_or_can_be_left_out(
    kind: str, request: pytest.FixtureRequest, database: Callable[[Server], str]
) -> None:
    """MariaDB 11.8.9 leaves generated columns out of updates, with ``binlog_row_image=FULL``; 10.11.14 and MySQL do
    not."""
    server: Server = request.getfixturevalue(kind)
    db = database(server)
    path = new_binlog_file(server)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE `{db}`.t (id INT PRIMARY KEY, v INT, g INT AS (v + 1) STORED, w INT AS (v + 2))")
        cursor.execute(f"INSERT INTO `{db}`.t (id, v) VALUES (1, 1)")
        cursor.execute(f"UPDATE `{db}`.t SET v = 5")
        cursor.execute(f"UPDATE `{db}`.t SET id = 2, v = NULL")
        cursor.execute("SELECT VERSION()")
        version = cursor.fetchall()[0][0]
    path = finished(server, path)
    rows = decoded(list(read(path, table=f"{db}.t", options=DecodeOptions(columns=["id", "v"]))))
    assert [(r["_op"], r["id"], r["v"]) for r in rows] == [(1, 1, 1), (2, 1, 5), (0, 1, 5), (2, 2, None)]
    if "11.8.9-MariaDB" in version:
        with pytest.raises(SourceRefusedError, match=r"lack the column g, .* leaves generated columns out"):
            list(read(path, table=f"{db}.t"))
        return
    rows = decoded(list(read(path, table=f"{db}.t")))
    assert [(r["v"], r["g"], r["w"]) for r in rows] == [(1, 2, 3), (5, 6, 7), (5, 6, 7), (None, None, None)]


@pytest.mark.parametrize("kind", SERVERS)
def test_part_images_are_refused(kind: str, request: pytest.FixtureRequest, database: Callable[[Server], str]) -> None:
    server: Server = request.getfixturevalue(kind)
    db = database(server)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE `{db}`.t (id INT PRIMARY KEY, v INT)")
        cursor.execute(f"INSERT INTO `{db}`.t VALUES (1, 1)")
        path = new_binlog_file(server)
        cursor.execute("SET binlog_row_image = 'MINIMAL'")
        cursor.execute(f"UPDATE `{db}`.t SET v = 2")
    path = finished(server, path)
    for columns in (None, ["v"], ["id"]):
        with pytest.raises(SourceRefusedError, match="binlog_row_image=FULL") as raised:
            list(read(path, table=f"{db}.t", options=DecodeOptions(columns=columns)))
    assert f"{db}.t" in str(raised.value)


@pytest.mark.parametrize("kind", SERVERS)
def test_texts_beside_geometries(kind: str, request: pytest.FixtureRequest, database: Callable[[Server], str]) -> None:
    """A table map lists the character sets of texts; whether GEOMETRY counts among them depends on the server."""
    server: Server = request.getfixturevalue(kind)
    db = database(server)
    path = new_binlog_file(server)
    texts = {"a": "utf8mb4", "b": "latin1", "c": "utf8mb4", "d": "utf16", "e": "utf8mb4", "f": "cp1251"}
    columns = [f"{name} VARCHAR(9) CHARACTER SET {charset}" for name, charset in texts.items()]
    server.execute(
        f"CREATE TABLE `{db}`.t (id INT PRIMARY KEY, {columns[0]}, g GEOMETRY, {columns[1]}, h POINT, "
        f"{', '.join(columns[2:])})",
        f"INSERT INTO `{db}`.t VALUES (1, 'é', NULL, 'é', NULL, 'é', 'é', 'é', 'ж')",
    )
    [row] = decoded(list(read(finished(server, path), table=f"{db}.t")))
    assert [row[name] for name in texts] == ["é", "é", "é", "é", "é", "ж"]


@pytest.mark.parametrize("kind", SERVERS)
def test_signs_beside_years(kind: str, request: pytest.FixtureRequest, database: Callable[[Server], str]) -> None:
    """A table map lists the signs of numbers; whether YEAR counts among them depends on the server."""
    server: Server = request.getfixturevalue(kind)
    db = database(server)
    path = new_binlog_file(server)
    columns = {
        "a": "INT",
        "y": "YEAR",
        "b": "INT UNSIGNED",
        "c": "INT",
        "z": "YEAR",
        "d": "BIGINT UNSIGNED",
        "e": "INT",
    }
    numbers = {"a": -1, "y": 2024, "b": 4_000_000_000, "c": -2, "z": 1999, "d": 2**64 - 1, "e": -3}
    server.execute(
        f"CREATE TABLE `{db}`.t ({', '.join(f'{name} {sql}' for name, sql in columns.items())})",
        f"INSERT INTO `{db}`.t VALUES ({', '.join(map(str, numbers.values()))})",
    )
    [row] = decoded(list(read(finished(server, path), table=f"{db}.t")))
    assert {name: row[name] for name in numbers} == numbers
