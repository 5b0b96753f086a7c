"""The versions of rows for mode ``scd2``, as a DataFrame that one MERGE applies.

A version holds from the commit of its transaction until the commit of the next transaction that changes or deletes its
row. What a batch adds follows from its changes and from the table *at the version whose applied position was read*:
:func:`versions` reads exactly that version. So the rows that it gives are a function of the source's history alone. An
orphan that commits part of the same changes afterwards has written the same rows, and the MERGE, by key and ``_seq``,
finds them and writes them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as f
from pyspark.sql.window import Window

from cdc.base.targets import MODE_COLUMNS
from cdc.decode.layout import DELETE
from cdc.lake.apply.large_values import keep_last
from cdc.lake.delta.sql import quote

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from cdc.lake.apply.commit import Commit

CLOSES = "_towpath_closes"
"""Column of the result: the row is no new version, but closes the one with this key and ``_seq``."""
_RANK, _OPEN, _FLOOR, _TIME, _BEGINS = (f"_towpath_{name}" for name in ("rank", "open", "floor", "time", "begins"))


def last_of_transactions(changes: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Returns one row per key and transaction: the last change, or the upsert if an update that changes its key gives
    two equal ones."""
    order = Window.partitionBy(*[f.col(quote(key)) for key in keys], f.col("_seq")).orderBy(
        f.col("_row").desc(), (f.col("_op") != DELETE).desc()
    )
    return changes.withColumn(_RANK, f.row_number().over(order)).where(f.col(_RANK) == 1).drop(_RANK)


def recent(events: DataFrame) -> str:
    """Returns a SQL condition on ``t`` that holds for each version that the events can change or follow: it is open, or
    was closed after the earliest commit of the events."""
    first = events.agg(f.unix_micros(f.min("_commit_time")).alias("at")).collect()[0]["at"]
    return f"(t._valid_to IS NULL OR t._valid_to >= timestamp_micros({int(first)}L))"


def versions(commit: Commit, events: DataFrame, keys: Sequence[str], conditions: Sequence[str]) -> DataFrame:
    """Returns the new versions of the events, and the rows that close the open ones (:data:`CLOSES`).

    ``events``: one row per key and transaction, after the applied position of the commit's state, with any columns.
    ``conditions``: SQL on ``t`` that holds for each version with one of the events' keys that is open, or was closed at
    or after the earliest commit time. The result has the events' columns, ``_valid_from``, ``_valid_to``, ``_current``
    and :data:`CLOSES`.

    An interval never ends before it begins: if the source's clock went backwards, a commit counts as made at the end
    of the key's latest interval.
    """
    known_versions = _known(commit, events, keys, conditions)
    joined = events.join(known_versions, same_key(keys, other_keys(keys)), "left").drop(*other_keys(keys))
    by_key = Window.partitionBy(*[f.col(quote(key)) for key in keys]).orderBy(f.col("_seq"))
    # A delete of a row that is not there changes nothing.
    had_row = f.coalesce(f.lag(f.col("_op") != DELETE).over(by_key), f.col(_OPEN).isNotNull())
    joined = joined.withColumn(_RANK, had_row).where(f.col(_RANK) | (f.col("_op") != DELETE))
    so_far = by_key.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    begins = f.greatest(f.max("_commit_time").over(so_far), f.col(_FLOOR))
    joined = joined.withColumn(_BEGINS, begins).withColumn(_RANK, f.row_number().over(by_key))
    joined = joined.withColumn("_valid_to", f.lead(_BEGINS).over(by_key))
    own = [f.col(quote(name)) for name in events.columns]
    new = joined.where(f.col("_op") != DELETE).select(
        *own, f.col(_BEGINS).alias("_valid_from"), "_valid_to", f.col("_valid_to").isNull().alias("_current"),
        f.lit(False).alias(CLOSES),
    )  # fmt: skip
    closed = joined.where((f.col(_RANK) == 1) & f.col(_OPEN).isNotNull()).select(
        *[f.col(_OPEN).alias("_seq") if name == "_seq" else _kept(events, name, keys) for name in events.columns],
        f.lit(None).cast("timestamp").alias("_valid_from"), f.col(_BEGINS).alias("_valid_to"),
        f.lit(False).alias("_current"), f.lit(True).alias(CLOSES),
    )  # fmt: skip
    return new.unionByName(closed)


def with_values(new_versions: DataFrame, changes: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Returns versions that were found by the keys alone, with all columns of the changes that they come from."""
    also = (*MODE_COLUMNS["scd2"][:-1], CLOSES)
    return keep_last(changes, new_versions.where(~f.col(CLOSES)), keys, also=also).unionByName(
        new_versions.where(CLOSES), allowMissingColumns=True
    )


def _kept(events: DataFrame, name: str, keys: Sequence[str]) -> Column:
    """Returns a column of a row that closes a version: only its key has values."""
    return f.col(quote(name)) if name in keys else f.lit(None).cast(events.schema[name].dataType).alias(name)


def _known(commit: Commit, events: DataFrame, keys: Sequence[str], conditions: Sequence[str]) -> DataFrame:
    """Returns what the table says about the events' keys: the ``_seq`` of the open version, if there is one, and the
    end of the latest interval, or its beginning while it is open."""
    own = [] if commit.target.own_rows is None else [f"t.{commit.target.own_rows}"]
    where = " AND ".join([*conditions, *own]) or "true"
    names = [f"t.{quote(key)} AS {other}" for key, other in zip(keys, other_keys(keys), strict=True)]
    table = commit.session.spark.sql(
        f"SELECT {', '.join(names)}, t._seq AS {_OPEN}, t._valid_from AS {_BEGINS}, t._valid_to AS {_TIME} "  # noqa: S608
        f"FROM {commit.target.sql} VERSION AS OF {commit.state.version} t WHERE {where}"
    )
    sought = events.select(*[f.col(quote(key)) for key in keys]).distinct()
    return (
        table.join(sought, same_key(keys, other_keys(keys)), "left_semi")
        .groupBy(*other_keys(keys))
        .agg(
            f.max(f.when(f.col(_TIME).isNull(), f.col(_OPEN))).alias(_OPEN),
            f.max(f.coalesce(_TIME, _BEGINS)).alias(_FLOOR),
        )
    )


def other_keys(keys: Sequence[str]) -> list[str]:
    """Returns names for the keys of the table beside those of the events."""
    return [f"_towpath_key{i}" for i in range(len(keys))]


def same_key(keys: Sequence[str], others: Sequence[str]) -> Column:
    """Returns the condition that the columns of two DataFrames hold the same key; null equals null."""
    is_same = f.lit(True)
    for key, other in zip(keys, others, strict=True):
        is_same = is_same & f.col(quote(key)).eqNullSafe(f.col(quote(other)))
    return is_same
