"""Brings the columns of a table that keeps its history to those of a snapshot.

A table of mode ``append``, ``soft_delete`` or ``scd2`` is not replaced when it is loaded anew: its older rows stay. So
its columns must first become those that the snapshot has read, whatever statements lie between. Columns are matched by
their names: one that the source has no more is dropped, and a new one is null in the older rows.
docs/decisions/0064 says what becomes of older values if a type changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import types as t

from cdc.errors import TargetError
from cdc.log import get_logger
from cdc.targets import GENERATION_PROPERTY, NEEDS_MAPPING
from spark_jobs.apply.schema.columns import DeltaColumn, columns_of
from spark_jobs.apply.schema.content import rewrite_statement
from spark_jobs.apply.schema.plan import PlannedColumn
from spark_jobs.apply.schema.steps import alter, goals_of, needed_features
from spark_jobs.apply.schema.values import Conversion, held_by, history_type
from spark_jobs.delta.tables import MODE_PROPERTY, ddl_type, sql_properties

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_jobs.delta.log import DeltaState
    from spark_jobs.delta.tables import Target
    from spark_jobs.source.columns import SourceColumns

_OF_THE_FILES = ("delta.columnMapping.", "delta.minReader", "delta.minWriter", "delta.enableTypeWidening")
"""Beginnings of the properties that a table written anew does not take over."""
_log = get_logger(__name__)


@dataclass(frozen=True)
class Reload:
    """The columns that a table must have for a snapshot."""

    columns: tuple[PlannedColumn, ...]
    rewrites: bool
    """Whether a type cannot be changed in place."""
    lossy: tuple[str, ...]
    """Columns with older values that the new type may not hold."""


def plan_reload(there: Sequence[DeltaColumn], snapshot: SourceColumns, mode: str) -> Reload:
    """Returns what the columns ``there`` must become so that the table takes the rows of the snapshot."""
    by_name = {column.name.lower(): column for column in there}
    columns, lossy, rewrites = [], [], False
    for field in snapshot.fields:
        was = by_name.get(field.name.lower())
        if was is None:
            columns.append(PlannedColumn(field.name, field.dataType, None))
            continue
        found = history_type(was.type, field.dataType) if mode == "append" else held_by(was.type, field.dataType)
        if found is None:
            lossy.append(field.name)
            found = _forced(was.type, field.dataType)
        rewrites = rewrites or found.rewrites
        columns.append(PlannedColumn(was.name, found.type, was, found.expression))
    return Reload(tuple(columns), rewrites, tuple(lossy))


def _forced(have: t.DataType, want: t.DataType) -> Conversion:
    """Returns the conversion to a type that does not hold every older value: such a value becomes null."""
    kind = ddl_type(want)
    if any(isinstance(one, t.ArrayType | t.VariantType) for one in (have, want)):
        return Conversion(want, lambda _: f"CAST(NULL AS {kind})", rewrites=True)
    return Conversion(want, lambda value: f"try_cast(CAST({value} AS STRING) AS {kind})", rewrites=True)


def bring_columns(spark: SparkSession, target: Target, state: DeltaState, snapshot: SourceColumns) -> DeltaState:
    """Gives the table the columns of a snapshot, and returns its state. A repetition after a kill goes on from what is
    there. The caller must have the table for itself."""
    there = columns_of(state)
    found = plan_reload(there, snapshot, state.properties.get(MODE_PROPERTY, target.apply.mode))
    if [(c.name, c.type) for c in found.columns] == [(c.name, c.type) for c in there]:
        return state
    if found.lossy:
        _log.warning(
            "older values that do not fit the columns' new types become null; earlier versions of the Delta table "
            "have them",
            table=target.table,
            columns=", ".join(found.lossy),
            version=state.version,
        )
    if found.rewrites:
        spark.sql(_rewrite(target, state, found.columns))
    else:
        features = needed_features(state, found.columns)
        if features:
            spark.sql(f"ALTER TABLE {target.sql} SET TBLPROPERTIES ({sql_properties(features)})")
        alter(target, goals_of(_read(target), found.columns), lambda: _read(target), lambda one: _run(spark, one))
    return _read(target)


def _rewrite(target: Target, state: DeltaState, columns: Sequence[PlannedColumn]) -> str:
    """Returns the statement that writes the table anew. It begins a generation, since the table gets another id."""
    properties = {
        name: value
        for name, value in state.properties.items()
        if not name.startswith(_OF_THE_FILES) and name != "delta.dataSkippingStatsColumns"
    }
    properties[GENERATION_PROPERTY] = str(state.generation + 1)
    if any(NEEDS_MAPPING & set(column.name) for column in columns):
        properties["delta.columnMapping.mode"] = "name"
    return rewrite_statement(target, columns, properties, state)


def _run(spark: SparkSession, statement: str) -> None:
    spark.sql(statement).collect()


def _read(target: Target) -> DeltaState:
    state = target.state()
    if state is None:
        raise TargetError("the Delta table is gone", place=f"table {target.table} at {target.path}")
    return state
