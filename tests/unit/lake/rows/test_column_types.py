"""Spark types of columns, from information_schema and from the decoder."""

from __future__ import annotations

import pyarrow as pa
import pytest

from cdc.base.errors import UnsupportedError, UnsupportedTypeError
from cdc.binlog.sql.schemas import ColumnSchema, TableSchema
from cdc.lake.rows.column_types import from_arrow_schema, spark_type
from cdc.lake.rows.columns import TablePolicies, columns_of_schema


def column(data_type: str, column_type: str | None = None, name: str = "c") -> ColumnSchema:
    return ColumnSchema(
        name=name,
        data_type=data_type,
        column_type=column_type or data_type,
        nullable=True,
        default=None,
        extra="",
        charset=None,
        collation=None,
    )


@pytest.mark.parametrize(
    ("data_type", "column_type", "expected"),
    [
        ("tinyint", "tinyint(4)", "tinyint"),
        ("tinyint", "tinyint(3) unsigned", "smallint"),
        ("smallint", "smallint(5) unsigned", "int"),
        ("mediumint", "mediumint unsigned", "int"),
        ("int", "int(10) unsigned", "bigint"),
        ("int", "int(10) unsigned zerofill", "bigint"),
        ("bigint", "bigint(20)", "bigint"),
        ("bigint", "bigint unsigned", "decimal(20,0)"),
        ("decimal", "decimal(12,2)", "decimal(12,2)"),
        ("decimal", "decimal(65,30)", "string"),
        ("bit", "bit(9)", "bigint"),
        ("bit", "bit(64)", "decimal(20,0)"),
        ("year", "year(4)", "smallint"),
        ("datetime", "datetime(6)", "timestamp_ntz"),
        ("timestamp", "timestamp(3)", "timestamp"),
        ("time", "time(6)", "string"),
        ("enum", "enum('unsigned')", "string"),
        ("varbinary", "varbinary(9)", "binary"),
        ("json", "json", "string"),
        ("geometry", "geometry", "binary"),
        ("vector", "vector(3)", "array<float>"),
        ("inet6", "inet6", "string"),
    ],
)
def test_types_of_information_schema(data_type: str, column_type: str, expected: str) -> None:
    assert spark_type(column(data_type, column_type), "shop.t").simpleString() == expected


def test_an_unknown_type_is_named() -> None:
    with pytest.raises(UnsupportedTypeError, match=r"table|shop\.t: column c has the type quaternion"):
        spark_type(column("quaternion"), "shop.t")


def test_the_decoders_types_are_those_of_information_schema() -> None:
    arrow = pa.schema(
        [
            pa.field("a", pa.int8()),
            pa.field("b", pa.int64()),
            pa.field("c", pa.decimal128(20, 0)),
            pa.field("d", pa.timestamp("us")),
            pa.field("e", pa.timestamp("us", tz="UTC")),
            pa.field("f", pa.date32()),
            pa.field("g", pa.binary()),
        ]
    )
    pairs = [
        ("tinyint", "tinyint"),
        ("int", "int unsigned"),
        ("bigint", "bigint unsigned"),
        ("datetime", "datetime(6)"),
        ("timestamp", "timestamp"),
        ("date", "date"),
        ("blob", "blob"),
    ]
    assert [f.dataType for f in from_arrow_schema(arrow)] == [spark_type(column(*pair), "t") for pair in pairs]


def test_a_column_with_one_of_our_names_is_refused() -> None:
    schema = TableSchema(columns=(column("int", name="_SEQ"),), primary_key=())
    with pytest.raises(UnsupportedError, match="_SEQ has a name that Towpath uses itself"):
        columns_of_schema(schema, TablePolicies("shop.t"))
