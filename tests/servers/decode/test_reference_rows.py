"""The slow decoder where the random tables do not lead: partial JSON updates, images that leave columns out, and every
byte of every character set."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from cdc.testing.servers import Server
from tests.support.binlog_files import new_binlog_file
from tests.support.rows import ABSENT, RowChange, charsets, decode_rows

_DOCUMENT = '{"a": 1, "b": [1, "x", {"c": null}], "a b": {"quote\\"": 2.5}, "long": "%s"}'
_PATHS = ("$.a", "$.b[0]", "$.b[1]", "$.b[2].c", '$."a b"."quote\\\\""', "$.b[5]", "$.new", '$."a b".inner', "$.long")
_VALUES = (
    "7",
    "70000",
    "'text'",
    "NULL",
    "CAST('[1, 2]' AS JSON)",
    "JSON_OBJECT('k', 1.5)",
    "CAST('12:34:56' AS TIME)",
)


def test_partial_updates_give_what_select_shows(mysql9: Server, database: Callable[[Server], str]) -> None:
    rng = random.Random(1)
    db = database(mysql9)
    path = new_binlog_file(mysql9)
    shown: list[dict[str, Any]] = []
    with mysql9.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET binlog_row_value_options = 'PARTIAL_JSON'")
        cursor.execute(f"CREATE TABLE `{db}`.t (id INT PRIMARY KEY, j JSON, n INT, k JSON)")
        document = _DOCUMENT % ("x" * 300)
        cursor.execute(f"INSERT INTO `{db}`.t VALUES (1, %s, 0, %s)", (document, document))
        for number in range(200):
            sets = []
            for column in rng.choice((("j",), ("k",), ("j", "k"))):
                first, second = rng.sample(_PATHS, 2)
                sets.append(
                    rng.choice(
                        (
                            f"{column} = JSON_SET({column}, '{first}', {rng.choice(_VALUES)}, '{second}', {rng.choice(_VALUES)})",
                            f"{column} = JSON_REPLACE({column}, '{first}', {rng.choice(_VALUES)})",
                            f"{column} = JSON_REMOVE({column}, '{first}')",
                        )
                    )
                )
            cursor.execute(f"UPDATE `{db}`.t SET n = {number + 1}, {', '.join(sets)}")
            cursor.execute(f"SELECT id, j, n, k FROM `{db}`.t")
            (row,) = cursor.fetchall()
            shown.append(dict(zip(("id", "j", "n", "k"), row, strict=True)))
        cursor.execute("FLUSH BINARY LOGS")
    data = path.read_bytes()
    changes = decode_rows(path, f"{db}.t")
    assert [change.after for change in changes[1:]] == shown
    assert [change.before for change in changes[2:]] == shown[:-1]
    assert _events(data).count(39) > 100


def _events(data: bytes) -> list[int]:
    """Types of all events of a file."""
    at, kinds = 4, []
    while at < len(data):
        kinds.append(data[at + 4])
        at += int.from_bytes(data[at + 9 : at + 13], "little")
    return kinds


@pytest.mark.parametrize("kind", ["mysql9", "mariadb10", "mariadb11"])
def test_absent_columns_are_marked(
    kind: str, request: pytest.FixtureRequest, database: Callable[[Server], str]
) -> None:
    server: Server = request.getfixturevalue(kind)
    db = database(server)
    path = new_binlog_file(server)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE `{db}`.t (id INT PRIMARY KEY, v INT, b TEXT)")
        cursor.execute(f"INSERT INTO `{db}`.t VALUES (1, 2, 'three')")
        cursor.execute("SET binlog_row_image = 'MINIMAL'")
        cursor.execute(f"UPDATE `{db}`.t SET v = NULL")
        cursor.execute("SET binlog_row_image = 'NOBLOB'")
        cursor.execute(f"UPDATE `{db}`.t SET v = 4")
        cursor.execute("SET binlog_row_image = 'MINIMAL'")
        cursor.execute(f"DELETE FROM `{db}`.t")
        cursor.execute("FLUSH BINARY LOGS")
    assert decode_rows(path, f"{db}.t") == [
        RowChange("insert", None, {"id": 1, "v": 2, "b": "three"}),
        RowChange("update", {"id": 1, "v": ABSENT, "b": ABSENT}, {"id": ABSENT, "v": None, "b": ABSENT}),
        RowChange("update", {"id": 1, "v": None, "b": ABSENT}, {"id": 1, "v": 4, "b": ABSENT}),
        RowChange("delete", {"id": 1, "v": ABSENT, "b": ABSENT}, None),
    ]


@pytest.mark.parametrize("kind", ["mysql9", "mysql56", "mariadb10", "mariadb11"])
def test_every_byte_means_what_the_server_says(kind: str, request: pytest.FixtureRequest) -> None:
    server: Server = request.getfixturevalue(kind)
    wrong = []
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT CHARACTER_SET_NAME FROM information_schema.CHARACTER_SETS "
            "WHERE MAXLEN = 1 AND CHARACTER_SET_NAME NOT IN ('binary', 'ascii')"
        )
        names = [str(name) for (name,) in cursor.fetchall()]
        for name in names:
            cursor.execute("SELECT " + ", ".join(f"HEX(CONVERT(_{name} 0x{n:02x} USING utf8mb4))" for n in range(256)))
            (row,) = cursor.fetchall()
            said = [bytes.fromhex(value).decode() for value in row]
            mine = [charsets.text(bytes([n]), name) for n in range(256)]
            wrong += [(name, n, a, b) for n, (a, b) in enumerate(zip(said, mine, strict=True)) if a != b]
    assert len(names) > 20
    assert not wrong
