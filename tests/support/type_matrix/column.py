"""A column of the matrix: its type, its edge values, and what SELECT's answer is in Delta."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa

Form = Literal[
    "integer", "decimal", "float", "double", "date", "datetime", "timestamp", "text", "bytes", "floats", "short year",
    "members"
]  # fmt: skip

TEXT = "CONVERT({} USING utf8mb4)"
PRINTED = "CAST({} AS CHAR)"
NUMBER = "{} + 0"
DOUBLE = "{} * 1e0"
"""SELECT prints a FLOAT with six digits; as a DOUBLE it prints all of its bits."""
HEX = "HEX({})"
PLAIN = "{}"
NUMBERED = "CONCAT({} + 0, ':', CONVERT({} USING utf8mb4))"
"""A SET's bits, and what SELECT prints for them."""


@dataclass(frozen=True)
class Column:
    """One column. ``delta`` is its type in Delta by the promise of the type table, not by what the decoder makes."""

    row: str
    """Its row on the page: ``INT UNSIGNED``."""
    sql: str
    """The type as CREATE TABLE takes it, with its attributes."""
    values: tuple[str, ...]
    """SQL expressions; the first row of the table holds the first one. NULL comes last."""
    delta: pa.DataType
    form: Form
    select: str = PLAIN
    """What SELECT asks for, with {} for the column's name."""
    charset: str | None = None
    size_bytes: int = 40
    """What it takes of a row, at most, as the server counts."""
    name: str = ""
    """Empty: the table gives it one."""
    group: str = ""
    """Columns of a group stand in tables of their own."""
    written: bool = True
    """False: the server computes it; ``values`` says only how many rows matter."""
    note: str = ""
    """For the page: where Delta and SELECT differ by a rule."""


@dataclass(frozen=True)
class Table:
    """A wide table of the matrix; its columns have names."""

    name: str
    columns: tuple[Column, ...]
    group: str = ""
    extra: tuple[str, ...] = field(default=())
    """Further lines for CREATE TABLE."""

    @property
    def rows(self) -> int:
        """As many as the longest list of values, which ends with NULL, and never fewer than two: an update of a
        row to the same row is none."""
        return max(2, *(len(column.values) for column in self.columns))


def answers(values: Sequence[Any], column: Column) -> list[Any]:
    """SELECT's answers for a column, as Delta holds them."""
    return _joined(values) if column.form == "members" else [as_delta(value, column) for value in values]


def _joined(values: Sequence[Any]) -> list[str | None]:
    """Of NUMBERED: the members as SELECT prints each alone, with commas. Every member has to be there alone once."""
    numbered = [None if value is None else _text(value).partition(":")[::2] for value in values]
    alone = {int(number): text for number, text in filter(None, numbered) if int(number).bit_count() == 1}

    def join(number: int) -> str:
        return ",".join(alone[1 << bit] for bit in range(number.bit_length()) if number >> bit & 1)

    return [None if one is None else join(int(one[0])) for one in numbered]


def as_delta(value: Any, column: Column) -> Any:
    """SELECT's answer as the type table says that Delta holds it."""
    if value is None:
        return None
    match column.form:
        case "integer":
            return Decimal(int(value)) if pa.types.is_decimal(column.delta) else int(value)
        case "short year":
            # YEAR(2) prints two digits of a year that the server stores whole, as it does 1970 to 2069.
            return int(value) + (2000 if int(value) < 70 else 1900)
        case "decimal":
            return Decimal(value)
        case "float":
            return struct.unpack("f", struct.pack("f", float(value)))[0]
        case "double":
            return float(value)
        case "date":
            return _moment(date, value)
        case "datetime":
            return _moment(datetime, value)
        case "timestamp":
            found = _moment(datetime, value)
            return found and found.replace(tzinfo=UTC)
        case "text":
            return value.decode() if isinstance(value, bytes) else str(value)
        case "bytes":
            return bytes(value)
        case "floats":
            raw = bytes.fromhex(_text(value))
            return list(struct.unpack(f"<{len(raw) // 4}f", raw))
        case "members":
            raise AssertionError("a SET of this form needs the whole column: see answers()")


def _moment(kind: type[Any], value: Any) -> Any:
    """Zero, half-zero and impossible dates have no place in Delta."""
    try:
        return kind.fromisoformat(_text(value))
    except ValueError:
        return None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def same(one: Any, other: Any) -> bool:
    """Equal in type and value; −0.0 is not 0.0, and a NaN is a NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return bool(struct.pack("d", one) == struct.pack("d", other))
    if isinstance(one, list):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, Decimal):
        return bool(one.as_tuple() == other.as_tuple())
    return bool(one == other)


def delta_name(kind: pa.DataType) -> str:
    """An Arrow type as Delta and Spark call it: ``decimal(12,2)``, ``timestamp_ntz``."""
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"array<{delta_name(kind.value_type)}>"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    return _NAMES[str(kind)]


_NAMES = {
    "int8": "byte",
    "int16": "short",
    "int32": "int",
    "int64": "long",
    "float": "float",
    "double": "double",
    "date32[day]": "date",
    "string": "string",
    "binary": "binary",
}

TIMESTAMP = pa.timestamp("us", tz="UTC")
DATETIME = pa.timestamp("us")
FLOATS = pa.list_(pa.float32())
