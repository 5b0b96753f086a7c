"""The one statement per table and batch: a MERGE that carries the table's applied position.

It is idempotent under a repeated batch, under other batch boundaries, and when an orphaned driver commits between our
reading of the cut and the statement's own snapshot: ``upsert`` writes the last state of each key that changed after the
cut, whatever part of it is there already; ``append`` inserts what does not find itself by (``_seq``, ``_row``).
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
from spark_jobs.apply import null_dates
from spark_jobs.apply.column_types import from_arrow_schema
from spark_jobs.apply.large_values import careful_parquet, has_large_values, keep_last, mark_large
from spark_jobs.apply.reduce import latest, require_keys, with_moved_rows
from spark_jobs.apply.source_columns import OwnColumns
from spark_jobs.apply.statements import (
    append_rows,
    append_statement,
    empty_statement,
    key_ranges,
    upsert_statement,
    user_metadata,
    with_variants,
)
from spark_jobs.delta.tables import BEFORE, Target
from spark_jobs.runtime.session import APP_ID, METADATA, VERSION, forget_transaction

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
class Counts:
    """What a MERGE did."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    null_dates: int = 0
    """Zero and impossible dates that became null."""
    ran: bool = True
    """False: the table's version was there already, and the statement did nothing."""


@dataclass(frozen=True)
class Job:
    """One table of one batch."""

    session: TableSession
    place: Target
    manifest: Manifest
    layout: TableLayout | None
    """None: the batch has no rows of the table (a DDL), and only its position is committed."""
    own: OwnColumns | None
    """The layout's columns in the lake."""
    known: TableSchema | None
    """The table in the stored schema."""
    check: Callable[[], None]
    """Raises when the batch may not be merged any more."""
    is_large: bool = False
    """May there be values of which an executor cannot hold several copies?"""


def merge_table(job: Job, state: DeltaState) -> TableResult:
    """Apply the batch to one table, which exists and has all columns."""
    began = time.monotonic()
    manifest, table = job.manifest, job.place.table
    if state.applied_seq >= manifest.last_seq:
        return _result(job, state, Counts(ran=False), began)
    if job.layout is None or job.own is None:
        counts = _execute(job, state, empty_statement(job.place))
    elif job.place.apply.mode == "append":
        state = _marked(job, state, ("_seq", "_row"))
        counts = _append(job, state, job.own)
    else:
        sources = require_keys(
            table, job.place.apply.keys, job.layout.primary_key, [c.name for c in job.layout.columns]
        )
        keys = job.own.keys(sources)
        is_primary = set(sources) == set(job.layout.primary_key)
        state = _marked(job, state, keys)
        counts = _upsert(job, state, keys, job.own.exact(sources), is_primary=is_primary)
    return _result(job, job.place.state() or state, counts, began)


def _marked(job: Job, state: DeltaState, keys: Sequence[str]) -> DeltaState:
    """The table as the rows need it. ``keys``: what the statement looks up."""
    if not job.is_large:
        return state
    job.check()
    return mark_large(job.session.spark, job.place, state, keys)


def _upsert(job: Job, state: DeltaState, keys: Sequence[str], own: OwnColumns, *, is_primary: bool) -> Counts:
    """``is_primary``: the keys are the primary key, so they are never null, and the server tells rows that move."""
    spark, after = job.session.spark, state.applied_seq
    dates = null_dates.Count(job.session.observation()) if own.dates and is_primary else None

    def changes(wanted: OwnColumns, count: null_dates.Count | None = None) -> DataFrame:
        rows = _read(job, wanted, after, "after" if is_primary else "both", counts=count is not None)
        if count is not None:
            rows = count.watch(rows)
        return rows if is_primary else with_moved_rows(rows, keys)

    first = own.only([*keys, *own.dates]) if job.is_large else own
    last = latest(changes(first, dates), keys).persist()
    try:
        ranges = key_ranges(last, keys)
        if ranges is None:
            return _execute(job, state, empty_statement(job.place))
        rows = keep_last(changes(own), last, keys) if job.is_large else last
        view = _view(with_variants(rows, own.variants))
        names = [field.name for field in own.fields]
        counts = _execute(job, state, upsert_statement(job.place, view, keys, names, ranges, not is_primary))
        spark.catalog.dropTempView(view)
        if not counts.ran:
            return counts
        return replace(counts, null_dates=_null_dates(job, own, after) if dates is None else dates.total)
    finally:
        last.unpersist()


