"""Values of many megabytes: how a batch of them passes through executors that cannot hold several copies of one.

Spark and Parquet hold a row's values wherever they sort, cache or summarise it. So here the rows that win are found by
their keys alone and read once, Parquet's writer keeps no dictionary, and nobody keeps the least and the greatest text
of a column. Measured in decision 0030.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql import functions as f
from pyspark.sql import types as t

from cdc.decode.columns import METADATA_COLUMNS
from spark_jobs.apply.column_types import literal, quote
from spark_jobs.apply.reduce import DELETE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_jobs.delta.log import DeltaState
    from spark_jobs.delta.tables import Target

LARGE_BYTES = 8 * 1024 * 1024
"""A row event above this may hold a value of which an executor cannot keep several copies."""

LARGE_PROPERTY = "towpath.large_values"
"""``true`` in a table that has had such values: a merge may have to write them again with the rows beside them."""

_STATISTICS_PROPERTY = "delta.dataSkippingStatsColumns"
_MOST_STATISTICS = 32
"""As many as Delta keeps by itself."""

_PARQUET = {
    # Not one more copy for a dictionary, nor two for the least and the greatest value of a page.
    "parquet.enable.dictionary": "false",
    "parquet.column.statistics.enabled": "false",
    "parquet.size.statistics.enabled": "false",
    # A look at the size of page and row group after each row instead of each hundredth.
    "parquet.page.size.row.check.min": "1",
    "parquet.block.size.row.check.min": "1",
}
_SHORT = (t.NumericType, t.DateType, t.TimestampType, t.TimestampNTZType)
_MOST_BROADCAST = 1_000_000
"""Rows; more are joined by sorting."""
_IDENTITY = ("_seq", "_row", "_op")
"""What tells changes apart: an update that changes its key is two, of different ``_op``."""


@contextmanager
def careful_parquet(spark: SparkSession) -> Iterator[None]:
    """Parquet's writer as such values need it, for the statements of the block."""
    for name, value in _PARQUET.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in _PARQUET:
            spark.conf.unset(name)


def keep_last(changes: DataFrame, last: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Of all changes those that ``last`` has, which may lack columns: so the values are neither sorted to find them,
    nor held for the rows beside them. Of a deleted row the keys are left."""
    wanted = last.select(*_IDENTITY)
    if wanted.count() <= _MOST_BROADCAST:
        wanted = f.broadcast(wanted)
    kept = {*keys, *METADATA_COLUMNS}
    columns = [
        f.col(quote(name)) if name in kept else f.when(f.col("_op") != DELETE, f.col(quote(name))).alias(name)
        for name in changes.columns
    ]
    return changes.join(wanted, list(_IDENTITY), "left_semi").select(*columns)


def has_large_values(state: DeltaState) -> bool:
    """Whether the table has had such values."""
    return state.properties.get(LARGE_PROPERTY) == "true"


def mark_large(spark: SparkSession, place: Target, state: DeltaState, keys: Sequence[str]) -> DeltaState:
    """Once for each table: note that it has such values, and have Delta keep the least and the greatest value of keys,
    numbers and times only; of a text it would hold both whole, though it writes 32 characters of them. What the table's
    owner has set is left as it is. ``keys``: the columns that statements look up, in the lake."""
    if has_large_values(state):
        return state
    properties = {LARGE_PROPERTY: "true"}
    if _STATISTICS_PROPERTY not in state.properties:
        listed = ",".join(quote(name) for name in statistics_columns(state.schema, keys))
        # An empty list would mean that none is given.
        properties |= {_STATISTICS_PROPERTY: listed} if listed else {"delta.dataSkippingNumIndexedCols": "0"}
    values = ", ".join(f"{literal(name)} = {literal(value)}" for name, value in properties.items())
    spark.sql(f"ALTER TABLE {place.sql} SET TBLPROPERTIES ({values})")
    return place.state() or state


def statistics_columns(schema: t.StructType, keys: Sequence[str]) -> list[str]:
    """The columns, keys first, whose least and greatest value may be kept."""
    own = [field.name for field in schema.fields if isinstance(field.dataType, _SHORT)]
    texts = {field.name for field in schema.fields if isinstance(field.dataType, t.StringType)}
    first = [name for name in keys if name in texts or name in own]
    return [*first, *(name for name in own if name not in first)][:_MOST_STATISTICS]
