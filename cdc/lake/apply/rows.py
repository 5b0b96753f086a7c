"""Changes as DataFrames in the shape that a table's statement takes: reduced to one row per key, or all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.window import Window

from cdc.base.errors import ConfigError
from cdc.decode.columns import METADATA_COLUMNS
from cdc.decode.layout import CASCADED, DELETE, INSERT, UPDATE
from cdc.lake.delta.sql import quote
from cdc.lake.delta.tables import BEFORE, CASCADED_DELETE, CASCADED_UPDATE
from cdc.lake.rows.row_choice import SEEN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RANK = "_towpath_rank"


def require_keys(
    table: str, configured: Sequence[str] | None, primary: Sequence[str], columns: Sequence[str]
) -> tuple[str, ...]:
    """Returns the columns that identify a row: the configured ones, else the primary key. Raises ConfigError if there
    are none, in every mode but ``append``."""
    if configured:
        names_by_lower = {name.lower(): name for name in columns}
        unknown = [key for key in configured if key.lower() not in names_by_lower]
        if unknown:
            raise ConfigError(
                f"keys names {', '.join(unknown)}, which the table does not have (it has {', '.join(columns)})",
                place=f"table {table}",
                remedy="Correct tables.overrides.",
            )
        return tuple(names_by_lower[key.lower()] for key in configured)
    if not primary:
        raise ConfigError(
            "the table has no primary key, and every mode but append must tell its rows apart",
            place=f"table {table}",
            remedy="Give it keys: [...] (columns that identify a row) or mode: append under tables.overrides; or, if "
            "it got a primary key later, take its snapshot with `cdc snapshot`.",
        )
    return tuple(primary)


def with_moved_rows(changes: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Adds a delete of the old row to each update that changes a key; for keys that are not the primary key.

    ``changes`` has both images; the result has the shape of changes with after images.
    """
    own = [name for name in changes.columns if name not in METADATA_COLUMNS]
    same = f.lit(True)
    for key in keys:
        same = same & f.col(quote(key)).eqNullSafe(f.col(f"{BEFORE}.{quote(key)}"))
    moved = changes.where((f.col("_op") == UPDATE) & ~same).select(
        f.lit(DELETE).cast("byte").alias("_op"),
        *[f.col(name) for name in ("_seq", "_row", "_commit_time", "_gtid")],
        *[f.col(f"{BEFORE}.{quote(name)}").alias(name) for name in own],
    )
    return changes.drop(BEFORE).unionByName(moved)


def latest(changes: DataFrame, keys: Sequence[str], *, seen: bool = False) -> DataFrame:
    """Returns one row per key: the one with the largest ``_seq``, then the largest ``_row``, then the upsert rather
    than the delete. An update that changes its key gives both, of different keys unless the target considers them
    equal. ``seen``: with :data:`SEEN`."""
    by_key = Window.partitionBy(*[f.col(quote(key)) for key in keys])
    order = by_key.orderBy(f.col("_seq").desc(), f.col("_row").desc(), (f.col("_op") != DELETE).desc())
    if seen:
        changes = changes.withColumn(SEEN, f.max(f.col("_op") != DELETE).over(by_key))
    return changes.withColumn(_RANK, f.row_number().over(order)).where(f.col(_RANK) == 1).drop(_RANK)


def append_rows(changes: DataFrame, schema: t.StructType) -> DataFrame:
    """Returns changes with both images in the shape of an ``append`` table: all columns of ``schema``, in its order."""
    own = {name.lower() for name in changes.columns} - METADATA_COLUMNS
    columns = []
    for field in schema.fields:
        if field.name == "_op":
            is_cascaded = f.col("_row").bitwiseAND(f.lit(CASCADED)) != 0
            word = (
                f.when(f.col("_op") == INSERT, "insert")
                .when(f.col("_op") == DELETE, f.when(is_cascaded, CASCADED_DELETE).otherwise("delete"))
                .otherwise(f.when(is_cascaded, CASCADED_UPDATE).otherwise("update"))
            )
            columns.append(word.alias("_op"))
        elif field.name == BEFORE:
            assert isinstance(field.dataType, t.StructType)
            fields = [
                (f.col(f"{BEFORE}.{quote(b.name)}") if b.name.lower() in own else f.lit(None))
                .cast(b.dataType)
                .alias(b.name)
                for b in field.dataType.fields
            ]
            columns.append(f.when(f.col(BEFORE).isNotNull(), f.struct(*fields)).alias(BEFORE))
        elif field.name in METADATA_COLUMNS or field.name.lower() in own:
            columns.append(f.col(quote(field.name)))
        else:
            columns.append(f.lit(None).cast(field.dataType).alias(field.name))
    return changes.select(*columns)


def with_variants(rows: DataFrame, variants: frozenset[str]) -> DataFrame:
    """Turns JSON text into VARIANT, in these columns and in ``_before``.

    This is the last step, because VARIANT values have no order, and most rows may have been dropped by then.
    """
    if not variants:
        return rows
    columns = []
    for name in rows.columns:
        column = f.col(quote(name))
        if name in variants:
            column = f.parse_json(column)
        elif name == BEFORE:
            for inner in sorted(variants):
                text = f.col(f"{BEFORE}.{quote(inner)}")
                column = column.withField(quote(inner), f.parse_json(text))
        columns.append(column.alias(name))
    return rows.select(*columns)
