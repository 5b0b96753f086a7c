"""Decides what becomes of the columns of a Delta table that another tool made, before Towpath takes it over.

A column of the source keeps its type if that holds all values of the type that Towpath would choose. Else Delta widens
it, or the table is written anew with its values converted. The rows are compared with the source afterwards, so a value
that the conversion cannot tell is only a row that differs. Columns of the other tool's own are dropped, or stay where
the configuration says that the Delta table may have columns beside the source's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pyspark.sql import types as t

from cdc.base.errors import TargetError, UnsupportedError, UsageError
from cdc.base.targets import MODE_COLUMNS
from cdc.lake.apply.schema.columns import columns_of, holds, widens
from cdc.lake.apply.schema.plan import PlannedColumn
from cdc.lake.delta.sql import quote
from cdc.lake.delta.tables import delta_schema, schema_of
from cdc.lake.jobs.results import AdoptedColumn
from cdc.lake.rows.columns import columns_of_schema

if TYPE_CHECKING:
    from cdc.binlog.sql.schemas import ColumnSchema, TableSchema
    from cdc.lake.apply.schema.columns import DeltaColumn
    from cdc.lake.delta.log import DeltaState
    from cdc.lake.delta.tables import Target

Tool = Literal["debezium", "dms", "lakeflow", "other"]
_METADATA: dict[Tool, tuple[str, ...]] = {
    "debezium": ("__",),
    "dms": ("op", "dms_", "ar_h_", "transact_id", "header__"),
    "lakeflow": ("_commit_timestamp", "_commit_version", "_change_type", "_rescued_data", "__"),
    "other": (),
}
"""Beginnings of the names of the columns that a tool adds, in lower case."""
_HISTORY = {"__start_at", "__end_at"}
"""The columns of Lakeflow's tables that keep a history of their rows."""
_WHOLE = (t.ByteType, t.ShortType, t.IntegerType, t.LongType)
_FROM_TEXT = (
    t.DateType, t.TimestampType, t.TimestampNTZType, t.DecimalType, *_WHOLE, t.FloatType, t.DoubleType,
)  # fmt: skip


@dataclass(frozen=True)
class ColumnPlan:
    """The columns that a table gets."""

    columns: tuple[PlannedColumn, ...]
    """All columns that the table has afterwards, without those of the mode."""
    mode_values: dict[str, str]
    """SQL of the mode's columns that the table lacks, by name."""
    actions: tuple[AdoptedColumn, ...]
    """What is done, for people; without the columns that stay as they are."""
    present: tuple[DeltaColumn, ...]
    """The columns that the table has now, without those of the mode."""

    @property
    def rewrites(self) -> bool:
        """Whether the table is written anew."""
        return bool(self.mode_values) or any(column.value is not None for column in self.columns)

    @property
    def changes(self) -> bool:
        """Whether the table has other columns now."""
        stay = {column.was: column for column in self.columns if column.was is not None}
        return (
            self.rewrites
            or len(stay) != len(self.columns)
            or {*stay} != {*self.present}
            or any(was.type != column.type for was, column in stay.items())
        )


def plan_columns(
    target: Target, state: DeltaState, schema: TableSchema, tool: Tool, dropped: Sequence[str], since: tuple[int, int]
) -> ColumnPlan:
    """Returns what the columns of a table become. ``dropped``: those that the user wants to drop; a column of the
    source gets its values from there then. ``since``: the first seq of the store and its time, µs since 1970: what rows
    of mode ``soft_delete`` get where the other tool's columns do not tell.

    Raises UsageError for a column that the table does not have, UnsupportedError for one that cannot be taken over.
    """
    return _Plan(target, state, schema, tool, {name.lower() for name in dropped}).plan(since)


