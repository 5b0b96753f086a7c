"""Arrow columns as Python objects."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from cdc.binlog.table_map import ColumnType
from cdc.decode.columns import Column
from cdc.streaming.values import to_list

LARGEST = 2**64 - 1
MOMENT = datetime(1000, 1, 1)  # noqa: DTZ001


@pytest.mark.parametrize(
    ("kind", "array", "values"),
    [
        (ColumnType.LONG, pa.array([1, None, -3], pa.int32()), [1, None, -3]),
        (ColumnType.DOUBLE, pa.array([1.5, None]), [1.5, None]),
        (ColumnType.TINY, pa.array([True, None, False]), [True, None, False]),
        (ColumnType.LONGLONG, pa.array([LARGEST, None, 0], pa.decimal128(20, 0)), [LARGEST, None, 0]),
        (ColumnType.BIT, pa.array([LARGEST], pa.decimal128(20, 0)), [LARGEST]),
        (ColumnType.NEWDECIMAL, pa.array([Decimal("1.50"), None]), [Decimal("1.50"), None]),
        (ColumnType.NEWDECIMAL, pa.array([Decimal(7)], pa.decimal128(20, 0)), [Decimal(7)]),
        (ColumnType.VARCHAR, pa.array(["é", None, ""]), ["é", None, ""]),
        (ColumnType.BLOB, pa.array([b"\0", None]), [b"\0", None]),
        (ColumnType.DATE, pa.array([date(1000, 1, 1), None, date(9999, 12, 31)]), [date(1000, 1, 1), None, date(9999, 12, 31)]),
        (ColumnType.DATETIME2, pa.array([MOMENT, None], pa.timestamp("us")), [MOMENT, None]),
        (
            ColumnType.TIMESTAMP2,
            pa.array([datetime(2038, 1, 19, 3, 14, 7, 999999, UTC), None], pa.timestamp("us", "UTC")),
            [datetime(2038, 1, 19, 3, 14, 7, 999999, UTC), None],
        ),
        (ColumnType.TIME2, pa.array([-1, None, 3020399000000], pa.int64()), [timedelta(microseconds=-1), None, timedelta(seconds=3020399)]),
        (ColumnType.JSON, pa.array(['{"a": [1, 2.5]}', None, "null"]), [{"a": [1, 2.5]}, None, None]),
        (ColumnType.VECTOR, pa.array([[1.0, 2.0], None], pa.list_(pa.float32())), [[1.0, 2.0], None]),
    ],
)  # fmt: skip
def test_values(kind: ColumnType, array: pa.Array, values: list[Any]) -> None:
    column = Column("c", int(kind))
    assert to_list(array, column) == values
    assert [type(value) for value in to_list(array, column)] == [type(value) for value in values]
    padded = pa.concat_arrays([array, array])
    assert to_list(padded.slice(1, len(array)), column) == [*values, *values][1 : 1 + len(array)]
    assert to_list(array.slice(0, 0), column) == []
