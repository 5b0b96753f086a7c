"""Changes reduced to one row per key: the last one wins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as f
from pyspark.sql.window import Window

from cdc.errors import ConfigError
from spark_jobs.apply.column_types import quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DELETE, INSERT, UPDATE = 0, 1, 2
"""Values of ``_op``."""
_RANK = "_towpath_rank"


def require_keys(
    table: str, configured: Sequence[str] | None, primary: Sequence[str], columns: Sequence[str]
) -> tuple[str, ...]:
    """The columns that identify a row: the configured ones, else the primary key. Raises ConfigError without any."""
    if configured:
        known = {name.lower(): name for name in columns}
        unknown = [key for key in configured if key.lower() not in known]
        if unknown:
            raise ConfigError(
                f"keys names {', '.join(unknown)}, which the table does not have (it has {', '.join(columns)})",
                place=f"table {table}",
                remedy="Correct tables.overrides.",
            )
        return tuple(known[key.lower()] for key in configured)
    if not primary:
        raise ConfigError(
            "the table has no primary key, so mode upsert cannot tell its rows apart",
            place=f"table {table}",
            remedy="Give it keys: [...] (columns that identify a row) or mode: append under tables.overrides.",
        )
    return tuple(primary)


def with_moved_rows(changes: DataFrame, keys: Sequence[str]) -> DataFrame:
    """For keys that are not the primary key: an update that changes one of them also deletes the row it was.

    ``changes`` has both images; the result has the shape of changes with after images.
    """
    before = "_before"
    ours = {"_op", "_seq", "_row", "_commit_time", "_gtid", before}
    own = [c for c in changes.columns if c not in ours]
    same = f.lit(True)
    for key in keys:
        same = same & f.col(quote(key)).eqNullSafe(f.col(f"{before}.{quote(key)}"))
    moved = changes.where((f.col("_op") == UPDATE) & ~same).select(
        f.lit(DELETE).cast("byte").alias("_op"),
        *[f.col(c) for c in ("_seq", "_row", "_commit_time", "_gtid")],
        *[f.col(f"{before}.{quote(c)}").alias(c) for c in own],
    )
    return changes.drop(before).unionByName(moved)


def latest(changes: DataFrame, keys: Sequence[str]) -> DataFrame:
    """One row per key: of the largest ``_seq``, in it the largest ``_row``, in that the upsert rather than the delete
    (an update that changed its key gives both; of different keys, unless the target takes these for the same)."""
    order = Window.partitionBy(*[f.col(quote(key)) for key in keys]).orderBy(
        f.col("_seq").desc(), f.col("_row").desc(), (f.col("_op") != DELETE).desc()
    )
    return changes.withColumn(_RANK, f.row_number().over(order)).where(f.col(_RANK) == 1).drop(_RANK)
