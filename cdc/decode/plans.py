"""What becomes of each column: its kind for the kernels, the conversion after them, its Arrow type."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import pyarrow as pa

from cdc.binlog.table_map import ColumnType
from cdc.decode.binary_json.convert import json_text
from cdc.decode.charsets.convert import text_conversion
from cdc.decode.charsets.exact import exact_text
from cdc.decode.charsets.utf8 import utf8_text
from cdc.decode.columns import BINARY, BLOBS, COMPRESSED, TEXTS, Column, describe
from cdc.decode.conversion import Conversion
from cdc.decode.kernels import constants as k
from cdc.decode.kernels.single import decimal_size
from cdc.decode.values.addresses import inet4_text, inet6_text, uuid_text
from cdc.decode.values.booleans import boolean
from cdc.decode.values.compressed import uncompressed
from cdc.decode.values.date_texts import DATE_BYTES, date_text, old_date_text
from cdc.decode.values.decimals import decimal_text
from cdc.decode.values.old_times import (
    HIRES_BYTES,
    hires_datetime,
    hires_time,
    hires_timestamp,
    old_datetime,
    old_time,
    old_timestamp,
)
from cdc.decode.values.sets import set_text
from cdc.decode.values.times import time_text
from cdc.decode.values.vectors import vector_floats
from cdc.errors import DamagedError, UnsupportedTypeError


@dataclass(frozen=True)
class ValuePolicies:
    """Where a user may have a value otherwise than the type table says. See docs/types.md."""

    zero_dates: Literal["null", "fail"] = "null"
    """What becomes of zero and impossible dates, which have no place in Delta."""
    tinyint1: Literal["number", "boolean"] = "number"
    """TINYINT(1), where a schema is known: table maps do not tell its width."""
    bit1: Literal["number", "boolean"] = "number"
    time: Literal["text", "microseconds"] = "text"
    as_text: tuple[str, ...] = ()
    """Columns (in lower case) of DATE, DATETIME and TIMESTAMP decoded to what SELECT prints, zero dates too."""
    as_bytes: tuple[str, ...] = ()
    """Columns of text whose bytes are delivered as they are."""
    exact: tuple[str, ...] = ()
    """Columns of a key: a value that would become null, or lose bytes that mean nothing, is refused."""

    def __post_init__(self) -> None:
        for name in ("as_text", "as_bytes", "exact"):  # lists, where they come as JSON
            object.__setattr__(self, name, tuple(getattr(self, name)))


DEFAULT_POLICIES = ValuePolicies()


@dataclass(frozen=True)
class Plan:
    """A column for the kernels, and for what comes after them."""

    kind: int
    raw: pa.DataType | None
    """The Arrow type that the kernels write; None: the column can be stepped over, but not decoded."""
    width: int = 0
    """Bytes of a value in the row, 0 where a length comes first."""
    prefix: int = 0
    """Bytes of that length."""
    a: int = 0
    b: int = 0
    members: tuple[bytes, ...] = ()
    """ENUM: the strings in UTF-8; first the empty one, which stands for a value that was refused."""
    conversion: Conversion | None = None
    final: pa.DataType | None = None
    """The Arrow type after the conversion."""

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


def plan_column(table: str, column: Column, policies: ValuePolicies) -> Plan:
    """What becomes of a column. Raises DamagedError where its numbers are impossible."""
    kind = column.type
    if kind in _INTEGERS:
        return _integer(column, policies)
    if kind == ColumnType.FLOAT:
        return Plan(k.F32, pa.float32(), 4)
    if kind == ColumnType.DOUBLE:
        return Plan(k.F64, pa.float64(), 8)
    if kind == ColumnType.NEWDECIMAL:
        return _decimal(column)
    if kind == ColumnType.BIT:
        return _bit(table, column, policies)
    if kind == ColumnType.YEAR:
        return Plan(k.YEAR, pa.int16(), 1)
    if kind in TEXTS:
        return _text(table, column, policies)
    if kind == ColumnType.ENUM:
        return _enum(table, column)
    if kind == ColumnType.SET:
        return _set(table, column)
    if kind in (ColumnType.JSON, ColumnType.GEOMETRY, ColumnType.VECTOR):
        return _document(table, column)
    return _time(table, column, policies)


def _integer(column: Column, policies: ValuePolicies) -> Plan:
    width, plain, unsigned = _INTEGERS[ColumnType(column.type)]
    code, arrow = unsigned if column.unsigned else plain
    if policies.tinyint1 == "boolean" and column.column_type.startswith("tinyint(1)"):
        return Plan(code, arrow, width, conversion=boolean, final=pa.bool_())
    return Plan(code, arrow, width)


def _decimal(column: Column) -> Plan:
    width = int(decimal_size(column.precision, column.scale))
    if column.precision <= 38:
        return Plan(k.DECIMAL, pa.decimal128(column.precision, column.scale), width, a=column.precision, b=column.scale)
    conversion = decimal_text(column.precision, column.scale)
    return Plan(k.BYTES, pa.binary(), width, conversion=conversion, final=pa.string())


def _bit(table: str, column: Column, policies: ValuePolicies) -> Plan:
    if not 1 <= column.length <= 64:
        raise _contradiction(table, column)
    width = (column.length + 7) // 8
    if column.length == 64:
        return Plan(k.BIT64, pa.decimal128(20, 0), width)
    if column.length == 1 and policies.bit1 == "boolean":
        return Plan(k.BIT, pa.int64(), width, conversion=boolean, final=pa.bool_())
    return Plan(k.BIT, pa.int64(), width)


def _time(table: str, column: Column, policies: ValuePolicies) -> Plan:
    kind, digits = column.type, column.scale
    strict = int(_is_strict(column, policies))
    fraction = (digits + 1) // 2
    if column.name.lower() in policies.as_text and kind in DATE_BYTES:
        width = DATE_BYTES[kind] + (fraction if kind in (ColumnType.DATETIME2, ColumnType.TIMESTAMP2) else 0)
        return Plan(k.BYTES, pa.binary(), width, conversion=date_text(kind, digits), final=pa.string())
    if kind in (ColumnType.DATE, ColumnType.NEWDATE):
        return Plan(k.DATE, pa.date32(), 3, b=strict)
    if kind == ColumnType.DATETIME2:
        return Plan(k.DATETIME, pa.timestamp("us"), 5 + fraction, a=fraction, b=strict)
    if kind == ColumnType.TIMESTAMP2:
        return Plan(k.TIMESTAMP, _INSTANT, 4 + fraction, a=fraction, b=strict)
    as_text = policies.time == "text"
    if kind == ColumnType.TIME2:
        if not as_text:
            return Plan(k.TIME, pa.int64(), 3 + fraction, a=fraction)
        return Plan(k.TIME, pa.int64(), 3 + fraction, a=fraction, conversion=time_text(digits), final=pa.string())
    if kind not in (ColumnType.TIMESTAMP, ColumnType.DATETIME, ColumnType.TIME):
        return Plan(k.SKIP, None)
    return _old_time(column, policies)


def _is_strict(column: Column, policies: ValuePolicies) -> bool:
    """Whether a zero or impossible date is refused."""
    return policies.zero_dates == "fail" or column.name.lower() in policies.exact


def _old_time(column: Column, policies: ValuePolicies) -> Plan:
    """Storage before MySQL 5.6 and MariaDB 10.1; MariaDB's had fractions, of which only its schema tells."""
    digits = int(column.column_type[column.column_type.find("(") + 1]) if "(" in column.column_type else 0
    strict = _is_strict(column, policies)
    if column.name.lower() in policies.as_text and column.type in (ColumnType.TIMESTAMP, ColumnType.DATETIME):
        kind = "timestamp" if column.type == ColumnType.TIMESTAMP else "datetime"
        width = 8 if kind == "datetime" and digits == 0 else HIRES_BYTES[kind][digits]
        return Plan(k.BYTES, pa.binary(), width, conversion=old_date_text(kind, digits), final=pa.string())
    if column.type == ColumnType.TIMESTAMP:
        one = old_timestamp(strict) if digits == 0 else hires_timestamp(digits, strict)
        return Plan(k.BYTES, pa.binary(), HIRES_BYTES["timestamp"][digits], conversion=one, final=_INSTANT)
    if column.type == ColumnType.DATETIME:
        one = old_datetime(strict) if digits == 0 else hires_datetime(digits, strict)
        width = HIRES_BYTES["datetime"][digits] if digits else 8
        return Plan(k.BYTES, pa.binary(), width, conversion=one, final=pa.timestamp("us"))
    number = old_time if digits == 0 else hires_time(digits)
    width = HIRES_BYTES["time"][digits]
    if policies.time == "microseconds":
        return Plan(k.BYTES, pa.binary(), width, conversion=number, final=pa.int64())
    return Plan(k.BYTES, pa.binary(), width, conversion=_then(number, time_text(digits)), final=pa.string())


