"""Prints record batches as JSON lines, a column at a time.

Numbers are numbers; DECIMAL, unsigned BIGINT and BIT(64) are strings, so that no digit is lost. Times are ISO 8601
with microseconds, with a ``Z`` if they are instants. Bytes are hexadecimal. A VECTOR is an array of numbers. JSON
columns are strings that hold the document's text: most readers would lose digits and the order of keys of nested ones.
Numbers that JSON does not have are the strings ``NaN``, ``Infinity`` and ``-Infinity``. ``_op`` is a word of
:data:`OPERATIONS`.
"""

from __future__ import annotations

from collections.abc import Iterator
from json.encoder import encode_basestring
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.decode.conversions.base import MAX_TEXT_BYTES
from cdc.decode.kernels.values import measure_points, write_points

OPERATIONS = ("delete", "insert", "update")
_ROWS_AT_ONCE = 1 << 16
_SLICE_BYTES = 64 << 20

_Segment: TypeAlias = "str | pa.Array"
"""A part of each row's line: a text that all rows share, or an array of strings without nulls."""

_HEX = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), dtype=np.uint16)
_DIGITS_IN_64_BITS = 18


def to_json_lines(batch: pa.RecordBatch) -> str:
    """One line for each row, with its line end."""
    return b"".join(json_lines(batch)).decode()


def json_lines(batch: pa.RecordBatch) -> Iterator[memoryview | bytes]:
    """Yields the lines of all rows in UTF-8, in pieces of bounded size that may end inside a line."""
    for part in _slices(batch):
        yield from _single(part) if part.num_rows == 1 else _joined(_row_parts(part))


def line_arrays(batch: pa.RecordBatch) -> Iterator[pa.LargeStringArray]:
    """Yields the lines of all rows, a string for each row, in arrays of bounded size."""
    for part in _slices(batch):
        if part.num_rows == 1:
            yield pa.array([b"".join(_single(part))], pa.large_binary()).cast(pa.large_string())
        else:
            yield _join(_row_parts(part)).cast(pa.large_string())


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    at = 0
    while at < batch.num_rows:
        count = min(_ROWS_AT_ONCE, batch.num_rows - at)
        # A value's text may be six times as large, and an Arrow array holds 2 GiB of text.
        while count > 1 and batch.slice(at, count).nbytes > _SLICE_BYTES:
            count //= 2
        yield batch.slice(at, count)
        at += count


