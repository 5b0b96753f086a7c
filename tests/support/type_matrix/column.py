"""A column of the matrix: its type, its edge values, and how Delta represents SELECT's answers."""

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
"""SELECT prints a FLOAT with six digits, and all of its bits if it is converted to DOUBLE."""
HEX = "HEX({})"
PLAIN = "{}"
NUMBERED = "CONCAT({} + 0, ':', CONVERT({} USING utf8mb4))"
"""A SET's bits, and the text that SELECT prints for them."""


@dataclass(frozen=True)
class Column:
    """One column. ``delta`` is its Delta type as the documented type table promises, independent of the decoder."""

    row: str
    """Its row in the page's table: ``INT UNSIGNED``."""
    sql: str
    """The type and its attributes for CREATE TABLE."""
    values: tuple[str, ...]
    """SQL expressions, one per row. NULL comes last."""
    delta: pa.DataType
    form: Form
    select: str = PLAIN
    """The expression for SELECT, with {} for the column's name."""
    charset: str | None = None
    size_bytes: int = 40
    """The maximal bytes that it takes of a row, as the server counts."""
    name: str = ""
    """Empty: the table chooses a name."""
    group: str = ""
    """Columns of a group are put into separate tables."""
    written: bool = True
    """False: the server computes the values, and only the number of ``values`` matters."""
    note: str = ""
    """For the page: how Delta and SELECT differ by design."""


@dataclass(frozen=True)
class Table:
    """A wide table of the matrix. All its columns have names."""

    name: str
    columns: tuple[Column, ...]
    group: str = ""
    extra: tuple[str, ...] = field(default=())
    """Further lines for CREATE TABLE."""

    @property
    def rows(self) -> int:
        """The length of the longest list of values, which ends with NULL, but at least two, because an update to the
        same values writes no event."""
        return max(2, *(len(column.values) for column in self.columns))


def answers(values: Sequence[Any], column: Column) -> list[Any]:
    """Converts SELECT's answers for a column to Delta's values."""
    return _joined(values) if column.form == "members" else [as_delta(value, column) for value in values]


def _joined(values: Sequence[Any]) -> list[str | None]:
    """Joins the members of a SET that was selected with NUMBERED. Each member must occur alone in one row."""
    numbered = [None if value is None else _text(value).partition(":")[::2] for value in values]
    alone = {int(number): text for number, text in filter(None, numbered) if int(number).bit_count() == 1}

    def join(number: int) -> str:
        return ",".join(alone[1 << bit] for bit in range(number.bit_length()) if number >> bit & 1)

    return [None if numbered_member is None else join(int(numbered_member[0])) for numbered_member in numbered]


def as_delta(value: Any, column: Column) -> Any:
    """Converts SELECT's answer to Delta's value, as the documented type table promises."""
    if value is None:
        return None
    match column.form:
        case "integer":
            return Decimal(int(value)) if pa.types.is_decimal(column.delta) else int(value)
        case "short year":
            # YEAR(2) prints the last two digits of a year between 1970 and 2069.
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
            moment = _moment(datetime, value)
            return moment and moment.replace(tzinfo=UTC)
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
    """Parses a date or time; None for zero, half-zero and impossible dates, which Delta cannot represent."""
    try:
        return kind.fromisoformat(_text(value))
    except ValueError:
        return None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def same(left: Any, right: Any) -> bool:
    """Whether two values are equal in type and value. −0.0 differs from 0.0, and NaN equals NaN."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return bool(struct.pack("d", left) == struct.pack("d", right))
    if isinstance(left, list):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, Decimal):
        return bool(left.as_tuple() == right.as_tuple())
    return bool(left == right)


def delta_name(kind: pa.DataType) -> str:
    """Returns Delta's and Spark's name of an Arrow type: ``decimal(12,2)``, ``timestamp_ntz``."""
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
