"""Spark types of columns: from ``information_schema``, and from and to the decoder's Arrow types."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pyspark.sql import types as t

from cdc.base.errors import UnsupportedTypeError
from cdc.binlog.sql.tokens import word_set
from cdc.decode.column_types import DEFAULT_POLICIES, ValuePolicies
from cdc.lake.runtime import private_pyspark

if TYPE_CHECKING:
    import pyarrow as pa

    from cdc.binlog.sql.schemas import ColumnSchema

_SIGNED: dict[str, t.DataType] = {
    "tinyint": t.ByteType(),
    "smallint": t.ShortType(),
    "mediumint": t.IntegerType(),
    "int": t.IntegerType(),
    "integer": t.IntegerType(),
    "bigint": t.LongType(),
}
_UNSIGNED: dict[str, t.DataType] = {
    "tinyint": t.ShortType(),
    "smallint": t.IntegerType(),
    "mediumint": t.IntegerType(),
    "int": t.LongType(),
    "integer": t.LongType(),
    "bigint": t.DecimalType(20, 0),
}
_PLAIN: dict[str, t.DataType] = {
    "float": t.FloatType(),
    "double": t.DoubleType(),
    "real": t.DoubleType(),
    "year": t.ShortType(),
    "date": t.DateType(),
    "datetime": t.TimestampNTZType(),
    "timestamp": t.TimestampType(),
    "vector": t.ArrayType(t.FloatType()),
}
_STRINGS = word_set("time char varchar tinytext text mediumtext longtext enum set json uuid inet4 inet6 xmltype")
_BINARIES = word_set(
    "binary varbinary tinyblob blob mediumblob longblob geometry point linestring polygon multipoint multilinestring "
    "multipolygon geometrycollection geomcollection"
)
DATES = word_set("date datetime timestamp")
"""Types that the policy ``text`` applies to."""
TEXTS = word_set("char varchar tinytext text mediumtext longtext")
"""Types that the policy ``bytes`` applies to."""
_DECIMAL = re.compile(r"\((\d+)(?:,(\d+))?\)")
MAX_PRECISION = 38


def spark_type(column: ColumnSchema, table: str, policies: ValuePolicies = DEFAULT_POLICIES) -> t.DataType:
    """Returns the type that a column is decoded to. Raises UnsupportedTypeError."""
    kind, full = column.data_type.lower(), column.column_type.lower()
    if kind in DATES and column.name.lower() in policies.as_text:
        return t.StringType()
    if kind in TEXTS and column.name.lower() in policies.as_bytes:
        return t.BinaryType()
    if full.startswith("tinyint(1)") and policies.tinyint1 == "boolean":
        return t.BooleanType()
    if kind == "time" and policies.time == "microseconds":
        return t.LongType()
    if kind in _SIGNED:
        return (_UNSIGNED if "unsigned" in full or "zerofill" in full else _SIGNED)[kind]
    if kind in ("decimal", "numeric", "fixed"):
        match = _DECIMAL.search(full)
        precision, scale = (int(match[1]), int(match[2] or 0)) if match else (10, 0)
        return t.DecimalType(precision, scale) if precision <= MAX_PRECISION else t.StringType()
    if kind == "bit":
        match = _DECIMAL.search(full)
        bits = int(match[1]) if match else 1
        if bits == 1 and policies.bit1 == "boolean":
            return t.BooleanType()
        return t.DecimalType(20, 0) if bits == 64 else t.LongType()
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind in _STRINGS:
        return t.StringType()
    if kind in _BINARIES:
        return t.BinaryType()
    raise UnsupportedTypeError(
        f"column {column.name} has the type {column.column_type}, which is not supported yet",
        place=table,
        remedy="Exclude the table.",
    )


def from_arrow(kind: pa.DataType) -> t.DataType:
    """Returns the Spark type of an Arrow type of the decoder."""
    return private_pyspark.from_arrow_type(kind)


def to_arrow(kind: t.DataType) -> pa.DataType:
    """Returns the Arrow type of the decoder for a Spark type."""
    return private_pyspark.to_arrow_type(kind)


def from_arrow_schema(schema: pa.Schema) -> t.StructType:
    """Returns the schema for Spark, with every column nullable."""
    return t.StructType([t.StructField(field.name, from_arrow(field.type), True) for field in schema])


def shown(kind: t.DataType) -> str:
    """Returns a type as SQL writes it: ``decimal(20,0)``."""
    return kind.simpleString()
