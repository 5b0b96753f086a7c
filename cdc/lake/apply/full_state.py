"""Brings a table to a full state that is known at one position, as a snapshot of the source gives it.

Used where a table that has rows is loaded anew. ``soft_delete`` and ``scd2`` compare the state with the present rows:
equal rows stay untouched, and the history remains. ``append`` inserts the state beside the changes. Each function runs
one statement, which carries the position. The caller must make sure that no other statement for the table runs
meanwhile, and that the position lies after the table's applied one.

:func:`replace_part` does the same for some rows of a table of mode ``upsert`` or ``soft_delete``, at the position that
the table has.
"""

from __future__ import annotations

from datetime import datetime
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING

from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.window import Window

from cdc.base.targets import MODE_COLUMNS, SOURCE_COLUMN
from cdc.decode.layout import DELETE, INSERT
from cdc.lake.apply.merge import merge_versions
from cdc.lake.apply.statements import key_ranges, own_conditions, soft_delete_statement
from cdc.lake.apply.versions import CLOSES, recent, versions
from cdc.lake.delta.present_rows import matched
from cdc.lake.delta.sql import quote
from cdc.lake.delta.tables import schema_of
from cdc.lake.rows.row_choice import SEEN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from cdc.lake.apply.commit import Commit, MergeStats
    from cdc.lake.apply.merge import RowKeys

_ALIKE = "_towpath_alike"
_IS_NEW, _REMOVES, _IS_WRONG, _COUNT, _IS_REPEATED, _RANK = (
    f"_towpath_{name}" for name in ("is_new", "removes", "is_wrong", "count", "is_repeated", "rank")
)
_MOST_BROADCAST = 100_000
"""The number of keys up to which each task gets all of them."""
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
        **({SOURCE_COLUMN: f.lit(commit.target.member)} if commit.target.apply.shared else {}),
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


