"""The tracker of a table's definition, and the definitions of columns."""

from __future__ import annotations

import pytest

from cdc.base.errors import UnsupportedDdlError
from cdc.binlog.sql.changes import AddColumn, Constant, CreateTable, Null, Unknown
from cdc.binlog.sql.schemas import TableSchema
from cdc.binlog.sql.server import ServerVersion
from cdc.binlog.sql.statements import classify
from cdc.binlog.sql.track import apply_changes, plan_columns
from tests.support.ddl_run import with_database_charset

MYSQL9 = ServerVersion(mariadb=False, version=(9, 7, 0))
MYSQL56 = ServerVersion(mariadb=False, version=(5, 6, 24))
MARIADB = ServerVersion(mariadb=True, version=(11, 8, 0))


def made(definition: str, server: ServerVersion = MYSQL9) -> TableSchema:
    (change,) = classify(f"CREATE TABLE t ({definition}) CHARSET utf8mb4 COLLATE utf8mb4_bin", "d", 0, server).changes
    assert isinstance(change, CreateTable) and change.schema is not None
    return change.schema


def altered(definition: str, clauses: str, server: ServerVersion = MYSQL9) -> TableSchema:
    schema = apply_changes(made(definition, server), classify(f"ALTER TABLE t {clauses}", "d", 0, server).changes)
    assert schema is not None
    return schema


@pytest.mark.parametrize(
    ("clauses", "columns", "key"),
    [
        ("ADD d INT", "a b c d", "a"),
        ("ADD d INT FIRST, ADD e INT FIRST", "e d a b c", "a"),
        ("ADD d INT AFTER a, ADD e INT AFTER d", "a d e b c", "a"),
        ("DROP b, ADD b INT", "a c b", "a"),
        ("RENAME COLUMN a TO b, RENAME COLUMN b TO a", "b a c", "b"),
        ("CHANGE a b INT, CHANGE b a INT", "b a c", "b"),
        ("CHANGE a x INT AFTER c", "b c x", "x"),
        ("MODIFY c INT FIRST, MODIFY b INT AFTER c", "c b a", "a"),
        ("CHANGE A aa INT, ADD n INT AFTER AA", "aa n b c", "aa"),
        ("DROP PRIMARY KEY", "a b c", ""),
        ("ADD PRIMARY KEY (c, B), DROP PRIMARY KEY", "a b c", "c b"),
        ("DROP a", "b c", ""),
        ("DROP a, ADD PRIMARY KEY (c)", "b c", "c"),
        ("DROP a, ADD a BIGINT", "b c a", "a"),
        ("DROP PRIMARY KEY, ADD PRIMARY KEY (n), ADD n INT FIRST", "n a b c", "n"),
        ("ADD x INT, MODIFY x BIGINT FIRST", "x a b c", "a"),
        ("ALTER x DROP DEFAULT, ADD x INT", "a b c x", "a"),
        ("DROP COLUMN IF EXISTS x, ADD COLUMN IF NOT EXISTS b INT, CHANGE IF EXISTS y z INT", "a b c", "a"),
    ],
)
def test_clauses_act_at_once(clauses: str, columns: str, key: str) -> None:
    schema = altered("a INT PRIMARY KEY, b INT, c INT", clauses)
    assert " ".join(schema.column_names) == columns
    assert " ".join(schema.primary_key) == key
    assert all(not column.nullable for column in schema.columns if column.name in schema.primary_key)


@pytest.mark.parametrize(
    ("clauses", "message"),
    [
        ("DROP x", "names the column x, which is not there"),
        ("ADD b INT", "adds the column b, which is there already"),
        ("ADD x INT, ADD X INT", "adds the column X, which is there already"),
        ("CHANGE x y INT", "names the column x"),
        ("RENAME COLUMN a TO b", "two columns the name b"),
        ("ADD x INT AFTER y", "names the column y"),
        ("ADD PRIMARY KEY (b)", "adds a primary key, and there is one"),
        ("DROP PRIMARY KEY, ADD PRIMARY KEY (x)", "names the column x"),
        ("ALTER x SET DEFAULT 5", "names the column x"),
        ("FROBNICATE b", "clause FROBNICATE b is not understood"),
        ("ADD SYSTEM VERSIONING", "system versioning keeps old rows"),
    ],
)
def test_contradictions_are_named(clauses: str, message: str) -> None:
    with pytest.raises(UnsupportedDdlError, match=message):
        altered("a INT PRIMARY KEY, b INT", clauses)


