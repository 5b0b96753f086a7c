"""Brings a shared Delta table through the DDL statements of one of its members.

The statements of a member change its own rows alone. The columns of the table only grow; see
:mod:`cdc.lake.apply.schema.shared_tables`. So nothing is declared beforehand: each step follows from the table as it
is, and a driver that begins again after a kill finds the columns that are there already. The last statement gives the
member's old rows their values, and carries its position.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from cdc.base.targets import REBUILD_PROPERTY
from cdc.lake.apply.commit import Commit
from cdc.lake.apply.schema.columns import columns_of
from cdc.lake.apply.schema.content import delete_statement, fill_statement, removal_statement
from cdc.lake.apply.schema.evolve import Evolution, Surroundings, is_shadow
from cdc.lake.apply.schema.plan import plan
from cdc.lake.apply.schema.refusals import ROUTE, refusal, unknown
from cdc.lake.apply.schema.requirements import (
    require_keys,
    require_known,
    require_layout,
    require_recorded_policies,
)
from cdc.lake.apply.statements import user_metadata
from cdc.lake.delta.log import has_rows
from cdc.lake.delta.tracked import SCHEMA_PROPERTY, SchemaRecord, records
from cdc.lake.rows.columns import columns_of_schema

if TYPE_CHECKING:
    from cdc.binlog.sql.changes import CreateTable
    from cdc.binlog.sql.schemas import TableSchema
    from cdc.lake.apply.schema.lineage import Followed
    from cdc.lake.apply.schema.statements import DdlStatement, TableEffect
    from cdc.lake.delta.log import DeltaState
    from cdc.lake.delta.tables import Target


def evolution_of(target: Target, surroundings: Surroundings, state: DeltaState | None) -> Evolution:
    """Returns the way of a table through statements, by whether it is shared."""
    return (SharedEvolution if target.apply.shared else Evolution)(target, surroundings, state)


def may_have_rows(target: Target, state: DeltaState) -> bool:
    """Whether the destination may have rows in the table. Of a shared one, the rows of others do not count."""
    return not _is_fresh(target, state) and has_rows(state.path, target.table)


def _is_fresh(target: Target, state: DeltaState) -> bool:
    """Whether the destination has just joined a shared table, in which it has no rows yet."""
    return target.apply.shared and not (state.applied_seq or state.ledger or REBUILD_PROPERTY in state.properties)


class SharedEvolution(Evolution):
    """The rows of one member on their way through the statements of a batch."""

    def _repair(self, state: DeltaState) -> None:
        """No column of a shared table is renamed, so an outdated driver leaves none half renamed."""

    def start_anew(self, schema: TableSchema) -> DeltaState:
        assert self._state is not None
        self._grow(schema)
        position = max(self._state.applied_seq, self._surroundings.manifest.after_seq)
        self._lake.set_properties(self._target, {SCHEMA_PROPERTY: SchemaRecord(position, schema).to_json()})
        self._changed = True
        return self._read()

    def _create(self, statement: DdlStatement, change: CreateTable) -> None:
        state = self._state
        if state is None:
            super()._create(statement, change)
            return
        record, rows_follow = self._record(state, statement), self._surroundings.rows_follow is not None
        exists = record is not None and record.schema is not None
        if exists and change.if_not_exists and not change.replaces and not rows_follow:
            return
        schema = self._definition(statement, change)
        if schema is None:
            return
        self._grow(schema)
        if not rows_follow:
            self._set(state, SchemaRecord(statement.seq, schema), {})
            self._commit(delete_statement(self._target), "remove")
            return
        before = statement.seq - 1  # so that the rows of the same transaction find the schema in force
        self._set(state, SchemaRecord(before, schema), {})
        self._remove_former_rows(statement)
        self._reach(before)
        self._is_recorded = False  # the rows bring the position

    def _remove_former_rows(self, statement: DdlStatement) -> None:
        """Deletes the member's rows before those come that a CREATE TABLE … SELECT makes. The table may have the
        position before the statement already, so the DELETE carries the statement's seq under a name of its own, by
        which a driver that was overtaken does not delete the new rows."""
        target, state, surroundings = self._target, self._read(), self._surroundings
        application, delete_own = f"{target.application_id(state)}:created", delete_statement(target)
        Commit(
            self._lake.session,
            target,
            state,
            statement.seq,
            json.dumps({}),
            surroundings.check,
            application=application,
        ).execute(delete_own)

    def _reach(self, seq: int) -> None:
        """Commits a position inside the batch: an entry of the ledger that ends there."""
        target, state, surroundings = self._target, self._read(), self._surroundings
        if state.applied_seq < seq:
            positions = surroundings.manifest.positions
            last = positions.last.model_copy(update={"gtid": None})  # that of another transaction
            manifest = surroundings.manifest.model_copy(
                update={"last_seq": seq, "positions": positions.model_copy(update={"last": last})}
            )
            metadata = user_metadata(manifest, target, state.applied_seq, state.generation)
            Commit(self._lake.session, target, state, seq, metadata, surroundings.check).execute(None)
        self._state = self._read()

    def _drop(self, effect: TableEffect) -> None:
        """Removes the rows of a source table that has a new name in the same Delta table: they come back under that
        one, by its snapshot, and stay only in a changelog."""
        target, state = self._target, self._state
        new_name = effect.new_name_of(target.table)
        stays = new_name != target.table and self._surroundings.lake_name(new_name) == target.lake_name
        record = None if state is None else self._record(state, effect.statement)
        if not (target.is_routed and stays) or state is None or (record is not None and record.schema is None):
            super()._drop(effect)
            return
        self._set(state, SchemaRecord(effect.statement.seq, None), {})
        is_history = target.apply.mode == "append"
        self._commit(None if is_history else removal_statement(target, effect.statement), "remove")

    def _rename(self, effect: TableEffect) -> None:
        assert effect.origin is not None
        state, other = self._state, self._surroundings.other(effect.origin)
        if other is None and state is not None and is_shadow(effect.origin, self._target.table):
            self._continue_from_shadow(effect, state)
            return
        raise unknown(
            self._target,
            effect.statement,
            f"it was the table {effect.origin}, whose rows a shared table does not take over",
        )

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
        target, lake_columns = self._target, columns_of(state)
        planned = plan(target, lake_columns, followed, before, after)
        if planned.refused:
            cause = ROUTE if target.is_routed else "apply.shared: true"
            raise refusal(target, statement, " and ".join(dict.fromkeys(planned.refused)), cause)
        require_keys(self._target, before, after, planned, statement)
        require_layout(self._target, state, planned, statement)
        if not _is_fresh(target, state) and self._lake.has_rows(target, state):
            if not any(record.seq == statement.seq for record in records(state)):  # else it has begun, by one policy
                stay = [column.old.name for column in followed if column.old is not None]
                require_recorded_policies(target, state, before, stay)
            planned = self._settled(planned, state)
            require_known(self._target, planned, statement)
        if not planned.changes(lake_columns) and not planned.updates:
            if before != after:
                self._set(state, SchemaRecord(statement.seq, after), {})
            return
        self._grow(after)
        self._set(self._read(), SchemaRecord(statement.seq, after), {})
        updates = {} if target.apply.mode == "append" else planned.updates
        if updates:
            self._commit(fill_statement(target, updates), "fill")
        else:
            self._commit(None)

    def _grow(self, schema: TableSchema) -> None:
        """Gives the table the columns of a source schema."""
        self._lake.grow(self._target, columns_of_schema(schema, self._target.policies).fields)
        self._changed = True
