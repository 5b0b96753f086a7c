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
class Plan:
    """The Delta table after a statement."""

    columns: list[PlannedColumn] = field(default_factory=list)
    """The source's columns, in their order."""
    rewrites: bool = False
    """Whether a type cannot be changed in place."""
    unknown: list[str] = field(default_factory=list)
    """Why only the server knows the rows of columns that were there."""
    unknown_new: list[str] = field(default_factory=list)
    """The same of new columns."""
    doubts: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Conditions of rows, as SQL over the columns that were there. If there is such a row, only the server knows what
    became of a column: the source's name of the column, and the reason."""
    read: list[str] = field(default_factory=list)
    """The source's names of the columns that these reasons are about."""
    reads_all: bool = False
    """Whether a snapshot of these columns is not enough, because a policy has changed."""
    refused: list[str] = field(default_factory=list)
    """What the policy does not allow, as clauses whose subject is the statement."""

    def changes(self, there: Sequence[DeltaColumn]) -> bool:
        """Whether any column differs from those that the table has."""
        return [(c.name, c.type) for c in self.columns] != [(c.name, c.type) for c in there] or any(
            c.was is None or c.was.name != c.name for c in self.columns
        )

    @property
    def updates(self) -> dict[str, str]:
        """What old rows get as SQL, by the names of columns, once these have their names and types."""
        return {c.name: c.value(quote(c.name)) for c in self.columns if c.value is not None}

    def settled(self, met: Callable[[Collection[str]], list[str]]) -> Plan:
        """Returns the plan with what the rows tell: columns that only the server knows, and no values that are the same
        as before in all rows. ``met`` returns those of some conditions that hold for a row."""
        doubts = [self.doubts[condition] for condition in met(self.doubts)]

        def settle(column: PlannedColumn) -> PlannedColumn:
            if column.was is None or column.value is None or not column.is_computed:
                return column
            name = quote(column.was.name)
            return column if met([differs(name, column.value(name))]) else replace(column, value=None)

        return replace(
            self,
            columns=[settle(column) for column in self.columns],
            unknown=[*self.unknown, *(reason for _, reason in doubts)],
            read=[*self.read, *(name for name, _ in doubts)],
        )


def plan(
    target: Target, there: Sequence[DeltaColumn], followed: Iterable[Followed], before: TableSchema, after: TableSchema
) -> Plan:
    """Returns the table after the columns were ``followed`` from one source schema to the other. ``there``: the columns
    of the Delta table. Raises UnsupportedTypeError, UnsupportedError, ConfigError for columns that Delta cannot
    have."""
    work = _Work(target, {c.name.lower(): c for c in there}, _columns(before, target), _columns(after, target))
    plan = Plan()
    for one in followed:
        reasons = len(plan.unknown) + len(plan.unknown_new)
        column = work.column(one, plan)
        if len(plan.unknown) + len(plan.unknown_new) > reasons:
            plan.read.append(one.column.name)
            plan.reads_all = plan.reads_all or work.has_other_policy(one)
        if column is not None:
            plan.columns.append(column)
    policy = target.apply.schema_changes
    if policy == "additive":
        return _additive(plan, there, is_shared=target.apply.shared)
    if policy == "ignore":
        return _ignoring(plan, there)
    if policy == "fail":
        plan.refused += _differences(plan, there)
    return plan


def _columns(schema: TableSchema, target: Target) -> SourceColumns:
    return columns_of_schema(schema, target.policies)


