"""Decides what a Delta table becomes by a statement: its columns and the values of its old rows, by the policies."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cdc.binlog.sql.changes import Constant, Null, Unknown
from cdc.binlog.sql.conversions import Converted
from cdc.binlog.sql.schemas import ColumnSchema, TableSchema
from cdc.lake.apply.schema.columns import DeltaColumn, Goal, holds, widens
from cdc.lake.apply.schema.values import Expression, constant_sql, conversion, doubtful, history_type
from cdc.lake.delta.sql import quote
from cdc.lake.rows.columns import SourceColumns, columns_of_schema

if TYPE_CHECKING:
    from pyspark.sql import types as t

    from cdc.lake.apply.schema.lineage import Followed
    from cdc.lake.delta.tables import Target

NOTHING = "NULL"
"""SQL of the value of a column that is empty in all old rows, though the Delta table has such a column already."""
_SAME_PRINT = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint"})
"""Types whose values print alike in each of the others."""


@dataclass(frozen=True)
class PlannedColumn:
    """A column that the Delta table must have, and what its old rows hold there."""

    name: str
    type: t.DataType
    was: DeltaColumn | None
    """The column that it was; None for a new one."""
    value: Expression | None = None
    """SQL of its old rows' values, from the SQL of the column that it was; None if they stay, or are null."""
    is_computed: bool = False
    """Whether ``value`` is the same as before for most rows, perhaps for all."""

    def goal(self, before: dict[str, str]) -> Goal:
        """Returns the goal. ``before``: the physical names inside ``_before``, by the names there."""
        if self.was is None:
            return Goal(self.name, self.type, None, None)
        return Goal(self.name, self.type, self.was.physical, before.get(self.was.name))


@dataclass
class TableEvolution:
    """The Delta table after a statement."""

    columns: list[PlannedColumn] = field(default_factory=list)
    """The source's columns, in their order."""
    rewrites: bool = False
    """Whether a type cannot be changed in place."""
    unknown: list[str] = field(default_factory=list)
    """Why only the server knows the rows of columns that were there."""
    unknown_new: list[str] = field(default_factory=list)
    """The same of new columns."""
    doubts: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    """Conditions of rows, as SQL over the columns that were there. If there is such a row, only the server knows what
    became of a column: its name in Delta before, the source's name of the column, and the reason."""
    read: list[str] = field(default_factory=list)
    """The source's names of the columns that these reasons are about."""
    reads_all: bool = False
    """Whether a snapshot of these columns is not enough, because a policy has changed."""
    refused: list[str] = field(default_factory=list)
    """What the policy does not allow, as clauses whose subject is the statement."""

    def changes(self, lake_columns: Sequence[DeltaColumn]) -> bool:
        """Whether any column differs from those that the table has."""
        return [(c.name, c.type) for c in self.columns] != [(c.name, c.type) for c in lake_columns] or any(
            c.was is None or c.was.name != c.name for c in self.columns
        )

    @property
    def updates(self) -> dict[str, str]:
        """What old rows get as SQL, by the names of columns, once these have their names and types."""
        return {c.name: c.value(quote(c.name)) for c in self.columns if c.value is not None}

    def settled(self, met: Callable[[Collection[str]], list[str]]) -> TableEvolution:
        """Returns the plan with what the rows tell: columns that only the server knows, and no values that are the same
        as before in all rows. ``met`` returns those of some conditions that hold for a row."""
        doubts = [self.doubts[condition] for condition in met(self.doubts)]
        doubted = {name for name, _, _ in doubts}  # their values may have no result in Delta's type

        def settle(column: PlannedColumn) -> PlannedColumn:
            if column.was is None or column.value is None or not column.is_computed or column.was.name in doubted:
                return column
            name = quote(column.was.name)
            return column if met([differs(name, column.value(name))]) else replace(column, value=None)

        return replace(
            self,
            columns=[settle(column) for column in self.columns],
            unknown=[*self.unknown, *(reason for _, _, reason in doubts)],
            read=[*self.read, *(name for _, name, _ in doubts)],
        )


def plan(
    target: Target,
    lake_columns: Sequence[DeltaColumn],
    followed: Iterable[Followed],
    before: TableSchema,
    after: TableSchema,
) -> TableEvolution:
    """Returns the table after the columns were ``followed`` from one source schema to the other. ``lake_columns``: the
    columns of the Delta table. Raises UnsupportedTypeError, UnsupportedError, ConfigError for columns that Delta cannot
    have."""
    work = _Work(target, {c.name.lower(): c for c in lake_columns}, _columns(before, target), _columns(after, target))
    plan = TableEvolution()
    for followed_column in followed:
        reasons = len(plan.unknown) + len(plan.unknown_new)
        column = work.column(followed_column, plan)
        if len(plan.unknown) + len(plan.unknown_new) > reasons:
            plan.read.append(followed_column.column.name)
            plan.reads_all = plan.reads_all or work.has_other_policy(followed_column)
        if column is not None:
            plan.columns.append(column)
    policy = target.apply.schema_changes
    if policy == "additive":
        return _additive(plan, lake_columns, is_shared=target.apply.shared)
    if policy == "ignore":
        return _ignoring(plan, lake_columns)
    if policy == "fail":
        plan.refused += _differences(plan, lake_columns)
    return plan


