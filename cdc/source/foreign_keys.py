"""Decides which foreign keys apply can follow, and how the server compares the values of their columns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cdc.binlog.sql.tokens import word_set

if TYPE_CHECKING:
    from cdc.binlog.sql.schemas import ColumnSchema, ForeignKey, Schemas, TableSchema
    from cdc.config import ApplyConfig, DestinationConfig

_EXACT_TYPES = word_set(
    "tinyint smallint mediumint int bigint decimal year binary varbinary uuid inet4 inet6 date datetime timestamp"
)
"""Types whose values are equal if they are the same."""
_TEXTS = ("char", "varchar")
_DATES = ("date", "datetime", "timestamp")
_SIMPLE_COLLATION = re.compile(
    r"(\w+_)?(general|unicode|unicode_520|0900_ai|0900_as|uca1400_ai|uca1400_as)(_nopad)?_ci|latin1_swedish(_nopad)?_ci"
)
"""Collations in which two printable characters of ASCII are equal if they are the same letter."""
_PRINTABLE = re.compile(r"[ -~]*", re.DOTALL)
STRANGE = "[^ -~]"
"""A regular expression for texts that are not compared where letters of either case are equal."""


class IncomparableError(Exception):
    """A text may equal others in its collation, which only the server knows."""


def refusal(config: DestinationConfig, schemas: Schemas, child: str, key: ForeignKey, updates: bool) -> str | None:
    """Returns why the rows that a key changes cannot be found in the lake, as a clause; None if they can. ``updates``:
    the action changes rows; else it deletes them."""
    schema, parent = schemas.tables.get(child), schemas.tables.get(key.parent)
    if schema is None or parent is None:
        return "the definition of the table or its parent is not known"
    if not schema.primary_key:
        return "the table has no primary key"
    apply = config.table_apply(child)
    if apply.keys and {name.lower() for name in apply.keys} != {name.lower() for name in schema.primary_key}:
        return "keys names other columns than the primary key"
    if "SET DEFAULT" in (key.on_delete, key.on_update):
        return "SET DEFAULT is not followed"
    if updates and any(column.is_generated for column in schema.columns):
        return "the table has generated columns, which the action may change, too"
    for name in schema.primary_key:
        column = column_of(schema, name)
        if column is None or not _tells_rows_apart(apply, column):
            return f"the column {name} of the primary key has other values in the lake"
    for name, referenced in zip(key.columns, key.parent_columns, strict=True):
        why = _incomparable(apply, column_of(schema, name), column_of(parent, referenced))
        if why is not None:
            return f"the column {name} {why}"
    of_parent = config.table_apply(key.parent)
    for name in key.parent_columns:  # the parent may be a child, too, whose rows are in the lake
        if not _is_kept(of_parent, name):
            return f"the referenced column {name} has the policy {_policy(of_parent, name)}"
    return None


def _policy(apply: ApplyConfig, name: str) -> str:
    policy = apply.columns.get(name.lower())
    return "keep" if policy is None else policy.kind


def _is_kept(apply: ApplyConfig, name: str) -> bool:
    return _policy(apply, name) in ("keep", "rename")


def _is_boolean(apply: ApplyConfig, column: ColumnSchema) -> bool:
    return apply.types.get("tinyint(1)") == "boolean" and column.column_type.startswith("tinyint(1)")


def _tells_rows_apart(apply: ApplyConfig, column: ColumnSchema) -> bool:
    return _policy(apply, column.name) not in ("drop", "null", "mask") and not _is_boolean(apply, column)


def _incomparable(apply: ApplyConfig, column: ColumnSchema | None, referenced: ColumnSchema | None) -> str | None:
    """Returns why the values of a key's column cannot be compared with those of the referenced one, as a predicate."""
    if column is None or referenced is None:
        return "is not in the stored definition"
    if not _is_kept(apply, column.name):
        return "is left out of the lake, or has other values there"
    if _is_boolean(apply, column) or column.data_type not in (*_EXACT_TYPES, *_TEXTS):
        return f"has the type {column.column_type}"
    if column.data_type in _DATES and apply.zero_dates != "fail":
        return "is a date, which may be null in the lake without zero_dates: fail"
    if column.data_type in _TEXTS:
        if column.collation is None or column.collation != referenced.collation:
            return "has another collation than the referenced column, or an unknown one"
        if comparison_of(column) is None:
            return f"has the collation {column.collation}"
    return None


def column_of(schema: TableSchema, name: str) -> ColumnSchema | None:
    return next((column for column in schema.columns if column.name.lower() == name.lower()), None)


@dataclass(frozen=True)
class TextComparison:
    """The server's comparison of the texts of a column."""

    pads: bool
    """Blanks at the end do not count."""
    ignores_case: bool
    """Capital and small letters are equal; other texts than printable ASCII are not compared."""

    def apply(self, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if self.ignores_case:
            if not _PRINTABLE.fullmatch(value):
                raise IncomparableError
            value = value.lower()
        return value.rstrip(" ") if self.pads else value


EXACT = TextComparison(pads=False, ignores_case=False)


def comparison_of(column: ColumnSchema) -> TextComparison | None:
    """Returns how the values of a column are compared; None if that is not known."""
    if column.data_type not in _TEXTS:
        return EXACT
    collation = column.collation or ""
    pads = "nopad" not in collation and "_0900_" not in collation
    if collation.endswith("_bin"):
        return TextComparison(pads, ignores_case=False)
    return TextComparison(pads, ignores_case=True) if _SIMPLE_COLLATION.fullmatch(collation) else None


def comparisons_of(schema: TableSchema, names: Iterable[str]) -> list[TextComparison]:
    """Returns how the values of columns are compared: as they are, where nothing else is known."""
    columns = (column_of(schema, name) for name in names)
    return [(None if column is None else comparison_of(column)) or EXACT for column in columns]


def fold(comparisons: Sequence[TextComparison], value: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Returns the values of a key's columns in the form in which they are compared; None if one of them is null. Raises
    IncomparableError."""
    if any(part is None for part in value):
        return None
    return tuple(comparison.apply(part) for comparison, part in zip(comparisons, value, strict=True))
