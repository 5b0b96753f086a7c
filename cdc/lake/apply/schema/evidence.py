"""Looks for rows in a Delta table for which it is not certain what a statement did to them."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cdc.lake.apply.schema.lake import Lake
    from cdc.lake.delta.log import DeltaState
    from cdc.lake.delta.tables import Target


def conditions_met(
    lake: Lake, target: Target, state: DeltaState, conditions: Collection[str], *, present: bool = True
) -> list[str]:
    """Returns those of some SQL conditions that hold for a row of the table. ``present``: only rows count that the
    source has at the table's position."""
    if not conditions or not lake.has_such_row(target, state, conditions, present=present):
        return []
    if len(conditions) == 1:
        return list(conditions)
    return [condition for condition in conditions if lake.has_such_row(target, state, [condition], present=present)]


def select_has_row(
    spark: SparkSession, target: Target, state: DeltaState, conditions: Collection[str], *, present: bool
) -> bool:
    """Whether a row of the table fulfils a condition. Delta leaves out the files whose statistics exclude it."""
    where = [f"({' OR '.join(conditions)})", target.own_rows, target.present_rows if present else None]
    chosen = " AND ".join(condition for condition in where if condition is not None)
    table = f"{target.sql} VERSION AS OF {state.version}"
    return bool(spark.sql(f"SELECT 1 FROM {table} WHERE {chosen} LIMIT 1").collect())  # noqa: S608
