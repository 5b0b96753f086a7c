"""The values of old rows after a statement: constants of new columns, and conversions of changed ones, as SQL."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import types as t

from cdc.binlog.sql.changes import Constant
from cdc.binlog.sql.conversions import Converted, Doubt, ValueEffect
from cdc.binlog.sql.schemas import ColumnSchema
from cdc.binlog.sql.shapes import INTEGER_BYTES, shape_of
from cdc.decode.policies import hashed, masked
from cdc.lake.apply.schema.columns import INTEGERS, holds, widens
from cdc.lake.delta.sql import literal, text_literal
from cdc.lake.delta.tables import ddl_type
from cdc.lake.rows.column_types import MAX_PRECISION

if TYPE_CHECKING:
    from cdc.decode.policies import PolicedColumn
    from cdc.lake.rows.columns import SourceColumns

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


def conversion(
    old: ColumnSchema, new: ColumnSchema, held: t.DataType, needed: t.DataType, effect: ValueEffect | None = None
) -> Conversion | None:
    """Returns how a column in Delta's type ``held`` becomes one that holds values of ``needed``; None if Spark cannot
    do what the server did. The values are those of the source; policies that change them are not known here.
    ``effect``: what the server did to the values; None: they stayed as they are, or became wider."""
    if isinstance(effect, Converted):
        # A DECIMAL of more than 38 digits is a text in Delta.
        is_text = old.data_type in _NUMBERS and isinstance(held, t.StringType)
        return None if is_text and effect.to == "filled" else _converted(effect, held, needed)
    if old.data_type in _NUMBERS and new.data_type in _NUMBERS:
        if isinstance(needed, t.StringType):
            return _as_number_text(old, new, held)
        if isinstance(held, t.StringType):
            return _from_number_text(needed)
    if held == needed:
        return Conversion(held, _text_change(old, new) if isinstance(held, t.StringType) else None)
    if holds(held, needed):
        return Conversion(held)
    common = _common_decimal(held, needed)
    if common is not None and widens(held, common):
        return Conversion(common)
    if widens(held, needed):
        return Conversion(needed)
    if common is not None or _casts(held, needed):
        kind = common if common is not None else needed
        return Conversion(kind, lambda value: f"CAST({value} AS {ddl_type(kind)})", rewrites=True)
    return None


def history_type(held: t.DataType, needed: t.DataType) -> Conversion:
    """Returns the type for a changelog, which keeps the old values beside those of the new type: text, if nothing else
    holds both."""
    converted = conversion(_ANY, _ANY, held, needed)
    if converted is not None:
        return converted
    if isinstance(held, t.StringType):
        return Conversion(held)
    cast: Expression = lambda value: f"CAST({value} AS STRING)"  # noqa: E731
    return Conversion(t.StringType(), cast, rewrites=True)


def _converted(effect: Converted, held: t.DataType, needed: t.DataType) -> Conversion | None:
    computed = _computed(effect, held)
    if computed is None:
        return None
    kind = held if holds(held, needed) else _common_decimal(held, needed) or needed
    in_place = kind == held or widens(held, kind)
    cast = "CAST" if in_place else "try_cast"  # a removed row may have any value
    sql = ddl_type(kind)
    return Conversion(kind, lambda value: f"{cast}({computed(value)} AS {sql})", rewrites=not in_place)


def _computed(effect: Converted, have: t.DataType) -> Expression | None:
    """Returns the SQL of what the server made of a value; None for values that Delta has in another form."""
    number = effect.number
    forms: dict[str, tuple[type[t.DataType], Expression]] = {
        "rounded": (t.DecimalType, lambda value: f"round({value}, {number})"),
        "double": (t.DecimalType, lambda value: f"CAST({value} AS DOUBLE)"),
        "cut": (t.StringType, lambda value: f"left({value}, {number})"),
        "trimmed": (t.StringType, lambda value: f"trim(TRAILING ' ' FROM left({value}, {number}))"),
        "ordered": (t.StringType, lambda value: _ordered(value, effect.members)),
        "bytes": (t.StringType, lambda value: f"CAST({value} AS BINARY)"),
        "day": (t.TimestampNTZType, lambda value: f"CAST({value} AS DATE)"),
        "local": (t.TimestampType, lambda value: f"CAST({value} + INTERVAL {number} SECOND AS TIMESTAMP_NTZ)"),
        "instant": (t.TimestampNTZType, lambda value: f"CAST({value} - INTERVAL {number} SECOND AS TIMESTAMP)"),
        "digits": (t.DateType, lambda value: f"CAST(date_format({value}, 'yyyyMMdd') AS INT)"),
    }
    if effect.to == "padded" and isinstance(have, t.StringType | t.BinaryType):
        return lambda value: f"rpad(CAST({value} AS BINARY), {number}, X'00')"
    if effect.to == "single" and isinstance(have, t.DecimalType | t.DoubleType):
        return lambda value: f"CAST(CAST({value} AS DOUBLE) AS FLOAT)"
    if effect.to == "text":
        return _shown(have, number)
    if effect.to == "clamped" and isinstance(have, t.NumericType):
        return lambda value: _clamped(value, *effect.range)
    if effect.to == "filled":
        return _filled(have)
    kind, expression = forms.get(effect.to, (t.NullType, lambda value: value))
    return expression if isinstance(have, kind) else None


def _clamped(value: str, least: int, largest: int) -> str:
    return f"CASE WHEN {value} < {least} THEN {least} WHEN {value} > {largest} THEN {largest} ELSE {value} END"


def _filled(have: t.DataType) -> Expression | None:
    if isinstance(have, t.NumericType):
        return lambda value: f"coalesce({value}, 0)"
    empty = {t.StringType: "''", t.BinaryType: "X''"}.get(type(have))
    return None if empty is None else lambda value: f"coalesce({value}, {empty})"


def _ordered(value: str, members: tuple[str, ...]) -> str:
    listed = ", ".join(map(text_literal, members))
    kept = f"filter(array({listed}), member -> array_contains(split({value}, ','), member))"
    return f"CASE WHEN {value} IS NOT NULL THEN array_join({kept}, ',') END"


def _shown(have: t.DataType, digits: int) -> Expression | None:
    """Returns the SQL of a number or a time as SELECT shows it. ``digits``: those of its fraction of a second."""
    if isinstance(have, t.StringType | t.DecimalType | t.DateType):
        return lambda value: f"CAST({value} AS STRING)"
    if isinstance(have, t.TimestampNTZType):
        form = "yyyy-MM-dd HH:mm:ss" + ("." + "S" * digits if digits else "")
        return lambda value: f"date_format({value}, '{form}')"
    return None


def doubtful(doubt: Doubt, value: str, have: t.DataType, *, is_set: bool) -> str | None:
    """Returns the condition, as SQL, of the values that a doubt concerns; None if they cannot be told in Delta's type.
    ``is_set``: whether the column is a SET."""
    if doubt.kind in ("null", "zero date"):
        return f"{value} IS NULL"
    is_number = isinstance(have, t.NumericType)
    if doubt.kind == "zero":
        return f"({value} IS NULL OR {value} = 0)" if is_number else None
    if doubt.kind == "outside":
        return _outside(doubt, value, have) if is_number else None
    if doubt.kind == "longer":
        if isinstance(have, t.IntegralType | t.DecimalType):
            value = f"CAST({value} AS STRING)"
        elif not isinstance(have, t.StringType):
            return None
        return f"length({value}) > {doubt.length}"
    if doubt.kind == "more bytes":
        return f"octet_length({value}) > {doubt.length}" if isinstance(have, t.StringType | t.BinaryType) else None
    if not isinstance(have, t.StringType):
        return None
    if doubt.kind == "uses":
        members = ", ".join(map(text_literal, doubt.members))
        return f"arrays_overlap(split({value}, ','), array({members}))" if is_set else f"{value} IN ({members})"
    return f"length({value}) <> octet_length({value})"


def _outside(doubt: Doubt, value: str, have: t.DataType) -> str:
    is_binary = isinstance(have, t.FloatType | t.DoubleType)
    sides = [
        f"{value} {sign} {f'{_binary(limit)!r}D' if is_binary else f'{limit:f}'}"
        for sign, limit in zip("<>", doubt.range, strict=True)
        if limit is not None and (is_binary or abs(limit) < 10**MAX_PRECISION)
    ]
    return f"({' OR '.join(sides)})" if sides else "false"


def _binary(limit: Decimal) -> float:
    """Returns the DOUBLE nearest to a limit that is not beyond it."""
    number = float(limit)
    return math.nextafter(number, 0.0) if abs(Decimal(number)) > abs(limit) else number


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


def _from_number_text(needed: t.DataType) -> Conversion | None:
    """Returns how decimals that are texts in Delta become numbers of fewer digits."""
    if _decimal_of(needed) is None:
        return None
    return Conversion(needed, lambda value: f"CAST({value} AS {ddl_type(needed)})", rewrites=True, narrows=True)


def _common_decimal(held: t.DataType, needed: t.DataType) -> t.DecimalType | None:
    """Returns the smallest decimal that holds both, if one of them is a decimal."""
    parts = [_decimal_of(held), _decimal_of(needed)]
    if not any(isinstance(kind, t.DecimalType) for kind in (held, needed)) or None in parts:
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


def _casts(held: t.DataType, needed: t.DataType) -> bool:
    """Whether Spark's CAST gives what the server gives."""
    integer = isinstance(held, t.ByteType | t.ShortType | t.IntegerType | t.LongType)
    if isinstance(needed, t.StringType):
        return integer or isinstance(held, t.DecimalType | t.DateType)
    if isinstance(needed, t.FloatType | t.DoubleType):
        return integer
    return isinstance(held, t.DateType) and isinstance(needed, t.TimestampNTZType)


# --- new columns


def constant_sql(column: ColumnSchema, value: Constant, columns: SourceColumns) -> str | None:
    """Returns the constant as it is in Delta, after the policies, as SQL: ``NULL`` for a date that has no place there;
    None if it cannot be told."""
    policed = next(c for c in columns.policies.columns if c.source.name.lower() == column.name.lower())
    kind = columns.field_of(column.name)
    assert kind is not None
    if not policed.is_decoded:
        return "NULL"
    try:
        plain = _plain(value.value, policed.source.type)
    except (ValueError, ArithmeticError):
        return None
    if plain is None:
        return None if columns.values.zero_dates == "fail" else "NULL"
    array = pa.array([plain], policed.source.type)
    final = _policed(policed, array, columns)
    if isinstance(kind.dataType, t.VariantType):
        return f"parse_json({text_literal(str(final))})"
    return _literal(final, kind.dataType)


def _policed(policed: PolicedColumn, array: pa.Array, columns: SourceColumns) -> object:
    if policed.policy.kind == "hash" and columns.policies.key is not None:
        array = hashed(array, columns.policies.key, policed.source.digits)
    elif policed.policy.kind == "mask":
        array = masked(array, policed.policy.last)
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