class _Plan:
    def __init__(self, target: Target, state: DeltaState, schema: TableSchema, tool: Tool, dropped: set[str]) -> None:
        self._target, self._state, self._schema, self._tool, self._dropped = target, state, schema, tool, dropped
        self._place = f"table {target.table} at {target.path}"
        ours = MODE_COLUMNS[target.apply.mode]
        self._lake = {c.name.lower(): c for c in columns_of(state) if c.name.lower() not in ours}
        self._types = {f.name.lower(): f.dataType for f in schema_of(state).fields}
        self._fields = columns_of_schema(schema, target.policies)
        self._actions: list[AdoptedColumn] = []

    def plan(self, since: tuple[int, int]) -> ColumnPlan:
        if tool_history := _HISTORY & self._types.keys():
            raise UnsupportedError(
                f"the table has the columns {', '.join(sorted(tool_history))}: it keeps a history of its rows, and "
                "only tables with one row for each key can be taken over",
                place=self._place,
                remedy="Move it away as an archive, and load the table with `cdc snapshot "
                f"{self._target.destination} {self._target.table}`, in mode scd2 for a history from now on.",
            )
        unknown = self._dropped - self._types.keys()
        if unknown:
            raise UsageError(
                f"--drop names {', '.join(sorted(unknown))}, which the Delta table does not have",
                place=self._place,
                remedy=f"It has {', '.join(self._types)}.",
            )
        source = [self._source_column(field) for field in self._fields.fields]
        columns = [*source, *self._others({column.name.lower() for column in source})]
        self._require_partitions(columns)
        mode_values = self._mode_values(since)
        return ColumnPlan(tuple(columns), mode_values, tuple(self._actions), tuple(self._lake.values()))

    # --- the source's columns

    def _source_column(self, field: t.StructField) -> PlannedColumn:
        old = self._lake.get(field.name.lower())
        shown = field.dataType.simpleString()
        if old is None:
            self._note(field.name, None, shown, "added: its values come from the source")
            return PlannedColumn(field.name, field.dataType, None)
        was = old.type.simpleString()
        if old.name.lower() in self._dropped:
            self._note(old.name, was, shown, "dropped and added: its values come from the source")
            return PlannedColumn(old.name, field.dataType, old, lambda _: "NULL")
        if holds(old.type, field.dataType):
            if old.type != field.dataType:
                self._note(old.name, was, was, f"kept: it holds every {shown}")
            return PlannedColumn(old.name, old.type, old)
        if widens(old.type, field.dataType):
            self._note(old.name, was, shown, "widened")
            return PlannedColumn(old.name, field.dataType, old)
        value = _conversion(old.type, field.dataType, self._column_of(field.name), self._tool)
        if value is None:
            raise UnsupportedError(
                f"the column {old.name} is {was} in the Delta table and {shown} by the source, and the one does not "
                "tell the other exactly",
                place=self._place,
                remedy=f"Add --drop {old.name}: then its values come from the source; or leave the column out "
                f"(tables.overrides.{self._target.table}.columns: {{{field.name}: drop}}).",
            )
        self._note(old.name, was, shown, "converted")
        return PlannedColumn(old.name, field.dataType, old, value)

    def _column_of(self, lake_name: str) -> ColumnSchema:
        policed = next(c for c in self._fields.policies.columns if c.field.name == lake_name)
        return next(column for column in self._schema.columns if column.name == policed.source.name)

    # --- the other tool's columns

    def _others(self, source: set[str]) -> Iterator[PlannedColumn]:
        follows = self._target.apply.schema_changes
        keeps = follows in ("additive", "ignore")
        for name, old in self._lake.items():
            if name in source:
                continue
            kind, is_known = old.type.simpleString(), name.startswith(_METADATA[self._tool] or ("\0",))
            if name in self._dropped or (is_known and not keeps):
                self._note(old.name, kind, None, "dropped: a column of the other tool" if is_known else "dropped")
                continue
            if not keeps:
                raise UnsupportedError(
                    f"neither the source nor {self._tool} has the column {old.name}, and the Delta table of a mirror "
                    f"(schema_changes: {follows}) has the source's columns alone",
                    place=self._place,
                    remedy=f"Add --drop {old.name}; or set schema_changes: additive for the table (tables.overrides), "
                    "then it stays, and nothing writes it any more.",
                )
            self._note(old.name, kind, kind, f"kept beside the source's columns (schema_changes: {follows})")
            yield PlannedColumn(old.name, old.type, old)

    def _mode_values(self, since: tuple[int, int]) -> dict[str, str]:
        """Returns the SQL of the columns of mode ``soft_delete`` that the table lacks."""
        values: dict[str, str] = {}
        for field in delta_schema([], self._target.apply.mode).fields:
            held = self._types.get(field.name.lower())
            if held is not None and held != field.dataType:
                raise UnsupportedError(
                    f"the Delta table has a column {field.name} of the type {held.simpleString()}, and mode "
                    f"{self._target.apply.mode} needs it as {field.dataType.simpleString()}",
                    place=self._place,
                    remedy="Rename the column in the Delta table (ALTER TABLE … RENAME COLUMN), then call the command "
                    "again.",
                )
            if held is None:
                sql, told_by = self._mode_value(field.name, since)
                values[field.name] = f"CAST({sql} AS {field.dataType.simpleString()})"
                self._note(field.name, None, field.dataType.simpleString(), f"added: {told_by}")
        return values

    def _mode_value(self, name: str, since: tuple[int, int]) -> tuple[str, str]:
        seq, time_us = since
        if name == "_seq":
            return str(seq), "the beginning of the store"
        if name == "_deleted":
            for column, condition in (
                ("__deleted", "lower(CAST({} AS STRING)) = 'true'"),
                ("__op", "{} = 'd'"),
                ("op", "{} = 'D'"),
                ("_change_type", "{} = 'delete'"),
            ):
                if column in self._lake:
                    told = quote(self._lake[column].name)
                    return f"coalesce({condition.format(told)}, false)", f"from {self._lake[column].name}"
            return "false", "no column tells deleted rows"
        if isinstance(self._types.get("__source_ts_ms"), t.LongType):
            return "timestamp_millis(__source_ts_ms)", "from __source_ts_ms"
        return f"timestamp_micros({time_us})", "the time at which the store begins"

    def _require_partitions(self, columns: Sequence[PlannedColumn]) -> None:
        kept = {column.was.name: column for column in columns if column.was is not None}
        for name in self._state.partition_by:
            stays = kept.get(name)
            if stays is None or stays.value is not None or stays.was is None or stays.type != stays.was.type:
                raise TargetError(
                    f"the table is partitioned by {name}, which would be dropped or get another type, and Delta "
                    "changes no partitions in place",
                    place=self._place,
                    remedy="Keep the column (schema_changes: additive for the table), or write the table anew without "
                    "that partition first.",
                )

    def _note(self, name: str, was: str | None, becomes: str | None, action: str) -> None:
        self._actions.append(AdoptedColumn(name, was, becomes, action))


