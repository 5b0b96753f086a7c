"""Commits the result of a replay: an earlier applied position, or the rows of a table that was built elsewhere."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from cdc.base.errors import TargetError
from cdc.base.targets import BEGINS_PROPERTY, GENERATION_PROPERTY, REBUILD_PROPERTY, SINCE_PROPERTY, begins_of
from cdc.lake.apply.statements import empty_statement
from cdc.lake.delta.catalog import require_catalog
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
)
from cdc.lake.jobs.shared_rows import replace_own_rows
from cdc.lake.rows.columns import columns_of_schema
from cdc.lake.runtime.failures import SHARED_ATTEMPTS, again_if_concurrent

if TYPE_CHECKING:
    from cdc.binlog.sql.schemas import TableComments
    from cdc.config import DestinationConfig
    from cdc.lake.runtime.session import TableSessions


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
        replace_table(session.spark, target, rows, properties, position, Rebuild("replay", uuid.uuid4().hex), state)
        finish(session.spark, config, target, comments)
