"""Hashes values of a Delta table as the decoder hashes those of the binlog, by a function of Spark's SQL.

The values come as text, or as bytes, in a form that loses nothing; the function makes of them what the decoder had
hashed. The key travels with the pickled function, which plans, logs and the user interface do not show.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas.functions import pandas_udf

from cdc.decode.policies import hashed
from cdc.lake.rows.column_types import to_arrow
from cdc.lake.runtime.driver import ignore_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

_EPOCH = "TIMESTAMP_NTZ'1970-01-01 00:00:00'"
_TEXTS = (
    t.BooleanType, t.ByteType, t.ShortType, t.IntegerType, t.LongType, t.DecimalType, t.FloatType, t.DoubleType,
    t.DateType,
)  # fmt: skip
"""Types whose text in Spark is read as the same value by Arrow."""


def can_hash(kind: t.DataType) -> bool:
    """Whether values of this type can be hashed."""
    plain = (t.StringType, t.BinaryType, t.TimestampType, t.TimestampNTZType)
    return isinstance(kind, (*plain, *_TEXTS))


@contextmanager
def hash_function(spark: SparkSession, kind: t.DataType, key: bytes, digits: int) -> Iterator[Callable[[str], str]]:
    """Yields what makes SQL of a column's value the SQL of its hash, inside the block. ``kind``: the type of the values
    as the decoder gives them without a policy; ``digits``: those of a timestamp's fraction."""
    name = f"towpath_hash_{uuid.uuid4().hex}"
    make: Any = pandas_udf  # its types demand the kind of the function, which it takes from the hints
    spark.udf.register(name, make(_function(to_arrow(kind), key, digits), t.StringType()))
    try:
        yield lambda value: f"{name}({_sent(value, kind)})"
    finally:
        ignore_errors(lambda: spark.sql(f"DROP TEMPORARY FUNCTION IF EXISTS {name}"))


def _sent(value: str, kind: t.DataType) -> str:
    """Returns the SQL of a value as it is sent."""
    if isinstance(kind, t.TimestampType):
        return f"CAST(unix_micros({value}) AS STRING)"
    if isinstance(kind, t.TimestampNTZType):
        return f"CAST(timestampdiff(MICROSECOND, {_EPOCH}, {value}) AS STRING)"
    return f"CAST({value} AS STRING)" if isinstance(kind, _TEXTS) else value


def _function(kind: pa.DataType, key: bytes, digits: int) -> Callable[[pd.Series], pd.Series]:
    sent = pa.binary() if pa.types.is_binary(kind) else pa.string()

    def hash_values(values: pd.Series) -> pd.Series:
        array = pa.Array.from_pandas(values, type=sent)
        if pa.types.is_timestamp(kind):
            array = array.cast(pa.int64())
        return hashed(array.cast(kind), key, digits).to_pandas()

    return hash_values