def test_a_table_is_made_and_dropped() -> None:
    create = classify("CREATE TABLE IF NOT EXISTS t (a INT)", "d").changes
    first = apply_changes(None, create)
    assert first is not None and first.column_names == ("a",)
    other = made("b INT")
    assert apply_changes(other, create) == other
    assert apply_changes(other, classify("DROP TABLE t", "d").changes) is None
    assert apply_changes(other, classify("RENAME TABLE t TO u", "d").changes) == other
    with pytest.raises(UnsupportedDdlError, match="is there already"):
        apply_changes(other, classify("CREATE TABLE t (a INT)", "d").changes)
    with pytest.raises(UnsupportedDdlError, match="does not tell the table's columns"):
        apply_changes(None, classify("CREATE TABLE t LIKE u", "d").changes)


@pytest.mark.parametrize(
    ("written", "mysql9", "mysql56", "mariadb"),
    [
        ("INT", "int", "int(11)", "int(11)"),
        ("INT UNSIGNED", "int unsigned", "int(10) unsigned", "int(10) unsigned"),
        (
            "BIGINT(5) ZEROFILL",
            "bigint(5) unsigned zerofill",
            "bigint(5) unsigned zerofill",
            "bigint(5) unsigned zerofill",
        ),
        ("BOOL", "tinyint(1)", "tinyint(1)", "tinyint(1)"),
        ("YEAR", "year", "year(4)", "year(4)"),
        ("DEC(5)", "decimal(5,0)", "decimal(5,0)", "decimal(5,0)"),
        ("FLOAT(30)", "double", "double", "double"),
        ("TEXT(50)", "tinytext", "tinytext", "tinytext"),
        ("TEXT(100)", "text", "text", "text"),
        ("LONG VARCHAR", "mediumtext", "mediumtext", "mediumtext"),
        ("CHAR(4) BYTE", "binary(4)", "binary(4)", "binary(4)"),
        ("VARCHAR(9) CHARACTER SET binary", "varbinary(9)", "varbinary(9)", "varbinary(9)"),
        ("JSON", "json", "json", "longtext"),
        ("ENUM('a ','b''c')", "enum('a','b''c')", "enum('a','b''c')", "enum('a','b''c')"),
        ("GEOMETRYCOLLECTION", "geomcollection", "geometrycollection", "geometrycollection"),
    ],
)
def test_types_are_written_as_the_server_shows_them(written: str, mysql9: str, mysql56: str, mariadb: str) -> None:
    shown = [made(f"c {written}", server).columns[0].column_type for server in (MYSQL9, MYSQL56, MARIADB)]
    assert shown == [mysql9, mysql56, mariadb]


GENERATED_KEY = "my_row_id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT INVISIBLE PRIMARY KEY, a INT, b INT"


@pytest.mark.parametrize(
    ("definition", "clauses", "columns"),
    [
        (GENERATED_KEY, "ADD c INT FIRST", "my_row_id c a b"),
        (GENERATED_KEY, "ADD c INT FIRST, MODIFY b INT FIRST, ADD d INT AFTER my_row_id", "my_row_id d b c a"),
        (GENERATED_KEY, "CHANGE b x INT FIRST", "my_row_id x a"),
        (GENERATED_KEY, "ALTER my_row_id SET VISIBLE, ADD c INT FIRST", "my_row_id c a b"),
        (GENERATED_KEY, "MODIFY my_row_id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT FIRST", "my_row_id a b"),
        (GENERATED_KEY, "DROP my_row_id, ADD PRIMARY KEY (b), MODIFY b INT FIRST", "b a"),
        (GENERATED_KEY.replace("my_row_id", "My_Row_Id"), "ADD c INT FIRST", "My_Row_Id c a b"),
        (GENERATED_KEY.replace(" INVISIBLE", ""), "ADD c INT FIRST", "c my_row_id a b"),
        (GENERATED_KEY.replace("BIGINT", "INT"), "ADD c INT FIRST", "c my_row_id a b"),
        (GENERATED_KEY.replace("AUTO_INCREMENT", ""), "ADD c INT FIRST", "c my_row_id a b"),
        (f"z INT, {GENERATED_KEY}", "ADD c INT FIRST", "c z my_row_id a b"),
    ],
)
def test_a_generated_key_stays_first(definition: str, clauses: str, columns: str) -> None:
    assert " ".join(altered(definition, clauses).column_names) == columns


def test_a_generated_key_that_was_made_visible_is_a_column_like_others() -> None:
    visible = apply_changes(made(GENERATED_KEY), classify("ALTER TABLE t ALTER my_row_id SET VISIBLE", "d").changes)
    assert visible is not None and visible.columns[0].extra == "auto_increment"
    moved = apply_changes(visible, classify("ALTER TABLE t ADD c INT FIRST", "d").changes)
    assert moved is not None and moved.column_names == ("c", "my_row_id", "a", "b")
    hidden = apply_changes(visible, classify("ALTER TABLE t ALTER my_row_id SET INVISIBLE", "d").changes)
    assert hidden == made(GENERATED_KEY)


