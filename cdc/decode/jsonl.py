"""Record batches as JSON lines, a column at a time.

Numbers are numbers; DECIMAL (also unsigned BIGINT) is a string, so that no digit is lost; times are ISO 8601 with
microseconds, with a ``Z`` where they are instants; bytes are hexadecimal. ``_op`` is the word.
"""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

OPERATIONS = ("delete", "insert", "update")
_TO_ESCAPE = r'["\\\x00-\x1f]'


def to_json_lines(batch: pa.RecordBatch) -> str:
    """One line, with its end, for each row."""
    if batch.num_rows == 0:
        return ""
    text = _object(
        batch.schema.names,
        [_op(batch.column(i)) if n == "_op" else _json(batch.column(i)) for i, n in enumerate(batch.schema.names)],
    )
    return "\n".join(text.to_pylist()) + "\n"


def with_words(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with ``_op`` as a word."""
    at = batch.schema.get_field_index("_op")
    words = pa.array(OPERATIONS).take(batch.column(at))
    return batch.set_column(at, pa.field("_op", pa.string()), words)


def _op(column: pa.Array) -> pa.Array:
    return pa.array([json.dumps(word) for word in OPERATIONS]).take(column)


def _object(names: list[str], values: list[pa.Array]) -> pa.Array:
    parts: list[pa.Array | pa.Scalar] = []
    for i, (name, value) in enumerate(zip(names, values, strict=True)):
        parts += [pa.scalar(f"{', ' if i else '{'}{json.dumps(name, ensure_ascii=False)}: "), value]
    return pc.binary_join_element_wise(*parts, pa.scalar("}"), pa.scalar(""))


def _quoted(text: pa.Array, suffix: str = "") -> pa.Array:
    return pc.binary_join_element_wise(pa.scalar('"'), text, pa.scalar(suffix + '"'), pa.scalar(""))


def _json(column: pa.Array) -> pa.Array:
    """Each value as JSON text; null as ``null``."""
    kind = column.type
    if pa.types.is_struct(kind):
        fields = [_json(column.field(i)) for i in range(kind.num_fields)]
        text = _object([kind.field(i).name for i in range(kind.num_fields)], fields)
        return pc.if_else(pc.is_valid(column), text, "null")
    if pa.types.is_string(kind):
        text = _string(column)
    elif pa.types.is_binary(kind):
        text = _quoted(pa.array([None if v is None else v.hex() for v in column.to_pylist()], pa.string()))
    elif pa.types.is_decimal(kind):
        text = _quoted(pa.array([None if v is None else format(v, "f") for v in column.to_pylist()], pa.string()))
    elif pa.types.is_timestamp(kind):
        plain = column.view(pa.timestamp("us"))
        text = _quoted(pc.strftime(plain, format="%Y-%m-%dT%H:%M:%S"), "Z" if kind.tz else "")
    elif pa.types.is_date(kind):
        text = _quoted(pc.cast(column, pa.string()))
    elif pa.types.is_floating(kind):
        dtype = np.float32 if kind == pa.float32() else np.float64
        text = pa.array([None if v is None else str(dtype(v)) for v in column.to_pylist()], pa.string())
    else:
        text = pc.cast(column, pa.string())
    return pc.fill_null(text, "null")


def _string(column: pa.Array) -> pa.Array:
    if not pc.any(pc.match_substring_regex(column, _TO_ESCAPE), min_count=0).as_py():
        return _quoted(column)
    distinct = pc.dictionary_encode(column)
    escaped = [json.dumps(v, ensure_ascii=False) for v in distinct.dictionary.to_pylist()]
    return pa.array(escaped, pa.string()).take(distinct.indices)
