"""The values of columns as Python objects: lists made by compiled code, a whole column at a time.

Numbers are ``int`` and ``float``; DECIMAL is :class:`decimal.Decimal`; DATE, DATETIME and TIMESTAMP are
:mod:`datetime`'s, TIMESTAMP with UTC; TIME is a ``timedelta``; texts are ``str``, bytes ``bytes``. A document of the
type JSON is what :func:`json.loads` makes of it.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.binlog.table_map import ColumnType
from cdc.decode.column_types import ValuePolicies
from cdc.decode.columns import Column

POLICIES = ValuePolicies(time="microseconds")
"""TIME is decoded as a number, which becomes a duration."""
_TIMES = frozenset({ColumnType.TIME, ColumnType.TIME2})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INTEGERS = frozenset({ColumnType.LONGLONG, ColumnType.BIT})
"""Types whose largest values are decimals in Arrow, which has no other type for them in Delta."""


def to_list(array: pa.Array, column: Column) -> list[Any]:
    """Returns a column's values, null as None."""
    kind = array.type
    if column.type in _TIMES and kind == pa.int64():
        return _plain(array.view(pa.duration("us")))
    if pa.types.is_decimal(kind) and column.type in _INTEGERS:
        return _plain(_low_halves(array))
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return _with_nulls(list(map(_EPOCH.__add__, _plain(pc.fill_null(array.view(pa.duration("us")), 0)))), array)
    if pa.types.is_nested(kind):
        nested: list[Any] = array.to_pylist()
        return nested
    values = _plain(array)
    return [None if text is None else json.loads(text) for text in values] if column.type == ColumnType.JSON else values


def _plain(array: pa.Array) -> list[Any]:
    """Values that NumPy or Arrow turn into objects without a call of Python for each."""
    kind = array.type
    if array.null_count and (pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_floating(kind)):
        return _with_nulls(pc.fill_null(array, pa.scalar(0).cast(kind)).to_numpy(zero_copy_only=False).tolist(), array)
    listed: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
    return listed


def _with_nulls(values: list[Any], array: pa.Array) -> list[Any]:
    if array.null_count:
        for at in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist():
            values[at] = None
    return values


def _low_halves(array: pa.Array) -> pa.Array:
    """The values of decimals without a fraction that lie below 2**64."""
    halves = np.frombuffer(array.buffers()[1], dtype=np.uint64)[2 * array.offset :: 2][: len(array)]
    mask = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    return pa.array(np.ascontiguousarray(halves), mask=mask)