def _then(first: Conversion, second: Conversion) -> Conversion:
    return lambda raw: second(first(raw))


def _text(table: str, column: Column, policies: ValuePolicies) -> Plan:
    blob = column.type in BLOBS or column.type == ColumnType.BLOB_COMPRESSED
    prefix = column.length if blob else 1 if column.length <= 255 else 2
    if not 1 <= prefix <= 4:
        raise _contradiction(table, column)
    if column.type in COMPRESSED:
        return _compressed(table, column, prefix)
    if column.charset == BINARY:
        return _bytes(column, prefix)
    if column.name.lower() in policies.as_bytes:
        return Plan(k.BYTES, pa.binary(), prefix=prefix)
    if column.charset == "latin1":
        return Plan(k.LATIN1, pa.string(), prefix=prefix)
    plan = _in_charset(table, column, Plan(k.BYTES, pa.binary(), prefix=prefix))
    if column.name.lower() in policies.exact and column.charset is not None and plan.arrow is not None:
        exact = exact_text(column.charset, plan.conversion)
        return Plan(k.BYTES, pa.binary(), prefix=prefix, conversion=exact, final=pa.string())
    return plan


def _in_charset(table: str, column: Column, plan: Plan) -> Plan:
    """The plan of a text whose bytes the given one delivers."""
    try:
        conversion = None if column.charset is None else text_conversion(column.charset)
    except LookupError:
        return Plan(k.SKIP, None, prefix=plan.prefix)
    if column.charset is None:
        return Plan(k.SKIP, None, prefix=plan.prefix)
    if plan.conversion is not None:
        then = conversion if conversion is not None else utf8_text
        return Plan(
            plan.kind, plan.raw, plan.width, plan.prefix, conversion=_then(plan.conversion, then), final=pa.string()
        )
    if conversion is None:
        return Plan(plan.kind, pa.string(), plan.width, plan.prefix)
    return Plan(plan.kind, plan.raw, plan.width, plan.prefix, conversion=conversion, final=pa.string())


