"""Old values after a change of a column's definition; tests/servers/sql tries the same on servers."""

from __future__ import annotations

import pytest

from cdc.binlog.sql.changes import AddColumn, Unknown
from cdc.binlog.sql.conversions import (
    MODE_PAD_CHAR_TO_FULL_LENGTH,
    Converted,
    Same,
    ValueEffect,
    computes_alike,
    value_effect,
)
from cdc.binlog.sql.schemas import ColumnSchema
from cdc.binlog.sql.statements import classify
from cdc.binlog.sql.tokens import MODE_STRICT
from cdc.binlog.sql.types import with_table_charset


def column(definition: str) -> ColumnSchema:
    (change,) = classify(f"ALTER TABLE t ADD c {definition}", "d").changes
    assert isinstance(change, AddColumn)
    return with_table_charset(change.column, "utf8mb4", None)


@pytest.mark.parametrize(
    ("old", "new", "lenient", "strict"),
    [
        ("INT", "INT", "same", "same"),
        ("INT", "BIGINT", "widened", "widened"),
        ("INT", "INT UNSIGNED", "clamped", "same"),
        ("BIGINT", "INT", "clamped", "same"),
        ("INT", "DOUBLE", "widened", "widened"),
        ("BIGINT", "DOUBLE", "widened unless outside", "widened unless outside"),
        ("INT", "DECIMAL(12,2)", "widened", "widened"),
        ("INT", "VARCHAR(11)", "same", "same"),
        ("INT ZEROFILL", "VARCHAR(11)", "unknown", "unknown"),
        ("DECIMAL(8,2)", "DECIMAL(10,4)", "widened", "widened"),
        ("DECIMAL(8,2)", "DECIMAL(10,1)", "rounded 1", "rounded 1"),
        ("FLOAT", "DOUBLE", "widened", "widened"),
        ("DOUBLE", "FLOAT", "single unless outside", "single"),
        ("VARCHAR(10)", "VARCHAR(20)", "same", "same"),
        ("VARCHAR(20)", "VARCHAR(10)", "cut 10", "cut 10"),
        ("CHAR(20)", "VARCHAR(10)", "cut 10", "same"),
        ("VARCHAR(20)", "CHAR(20)", "trimmed 20", "trimmed 20"),
        ("VARCHAR(20)", "TEXT", "same", "same"),
        ("LONGTEXT", "TEXT", "same unless longer", "same unless longer"),
        ("VARCHAR(9) CHARSET latin1", "VARCHAR(9)", "same", "same"),
        ("VARCHAR(9)", "VARCHAR(9) CHARSET latin1", "same unless not ascii", "same"),
        ("ENUM('a','b')", "ENUM('z','b','a')", "same", "same"),
        ("ENUM('a','b')", "ENUM('a')", "same unless uses", "same"),
        ("ENUM('a','1')", "ENUM('a')", "same unless uses", "same unless uses"),
        ("ENUM('a','B')", "ENUM('a','b')", "same unless uses", "same unless uses"),
        ("SET('a','b')", "SET('b','a')", "ordered", "ordered"),
        ("DATE", "DATETIME", "widened", "widened"),
        ("DATETIME(3)", "DATETIME", "unknown", "unknown"),
        ("TIMESTAMP NULL", "DATETIME", "unknown", "unknown"),
        ("BLOB", "TINYBLOB", "same unless more bytes", "same unless more bytes"),
        ("INT NULL", "INT NOT NULL", "filled", "same"),
        ("INT", "INT AUTO_INCREMENT", "same unless zero", "same unless zero"),
        ("INT", "INT AS (1)", "unknown", "unknown"),
        ("JSON", "TEXT", "unknown", "unknown"),
        ("POINT", "GEOMETRY", "same", "same"),
        ("DECIMAL(8,2)", "INT", "rounded", "rounded"),
        ("DECIMAL(8,2)", "DOUBLE", "double", "double"),
        ("DECIMAL(8,2)", "VARCHAR(20)", "text", "text"),
        ("DOUBLE", "VARCHAR(30)", "unknown", "unknown"),
        ("VARCHAR(20)", "VARBINARY(80)", "bytes", "bytes"),
        ("VARCHAR(20)", "VARBINARY(20)", "bytes unless more bytes", "bytes unless more bytes"),
        ("CHAR(4) CHARSET latin1", "BINARY(8)", "padded 8 unless not ascii", "padded 8 unless not ascii"),
        ("VARCHAR(9)", "VARCHAR(9) CHARSET swe7", "unknown", "same"),
        ("ENUM('a','b')", "SET('a')", "same unless uses", "same"),
        ("SET('a','b')", "ENUM('a')", "unknown", "unknown"),
        ("DATE", "INT", "digits unless zero date", "digits unless zero date"),
        ("DATE", "VARCHAR(9)", "unknown", "unknown"),
        ("DATETIME(3)", "VARCHAR(23)", "text 3 unless zero date", "text 3 unless zero date"),
        ("DATETIME", "DATE", "day", "day"),
        ("DATETIME(3)", "DATE", "unknown", "unknown"),
        ("BIT(9)", "TINYINT", "widened unless outside", "widened"),
        ("BIGINT", "FLOAT", "widened unless outside", "widened unless outside"),
        ("BINARY(4)", "BINARY(8)", "padded 8", "padded 8"),
        ("TIMESTAMP NULL", "TIMESTAMP NOT NULL DEFAULT 0", "same unless null", "same unless null"),
        ("INT AS (1) STORED", "INT", "same", "same"),
        ("INT AS (1) VIRTUAL", "INT", "unknown", "unknown"),
        ("INT NOT NULL", "INT NULL AUTO_INCREMENT", "same unless zero", "same unless zero"),
    ],
)
def test_values(old: str, new: str, lenient: str, strict: str) -> None:
    before, after = column(old), column(new)
    assert shown(value_effect(before, after)) == lenient
    assert shown(value_effect(before, after, MODE_STRICT)) == strict