def replace_part(
    commit: Commit,
    rows: DataFrame,
    is_part: Column,
    keys: RowKeys,
    at: tuple[int, datetime],
    *,
    is_of_keys: bool,
    also: DataFrame | None = None,
) -> int:
    """Brings a part of a table of mode ``upsert`` or ``soft_delete`` to the state of the source at the position that
    the table has or gets. Returns the number of keys whose rows differed.

    ``rows``: the rows that the table must have, one for each key, with the names and types of the Delta table: those of
    the part, and those of other rows whose keys are in the part in the Delta table. ``is_part``: whether a row belongs
    to the part; never null. ``at``: seq and commit time of the position. ``is_of_keys``: a row's key alone tells
    whether it belongs to the part. ``also``: keys of other rows that are replaced, some of which ``rows`` may lack.

    Rows of the part whose keys are missing in ``rows`` are removed, or marked as deleted. A key with several rows,
    which only somebody else can have made, gets one. Columns that ``rows`` lacks keep their values, and equal rows stay
    as they are.
    """
    marks, names = commit.target.apply.mode == "soft_delete", rows.columns
    own = {name.lower() for name in (*names, *MODE_COLUMNS[commit.target.apply.mode])}
    others = [field.name for field in schema_of(commit.state).fields if field.name.lower() not in own]
    present = commit.session.spark.sql(
        f"SELECT * FROM {commit.target.sql} VERSION AS OF {commit.state.version}"  # noqa: S608
    )
    chosen = present.where(is_part)
    if also is None and not is_of_keys:
        also = rows.select(*[quote(key) for key in keys.names])
    if also is not None:
        chosen = chosen.unionByName(matched(present.where(~is_part), also, keys.names, "left_semi"))
    old = chosen.select(
        *[f.col(quote(name)).alias(f"_towpath_old_{name}") for name in [*names, *others]],
        (f.col("_deleted") if marks else f.lit(False)).alias("_towpath_gone"),
        f.lit(True).alias("_towpath_old"),
    )
    pairs = rows.withColumn("_towpath_new", f.lit(True)).join(
        old, reduce(and_, [_new(key).eqNullSafe(_old(key)) for key in keys.names]), "full_outer"
    )
    kinds = {field.name: field.dataType for field in rows.schema.fields}
    is_new, is_old, is_gone = f.col("_towpath_new").isNotNull(), f.col("_towpath_old").isNotNull(), "_towpath_gone"
    differs = reduce(or_, [~_equal(_new(name), _old(name), kinds[name]) for name in names])
    is_wrong = f.when(is_new, ~is_old | f.col(is_gone) | differs).otherwise(~f.col(is_gone))
    compared = pairs.select(
        *[f.when(is_new, _new(name)).otherwise(_old(name)).alias(name) for name in names],
        *[_old(name).alias(name) for name in others],
        is_new.alias(_IS_NEW),
        is_old.alias(_REMOVES),
        is_wrong.alias(_IS_WRONG),
    )
    events = _worst_of_keys(compared, _repeated(chosen, keys.names), keys.names)
    seq, moment = at
    marked: dict[str, Column] = {}
    if marks:
        marked = {"_deleted": ~f.col(_IS_NEW), "_commit_time": _time(moment), "_seq": f.lit(seq).cast("long")}
    stored = [quote(name) for name in (*names, *others, *marked)]
    events = events.select(
        *[quote(name) for name in (*names, *others)],
        *[value.alias(name) for name, value in marked.items()],
        _IS_NEW,
        _REMOVES,
    ).persist()
    try:
        ranges = key_ranges(events, keys.names)
        if ranges is None:
            return 0
        # A key's rows are deleted, and its row is inserted: an update would keep several rows of a key.
        removed = events.where(_REMOVES)
        inserted = (events if marks else events.where(_IS_NEW)).withColumn(_REMOVES, f.lit(False))
        equal = "=" if keys.is_primary else "<=>"
        same = [f"t.{quote(key)} {equal} s.{quote(key)}" for key in keys.names]
        commit.execute_with(
            removed.unionByName(inserted),
            lambda view: (
                f"MERGE INTO {commit.target.sql} t USING {view} s "  # noqa: S608 - names are quoted
                f"ON {' AND '.join([f's.{_REMOVES}', *same, *ranges])} "
                f"WHEN MATCHED THEN DELETE "
                f"WHEN NOT MATCHED AND NOT s.{_REMOVES} THEN INSERT ({', '.join(stored)}) "
                f"VALUES ({', '.join('s.' + name for name in stored)})"
            ),
        )
        return events.count()
    finally:
        events.unpersist()


def _repeated(rows: DataFrame, keys: Sequence[str]) -> DataFrame | None:
    """Returns the keys that several of these rows have, under names of their own; None if there are none."""
    columns = [f.col(quote(key)) for key in keys]
    counted = rows.groupBy(*columns).agg(f.count(f.lit(1)).alias(_COUNT)).where(f.col(_COUNT) > 1)
    named = [column.alias(f"{_IS_REPEATED}_{key}") for column, key in zip(columns, keys, strict=True)]
    repeated = counted.select(*named, f.lit(True).alias(_IS_REPEATED))
    number = repeated.limit(_MOST_BROADCAST + 1).count()
    if not number:
        return None
    return f.broadcast(repeated) if number <= _MOST_BROADCAST else repeated


def _worst_of_keys(pairs: DataFrame, repeated: DataFrame | None, keys: Sequence[str]) -> DataFrame:
    """Returns a pair for each key that has a wrong one or is repeated, a wrong one if there is any. These keys are few,
    so the other pairs are left out before anything is sorted."""
    if repeated is None:
        return pairs.where(_IS_WRONG)
    same = [f.col(quote(key)).eqNullSafe(f.col(quote(f"{_IS_REPEATED}_{key}"))) for key in keys]
    suspects = pairs.join(repeated, reduce(and_, same), "left").where(
        f.col(_IS_WRONG) | f.col(_IS_REPEATED).isNotNull()
    )
    by_key = Window.partitionBy(*[f.col(quote(key)) for key in keys]).orderBy(f.col(_IS_WRONG).desc())
    return suspects.withColumn(_RANK, f.row_number().over(by_key)).where(f.col(_RANK) == 1)


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
