"""Gives the rows of a Delta table the values of columns that only the server knew after a statement.

A snapshot of the key and these columns has read them (:mod:`cdc.lake.jobs.read_columns`). The values of a row are those
right after the statement: of a row that was changed since, they are in the image before its first change. Each row that
the source had must have values, and there must be values of no other row; else the whole table has to be read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.window import Window

from cdc.decode.layout import DELETE, INSERT, UPDATE
from cdc.lake.apply.schema.columns import columns_of, holds, widens
from cdc.lake.apply.schema.evidence import conditions_met
from cdc.lake.delta.present_rows import LakeVersion, matched
from cdc.lake.delta.sql import quote
from cdc.lake.delta.tables import ddl_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from cdc.binlog.sql.schemas import TableSchema
    from cdc.lake.apply.schema.lake import Lake
    from cdc.lake.apply.schema.plan import PlannedColumn, TableEvolution
    from cdc.lake.delta.log import DeltaState
    from cdc.lake.delta.tables import Target
    from cdc.lake.rows.columns import SourceColumns
    from cdc.lake.runtime.session import TableSession

SEQ, ROW, RANK, WAS_THERE = "_seq", "_row", "_towpath_rank", "_towpath_was_there"
"""Columns of the files with changes beside the key and the values: the position of the change, the rank of its two
images, and whether the row was there before it."""
CHANGE_FIELDS = (
    t.StructField(SEQ, t.LongType()),
    t.StructField(ROW, t.LongType()),
    t.StructField(RANK, t.IntegerType()),
    t.StructField(WAS_THERE, t.BooleanType()),
)
_KEY, _VALUE, _IS_READ = "_towpath_key_", "_towpath_value_", "_towpath_is_read"
_UNEQUAL = (t.FloatType, t.DoubleType, t.VariantType, t.ArrayType)
"""Types of which different values may be equal to Spark, or which it does not compare."""


@dataclass(frozen=True)
class ColumnReading:
    """The values of columns right after a statement, in Parquet files."""

    seq: int
    """The seq of the statement."""
    names: tuple[str, ...]
    """The source's names of the columns, without those of the key."""
    keys: tuple[str, ...]
    """The key's columns in Delta."""
    columns: SourceColumns
    """The key and the columns as they are in the files."""
    chunks: tuple[str, ...]
    """The files with the rows that were read."""
    changes: tuple[str, ...] = ()
    """The files with the changes between the statement and the reading, in the form of :func:`first_changes`."""

    def field_of(self, name: str) -> t.StructField:
        """Returns the Delta column of one of :attr:`names`."""
        field = self.columns.field_of(name)
        assert field is not None  # a dropped column is not read
        return field

    def rows(self, session: TableSession) -> DataFrame:
        """Returns the keys and the values of all rows that the source had after the statement, under names that no
        table has."""
        schema = t.StructType(self.columns.read_fields)
        rows = session.spark.read.schema(schema).parquet(*self.chunks)
        names = [quote(field.name) for field in schema.fields]
        if self.changes:
            changes = session.spark.read.schema(t.StructType([*schema.fields, *CHANGE_FIELDS])).parquet(*self.changes)
            first = _first(changes, self.keys)
            unchanged = matched(rows, first.select(*[quote(key) for key in self.keys]), self.keys, "left_anti")
            rows = unchanged.select(*names).unionByName(first.where(f.col(WAS_THERE)).select(*names))
        keys = [f.col(quote(key)).alias(f"{_KEY}{i}") for i, key in enumerate(self.keys)]
        values = []
        for i, field in enumerate(map(self.field_of, self.names)):
            value = f.col(quote(field.name))
            value = f.parse_json(value) if isinstance(field.dataType, t.VariantType) else value
            values.append(value.alias(f"{_VALUE}{i}"))
        return rows.select(*keys, *values, f.lit(True).alias(_IS_READ))

    def on(self, target: Target) -> str:
        """Returns the condition by which a row of the table gets values."""
        same = [f"{quote(key)} <=> {_KEY}{i}" for i, key in enumerate(self.keys)]
        return " AND ".join([*same, *filter(None, [target.present_rows])])

    def planned(self, columns: Sequence[PlannedColumn]) -> list[PlannedColumn] | None:
        """Returns the columns of a table that is altered in place, before it gets the values; None if a type cannot be
        changed in place."""
        read = {self.field_of(name).name for name in self.names}
        planned = []
        for column in columns:
            was = column.was
            if column.name not in read or was is None:
                planned.append(column)
            elif holds(was.type, column.type):
                planned.append(replace(column, type=was.type))
            elif widens(was.type, column.type):
                planned.append(column)
            else:
                return None
        return planned

    def joined(self, columns: Sequence[PlannedColumn]) -> list[PlannedColumn]:
        """Returns the columns of a table that is written anew from its rows, joined with :meth:`rows`."""
        numbers = {self.field_of(name).name: i for i, name in enumerate(self.names)}
        return [_with_value(column, numbers[column.name]) if column.name in numbers else column for column in columns]

    def fill_statement(self, target: Target, view: str, state: DeltaState, updates: Mapping[str, str]) -> str:
        """Returns the MERGE that gives the rows their values. ``view``: the name of a view of :meth:`rows`;
        ``updates``: what old rows get in other columns, those that the source has not any more included: SQL by the
        names of columns."""
        kinds = {column.name: column.type for column in columns_of(state)}
        values, differs = {}, []
        for i, field in enumerate(map(self.field_of, self.names)):
            name, kind = quote(field.name), kinds[field.name]
            values[name] = f"CAST({_VALUE}{i} AS {ddl_type(kind)})"
            differs.append("true" if isinstance(kind, _UNEQUAL) else f"NOT (t.{name} <=> {values[name]})")
        others = {quote(name): value for name, value in updates.items() if quote(name) not in values}
        condition = "" if others else f" AND ({' OR '.join(differs)})"
        statement = (
            f"MERGE INTO {target.sql} t USING {view} s ON {self.on(target)} "
            f"WHEN MATCHED{condition} THEN UPDATE SET {_assigned(values | others)}"
        )
        if others:
            statement += f" WHEN NOT MATCHED BY SOURCE THEN UPDATE SET {_assigned(others)}"
        return statement

    def are_complete(self, session: TableSession, target: Target, state: DeltaState) -> bool:
        """Whether there are values of each row that the source had, as the table has them, and of no other."""
        lake = LakeVersion(target, state.version, state.applied_seq, self.keys)
        present = lake.choose(session, self.keys, lambda rows: rows).withColumn("_towpath_present", f.lit(True))
        rows = self.rows(session)
        same = f.lit(True)
        for i, key in enumerate(self.keys):
            same = same & f.col(quote(key)).eqNullSafe(f.col(f"{_KEY}{i}"))
        pairs = present.join(rows, same, "full_outer")
        return not pairs.where(f.col("_towpath_present").isNull() | f.col(_IS_READ).isNull()).limit(1).collect()