def rewritten(columns: Sequence[PlannedColumn], mode_values: dict[str, str], present: Sequence[str]) -> str:
    """Returns the list of SELECT that makes the planned columns of a table's own rows. ``present``: the mode's columns
    that the table has."""
    selected = []
    for column in columns:
        if column.was is None:
            value = f"CAST(NULL AS {column.type.simpleString()})"
        else:
            name = quote(column.was.name)
            value = name if column.value is None else column.value(name)
            value = value if column.type == column.was.type else f"CAST({value} AS {column.type.simpleString()})"
        selected.append(f"{value} AS {quote(column.name)}")
    selected += [quote(name) for name in present]
    return ", ".join([*selected, *(f"{value} AS {name}" for name, value in mode_values.items())])


def _conversion(old: t.DataType, new: t.DataType, column: ColumnSchema, tool: Tool) -> Callable[[str], str] | None:
    """Returns the SQL of a value in the new type from that of the old one, in a session whose time zone is UTC; None if
    it is not told exactly. What is no value of the new type becomes null, and is repaired from the source."""
    kind = new.simpleString()
    if isinstance(old, t.StringType) and isinstance(new, _FROM_TEXT):
        return lambda v: f"try_cast({v} AS {kind})"
    if isinstance(old, t.TimestampType) and isinstance(new, t.TimestampNTZType):
        return lambda v: f"CAST({v} AS {kind})"
    if isinstance(old, t.TimestampNTZType) and isinstance(new, t.TimestampType):
        return lambda v: f"CAST({v} AS {kind})"
    if isinstance(old, _WHOLE) and isinstance(new, (*_WHOLE, t.DecimalType, t.BooleanType)):
        return lambda v: f"try_cast({v} AS {kind})"
    if isinstance(old, t.BooleanType) and isinstance(new, _WHOLE):
        return lambda v: f"CAST({v} AS {kind})"
    if isinstance(old, t.DecimalType) and isinstance(new, (*_WHOLE, t.DecimalType)):
        return lambda v: f"try_cast({v} AS {kind})"
    if tool != "debezium":
        return None
    if isinstance(old, t.IntegerType | t.LongType) and isinstance(new, t.DateType):
        return lambda v: f"date_from_unix_date(CAST({v} AS INT))"
    if isinstance(old, t.LongType) and isinstance(new, t.TimestampNTZType | t.TimestampType):
        function = "timestamp_micros" if _digits(column) > 3 else "timestamp_millis"
        return lambda v: f"CAST({function}({v}) AS {kind})"
    if isinstance(old, t.StringType) and isinstance(new, t.BinaryType):
        return lambda v: f"try_to_binary({v}, 'base64')"
    return None


def _digits(column: ColumnSchema) -> int:
    """Returns the digits of the fraction of a DATETIME's seconds."""
    _, bracket, rest = column.column_type.partition("(")
    return int(rest.partition(")")[0]) if bracket else 0
