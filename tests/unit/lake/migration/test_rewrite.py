"""Statements are rewritten so that each of their tables is in a scratch schema, or they are refused."""

from __future__ import annotations

import pytest

from cdc.binlog.sql.server import LATEST, ServerVersion
from cdc.binlog.sql.statements import classify
from cdc.lake.migration.rewrite import Rewriter, UntriedError, parents_of, require_triable, tokens_of

SCRATCHES = {"shop": "x_1", "log": "x_2"}
MARIADB = ServerVersion(mariadb=True, version=(11, 8, 0))


def rewritten(sql: str, sql_mode: int = 0, server: ServerVersion = LATEST) -> str:
    rewriter = Rewriter(server, SCRATCHES.get, frozenset(SCRATCHES.values()))
    return rewriter.rewritten(sql, sql_mode, "x_1").sql


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("ALTER TABLE shop.t ADD c DECIMAL(3,1) DEFAULT 1.5", "ALTER TABLE `x_1`.t ADD c DECIMAL(3,1) DEFAULT 1.5"),
        ("ALTER TABLE `shop` . t RENAME log.t;", "ALTER TABLE `x_1` . t RENAME `x_2`.t"),
        ("ALTER TABLE t -- a\n ADD c INT /* b */", "ALTER TABLE t ADD c INT"),
        ("DROP TABLE /*!50100 shop. */ t, log.u", "DROP TABLE `x_1`. t, `x_2`.u"),
        ("RENAME TABLE shop.a TO log.a, b TO shop.c", "RENAME TABLE `x_1`.a TO `x_2`.a, b TO `x_1`.c"),
        ("ALTER TABLE p EXCHANGE PARTITION p0 WITH TABLE log.t", "ALTER TABLE p EXCHANGE PARTITION p0 WITH TABLE `x_2`.t"),
        ("CREATE TABLE t (a CHAR(1) DEFAULT _utf8mb4'a', b BIT DEFAULT b'0')",) * 2,
        ("CREATE TABLE t (a INT, FOREIGN KEY (a) REFERENCES log.p (id))",
         "CREATE TABLE t (a INT, FOREIGN KEY (a) REFERENCES `x_2`.p (id))"),
        ("CREATE TABLE t (engine VARCHAR(9), type INT, connection INT, directory INT) ENGINE=InnoDB",) * 2,
        ("ALTER TABLE t COMMENT 'other.t; DROP TABLE x'",) * 2,
    ],
)  # fmt: skip
def test_names_become_those_of_scratch_schemas(sql: str, expected: str) -> None:
    assert rewritten(sql) == expected


@pytest.mark.parametrize(
    "sql",
    [
        "DROP TABLE other.t",
        "ALTER TABLE shop.t RENAME TO other.t",
        "ALTER TABLE /*! t ADD a INT, COMMENT */ other.t DROP b",
        "DROP TABLE t; DROP TABLE u",
        "CREATE TABLE t (a INT) DATA DIRECTORY='/tmp'",
        "CREATE TABLE t (a INT) PARTITION BY HASH (a) (PARTITION p DATA DIRECTORY='/tmp')",
        "CREATE TABLE t (a INT) ENGINE=FEDERATED",
        "CREATE TABLE t (a INT) ENGINE 'federated'",
        "CREATE TABLE t (a INT) ENGINE=`CONNECT`",
        "CREATE TABLE t (a INT) ENGINE Spider",
        "CREATE TABLE t (a INT) CONNECTION='x'",
        "CREATE TABLE t (a INT) UNION=(u)",
        "CREATE TABLE t (a INT) TABLESPACE ts",
        "ALTER TABLE t IMPORT TABLESPACE",
        "ALTER TABLE t SECONDARY_LOAD",
        "CREATE TABLE t SELECT 1 AS a",
        "ALTER TABLE t ALTER a SET DEFAULT (@a)",
        "ALTER TABLE t ADD CHECK (t.a > 0)",
        "INSERT INTO t VALUES (1)",
        "(DROP TABLE t)",
        "SET STATEMENT a=1 FOR DROP TABLE t",
        "CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW SET NEW.a = 1",
        "DROP DATABASE shop",
        "ALTER TABLE shop.",
    ],
)
def test_what_could_reach_anything_else_is_refused(sql: str) -> None:
    with pytest.raises(UntriedError):
        rewritten(sql)


def test_comments_of_mariadb_are_comments_on_mysql() -> None:
    assert rewritten("DROP TABLE t/*M! , other.t */") == "DROP TABLE t"
    with pytest.raises(UntriedError):
        rewritten("DROP TABLE t/*M! , other.t */", server=MARIADB)


def test_quotes_follow_the_sql_mode() -> None:
    assert rewritten('ALTER TABLE "shop"."t" ADD "b\\" INT', 1 << 2) == 'ALTER TABLE `x_1`."t" ADD "b\\" INT'
    with pytest.raises(UntriedError):
        rewritten('ALTER TABLE t ADD "b\\" INT, RENAME TO other.t -- "', 1 << 2)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("ALTER TABLE shop.t WAIT 5 ADD a INT", "ALTER TABLE `x_1`.t WAIT 5 ALGORITHM=INPLACE, LOCK=NONE, ADD a INT"),
        ("ALTER TABLE t ADD a INT", "ALTER TABLE t ALGORITHM=INPLACE, LOCK=NONE, ADD a INT"),
        ("CREATE UNIQUE INDEX i ON shop.t (a)", "CREATE UNIQUE INDEX i ON `x_1`.t (a) ALGORITHM=INPLACE LOCK=NONE"),
        ("DROP INDEX i ON t", "DROP INDEX i ON t ALGORITHM=INPLACE LOCK=NONE"),
    ],
)
def test_the_algorithm_is_written_where_servers_take_it(sql: str, expected: str) -> None:
    statement = Rewriter(LATEST, SCRATCHES.get, frozenset(SCRATCHES.values())).rewritten(sql, 0, "x_1")
    texts = [" ".join(text.split()) for text in statement.variants("INPLACE", "NONE")]
    assert texts[0] == expected
    assert all(text.replace(" ADD", ", ADD") == expected for text in texts[1:])


@pytest.mark.parametrize("sql", ["DROP TABLE t", "RENAME TABLE a TO b", "CREATE TABLE t (a INT)", "ALTER TABLE t"])
def test_others_take_no_algorithm(sql: str) -> None:
    statement = Rewriter(LATEST, SCRATCHES.get, frozenset(SCRATCHES.values())).rewritten(sql, 0, "x_1")
    assert not list(statement.variants("COPY", ""))


def test_tables_and_parents() -> None:
    sql = "CREATE TABLE t (a INT REFERENCES p (id), FOREIGN KEY (a) REFERENCES log.q (id))"
    assert parents_of(tokens_of(sql, 0, LATEST), "shop") == [("shop", "p"), ("log", "q")]
    assert require_triable(classify("CREATE TABLE a LIKE log.b", "shop")) == [("shop", "a"), ("log", "b")]
    for sql in (
        "CREATE TABLE a SELECT 1",
        "CREATE DATABASE d",
        "INSERT INTO a VALUES (1)",
        "CREATE VIEW v AS SELECT 1",
    ):
        with pytest.raises(UntriedError):
            require_triable(classify(sql, "shop"))
