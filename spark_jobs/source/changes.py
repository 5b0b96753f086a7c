"""The changes of one table as a DataFrame: decoded by tasks of ``mapInArrow``, or on the driver if they are few.

A Python data source gives the same rows (:mod:`spark_jobs.source.data_source`), but Spark starts a planner process for
each one that it loads, and each of these imports Towpath, Numba and Arrow. A few changes need no Python worker at all:
decoding them here takes less than sending a task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from spark_jobs.source.input_splits import InputSplit
from spark_jobs.source.split_reader import SplitReader, arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark_jobs.runtime.session import TableSession

SMALL_BYTES = 4 * 1024 * 1024
"""Changes in splits of at most this many bytes together are decoded on the driver."""


def is_small(splits: Sequence[InputSplit]) -> bool:
    """Whether these splits are decoded on the driver."""
    return sum(one.length for one in splits) <= SMALL_BYTES


def changes_frame(session: TableSession, reader: SplitReader, splits: Sequence[InputSplit]) -> DataFrame:
    """Returns what ``reader`` reads from these splits. Changes that are decoded here raise their errors at once, others
    when the DataFrame is computed."""
    import pyarrow as pa

    if is_small(splits):
        batches = [batch for one in splits for batch in reader.read(one)]
        table = pa.Table.from_batches(batches, arrow_schema(reader.fields))
        return session.spark.createDataFrame(table, reader.fields)
    # One number and so one task for each split, on a Connect server as well.
    numbers = session.spark.range(0, len(splits), 1, len(splits))
    return numbers.mapInArrow(replace(reader, splits=tuple(splits)), reader.fields)
