"""The values of old rows after a statement: constants of new columns, and conversions of changed ones, as SQL."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import types as t

from cdc.decode.policies import hashed, masked
from cdc.schemas import ColumnSchema
from cdc.sql.changes import Constant
from cdc.sql.shapes import INTEGER_BYTES, shape_of
from spark_jobs.apply.schema.columns import INTEGERS, holds, widens
from spark_jobs.delta.sql import literal, text_literal
from spark_jobs.delta.tables import ddl_type

if TYPE_CHECKING:
    from cdc.decode.policies import PolicedColumn
    from spark_jobs.source.columns import SourceColumns

Expression = Callable[[str], str]
"""SQL of a value, made from the SQL of the old one."""
_NUMBERS = frozenset({"decimal", *INTEGER_BYTES})
"""Types whose values Delta keeps exactly, as numbers or, beyond 38 digits, as texts."""
_DAY = re.compile(r"(\d{4})-(\d\d)-(\d\d)")


@dataclass(frozen=True)
class Conversion:
    """What a column's type and old values become."""

    type: t.DataType
    """The type in Delta."""
    expression: Expression | None = None
    """None: the values stay as they are."""
    rewrites: bool = False
    """Whether Delta cannot change the type in place, so that the table must be written anew."""
    narrows: bool = False
    """Whether the type holds the values of the rows that the source has, and perhaps not those of removed rows."""


# --- changed columns


def conversion(old: ColumnSchema, new: ColumnSchema, have: t.DataType, want: t.DataType) -> Conversion | None:
    """Returns how a column in Delta's type ``have`` becomes one that holds values of ``want``; None if Spark cannot do
    what the server did. The values are those of the source; policies that change them are not known here."""
    if old.data_type in _NUMBERS and new.data_type in _NUMBERS:
        if isinstance(want, t.StringType):
            return _as_number_text(old, new, have)
        if isinstance(have, t.StringType):
            return _from_number_text(want)
    if have == want:
        return Conversion(have, _text_change(old, new) if isinstance(have, t.StringType) else None)
    if holds(have, want):
        return Conversion(have)
    common = _common_decimal(have, want)
    if common is not None and widens(have, common):
        return Conversion(common)
    if widens(have, want):
        return Conversion(want)
    if common is not None or _casts(have, want):
        kind = common if common is not None else want
        return Conversion(kind, lambda value: f"CAST({value} AS {ddl_type(kind)})", rewrites=True)
    return None


def history_type(have: t.DataType, want: t.DataType) -> Conversion:
    """Returns the type for a changelog, which keeps the old values beside those of the new type: text, if nothing else
    holds both."""
    found = conversion(_ANY, _ANY, have, want)
    if found is not None:
        return found
    if isinstance(have, t.StringType):
        return Conversion(have)
    cast: Expression = lambda value: f"CAST({value} AS STRING)"  # noqa: E731
    return Conversion(t.StringType(), cast, rewrites=True)


_ANY = ColumnSchema(
    name="", data_type="", column_type="", nullable=True, default=None, extra="", charset=None, collation=None
)


def _text_change(old: ColumnSchema, new: ColumnSchema) -> Expression | None:
    """Returns the change of values that are texts in Delta before and after: more digits of a TIME."""
    if old.data_type == new.data_type == "time":
        return _more_digits(shape_of(old).first or 0, shape_of(new).first or 0)
    return None


def _more_digits(old: int, new: int) -> Expression | None:
    """Returns the change of a text with ``old`` digits behind the point into one with ``new``; None if there are no
    more."""
    if new <= old:
        return None
    zeros = ("" if old else ".") + "0" * (new - old)
    return lambda value: f"concat({value}, {literal(zeros)})"


def _as_number_text(old: ColumnSchema, new: ColumnSchema, have: t.DataType) -> Conversion | None:
    """Returns how numbers become decimals of more than 38 digits, which are texts in Delta with all digits of the
    scale."""
    scale = shape_of(new).second or 0
    if isinstance(have, t.StringType):
        return Conversion(have, _more_digits(shape_of(old).second or 0, scale))
    digits = _decimal_of(have)
    if digits is None or digits[1] > scale:
        return None
    more = _more_digits(digits[1], scale)

    def expression(value: str) -> str:
        text = f"CAST({value} AS STRING)"
        return text if more is None else more(text)

    return Conversion(t.StringType(), expression, rewrites=True)


def _from_number_text(want: t.DataType) -> Conversion | None:
    """Returns how decimals that are texts in Delta become numbers of fewer digits."""
    if _decimal_of(want) is None:
        return None
    return Conversion(want, lambda value: f"CAST({value} AS {ddl_type(want)})", rewrites=True, narrows=True)


