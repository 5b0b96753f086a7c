"""The data source without Spark's JVM."""

from __future__ import annotations

import pyarrow as pa
import pytest

import cdc.base.errors
from cdc.lake.rows.split_reader import conform


def test_batches_take_sparks_form() -> None:
    schema = pa.schema([pa.field("a", pa.int32()), pa.field("b", pa.timestamp("us", tz="UTC"))])
    given = pa.RecordBatch.from_arrays(
        [pa.array([1], pa.int32()), pa.array([5], pa.timestamp("us", tz="UTC"))],
        schema=pa.schema([pa.field("a", pa.int32(), nullable=False), schema.field("b")]),
    )
    assert conform(given, schema, "shop.t").schema.equals(schema)
    with pytest.raises(cdc.base.errors.PermanentError, match="column b is not in the decoded rows"):
        conform(given.select(["a"]), schema, "shop.t")
