"""Follows the columns of a table through one statement: which columns they were, and what old rows hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cdc.binlog.sql.changes import Change, Null, OldRows, Unknown
from cdc.binlog.sql.conversions import Same, ValueEffect, Widened, computes_alike, value_effect
from cdc.binlog.sql.schemas import ColumnSchema, TableSchema
from cdc.binlog.sql.shapes import shape_of
from cdc.binlog.sql.track import plan_columns

NULL = Null()
_EXPRESSION = Unknown("it is generated, perhaps by another expression")
_COMPUTED = Unknown("it is generated, perhaps from a column that gets another type")
_UNSAID = Unknown("the statement does not say what it holds")


@dataclass(frozen=True)
class Followed:
    """A column after the statement."""

    column: ColumnSchema
    old: ColumnSchema | None
    """The column that it was; None for a new one."""
    effect: ValueEffect | None = None
    """What became of the old values; None if the definition is the same."""
    old_rows: OldRows = NULL
    """What a new column holds in the rows that were there."""


def follow(
    before: TableSchema, changes: Sequence[Change], sql_mode: int, zone_offset_s: int | None
) -> tuple[TableSchema, tuple[Followed, ...]]:
    """Returns the schema after the changes of one statement, and its columns. ``zone_offset_s``:
    :attr:`~cdc.binlog.sql.moment.Moment.zone_offset_s` of the statement. Raises UnsupportedDdlError for changes that
    contradict the schema."""
    plan = plan_columns(before, changes)
    followed = []
    for column in plan.columns:
        if column.old is None:
            followed.append(Followed(column.column, None, None, column.old_rows or _UNSAID))
        elif column.column.is_generated and column.defined:
            followed.append(Followed(column.column, column.old, _EXPRESSION))
        else:
            effect = effect_of(column.old, column.column, sql_mode, zone_offset_s)
            followed.append(Followed(column.column, column.old, effect))
    return plan.schema, _computed(followed)


def _computed(columns: Sequence[Followed]) -> tuple[Followed, ...]:
    """Returns the columns; the values of generated ones are not known if any column may make them others."""
    changed = [
        (column.old, column.column, column.effect)
        for column in columns
        if column.old is not None and column.effect is not None
    ]
    if all(_stays(effect) and computes_alike(old, new) for old, new, effect in changed):
        return tuple(columns)
    return tuple(
        replace(column, effect=_COMPUTED)
        if column.old is not None and column.column.is_generated and not isinstance(column.effect, Unknown)
        else column
        for column in columns
    )


def _stays(effect: ValueEffect) -> bool:
    """Whether every value stays, whatever the rows are."""
    return isinstance(effect, Same | Widened) and not effect.unless


def effect_of(
    old: ColumnSchema, new: ColumnSchema, sql_mode: int, zone_offset_s: int | None = None
) -> ValueEffect | None:
    """Returns what becomes of the values of a column whose definition changes; None if it is the same."""
    same = (shape_of(old), old.charset) == (shape_of(new), new.charset)
    if same and (new.nullable or not old.nullable) and old.attributes == new.attributes:
        return None
    return value_effect(old, new, sql_mode, zone_offset_s=zone_offset_s)


def differences(before: TableSchema, after: TableSchema) -> tuple[Followed, ...]:
    """Returns the columns of ``after`` as a tool for schema changes makes them: it copies the columns that both
    definitions have, by INSERT IGNORE, which is never strict, and new ones hold their defaults."""
    columns_before = {column.name.lower(): column for column in before.columns}
    vanished = columns_before.keys() - {column.name.lower() for column in after.columns}
    followed = []
    for column in after.columns:
        old = columns_before.get(column.name.lower())
        if old is not None:
            followed.append(Followed(column, old, effect_of(old, column, sql_mode=0)))
        elif vanished:
            followed.append(Followed(column, None, None, Unknown("it may be another column under a new name")))
        else:
            followed.append(Followed(column, None, None, _default(column)))
    return _computed(followed)


def _default(column: ColumnSchema) -> OldRows:
    if column.nullable and (column.default or "NULL").upper() == "NULL" and not column.extra:
        return Null()
    return Unknown("its default is known to the server alone")
