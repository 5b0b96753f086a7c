"""The changes of one table as a DataFrame: decoded by tasks of ``mapInArrow``, or on the driver if they are few.

A Python data source gives the same rows (:mod:`cdc.lake.rows.data_source`), but Spark starts a planner process for
each one that it loads, and each of these imports Towpath, Numba and Arrow. A few changes need no Python worker at all:
decoding them here takes less than sending a task. Nor do the rows that win in a plan, in a local session: see
:mod:`cdc.lake.rows.row_files`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cdc.lake.rows.input_splits import InputSplit
from cdc.lake.rows.split_reader import SplitReader, arrow_schema
from cdc.store.reader.staged import keys_of
from cdc.wire.files import servers_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql import types as t

    from cdc.lake.runtime.session import TableSession

SMALL_BYTES = 4 * 1024 * 1024
"""Changes in splits of at most this many bytes together are decoded on the driver."""
_LEAST_ROW_BYTES = 32
"""The least size of a row in a split, for estimates."""


def is_small(splits: Sequence[InputSplit]) -> bool:
    """Whether these splits are decoded on the driver."""
    return sum(split.length for split in splits) <= SMALL_BYTES


def changes_frame(session: TableSession, reader: SplitReader, splits: Sequence[InputSplit]) -> DataFrame:
    """Returns what ``reader`` reads from these splits. Changes that are decoded here raise their errors at once, others
    when the DataFrame is computed."""
    if is_small(splits):
        return local_frame(session, read_all(reader, splits), reader.fields)
    return mapped_frame(session, reader, splits)


def local_frame(session: TableSession, rows: pa.Table, fields: t.StructType) -> DataFrame:
    """Returns these rows as a local relation.

    Spark reads the Arrow batches of a local relation only up to the first one without rows, and drops the others
    silently. So it gets the rows in one piece.
    """
    # Spark takes a struct apart by its chunks, of which a column without rows needs one.
    whole = rows.combine_chunks() if rows.num_rows else rows.schema.empty_table()
    if any(column.num_chunks > 1 for column in whole.columns):
        raise ValueError("the rows of a local relation do not fit into one batch")
    return session.spark.createDataFrame(whole, fields)


def read_all(reader: SplitReader, splits: Sequence[InputSplit]) -> pa.Table:
    """Decodes the splits in this process."""
    import pyarrow as pa

    return pa.Table.from_batches(
        [batch for split in splits for batch in reader.read(split)], arrow_schema(reader.fields)
    )


def mapped_frame(session: TableSession, reader: SplitReader, splits: Sequence[InputSplit]) -> DataFrame:
    """Returns what tasks decode, one for each split.

    Spark sizes the result of ``mapInArrow`` by the number of its input's rows, and would broadcast a million changes
    that come from ten splits. So the input has a row for each :data:`_LEAST_ROW_BYTES` of the splits, which is more
    than they have; a filter in the JVM keeps one for each split. If there is less, adaptive execution sees that.
    """
    from pyspark.sql import functions as f

    each = max(1, sum(split.length for split in splits) // _LEAST_ROW_BYTES // len(splits))
    numbers = session.spark.range(0, len(splits) * each, 1, len(splits))
    numbers = numbers.where(f.col("id") % each == 0).select((f.col("id") / each).cast("long").alias("split"))
    servers = servers_of(split.path for split in splits)
    sent = replace(reader, splits=tuple(splits), servers=servers, store_keys=keys_of(split.path for split in splits))
    return numbers.mapInArrow(sent, reader.fields)
