"""Chooses how each column is decoded: its kind for the kernels, the conversion after them, and its Arrow type."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import pyarrow as pa

from cdc.base.errors import DamagedError, UnsupportedTypeError
from cdc.binlog.table_map import ColumnType
from cdc.decode.binary_json.convert import json_text, json_text_of_mysql_5
from cdc.decode.charsets.convert import exact_text, text_conversion, utf8_text
from cdc.decode.columns import BINARY, BLOBS, COMPRESSED, TEXTS, Column, describe
from cdc.decode.conversions.base import Conversion
from cdc.decode.conversions.temporal import (
    DATE_BYTES,
    HIRES_BYTES,
    date_text,
    hires_datetime,
    hires_time,
    hires_timestamp,
    old_date_text,
    old_datetime,
    old_time,
    old_timestamp,
    time_text,
)
from cdc.decode.conversions.values import (
    boolean,
    decimal_text,
    inet4_text,
    inet6_text,
    set_text,
    uncompressed,
    uuid_text,
    vector_floats,
)
from cdc.decode.kernels import constants as k
from cdc.decode.kernels.values import decimal_size


@dataclass(frozen=True)
class ValuePolicies:
    """The choices that a user has in how values arrive. See docs/types.md."""

    zero_dates: Literal["null", "fail"] = "null"
    """Whether zero and impossible dates, which Delta cannot hold, become null or stop decoding."""
    tinyint1: Literal["number", "boolean"] = "number"
    """For TINYINT(1), if a schema is known: table maps do not hold its width."""
    bit1: Literal["number", "boolean"] = "number"
    time: Literal["text", "microseconds"] = "text"
    as_text: tuple[str, ...] = ()
    """Columns (in lower case) of DATE, DATETIME and TIMESTAMP that become the text that SELECT prints, zero dates
    too."""
    as_bytes: tuple[str, ...] = ()
    """Columns of text whose bytes are delivered unchanged."""
    exact: tuple[str, ...] = ()
    """Columns of a key: a value that would become null, or lose bytes without a meaning, is refused."""

    def __post_init__(self) -> None:
        for name in ("as_text", "as_bytes", "exact"):  # they are lists if they come from JSON
            object.__setattr__(self, name, tuple(getattr(self, name)))


DEFAULT_POLICIES = ValuePolicies()


@dataclass(frozen=True)
class ColumnDecoding:
    """The decoding of a column, by the kernels and by the conversion after them."""

    kind: int
    raw: pa.DataType | None
    """The Arrow type that the kernels write; None if the column can be stepped over, but not decoded."""
    width: int = 0
    """Bytes of a value in the row, 0 if a length precedes it."""
    prefix: int = 0
    """Bytes of that length."""
    a: int = 0
    b: int = 0
    """``a`` and ``b`` are SPEC_A and SPEC_B of ``kernels.constants``."""
    members: tuple[bytes, ...] = ()
    """ENUM: the members in UTF-8; the first one is the empty string, which servers store for an invalid value."""
    conversion: Conversion | None = None
    final: pa.DataType | None = None
    """The Arrow type after the conversion; None without one."""

    @property
    def arrow(self) -> pa.DataType | None:
        """The column's type in the record batches."""
        return self.final if self.conversion is not None else self.raw


_INTEGERS = {
    ColumnType.TINY: (1, (k.I8, pa.int8()), (k.U8, pa.int16())),
    ColumnType.SHORT: (2, (k.I16, pa.int16()), (k.U16, pa.int32())),
    ColumnType.INT24: (3, (k.I24, pa.int32()), (k.U24, pa.int32())),
    ColumnType.LONG: (4, (k.I32, pa.int32()), (k.U32, pa.int64())),
    ColumnType.LONGLONG: (8, (k.I64, pa.int64()), (k.U64, pa.decimal128(20, 0))),
}
_INSTANT = pa.timestamp("us", tz="UTC")


def decoding_of(table: str, column: Column, policies: ValuePolicies) -> ColumnDecoding:
    """Returns the decoding of a column. Raises DamagedError if its lengths are impossible."""
    kind = column.type
    if kind in _INTEGERS:
        return _integer(column, policies)
    if kind == ColumnType.FLOAT:
        return ColumnDecoding(k.F32, pa.float32(), 4)
    if kind == ColumnType.DOUBLE:
        return ColumnDecoding(k.F64, pa.float64(), 8)
    if kind == ColumnType.NEWDECIMAL:
        return _decimal(column)
    if kind == ColumnType.BIT:
        return _bit(table, column, policies)
    if kind == ColumnType.YEAR:
        return ColumnDecoding(k.YEAR, pa.int16(), 1)
    if kind in TEXTS:
        return _text(table, column, policies)
    if kind == ColumnType.ENUM:
        return _enum(table, column)
    if kind == ColumnType.SET:
        return _set(table, column)
    if kind in (ColumnType.JSON, ColumnType.GEOMETRY, ColumnType.VECTOR):
        return _document(table, column)
    return _time(column, policies)


