"""Remasks: gives the values that are in the lake the policies that the configuration says now.

A table is rewritten from its own rows where these tell the new values, in one commit that begins its next generation at
the position that it has. Else it is built again from the store, or loaded from the source.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from cdc.base.errors import CdcError, CutOffError, TargetError, UsageError
from cdc.base.targets import BEGINS_PROPERTY, begins_of, split_table
from cdc.batches import parking
from cdc.client import open_meta, open_table_batches
from cdc.config import DestinationConfig
from cdc.lake.apply.large_values import careful_parquet, has_large_values
from cdc.lake.apply.schema.content import rewrite_statement, rows_query
from cdc.lake.apply.schema.plan import PlannedColumn
from cdc.lake.apply.schema.properties import properties_after
from cdc.lake.delta.catalog import require_catalog
from cdc.lake.delta.comments import COMMENTS_PROPERTY
from cdc.lake.delta.log import has_rows
from cdc.lake.delta.maintenance import require_own, vacuum_at_once
from cdc.lake.delta.proof import position_of
from cdc.lake.delta.tables import (
    MODE_PROPERTY,
    PolicyChange,
    TableOrigin,
    Target,
    policy_changes,
    recorded_policies,
    require_owner,
    target_of,
)
from cdc.lake.delta.tracked import SchemaRecord, record_in_force, records
from cdc.lake.jobs.generations import (
    Load,
    LoadPosition,
    Rebuild,
    carrying,
    finish,
    load_position,
    require_no_archive,
)
from cdc.lake.jobs.job import SUBSCRIBER, Job, job, raise_failure, require_included, table_sessions
from cdc.lake.jobs.policy_changes import Rewrite, hides, rewrite_of
from cdc.lake.jobs.remains import old_snapshots, remains_of
from cdc.lake.jobs.replay import find_base, replay
from cdc.lake.jobs.results import ChangedColumn, TableRemask
from cdc.lake.jobs.retry import bring_level
from cdc.lake.jobs.shared_rows import replace_own_rows
from cdc.lake.jobs.snapshot import take_snapshots
from cdc.lake.jobs.values import Replay
from cdc.lake.rows.columns import columns_of_schema
from cdc.lake.runtime.failures import explain
from cdc.meta import ParkedTable, Subscription
from cdc.source.connection import require_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql import types as t

    from cdc.binlog.sql.schemas import TableSchema
    from cdc.lake.delta.log import DeltaState
    from cdc.lake.runtime.session import TableSession

UNDER_WAY = "A remask is under way."
"""Why a table is parked meanwhile."""


def plan_remask(config: DestinationConfig, tables: Sequence[str] = ()) -> list[TableRemask]:
    """Returns the tables (of these; none: of all) whose values in the lake do not have the policies of the
    configuration, and what a remask would do. A table whose policies do not fit has no columns in its result, and the
    reason. Needs no Spark. Raises UsageError for a table that is not included, or not in the lake, and errors that a
    retry may help."""
    planned = []
    for table in _names(config, tables):
        try:
            case = _Case(config, table)
            if case.changes:
                planned.append(case.described())
        except CdcError as error:
            if error.retryable:
                raise
            planned.append(TableRemask(table, [], None, [str(error)], []))
    return planned


def remask(
    config: DestinationConfig,
    tables: Sequence[str] = (),
    *,
    vacuum: bool = False,
    progress: Callable[[TableRemask], object] = lambda _: None,
) -> list[TableRemask]:
    """Gives the values of tables (none: of all) the policies of the configuration. Returns the tables that were
    rewritten.

    ``vacuum``: whether the files of old versions, and snapshots of the old policies, are deleted as well, also those of
    tables that a remask has rewritten before. If tables fail, the others are finished first; then the error of one of
    them is raised. After a kill it is called again, and goes on. Raises UsageError, LeaseHeldError, and what merges,
    replays and snapshots raise.
    """
    done: list[TableRemask] = []
    errors: dict[str, CdcError] = {}
    parked = _subscription(config).parked
    for table in _names(config, tables):
        began = time.monotonic()
        try:
            was_cut_off = table in parked and parked[table].reason == UNDER_WAY
            case = _Case(config, table)
            if not case.changes and not was_cut_off and not (vacuum and tables):
                continue
            if vacuum:
                require_own(target_of(config, table))
            result = case.described(vacuumed=vacuum)
            if case.changes or was_cut_off:
                case.run()
            if vacuum:
                deleted = _delete(config, table)
                result = replace(result, files_deleted=deleted)
        except CdcError as error:
            errors[table] = error
            continue
        state = target_of(config, table).state()
        result = replace(
            result,
            done=True,
            seconds=round(time.monotonic() - began, 3),
            delta_version=None if state is None else state.version,
            applied_seq=None if state is None else position_of(state),
        )
        done.append(result)
        progress(result)
    raise_failure("remask", errors)
    return done


def _names(config: DestinationConfig, tables: Sequence[str]) -> list[str]:
    for table in tables:
        require_included(config, table)
        target = target_of(config, table)
        if target.state() is None:
            raise UsageError(
                f"there is no Delta table of {table}",
                place=target.path,
                remedy=f"Check the name, or run `cdc apply {config.name}` first.",
            )
    if tables:
        return list(dict.fromkeys(tables))
    subscription = _subscription(config)
    names = {*subscription.tables, *subscription.parked}
    return sorted(table for table in names if config.tables.includes(*split_table(table)))


def _subscription(config: DestinationConfig) -> Subscription:
    return open_meta(config).read().subscriptions.get(SUBSCRIBER) or Subscription()


class _Case:
    """A table, and how its values get the policies. Raises TargetError for a table of another owner, ConfigError for a
    policy that does not fit."""

    def __init__(self, config: DestinationConfig, table: str) -> None:
        self._config, self._table = config, table
        self._target: Target = target_of(config, table)
        self._state = self._target.state()
        self._schema: TableSchema | None = None
        self.changes: list[PolicyChange] = []
        if self._state is not None:
            require_owner(self._state, self._target)
            self._schema = self._schema_of(self._state)
            if self._schema is not None:
                self.changes = self._changes_of(self._state, self._schema)

    def _schema_of(self, state: DeltaState) -> TableSchema | None:
        record = record_in_force(state)
        if record is not None:
            return record.schema
        newest = open_table_batches(self._config).reader.newest_schemas()
        return None if newest is None else newest[1].tables.get(self._table)

    def _changes_of(self, state: DeltaState, schema: TableSchema) -> list[PolicyChange]:
        self._require_there({name.lower() for name in (*schema.column_names, *recorded_policies(state))})
        columns = columns_of_schema(schema, self._target.policies)
        changes = policy_changes(state, self._target, columns, schema.column_names)
        if changes and self._target.apply.mode != "append":
            columns.keys([key for key in self._target.apply.keys or schema.primary_key if columns.has(key)])
        return changes

    def _require_there(self, names: set[str]) -> None:
        """Raises ConfigError for a policy of a column that the table does not have, also not after the statements that
        wait in the store. ``names``: in lower case."""
        policies = self._target.policies
        if not policies.required <= names:
            newest = open_table_batches(self._config).reader.newest_schemas()
            stored = None if newest is None else newest[1].tables.get(self._table)
            policies.require_there([*names, *(() if stored is None else stored.column_names)])

    def described(self, *, vacuumed: bool = False) -> TableRemask:
        """Returns what a remask does, before it is done."""
        hidden = [change for change in self.changes if hides(change)]
        remains = []
        if self._state is not None and (hidden or vacuumed):
            remains = remains_of(self._config, self._target, self._state, vacuumed=vacuumed)
        way, why = self.way() if self.changes else (None, [])
        columns = [ChangedColumn(c.column, c.was or "keep", c.now or "keep") for c in self.changes]
        return TableRemask(self._table, columns, way, why, remains)

    def way(self) -> tuple[Literal["lake", "store", "source"] | None, list[str]]:
        """Returns where the new values come from, and why not from the lake."""
        assert self._state is not None and self._schema is not None
        later = [record for record in records(self._state) if record.seq > position_of(self._state)]
        if later:
            return None, ["a DDL statement of the table is half done: set the policy back, and run apply first"]
        mode = self._state.properties.get(MODE_PROPERTY, self._target.apply.mode)
        if mode != self._target.apply.mode:
            why = [f"the Delta table is in mode {mode}, and the configuration says {self._target.apply.mode}"]
        else:
            why = list(rewrite_of(self._target, self._state, self._schema, self.changes).reasons)
            if not why or self._is_empty():
                return "lake", []
        try:
            require_no_archive(self._state, self._target)
            find_base(self._config, self._table, open_table_batches(self._config, archived="keep").reader, self._state)
            return "store", why
        except CutOffError as error:
            why.append(error.message)
        except CdcError as error:
            return None, [*why, error.message]
        if self._target.apply.mode != "upsert":
            why.append(f"the source does not have the history that mode {self._target.apply.mode} keeps")
            return None, why
        try:
            require_server(self._config.source, "a snapshot")
        except CdcError as error:
            return None, [*why, error.message]
        return "source", why

    def _is_empty(self) -> bool:
        return not self._target.apply.shared and not has_rows(self._target.path, self._table)

    def run(self) -> None:
        """Rewrites the table, or only brings it level if a killed process has rewritten it. Raises TargetError if there
        is no way."""
        way, why = self.way() if self.changes else ("lake", [])
        if way == "lake":
            _from_lake(self._config, self._table)
        elif way == "store":
            replay(self._config, Replay([self._table]))
        elif way == "source":
            take_snapshots(self._config, [self._table], whole=True)
        else:
            raise TargetError(
                f"the values in the lake cannot get the policies of the configuration: {'; '.join(why)}",
                place=f"table {self._table} at {self._target.path}",
                remedy="Set the policies back; or move the table away, and load it with "
                f"`cdc snapshot {self._config.name} {self._table}`.",
            )

    def rewrite(self, mine: Job) -> None:
        """Writes the table's own rows anew, in one commit."""
        target, state, schema = self._target, self._state, self._schema
        assert state is not None and schema is not None
        position = load_position(mine, position_of(state))
        rebuild = Rebuild("remask", uuid.uuid4().hex)
        with table_sessions(self._config).one() as session, ExitStack() as functions:
            require_catalog(session.spark, self._config)

            def hash_of(source: str, kind: t.DataType) -> Callable[[str], str]:
                return functions.enter_context(self._hash_function(session.spark, source, kind))

            rewrite = rewrite_of(target, state, schema, self.changes, hash_of)
            with careful_parquet(session.spark) if has_large_values(state) else nullcontext():
                if target.apply.shared:
                    self._replace_own_rows(session, rewrite, position, rebuild)
                else:
                    self._replace(session, rewrite, position, rebuild)
            finish(session.spark, self._config, target, mine.comments())

    def _hash_function(
        self, spark: SparkSession, source: str, kind: t.DataType
    ) -> AbstractContextManager[Callable[[str], str]]:
        from cdc.lake.rows.value_hashes import hash_function  # loads pandas

        assert self._schema is not None and self._target.policies.key is not None
        columns = columns_of_schema(self._schema, self._target.policies).policies.columns
        digits = next(c.source.digits for c in columns if c.source.name.lower() == source.lower())
        return hash_function(spark, kind, self._target.policies.key, digits)

    def _replace(self, session: TableSession, rewrite: Rewrite, position: LoadPosition, rebuild: Rebuild) -> None:
        target, state, schema = self._target, self._state, self._schema
        assert state is not None and schema is not None
        generation, begins = state.generation + 1, begins_of(state.properties)
        origin = TableOrigin(
            position.server_uuid, position.epoch, position.seq, generation, SchemaRecord(position.seq, schema)
        )
        columns = rewrite.columns
        if is_empty := self._is_empty():
            fields = columns_of_schema(schema, target.policies).fields
            columns = tuple(PlannedColumn(field.name, field.dataType, None) for field in fields)
        properties = properties_after(target, columns, schema, origin, (state, state))
        properties.pop(COMMENTS_PROPERTY, None)  # they are made anew
        properties[BEGINS_PROPERTY] = "" if begins is None else str(begins)
        statement = rewrite_statement(target, columns, properties, state, is_empty=is_empty)
        with carrying(session.spark, target, position, generation, rebuild):
            session.spark.sql(statement).collect()

    def _replace_own_rows(
        self, session: TableSession, rewrite: Rewrite, position: LoadPosition, rebuild: Rebuild
    ) -> None:
        target, state, schema = self._target, self._state, self._schema
        assert state is not None and schema is not None
        columns = columns_of_schema(schema, target.policies)
        rows = session.spark.sql(rows_query(target, rewrite.columns, state, where=target.own_rows or ""))
        load = Load(target, state, columns, schema.primary_key, position, rebuild, schema)
        replace_own_rows(session, load, rows, begins_of(state.properties))


def _from_lake(config: DestinationConfig, table: str) -> None:
    subscription = _subscription(config)
    # What waits for a snapshot, or was taken back, waits for it afterwards as well.
    record = subscription.parked.get(table) or ParkedTable(
        due="retry", reason=UNDER_WAY, since=datetime.now(UTC), keep_seq=subscription.position()
    )
    with job(config, table, record) as mine:
        try:
            case = _Case(config, table)  # as it is now that nobody else changes it
            if case.changes:
                try:
                    case.rewrite(mine)
                except CdcError:
                    raise
                except Exception as error:
                    raise explain(error, table) from error
            if record.due == "retry":
                bring_level(mine, record.keep_seq or 0)
        except CdcError as error:
            mine.note(error)
            raise


def _delete(config: DestinationConfig, table: str) -> int:
    """Deletes at once what has the old values, and returns the number of the table's files."""
    with parking.job_lock(open_meta(config), table):
        deleted = vacuum_at_once(table_sessions(config), config, table)
        for files in old_snapshots(config, table):
            files.remove()
    return deleted
