"""What becomes of old values when a column's definition changes; tests/servers/sql tries the same on servers."""

from __future__ import annotations

import pytest

from cdc.schemas import ColumnSchema
from cdc.sql.changes import AddColumn, Unknown
from cdc.sql.conversions import MODE_PAD_CHAR_TO_FULL_LENGTH, Same, Widened, computes_alike, value_effect
from cdc.sql.statements import classify
from cdc.sql.tokens import MODE_STRICT
from cdc.sql.types import with_table_charset


def column(definition: str) -> ColumnSchema:
    (change,) = classify(f"ALTER TABLE t ADD c {definition}", "d").changes
    assert isinstance(change, AddColumn)
    return with_table_charset(change.column, "utf8mb4", None)


@pytest.mark.parametrize(
    ("old", "new", "lenient", "strict"),
    [
        ("INT", "INT", Same, Same),
        ("INT", "BIGINT", Widened, Widened),
        ("INT", "INT UNSIGNED", Unknown, Same),
        ("BIGINT", "INT", Unknown, Same),
        ("INT", "DOUBLE", Widened, Widened),
        ("BIGINT", "DOUBLE", Unknown, Unknown),
        ("INT", "DECIMAL(12,2)", Widened, Widened),
        ("INT", "VARCHAR(11)", Same, Same),
        ("INT ZEROFILL", "VARCHAR(11)", Unknown, Unknown),
        ("DECIMAL(8,2)", "DECIMAL(10,4)", Widened, Widened),
        ("DECIMAL(8,2)", "DECIMAL(10,1)", Unknown, Unknown),
        ("FLOAT", "DOUBLE", Widened, Widened),
        ("DOUBLE", "FLOAT", Unknown, Unknown),
        ("VARCHAR(10)", "VARCHAR(20)", Same, Same),
        ("VARCHAR(20)", "VARCHAR(10)", Unknown, Unknown),
        ("CHAR(20)", "VARCHAR(10)", Unknown, Same),
        ("VARCHAR(20)", "CHAR(20)", Unknown, Unknown),
        ("VARCHAR(20)", "TEXT", Same, Same),
        ("LONGTEXT", "TEXT", Unknown, Unknown),
        ("VARCHAR(9) CHARSET latin1", "VARCHAR(9)", Same, Same),
        ("VARCHAR(9)", "VARCHAR(9) CHARSET latin1", Unknown, Same),
        ("ENUM('a','b')", "ENUM('z','b','a')", Same, Same),
        ("ENUM('a','b')", "ENUM('a')", Unknown, Same),
        ("ENUM('a','1')", "ENUM('a')", Unknown, Unknown),
        ("ENUM('a','B')", "ENUM('a','b')", Unknown, Unknown),
        ("SET('a','b')", "SET('b','a')", Unknown, Unknown),
        ("DATE", "DATETIME", Widened, Widened),
        ("DATETIME(3)", "DATETIME", Unknown, Unknown),
        ("TIMESTAMP NULL", "DATETIME", Unknown, Unknown),
        ("BLOB", "TINYBLOB", Unknown, Unknown),
        ("INT NULL", "INT NOT NULL", Unknown, Same),
        ("INT", "INT AUTO_INCREMENT", Unknown, Unknown),
        ("INT", "INT AS (1)", Unknown, Unknown),
        ("JSON", "TEXT", Unknown, Unknown),
        ("POINT", "GEOMETRY", Same, Same),
    ],
)
def test_values(old: str, new: str, lenient: type, strict: type) -> None:
    before, after = column(old), column(new)
    assert type(value_effect(before, after)) is lenient
    assert type(value_effect(before, after, MODE_STRICT)) is strict
    assert type(value_effect(before, after, MODE_STRICT, ignore=True)) is lenient


def test_a_char_is_padded_in_a_mode_of_its_own() -> None:
    mode = MODE_STRICT | MODE_PAD_CHAR_TO_FULL_LENGTH
    assert isinstance(value_effect(column("CHAR(5)"), column("VARCHAR(9)"), mode), Unknown)
    assert value_effect(column("CHAR(5)"), column("CHAR(9)"), mode) == Same()
    assert value_effect(column("VARCHAR(5)"), column("VARCHAR(9)"), mode) == Same()


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("INT", "BIGINT", True), ("INT", "INT UNSIGNED", False), ("INT", "INT ZEROFILL", False),
        ("VARCHAR(5)", "VARCHAR(9)", True), ("CHAR(5)", "VARCHAR(5)", False), ("DECIMAL(5,1)", "DECIMAL(8,3)", False),
        ("VARCHAR(5) COLLATE utf8mb4_bin", "VARCHAR(5) COLLATE utf8mb4_general_ci", False),
        ("ENUM('a')", "ENUM('a','b')", True), ("ENUM('a')", "ENUM('b','a')", False), ("DATE", "DATE", True),
    ],
)  # fmt: skip
def test_expressions_over_equal_values(old: str, new: str, expected: bool) -> None:
    assert computes_alike(column(old), column(new)) == expected


def test_an_unknown_effect_has_a_reason() -> None:
    found = value_effect(column("VARCHAR(20)"), column("VARCHAR(10)"), MODE_STRICT)
    assert isinstance(found, Unknown) and "trailing blanks" in found.reason


@pytest.mark.parametrize(
    ("old", "new", "effect"),
    [
        ("ENUM('a', 'b')", "ENUM('b', 'a', 'c')", Same),
        ("CHAR(10)", "CHAR(12)", Same),
        ("VARCHAR(9)", "TEXT", Same),
        ("VARCHAR(20000)", "TEXT", Unknown),  # of four bytes each, they do not fit
        ("TINYTEXT", "TEXT", Same),
        ("VARCHAR(9)", "VARCHAR(12) CHARACTER SET utf8mb4", Unknown),
        ("VARCHAR(9) CHARACTER SET utf8mb4", "VARCHAR(12)", Unknown),
    ],
)
def test_the_character_set_of_a_database_is_the_same_before_and_behind_a_statement(
    old: str, new: str, effect: type
) -> None:
    """Also if nobody knows it: CREATE TABLE says none, and was not captured before it was altered."""
    found = []
    for definition in (old, new):
        (change,) = classify(f"ALTER TABLE t ADD c {definition}", "d").changes
        assert isinstance(change, AddColumn)
        found.append(change.column)
    assert type(value_effect(found[0], found[1])) is effect
