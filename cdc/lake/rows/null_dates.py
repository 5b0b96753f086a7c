"""Counts the zero and impossible dates that became null, as part of a read that happens anyway.

The data source delivers the counts in a column of their own: in the first row of each Arrow batch the number of values
of the batch that became null, else 0. An ``Observation`` of Spark sums them.
"""

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
FIELD = t.StructField(COLUMN, t.LongType(), False)


class NullDateCounter:
    """The number of such values in one read. Known after an action that consumed all rows of :meth:`watch`.

    If Spark loses an executor and reads rows again, it counts them again.
    """

    def __init__(self, observation: Any) -> None:
        """``observation``: a new one, of the session that reads."""
        self._observation = observation

    def watch(self, rows: DataFrame) -> DataFrame:
        """Returns the rows without the column, which is summed on the way."""
        return rows.observe(self._observation, f.sum(COLUMN).alias("count")).drop(COLUMN)

    @property
    def total(self) -> int:
        """The sum. Blocks until the action has ended, so call it only after one that saw rows."""
        return int(self._observation.get.get("count") or 0)


def add_column(batch: pa.RecordBatch, count: int) -> pa.RecordBatch:
    """Returns the batch with the column appended; its first row holds ``count``."""
    counts = np.zeros(batch.num_rows, dtype=np.int64)
    counts[:1] = count
    return batch.append_column(pa.field(COLUMN, pa.int64(), nullable=False), pa.array(counts))


class NullDateIncrements:
    """The growth of the decoder's count from one batch to the next."""

    def __init__(self, stats: DecodeStats) -> None:
        self._stats = stats
        self._before = 0

    def next(self) -> int:
        """Returns how many values became null since the last call."""
        now = sum(self._stats.null_dates.values())
        added, self._before = now - self._before, now
        return added
