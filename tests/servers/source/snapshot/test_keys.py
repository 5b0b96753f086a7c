"""Tables are read in chunks by keys of every kind; the server alone compares them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdc.capture import Capture
from cdc.config import DestinationConfig
from cdc.source import snapshot
from cdc.source.driver import close_now
from cdc.source.snapshot.keys import paging_key
from cdc.source.snapshot.session import definition, open_session
from cdc.testing.servers import Server
from tests.support.snapshot_load import rows_of
from tests.support.snapshots import identity, select, write_config

SERVERS = ("mysql9", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("mariadb11", "mariadb10", "mysql56")))
ROWS = 400
_LETTERS = "abcABCäÄßéEe zZ'\\%_\"`0aA-"


def _text(dice: random.Random, letters: str = _LETTERS) -> str:
    return "".join(dice.choice(letters) for _ in range(dice.randrange(1, 12)))


KEYS: dict[str, tuple[str, str, Callable[[random.Random], tuple[Any, ...]]]] = {
    "negative": ("a BIGINT", "a", lambda d: (d.randrange(-(2**63), 2**63),)),
    "skewed": ("a BIGINT UNSIGNED", "a", lambda d: (d.choice((d.randrange(1000), 2**64 - 1 - d.randrange(9))),)),
    "composite": (
        "a INT, b VARCHAR(20) COLLATE utf8mb4_general_ci, c DATE",
        "b, a, c",
        lambda d: (d.randrange(-3, 3), _text(d), f"20{d.randrange(10, 30)}-0{d.randrange(1, 9)}-11"),
    ),
    "tenant": ("a SMALLINT, b BIGINT", "a, b", lambda d: (d.randrange(3), d.randrange(1 << 40))),
    "insensitive": ("a VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci", "a", lambda d: (_text(d),)),
    "binary text": ("a VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", "a", lambda d: (_text(d),)),
    "latin1": ("a CHAR(12) CHARACTER SET latin1 COLLATE latin1_german1_ci", "a", lambda d: (_text(d),)),
    "utf16": ("a VARCHAR(12) CHARACTER SET utf16", "a", lambda d: (_text(d, "abcäö€水"),)),
    "sjis": ("a VARCHAR(12) CHARACTER SET sjis", "a", lambda d: (_text(d, "abc水木ソ"),)),
    "bytes": ("a VARBINARY(12)", "a", lambda d: (d.randbytes(d.randrange(0, 6)),)),
    "padded": ("a BINARY(4)", "a", lambda d: (d.randbytes(4),)),
    "decimal": ("a DECIMAL(20,6)", "a", lambda d: (f"{d.randrange(-(10**9), 10**9)}.{d.randrange(10**6):06}",)),
    "moment": (
        "a DATETIME(6)",
        "a",
        lambda d: (f"{d.randrange(1000, 9999)}-12-{d.randrange(10, 28)} 23:59:59.{d.randrange(10**6):06}",),
    ),
    "instant": (
        "a TIMESTAMP(3) NULL",
        "a",
        lambda d: (f"2020-01-{d.randrange(10, 28)} 10:11:12.{d.randrange(1000):03}",),
    ),
    "time": ("a TIME(2)", "a", lambda d: (f"{d.choice(('', '-'))}{d.randrange(10, 838)}:01:02.{d.randrange(100):02}",)),
    "enum": ("a ENUM('z','y','x'), b INT", "a, b", lambda d: (d.choice("xyz"), d.randrange(10**6))),
    "float": ("a DOUBLE", "a", lambda d: (d.random() * 10 ** d.randrange(-9, 9),)),
    "bit": ("a BIT(40)", "a", lambda d: (d.randrange(2**40).to_bytes(5, "big"),)),
}
ONE_PIECE = {"enum", "float", "bit"}
ADDRESSES: dict[str, tuple[str, str, Callable[[random.Random], tuple[Any, ...]]]] = {
    "uuid": ("a UUID", "a", lambda d: (f"{d.randrange(2**32):08x}-0000-4000-8000-{d.randrange(2**48):012x}",)),
    "inet6": ("a INET6", "a", lambda d: (f"2001:db8::{d.randrange(2**16):x}",)),
}


def _config(server: Server, folder: Path, database: str, **sections: Any) -> DestinationConfig:
    sections = {"apply": {"mode": "upsert"}, "snapshot": {"chunk_rows": 37, "parallel": 2}, **sections}
    return write_config(server, folder, f"{re.escape(database)}\\..*", **sections)


def _fill(server: Server, table: str, name: str, kind: tuple[str, str, Any], seed: int) -> None:
    columns, key, values = kind
    dice = random.Random(f"{seed}{name}")
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00', sql_mode = ''")
        if server.kind.name == "mysql56":
            cursor.execute("SET NAMES utf8mb4")
        types = ", ".join(
            f"{column} NOT NULL".replace("NULL NOT NULL", "NOT NULL")
            for column in re.split(r", (?=\w+ [A-Z])", columns)
        )
        cursor.execute(f"CREATE TABLE {table} ({types}, v INT, PRIMARY KEY ({key})) ENGINE=InnoDB CHARSET utf8mb4")
        cursor.execute("BEGIN")
        for number in range(ROWS):
            row = values(dice)
            marks = ", ".join(["_binary %s" if isinstance(value, bytes) else "%s" for value in row])
            cursor.execute(f"INSERT IGNORE INTO {table} VALUES ({marks}, {number})", row)
        cursor.execute("COMMIT")
        cursor.execute(f"ANALYZE TABLE {table}")


@pytest.mark.parametrize("kind", SERVERS)
def test_every_row_is_read_once(
    kind: str, request: pytest.FixtureRequest, database: Any, tmp_path: Path, seed: int
) -> None:
    server: Server = request.getfixturevalue(kind)
    db = database(server)
    config = _config(server, tmp_path, db)
    Capture(config).run(until_current=True)
    keys = KEYS | (ADDRESSES if kind.startswith("mariadb") else {})
    for number, (name, key_columns) in enumerate(keys.items()):
        _fill(server, f"{db}.t{number}", name, key_columns, seed)
    tables = [f"{db}.t{number}" for number in range(len(keys))]
    loads = snapshot.take_all(config, tables, identity(server))
    for number, name in enumerate(keys):
        files = loads[f"{db}.t{number}"]
        assert isinstance(files, snapshot.SnapshotFiles), f"{name}: {files}"
        rows = rows_of(files)
        expected = select(config, db, f"t{number}").to_pylist()
        assert sorted(map(repr, rows)) == sorted(map(repr, expected)), name
        assert len(rows) > 100, (name, len(rows))
        if name in ONE_PIECE:
            assert (files.info.index, len(files.records())) == (None, 1), name
        else:
            assert len(files.records()) >= len(rows) / 37, name
            assert max(record.rows for record in files.records()) <= 37, name
        many = name not in ONE_PIECE | {"uuid", "inet6", "time"}
        assert not many or len(files.info.segments) > 1, (name, files.info.segments)


def test_borders_are_even(mariadb11: Server, database: Any, tmp_path: Path) -> None:
    db = database(mariadb11)
    mariadb11.execute(
        f"CREATE TABLE {db}.t (id BIGINT PRIMARY KEY, v INT)",
        f"INSERT INTO {db}.t SELECT seq * 1000003, seq FROM {db}.seq_1_to_40000",
        f"INSERT INTO {db}.t VALUES (9000000000000000000, 1)",
        f"ANALYZE TABLE {db}.t",
    )
    config = _config(mariadb11, tmp_path, db, snapshot={"chunk_rows": 1000, "parallel": 2})
    Capture(config).run(until_current=True)
    files = snapshot.take(config, f"{db}.t", identity(mariadb11))
    rows = [sum(r.rows for r in files.records(segment)) for segment in range(len(files.info.segments))]
    assert sum(rows) == 40001 and len(rows) >= 6
    assert max(rows) < 3 * 40001 / 8, rows


def test_chunks_are_ranges_of_the_index(mysql9: Server, mariadb11: Server, database: Any, tmp_path: Path) -> None:
    """A chunk in the middle must not begin at the table's first row: the server finds its range in the index."""
    for server in (mysql9, mariadb11):
        db = database(server)
        server.execute(f"CREATE TABLE {db}.t (a INT, b INT, c INT, v INT, PRIMARY KEY (a, b, c))")
        with server.connect() as connection, connection.cursor() as cursor:
            values = [(n % 2, n // 2 % 50, n) for n in range(10000)]
            cursor.executemany(f"INSERT INTO {db}.t (a, b, c) VALUES (%s, %s, %s)", values)
            cursor.execute(f"ANALYZE TABLE {db}.t")
        config = _config(server, tmp_path / server.kind.name, db)
        conn = open_session(config.source)
        schema = definition(conn, config.tables, db, "t")
        paging = paging_key(conn, (db, "t"), schema, schema.primary_key)
        close_now(conn)
        assert paging is not None
        after = tuple(str(value).encode().hex() for value in (1, 25, 5000))
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("FLUSH STATUS")
            cursor.execute(
                f"SELECT v FROM {db}.t FORCE INDEX (`PRIMARY`) WHERE {paging.after(after)} ORDER BY {paging.order} LIMIT 10"
            )
            assert len(cursor.fetchall()) == 10
            cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
            reads = sum(int(value) for _, value in cursor.fetchall())
        assert reads < 40, f"{server.kind.name} read {reads} rows for a chunk of 10"


def test_configured_keys_need_a_unique_index(mariadb11: Server, database: Any, tmp_path: Path) -> None:
    db = database(mariadb11)
    mariadb11.execute(
        f"CREATE TABLE {db}.t (a INT NOT NULL, b VARCHAR(10) NOT NULL, c INT, UNIQUE KEY u (b, a), UNIQUE KEY w (c))"
    )
    config = _config(mariadb11, tmp_path, db)
    conn = open_session(config.source)
    try:
        schema = definition(conn, config.tables, db, "t")
        key = paging_key(conn, (db, "t"), schema, ("A", "b"))
        assert key is not None and (key.index, key.names) == ("u", ("b", "a"))
        assert paging_key(conn, (db, "t"), schema, ("a",)) is None
        assert paging_key(conn, (db, "t"), schema, ("c",)) is None, "c may be NULL"
        assert paging_key(conn, (db, "t"), schema, ()) is None
    finally:
        close_now(conn)
