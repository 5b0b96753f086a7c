"""A table before the rows of a batch are merged: it is created, brought through the batch's DDL statements, and
compared with the rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdc.base.errors import UnsupportedDdlError
from cdc.base.targets import split_table
from cdc.binlog.sql.changes import CreateTable, DropDatabase, NoEffect, RenameTable, Unsupported, table_of
from cdc.lake.apply.commit import Commit
from cdc.lake.apply.schema.agreement import columns_there, disagreement, disagreement_error, resolved
from cdc.lake.apply.schema.evolve import Surroundings
from cdc.lake.apply.schema.shared_tables import create
from cdc.lake.apply.schema.spark_lake import SparkLake
from cdc.lake.apply.schema.statements import DdlStatement, effect_on, read_statements, zone_of
from cdc.lake.apply.shared_evolution import evolution_of, may_have_rows
from cdc.lake.apply.statements import user_metadata
from cdc.lake.delta.tables import (
    Target,
    record_policies,
    recorded_policies,
    require_ownership,
    require_same_policies,
    target_of,
)
from cdc.lake.delta.tracked import SCHEMA_PROPERTY, SchemaRecord, record_in_force, schema_of_layout
from cdc.lake.rows.columns import SourceColumns, columns_of_layout, columns_of_schema, require_supported
from cdc.lake.runtime.commit_metadata import commit_metadata

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cdc.batches.manifest import Manifest
    from cdc.binlog.sql.schemas import TableSchema
    from cdc.binlog.sql.statements import Statement
    from cdc.config import DestinationConfig
    from cdc.decode import TableLayout
    from cdc.lake.apply.prepare import PreparedBatch
    from cdc.lake.apply.schema.moved_rows import MovedRows
    from cdc.lake.delta.log import DeltaState
    from cdc.lake.runtime.session import TableSession


def statements_of(config: DestinationConfig, manifest: Manifest) -> tuple[DdlStatement, ...]:
    """Returns the DDL statements of a batch. Raises UnsupportedDdlError for one that may change any table."""
    if not manifest.ddl:
        return ()
    ignores_case = config.tables.ignores_case
    statements = tuple(read_statements(manifest.ranges, ignores_case=ignores_case, system_zone=zone_of(manifest)))
    for statement in statements:
        where = f"{manifest.positions.last.file}:{manifest.positions.last.pos}"
        require_known_tables(statement.statement, statement.shown, where, config.name)
    return statements


def require_known_tables(statement: Statement, shown: str, where: str, destination: str) -> None:
    """Raises UnsupportedDdlError for a statement that may change any table. ``where``: its place, for the message."""
    if any(isinstance(change, Unsupported) and change.table is None for change in statement.changes):
        raise UnsupportedDdlError(
            f"the statement may change any table: {shown}",
            place=where,
            remedy=f"Skip it with `cdc batch get {destination}` and `cdc batch ack {destination}`, and load the tables "
            f"that it changed with `cdc snapshot {destination} DB.TABLE`.",
        )


def creates(statements: tuple[DdlStatement, ...], table: str) -> bool:
    """Whether a statement makes a table of this name."""
    for statement in statements:
        for change in statement.statement.changes:
            new_name = change.table if isinstance(change, CreateTable) else None
            new_name = change.to if isinstance(change, RenameTable) else new_name
            if new_name is not None and f"{new_name[0]}.{new_name[1]}" == table:
                return True
    return False


def ends(statements: tuple[DdlStatement, ...], table: str) -> bool:
    """Whether no table has this name behind the statements, because one of them has dropped or renamed it."""
    effects = [effect for statement in statements if (effect := effect_on(table, statement)) is not None]
    return bool(effects) and effects[-1].drops


def changed_tables(statements: tuple[DdlStatement, ...], tables: Iterable[str]) -> set[str]:
    """Returns those of the tables whose rows or definition a statement may change."""
    changed: set[str] = set()
    databases: set[str] = set()
    for statement in statements:
        for change in statement.statement.changes:
            if isinstance(change, DropDatabase):
                databases.add(change.db)
            elif not isinstance(change, NoEffect) and change.table is not None:
                changed.add(".".join(change.table))
                if isinstance(change, RenameTable):
                    changed.add(".".join(change.to))
    return {table for table in tables if table in changed or split_table(table)[0] in databases}


def naming(statements: Iterable[DdlStatement], table: str) -> tuple[DdlStatement, ...]:
    """Returns the statements that name a table."""
    return tuple(
        statement
        for statement in statements
        if any(named is not None and ".".join(named) == table for named in map(table_of, statement.statement.changes))
    )


def changing(statements: Iterable[DdlStatement], table: str) -> tuple[DdlStatement, ...]:
    """Returns the statements that may change the rows or the definition of a table."""
    return tuple(statement for statement in statements if changed_tables((statement,), [table]))


@dataclass(frozen=True)
class ReadyTable:
    """A table that is ready for the rows of the batch."""

    state: DeltaState
    has_position: bool = False
    """Whether it has the batch's position already, by a DDL statement."""
    is_untouched: bool = False
    """Whether the batch has DDL that leaves the table as it is, and no rows of it."""
    layout: TableLayout | None = None
    """Of the batch's rows, if it has any."""
    columns: SourceColumns | None = None
    schema: TableSchema | None = None
    """The source's definition of the rows' columns."""
    moved: MovedRows | None = None
    """The rows that a statement has moved between the table and another one."""


