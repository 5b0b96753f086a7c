"""Counting the zero and impossible dates that became null, beside a reading that happens anyway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as f
from pyspark.sql import types as t

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from cdc.decode import DecodeStats

COLUMN = "_towpath_null_dates"
"""Of the data source: in the first row of each Arrow batch how many values of the batch became null, else 0."""
FIELD = t.StructField(COLUMN, t.LongType(), False)


class Count:
    """The number of such values in one reading; known when an action over all of :meth:`watch`'s rows has ended.

    Spark counts what is read again after the loss of an executor once more.
    """

    def __init__(self, observation: Any) -> None:
        """``observation``: a new one, of the session that reads."""
        self._observation = observation

    def watch(self, rows: DataFrame) -> DataFrame:
        """The rows, of which the column has been summed and taken away."""
        return rows.observe(self._observation, f.sum(COLUMN).alias("count")).drop(COLUMN)

    @property
    def total(self) -> int:
        """Waits for the action; so there must have been one that saw rows."""
        return int(self._observation.get.get("count") or 0)


def add_column(batch: pa.RecordBatch, count: int) -> pa.RecordBatch:
    """The batch with the column, which tells ``count``."""
    counts = np.zeros(batch.num_rows, dtype=np.int64)
    counts[:1] = count
    return batch.append_column(pa.field(COLUMN, pa.int64(), nullable=False), pa.array(counts))


class Increments:
    """How many of a reading's values came since the last time one asked."""

    def __init__(self, stats: DecodeStats) -> None:
        self._stats = stats
        self._before = 0

    def next(self) -> int:
        now = sum(self._stats.null_dates.values())
        found, self._before = now - self._before, now
        return found
