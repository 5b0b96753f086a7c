"""Statements in other character sets than UTF-8: names and defaults are read as the server read them."""

from __future__ import annotations

import pymysql
import pytest

from cdc.binlog.sql.changes import AddColumn, Constant
from cdc.binlog.sql.statements import classify
from cdc.testing.servers import HOST, PASSWORD, USER, Server
from tests.conftest import Database
from tests.support.ddl_run import binlog_statements


@pytest.mark.parametrize("kind", ["mysql9", "mariadb11", "mysql56"])
@pytest.mark.parametrize(
    ("charset", "text"), [("latin1", "é€"), ("gbk", "你好"), ("cp1251", "ж"), ("utf8mb4", "😀é"), ("utf8", "愛")]
)
def test_a_default_is_what_select_shows(
    request: pytest.FixtureRequest, database: Database, kind: str, charset: str, text: str
) -> None:
    server: Server = request.getfixturevalue(kind)
    name = database(server)
    server.execute(f"CREATE TABLE `{name}`.t (a INT)", f"INSERT INTO `{name}`.t VALUES (1)", "FLUSH BINARY LOGS")
    with (
        pymysql.connect(
            host=HOST, port=server.port, user=USER, password=PASSWORD, database=name, charset=charset
        ) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("SHOW BINARY LOGS")
        logs = [str(row[0]) for row in cursor.fetchall()]
        cursor.execute(
            f"ALTER TABLE t ADD `{text}` VARCHAR(20) CHARACTER SET utf8mb4 DEFAULT '{text}'"
            if charset != "utf8mb4"
            else f"ALTER TABLE t ADD x VARCHAR(20) CHARACTER SET utf8mb4 DEFAULT '{text}'"
        )
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM `{name}`.t")
        ((_, shown),) = cursor.fetchall()
        column = cursor.description[1][0]
    (sql,) = [query.sql for query in binlog_statements(server, logs, logs[-1]) if query.db == name]
    (change,) = classify(sql, name).changes
    assert isinstance(change, AddColumn)
    assert (change.column.name, change.old_rows) == (column, Constant(shown)) == (column, Constant(text))