def _append(job: Job, state: DeltaState, own: OwnColumns) -> Counts:
    spark = job.session.spark
    changes = with_variants(_read(job, own, state.applied_seq, "both"), own.variants)
    view = _view(append_rows(changes, state.schema, state.schema[BEFORE].dataType))
    counts = _execute(job, state, append_statement(job.place, view, state))
    spark.catalog.dropTempView(view)
    if not counts.ran:
        return counts
    # A statement may be done without reading all rows, so the dates are counted by themselves.
    return replace(counts, null_dates=_null_dates(job, own, state.applied_seq))


def _null_dates(job: Job, own: OwnColumns, after_seq: int) -> int:
    """How many dates of the changes became null, by a reading of these columns alone."""
    if not own.dates:
        return 0
    dates = _read(job, own.only(own.dates), after_seq, "after", counts=True)
    return int(dates.agg(f.sum(null_dates.COLUMN)).collect()[0][0] or 0)


def _read(
    job: Job,
    own: OwnColumns | None,
    after_seq: int,
    images: Literal["after", "both"],
    *,
    counts: bool = False,
) -> DataFrame:
    """The changes of the table after the cut, with these columns of its own, and with ``counts`` the number of dates
    that became null."""
    fields = list(from_arrow_schema(pa.schema(METADATA_FIELDS)))
    if own is not None:
        fields += own.read_fields
        if images == "both":
            fields.append(t.StructField(BEFORE, t.StructType(own.read_fields), True))
    if counts:
        fields.append(null_dates.FIELD)
    reader = (
        job.session.spark.read.format(job.session.source_name(own.policies.key if own is not None else None))
        .schema(t.StructType(fields))
        .option("ranges", json.dumps([r.model_dump() for r in job.manifest.ranges]))
        .option("table", job.place.table)
        .option("images", images)
        .option("after_seq", str(after_seq))
        .option("upto_seq", str(job.manifest.last_seq))
        .option("towpath_version", __version__)
    )
    mask = job.manifest.table_mask(job.place.table)
    if mask is not None:
        reader = reader.option("table_mask", str(mask))
    if job.known is not None:
        reader = reader.option("schema", job.known.model_dump_json())
    if own is not None:
        reader = reader.options(**own.options())
    return reader.load()


def _view(rows: DataFrame) -> str:
    name = f"towpath_rows_{uuid.uuid4().hex}"
    rows.createOrReplaceTempView(name)
    return name


def _execute(job: Job, state: DeltaState, statement: str) -> Counts:
    with careful_parquet(job.session.spark) if has_large_values(state) else nullcontext():
        return _run(job, state, statement)


def _run(job: Job, state: DeltaState, statement: str) -> Counts:
    spark = job.session.spark
    spark.conf.set(APP_ID, job.place.application_id(state))
    spark.conf.set(VERSION, str(job.manifest.last_seq))
    spark.conf.set(METADATA, user_metadata(job.manifest, job.place, state.applied_seq, state.generation))
    try:
        job.check()
        before_statement(job.place.table)
        rows: list[Any] = spark.sql(statement).collect()
    finally:
        forget_transaction(spark)
    if not rows:
        return Counts(ran=False)
    row = rows[0]
    return Counts(int(row["num_inserted_rows"]), int(row["num_updated_rows"]), int(row["num_deleted_rows"]))


def _result(job: Job, state: DeltaState, counts: Counts, began: float) -> TableResult:
    skipped = 0
    if not counts.ran and job.layout is not None:
        skipped = _read(job, None, 0, "both").count()
    version = state.version_of(job.manifest.last_seq)
    return TableResult(
        table=job.place.table,
        inserted=counts.inserted,
        updated=counts.updated,
        deleted=counts.deleted,
        skipped=skipped,
        null_dates=counts.null_dates,
        delta_version=state.version if version is None else version,
        delta_id=state.id,
        applied_seq=state.applied_seq,
        generation=state.generation,
        seconds=round(time.monotonic() - began, 3),
    )
