"""Keys of rows as users write them, and the values of their columns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cdc.base.errors import UsageError

if TYPE_CHECKING:
    from cdc.binlog.sql.schemas import TableSchema

_HINTS = {"binary": " in hexadecimal digits", "date": " like 2026-03-01", "timestamp": " like 2026-03-01 09:00:00"}


@dataclass(frozen=True)
class RowKey:
    """The values of a row's key, as texts, by the names of the columns; or a range of keys."""

    table: str
    values: dict[str, str]
    last: str | None = None
    """The last value of the last column, inclusive; None unless this is a range."""

    @classmethod
    def parse(cls, text: str, table: str, definition: TableSchema, keys: Sequence[str] | None = None) -> RowKey:
        """Reads a key: ``7``, ``a=1,b=x`` or a JSON object. ``keys``: the columns of the configuration, for a table
        without a primary key; without them any columns may be given. Raises UsageError."""
        key_columns = [_column(table, definition, name) for name in keys or definition.primary_key]
        values = {_column(table, definition, name): value for name, value in _values(text, key_columns).items()}
        shown = f"table {table}"
        if key_columns and {*values} != {*key_columns}:
            raise UsageError(
                f"the key is {', '.join(key_columns)}, and {', '.join(values)} is given",
                place=shown,
                remedy=f"Give {','.join(f'{name}=…' for name in key_columns)}, or a JSON object.",
            )
        if not values:
            raise UsageError("no key is given", place=shown, remedy="Give one like id=7, or a JSON object.")
        return cls(table, {name: values[name] for name in key_columns or values})

    def up_to(self, end: RowKey) -> RowKey:
        """Returns the range from this key to another one, both inclusive. Raises UsageError unless they differ in the
        last column alone."""
        *names, last = self.values
        if [*end.values] != [*self.values] or any(end.values[name] != self.values[name] for name in names):
            raise UsageError(
                f"the ends of a range differ in more than {last}",
                place=f"table {self.table}",
                remedy=f"Give both keys with the same {', '.join(names)}." if names else "Give the same columns.",
            )
        return replace(self, last=end.values[last])


def _values(text: str, key_columns: Sequence[str]) -> dict[str, str]:
    if text.lstrip().startswith("{"):
        try:
            document = json.loads(text, parse_int=str, parse_float=str)
        except json.JSONDecodeError as error:
            raise UsageError(f"{text!r} is not a JSON object: {error.msg}", remedy="Correct it.") from None
        if not isinstance(document, dict):
            raise UsageError(f"{text!r} is not a JSON object", remedy="Correct it.")
        for name, value in document.items():
            if not isinstance(value, str):
                what = "null" if value is None else json.dumps(value)
                raise UsageError(
                    f"{name} is {what}, which identifies no row", remedy="Give a number or a text for each column."
                )
        return document
    name, equal, _ = text.partition("=")
    if len(key_columns) == 1 and not (equal and name.strip().lower() == key_columns[0].lower()):
        return {key_columns[0]: text}
    if len(key_columns) == 1:
        return {key_columns[0]: text[len(name) + 1 :]}
    values = {}
    for part in text.split(","):
        name, equal, value = part.partition("=")
        if not equal or not name.strip():
            raise UsageError(
                f"{text!r} is not a key",
                remedy='Give the columns as a=1,b=x; values with a comma need a JSON object: \'{"a": 1, "b": "x,y"}\'.',
            )
        values[name.strip()] = value
    return values


def _column(table: str, definition: TableSchema, name: str) -> str:
    column_name = next((c.name for c in definition.columns if c.name.lower() == name.lower()), None)
    if column_name is None:
        raise UsageError(
            f"it has no column {name}", place=f"table {table}", remedy=f"It has {', '.join(definition.column_names)}."
        )
    return column_name


def literal_of(text: str, kind: pa.DataType, place: str) -> pa.Scalar:
    """Returns a value of a column's type. ``place``: the end of the error's place. Raises UsageError."""
    try:
        value: Any = text
        if pa.types.is_integer(kind):
            value = int(text)
        elif pa.types.is_decimal(kind):
            value = Decimal(text)
        elif pa.types.is_floating(kind):
            value = float(text)
        elif pa.types.is_boolean(kind):
            value = ("0", "1").index(text) == 1
        elif pa.types.is_date(kind):
            value = date.fromisoformat(text)
        elif pa.types.is_timestamp(kind):
            moment = datetime.fromisoformat(text)
            value = moment.replace(tzinfo=None if kind.tz is None else moment.tzinfo or UTC)
        elif pa.types.is_binary(kind):
            value = bytes.fromhex(text[2:] if text[:2].lower() == "0x" else text)
        elif not pa.types.is_string(kind):
            raise UsageError(f"values of type {kind} identify no row", place=place, remedy="Give other columns.")
        return pa.scalar(value, kind)
    except (ValueError, InvalidOperation, OverflowError, pa.ArrowInvalid):
        hint = next((hint for word, hint in _HINTS.items() if str(kind).startswith(word)), "")
        raise UsageError(
            f"{text!r} is no value of the column's type, {kind}", place=place, remedy=f"Give one{hint}."
        ) from None
