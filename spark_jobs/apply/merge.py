"""Merges the rows of a batch into one table: the one MERGE per table and batch, which carries the applied position.

The statement is idempotent: under a repeated batch, under other batch boundaries, and if an orphaned driver commits
between the reading of the applied position and the statement's own snapshot. ``upsert`` writes the last state of each
key that changed after the applied position, whatever part of it is there already. ``append`` inserts the changes that
are not there yet by (``_seq``, ``_row``).
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pyspark.sql import functions as f
from pyspark.sql import types as t

from cdc import __version__
from cdc.batches.manifest import Manifest, TableResult
from cdc.decode.layout import METADATA_FIELDS
from spark_jobs.apply.large_values import careful_parquet, has_large_values, keep_last, mark_large
from spark_jobs.apply.rows import append_rows, latest, require_keys, with_moved_rows, with_variants
from spark_jobs.apply.statements import append_statement, empty_statement, key_ranges, upsert_statement, user_metadata
from spark_jobs.delta.tables import BEFORE, Target, schema_of
from spark_jobs.runtime.session import APP_ID, METADATA, VERSION, forget_transaction
from spark_jobs.source import null_dates
from spark_jobs.source.column_types import from_arrow_schema
from spark_jobs.source.columns import SourceColumns
from spark_jobs.source.data_source import source_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from cdc.decode import TableLayout
    from cdc.schemas import TableSchema
    from spark_jobs.delta.log import DeltaState
    from spark_jobs.runtime.session import TableSession


def _nothing(table: str) -> None:
    """The default of :data:`before_statement`."""


before_statement: Callable[[str], None] = _nothing
"""Hook: called with ``db.table`` right before a table's statement, after its applied position was read and the lease
was checked. The entry point of a driver may replace it; drivers of tests stop there."""


@dataclass(frozen=True)
class MergeStats:
    """The rows that a MERGE changed."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    null_dates: int = 0
    """Zero and impossible dates that became null."""
    ran: bool = True
    """False: the table had the batch's position already, and the statement did nothing."""


@dataclass(frozen=True)
class TableMerge:
    """The merge of a batch into one table."""

    session: TableSession
    target: Target
    manifest: Manifest
    layout: TableLayout | None
    """None: the batch has DDL and no rows of the table, so only the position is committed."""
    columns: SourceColumns | None
    """The layout's columns."""
    schema: TableSchema | None
    """The table in the stored schemas."""
    check: Callable[[], object]
    """Raises if the batch may not be merged any more."""
    is_large: bool = False
    """Whether there may be values of which an executor cannot hold several copies."""


def merge_table(merge: TableMerge, state: DeltaState) -> TableResult:
    """Applies the batch to one table, which exists and has all columns."""
    began = time.monotonic()
    manifest, apply = merge.manifest, merge.target.apply
    if state.applied_seq >= manifest.last_seq:
        return _result(merge, state, MergeStats(ran=False), began)
    if merge.layout is None or merge.columns is None:
        stats = _execute(merge, state, empty_statement(merge.target))
    elif apply.mode == "append":
        state = _mark_if_large(merge, state, ("_seq", "_row"))
        stats = _append(merge, state, merge.columns)
    else:
        names, primary = [column.name for column in merge.layout.columns], merge.layout.primary_key
        sources = require_keys(merge.target.table, apply.keys, primary, names)
        keys = merge.columns.keys(sources)
        state = _mark_if_large(merge, state, keys)
        stats = _upsert(merge, state, keys, merge.columns.exact(sources), is_primary=set(sources) == set(primary))
    return _result(merge, merge.target.state() or state, stats, began)


def _mark_if_large(merge: TableMerge, state: DeltaState, keys: Sequence[str]) -> DeltaState:
    """Prepares the table for large values if the batch may have some. ``keys``: the columns that the statement looks
    up."""
    if not merge.is_large:
        return state
    merge.check()
    return mark_large(merge.session.spark, merge.target, state, keys)


def _upsert(
    merge: TableMerge, state: DeltaState, keys: Sequence[str], columns: SourceColumns, *, is_primary: bool
) -> MergeStats:
    """Merges the last row of each key. ``is_primary``: the keys are the primary key, so they are never null, and the
    decoder adds a delete for each row that changes its key."""
    spark, after = merge.session.spark, state.applied_seq
    dates = null_dates.NullDateCounter(merge.session.observation()) if columns.dates and is_primary else None

    def changes(wanted: SourceColumns, counter: null_dates.NullDateCounter | None = None) -> DataFrame:
        rows = read_changes(merge, wanted, after, "after" if is_primary else "both", counts=counter is not None)
        if counter is not None:
            rows = counter.watch(rows)
        return rows if is_primary else with_moved_rows(rows, keys)

    first = columns.only([*keys, *columns.dates]) if merge.is_large else columns
    last = latest(changes(first, dates), keys).persist()
    try:
        ranges = key_ranges(last, keys)
        if ranges is None:
            return _execute(merge, state, empty_statement(merge.target))
        rows = keep_last(changes(columns), last, keys) if merge.is_large else last
        view = _view(with_variants(rows, columns.variants))
        names = [field.name for field in columns.fields]
        stats = _execute(merge, state, upsert_statement(merge.target, view, keys, names, ranges, not is_primary))
        spark.catalog.dropTempView(view)
        if not stats.ran:
            return stats
        return replace(stats, null_dates=_count_null_dates(merge, columns, after) if dates is None else dates.total)
    finally:
        last.unpersist()