def make_ready(
    batch: PreparedBatch, session: TableSession, target: Target, state: DeltaState | None
) -> ReadyTable | None:
    """Creates the table if it is missing, applies the batch's DDL to it, and finds the columns of the batch's rows.
    Returns None if nothing is known about the table yet."""
    table, stored = target.table, batch.schema(target.table)
    layout = batch.layout(table)
    require_configured(target, state, layout, stored)
    has_position, changed, moved = False, False, None
    surroundings = _surroundings(batch, session, target, layout)
    if batch.statements:
        evolved = evolution_of(target, surroundings, state).run(list(batch.statements))
        changed, has_position, moved = evolved.changed, evolved.has_position, evolved.moved
        state = evolved.state
    else:
        state = evolution_of(target, surroundings, state).repair()
    if state is None:
        if layout is None and stored is None:
            return None
        schema = schema_of_layout(layout, stored) if layout is not None else stored
        assert schema is not None
        batch.check()
        state = create(session.spark, target, columns_of_schema(schema, target.policies), schema, batch.manifest)
        require_ownership(state, target, batch.manifest)
        changed = True
    if layout is None or state.applied_seq >= batch.manifest.last_seq:
        # The rows that the table has already are counted, which takes the names of their columns.
        return ReadyTable(state, has_position, is_untouched=not changed, layout=layout, schema=stored, moved=moved)
    return _with_rows(batch, session, target, state, layout)


def require_configured(
    target: Target, state: DeltaState | None, layout: TableLayout | None, stored: TableSchema | None
) -> None:
    """Raises ConfigError for a policy of a column that the table does not have, UnsupportedError for a system-versioned
    table."""
    if stored is not None:
        require_supported(stored, target.table)
    names = [column.name for column in layout.columns] if layout is not None else []
    names += [column.name for column in stored.columns] if stored is not None else []
    if names:
        target.policies.require_there([*names, *(recorded_policies(state) if state is not None else ())])


def _surroundings(
    batch: PreparedBatch, session: TableSession, target: Target, layout: TableLayout | None
) -> Surroundings:
    manifest, config = batch.manifest, batch.config

    def other(table: str) -> Target | None:
        is_followed = config.tables.includes(*split_table(table)) and manifest.wants(table)
        return target_of(config, table) if is_followed and table not in batch.subscription.parked else None

    def carry(state: DeltaState, seq: int, statement: str | None) -> None:
        # A statement before the rows of its own transaction is no entry of the ledger.
        whole = seq == manifest.last_seq
        metadata = user_metadata(manifest, target, state.applied_seq, state.generation) if whole else commit_metadata()
        Commit(session, target, state, seq, metadata, batch.check).execute(statement)

    return Surroundings(
        lake=SparkLake(session, manifest, batch.check, carry),
        manifest=manifest,
        check=batch.check,
        stored=batch.schemas.tables if batch.schemas is not None else {},
        other=other,
        dropped_partitions=batch.schemas.dropped_partitions if batch.schemas is not None else {},
        reading=batch.reading,
        lake_name=config.tables.lake_name,
        rows_follow=schema_of_layout(layout, batch.schema(target.table)) if layout is not None else None,
    )


def _with_rows(
    batch: PreparedBatch, session: TableSession, target: Target, state: DeltaState, layout: TableLayout
) -> ReadyTable:
    """Compares the rows with the table."""
    stored = batch.schema(target.table)
    record = record_in_force(state)
    if record is None:
        record = _first_record(batch, session, target, state, layout)
        state = target.state() or state
    schema = record.schema
    if schema is not None and not all(column.declared for column in layout.columns):
        layout, stored = resolved(layout, schema), schema
    what = disagreement(target, layout, schema)
    if what is not None:
        if schema is None or may_have_rows(target, state):
            raise disagreement_error(target, what)
        # It was created from a definition that capture had read, which was ahead of the rows.
        schema = schema_of_layout(layout, stored)
        surroundings = _surroundings(batch, session, target, layout)
        state = evolution_of(target, surroundings, state).start_anew(schema)
    columns = columns_of_layout(layout, target.policies)
    names = [column.name for column in layout.columns]
    require_same_policies(state, target, columns, names)
    state = record_policies(session.spark, target, state, columns, names)
    return ReadyTable(state, layout=layout, columns=columns_there(target, state, columns), schema=stored)


def _first_record(
    batch: PreparedBatch, session: TableSession, target: Target, state: DeltaState, layout: TableLayout
) -> SchemaRecord:
    """Records the source's schema in a table that an older Towpath made."""
    schema = schema_of_layout(layout, batch.schema(target.table))
    columns_there(target, state, columns_of_schema(schema, target.policies))
    record = SchemaRecord(state.applied_seq, schema)
    batch.check()
    properties = target.sql_properties({SCHEMA_PROPERTY: record.to_json()})
    session.spark.sql(f"ALTER TABLE {target.sql} SET TBLPROPERTIES ({properties})")
    return record