def first_changes(changes: DataFrame, columns: SourceColumns, keys: Sequence[str]) -> DataFrame:
    """Returns the first change of each key: an image before it, or the fact that the row was not there.

    ``changes``: with both images and the columns of ``columns``, JSON as text.
    """
    names = [field.name for field in columns.read_fields]
    at = [f.col(SEQ).cast("long").alias(SEQ), f.col(ROW).cast("long").alias(ROW)]

    def images(kind: int, prefix: str, rank: int, *, was_there: bool) -> DataFrame:
        values = [f.col(f"{prefix}{quote(name)}").alias(name) for name in names]
        marks = [f.lit(rank).alias(RANK), f.lit(was_there).alias(WAS_THERE)]
        return changes.where(f.col("_op") == kind).select(*values, *at, *marks)

    before = images(UPDATE, "_before.", 0, was_there=True).unionByName(images(DELETE, "", 0, was_there=True))
    after = images(UPDATE, "", 1, was_there=False)  # counts for a key that the row has got
    return _first(before.unionByName(after).unionByName(images(INSERT, "", 1, was_there=False)), keys)


def _first(changes: DataFrame, keys: Sequence[str]) -> DataFrame:
    by_key = Window.partitionBy(*[f.col(quote(key)) for key in keys])
    number = f.row_number().over(by_key.orderBy(SEQ, ROW, RANK))
    return changes.withColumn("_towpath_number", number).where("_towpath_number = 1").drop("_towpath_number")


def _with_value(column: PlannedColumn, number: int) -> PlannedColumn:
    was = column.was
    if was is not None and holds(was.type, column.type):
        column = replace(column, type=was.type)  # rows that only the lake has keep their values
    kind = ddl_type(column.type)
    stays = was is not None and holds(column.type, was.type)

    def value(old: str) -> str:
        other = f"CAST({old if stays else 'NULL'} AS {kind})"
        return f"CASE WHEN {_IS_READ} THEN CAST({_VALUE}{number} AS {kind}) ELSE {other} END"

    return replace(column, value=value)


def _assigned(values: dict[str, str]) -> str:
    return ", ".join(f"t.{name} = {value}" for name, value in values.items())


# --- what may be read ------------------------------------------------------------------------------------------------


def columns_to_read(
    lake: Lake,
    target: Target,
    state: DeltaState,
    plan: TableEvolution,
    before: TableSchema,
    after: TableSchema,
) -> tuple[str, ...]:
    """Returns the source's names of the columns that a snapshot must read after a statement; empty: the whole table."""
    apply, keys = target.apply, after.primary_key
    if apply.shared or apply.mode == "append" or apply.schema_changes != "evolve" or plan.reads_all:
        return ()
    names = tuple(dict.fromkeys(plan.read))
    if not names or not keys or keys != before.primary_key or _lower(apply.keys or keys) != _lower(keys):
        return ()
    planned = {column.name: column for column in plan.columns}
    for key in keys:
        column = planned.get(target.policies.lake_name(key) or "")
        stays = column is not None and column.was is not None and column.value is None
        if not stays or key.lower() in _lower(names) or target.policies.column(key).kind in ("mask", "null"):
            return ()
    read = [planned[name] for source_name in names if (name := target.policies.lake_name(source_name)) in planned]
    kinds = [(c.was.type, c.type) for c in read if c.was is not None]
    are_kept = all(holds(new, old) or holds(old, new) for old, new in kinds)
    return names if are_kept or not _has_former_rows(lake, target, state) else ()


def _lower(names: Sequence[str]) -> set[str]:
    return {name.lower() for name in names}


def _has_former_rows(lake: Lake, target: Target, state: DeltaState) -> bool:
    """Whether the table has rows that the source has not any more."""
    present = target.present_rows
    if present is None:
        return False
    return bool(conditions_met(lake, target, state, [f"NOT ({present})"], present=False))