def _append(merge: TableMerge, state: DeltaState, columns: SourceColumns) -> MergeStats:
    """Inserts all changes with both images."""
    changes = with_variants(read_changes(merge, columns, state.applied_seq, "both"), columns.variants)
    view = _view(append_rows(changes, schema_of(state)))
    stats = _execute(merge, state, append_statement(merge.target, view, state))
    merge.session.spark.catalog.dropTempView(view)
    if not stats.ran:
        return stats
    # A statement may finish without reading all rows, so the dates are counted by a read of their own.
    return replace(stats, null_dates=_count_null_dates(merge, columns, state.applied_seq))


def _count_null_dates(merge: TableMerge, columns: SourceColumns, after_seq: int) -> int:
    """Counts the dates of the changes that became null, by a read of these columns alone."""
    if not columns.dates:
        return 0
    dates = read_changes(merge, columns.only(columns.dates), after_seq, "after", counts=True)
    return int(dates.agg(f.sum(null_dates.COLUMN)).collect()[0][0] or 0)


def read_changes(
    merge: TableMerge,
    columns: SourceColumns | None,
    after_seq: int,
    images: Literal["after", "both"],
    *,
    counts: bool = False,
) -> DataFrame:
    """Returns the changes of the table after a seq, with these columns; None: with the metadata columns only.
    ``counts``: also with the number of dates that became null."""
    fields = list(from_arrow_schema(pa.schema(METADATA_FIELDS)))
    if columns is not None:
        fields += columns.read_fields
        if images == "both":
            fields.append(t.StructField(BEFORE, t.StructType(columns.read_fields), True))
    if counts:
        fields.append(null_dates.FIELD)
    name = source_name(merge.session, columns.policies.key if columns is not None else None)
    reader = (
        merge.session.spark.read.format(name)
        .schema(t.StructType(fields))
        .option("ranges", json.dumps([r.model_dump() for r in merge.manifest.ranges]))
        .option("table", merge.target.table)
        .option("images", images)
        .option("after_seq", str(after_seq))
        .option("upto_seq", str(merge.manifest.last_seq))
        .option("towpath_version", __version__)
    )
    mask = merge.manifest.table_mask(merge.target.table)
    if mask is not None:
        reader = reader.option("table_mask", str(mask))
    if merge.schema is not None:
        reader = reader.option("schema", merge.schema.model_dump_json())
    if columns is not None:
        reader = reader.options(**columns.options())
    return reader.load()


def _view(rows: DataFrame) -> str:
    name = f"towpath_rows_{uuid.uuid4().hex}"
    rows.createOrReplaceTempView(name)
    return name


def _execute(merge: TableMerge, state: DeltaState, statement: str) -> MergeStats:
    """Runs the statement; its commit carries the applied position and the user metadata."""
    spark, manifest = merge.session.spark, merge.manifest
    with careful_parquet(spark) if has_large_values(state) else nullcontext():
        spark.conf.set(APP_ID, merge.target.application_id(state))
        spark.conf.set(VERSION, str(manifest.last_seq))
        spark.conf.set(METADATA, user_metadata(manifest, merge.target, state.applied_seq, state.generation))
        try:
            merge.check()
            before_statement(merge.target.table)
            rows: list[Any] = spark.sql(statement).collect()
        finally:
            forget_transaction(spark)
    if not rows:
        return MergeStats(ran=False)
    row = rows[0]
    return MergeStats(int(row["num_inserted_rows"]), int(row["num_updated_rows"]), int(row["num_deleted_rows"]))


def _result(merge: TableMerge, state: DeltaState, stats: MergeStats, began: float) -> TableResult:
    skipped = 0
    if not stats.ran and merge.layout is not None:
        skipped = read_changes(merge, None, 0, "both").count()
    version = state.version_of(merge.manifest.last_seq)
    return TableResult(
        table=merge.target.table,
        inserted=stats.inserted,
        updated=stats.updated,
        deleted=stats.deleted,
        skipped=skipped,
        null_dates=stats.null_dates,
        delta_version=state.version if version is None else version,
        delta_id=state.id,
        applied_seq=state.applied_seq,
        generation=state.generation,
        seconds=round(time.monotonic() - began, 3),
    )
