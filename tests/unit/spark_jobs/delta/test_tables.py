"""Column types that a Delta table may keep."""

from __future__ import annotations

from pyspark.sql import types as t

from spark_jobs.delta.tables import _holds


def test_wider_types_hold_narrower_ones() -> None:
    assert _holds(t.LongType(), t.IntegerType())
    assert _holds(t.DecimalType(12, 2), t.DecimalType(10, 2))
    assert not _holds(t.IntegerType(), t.LongType())
    assert not _holds(t.DecimalType(12, 3), t.DecimalType(10, 2))
    assert not _holds(t.StringType(), t.IntegerType())