def _integer(column: Column, policies: ValuePolicies) -> ColumnDecoding:
    width, plain, unsigned = _INTEGERS[ColumnType(column.type)]
    code, arrow = unsigned if column.unsigned else plain
    if policies.tinyint1 == "boolean" and column.column_type.startswith("tinyint(1)"):
        return ColumnDecoding(code, arrow, width, conversion=boolean, final=pa.bool_())
    return ColumnDecoding(code, arrow, width)


def _decimal(column: Column) -> ColumnDecoding:
    width = int(decimal_size(column.precision, column.scale))
    if column.precision <= 38:
        return ColumnDecoding(
            k.DECIMAL, pa.decimal128(column.precision, column.scale), width, a=column.precision, b=column.scale
        )
    conversion = decimal_text(column.precision, column.scale)
    return ColumnDecoding(k.BYTES, pa.binary(), width, conversion=conversion, final=pa.string())


def _bit(table: str, column: Column, policies: ValuePolicies) -> ColumnDecoding:
    if not 1 <= column.length <= 64:
        raise _impossible(table, column)
    width = (column.length + 7) // 8
    if column.length == 64:
        return ColumnDecoding(k.BIT64, pa.decimal128(20, 0), width)
    if column.length == 1 and policies.bit1 == "boolean":
        return ColumnDecoding(k.BIT, pa.int64(), width, conversion=boolean, final=pa.bool_())
    return ColumnDecoding(k.BIT, pa.int64(), width)


def _time(column: Column, policies: ValuePolicies) -> ColumnDecoding:
    kind, digits = column.type, column.scale
    strict = int(_is_strict(column, policies))
    fraction = (digits + 1) // 2
    if column.name.lower() in policies.as_text and kind in DATE_BYTES:
        width = DATE_BYTES[kind] + (fraction if kind in (ColumnType.DATETIME2, ColumnType.TIMESTAMP2) else 0)
        return ColumnDecoding(k.BYTES, pa.binary(), width, conversion=date_text(kind, digits), final=pa.string())
    if kind in (ColumnType.DATE, ColumnType.NEWDATE):
        return ColumnDecoding(k.DATE, pa.date32(), 3, b=strict)
    if kind == ColumnType.DATETIME2:
        return ColumnDecoding(k.DATETIME, pa.timestamp("us"), 5 + fraction, a=fraction, b=strict)
    if kind == ColumnType.TIMESTAMP2:
        return ColumnDecoding(k.TIMESTAMP, _INSTANT, 4 + fraction, a=fraction, b=strict)
    as_text = policies.time == "text"
    if kind == ColumnType.TIME2:
        if not as_text:
            return ColumnDecoding(k.TIME, pa.int64(), 3 + fraction, a=fraction)
        return ColumnDecoding(
            k.TIME, pa.int64(), 3 + fraction, a=fraction, conversion=time_text(digits), final=pa.string()
        )
    if kind not in (ColumnType.TIMESTAMP, ColumnType.DATETIME, ColumnType.TIME):
        return ColumnDecoding(k.SKIP, None)
    return _old_time(column, policies)


def _is_strict(column: Column, policies: ValuePolicies) -> bool:
    """Whether a zero or impossible date in the column is refused."""
    return policies.zero_dates == "fail" or column.name.lower() in policies.exact


def _old_time(column: Column, policies: ValuePolicies) -> ColumnDecoding:
    """The storage before MySQL 5.6 and MariaDB 10.1. MariaDB's had fractions, which only the schema shows."""
    digits = int(column.column_type[column.column_type.find("(") + 1]) if "(" in column.column_type else 0
    strict = _is_strict(column, policies)
    if column.name.lower() in policies.as_text and column.type in (ColumnType.TIMESTAMP, ColumnType.DATETIME):
        kind = "timestamp" if column.type == ColumnType.TIMESTAMP else "datetime"
        width = 8 if kind == "datetime" and digits == 0 else HIRES_BYTES[kind][digits]
        return ColumnDecoding(k.BYTES, pa.binary(), width, conversion=old_date_text(kind, digits), final=pa.string())
    if column.type == ColumnType.TIMESTAMP:
        conversion = old_timestamp(strict) if digits == 0 else hires_timestamp(digits, strict)
        return ColumnDecoding(
            k.BYTES, pa.binary(), HIRES_BYTES["timestamp"][digits], conversion=conversion, final=_INSTANT
        )
    if column.type == ColumnType.DATETIME:
        conversion = old_datetime(strict) if digits == 0 else hires_datetime(digits, strict)
        width = HIRES_BYTES["datetime"][digits] if digits else 8
        return ColumnDecoding(k.BYTES, pa.binary(), width, conversion=conversion, final=pa.timestamp("us"))
    number = old_time if digits == 0 else hires_time(digits)
    width = HIRES_BYTES["time"][digits]
    if policies.time == "microseconds":
        return ColumnDecoding(k.BYTES, pa.binary(), width, conversion=number, final=pa.int64())
    return ColumnDecoding(k.BYTES, pa.binary(), width, conversion=_then(number, time_text(digits)), final=pa.string())


