"""Brings a Delta table through the DDL statements of a batch.

A statement is first recorded in the table's properties, with the columns that the table must have; then come as many
ALTERs as that takes; the last statement changes rows, if any change, and carries the applied position. A kill anywhere
leaves a table from which the next driver finds the rest of the way. A table that must be written anew, or that holds no
rows, is replaced by one statement instead, which begins a new generation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cdc.base.errors import TargetError, UnsupportedDdlError
from cdc.base.targets import (
    BEGINS_PROPERTY,
    GENERATION_PROPERTY,
    KEPT_PROPERTY,
    NEEDS_MAPPING,
    begins_of,
)
from cdc.binlog.sql.changes import CreateTable, DropPartitions, MovePartition, UnknownEffect, Unsupported
from cdc.binlog.sql.schemas import TableSchema
from cdc.lake.apply.schema.column_reading import ColumnReading, columns_to_read
from cdc.lake.apply.schema.columns import (
    MAPPING,
    WIDENING,
    Goals,
    columns_of,
    is_disturbed,
    is_mapped,
)
from cdc.lake.apply.schema.content import (
    delete_statement,
    fill_statement,
    rewrite_statement,
    truncate_statement,
)
from cdc.lake.apply.schema.evidence import conditions_met
from cdc.lake.apply.schema.lake import Lake, NewGeneration, Work
from cdc.lake.apply.schema.lineage import Followed, differences, follow
from cdc.lake.apply.schema.moved_rows import MovedRows, SomeRows, moved_rows, rows_before
from cdc.lake.apply.schema.partition_removal import Dropped, removed_rows
from cdc.lake.apply.schema.partitions import Unclear
from cdc.lake.apply.schema.plan import PlannedColumn, TableEvolution, plan
from cdc.lake.apply.schema.properties import kept_statements, properties_after
from cdc.lake.apply.schema.refusals import not_understood, refusal, unknown
from cdc.lake.apply.schema.requirements import (
    require_keys,
    require_known,
    require_layout,
    require_recorded_policies,
)
from cdc.lake.apply.schema.statements import DdlStatement, TableEffect, effect_on
from cdc.lake.delta.log import DeltaState
from cdc.lake.delta.tables import (
    COLUMNS_PROPERTY,
    TableOrigin,
    Target,
    labels_json,
    schema_of,
)
from cdc.lake.delta.tracked import SCHEMA_PROPERTY, SchemaRecord, outdated_records, record_in_force, records
from cdc.lake.rows.columns import columns_of_schema
from cdc.lake.runtime.session import view_of

if TYPE_CHECKING:
    from pyspark.sql import types as t

    from cdc.batches.manifest import Manifest

_KEPT_STATEMENTS = 20
_READ = "read"
"""Key of the columns in a record: the names of those whose values were read from the server."""


@dataclass(frozen=True)
class Surroundings:
    """What the evolution of a table needs beside the table."""

    lake: Lake
    manifest: Manifest
    check: Callable[[], object]
    """Raises if the batch may not be applied any more."""
    stored: Mapping[str, TableSchema]
    """The definitions that capture read after the statements, perhaps later ones."""
    other: Callable[[str], Target | None]
    """Returns the target of another table, by ``db.table``; None if it is not captured, or parked."""
    dropped_partitions: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """The partitions right before statements that dropped some, by the statement's seq and ``db.table``."""
    reading: ColumnReading | None = None
    """The values that only the server knew after one of the statements."""
    lake_name: Callable[[str], str] = lambda table: table
    """Returns the ``db.table`` of a source table's Delta table."""
    rows_follow: TableSchema | None = None
    """The schema of the table's rows in the batch (CREATE TABLE … SELECT), which are merged afterwards."""


@dataclass(frozen=True)
class Evolved:
    """A table after the statements of a batch."""

    state: DeltaState | None
    has_position: bool
    """Whether the position was committed; if not, the statements changed nothing, or rows follow."""
    changed: bool = False
    """Whether anything was changed."""
    moved: MovedRows | None = None
    """The rows that the last statement moved between this table and another one, which the merge brings."""


