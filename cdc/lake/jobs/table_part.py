"""Parts of tables as users name them: a range of keys, or a condition of comparisons with literals.

The lake's values decide which rows belong to a part: texts are compared by their bytes, as in :mod:`cdc.lake.history`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from cdc.base.errors import UsageError
from cdc.lake.rows.row_keys import RowKey, literal_of
from cdc.source.snapshot.parts import Comparison, Operator, PartRecord, ValueKind

if TYPE_CHECKING:
    from pyspark.sql import Column

    from cdc.binlog.sql.schemas import TableSchema
    from cdc.decode.policies import PolicedColumn
    from cdc.lake.rows.columns import SourceColumns

_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|('(?:[^']|'')*')|(<=|>=|[=<>(),])|([^\s`'<>=(),]+))")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|0[xX]([0-9a-fA-F]{2})*")
_GRAMMAR = (
    "Give comparisons that are joined by AND, like \"tenant_id = 7 AND day >= '2026-03-01'\": a column, then =, <, <=, "
    ">, >=, BETWEEN … AND … or IN (…), then literals. Write texts and times in single quotes."
)


@dataclass(frozen=True)
class PartRequest:
    """A part of a table in the user's words; at least one of the two is given."""

    keys: str | None
    """The value of ``--keys``: ``KEY``, or ``KEY..KEY``, both ends included."""
    where: str | None
    """The value of ``--where``."""

    @classmethod
    def of(cls, keys: str | None, where: str | None) -> PartRequest | None:
        """Returns the request; None for the whole table. Raises UsageError for empty texts."""
        for name, text in (("--keys", keys), ("--where", where)):
            if text is not None and not text.strip():
                raise UsageError(f"{name} is empty", remedy="Leave it out to take the whole table.")
        return None if keys is None and where is None else cls(keys, where)

    def resolve(self, table: str, schema: TableSchema, columns: SourceColumns, keys: Sequence[str]) -> TablePart:
        """Returns the part of a table with these columns. ``keys``: the source's names of the columns that identify a
        row. Raises UsageError."""
        policed = {column.source.name: column for column in columns.policies.columns}
        terms: list[tuple[str, Operator, list[str]]] = []
        if self.keys is not None:
            terms += _key_terms(self.keys, table, schema, keys)
        if self.where is not None:
            for name, operator, literals in _parse(self.where):
                column = _column_name(name, table, schema)
                terms.append((column, operator, [_text_of(literal, policed.get(column)) for literal in literals]))
        compared = {name: None for name, *_ in terms}
        # The source may have to be asked for rows by their keys, unless the keys alone tell the part.
        for name in compared if {*compared} <= {*keys} else {**compared, **dict.fromkeys(keys)}:
            _require_shown(name, table, policed.get(name), is_variant=_lake_name(policed, name) in columns.variants)
        comparisons = tuple(_comparison(policed[name], operator, values, table) for name, operator, values in terms)
        part = TablePart(
            table, PartRecord(comparisons=comparisons), {name: policed[name] for name in policed}, (*keys,)
        )
        if self.keys is not None:
            part.require_order()
        return part