@dataclass(frozen=True)
class _Work:
    target: Target
    there: dict[str, DeltaColumn]
    before: SourceColumns
    after: SourceColumns

    def column(self, one: Followed, wanted: Plan) -> PlannedColumn | None:
        """Returns what the column becomes; None if it has no place in Delta. Reasons go into the plan."""
        kind = self.after.field_of(one.column.name)
        if kind is None:
            return None
        is_history = self.target.apply.mode == "append"
        is_null = self.target.policies.column(one.column.name).kind == "null"
        old = self._old(one)
        if one.old is None or (old is None and (is_history or is_null)):
            value = None if is_history or is_null else self._constant(one, wanted)
            return PlannedColumn(kind.name, kind.dataType, None, value)
        label, was = (self._label(side, c) for side, c in ((self.after, one.column), (self.before, one.old)))
        if old is None or (label != was and not is_null and not is_history):
            why = (
                f"the column {one.column.name} was under the policy {was or 'keep'} and is now under {label or 'keep'}"
            )
            wanted.unknown.append(why)
            return PlannedColumn(kind.name, kind.dataType, None)
        if not is_history and not is_null:
            if isinstance(one.effect, Unknown):
                wanted.unknown.append(f"column {one.column.name}: {one.effect.reason}")
                return PlannedColumn(kind.name, kind.dataType, old)
            if one.effect is not None and label and not _prints_alike(one.old, one.column) and "rename" not in label:
                wanted.unknown.append(
                    f"the column {one.column.name} is under the policy {label} and prints otherwise now"
                )
                return PlannedColumn(kind.name, kind.dataType, old)
            self._doubt(one, old, label, wanted)
        effect = None if is_history or is_null else one.effect
        found = (
            history_type(old.type, kind.dataType)
            if is_history
            else conversion(one.old, one.column, old.type, kind.dataType, effect)
        )
        if found is None or (found.narrows and not self._has_only_present_rows):
            why = f"the column {one.column.name} becomes {one.column.column_type}, from {one.old.column_type}"
            wanted.unknown.append(why)
            return PlannedColumn(kind.name, kind.dataType, old)
        wanted.rewrites = wanted.rewrites or found.rewrites
        value, is_computed = found.expression, isinstance(effect, Converted) and not found.rewrites
        if value is not None and is_computed and self.target.present_rows is not None:
            value = _where(self.target.present_rows, value)
        return PlannedColumn(kind.name, found.type, old, value, is_computed)

    def _doubt(self, one: Followed, old: DeltaColumn, label: str, wanted: Plan) -> None:
        """Adds the conditions of the rows for which the effect on a column is not certain."""
        assert not isinstance(one.effect, Unknown) and one.old is not None
        doubts = () if one.effect is None else one.effect.unless
        if label and (doubts or isinstance(one.effect, Converted)):
            wanted.unknown.append(f"the column {one.column.name} is under the policy {label}, and its values change")
            return
        for doubt in doubts:
            if doubt.kind == "zero date" and self.before.values.zero_dates == "fail":
                continue
            condition = doubtful(doubt, quote(old.name), old.type, is_set=one.old.data_type == "set")
            reason = f"column {one.column.name}: {doubt.reason}"
            if condition is None:
                wanted.unknown.append(reason)
            else:
                wanted.doubts[condition] = one.column.name, reason

    def has_other_policy(self, one: Followed) -> bool:
        """Whether the column is under another policy than the old one was, or the Delta table did not have that."""
        if one.old is None:
            return False
        return self._old(one) is None or self._label(self.after, one.column) != self._label(self.before, one.old)

    @property
    def _has_only_present_rows(self) -> bool:
        """Whether each row of the Delta table is one that the source has."""
        apply = self.target.apply
        return apply.mode == "upsert" and apply.on_truncate != "ignore" and not apply.shared

    def _old(self, one: Followed) -> DeltaColumn | None:
        if one.old is None:
            return None
        name = self.target.policies.lake_name(one.old.name)
        return None if name is None else self.there.get(name.lower())

    @staticmethod
    def _label(columns: SourceColumns, column: ColumnSchema) -> str:
        label = columns.labels.get(column.name.lower(), "")
        return "" if label.startswith("rename:") else label

    def _constant(self, one: Followed, wanted: Plan) -> Expression | None:
        if isinstance(one.old_rows, Null):
            return None
        if isinstance(one.old_rows, Constant):
            value = constant_sql(one.column, one.old_rows, self.after)
            if value is not None:
                return None if value == "NULL" else lambda _: value
            wanted.unknown_new.append(f"the value of the new column {one.column.name} in old rows")
            return None
        wanted.unknown_new.append(f"the new column {one.column.name}: {one.old_rows.reason}")
        return None


