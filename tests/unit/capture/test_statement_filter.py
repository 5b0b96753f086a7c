"""Statements on temporary tables and sequences, which may have the names of captured tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.base.errors import UnsupportedEventError
from cdc.binlog.events import QueryEvent
from cdc.capture.statement_filter import StatementFilter
from cdc.config import TablesConfig
from cdc.store.formats.state import TableNumbers


@pytest.fixture
def statements(tmp_path: Path) -> StatementFilter:
    return StatementFilter(TablesConfig(include=(r"shop\..*",)), TableNumbers(tmp_path))


def is_kept(statements: StatementFilter, sql: str, *, thread: int = 1, marked: bool = False) -> bool:
    query = QueryEvent("shop", sql, 0, thread, 0, thread_specific=marked)
    return statements.statement(query, "here")[0].keep


@pytest.mark.parametrize(
    "sql",
    ["ALTER TABLE t ADD c INT", "TRUNCATE t", "CREATE INDEX i ON t (a)", "DROP INDEX i ON t", "ALTER TABLE t RENAME u"],
)
def test_a_marked_statement_is_one_on_a_temporary_table(statements: StatementFilter, sql: str) -> None:
    """Also if the session created the table before capture began to read."""
    assert not is_kept(statements, sql, marked=True)
    assert is_kept(statements, sql)


def test_connection_id_marks_statements_on_other_tables(statements: StatementFilter) -> None:
    sql = "ALTER TABLE t ADD c INT DEFAULT (CONNECTION_ID())"
    assert is_kept(statements, sql, marked=True)
    assert not is_kept(statements, "ALTER TABLE t ADD c INT COMMENT 'of CONNECTION_ID()'", marked=True)
    assert not is_kept(statements, "CREATE TEMPORARY TABLE t (a INT)", marked=True)
    assert not is_kept(statements, sql, marked=True)


@pytest.mark.parametrize("sql", ["DROP TABLE t", "CREATE TABLE t LIKE scratch", "CREATE TABLE t SELECT * FROM scratch"])
def test_a_mark_says_nothing_of_other_statements(statements: StatementFilter, sql: str) -> None:
    assert is_kept(statements, sql, marked=True)


def test_text_on_a_temporary_table_passes_in_its_session_only(statements: StatementFilter) -> None:
    insert = "INSERT INTO t VALUES (1)"
    is_kept(statements, "CREATE TEMPORARY TABLE IF NOT EXISTS t (a INT)", thread=7, marked=True)
    assert not is_kept(statements, insert, thread=7, marked=True)
    with pytest.raises(UnsupportedEventError, match=r"changes shop\.t"):
        is_kept(statements, insert, thread=8)
    is_kept(statements, "DROP /*!40005 TEMPORARY */ TABLE IF EXISTS `t`", thread=7, marked=True)
    with pytest.raises(UnsupportedEventError):
        is_kept(statements, insert, thread=7, marked=True)


def test_a_renamed_temporary_table_keeps_its_session(statements: StatementFilter) -> None:
    is_kept(statements, "CREATE TEMPORARY TABLE t (a INT)", marked=True)
    assert not is_kept(statements, "RENAME TABLE t TO u")
    assert not is_kept(statements, "UPDATE u SET a = 1", marked=True)
    assert is_kept(statements, "RENAME TABLE t TO u"), "the other table of that name"
    assert not is_kept(statements, "ALTER TABLE u RENAME v", marked=True)
    assert not is_kept(statements, "DELETE FROM v WHERE a = 1", marked=True)


def test_sessions_end_when_the_server_starts(statements: StatementFilter) -> None:
    is_kept(statements, "CREATE TEMPORARY TABLE t (a INT)", marked=True)
    statements.server_started()
    with pytest.raises(UnsupportedEventError):
        is_kept(statements, "INSERT INTO t VALUES (1)", marked=True)


def test_sequences_are_followed_over_their_names(statements: StatementFilter) -> None:
    assert not is_kept(statements, "CREATE SEQUENCE s START WITH 5")
    assert not is_kept(statements, "RENAME TABLE s TO r")
    assert is_kept(statements, "RENAME TABLE s TO r2"), "a table of that name"
    assert not is_kept(statements, "ALTER TABLE r RENAME s")
    assert not is_kept(statements, "DROP TABLE s")
    assert is_kept(statements, "CREATE TABLE s (a INT)")
    assert is_kept(statements, "DROP TABLE s")
    assert not is_kept(statements, "CREATE TABLE q (a BIGINT) ENGINE=InnoDB SEQUENCE=1")
    assert statements.sequences == {("shop", "q")}
    assert not is_kept(statements, "DROP SEQUENCE IF EXISTS q, w")
    assert statements.sequences == set()


def test_only_a_memory_table_is_emptied_by_a_delete(statements: StatementFilter) -> None:
    statements.engine_of = {"shop.m": "memory", "shop.t": "innodb"}.get
    decision, _ = statements.statement(QueryEvent("", "DELETE FROM `shop`.`m`", 0, 1, 0), "here")
    assert (decision.keep, decision.ddl, decision.altered) == (True, True, frozenset())
    for sql in ("DELETE FROM `shop`.`t`", "DELETE FROM shop.m", "DELETE FROM `shop`.`m` WHERE 1"):
        with pytest.raises(UnsupportedEventError, match="the binlog has its text"):
            is_kept(statements, sql)
    assert not is_kept(statements, "DELETE FROM `elsewhere`.`m`")
