"""Brings a table to a full state that is known at one position, as a snapshot of the source gives it.

Used where a table that has rows is loaded anew. ``soft_delete`` and ``scd2`` compare the state with the present rows:
equal rows stay untouched, and the history remains. ``append`` inserts the state beside the changes. Each function runs
one statement, which carries the position. The caller must make sure that no other statement for the table runs
meanwhile, and that the position lies after the table's applied one.
"""

from __future__ import annotations

from datetime import datetime
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING

from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.window import Window

from cdc.base.targets import SOURCE_COLUMN
from cdc.decode.layout import DELETE, INSERT
from cdc.lake.apply.merge import merge_versions
from cdc.lake.apply.statements import key_ranges, own_conditions, soft_delete_statement
from cdc.lake.apply.versions import CLOSES, recent, versions
from cdc.lake.delta.sql import quote
from cdc.lake.delta.tables import schema_of
from cdc.lake.rows.row_choice import SEEN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from cdc.lake.apply.commit import Commit, MergeStats
    from cdc.lake.apply.merge import RowKeys

_ALIKE = "_towpath_alike"
_INEXACT = (t.FloatType, t.DoubleType, t.ArrayType)
"""Types whose values are compared by their texts: 0.0 and -0.0 are different values, NaN is itself."""


def merge_full_state(commit: Commit, rows: DataFrame, keys: RowKeys, commit_time: datetime) -> MergeStats:
    """Brings a table of mode ``soft_delete`` or ``scd2`` to the state of the source at ``commit.seq``.

    ``rows``: all rows of the source at that position, one for each key, with the names and types of the Delta table;
    it is read once. ``commit_time``: of the transaction at that position. Rows that are missing in ``rows`` are marked
    as deleted, or closed; rows that differ are updated, or get a new version; deleted ones that are there again are
    revived. Equal rows stay as they are. The table may be empty.
    """
    mode, names = commit.target.apply.mode, rows.columns
    events = _differences(commit, rows, keys.names, commit_time).persist()
    try:
        ranges = key_ranges(events, keys.names)
        if ranges is None:
            return commit.execute(None)
        if mode == "soft_delete":
            return commit.execute_with(
                events,
                lambda view: soft_delete_statement(commit.target, view, keys.names, names, ranges, not keys.is_primary),
            )

        conditions = [*ranges, recent(events)]
        new_versions = _in_place(versions(commit, events.drop(SEEN), keys.names, conditions), keys.names)
        return merge_versions(commit, new_versions, keys, conditions, corrects=True)
    finally:
        events.unpersist()


def _in_place(new_versions: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Leaves out the row that closes a version of the very seq of the new one: one key has one version at a seq, which
    then gets other values."""
    same = Window.partitionBy(*[f.col(quote(key)) for key in keys], f.col("_seq"))
    counted = new_versions.withColumn(_ALIKE, f.count(f.lit(1)).over(same))
    return counted.where(~f.col(CLOSES) | (f.col(_ALIKE) == 1)).drop(_ALIKE)


def insert_snapshot(commit: Commit, rows: DataFrame, commit_time: datetime, gtid: str | None) -> MergeStats:
    """Inserts all rows of the source at ``commit.seq`` into a table of mode ``append``, with ``_op`` ``snapshot``.

    ``_row`` rises from row to row, with gaps. ``rows`` has the names and types of the Delta table. A repetition of the
    statement is skipped by its position.
    """
    own = {name.lower() for name in rows.columns}
    values: dict[str, Column] = {
        "_op": f.lit("snapshot"),
        "_seq": f.lit(commit.seq).cast("long"),
        "_row": f.monotonically_increasing_id(),
        "_commit_time": _time(commit_time),
        "_gtid": f.lit(gtid).cast("string"),
        **({SOURCE_COLUMN: f.lit(commit.target.destination)} if commit.target.apply.shared else {}),
    }
    columns = []
    for field in schema_of(commit.state).fields:
        value = values.get(field.name)
        if value is None:
            value = f.col(quote(field.name)) if field.name.lower() in own else f.lit(None)
        columns.append(value.cast(field.dataType).alias(field.name))
    listed = [quote(field.name) for field in schema_of(commit.state).fields]
    return commit.execute_with(
        rows.select(*columns),
        lambda view: (
            f"MERGE INTO {commit.target.sql} t USING {view} s ON false WHEN NOT MATCHED THEN "  # noqa: S608
            f"INSERT ({', '.join(listed)}) VALUES ({', '.join('s.' + name for name in listed)})"
        ),
    )


def _time(moment: datetime) -> Column:
    micros = round(moment.timestamp() * 1_000_000)
    return f.timestamp_micros(f.lit(micros).cast("long"))


def _differences(commit: Commit, rows: DataFrame, keys: Sequence[str], commit_time: datetime) -> DataFrame:
    """Returns the changes that lead from the present rows to these, as if one transaction had made them."""
    names, marks = rows.columns, commit.target.apply.mode == "soft_delete"
    gone = "t._deleted" if marks else "false"
    where = " AND ".join(["true" if marks else "t._valid_to IS NULL", *own_conditions(commit.target)])
    old = [f"t.{quote(name)} AS {quote('_towpath_old_' + name)}" for name in names]
    present = commit.session.spark.sql(
        f"SELECT {', '.join(old)}, {gone} AS _towpath_gone, true AS _towpath_old "  # noqa: S608
        f"FROM {commit.target.sql} VERSION AS OF {commit.state.version} t WHERE {where}"
    )
    new = rows.withColumn("_towpath_new", f.lit(True))
    same = reduce(and_, [_new(key).eqNullSafe(_old(key)) for key in keys])
    pairs = new.join(present, same, "full_outer")
    is_new, is_old = f.col("_towpath_new").isNotNull(), f.col("_towpath_old").isNotNull()
    kinds = {field.name: field.dataType for field in rows.schema.fields}
    differs = reduce(or_, [~_equal(_new(name), _old(name), kinds[name]) for name in names])
    upserted = is_new & (~is_old | f.col("_towpath_gone") | differs)
    removed = is_old & ~is_new & ~f.col("_towpath_gone")
    values = [f.when(is_new, _new(name)).otherwise(_old(name)).alias(name) for name in names]
    return pairs.where(upserted | removed).select(
        f.when(is_new, f.lit(INSERT)).otherwise(f.lit(DELETE)).cast("byte").alias("_op"),
        f.lit(commit.seq).cast("long").alias("_seq"),
        f.lit(0).cast("long").alias("_row"),
        _time(commit_time).alias("_commit_time"),
        is_new.alias(SEEN),
        *values,
    )


def _new(name: str) -> Column:
    return f.col(quote(name))


def _old(name: str) -> Column:
    return f.col(quote("_towpath_old_" + name))


def _equal(left: Column, right: Column, kind: t.DataType) -> Column:
    if isinstance(kind, t.VariantType):
        left, right = f.to_json(left), f.to_json(right)
    elif isinstance(kind, _INEXACT):
        left, right = left.cast("string"), right.cast("string")
    return left.eqNullSafe(right)