def _common_decimal(have: t.DataType, want: t.DataType) -> t.DecimalType | None:
    """Returns the smallest decimal that holds both, if one of them is a decimal."""
    parts = [_decimal_of(have), _decimal_of(want)]
    if not any(isinstance(kind, t.DecimalType) for kind in (have, want)) or None in parts:
        return None
    whole = max(p[0] for p in parts if p is not None)
    scale = max(p[1] for p in parts if p is not None)
    return t.DecimalType(whole + scale, scale) if whole + scale <= 38 else None


def _decimal_of(kind: t.DataType) -> tuple[int, int] | None:
    """Returns the digits before and after the point."""
    if isinstance(kind, t.DecimalType):
        return kind.precision - kind.scale, kind.scale
    digits = INTEGERS.get(type(kind))
    return None if digits is None else (digits[1], 0)


def _casts(have: t.DataType, want: t.DataType) -> bool:
    """Whether Spark's CAST gives what the server gives."""
    integer = isinstance(have, t.ByteType | t.ShortType | t.IntegerType | t.LongType)
    if isinstance(want, t.StringType):
        return integer or isinstance(have, t.DecimalType | t.DateType)
    if isinstance(want, t.FloatType | t.DoubleType):
        return integer
    return isinstance(have, t.DateType) and isinstance(want, t.TimestampNTZType)


# --- new columns


def constant_sql(column: ColumnSchema, value: Constant, columns: SourceColumns) -> str | None:
    """Returns the constant as it is in Delta, after the policies, as SQL: ``NULL`` for a date that has no place there;
    None if it cannot be told."""
    found = next(c for c in columns.policies.columns if c.source.name.lower() == column.name.lower())
    kind = columns.field_of(column.name)
    assert kind is not None
    if not found.is_decoded:
        return "NULL"
    try:
        plain = _plain(value.value, found.source.type)
    except (ValueError, ArithmeticError):
        return None
    if plain is None:
        return None if columns.values.zero_dates == "fail" else "NULL"
    array = pa.array([plain], found.source.type)
    final = _policed(found, array, columns)
    if isinstance(kind.dataType, t.VariantType):
        return f"parse_json({text_literal(str(final))})"
    return _literal(final, kind.dataType)


def _policed(found: PolicedColumn, array: pa.Array, columns: SourceColumns) -> object:
    if found.policy.kind == "hash" and columns.policies.key is not None:
        array = hashed(array, columns.policies.key, found.source.digits)
    elif found.policy.kind == "mask":
        array = masked(array, found.policy.last)
    return array[0].as_py()


def _plain(value: str | bytes, kind: pa.DataType) -> object:
    """Returns a constant as a Python value of the decoder's type; None for a zero date. Raises ValueError if it does
    not fit."""
    if isinstance(value, bytes):
        if pa.types.is_binary(kind):
            return value
        number = int.from_bytes(value, "big")  # a BIT
        if pa.types.is_boolean(kind):
            return number != 0
        if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
            return Decimal(number) if pa.types.is_decimal(kind) else number
        raise ValueError(f"bytes do not become {kind}")
    if pa.types.is_binary(kind):
        if not value.isascii():
            raise ValueError("its bytes depend on the column's character set")
        return value.encode()
    if pa.types.is_string(kind):
        return value
    if pa.types.is_boolean(kind):
        return int(value) != 0
    if pa.types.is_integer(kind):
        return _microseconds(value) if ":" in value else int(value)
    if pa.types.is_decimal(kind):
        return Decimal(value)
    if pa.types.is_floating(kind):
        return float(value)
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        day = _DAY.match(value)
        if day is not None and "00" in (day[2], day[3]):
            return None
        return date.fromisoformat(value) if pa.types.is_date(kind) else datetime.fromisoformat(value)
    raise ValueError(f"no constants of {kind}")


def _microseconds(value: str) -> int:
    clock, _, fraction = value.lstrip("-").partition(".")
    hours, minutes, seconds = (int(part) for part in clock.split(":"))
    total = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + int(fraction.ljust(6, "0") or 0)
    return -total if value.startswith("-") else total


def _literal(value: object, kind: t.DataType) -> str | None:
    if value is None:
        return "NULL"
    if isinstance(kind, t.StringType):
        return text_literal(str(value))
    if isinstance(kind, t.BinaryType) and isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(kind, t.BooleanType):
        return "true" if value else "false"
    if isinstance(kind, t.NumericType):
        text = format(value, "f") if isinstance(value, Decimal) else repr(value)
        return f"CAST({literal(text)} AS {ddl_type(kind)})"
    if isinstance(kind, t.DateType | t.TimestampNTZType | t.TimestampType):
        return f"CAST({literal(str(value))} AS {ddl_type(kind)})"
    return None