def _compressed(table: str, column: Column, prefix: int) -> Plan:
    plan = Plan(k.BYTES, pa.binary(), prefix=prefix, conversion=uncompressed, final=pa.binary())
    return plan if column.charset == BINARY else _in_charset(table, column, plan)


def _bytes(column: Column, prefix: int) -> Plan:
    """BINARY, VARBINARY, BLOB, and what MariaDB disguises as these."""
    if column.declared in ("uuid", "inet4", "inet6"):
        conversion = {"uuid": uuid_text, "inet4": inet4_text, "inet6": inet6_text}[column.declared]
        return Plan(k.PADDED, pa.binary(), prefix=prefix, a=column.length, conversion=conversion, final=pa.string())
    if column.declared == "vector":
        return Plan(k.BYTES, pa.binary(), prefix=prefix, conversion=vector_floats, final=pa.list_(pa.float32()))
    if column.type == ColumnType.STRING:
        return Plan(k.PADDED, pa.binary(), prefix=prefix, a=column.length)
    return Plan(k.BYTES, pa.binary(), prefix=prefix)


def _enum(table: str, column: Column) -> Plan:
    if column.length not in (1, 2):
        raise _contradiction(table, column)
    members = (b"", *(member.encode() for member in column.members))
    return Plan(k.ENUM, pa.string(), column.length, a=len(column.members), members=members)


def _set(table: str, column: Column) -> Plan:
    if column.length not in (1, 2, 3, 4, 8):
        raise _contradiction(table, column)
    conversion = partial(set_text, column.members)
    return Plan(k.BYTES, pa.binary(), column.length, conversion=conversion, final=pa.string())


def _document(table: str, column: Column) -> Plan:
    """JSON, GEOMETRY, VECTOR: a length of so many bytes comes first."""
    if not 1 <= column.length <= 4:
        raise _contradiction(table, column)
    if column.type == ColumnType.JSON:
        return Plan(k.BYTES, pa.binary(), prefix=column.length, conversion=json_text, final=pa.string())
    if column.type == ColumnType.VECTOR:
        final = pa.list_(pa.float32())
        return Plan(k.BYTES, pa.binary(), prefix=column.length, conversion=vector_floats, final=final)
    return Plan(k.BYTES, pa.binary(), prefix=column.length)


def _contradiction(table: str, column: Column) -> DamagedError:
    return DamagedError(
        f"the column {column.name} of type {describe(column)} is described with impossible numbers",
        place=f"table {table}",
    )


def unsupported(table: str, column: Column) -> UnsupportedTypeError:
    """For a column of a type, or in a character set, that cannot be decoded."""
    return UnsupportedTypeError(
        f"the column {column.name} has the type {describe(column)}, which cannot be decoded",
        place=f"table {table}",
        remedy="Exclude the table, or the column (apply.columns: {NAME: drop}).",
    )
