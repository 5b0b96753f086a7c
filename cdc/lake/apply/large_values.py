"""Values of many megabytes: passes a batch of them through executors that cannot hold several copies of one value.

Spark and Parquet hold a row's values wherever they sort, cache or summarise it. So the latest row of each key is found
by the keys alone and then read once, Parquet's writer keeps no dictionary, and no statistics hold the least and the
greatest text of a column. Measured in decision 0030.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from pyspark.sql import functions as f
from pyspark.sql import types as t

from cdc.decode.columns import METADATA_COLUMNS
from cdc.decode.layout import DELETE
from cdc.lake.delta.sql import literal, quote
from cdc.lake.delta.tables import LARGE_PROPERTY, schema_of
from cdc.lake.runtime.session import setting_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from cdc.lake.delta.log import DeltaState
    from cdc.lake.delta.tables import Target

LARGE_BYTES = 8 * 1024 * 1024
"""A row event above this may hold a value of which an executor cannot keep several copies."""

_STATISTICS_PROPERTY = "delta.dataSkippingStatsColumns"
_MOST_STATISTICS = 32
"""Delta's own default."""

_PARQUET = {
    # No copies for a dictionary, nor for the least and the greatest value of a page.
    "parquet.enable.dictionary": "false",
    "parquet.column.statistics.enabled": "false",
    "parquet.size.statistics.enabled": "false",
    # Check the size of page and row group after each row instead of each hundredth.
    "parquet.page.size.row.check.min": "1",
    "parquet.block.size.row.check.min": "1",
}
_SHORT = (t.NumericType, t.DateType, t.TimestampType, t.TimestampNTZType)
_MOST_BROADCAST = 1_000_000
"""Rows; more are joined by sorting."""
_IDENTITY = ("_seq", "_row", "_op")
"""The columns that identify a change: an update that changes its key is two, with different ``_op``."""


def careful_parquet(spark: SparkSession) -> AbstractContextManager[None]:
    """Sets up Parquet's writer for such values inside the block."""
    return setting_of(spark, _PARQUET)


def keep_last(
    changes: DataFrame, last: DataFrame, keys: Sequence[str], *, also: Sequence[str] = (), deleted: bool = False
) -> DataFrame:
    """Returns the changes that are in ``last``, which may lack columns. So large values are neither sorted to find them
    nor held with other rows.

    ``also``: columns of ``last`` that the result has, too. ``deleted``: all values of a deleted row are wanted;
    otherwise only its keys are kept.
    """
    identities = last.select(*_IDENTITY, *also)
    if identities.count() <= _MOST_BROADCAST:
        identities = f.broadcast(identities)
    kept = {*changes.columns} if deleted else {*keys, *METADATA_COLUMNS}
    columns = [
        f.col(quote(name)) if name in kept else f.when(f.col("_op") != DELETE, f.col(quote(name))).alias(name)
        for name in changes.columns
    ]
    return changes.join(identities, list(_IDENTITY)).select(*columns, *also)


def has_large_values(state: DeltaState) -> bool:
    """Whether the table has ever had such values."""
    return state.properties.get(LARGE_PROPERTY) == "true"


def mark_large(spark: SparkSession, target: Target, state: DeltaState, keys: Sequence[str]) -> DeltaState:
    """Marks the table, once, as one with such values, and restricts Delta's statistics to keys, numbers and times.

    Of a text Delta would hold the least and the greatest value whole, though it writes 32 characters of each. Settings
    of the table's owner are kept. ``keys``: the columns in Delta that statements look up.
    """
    if has_large_values(state):
        return state
    properties = {LARGE_PROPERTY: "true"}
    if _STATISTICS_PROPERTY not in state.properties:
        listed = ",".join(quote(name) for name in statistics_columns(schema_of(state), keys))
        # Delta takes an empty list as "not set".
        properties |= {_STATISTICS_PROPERTY: listed} if listed else {"delta.dataSkippingNumIndexedCols": "0"}
    values = ", ".join(f"{literal(name)} = {literal(value)}" for name, value in properties.items())
    spark.sql(f"ALTER TABLE {target.sql} SET TBLPROPERTIES ({values})")
    return target.state() or state


def statistics_columns(schema: t.StructType, keys: Sequence[str]) -> list[str]:
    """Returns the columns, keys first, that may have statistics."""
    short = [field.name for field in schema.fields if isinstance(field.dataType, _SHORT)]
    texts = {field.name for field in schema.fields if isinstance(field.dataType, t.StringType)}
    first = [name for name in keys if name in texts or name in short]
    return [*first, *(name for name in short if name not in first)][:_MOST_STATISTICS]