def _where(condition: str, value: Expression) -> Expression:
    """Returns a value for the rows of a condition; others keep theirs."""
    return lambda old: f"CASE WHEN {condition} THEN {value(old)} ELSE {old} END"


def _prints_alike(old: ColumnSchema, new: ColumnSchema) -> bool:
    return {old.data_type, new.data_type} <= _SAME_PRINT or old.data_type == new.data_type == "varchar"


# --- policies --------------------------------------------------------------------------------------------------------


def _additive(wanted: Plan, there: Sequence[DeltaColumn], *, is_shared: bool) -> Plan:
    """Keeps all columns where they are, and adds the new ones and new names behind the column that precedes them.
    ``is_shared``: another destination may have given the table a column of that name already."""
    columns = [PlannedColumn(c.name, c.type, c) for c in there]
    previous: str | None = None
    for column in wanted.columns:
        at = next((i for i, c in enumerate(columns) if c.name.lower() == column.name.lower()), None)
        is_same = column.was is None or column.was.name.lower() == column.name.lower()
        if at is not None and (is_same or is_shared):
            held = columns[at].type
            kind = held if holds(held, column.type) else column.type
            if kind != held and not widens(held, kind):
                wanted.refused.append(
                    f"changes the type of {column.name} from {held.simpleString()} to {column.type.simpleString()}"
                )
            value = column.value if column.was is None or is_same else _copied(column.was.name, column.value)
            if column.was is None and value is None:  # a dropped column of that name may have left values
                value = _nothing
            columns[at] = replace(columns[at], type=kind, value=value)
        elif at is not None:
            wanted.refused.append(f"gives a column the name {column.name}, which the Delta table has already")
        else:
            value = column.value
            if column.was is not None:
                value = _copied(column.was.name, column.value)
            behind = 0 if previous is None else 1 + next(i for i, c in enumerate(columns) if c.name == previous)
            columns.insert(behind, PlannedColumn(column.name, column.type, None, value))
        previous = column.name if at is None else columns[at].name
    if wanted.rewrites:
        wanted.refused.append("changes a type in a way that Delta cannot follow in place")
    return replace(wanted, columns=columns, rewrites=False)


def _nothing(_: str) -> str:
    return NOTHING


def differs(name: str, value: str) -> str:
    """Returns the condition, as SQL, of the rows in which a quoted column has another value than this SQL."""
    return f"{name} IS NOT NULL" if value == NOTHING else f"NOT ({name} <=> {value})"


def _copied(name: str, value: Expression | None) -> Expression:
    copied = quote(name) if value is None else value(quote(name))
    return lambda _: copied


def _ignoring(wanted: Plan, there: Sequence[DeltaColumn]) -> Plan:
    """Keeps the Delta table's columns. Columns that changed their type in place must still fit."""
    by_name = {c.name.lower(): c for c in wanted.columns}
    columns = []
    for column in there:
        one = by_name.get(column.name.lower())
        stays = one is not None and one.was is not None and one.was.name == column.name
        if one is not None and stays and not holds(column.type, one.type):
            wanted.refused.append(
                f"changes the type of {column.name} to {one.type.simpleString()}, and the Delta table's column is "
                f"{column.type.simpleString()}"
            )
        columns.append(
            PlannedColumn(column.name, column.type, column, one.value if one is not None and stays else None)
        )
    return replace(wanted, columns=columns, rewrites=False, unknown_new=[])


def _differences(wanted: Plan, there: Sequence[DeltaColumn]) -> list[str]:
    stay = {c.was.physical: c for c in wanted.columns if c.was is not None}
    differences = [f"drops the column {c.name}" for c in there if c.physical not in stay]
    for column in wanted.columns:
        if column.was is None:
            differences.append(f"adds the column {column.name}")
        elif column.was.name != column.name:
            differences.append(f"renames the column {column.was.name} to {column.name}")
        elif column.was.type != column.type:
            differences.append(f"changes the type of {column.name} to {column.type.simpleString()}")
        elif column.value is not None:
            differences.append(f"changes the values of {column.name}")
    if not differences and [c.name for c in wanted.columns] != [c.name for c in there]:
        differences.append("changes the order of columns")
    return differences
