"""The claims of ``value_effect``, tried on real servers: whoever claims that values stay is held to it."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pymysql
import pytest

from cdc.binlog.sql.changes import Unknown
from cdc.binlog.sql.conversions import Same, value_effect
from cdc.testing.servers import Server
from tests.conftest import Database
from tests.support.ddl_conversions import LENIENT, MODES, STRICT, Conversions, server_schema
from tests.support.ddl_run import binlog_statements

TOGETHER = 40
STRICT_SAMPLE = int(os.environ.get("TOWPATH_CONVERSIONS") or 8)
"""The number of claims that are tried on each server although they hold in strict mode only. All take a minute."""


@pytest.fixture(scope="module", params=["mysql9", "mariadb10", "mariadb11", "mysql56"])
def server(request: pytest.FixtureRequest) -> Server:
    server: Server = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def conversions(server: Server, database: Database) -> Iterator[Conversions]:
    name = database(server)
    server.execute(f"ALTER DATABASE `{name}` CHARACTER SET utf8mb4")
    conversions = Conversions(server, name)
    yield conversions
    conversions.close()


def test_values_stay_outside_strict_mode(conversions: Conversions) -> None:
    claims = conversions.claims(LENIENT)
    assert len(claims) > 500
    wrong = [
        text for n in range(0, len(claims), TOGETHER) for text in conversions.try_together(claims[n : n + TOGETHER])
    ]
    assert not wrong, "\n".join(wrong)


def test_values_stay_or_the_statement_is_refused_in_strict_mode(conversions: Conversions, seed: int) -> None:
    anyway = {(claim.old, claim.new) for claim in conversions.claims(LENIENT)}
    claims = [claim for claim in conversions.claims(STRICT) if (claim.old, claim.new) not in anyway]
    assert len(claims) > 200
    sample = random.Random(seed).sample(claims, min(STRICT_SAMPLE, len(claims)))
    wrong = [text for claim in sample for text in conversions.try_strictly(claim)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "kind", ["INT", "DECIMAL(10,2)", "VARCHAR(20)", "TEXT", "BLOB", "ENUM('a','b')", "DATE", "TIME"]
)
def test_null_is_refused_by_not_null_in_strict_mode(server: Server, database: Database, kind: str) -> None:
    name = database(server)
    server.execute(f"CREATE TABLE `{name}`.t (c {kind} NULL)", f"INSERT INTO `{name}`.t VALUES (NULL)")
    with pytest.raises(pymysql.MySQLError):
        server.execute(f"SET sql_mode = '{STRICT}'", f"ALTER TABLE `{name}`.t MODIFY c {kind} NOT NULL")


@pytest.mark.parametrize("kind", ["VARCHAR(9)", "TEXT"])
def test_a_padded_char_becomes_another_text(server: Server, database: Database, kind: str) -> None:
    name = database(server)
    server.execute(f"CREATE TABLE `{name}`.t (c CHAR(5)) CHARSET utf8mb4", f"INSERT INTO `{name}`.t VALUES ('a')")
    with server_schema(server, name, "t") as schema:
        (before,) = schema.columns
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("FLUSH BINARY LOGS")
        cursor.execute("SHOW BINARY LOGS")
        log = cursor.fetchall()[-1][0]
        cursor.execute(f"SET sql_mode = '{STRICT},PAD_CHAR_TO_FULL_LENGTH'")
        cursor.execute(f"ALTER TABLE `{name}`.t MODIFY c {kind}")
        cursor.execute(f"SET sql_mode = '{STRICT}'")
        cursor.execute(f"SELECT c FROM `{name}`.t")
        assert cursor.fetchall() == (("a    ",),)
    with server_schema(server, name, "t") as schema:
        (after,) = schema.columns
    (mode,) = (query.sql_mode for query in binlog_statements(server, [log], log) if f"`{name}`.t MODIFY" in query.sql)
    assert isinstance(value_effect(before, after, mode), Unknown)
    assert value_effect(before, after, MODES[STRICT]) == Same()


@pytest.mark.parametrize(("mode", "expected"), [("NO_AUTO_VALUE_ON_ZERO", 0), ("", 1)])
def test_auto_increment_numbers_rows_unless_told_otherwise(
    server: Server, database: Database, mode: str, expected: int
) -> None:
    name = database(server)
    server.execute(
        f"CREATE TABLE `{name}`.t (id INT NOT NULL PRIMARY KEY)",
        f"INSERT INTO `{name}`.t VALUES (0), (6)",
        f"SET sql_mode = '{mode}'",
        f"ALTER TABLE `{name}`.t MODIFY id INT NOT NULL AUTO_INCREMENT",
    )
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT id FROM `{name}`.t")
        assert {int(row[0]) for row in cursor.fetchall()} == {expected, 6}