class Evolution:
    """One table on its way through the statements of a batch."""

    def __init__(self, target: Target, surroundings: Surroundings, state: DeltaState | None) -> None:
        self._target = target
        self._surroundings = surroundings
        self._lake = surroundings.lake
        self._state = state
        self._has_position = False
        self._changed = False
        self._is_recorded = False
        self._moved: MovedRows | None = None
        self._last_record: SchemaRecord | None = None
        """The record of the last statement, which the table's position has not reached yet."""

    def run(self, statements: list[DdlStatement]) -> Evolved:
        """Applies the statements after the applied position. Raises UnsupportedDdlError, NeedsSnapshotError and what
        the policies of columns raise."""
        if self._state is not None:
            self._repair(self._state)
        applied = -1 if self._state is None else self._state.applied_seq
        for statement in statements:
            effect = effect_on(self._target.table, statement) if statement.seq > applied else None
            if effect is not None:
                self._apply(effect)
        if self._is_recorded and not self._has_position:
            self._commit(None)
        return Evolved(self._state, self._has_position, self._changed, self._moved)

    def repair(self) -> DeltaState | None:
        """Gives columns their names again that an outdated driver has renamed. Returns the table's state."""
        if self._state is not None:
            self._repair(self._state)
        return self._state

    def _repair(self, state: DeltaState) -> None:
        record = record_in_force(state)
        if record is None or record.columns is None or not is_disturbed(state):
            return
        if not any(later.seq > record.seq for later in records(state)):  # else that statement's own steps go on
            self._lake.alter(self._target, Goals.of_json(record.columns))
            self._state = self._read()

    def start_anew(self, schema: TableSchema) -> DeltaState:
        """Gives an empty table the columns of a source schema, before rows are merged into it."""
        assert self._state is not None
        columns = columns_of_schema(schema, self._target.policies)
        planned = [PlannedColumn(field.name, field.dataType, None) for field in columns.fields]
        self._replace(planned, schema, None, max(self._state.applied_seq, self._surroundings.manifest.after_seq))
        return self._read()

    def _apply(self, effect: TableEffect) -> None:
        if effect.creates is not None:
            for change in effect.changes:
                if isinstance(change, Unsupported):
                    raise not_understood(self._target, effect.statement, change.reason or change.clause)
            if effect.moves is not None:
                self._create_from_partition(effect.statement, effect.creates, effect.moves)
            else:
                self._create(effect.statement, effect.creates)
        elif effect.drops:
            self._drop(effect)
        elif effect.origin != self._target.table:
            self._rename(effect)
        elif self._state is not None:
            self._alter(effect, self._state)
        elif effect.moves is not None:
            raise unknown(
                self._target, effect.statement, "rows of another table came, and the table is not in the lake yet"
            )
        else:  # the table is created from the definition behind the statement, if that brings no rows
            for change in effect.changes:
                if isinstance(change, UnknownEffect) and not change.keeps_empty:
                    raise unknown(self._target, effect.statement, change.reason)

    # --- tables that appear and go ---------------------------------------------------------------------------------

    def _create(self, statement: DdlStatement, change: CreateTable) -> None:
        state = self._state
        record = None if state is None else self._record(state, statement)
        if record is not None and record.schema is not None and change.if_not_exists and not change.replaces:
            return
        if change.selects:
            raise unknown(self._target, statement, "its rows come from a query, and the binlog has none of them")
        schema = self._definition(statement, change)
        if schema is None:
            return  # it was dropped since: the table appears with its rows, if there are any
        self._changed = True
        columns = columns_of_schema(schema, self._target.policies)
        if state is None:
            self._state = self._lake.create(self._target, columns, schema)
            self._last_record = SchemaRecord(statement.seq, schema)
            self._is_recorded = self._surroundings.rows_follow is None
            return
        rows_follow = self._surroundings.rows_follow is not None
        if self._is_fresh(state, columns.fields) and not rows_follow:
            self._set(state, SchemaRecord(statement.seq, schema), {})
            return
        planned = [PlannedColumn(field.name, field.dataType, None) for field in columns.fields]
        self._replace(planned, schema, None, statement.seq - 1 if rows_follow else None)

    def _is_fresh(self, state: DeltaState, fields: Sequence[t.StructField]) -> bool:
        """Whether the table has these columns, and never had a change: apply has created it before the statement came,
        from a definition that capture had read later."""
        if state.applied_seq or state.ledger or state.generation or is_mapped(state):
            return False
        present = [(field.name, field.dataType) for field in schema_of(state).fields]
        wanted = [(field.name, field.dataType) for field in self._target.schema(list(fields)).fields]
        return present == wanted and not self._lake.has_rows(self._target, state)

    def _definition(self, statement: DdlStatement, change: CreateTable) -> TableSchema | None:
        """Returns the schema of a new table; None if it is not known."""
        if self._surroundings.rows_follow is not None:
            return self._surroundings.rows_follow
        stored = self._surroundings.stored.get(self._target.table)
        schema = change.schema
        if change.like is not None:
            schema = self._schema_of(f"{change.like[0]}.{change.like[1]}", statement)
        if schema is None:
            return stored
        # Both know something that the other does not: the statement is of this moment, the server knows its defaults.
        return stored if stored is not None and _same_columns(stored, schema) else schema

    def _schema_of(self, table: str, statement: DdlStatement) -> TableSchema | None:
        """Returns the tracked schema of another table before a statement. None if it is not known: a snapshot that was
        taken behind the statement tells nothing of the time before it."""
        other = self._surroundings.other(table)
        state = None if other is None else self._lake.state(other)
        if state is None:
            return None
        is_ahead = state.applied_seq > self._surroundings.manifest.last_seq
        record = record_in_force(state, before=statement.seq if is_ahead else None)
        return None if record is None else record.schema

    def _drop(self, effect: TableEffect) -> None:
        state, policy = self._state, self._target.apply.on_drop
        if state is None:
            return
        record = self._record(state, effect.statement)
        if record is not None and record.schema is None:
            return
        if policy == "fail" and not effect.is_renamed:
            raise refusal(self._target, effect.statement, "drops the table", "on_drop: fail")
        self._set(state, SchemaRecord(effect.statement.seq, None), {})
        if policy == "drop":
            self._commit(delete_statement(self._target), "remove")
        else:
            self._commit(None)

    def _renamed_nothing(self, effect: TableEffect) -> bool:
        """Whether RENAME TABLE IF EXISTS passed over a table that was not there: no table has the new name, or one had
        it before the statement, which would have failed otherwise."""
        state = self._state
        record = None if state is None else self._record(state, effect.statement)
        is_there = record is not None and record.schema is not None
        return effect.tolerates_missing and (is_there or self._target.table not in self._surroundings.stored)

    def _rename(self, effect: TableEffect) -> None:
        """Gives the table the rows of the one that has its name now."""
        assert effect.origin is not None
        target, statement, state = self._target, effect.statement, self._state
        other = self._surroundings.other(effect.origin)
        if other is None:
            if state is not None and is_shadow(effect.origin, target.table):
                self._continue_from_shadow(effect, state)
                return
            raise unknown(target, statement, f"it was the table {effect.origin}, whose rows are not at hand")
        if other.is_routed:
            raise unknown(target, statement, f"it was the table {effect.origin}, whose rows lie among those of others")
        source = self._lake.state_before(other, statement.seq)
        record = None if source is None else record_in_force(source, before=statement.seq)
        if source is None or record is None or record.schema is None:
            if self._renamed_nothing(effect):
                return
            raise unknown(target, statement, f"it was the table {effect.origin}, whose rows are not in the lake")
        if other.apply.mode != target.apply.mode or not target.policies.treats_alike(other.policies):
            raise unknown(target, statement, f"the table {effect.origin} has another mode or other policies")
        require_recorded_policies(other, source, record.schema)
        after, followed = self._follow(effect, record.schema, source)
        planned = plan(target, columns_of(source), followed, record.schema, after)
        require_known(self._target, self._settled(planned, source, other), statement)
        self._replace(self._within_policy(planned.columns, statement), after, source)

    def _within_policy(self, columns: list[PlannedColumn], statement: DdlStatement) -> list[PlannedColumn]:
        """Returns the columns that a table may have after it took over another one's rows."""
        state, policy = self._state, self._target.apply.schema_changes
        record = None if state is None else self._record(state, statement)
        if state is None or policy == "evolve" or record is None or record.schema is None:
            return columns
        lake_columns = columns_of(state)
        names, new = {c.name.lower() for c in lake_columns}, {c.name.lower(): c for c in columns}
        if policy == "fail" and [(c.name, c.type) for c in lake_columns] != [(c.name, c.type) for c in columns]:
            raise refusal(
                self._target, statement, "gives the name to a table with other columns", "schema_changes: fail"
            )
        kept = [new.get(c.name.lower(), PlannedColumn(c.name, c.type, None)) for c in lake_columns]
        return kept if policy == "ignore" else [*kept, *(c for c in columns if c.name.lower() not in names)]

    def _continue_from_shadow(self, effect: TableEffect, state: DeltaState) -> None:
        """Follows a tool that has filled a copy of the table and exchanged the two."""
        before = self._schema_before(state, effect.statement)
        after = self._surroundings.stored.get(self._target.table)
        if before is None or after is None:
            raise unknown(self._target, effect.statement, "its definition is not known")
        self._change(effect.statement, state, before, after, differences(before, after))

    # --- columns and rows ------------------------------------------------------------------------------------------

    def _alter(self, effect: TableEffect, state: DeltaState) -> None:
        statement, target = effect.statement, self._target
        if effect.truncates:
            self._truncate(statement, state)
            return
        before = self._schema_before(state, statement)
        if before is None:
            raise unknown(target, statement, "the definition before it is not known")
        if effect.drops_partitions is not None:
            self._drop_partitions(statement, effect.drops_partitions, state, before)
            return
        if effect.moves is not None:
            self._move(statement, effect.moves, SomeRows(target, state, before))
            return
        try:
            after, followed = self._follow(effect, before, state)
        except UnsupportedDdlError:
            stored = self._surroundings.stored.get(target.table)
            if stored is None or self._lake.has_rows(target, state):
                raise
            # The table was created from a definition that was ahead of the statements.
            self._change(statement, state, stored, stored, differences(stored, stored), anew=True)
            return
        self._change(statement, state, before, after, followed)

    def _follow(
        self, effect: TableEffect, before: TableSchema, state: DeltaState
    ) -> tuple[TableSchema, tuple[Followed, ...]]:
        """Returns the source's schema after the statement, and its columns. Raises for changes that nobody knows."""
        statement, target = effect.statement, self._target
        for change in effect.changes:
            if isinstance(change, Unsupported):
                raise not_understood(target, statement, change.clause)
            if isinstance(change, UnknownEffect) and (not change.keeps_empty or self._lake.has_rows(target, state)):
                raise unknown(target, statement, change.reason)
            if isinstance(change, DropPartitions) and self._lake.has_rows(target, state):
                raise unknown(target, statement, "it drops partitions and does something else")
            if isinstance(change, MovePartition):
                raise unknown(target, statement, "it moves a partition and does something else")
        try:
            return follow(before, effect.changes, statement.sql_mode, statement.zone_offset_s)
        except UnsupportedDdlError as error:
            raise UnsupportedDdlError(
                f"{error.message}: {statement.shown}",
                place=f"table {target.table}",
                remedy=f"Load the table anew with `cdc snapshot {target.destination} {target.table}`.",
            ) from error

    def _change(
        self,
        statement: DdlStatement,
        state: DeltaState,
        before: TableSchema,
        after: TableSchema,
        followed: tuple[Followed, ...],
        *,
        anew: bool = False,
    ) -> None:
        """Brings the table from one source schema to the other. ``anew``: it has no rows, and its columns say
        nothing."""
        target, lake_columns = self._target, columns_of(state)
        pending = next((r for r in records(state) if r.seq == statement.seq and r.columns is not None), None)
        planned = plan(target, [] if anew else lake_columns, followed, before, after)
        if planned.refused:
            policy = f"schema_changes: {target.apply.schema_changes}"
            raise refusal(target, statement, " and ".join(dict.fromkeys(planned.refused)), policy)
        require_keys(self._target, before, after, planned, statement)
        require_layout(self._target, state, planned, statement)
        if pending is None:
            empty = not self._lake.has_rows(target, state)
            reading = None
            if not empty:
                stay = [column.old.name for column in followed if column.old is not None]
                require_recorded_policies(target, state, before, stay)
                planned = self._settled(planned, state)
                reading = self._required_reading(statement, state, planned, before, after)
            if not planned.changes(lake_columns) and not planned.updates and not anew and reading is None:
                if before != after:
                    self._set(state, SchemaRecord(statement.seq, after), {})
                return
            if anew or (empty and planned.changes(lake_columns)):
                self._replace(planned.columns, after, state, is_empty=empty)
                return
            columns = planned.columns if reading is None else reading.planned(planned.columns)
            if planned.rewrites or columns is None:
                self._rewrite(planned.columns, after, state, reading)
                return
            pending = self._declare(statement, state, replace(planned, columns=columns), after, reading)
        else:
            reading = self._pending_reading(statement, state, pending, after)
        self._lake.alter(target, Goals.of_json(pending.columns))
        is_history = target.apply.mode == "append"
        # A table with the declared columns does not tell the values any more; records of version 1 leave that open.
        updates = planned.updates if pending.values is None else pending.values
        updates = {} if is_history else updates
        if reading is not None:
            self._fill(reading, updates)
            return
        if updates:
            self._commit(fill_statement(target, updates), "fill")
        else:
            self._commit(None)

    # --- values that were read -------------------------------------------------------------------------------------

    def _required_reading(
        self,
        statement: DdlStatement,
        state: DeltaState,
        planned: TableEvolution,
        before: TableSchema,
        after: TableSchema,
    ) -> ColumnReading | None:
        """Returns the values that only the server knew; None if all values are known. Raises what a statement with
        unknown values raises if they were not read."""
        reasons = [*planned.unknown, *planned.unknown_new]
        if not reasons:
            return None
        reason = "; ".join(dict.fromkeys(reasons))
        names = columns_to_read(self._lake, self._target, state, planned, before, after)
        return self._reading(statement, state, reason, names, after)

    def _pending_reading(
        self, statement: DdlStatement, state: DeltaState, pending: SchemaRecord, after: TableSchema
    ) -> ColumnReading | None:
        """Does what :meth:`_required_reading` does, for a statement whose ALTERs have begun."""
        names = tuple(pending.columns.get(_READ, ()))
        return None if not names else self._reading(statement, state, "its ALTERs were cut off", names, after)

    def _reading(
        self, statement: DdlStatement, state: DeltaState, reason: str, names: tuple[str, ...], after: TableSchema
    ) -> ColumnReading | None:
        target, reading = self._target, self._surroundings.reading
        if reading is None or reading.seq != statement.seq or not set(names) <= set(reading.names):
            raise unknown(target, statement, reason, names)
        fields = columns_of_schema(after, target.policies)
        if not names or any(fields.field_of(name) != reading.field_of(name) for name in reading.names):
            raise unknown(target, statement, f"{reason}; the columns that were read are others")
        if not reading.are_complete(self._lake.session, target, state):
            raise unknown(target, statement, f"{reason}; the rows that were read are not those of the Delta table")
        return reading

    def _fill(self, reading: ColumnReading, updates: Mapping[str, str]) -> None:
        with view_of(reading.rows(self._lake.session)) as view:
            self._commit(reading.fill_statement(self._target, view, self._read(), updates), "fill")

    def _rewrite(
        self, columns: list[PlannedColumn], schema: TableSchema, state: DeltaState, reading: ColumnReading | None
    ) -> None:
        """Writes the table anew from its own rows, with the values that were read."""
        if reading is None:
            self._replace(columns, schema, state)
            return
        with view_of(reading.rows(self._lake.session)) as view:
            joined = f" LEFT JOIN {view} ON {reading.on(self._target)}"
            self._replace(reading.joined(columns), schema, state, joined=joined)

    def _declare(
        self,
        statement: DdlStatement,
        state: DeltaState,
        planned: TableEvolution,
        after: TableSchema,
        reading: ColumnReading | None,
    ) -> SchemaRecord:
        """Records what the table must become, and switches on what its ALTERs need."""
        lake_columns, inner = columns_of(state), columns_of(state, before=True)
        physical = {column.name: column.physical for column in inner}
        goals = Goals(
            tuple(column.goal(physical) for column in planned.columns),
            {column.physical: column.name for column in lake_columns},
            {column.physical: column.name for column in inner},
        )
        properties: dict[str, str] = {}
        stay = {c.was.physical for c in planned.columns if c.was is not None}
        renames = any(c.was is not None and c.was.name != c.name for c in planned.columns)
        special = any(NEEDS_MAPPING & set(c.name) for c in planned.columns)
        if not is_mapped(state) and (renames or special or any(c.physical not in stay for c in lake_columns)):
            properties |= MAPPING
        if any(c.was is not None and c.was.type != c.type for c in planned.columns):
            properties |= WIDENING
        read = {} if reading is None else {_READ: list(reading.names)}
        record = SchemaRecord(statement.seq, after, goals.to_json() | read, planned.updates)
        self._set(state, record, properties)
        return record

    def _truncate(self, statement: DdlStatement, state: DeltaState) -> None:
        policy = self._target.apply.on_truncate
        if policy == "fail":
            raise refusal(self._target, statement, "removes all rows", "on_truncate: fail")
        if policy == "ignore":
            self._commit(None)
        else:
            self._commit(truncate_statement(self._target, statement, state.applied_seq), "remove")

    def _drop_partitions(
        self, statement: DdlStatement, change: DropPartitions, state: DeltaState, schema: TableSchema
    ) -> None:
        target, policy = self._target, self._target.apply.on_drop_partition
        if not self._lake.has_rows(target, state):
            return
        if policy == "snapshot":
            raise unknown(target, statement, "the rows of its partitions go, and on_drop_partition is snapshot")
        if policy == "keep":
            self._note_kept(statement, state)
            self._commit(None)
            return
        clause = self._clauses(statement).get(target.table)
        try:
            removed = removed_rows(self._lake, target, state, Dropped(statement, change, schema, clause))
        except Unclear as reason:
            raise unknown(target, statement, str(reason)) from None
        if removed is None:
            self._commit(None)
            return
        with self._lake.removal(target, state, removed) as removal_sql:
            self._commit(removal_sql, "remove")

    def _note_kept(self, statement: DdlStatement, state: DeltaState) -> None:
        """Writes into the table's properties that it keeps rows which left their partition at the source."""
        kept = [*kept_statements(state), {"seq": statement.seq, "statement": statement.shown}]
        listed = {kept_statement["seq"]: kept_statement for kept_statement in kept[-_KEPT_STATEMENTS:]}
        kept_json = json.dumps(list(listed.values()), ensure_ascii=False)
        self._lake.set_properties(self._target, {KEPT_PROPERTY: kept_json})

    # --- rows that move between two tables ---------------------------------------------------------------------------

    def _create_from_partition(self, statement: DdlStatement, create: CreateTable, change: MovePartition) -> None:
        """Creates the table of a CONVERT PARTITION, whose rows the merge brings."""
        other = self._other_before(statement, change)
        # The rows take the place of those that follow a CREATE TABLE … SELECT.
        self._surroundings = replace(self._surroundings, rows_follow=other.schema)
        self._create(statement, create)
        self._moved = moved_rows(self._lake, self._target, statement, change, None, other, self._clauses(statement))

    def _move(self, statement: DdlStatement, change: MovePartition, own: SomeRows) -> None:
        """Finds the rows that leave the table, and those that come from another one."""
        policy = self._target.apply.on_drop_partition
        if policy == "snapshot":
            raise unknown(self._target, statement, "rows of a partition come or go, and on_drop_partition is snapshot")
        other = self._other_before(statement, change)
        moved = moved_rows(self._lake, self._target, statement, change, own, other, self._clauses(statement))
        if change.is_partitioned and moved.gone is not None and policy == "keep":
            self._note_kept(statement, own.state)
            moved = replace(moved, gone=None)
        self._moved, self._changed = moved, True

    def _other_before(self, statement: DdlStatement, change: MovePartition) -> SomeRows:
        name = ".".join(change.other)
        return rows_before(self._lake, self._target, self._surroundings.other(name), name, statement)

    def _clauses(self, statement: DdlStatement) -> Mapping[str, str]:
        return self._surroundings.dropped_partitions.get(statement.seq, {})

    # --- checks ------------------------------------------------------------------------------------------------------

    def _settled(self, planned: TableEvolution, state: DeltaState, other: Target | None = None) -> TableEvolution:
        """Returns the plan once the rows were looked at: the table's own, or those of one that it takes over."""
        target = self._target if other is None else other
        return planned.settled(lambda conditions: conditions_met(self._lake, target, state, conditions))

    # --- records and properties ------------------------------------------------------------------------------------

    def _record(self, state: DeltaState, statement: DdlStatement) -> SchemaRecord | None:
        return self._last_record or record_in_force(state, before=statement.seq)

    def _schema_before(self, state: DeltaState, statement: DdlStatement) -> TableSchema | None:
        record = self._record(state, statement)
        return None if record is None else record.schema

    def _set(self, state: DeltaState, record: SchemaRecord, more: dict[str, str]) -> None:
        """Adds a record to the table's properties, together with others, in one commit."""
        self._changed = self._is_recorded = True
        self._last_record = record
        properties = {record.name: record.to_json(), **more}
        if record.schema is not None:
            labels = columns_of_schema(record.schema, self._target.policies).labels
            if labels or COLUMNS_PROPERTY in state.properties:
                properties[COLUMNS_PROPERTY] = labels_json(labels)
        if any(state.properties.get(name) != value for name, value in properties.items()):
            self._lake.set_properties(self._target, properties)
        outdated = outdated_records(state)
        if outdated:
            self._lake.unset_properties(self._target, outdated)

    def _replace(
        self,
        columns: list[PlannedColumn],
        schema: TableSchema,
        source: DeltaState | None,
        seq: int | None = None,
        *,
        is_empty: bool = False,
        joined: str = "",
    ) -> None:
        """Begins a new generation with these columns, filled from a version of a table (None: empty), in one statement.
        ``seq``: the position that it carries if rows follow, instead of the batch's end. ``joined``: see
        :func:`~cdc.lake.apply.schema.content.rewrite_statement`."""
        target, manifest, state = self._target, self._surroundings.manifest, self._state
        position = manifest.last_seq if seq is None else seq
        generation = 0 if state is None else state.generation + 1
        origin = TableOrigin(manifest.server_uuid, manifest.epoch, position, generation, SchemaRecord(position, schema))
        properties = properties_after(target, columns, schema, origin, (state, source))
        rows_of = None if is_empty else source
        begins = self._begins(rows_of, position)
        properties[BEGINS_PROPERTY] = "" if begins is None else str(begins)
        statement = rewrite_statement(target, columns, properties, source, is_empty=is_empty, joined=joined)
        before = DeltaState(target.path, -1, {}, "", 0) if state is None else state
        self._changed = True
        before = replace(before, properties={**properties, GENERATION_PROPERTY: str(generation)})
        self._lake.replace(target, before, position, NewGeneration(statement, columns, rows_of))
        self._state = self._read()
        self._last_record = SchemaRecord(position, schema)
        self._has_position = seq is None

    def _begins(self, source: DeltaState | None, position: int) -> int | None:
        """Returns the seq after which the table's changes make a generation with these rows; None if they do not,
        because it takes over another table's rows."""
        if source is None:
            return position
        return begins_of(source.properties) if source.path == self._target.path else None

    def _commit(self, statement: str | None, work: Work = "position") -> None:
        """Runs the statement that carries the position; None commits the position alone."""
        self._changed = True
        self._lake.commit(self._target, self._read(), self._surroundings.manifest.last_seq, statement, work)
        self._state = self._read()
        self._has_position = True

    def _read(self) -> DeltaState:
        state = self._lake.state(self._target)
        if state is None:
            raise TargetError("the Delta table is gone", place=f"table {self._target.table} at {self._target.path}")
        return state


def is_shadow(origin: str, table: str) -> bool:
    """Whether a table's name is that of the copy which gh-ost (``_t_gho``) or pt-online-schema-change (``_t_new``, with
    more underscores if that is taken) fills for ``table``."""
    db, _, name = table.partition(".")
    origin_db, _, copy = origin.partition(".")
    return db == origin_db and copy.startswith("_") and copy.lstrip("_") in (
        f"{name.lstrip('_')}_gho", f"{name.lstrip('_')}_new"
    )  # fmt: skip


def _same_columns(stored: TableSchema, schema: TableSchema) -> bool:
    return [(c.name, c.column_type.lower()) for c in stored.columns] == [
        (c.name, c.column_type.lower()) for c in schema.columns
    ] and stored.primary_key == schema.primary_key


__all__ = ["SCHEMA_PROPERTY", "Evolution", "Evolved", "Surroundings", "is_shadow"]
