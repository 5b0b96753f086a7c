"""Random statements: what is printed from a model is read back, and no text is taken for harmless that is not."""

from __future__ import annotations

import random
from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from cdc.base.errors import UnsupportedDdlError
from cdc.binlog.sql.changes import KEEPS_COLUMNS, SetTableCharset, Unsupported
from cdc.binlog.sql.schemas import ColumnSchema, TableSchema
from cdc.binlog.sql.statements import classify
from cdc.binlog.sql.track import apply_changes
from tests.support.ddl_random import RandomAlter

TABLE = ("shop", "t")
NAMES = ("a", "b", "c", "key", "Order", "größe", "x y", "q`t", "d1", "select", "first")
WORDS = (
    *[
        "ALTER",
        "TABLE",
        "t",
        "ADD",
        "DROP",
        "MODIFY",
        "CHANGE",
        "COLUMN",
        "RENAME",
        "TO",
        "a",
        "b",
        "INT",
        "VARCHAR",
        "(",
        ")",
        ",",
        ";",
        ".",
        "=",
        "5",
        "'x'",
        "`q`",
        '"',
        "'",
        "`",
        "NOT",
        "NULL",
    ],
    *[
        "DEFAULT",
        "PRIMARY",
        "KEY",
        "INDEX",
        "FIRST",
        "AFTER",
        "CREATE",
        "IF",
        "EXISTS",
        "OR",
        "REPLACE",
        "SELECT",
        "PARTITION",
        "BY",
        "CONVERT",
        "CHARACTER",
        "SET",
    ],
    *[
        "utf8",
        "ENUM",
        "AS",
        "GENERATED",
        "CHECK",
        "CONSTRAINT",
        "ORDER",
        "TRUNCATE",
        "ENGINE",
        "-1",
        "1.5",
        "0x1F",
        "b'1'",
        "/*",
        "*/",
        "/*!",
        "--",
        "#",
        "@",
        ":=",
        "é",
    ],
    *[
        "EXCHANGE",
        "WITH",
        "LIKE",
        "COMMENT",
        "UNSIGNED",
        "TEMPORARY",
        "DATABASE",
        "VIEW",
        "ON",
        "IGNORE",
        "WAIT",
        "NOWAIT",
        "REFERENCES",
        "COLLATE",
    ],
)


def random_alter(seed: int) -> RandomAlter:
    return RandomAlter(random.Random(seed), TABLE, NAMES, hides=True)


@given(st.integers(0, 2**32))
@settings(max_examples=400)
def test_what_is_printed_is_read(seed: int) -> None:
    sql, changes = random_alter(seed).statement()
    assert list(classify(sql, "shop").changes) == changes, sql


@given(st.integers(0, 2**32))
@settings(max_examples=200)
def test_a_clause_that_is_not_known_is_never_lost(seed: int) -> None:
    chance = random.Random(seed)
    clauses = [random_alter(seed + n).clause()[0] for n in range(chance.randint(0, 3))]
    strange = chance.choice(
        ["FROBNICATE a", "ADD a FROBTYPE", "ADD a INT FROBNICATED", "DROP COLUMN a FROB", "frob = 5", "MODIFY a INT ? 5",
         "RENAME COLUMN a TO b c", "ADD a INT, b INT DEFAULT 5", "ENGINE=InnoDB FROB", "ALTER a FROB", "ADD a INT )"]
    )  # fmt: skip
    clauses.insert(chance.randint(0, len(clauses)), strange)
    statement = classify("ALTER TABLE t " + ", ".join(clauses), "shop")
    assert any(isinstance(change, Unsupported) for change in statement.changes), clauses
    assert not statement.leaves_rows_alone


@given(st.lists(st.sampled_from(WORDS), max_size=25), st.sampled_from([0, 4, 1 << 20, 1 << 9]))
@settings(max_examples=500)
def test_a_soup_of_words_is_read_without_an_error(words: list[str], sql_mode: int) -> None:
    statement = classify(" ".join(words), "shop", sql_mode)
    schema = TableSchema(columns=(_column("a"), _column("b")), primary_key=("a",))
    with suppress(UnsupportedDdlError):
        altered = apply_changes(schema, statement.changes)
        assert altered is None or len({name.lower() for name in altered.column_names}) == len(altered.columns)


@given(st.text(max_size=200))
@settings(max_examples=200)
def test_any_text_is_read_without_an_error(text: str) -> None:
    for sql in (text, f"ALTER TABLE t {text}", f"CREATE TABLE t ({text})", f"ALTER TABLE t ADD c INT {text}"):
        assert classify(sql, "shop").kind in ("ddl", "dml", "transaction", "other", "unknown")


def test_deep_parentheses_are_read() -> None:
    deep = "(" * 20_000 + "1" + ")" * 20_000
    for sql in (
        f"ALTER TABLE t ADD c INT DEFAULT {deep}",
        f"CREATE TABLE t (a INT CHECK {deep})",
        f"ALTER TABLE t {deep}",
    ):
        assert classify(sql, "shop").kind == "ddl"
    assert classify("ALTER TABLE t ADD c INT DEFAULT ((-(3)))", "shop").changes[0].clause


@given(st.lists(st.sampled_from(WORDS), max_size=8), st.integers(0, 2**32))
@settings(max_examples=300)
def test_a_column_that_is_dropped_is_never_taken_for_nothing(words: list[str], seed: int) -> None:
    """If the text still has a clause DROP COLUMN of its own, the statement is not harmless."""
    tail = " ".join(word for word in words if word not in ("--", "#", "/*", "'", '"', "`", "(", "/*!"))
    statement = classify(f"ALTER TABLE t DROP COLUMN a, {tail}", "shop")
    assert not all(isinstance(change, (*KEEPS_COLUMNS, SetTableCharset)) for change in statement.changes)
    assert not statement.leaves_rows_alone


def _column(name: str) -> ColumnSchema:
    return ColumnSchema(
        name=name,
        data_type="int",
        column_type="int",
        nullable=True,
        default=None,
        extra="",
        charset=None,
        collation=None,
    )