def test_mariadb_generates_no_key() -> None:
    definition = GENERATED_KEY.replace(" INVISIBLE PRIMARY KEY", " PRIMARY KEY INVISIBLE")
    assert altered(definition, "ADD c INT FIRST", MARIADB).column_names == ("c", "my_row_id", "a", "b")


def test_character_sets_come_from_the_table() -> None:
    schema = altered("a VARCHAR(9), b VARCHAR(9) CHARACTER SET latin1", "ADD c TEXT, ADD d INT, MODIFY b VARCHAR(9)")
    assert [(c.charset, c.collation) for c in schema.columns] == [
        ("utf8mb4", "utf8mb4_bin"), ("utf8mb4", "utf8mb4_bin"), ("utf8mb4", "utf8mb4_bin"), (None, None),
    ]  # fmt: skip
    schema = altered("a TEXT CHARACTER SET latin1, b INT", "CONVERT TO CHARACTER SET utf16")
    assert (schema.columns[0].column_type, schema.columns[0].charset, schema.charset) == (
        "mediumtext",
        "utf16",
        "utf16",
    )
    schema = altered("a INT", "CHARSET latin1, ADD b CHAR(3)")
    assert (schema.columns[1].charset, schema.charset) == ("latin1", "latin1")
    (change,) = classify("CREATE TABLE t (a VARCHAR(9), b TEXT(70))", "d").changes
    assert isinstance(change, CreateTable) and change.schema is not None
    assert (change.schema.columns[0].charset, change.schema.charset) == (None, None)
    as_bytes = with_database_charset(change.schema, "binary", "binary")
    assert [column.column_type for column in as_bytes.columns] == ["varbinary(9)", "tinyblob"]


@pytest.mark.parametrize(
    ("definition", "expected"),
    [
        ("INT", Null()),
        ("INT NOT NULL", Constant("0")),
        ("INT DEFAULT 1.5", Constant("2")),
        ("DECIMAL(6,2) DEFAULT 3", Constant("3.00")),
        ("FLOAT DEFAULT 0.1", Constant("0.1")),
        ("BIT(9) DEFAULT b'101'", Constant(b"\x00\x05")),
        ("BINARY(3) DEFAULT 'a'", Constant(b"a\0\0")),
        ("VARBINARY(3) DEFAULT x'00FF'", Constant(b"\x00\xff")),
        ("CHAR(5) DEFAULT 'a  '", Constant("a")),
        ("VARCHAR(5) DEFAULT 'ü'", Constant("ü")),
        ("VARCHAR(5) CHARACTER SET ascii DEFAULT 'ü'", None),
        ("VARCHAR(5) DEFAULT '\ufffd'", None),
        ("ENUM('x','y') NOT NULL", Constant("x")),
        ("ENUM('x','y') DEFAULT 'Y'", None),
        ("SET('x','y') DEFAULT 'y,x'", Constant("x,y")),
        ("DATE DEFAULT '2024-02-30'", None),
        ("DATETIME(2) DEFAULT '2024-02-29 01:02:03'", Constant("2024-02-29 01:02:03.00")),
        ("TIMESTAMP NULL DEFAULT '2024-02-29 01:02:03'", None),
        ("TIMESTAMP", None),
        ("DATETIME DEFAULT NOW()", None),
        ("INT DEFAULT (RAND())", None),
        ("INT AS (a + 1)", None),
        ("INT AUTO_INCREMENT", None),
        ("JSON DEFAULT (JSON_ARRAY())", Constant("[]")),
    ],
)
def test_old_rows(definition: str, expected: Null | Constant | None) -> None:
    changes = classify(f"ALTER TABLE t ADD n {definition}", "d", 0, MYSQL9).changes
    assert isinstance(changes[0], AddColumn)
    (old_rows,) = [column.old_rows for column in plan_columns(made("a INT"), changes).columns if column.old is None]
    assert isinstance(old_rows, Unknown) if expected is None else old_rows == expected


def test_a_default_depends_on_the_tables_character_set() -> None:
    changes = classify("ALTER TABLE t ADD n VARCHAR(5) DEFAULT 'ж', ADD m VARCHAR(5) DEFAULT 'u'", "d").changes
    for charset, plain in (("latin1", Constant("u")), ("binary", Constant(b"u"))):
        table = TableSchema(columns=(), primary_key=(), charset=charset)
        old_rows = [column.old_rows for column in plan_columns(table, changes).columns]
        assert isinstance(old_rows[0], Unknown)
        assert old_rows[1] == plain
    table = TableSchema(columns=(), primary_key=(), charset="cp1251")
    assert plan_columns(table, changes).columns[0].old_rows == Constant("ж")
