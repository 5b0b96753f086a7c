"""Commits the result of a replay: an earlier applied position, or the rows of a table that was built elsewhere."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import types as t

from cdc.base.errors import TargetError
from cdc.base.targets import (
    BEGINS_PROPERTY,
    GENERATION_PROPERTY,
    REBUILD_PROPERTY,
    SINCE_PROPERTY,
    application_id,
    begins_of,
    has_percent_sign,
    local_path,
)
from cdc.lake.apply.statements import empty_statement
from cdc.lake.delta.adoption import ParquetFile, Replacement, begin, make_log
from cdc.lake.delta.catalog import require_catalog
from cdc.lake.delta.layout import layout_of
from cdc.lake.delta.log import clear_unborn, open_delta
from cdc.lake.delta.tables import (
    COLUMNS_PROPERTY,
    feature_properties,
    labels_json,
    recorded_policies,
    require_owner,
    schema_of,
    target_of,
)
from cdc.lake.delta.tracked import SCHEMA_PROPERTY, SchemaRecord, tracked_schema
from cdc.lake.delta.vectors import VECTORS_PROPERTY
from cdc.lake.jobs.generations import (
    MAX_COLUMN_ID,
    Load,
    LoadPosition,
    Rebuild,
    carrying,
    finish,
    kept_properties,
    replace_table,
    require_no_archive,
    user_metadata,
)
from cdc.lake.jobs.shared_rows import replace_own_rows
from cdc.lake.rows.columns import columns_of_schema
from cdc.lake.runtime.failures import SHARED_ATTEMPTS, again_if_concurrent

if TYPE_CHECKING:
    from cdc.binlog.sql.schemas import TableComments
    from cdc.config import DestinationConfig
    from cdc.lake.delta.log import DeltaState
    from cdc.lake.delta.tables import Target
    from cdc.lake.runtime.session import TableSession, TableSessions


def begin_generation(sessions: TableSessions, config: DestinationConfig, table: str, position: LoadPosition) -> None:
    """Takes a table's applied position back to an earlier one and leaves its rows alone: the changes after it are then
    applied once more. Raises TargetError if there is no such table."""
    target = target_of(config, table)
    state = target.state()
    if state is None:
        raise TargetError(
            "there is no Delta table",
            place=f"table {table} at {target.path}",
            remedy=f"Run `cdc replay {config.name} {table}` without --from, or `cdc snapshot`.",
        )
    require_owner(state, target)
    generation = state.generation + 1
    changed = {GENERATION_PROPERTY: str(generation), SINCE_PROPERTY: str(position.seq)}
    begins = begins_of(state.properties)
    if begins is not None:
        changed[BEGINS_PROPERTY] = str(begins)
    rebuild = Rebuild("replay", uuid.uuid4().hex)
    if target.apply.shared:
        changed[REBUILD_PROPERTY] = rebuild.id
        changed[COLUMNS_PROPERTY] = labels_json(recorded_policies(state))
    with sessions.one() as session:

        def begin() -> None:
            session.spark.sql(f"ALTER TABLE {target.sql} SET TBLPROPERTIES ({target.sql_properties(changed)})")
            with carrying(session.spark, target, position, generation, rebuild):
                session.spark.sql(empty_statement(target))

        again_if_concurrent(begin, table, SHARED_ATTEMPTS if target.apply.shared else 1)


def replace_by(
    sessions: TableSessions,
    config: DestinationConfig,
    built: DestinationConfig,
    table: str,
    position: LoadPosition,
    begins: int | None,
    comments: TableComments | None = None,
) -> None:
    """Replaces a table by one that was built elsewhere, in one commit. ``built``: the configuration that names the
    other one. ``begins``: the seq after which the store's changes made it; None if it began with a snapshot.
    ``comments``: those of the source; None if they are not known.

    Raises TargetError for a table of another owner, and if nothing was built."""
    target, side = target_of(config, table), target_of(built, table)
    state, built_state = target.state(), side.state()
    if built_state is None:
        raise TargetError("the store has no rows of the table to build it from", place=f"table {table}")
    if state is not None:
        require_owner(state, target)
        require_no_archive(state, target)
    generation = 0 if state is None else state.generation + 1
    schema = tracked_schema(built_state)
    kept = {
        key: value
        for key, value in {**kept_properties(state), **built_state.properties}.items()
        if key not in (MAX_COLUMN_ID, BEGINS_PROPERTY) and not key.startswith(SCHEMA_PROPERTY)
    }
    properties = kept | {GENERATION_PROPERTY: str(generation), SINCE_PROPERTY: str(position.seq)}
    if schema is not None:
        properties[SCHEMA_PROPERTY] = SchemaRecord(position.seq, schema).to_json()
    properties |= feature_properties(f.dataType for f in schema_of(built_state).fields)
    if begins is not None:
        properties[BEGINS_PROPERTY] = str(begins)
    with sessions.one() as session:
        rows = session.spark.read.format("delta").load(side.path)
        require_catalog(session.spark, config)
        if target.apply.shared:
            if schema is None:
                raise TargetError("the rows that were built do not say which columns they have", place=side.path)
            columns = columns_of_schema(schema, target.policies)
            build = Rebuild("replay", uuid.uuid4().hex)
            load = Load(target, state, columns, schema.primary_key, position, build, schema)
            replace_own_rows(session, load, rows, begins)
            finish(session.spark, config, target, comments)
            return
        rebuild = Rebuild("replay", uuid.uuid4().hex)
        if not _replace_by_files(session, target, (state, built_state), properties, position, rebuild):
            replace_table(session.spark, target, rows, properties, position, rebuild, state)
        finish(session.spark, config, target, comments)


def _replace_by_files(
    session: TableSession,
    target: Target,
    states: tuple[DeltaState | None, DeltaState],
    properties: dict[str, str],
    position: LoadPosition,
    rebuild: Rebuild,
) -> bool:
    """Makes the files of the table that was built elsewhere files of the table. Returns False, and changes nothing, if
    Spark has to write the rows. ``states``: the table as it is, and the one that was built."""
    state, built_state = states
    schema = t.StructType([t.StructField(field.name, field.dataType) for field in schema_of(built_state).fields])
    folder = local_path(built_state.path)
    if folder is None or has_percent_sign(built_state.path) or built_state.partition_by:
        return False
    if VECTORS_PROPERTY in built_state.stored or not layout_of(target, schema.fields, state).is_plain:
        return False
    with open_delta(built_state.path, target.table) as delta:
        if delta is None or delta.version() != built_state.version:
            return False
        files = [ParquetFile.read(str(folder / path)) for path in pa.table(delta.get_add_actions())["path"].to_pylist()]
    clear_unborn(target.path)
    with session.jvm() as jvm:
        replacement = Replacement(target.path, -1 if state is None else state.version, schema, properties)
        adoption = None if jvm is None else begin(jvm, replacement, files)
        if adoption is None:
            return False
        make_log(target.path)
        adoption.add_files(files)
        generation = int(properties[GENERATION_PROPERTY])
        metadata = user_metadata(target, position, generation, rebuild)
        adoption.commit(application_id(target.destination, target.table, generation), position.seq, metadata)
    return True