def _then(first: Conversion, second: Conversion) -> Conversion:
    return lambda raw: second(first(raw))


def _text(table: str, column: Column, policies: ValuePolicies) -> ColumnDecoding:
    blob = column.type in BLOBS or column.type == ColumnType.BLOB_COMPRESSED
    prefix = column.length if blob else 1 if column.length <= 255 else 2
    if not 1 <= prefix <= 4:
        raise _impossible(table, column)
    if column.type in COMPRESSED:
        return _compressed(column, prefix)
    if column.charset == BINARY:
        return _bytes(column, prefix)
    if column.name.lower() in policies.as_bytes:
        return ColumnDecoding(k.BYTES, pa.binary(), prefix=prefix)
    if column.charset == "latin1":
        return ColumnDecoding(k.LATIN1, pa.string(), prefix=prefix)
    decoding = _in_charset(column, ColumnDecoding(k.BYTES, pa.binary(), prefix=prefix))
    if column.name.lower() in policies.exact and column.charset is not None and decoding.arrow is not None:
        exact = exact_text(column.charset, decoding.conversion)
        return ColumnDecoding(k.BYTES, pa.binary(), prefix=prefix, conversion=exact, final=pa.string())
    return decoding


def _in_charset(column: Column, bytes_: ColumnDecoding) -> ColumnDecoding:
    """The decoding of a text whose bytes the given decoding delivers."""
    undecodable = ColumnDecoding(k.SKIP, None, prefix=bytes_.prefix)
    if column.charset is None:
        return undecodable
    try:
        conversion = text_conversion(column.charset)
    except LookupError:
        return undecodable
    if bytes_.conversion is not None:
        then = utf8_text if conversion is None else conversion
        return replace(bytes_, conversion=_then(bytes_.conversion, then), final=pa.string())
    if conversion is None:
        return replace(bytes_, raw=pa.string())
    return replace(bytes_, conversion=conversion, final=pa.string())


def _compressed(column: Column, prefix: int) -> ColumnDecoding:
    decoding = ColumnDecoding(k.BYTES, pa.binary(), prefix=prefix, conversion=uncompressed, final=pa.binary())
    return decoding if column.charset == BINARY else _in_charset(column, decoding)


def _bytes(column: Column, prefix: int) -> ColumnDecoding:
    """BINARY, VARBINARY, BLOB, and MariaDB's types that look like these."""
    if column.declared in ("uuid", "inet4", "inet6"):
        conversion = {"uuid": uuid_text, "inet4": inet4_text, "inet6": inet6_text}[column.declared]
        return ColumnDecoding(
            k.PADDED, pa.binary(), prefix=prefix, a=column.length, conversion=conversion, final=pa.string()
        )
    if column.declared == "vector":
        return ColumnDecoding(
            k.BYTES, pa.binary(), prefix=prefix, conversion=vector_floats, final=pa.list_(pa.float32())
        )
    if column.type == ColumnType.STRING:
        return ColumnDecoding(k.PADDED, pa.binary(), prefix=prefix, a=column.length)
    return ColumnDecoding(k.BYTES, pa.binary(), prefix=prefix)


def _enum(table: str, column: Column) -> ColumnDecoding:
    if column.length not in (1, 2):
        raise _impossible(table, column)
    members = (b"", *(member.encode() for member in column.members))
    return ColumnDecoding(k.ENUM, pa.string(), column.length, a=len(column.members), members=members)


def _set(table: str, column: Column) -> ColumnDecoding:
    if column.length not in (1, 2, 3, 4, 8):
        raise _impossible(table, column)
    conversion = partial(set_text, column.members)
    return ColumnDecoding(k.BYTES, pa.binary(), column.length, conversion=conversion, final=pa.string())


def _document(table: str, column: Column) -> ColumnDecoding:
    """JSON, GEOMETRY, VECTOR: a length of ``column.length`` bytes precedes the value."""
    if not 1 <= column.length <= 4:
        raise _impossible(table, column)
    if column.type == ColumnType.JSON:
        conversion = json_text_of_mysql_5 if column.of_mysql_5 else json_text
        return ColumnDecoding(k.BYTES, pa.binary(), prefix=column.length, conversion=conversion, final=pa.string())
    if column.type == ColumnType.VECTOR:
        final = pa.list_(pa.float32())
        return ColumnDecoding(k.BYTES, pa.binary(), prefix=column.length, conversion=vector_floats, final=final)
    return ColumnDecoding(k.BYTES, pa.binary(), prefix=column.length)


def _impossible(table: str, column: Column) -> DamagedError:
    return DamagedError(
        f"the column {column.name} of type {describe(column)} is described with impossible lengths",
        place=f"table {table}",
    )


def unsupported(table: str, column: Column) -> UnsupportedTypeError:
    """The error for a column whose type or character set cannot be decoded."""
    return UnsupportedTypeError(
        f"the column {column.name} has the type {describe(column)}, which cannot be decoded",
        place=f"table {table}",
        remedy="Exclude the table, or the column (apply.columns: {NAME: drop}).",
    )