@dataclass(frozen=True)
class TablePart:
    """A part of a table whose columns are known."""

    table: str
    record: PartRecord
    columns: dict[str, PolicedColumn]
    """By the source's name."""
    keys: tuple[str, ...]
    """The source's names of the columns that identify a row."""

    @property
    def is_of_keys(self) -> bool:
        """Whether a row's key alone tells whether it belongs to the part."""
        return self.compared <= {*self.keys}

    @property
    def compared(self) -> set[str]:
        """The source's names of the columns that are compared."""
        return {comparison.column for comparison in self.record.comparisons}

    def with_keys(self, rows: Iterable[Sequence[Any]]) -> TablePart:
        """Returns the part with some more rows. ``rows``: their keys, as Spark returns them."""
        keys = tuple(
            tuple(
                _comparison_with(self.columns[name], "=", [pa.scalar(value, self.columns[name].source.type)])
                for name, value in zip(self.keys, row, strict=True)
            )
            for row in rows
        )
        return replace(self, record=self.record.model_copy(update={"keys": (*self.record.keys, *keys)}))

    def condition(self) -> Column:
        """Returns the condition on rows of the lake. It is null for rows whose values it compares are null."""
        return reduce(and_, [self._term(comparison) for comparison in self.record.comparisons])

    def more_keys(self) -> list[tuple[Any, ...]]:
        """Returns the keys of the rows beyond the comparisons, as values for a DataFrame."""
        return [tuple(self._scalars(term)[0].as_py() for term in terms) for terms in self.record.keys]

    def require_order(self) -> None:
        """Raises UsageError for a range whose first key comes after its last one."""
        comparisons = self.record.comparisons
        bounds: dict[str, Any] = {term.operator: self._scalars(term)[0].as_py() for term in comparisons}
        if {">=", "<="} <= bounds.keys() and bounds[">="] > bounds["<="]:
            raise UsageError(
                "the first key of the range comes after the last one",
                place=f"--keys, table {self.table}",
                remedy="Give the smaller key first; texts follow each other by their bytes.",
            )

    def _scalars(self, comparison: Comparison) -> list[pa.Scalar]:
        column = self.columns[comparison.column]
        place = f"column {comparison.column} of table {self.table}"
        return [literal_of(value, column.source.type, place) for value in comparison.values]

    def _term(self, comparison: Comparison) -> Column:
        from pyspark.sql import functions as f

        from cdc.lake.delta.sql import quote
        from cdc.lake.rows.column_types import from_arrow

        column = f.col(quote(self.columns[comparison.column].field.name))
        kind = self.columns[comparison.column].field.type
        conditions = []
        for scalar in self._scalars(comparison):
            value = scalar.as_py()
            if pa.types.is_timestamp(kind):
                literal = (
                    f.timestamp_micros(f.lit(scalar.value)) if kind.tz else f.lit(str(value)).cast("timestamp_ntz")
                )
            else:
                literal = f.lit(value).cast(from_arrow(kind))
            conditions.append(_compare(column, comparison.operator, literal))
        return reduce(or_, conditions)


def _compare(column: Column, operator: Operator, literal: Column) -> Column:
    match operator:
        case "=":
            return column == literal
        case "<":
            return column < literal
        case "<=":
            return column <= literal
        case ">":
            return column > literal
        case ">=":
            return column >= literal


# --- the user's words ------------------------------------------------------------------------------------------------


def _key_terms(
    text: str, table: str, schema: TableSchema, keys: Sequence[str]
) -> Iterator[tuple[str, Operator, list[str]]]:
    """Yields the comparisons of ``KEY`` or ``KEY..KEY``."""
    ends = text.split("..")
    if len(ends) > 2 or not all(end.strip() for end in ends):
        raise UsageError(
            f"{text!r} is not a range of keys",
            place="--keys",
            remedy="Give KEY..KEY, like 40..50 or a=1,b=3..a=1,b=9, or one key; for other rows use --where.",
        )
    first = RowKey.parse(ends[0], table, schema, keys)
    key = first if len(ends) == 1 else first.up_to(RowKey.parse(ends[1], table, schema, keys))
    *names, last = key.values
    for name in names:
        yield name, "=", [key.values[name]]
    if key.last is None or key.last == key.values[last]:
        yield last, "=", [key.values[last]]
    else:
        yield last, ">=", [key.values[last]]
        yield last, "<=", [key.last]


@dataclass(frozen=True)
class _Literal:
    """A literal of a condition."""

    text: str
    is_quoted: bool


@dataclass
class _Words:
    """The tokens of a condition."""

    tokens: list[tuple[str, str]]
    at: int = 0

    @classmethod
    def of(cls, text: str) -> _Words:
        tokens, end = [], len(text.rstrip())
        at = 0
        while at < end:
            match = _TOKEN.match(text, at)
            if match is None:
                raise _refusal(f"cannot be read from {text[at:].strip()!r} on")
            name, quoted, sign, word = match.groups()
            if name is not None:
                tokens.append(("name", name[1:-1].replace("``", "`")))
            elif quoted is not None:
                tokens.append(("text", quoted[1:-1].replace("''", "'")))
            else:
                tokens.append(("sign", sign) if sign is not None else ("word", word))
            at = match.end()
        return cls(tokens)

    def next(self) -> tuple[str, str]:
        self.at += 1
        return self.tokens[self.at - 1] if self.at <= len(self.tokens) else ("end", "its end")

    def take(self, *words: str) -> bool:
        """Goes past the next token if it is one of these words or signs, in capitals."""
        kind, text = self.tokens[self.at] if self.at < len(self.tokens) else ("end", "")
        is_next = kind in ("word", "sign") and text.upper() in words
        self.at += is_next
        return is_next

    def require(self, word: str) -> None:
        if not self.take(word):
            raise _refusal(f"has {self.next()[1]!r} instead of {word}")

    def literal(self) -> _Literal:
        kind, text = self.next()
        if kind == "text" or (kind == "word" and _NUMBER.fullmatch(text)):
            return _Literal(text, kind == "text")
        raise _refusal(f"has {text!r} instead of a literal")


