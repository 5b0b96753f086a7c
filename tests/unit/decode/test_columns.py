"""Columns from a stored schema, and table maps that contradict it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.base.errors import SourceRefusedError
from cdc.binlog.sql.schemas import ColumnSchema, TableSchema, quoted_members
from cdc.binlog.table_map import ColumnMeta, TableMap
from cdc.binlog.table_map import ColumnType as T
from cdc.decode.columns import contradiction, describe, resolve
from tests.support.unit_decode import TYPED_KINDS, schemas_of


def defined(column_type: str, charset: str | None = None, *, nullable: bool = True, name: str = "c") -> ColumnSchema:
    return ColumnSchema(
        name=name, data_type=column_type.partition("(")[0].partition(" ")[0], column_type=column_type, nullable=nullable,
        default=None, extra="", charset=charset, collation=None,
    )  # fmt: skip


def meta(kind: int, length: int = 0, *, precision: int = 0, scale: int = 0, nullable: bool = True) -> ColumnMeta:
    """A column in the table map of a server without metadata."""
    return ColumnMeta("", kind, length=length, precision=precision, scale=scale, nullable=nullable)


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\\"), max_size=6), min_size=1, max_size=5))
def test_members_with_anything(members: list[str]) -> None:
    quoted = ",".join("'" + member.replace("'", "''") + "'" for member in members)
    assert quoted_members(f"set({quoted})") == tuple(members)


@pytest.mark.parametrize(
    ("column_type", "members"),
    [
        ("enum('a')", ("a",)),
        ("enum('it''s','x,y','(z)')", ("it's", "x,y", "(z)")),
        ("enum('')", ("",)),
        ("enum('''','''''')", ("'", "''")),
        (r"enum('back\\slash','new\nline','zero\0')", ("back\\slash", "new\nline", "zero\0")),
        ("set('ü','表')", ("ü", "表")),
        ("int(11)", ()),
    ],
)
def test_members(column_type: str, members: tuple[str, ...]) -> None:
    assert quoted_members(column_type) == members


# The schema's column, what a table map says of it, and what it says of another one.
PAIRS: dict[str, tuple[ColumnSchema, ColumnMeta, list[ColumnMeta]]] = {
    "tinyint": (defined("tinyint(1)"), meta(T.TINY), [meta(T.SHORT), meta(T.YEAR)]),
    "smallint": (defined("smallint(6) unsigned"), meta(T.SHORT), [meta(T.TINY), meta(T.LONG)]),
    "mediumint": (defined("mediumint(9)"), meta(T.INT24), [meta(T.LONG)]),
    "int": (defined("int(11)"), meta(T.LONG), [meta(T.INT24), meta(T.LONGLONG), meta(T.FLOAT)]),
    "bigint": (defined("bigint(20) unsigned"), meta(T.LONGLONG), [meta(T.LONG)]),
    "float": (defined("float"), meta(T.FLOAT, 4), [meta(T.DOUBLE, 8)]),
    "double": (defined("double"), meta(T.DOUBLE, 8), [meta(T.FLOAT, 4)]),
    "decimal": (defined("decimal(12,2)"), meta(T.NEWDECIMAL, precision=12, scale=2),
                [meta(T.NEWDECIMAL, precision=12, scale=3), meta(T.NEWDECIMAL, precision=13, scale=2), meta(T.DOUBLE)]),
    "decimal without a fraction": (defined("decimal(9,0)"), meta(T.NEWDECIMAL, precision=9), [meta(T.NEWDECIMAL, precision=9, scale=1)]),
    "bit": (defined("bit(9)"), meta(T.BIT, 9), [meta(T.BIT, 8), meta(T.TINY)]),
    "year": (defined("year(4)"), meta(T.YEAR), [meta(T.TINY)]),
    "date": (defined("date"), meta(T.DATE), [meta(T.DATETIME2)]),
    "time": (defined("time(3)"), meta(T.TIME2, scale=3), [meta(T.TIME2), meta(T.DATETIME2, scale=3)]),
    "old time": (defined("time"), meta(T.TIME), [meta(T.TIMESTAMP)]),
    "datetime": (defined("datetime"), meta(T.DATETIME2), [meta(T.DATETIME2, scale=6), meta(T.TIMESTAMP2)]),
    "timestamp": (defined("timestamp(6)"), meta(T.TIMESTAMP2, scale=6), [meta(T.TIMESTAMP2), meta(T.DATETIME2, scale=6)]),
    "char": (defined("char(10)", "utf8mb4"), meta(T.STRING, 40), [meta(T.STRING, 30), meta(T.VARCHAR, 40), meta(T.ENUM, 1)]),
    "varchar": (defined("varchar(20)", "sjis"), meta(T.VARCHAR, 40), [meta(T.VARCHAR, 20), meta(T.STRING, 40), meta(T.BLOB, 2)]),
    "varchar in one byte": (defined("varchar(20)", "latin1"), meta(T.VARCHAR, 20), [meta(T.VARCHAR, 21)]),
    "varchar in utf8": (defined("varchar(20)", "utf8"), meta(T.VARCHAR, 60), [meta(T.VARCHAR, 80)]),
    "binary": (defined("binary(6)"), meta(T.STRING, 6), [meta(T.STRING, 5), meta(T.VARCHAR, 6)]),
    "varbinary": (defined("varbinary(20)"), meta(T.VARCHAR, 20), [meta(T.VARCHAR, 21)]),
    "tinytext": (defined("tinytext", "ascii"), meta(T.BLOB, 1), [meta(T.BLOB, 2), meta(T.VARCHAR, 255)]),
    "text": (defined("text", "utf8mb4"), meta(T.BLOB, 2), [meta(T.BLOB, 3), meta(T.GEOMETRY, 4)]),
    "mediumblob": (defined("mediumblob"), meta(T.BLOB, 3), [meta(T.BLOB, 4)]),
    "longblob": (defined("longblob"), meta(T.BLOB, 4), [meta(T.BLOB, 1)]),
    "enum": (defined("enum('a','b')", "latin1"), meta(T.ENUM, 1), [meta(T.ENUM, 2), meta(T.SET, 1), meta(T.STRING, 1)]),
    "large enum": (defined(f"enum({','.join(f'{chr(39)}{n}{chr(39)}' for n in range(256))})", "latin1"), meta(T.ENUM, 2), [meta(T.ENUM, 1)]),
    "set": (defined("set('a','b')", "latin1"), meta(T.SET, 1), [meta(T.SET, 2), meta(T.ENUM, 1)]),
    "large set": (defined(f"set({','.join(f'{chr(39)}{n}{chr(39)}' for n in range(33))})", "latin1"), meta(T.SET, 8), [meta(T.SET, 4)]),
    "json": (defined("json"), meta(T.JSON, 4), [meta(T.BLOB, 4)]),
    "point": (defined("point"), meta(T.GEOMETRY, 4), [meta(T.BLOB, 4)]),
    "uuid": (defined("uuid"), meta(T.STRING, 16), [meta(T.STRING, 4), meta(T.VARCHAR, 16)]),
    "inet4": (defined("inet4"), meta(T.STRING, 4), [meta(T.STRING, 16)]),
    "inet6": (defined("inet6"), meta(T.STRING, 16), [meta(T.STRING, 4)]),
    "vector": (defined("vector(3)"), meta(T.VARCHAR, 12), [meta(T.STRING, 12)]),
    "compressed": (defined("varchar(900) /*M!100301 COMPRESSED*/", "latin1"), meta(T.VARCHAR_COMPRESSED, 901), [meta(T.BLOB_COMPRESSED, 2)]),
    "NULL": (defined("int(11)", nullable=True), meta(T.LONG), [meta(T.LONG, nullable=False)]),
    "NOT NULL": (defined("int(11)", nullable=False), meta(T.LONG, nullable=False), [meta(T.LONG)]),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_contradictions(name: str) -> None:
    schema, fitting, others = PAIRS[name]
    assert contradiction(fitting, schema) is None
    for other in others:
        assert contradiction(other, schema) is not None
        # The whole sentence, as a user reads it.
        with pytest.raises(SourceRefusedError) as caught:
            resolve(map_of(meta(T.LONG), other), schema_of(defined("int(11)", name="id"), schema))
        text = str(caught.value)
        assert text.startswith("table d.t: the rows contradict the stored schema")
        assert f"column 2 is {contradiction(other, schema)}" in text and f"says c {schema.column_type}" in text
        assert "Reload the table, or exclude it" in text
    columns, key = resolve(map_of(meta(T.LONG), fitting), schema_of(defined("int(11)", name="id"), schema))
    assert [column.name for column in columns] == ["id", "c"]
    assert key == ("id",)
    assert describe(columns[1]) != ""


def map_of(*columns: ColumnMeta) -> TableMap:
    return TableMap(table_id=1, db="d", table="t", columns=columns, primary_key=(), has_metadata=False)


def schema_of(*columns: ColumnSchema) -> TableSchema:
    return TableSchema(columns=columns, primary_key=("id",))


def test_other_numbers_of_columns() -> None:
    with pytest.raises(SourceRefusedError, match=r"table d\.t: .*the rows have 2 columns, the stored schema has 1"):
        resolve(map_of(meta(T.LONG), meta(T.LONG)), schema_of(defined("int(11)", name="id")))


def test_no_schema_at_all() -> None:
    with pytest.raises(
        SourceRefusedError, match=r"table d\.t: .*no schema of it is stored.*binlog_row_metadata=FULL.*--schema"
    ):
        resolve(map_of(meta(T.LONG)), None)


def test_what_the_schema_adds() -> None:
    columns, _ = resolve(
        map_of(meta(T.LONG), meta(T.SET, 1), meta(T.VARCHAR, 60), meta(T.BLOB, 2)),
        schema_of(
            defined("int(10) unsigned zerofill", name="id"), defined("set('a','ü')", "sjis"), defined("varchar(20)", "utf8"), defined("blob")
        ),
    )  # fmt: skip
    assert [column.unsigned for column in columns] == [True, False, False, False]
    assert columns[1].members == ("a", "ü")
    assert [column.charset for column in columns] == [None, "sjis", "utf8mb3", "binary"]


_UTF8 = 255
LATER = {
    "a member more": (ColumnMeta("c", T.ENUM, 1, collation=_UTF8, members=(b"a", b"b")), "enum('a')", "enum('a','b')"),
    "another order": (ColumnMeta("c", T.SET, 1, collation=_UTF8, members=(b"a", b"b")), "set('b','a')", "set('a','b')"),
    "another sign": (ColumnMeta("c", T.SHORT, unsigned=False), "smallint unsigned", "smallint"),
    "NOT NULL": (ColumnMeta("c", T.BLOB, 2, collation=_UTF8), "text", "text"),
}
"""A column of a table map with metadata, and its type in a later definition and in the one of its time."""


@pytest.mark.parametrize("name", LATER)
def test_a_later_definition_is_not_that_of_the_rows(name: str) -> None:
    column, later, same = LATER[name]
    table_map = TableMap(table_id=1, db="d", table="t", columns=(column,), primary_key=(), has_metadata=True)
    charset = "utf8mb4" if column.collation else None
    for column_type, nullable, expected in ((later, name != "NOT NULL", ""), (same, True, same)):
        (resolved,), _ = resolve(table_map, schema_of(defined(column_type, charset, nullable=nullable)))
        assert resolved.column_type == expected
        assert resolved.members == tuple(member.decode() for member in column.members)


@pytest.mark.parametrize("kind", TYPED_KINDS)
def test_real_schemas_name_their_members(kind: str) -> None:
    by_name = {column.name: column for column in schemas_of(kind).tables["shop.kinds"].columns}
    assert quoted_members(by_name["en"].column_type) == ("one", "zwei,drei", "it's €")
    assert quoted_members(by_name["st"].column_type) == ("a", 'b "c"', "ü")
    assert len(quoted_members(by_name["st64"].column_type)) == 64
