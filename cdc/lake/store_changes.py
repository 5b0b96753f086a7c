"""The changes of one table between two transactions of the source, read from the store as a DataFrame.

The rows have the shape of a table in mode ``append``, whatever the table's mode is. Nothing is written.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as f
from pyspark.sql import types as t

from cdc.base.errors import UsageError
from cdc.batches.manifest import Manifest, schemas_of
from cdc.batches.table_batches import batches_between
from cdc.binlog.positions import format_seq
from cdc.client import open_table_batches
from cdc.config import as_config
from cdc.decode.layout import survey
from cdc.decode.policies import value_policies
from cdc.lake.apply.merge import TableMerge, read_changes
from cdc.lake.apply.rows import append_rows, with_variants
from cdc.lake.delta.sql import quote
from cdc.lake.delta.tables import Target, delta_schema, target_of
from cdc.lake.rows.columns import SourceColumns, columns_of_layout, columns_of_schema
from cdc.lake.runtime.session import TableSession

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from cdc.batches.table_batches import TableChangeReader
    from cdc.config import DestinationConfig


def read_table_changes(
    spark: SparkSession,
    destination: DestinationConfig | str | Path | None,
    table: str,
    *,
    after_seq: int,
    last_seq: int,
) -> DataFrame:
    """Returns the changes of a table with ``after_seq`` < seq ≤ ``last_seq``; see :func:`cdc.read_changes`."""
    config = as_config(destination)
    if config.store.stages_batches:
        raise UsageError(
            "executors read the store through store.stage, whose copies live no longer than a batch",
            place=f"table {table}",
            remedy="Read an append table of the lake, with a condition on _seq, or remove store.stage.",
        )
    batches = open_table_batches(config, archived="keep")
    target, session = target_of(config, table), TableSession(spark)
    _require_stored(batches, last_seq)
    pieces: list[tuple[SourceColumns, DataFrame]] = []
    for manifest in batches_between(batches, table, after_seq, last_seq, whole=True):
        piece = None if manifest.ddl else _piece(session, target, manifest, after_seq)
        if piece is not None:
            pieces.append(piece)
    if not pieces:
        return spark.createDataFrame([], delta_schema(_known_fields(batches, target, last_seq), "append"))
    # Columns of an earlier statement come first; a column that was altered has its last type.
    fields = {field.name: field for columns, _ in pieces for field in columns.fields}
    schema = delta_schema(list(fields.values()), "append")
    frames = [_like(append_rows(rows, schema), schema) for _, rows in pieces]
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionByName(frame)
    return whole


def _require_stored(batches: TableChangeReader, last_seq: int) -> None:
    end = batches.reader.last_seq() or 0
    if end < last_seq:
        raise UsageError(
            f"the store ends at {end} ({format_seq(end)}), before {last_seq} ({format_seq(last_seq)})",
            place=batches.reader.place,
            remedy="Wait until capture has read that far.",
        )


def _piece(
    session: TableSession, target: Target, manifest: Manifest, after_seq: int
) -> tuple[SourceColumns, DataFrame] | None:
    """Returns the columns and the changes of a manifest; None if it has no rows of the table."""
    table, policies = target.table, value_policies(target.apply)
    schemas, mask = schemas_of(manifest), manifest.table_mask(target.table)
    masks = {} if mask is None else {"table_mask": mask}
    layout = survey(manifest.ranges, [table], schemas, lambda _: policies, **masks).layouts.get(table)
    if layout is None:
        return None
    columns = columns_of_layout(layout, target.policies)
    schema = schemas.tables.get(table) if schemas is not None else None
    merge = TableMerge(session, target, manifest, layout, columns, schema, lambda: None)
    return columns, with_variants(read_changes(merge, columns, after_seq, "both"), columns.variants)


def _known_fields(batches: TableChangeReader, target: Target, last_seq: int) -> list[t.StructField]:
    """Returns the table's columns as capture has described them; nothing if it has not."""
    stored = batches.reader.schemas(last_seq)
    schema = None if stored is None else stored[1].tables.get(target.table)
    return [] if schema is None else columns_of_schema(schema, target.policies).fields


def _like(rows: DataFrame, schema: t.StructType) -> DataFrame:
    return rows.select(*[f.col(quote(field.name)).cast(field.dataType).alias(field.name) for field in schema.fields])
