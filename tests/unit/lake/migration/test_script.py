"""A migration is split into statements as the mysql client does it, and the session's settings are followed."""

from __future__ import annotations

import pytest

from cdc.base.errors import UsageError
from cdc.lake.migration.script import bits_of, sql_mode_set_by, statements_in, time_zone_set_by

STRICT = 1 << 21
LENIENT = 0


def split(text: str, sql_mode: int = 0) -> list[tuple[int, str]]:
    return [(statement.line, statement.sql) for statement in statements_in(text, sql_mode)]


def test_statements_have_the_lines_on_which_they_begin() -> None:
    text = "-- a comment; not a statement\n\nALTER TABLE a\n  ADD x INT;\n# another; one\nDROP TABLE b ; CREATE TABLE c (a INT)\n"
    assert split(text) == [
        (3, "ALTER TABLE a\n  ADD x INT"),
        (6, "DROP TABLE b"),
        (6, "CREATE TABLE c (a INT)"),
    ]


def test_the_byte_order_mark_and_empty_statements_are_passed() -> None:
    assert split("\ufeff;;\n ; DROP TABLE a;;") == [(2, "DROP TABLE a")]
    assert split("  -- nothing\n/* here */") == []


@pytest.mark.parametrize(
    "sql",
    [
        "ALTER TABLE a ADD b VARCHAR(9) DEFAULT 'a;b'",
        "ALTER TABLE a ADD b VARCHAR(9) DEFAULT 'it''s; b'",
        r"ALTER TABLE a ADD b VARCHAR(9) DEFAULT 'it\'s; b'",
        "ALTER TABLE `a;``b` ADD b INT",
        'ALTER TABLE a COMMENT "x; y"',
        "ALTER TABLE a /* x; y */ ADD b INT",
        "ALTER TABLE a ADD b INT -- x; y\n, ADD c INT",
        "/*!40000 ALTER TABLE a DISABLE KEYS; */",
        "SELECT 1 --x;"[:-1],
    ],
)
def test_semicolons_inside_of_texts_and_comments_end_nothing(sql: str) -> None:
    assert split(f"{sql};\nDROP TABLE z") == [(1, sql), (sql.count("\n") + 2, "DROP TABLE z")]


def test_backslashes_by_the_sql_mode() -> None:
    text = r"ALTER TABLE a ADD b VARCHAR(9) DEFAULT '\'; DROP TABLE c"
    assert len(split(text, bits_of("NO_BACKSLASH_ESCAPES"))) == 2
    with pytest.raises(UsageError, match="quoted text that begins here does not end"):
        split(text)


def test_the_delimiter_can_be_changed() -> None:
    text = "DELIMITER $$\nCREATE TRIGGER t BEFORE INSERT ON a FOR EACH ROW BEGIN SET @a = 1; END$$\ndelimiter ;\nDROP TABLE b;"
    assert split(text) == [
        (2, "CREATE TRIGGER t BEFORE INSERT ON a FOR EACH ROW BEGIN SET @a = 1; END"),
        (4, "DROP TABLE b"),
    ]
    assert split("SELECT 1\\G\nSELECT 2\\g") == [(1, "SELECT 1"), (2, "SELECT 2")]


def test_bodies_of_stored_programs_are_one_statement_without_a_delimiter_too() -> None:
    body = (
        "CREATE DEFINER=`a`@`%` PROCEDURE p(x INT)\nBEGIN\n  IF x THEN SELECT 1; END IF;\n  CASE x WHEN 1 THEN SELECT 2; "
        "END CASE;\n  BEGIN SELECT CASE x WHEN 1 THEN 2 END; END;\nEND"
    )
    assert split(f"{body};\nDROP TABLE b;") == [(1, body), (7, "DROP TABLE b")]
    assert len(split("BEGIN; UPDATE a SET b = 1; COMMIT;")) == 3


@pytest.mark.parametrize(
    ("text", "line"), [("DROP TABLE a;\nALTER TABLE b COMMENT 'x", 2), ("\n\n/* DROP TABLE a;", 3)]
)
def test_what_does_not_end_is_an_error_with_its_line(text: str, line: int) -> None:
    with pytest.raises(UsageError, match="does not end") as caught:
        split(text)
    assert caught.value.place == f"line {line}"


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SET sql_mode = ''", LENIENT),
        ("SET SESSION sql_mode='NO_ENGINE_SUBSTITUTION'", 1 << 30),
        ('set @@session.sql_mode := "STRICT_ALL_TABLES"', 1 << 22),
        ("SET NAMES utf8mb4, sql_mode = 'ANSI_QUOTES'", 4),
        ("/*!40101 SET @OLD_SQL_MODE=@@SQL_MODE, SQL_MODE='NO_AUTO_VALUE_ON_ZERO' */", 1 << 19),
        ("/*!40101 SET SQL_MODE=@OLD_SQL_MODE */", STRICT),
        ("SET sql_mode = DEFAULT", STRICT),
        ("SET GLOBAL sql_mode = ''", 99),
        ("SET @@GLOBAL.sql_mode = ''", 99),
        ("SET @my_sql_mode = ''", 99),
        ("SET foreign_key_checks = 0", 99),
        ("UPDATE settings SET sql_mode = ''", 99),
    ],
)
def test_the_sql_mode_that_a_statement_sets(sql: str, expected: int) -> None:
    assert sql_mode_set_by(sql, 99, STRICT) == expected


def test_the_time_zone_that_a_statement_sets() -> None:
    assert time_zone_set_by("SET time_zone = '+02:00'", "SYSTEM", "SYSTEM") == "+02:00"
    assert time_zone_set_by("/*!40103 SET TIME_ZONE=@OLD_TIME_ZONE */", "+00:00", "SYSTEM") == "SYSTEM"
    assert time_zone_set_by("SET NAMES utf8", "+00:00", "SYSTEM") == "+00:00"