def _columns(schema: TableSchema, target: Target) -> SourceColumns:
    return columns_of_schema(schema, target.policies)


@dataclass(frozen=True)
class _Work:
    target: Target
    lake_columns: dict[str, DeltaColumn]
    before: SourceColumns
    after: SourceColumns

    def column(self, followed: Followed, planned: TableEvolution) -> PlannedColumn | None:
        """Returns what the column becomes; None if it has no place in Delta. Reasons go into the plan."""
        kind = self.after.field_of(followed.column.name)
        if kind is None:
            return None
        is_history = self.target.apply.mode == "append"
        is_null = self.target.policies.column(followed.column.name).kind == "null"
        old = self._old(followed)
        if followed.old is None or (old is None and (is_history or is_null)):
            value = None if is_history or is_null else self._constant(followed, planned)
            return PlannedColumn(kind.name, kind.dataType, None, value)
        label, was = (self._label(side, c) for side, c in ((self.after, followed.column), (self.before, followed.old)))
        if old is None or (label != was and not is_null and not is_history):
            name = followed.column.name
            why = f"the column {name} was under the policy {was or 'keep'} and is now under {label or 'keep'}"
            planned.unknown.append(why)
            return PlannedColumn(kind.name, kind.dataType, None)
        if not is_history and not is_null:
            if isinstance(followed.effect, Unknown):
                planned.unknown.append(f"column {followed.column.name}: {followed.effect.reason}")
                return PlannedColumn(kind.name, kind.dataType, old)
            if (
                followed.effect is not None
                and label
                and not _prints_alike(followed.old, followed.column)
                and "rename" not in label
            ):
                planned.unknown.append(
                    f"the column {followed.column.name} is under the policy {label} and prints otherwise now"
                )
                return PlannedColumn(kind.name, kind.dataType, old)
            self._doubt(followed, old, label, planned)
        effect = None if is_history or is_null else followed.effect
        converted = (
            history_type(old.type, kind.dataType)
            if is_history
            else conversion(followed.old, followed.column, old.type, kind.dataType, effect)
        )
        if converted is None or (converted.narrows and not self._has_only_present_rows):
            new = followed.column
            why = f"the column {new.name} becomes {new.column_type}, from {followed.old.column_type}"
            planned.unknown.append(why)
            return PlannedColumn(kind.name, kind.dataType, old)
        planned.rewrites = planned.rewrites or converted.rewrites
        value, is_computed = converted.expression, isinstance(effect, Converted) and not converted.rewrites
        if value is not None and is_computed and self.target.present_rows is not None:
            value = _where(self.target.present_rows, value)
        return PlannedColumn(kind.name, converted.type, old, value, is_computed)

    def _doubt(self, followed: Followed, old: DeltaColumn, label: str, planned: TableEvolution) -> None:
        """Adds the conditions of the rows for which the effect on a column is not certain."""
        assert not isinstance(followed.effect, Unknown) and followed.old is not None
        doubts = () if followed.effect is None else followed.effect.unless
        if label and (doubts or isinstance(followed.effect, Converted)):
            planned.unknown.append(
                f"the column {followed.column.name} is under the policy {label}, and its values change"
            )
            return
        for doubt in doubts:
            if doubt.kind == "zero date" and self.before.values.zero_dates == "fail":
                continue
            condition = doubtful(doubt, quote(old.name), old.type, is_set=followed.old.data_type == "set")
            reason = f"column {followed.column.name}: {doubt.reason}"
            if condition is None:
                planned.unknown.append(reason)
            else:
                planned.doubts[condition] = old.name, followed.column.name, reason

    def has_other_policy(self, followed: Followed) -> bool:
        """Whether the column is under another policy than the old one was, or the Delta table did not have that."""
        if followed.old is None:
            return False
        return self._old(followed) is None or self._label(self.after, followed.column) != self._label(
            self.before, followed.old
        )

    @property
    def _has_only_present_rows(self) -> bool:
        """Whether each row of the Delta table is one that the source has."""
        apply = self.target.apply
        return apply.mode == "upsert" and apply.on_truncate != "ignore" and not apply.shared

    def _old(self, followed: Followed) -> DeltaColumn | None:
        if followed.old is None:
            return None
        name = self.target.policies.lake_name(followed.old.name)
        return None if name is None else self.lake_columns.get(name.lower())

    @staticmethod
    def _label(columns: SourceColumns, column: ColumnSchema) -> str:
        label = columns.labels.get(column.name.lower(), "")
        return "" if label.startswith("rename:") else label

    def _constant(self, followed: Followed, planned: TableEvolution) -> Expression | None:
        if isinstance(followed.old_rows, Null):
            return None
        if isinstance(followed.old_rows, Constant):
            value = constant_sql(followed.column, followed.old_rows, self.after)
            if value is not None:
                return None if value == "NULL" else lambda _: value
            planned.unknown_new.append(f"the value of the new column {followed.column.name} in old rows")
            return None
        planned.unknown_new.append(f"the new column {followed.column.name}: {followed.old_rows.reason}")
        return None


