"""Statistics of Delta's log, taken from the footers of Parquet files. Readers skip files by them.

The form is Spark's: texts are cut to 32 characters, moments to milliseconds, and columns beyond
``delta.dataSkippingNumIndexedCols`` have none. A statistic that the footers do not tell is left out, and never guessed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as t

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow.parquet as pq

PREFIX = 32
"""Characters of a text that statistics keep."""
INDEXED_COLUMNS = 32
"""Columns that have statistics by default."""
INDEXED_PROPERTY = "delta.dataSkippingNumIndexedCols"
"""Delta table property: the number of columns that have statistics."""
_LAST_CHARACTER = "\U0010ffff"
_ORDERED = (
    t.ByteType, t.ShortType, t.IntegerType, t.LongType, t.FloatType, t.DoubleType, t.DecimalType, t.DateType,
    t.TimestampType, t.TimestampNTZType, t.StringType,
)  # fmt: skip
"""Types whose least and greatest values Delta keeps."""


def has_statistics(footers: Iterable[pq.FileMetaData]) -> bool:
    """Whether each column of each row group has statistics."""
    return all(
        footer.row_group(group).column(column).statistics is not None
        for footer in footers
        for group in range(footer.num_row_groups)
        for column in range(footer.num_columns)
    )


def added_file(
    path: Path,
    footers: Sequence[pq.FileMetaData],
    fields: Sequence[t.StructField],
    properties: Mapping[str, str],
    *,
    tight_bounds: bool = False,
) -> dict[str, Any]:
    """Returns the content of the ``add`` action for a new file in the folder of a table without partitions.
    ``properties``: those of the table. The others: see :func:`file_stats`."""
    status = path.stat()
    indexed = int(properties.get(INDEXED_PROPERTY, INDEXED_COLUMNS))
    return {
        "path": path.name,
        "partitionValues": {},
        "size": status.st_size,
        "modificationTime": status.st_mtime_ns // 1_000_000,
        "dataChange": True,
        "stats": file_stats(footers, fields, indexed=indexed, tight_bounds=tight_bounds),
    }


def file_stats(
    footers: Sequence[pq.FileMetaData],
    fields: Sequence[t.StructField],
    *,
    indexed: int = INDEXED_COLUMNS,
    tight_bounds: bool = False,
) -> str:
    """Returns the statistics of a file that consists of the row groups of these footers, as Delta's JSON.

    ``fields``: the table's columns, none of which is a struct; the files have them in the same order. ``indexed``: the
    number of columns with statistics; negative: all. ``tight_bounds``: whether to say that the bounds are exact, which
    tables with deletion vectors need.
    """
    least: dict[str, str] = {}
    greatest: dict[str, str] = {}
    nulls: dict[str, str] = {}
    chosen = list(fields) if indexed < 0 else list(fields)[:indexed]
    for number, field in enumerate(chosen):
        if isinstance(field.dataType, t.ArrayType):
            continue  # a footer counts elements, and Delta counts rows
        nulls[field.name] = str(_nulls(footers, number))
        bounds = _bounds(footers, number) if isinstance(field.dataType, _ORDERED) else None
        if bounds is not None:
            low, high = _text(bounds[0], field.dataType, up=False), _text(bounds[1], field.dataType, up=True)
            if low is not None and high is not None:
                least[field.name], greatest[field.name] = low, high
    parts = [f'"numRecords":{sum(footer.num_rows for footer in footers)}']
    parts += [
        f'"{name}":{{{",".join(f"{json.dumps(key, ensure_ascii=False)}:{value}" for key, value in values.items())}}}'
        for name, values in (("minValues", least), ("maxValues", greatest), ("nullCount", nulls))
    ]
    if tight_bounds:
        parts.append('"tightBounds":true')
    return "{" + ",".join(parts) + "}"


def _nulls(footers: Sequence[pq.FileMetaData], column: int) -> int:
    return sum(
        footer.row_group(group).column(column).statistics.null_count
        for footer in footers
        for group in range(footer.num_row_groups)
    )


def _bounds(footers: Sequence[pq.FileMetaData], column: int) -> tuple[Any, Any] | None:
    """Returns the least and the greatest value of a column; None if all are null, or a row group does not tell."""
    least, greatest = [], []
    for footer in footers:
        for group in range(footer.num_row_groups):
            statistics = footer.row_group(group).column(column).statistics
            if statistics.has_min_max:
                least.append(statistics.min)
                greatest.append(statistics.max)
            elif statistics.null_count < footer.row_group(group).num_rows:
                return None  # values that are too long for a footer
    return (min(least), max(greatest)) if least else None


def _text(value: Any, kind: t.DataType, *, up: bool) -> str | None:
    """Returns a bound as JSON; None if it has none. ``up``: whether a value that is cut must not become smaller."""
    if isinstance(value, str):
        cut = _cut(value, up=up)
        return None if cut is None else json.dumps(cut, ensure_ascii=False)
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        if isinstance(kind, t.FloatType):
            import numpy as np

            return str(np.float32(value))
        return repr(value)
    if isinstance(value, datetime):
        return json.dumps(value.isoformat(timespec="milliseconds").replace("+00:00", "Z"))
    if isinstance(value, date):
        return json.dumps(value.isoformat())
    return str(int(value))


def _cut(text: str, *, up: bool) -> str | None:
    """Returns the first characters of a text; with ``up`` such that no text with this beginning is greater."""
    if len(text) <= PREFIX:
        return text
    if not up:
        return text[:PREFIX]
    return None if text[PREFIX] == _LAST_CHARACTER else text[:PREFIX] + _LAST_CHARACTER