def with_words(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with ``_op`` as a word of :data:`OPERATIONS`."""
    at = batch.schema.get_field_index("_op")
    words = pa.array(OPERATIONS).take(batch.column(at))
    return batch.set_column(at, pa.field("_op", pa.string()), words)


def _row_parts(batch: pa.RecordBatch) -> list[_Segment]:
    names = batch.schema.names
    return [*_object(names, [_op(c) if n == "_op" else _json(c) for n, c in zip(names, batch, strict=True)]), "\n"]


def _joined(parts: list[_Segment]) -> Iterator[memoryview]:
    text = _join(parts)
    offsets = np.frombuffer(text.buffers()[1], dtype=np.int32)[text.offset : text.offset + len(text) + 1]
    yield memoryview(text.buffers()[2])[int(offsets[0]) : int(offsets[-1])]


def _single(row: pa.RecordBatch) -> Iterator[memoryview | bytes]:
    """Yields the parts of one row without joining them in memory: its values may be as large as an array can hold."""
    for part in _row_parts(row):
        if isinstance(part, str):
            yield part.encode()
        else:
            yield memoryview(part[0].as_buffer())


def _join(parts: list[_Segment]) -> pa.Array:
    merged: list[_Segment] = []
    for part in parts:
        last = merged[-1] if merged else None
        if isinstance(part, str) and isinstance(last, str):
            merged[-1] = last + part
        else:
            merged.append(part)
    values = [pa.scalar(part, pa.string()) if isinstance(part, str) else part for part in merged]
    return values[0] if len(values) == 1 else pc.binary_join_element_wise(*values, pa.scalar(""))


def _op(column: pa.Array) -> list[_Segment]:
    return ['"', pa.array(OPERATIONS, pa.string()).take(column), '"']


def _object(names: list[str], values: list[list[_Segment]]) -> list[_Segment]:
    parts: list[_Segment] = [] if names else ["{"]
    for i, (name, value) in enumerate(zip(names, values, strict=True)):
        parts += [f"{', ' if i else '{'}{encode_basestring(name)}: ", *value]
    return [*parts, "}"]


def plain_texts(column: pa.Array) -> pa.Array:
    """Each value as its text in JSON, without quotation marks; null stays null. Not for texts and bytes."""
    if len(column) == column.null_count:
        return pa.nulls(len(column), pa.string())
    texts = _join([part for part in _values(column) if part != '"' and part != 'Z"'])
    if pa.types.is_timestamp(column.type) and column.type.tz:
        texts = pc.binary_join_element_wise(texts, "Z", "")
    return pc.if_else(column.is_valid(), texts, pa.scalar(None, pa.string()))


def _json(column: pa.Array) -> list[_Segment]:
    """Each value as JSON text, null as ``null``."""
    if column.null_count == len(column):
        return ["null"]
    parts = _values(column)
    if column.null_count == 0:
        return parts
    return [pc.if_else(column.is_valid(), _join(parts), "null")]


def _values(column: pa.Array) -> list[_Segment]:
    """Each value as JSON text, and any text in the place of a null."""
    kind = column.type
    if pa.types.is_struct(kind):
        names = [kind.field(i).name for i in range(kind.num_fields)]
        return _object(names, [_json(column.field(i)) for i in range(kind.num_fields)])
    if pa.types.is_string(kind):
        return ['"', _escaped(column.fill_null("")), '"']
    if pa.types.is_binary(kind):
        return ['"', hexadecimal(column.fill_null(b"")), '"']
    if pa.types.is_decimal(kind):
        return ['"', _decimals(column.fill_null(0)), '"']
    if pa.types.is_timestamp(kind):
        return ['"', _moments(column), 'Z"' if kind.tz else '"']
    if pa.types.is_date(kind):
        return ['"', pc.cast(column.fill_null(pa.scalar(0, pa.int32()).cast(kind)), pa.string()), '"']
    if pa.types.is_floating(kind):
        return [_floats(column.fill_null(0.0))]
    if pa.types.is_list(kind):
        return ["[", _lists(column), "]"]
    return [pc.cast(column.fill_null(False if pa.types.is_boolean(kind) else 0), pa.string())]


def _escaped(text: pa.Array) -> pa.Array:
    offsets = np.frombuffer(text.buffers()[1], dtype=np.int32)[text.offset : text.offset + len(text) + 1]
    data = text.buffers()[2]
    used = np.frombuffer(data, dtype=np.uint8)[offsets[0] : offsets[-1]] if data is not None else np.empty(0, np.uint8)
    if bool((used < 0x20).any()):
        distinct = pc.dictionary_encode(text)
        escaped = [encode_basestring(value)[1:-1] for value in distinct.dictionary.to_pylist()]
        return pa.array(escaped, pa.string()).take(distinct.indices)
    if bool((used == ord("\\")).any()):
        text = pc.replace_substring(text, "\\", "\\\\")
    if bool((used == ord('"')).any()):
        text = pc.replace_substring(text, '"', '\\"')
    return text


def hexadecimal(raw: pa.Array) -> pa.Array:
    """The digits of bytes without nulls, two for each byte."""
    offsets = np.frombuffer(raw.buffers()[1], dtype=np.int32)[raw.offset : raw.offset + len(raw) + 1]
    data = raw.buffers()[2]
    used = np.frombuffer(data, dtype=np.uint8)[offsets[0] : offsets[-1]] if data is not None else np.empty(0, np.uint8)
    digits = pa.py_buffer(_HEX[used])
    places = 2 * (offsets.astype(np.int64) - int(offsets[0]))
    if 2 * len(used) > MAX_TEXT_BYTES:
        return pa.Array.from_buffers(pa.large_string(), len(raw), [None, pa.py_buffer(places), digits])
    return pa.Array.from_buffers(pa.string(), len(raw), [None, pa.py_buffer(places.astype(np.int32)), digits])


def _decimals(column: pa.Array) -> pa.Array:
    """Decimals without exponents, with all digits after the point."""
    whole_type = pa.decimal128(38, 0)
    digits = pa.Array.from_buffers(whole_type, len(column), [None, column.buffers()[1]], offset=column.offset)
    if column.type.precision <= _DIGITS_IN_64_BITS:  # much faster
        halves = np.frombuffer(column.buffers()[1], dtype=np.int64)[2 * column.offset :: 2][: len(column)]
        digits = pa.array(np.ascontiguousarray(halves))
    whole = pc.cast(digits, pa.string())
    if not column.type.scale:
        return whole
    at = np.frombuffer(whole.buffers()[1], dtype=np.int32)
    data = np.frombuffer(whole.buffers()[2], dtype=np.uint8)
    offsets = np.empty(len(whole) + 1, dtype=np.int32)
    out = np.empty(measure_points(at, data, column.type.scale, offsets), dtype=np.uint8)
    write_points(at, data, column.type.scale, offsets, out)
    return pa.Array.from_buffers(pa.string(), len(whole), [None, pa.py_buffer(offsets), pa.py_buffer(out)])


def _moments(column: pa.Array) -> pa.Array:
    us = column.view(pa.int64()).fill_null(0)
    text = pc.cast(us.view(pa.timestamp("us")), pa.string())
    offsets = np.frombuffer(text.buffers()[1], dtype=np.int32)[: len(text) + 1]
    width = len("2024-02-29 12:34:56.123456")
    if int(offsets[-1]) != width * len(text) or bool((np.diff(offsets) != width).any()):
        return pc.replace_substring(text, " ", "T", max_replacements=1)
    letters = np.frombuffer(text.buffers()[2], dtype=np.uint8)[: width * len(text)].reshape(len(text), width).copy()
    letters[:, 10] = ord("T")
    return pa.Array.from_buffers(pa.string(), len(text), [None, text.buffers()[1], pa.py_buffer(letters)])


def _floats(column: pa.Array) -> pa.Array:
    """The shortest digits that are read as the same number."""
    text = pc.cast(column, pa.string())
    number = column.to_numpy(zero_copy_only=False)
    minus = (number == 0) & np.signbit(number)
    if minus.any():  # many readers take -0 for an integer, which has no sign
        text = pc.if_else(pa.array(minus), "-0.0", text)
    finite = pc.is_finite(column)
    if pc.all(finite).as_py() is not False:
        return text
    words = pc.if_else(pc.is_nan(column), '"NaN"', pc.if_else(pc.less(column, 0), '"-Infinity"', '"Infinity"'))
    return pc.if_else(finite, text, words)


def _lists(column: pa.Array) -> pa.Array:
    """The elements of each list, separated by commas."""
    begin = column.offsets.to_numpy(zero_copy_only=False)
    values = column.values.slice(int(begin[0]), int(begin[-1] - begin[0]))
    texts = _join(_json(values)) if len(values) else pa.array([], pa.string())
    if isinstance(texts, pa.Scalar):
        texts = pa.repeat(texts, len(values))
    lists = pa.ListArray.from_arrays(pa.array(begin - begin[0], pa.int32()), texts)
    return pc.binary_join(lists, ", ")


__all__ = ["OPERATIONS", "hexadecimal", "json_lines", "line_arrays", "plain_texts", "to_json_lines", "with_words"]