def _where(condition: str, value: Expression) -> Expression:
    """Returns a value for the rows of a condition; others keep theirs."""
    return lambda old: f"CASE WHEN {condition} THEN {value(old)} ELSE {old} END"


def _prints_alike(old: ColumnSchema, new: ColumnSchema) -> bool:
    return {old.data_type, new.data_type} <= _SAME_PRINT or old.data_type == new.data_type == "varchar"


# --- policies --------------------------------------------------------------------------------------------------------


def _additive(planned: TableEvolution, lake_columns: Sequence[DeltaColumn], *, is_shared: bool) -> TableEvolution:
    """Keeps all columns where they are, and adds the new ones and new names behind the column that precedes them.
    ``is_shared``: another destination may have given the table a column of that name already."""
    columns = [PlannedColumn(c.name, c.type, c) for c in lake_columns]
    previous: str | None = None
    for column in planned.columns:
        at = next((i for i, c in enumerate(columns) if c.name.lower() == column.name.lower()), None)
        is_same = column.was is None or column.was.name.lower() == column.name.lower()
        if at is not None and (is_same or is_shared):
            held = columns[at].type
            kind = held if holds(held, column.type) else column.type
            if kind != held and not widens(held, kind):
                planned.refused.append(
                    f"changes the type of {column.name} from {held.simpleString()} to {column.type.simpleString()}"
                )
            value = column.value if column.was is None or is_same else _copied(column.was.name, column.value)
            if column.was is None and value is None:  # a dropped column of that name may have left values
                value = _nothing
            columns[at] = replace(columns[at], type=kind, value=value)
        elif at is not None:
            planned.refused.append(f"gives a column the name {column.name}, which the Delta table has already")
        else:
            value = column.value
            if column.was is not None:
                value = _copied(column.was.name, column.value)
            behind = 0 if previous is None else 1 + next(i for i, c in enumerate(columns) if c.name == previous)
            columns.insert(behind, PlannedColumn(column.name, column.type, None, value))
        previous = column.name if at is None else columns[at].name
    if planned.rewrites:
        planned.refused.append("changes a type in a way that Delta cannot follow in place")
    return replace(planned, columns=columns, rewrites=False)


def _nothing(_: str) -> str:
    return NOTHING


def differs(name: str, value: str) -> str:
    """Returns the condition, as SQL, of the rows in which a quoted column has another value than this SQL."""
    return f"{name} IS NOT NULL" if value == NOTHING else f"NOT ({name} <=> {value})"


def _copied(name: str, value: Expression | None) -> Expression:
    copied = quote(name) if value is None else value(quote(name))
    return lambda _: copied


def _ignoring(planned: TableEvolution, lake_columns: Sequence[DeltaColumn]) -> TableEvolution:
    """Keeps the Delta table's columns. Columns that changed their type in place must still fit."""
    by_name = {c.name.lower(): c for c in planned.columns}
    columns = []
    for column in lake_columns:
        planned_column = by_name.get(column.name.lower())
        stays = planned_column is not None and planned_column.was is not None and planned_column.was.name == column.name
        if planned_column is not None and stays and not holds(column.type, planned_column.type):
            planned.refused.append(
                f"changes the type of {column.name} to {planned_column.type.simpleString()}, and the Delta table's "
                f"column is {column.type.simpleString()}"
            )
        columns.append(
            PlannedColumn(
                column.name, column.type, column, planned_column.value if planned_column is not None and stays else None
            )
        )
    return replace(planned, columns=columns, rewrites=False, unknown_new=[])


def _differences(planned: TableEvolution, lake_columns: Sequence[DeltaColumn]) -> list[str]:
    stay = {c.was.physical: c for c in planned.columns if c.was is not None}
    differences = [f"drops the column {c.name}" for c in lake_columns if c.physical not in stay]
    for column in planned.columns:
        if column.was is None:
            differences.append(f"adds the column {column.name}")
        elif column.was.name != column.name:
            differences.append(f"renames the column {column.was.name} to {column.name}")
        elif column.was.type != column.type:
            differences.append(f"changes the type of {column.name} to {column.type.simpleString()}")
        elif column.value is not None:
            differences.append(f"changes the values of {column.name}")
    if not differences and [c.name for c in planned.columns] != [c.name for c in lake_columns]:
        differences.append("changes the order of columns")
    return differences
