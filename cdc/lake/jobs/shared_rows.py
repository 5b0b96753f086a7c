"""Replaces a destination's rows of a shared table, whose other rows belong to other destinations."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as f
from pyspark.sql import types as t

from cdc.base.targets import BEGINS_PROPERTY, GENERATION_PROPERTY, REBUILD_PROPERTY, SINCE_PROPERTY, SOURCE_COLUMN
from cdc.lake.apply.commit import Commit
from cdc.lake.apply.full_state import insert_snapshot, merge_full_state
from cdc.lake.apply.merge import RowKeys
from cdc.lake.apply.schema.shared_tables import create_or_join, ensure_columns, require_mode
from cdc.lake.delta.proof import position_of, require_applied
from cdc.lake.delta.sql import literal, quote
from cdc.lake.delta.tables import (
    BEFORE,
    COLUMNS_PROPERTY,
    EPOCH_PROPERTY,
    UUID_PROPERTY,
    TableOrigin,
    has_loaded,
    passing_labels_json,
    require_same_policies,
    schema_of,
)
from cdc.lake.delta.tracked import SCHEMA_PROPERTY, SchemaRecord, record_in_force, records
from cdc.lake.jobs.generations import Load, user_metadata
from cdc.lake.runtime.failures import SHARED_ATTEMPTS, again_if_concurrent

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from cdc.lake.runtime.session import TableSession


def load_own_rows(session: TableSession, load: Load, rows: DataFrame, keys: RowKeys) -> None:
    """Brings the destination's rows of a shared table to the state that ``rows`` are, as
    :func:`cdc.lake.jobs.load.load_state` does for a table of its own."""
    mode, position = load.target.apply.mode, load.position
    moment = datetime.fromtimestamp(position.time_us / 1e6, UTC)
    if mode == "upsert":
        replace_own_rows(session, load, rows, None)
        return

    def merge() -> None:
        commit = _shared_commit(session, load, None, keeps_rows=True)
        if commit is None:
            return
        if mode == "append":
            insert_snapshot(commit, rows, moment, position.gtid)
        else:
            merge_full_state(commit, rows, keys, moment)
        _require_loaded(load)

    again_if_concurrent(merge, load.target.table, SHARED_ATTEMPTS, load.target.columns_of_all)


def replace_own_rows(session: TableSession, load: Load, rows: DataFrame, begins: int | None) -> None:
    """Replaces the destination's rows of a shared table by others, in one commit. ``rows``: in the shape of the Delta
    columns; metadata columns may be missing. ``begins``: as for
    :func:`cdc.lake.jobs.rebuilt.replace_by`."""

    def replace() -> None:
        commit = _shared_commit(session, load, begins)
        if commit is None:
            return
        schema = schema_of(commit.state)
        shaped = _in_shape(rows, schema).withColumn(SOURCE_COLUMN, f.lit(load.target.member))
        commit.execute_with(
            shaped.select(*[quote(field.name) for field in schema.fields]),
            lambda view: f"INSERT INTO {load.target.sql} REPLACE WHERE {load.target.own_rows} SELECT * FROM {view}",  # noqa: S608
        )
        _require_loaded(load)

    again_if_concurrent(replace, load.target.table, SHARED_ATTEMPTS, load.target.columns_of_all)


def _in_shape(rows: DataFrame, schema: t.StructType) -> DataFrame:
    """Returns rows with the columns of a shared table; those that they lack are null."""
    fields_by_name = {field.name.lower(): field for field in rows.schema.fields}
    columns = []
    for field in schema.fields:
        row_field = fields_by_name.get(field.name.lower())
        value = f.lit(None) if row_field is None else f.col(quote(row_field.name))
        if row_field is not None and field.name == BEFORE:
            assert isinstance(field.dataType, t.StructType) and isinstance(row_field.dataType, t.StructType)
            inner = {inner_field.name.lower() for inner_field in row_field.dataType.fields}
            images = [
                (f.col(f"{BEFORE}.{quote(image_field.name)}") if image_field.name.lower() in inner else f.lit(None))
                .cast(image_field.dataType)
                .alias(image_field.name)
                for image_field in field.dataType.fields
            ]
            value = f.when(f.col(BEFORE).isNotNull(), f.struct(*images))
        columns.append(value.cast(field.dataType).alias(field.name))
    return rows.select(*columns)


def _shared_commit(session: TableSession, load: Load, begins: int | None, *, keeps_rows: bool = False) -> Commit | None:
    """Joins a shared table if the destination has not, gives it the source's columns, and begins the destination's next
    generation. Returns the commit that carries the position; None if an earlier attempt has committed. ``keeps_rows``:
    whether rows stay that have the policies of before.

    Until that commit the generation has the rows of the one before, so it is said to be complete up to where that was.
    """
    spark, target, position = session.spark, load.target, load.position
    record = SchemaRecord(position.seq, load.schema)
    state = target.state()
    if state is not None and has_loaded(state, load.rebuild.id):
        return None
    if state is None:  # complete up to nowhere until the rows are there
        origin = TableOrigin(position.server_uuid, position.epoch, 0, record=record)
        state = create_or_join(spark, target, load.columns, load.primary, origin)
    else:
        require_mode(target, state)
        if keeps_rows:
            require_same_policies(state, target, load.columns, load.schema.column_names)
        ensure_columns(spark, target, load.columns.fields)
    in_force = record_in_force(state) or record
    older = [
        older_record.name
        for older_record in records(state)
        if older_record.seq < in_force.seq and older_record.name in state.properties
    ]
    if older:
        names = ", ".join(literal(target.stored_name(name)) for name in older)
        spark.sql(f"ALTER TABLE {target.sql} UNSET TBLPROPERTIES IF EXISTS ({names})").collect()
    changed = {
        GENERATION_PROPERTY: str(state.generation + 1),
        SINCE_PROPERTY: str(min(position_of(state), position.seq)),
        SCHEMA_PROPERTY: in_force.to_json(),  # without a position, the oldest record is in force
        record.name: record.to_json(),
        BEGINS_PROPERTY: "" if begins is None else str(begins),
        REBUILD_PROPERTY: load.rebuild.id,
        COLUMNS_PROPERTY: passing_labels_json(state, load.columns.labels, load.schema.column_names, load.rebuild.id),
        UUID_PROPERTY: position.server_uuid,
        EPOCH_PROPERTY: str(position.epoch),
    }
    spark.sql(f"ALTER TABLE {target.sql} SET TBLPROPERTIES ({target.sql_properties(changed)})").collect()
    state = target.state() or state
    metadata = user_metadata(target, position, state.generation, load.rebuild)
    return Commit(session, target, state, position.seq, metadata, lambda: None)


def _require_loaded(load: Load) -> None:
    """Raises MergeFailedError if the table does not have the position that was just committed."""
    state = load.target.state()
    if state is not None:
        require_applied(load.target, state, load.position.seq)