@pytest.mark.parametrize(
    ("old", "new", "lenient", "strict"),
    [
        ("TIMESTAMP(3) NULL", "DATETIME(6)", "local 7200", "local 7200"),
        ("TIMESTAMP(3) NULL", "DATETIME", "unknown", "unknown"),
        ("DATETIME", "TIMESTAMP(3) NULL", "unknown", "instant 7200"),
        ("TIMESTAMP NULL", "DATE", "unknown", "unknown"),
    ],
)
def test_times_in_a_zone(old: str, new: str, lenient: str, strict: str) -> None:
    before, after = column(old), column(new)
    assert shown(value_effect(before, after, zone_offset_s=7200)) == lenient
    assert shown(value_effect(before, after, MODE_STRICT, zone_offset_s=7200)) == strict
    assert isinstance(value_effect(before, after, MODE_STRICT), Unknown)


def shown(effect: ValueEffect) -> str:
    """An effect in a few words: ``cut 10 unless null``."""
    if isinstance(effect, Unknown):
        return "unknown"
    name = effect.to if isinstance(effect, Converted) else type(effect).__name__.lower()
    if isinstance(effect, Converted) and effect.number:
        name = f"{name} {effect.number}"
    return f"{name} unless {', '.join(doubt.kind for doubt in effect.unless)}" if effect.unless else name


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
    effect = value_effect(column("DOUBLE"), column("VARCHAR(30)"), MODE_STRICT)
    assert isinstance(effect, Unknown) and "converts double to varchar" in effect.reason


@pytest.mark.parametrize(
    ("old", "new", "effect"),
    [
        ("ENUM('a', 'b')", "ENUM('b', 'a', 'c')", "same"),
        ("CHAR(10)", "CHAR(12)", "same"),
        ("VARCHAR(9)", "TEXT", "same"),
        ("VARCHAR(20000)", "TEXT", "same unless longer"),  # of four bytes each, they do not fit
        ("TINYTEXT", "TEXT", "same"),
        ("VARCHAR(9)", "VARCHAR(12) CHARACTER SET utf8mb4", "unknown"),
        ("VARCHAR(9) CHARACTER SET utf8mb4", "VARCHAR(12)", "unknown"),
    ],
)
def test_the_character_set_of_a_database_is_the_same_before_and_behind_a_statement(
    old: str, new: str, effect: str
) -> None:
    """Also if nobody knows it: CREATE TABLE says none, and was not captured before it was altered."""
    columns = []
    for definition in (old, new):
        (change,) = classify(f"ALTER TABLE t ADD c {definition}", "d").changes
        assert isinstance(change, AddColumn)
        columns.append(change.column)
    assert shown(value_effect(columns[0], columns[1])) == effect