def _parse(text: str) -> Iterator[tuple[str, Operator, list[_Literal]]]:
    """Yields the comparisons of a condition: column, operator, and literals."""
    words = _Words.of(text)
    while True:
        kind, name = words.next()
        if kind not in ("word", "name"):
            raise _refusal(f"has {name!r} instead of a column")
        if words.take("BETWEEN"):
            yield name, ">=", [words.literal()]
            words.require("AND")
            yield name, "<=", [words.literal()]
        elif words.take("IN"):
            words.require("(")
            values = [words.literal()]
            while words.take(","):
                values.append(words.literal())
            words.require(")")
            yield name, "=", values
        else:
            kind, operator = words.next()
            if kind != "sign" or operator not in ("=", "<", "<=", ">", ">="):
                raise _refusal(f"has {operator!r} instead of a comparison")
            yield name, cast(Operator, operator), [words.literal()]
        if words.at == len(words.tokens):
            return
        words.require("AND")


def _refusal(what: str) -> UsageError:
    return UsageError(f"the condition {what}", place="--where", remedy=_GRAMMAR)


def _column_name(name: str, table: str, schema: TableSchema) -> str:
    column_name = next((column.name for column in schema.columns if column.name.lower() == name.lower()), None)
    if column_name is None:
        raise UsageError(
            f"it has no column {name}", place=f"table {table}", remedy=f"It has {', '.join(schema.column_names)}."
        )
    return column_name


def _lake_name(policed: dict[str, PolicedColumn], name: str) -> str | None:
    return policed[name].field.name if name in policed else None


def _require_shown(name: str, table: str, column: PolicedColumn | None, *, is_variant: bool) -> None:
    """Raises UsageError for a column by whose values the lake cannot choose rows."""
    if column is None or column.policy.kind not in ("keep", "rename") or is_variant:
        raise UsageError(
            f"the lake does not have the values of the column {name}, so that no part of the table can be chosen by "
            "it, nor by columns beside the key if it belongs to the key",
            place=f"table {table}",
            remedy="Choose rows by other columns, or take the whole table.",
        )


def _text_of(literal: _Literal, column: PolicedColumn | None) -> str:
    """Returns the value of a literal. Raises UsageError for a number that is compared with a text or a time, which
    servers do by other rules."""
    kind = None if column is None else column.source.type
    if literal.is_quoted or kind is None or _kind_of(kind) not in ("text", "time"):
        return literal.text
    raise _refusal(f"compares a column of the type {kind} with the number {literal.text}")


def _comparison(column: PolicedColumn, operator: Operator, values: Sequence[str], table: str) -> Comparison:
    """Returns a comparison with values in the form of :func:`~cdc.lake.rows.row_keys.literal_of`. Raises UsageError."""
    place = f"column {column.source.name} of table {table}"
    return _comparison_with(column, operator, [literal_of(value, column.source.type, place) for value in values])


def _comparison_with(column: PolicedColumn, operator: Operator, scalars: Sequence[pa.Scalar]) -> Comparison:
    kind = _kind_of(column.source.type)
    values = tuple(dict.fromkeys(_canonical(scalar) for scalar in scalars))
    return Comparison(column=column.source.name, operator=operator, values=values, kind=kind)


def _kind_of(kind: pa.DataType) -> ValueKind:
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return "number"
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return "time"
    if pa.types.is_binary(kind):
        return "bytes"
    return "text" if pa.types.is_string(kind) else "other"


def _canonical(scalar: pa.Scalar) -> str:
    """Returns a value as the source prints it, and as :func:`~cdc.lake.rows.row_keys.literal_of` reads it again."""
    value = scalar.as_py()
    match value:
        case bool():
            return str(int(value))
        case bytes():
            return value.hex()
        case Decimal():
            return format(value, "f")
        case datetime():
            value = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo is not None else value
            return value.isoformat(" ", "microseconds")
    return str(value)
