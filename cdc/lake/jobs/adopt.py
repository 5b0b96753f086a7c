"""Takes over a Delta table that another tool has made, without loading it again.

Its columns become those that Towpath would give it. Its rows are compared with the source by sums. The rows of the
parts that differ are read from the source, and one commit brings the table to the state of the source at one position,
as :mod:`cdc.lake.jobs.part` does for a part of a table. Only the rows that differ are written. Then the table gets its
owner and its position, and follows the stream. Decision 0158 has the reasons.

The table belongs to the other tool until it has a position and no commit of anybody else lies below it. It is parked
meanwhile, so that apply goes on with the other tables. Called again after a kill, it goes on.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from cdc.base.errors import (
    CdcError,
    CutOffError,
    RetryableError,
    SchemaChangedError,
    TargetError,
    UnsupportedError,
    UsageError,
)
from cdc.base.log import get_logger
from cdc.base.targets import BEGINS_PROPERTY, DESTINATION_PROPERTY, GENERATION_PROPERTY, MODE_COLUMNS
from cdc.client import open_meta, open_store
from cdc.lake.apply.commit import Commit
from cdc.lake.apply.foreign_keys.jobs import is_reached
from cdc.lake.apply.full_state import replace_part
from cdc.lake.apply.merge import RowKeys
from cdc.lake.apply.rows import latest, require_keys, with_variants
from cdc.lake.apply.schema.columns import MAPPING, WIDENING, Goals, is_mapped
from cdc.lake.apply.schema.spark_lake import alter
from cdc.lake.delta.catalog import require_catalog
from cdc.lake.delta.log import TRANSACTION_RETENTION, commits_since
from cdc.lake.delta.present_rows import matched
from cdc.lake.delta.proof import position_of
from cdc.lake.delta.sql import literal, quote
from cdc.lake.delta.tables import TableOrigin, feature_properties, properties_of, schema_of, sql_properties, target_of
from cdc.lake.delta.tracked import SchemaRecord
from cdc.lake.jobs.adopt_columns import ColumnPlan, Tool, plan_columns, rewritten
from cdc.lake.jobs.adopt_compare import Compared, compare
from cdc.lake.jobs.columns import UnusableError
from cdc.lake.jobs.generations import MAX_COLUMN_ID, Load, LoadPosition, Rebuild, finish, load_position, user_metadata
from cdc.lake.jobs.job import SUBSCRIBER, Job, job, require_included, table_sessions
from cdc.lake.jobs.load import state_of_snapshot, stored_changes
from cdc.lake.jobs.read_snapshot import read_in_spark
from cdc.lake.jobs.results import TableAdoption
from cdc.lake.jobs.retry import bring_level
from cdc.lake.jobs.snapshot import ATTEMPTS, require_subscriber, safe_low, wait_for_store
from cdc.lake.rows.columns import columns_of_schema
from cdc.lake.runtime.commit_metadata import commit_metadata
from cdc.lake.runtime.failures import explain
from cdc.lake.runtime.session import METADATA, acquire, setting_of
from cdc.lake.runtime.spark_settings import in_process
from cdc.lake.verify.lake import in_buckets
from cdc.meta import ParkedTable, Subscription
from cdc.source.connection import require_server
from cdc.source.snapshot import take_all

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from cdc.binlog.sql.schemas import TableSchema
    from cdc.config import DestinationConfig
    from cdc.lake.delta.log import DeltaState
    from cdc.lake.delta.tables import Target
    from cdc.lake.jobs.values import Adopt
    from cdc.lake.runtime.session import TableSession
    from cdc.source.snapshot import SnapshotFiles

MODES = ("upsert", "soft_delete")
_KIND = "adopt"
_ID = "adoption"
"""Key of the user metadata of the commits of one adoption: its id."""
ADOPTED_PROPERTY = "towpath.adopted"
"""Delta table property: which tool the table comes from, and the version before it got its owner, as JSON."""
_BOUND = {"delta.generationExpression", "delta.identity.start", "CURRENT_DEFAULT", "delta.invariants"}
"""Metadata of columns that a CREATE TABLE … AS SELECT does not keep."""
_UTC = {"spark.sql.session.timeZone": "UTC"}
_log = get_logger(__name__)
Progress = Callable[[str], object]


def _nothing(step: str) -> None:
    """The default of :data:`before_step`."""


before_step: Callable[[str], None] = _nothing
"""Hook: called with the name of each step that writes, right before it. Tests stop there."""


def adopt(config: DestinationConfig, request: Adopt, progress: Progress = lambda _: None) -> TableAdoption:
    """Takes over a table, or says what would be done (``request.dry_run``).

    Raises UsageError, UnsupportedError and TargetError for a table that cannot be taken over, RetryableError if another
    program writes to it, LeaseHeldError, and what reading the source raises.
    """
    began = time.monotonic()
    require_server(config.source, "an adoption")
    require_included(config, request.table)
    meta = open_meta(config)
    identity, newest = meta.source(), open_store(config).newest_schemas()
    if identity is None or newest is None:
        raise UsageError(
            "nothing was captured yet, and the table is to follow what capture stores",
            place=config.name,
            remedy=f"Start `cdc capture {config.name}` first, and leave it running.",
        )
    config = config.at_server(identity.address)
    if request.table not in newest[1].tables:
        raise UsageError(f"the source has no table {request.table}", place=config.name, remedy="Check the name.")
    target = target_of(config, request.table)
    _require_possible(config, target, request.tool)
    case = _Case(config, target, request, progress)
    if request.dry_run:
        result = case.described()
    else:
        require_subscriber(config)
        reader = open_store(config)
        reason = _reason(config, request)
        record = ParkedTable(due="hold", reason=reason, since=datetime.now(UTC), keep_seq=safe_low(reader))
        with job(config, target.table, record) as mine:
            result = case.run(mine)
    return replace(result, seconds=round(time.monotonic() - began, 3))


def _reason(config: DestinationConfig, request: Adopt) -> str:
    """Returns why a table is parked meanwhile."""
    return f"The table is being taken over. Run `cdc adopt {config.name} {request.table} --from {request.tool}`."


def _require_possible(config: DestinationConfig, target: Target, tool: str) -> None:
    """Raises an error for a table that cannot be taken over, before anything is changed."""
    place = f"table {target.table} at {target.path}"
    if target.apply.mode not in MODES:
        raise UnsupportedError(
            f"mode {target.apply.mode} keeps a history of changes, which the other tool's table does not have in "
            "Towpath's form",
            place=place,
            remedy="Set mode upsert or soft_delete for the table (tables.overrides); or move the table away as an "
            f"archive, and begin the history with `cdc snapshot {config.name} {target.table}`.",
        )
    if target.apply.shared:
        raise UnsupportedError(
            "a table that several source tables fill (tables.route) cannot be taken over"
            if target.is_routed
            else "a table that several destinations share (apply.shared) cannot be taken over",
            place=place,
            remedy="Lead the table elsewhere, or load it with `cdc snapshot`."
            if target.is_routed
            else "Set apply.shared: false for the table, or load it with `cdc snapshot`.",
        )
    state = target.state()
    if state is None:
        raise TargetError(
            "there is no Delta table that could be taken over",
            place=place,
            remedy="Move the other tool's table there with all its files (a Delta table may be moved), or change "
            f"apply.target; or load the table with `cdc snapshot {config.name} {target.table}`.",
        )
    owner = state.properties.get(DESTINATION_PROPERTY)
    if owner is not None and owner != target.destination:
        raise TargetError(
            f"the Delta table belongs to the destination {owner!r}",
            place=place,
            remedy="Give this destination another apply.target; or remove the other destination first.",
        )
    subscription = open_meta(config).read().subscriptions.get(SUBSCRIBER) or Subscription()
    if owner is not None and not _is_under_way(subscription, target.table):
        raise UsageError(
            "the Delta table belongs to this destination already",
            place=place,
            remedy=f"Compare it with `cdc verify {config.name} {target.table}`; load parts of it with `cdc snapshot "
            "--keys`.",
        )
    if owner is None and subscription.table(target.table) is not None:
        raise TargetError(
            "this destination has had another Delta table of it, which is gone",
            place=place,
            remedy="Put that back; or take the table over in a destination of its own.",
        )


def _is_under_way(subscription: Subscription, table: str) -> bool:
    parked = subscription.parked.get(table)
    return parked is not None and parked.due == "hold" and "`cdc adopt " in parked.reason


@dataclass(frozen=True)
class _Stamp:
    """The position that a table is brought to, and the source's definition there."""

    position: LoadPosition
    schema: TableSchema
    low_seq: int
    version: int
    """The version of the Delta table that has it."""


class _Case:
    """A table that is taken over."""

    def __init__(self, config: DestinationConfig, target: Target, request: Adopt, progress: Progress) -> None:
        self._config, self._target, self._request, self._progress = config, target, request, progress
        self._meta = open_meta(config)
        self._place = f"table {target.table} at {target.path}"
        self._id = uuid.uuid4().hex
        begins = open_store(config).beginning()
        self._since = (0, 0) if begins is None else (begins.seq, begins.time_us)

    # --- what would be done

    def described(self) -> TableAdoption:
        state = self._state()
        planned = self._plan(state)
        result = self._result(planned, state)
        if planned.rewrites:
            why = "its columns are converted first"
            return replace(result, not_compared=why)
        with table_sessions(self._config).one() as session:
            self._progress("comparing with the source")
            compared = compare(self._config, self._meta, session, (self._target, state))
        return self._with(result, compared)

    def _plan(self, state: DeltaState, schema: TableSchema | None = None) -> ColumnPlan:
        """Returns what the columns become. ``schema``: the source's; None: as the store has it last."""
        if schema is None:
            newest = open_store(self._config).newest_schemas()
            assert newest is not None  # adopt() has looked
            schema = newest[1].tables[self._target.table]
        tool: Tool = self._request.tool  # type: ignore[assignment] # the command has looked
        planned = plan_columns(self._target, state, schema, tool, self._request.dropped, self._since)
        keys = require_keys(self._target.table, self._target.apply.keys, schema.primary_key, schema.column_names)
        names = {column.was.name.lower() for column in planned.columns if column.was is not None}
        for key in columns_of_schema(schema, self._target.policies).keys(keys):
            if key.lower() not in names:
                raise UnsupportedError(
                    f"the Delta table lacks the column {key} of the key, so its rows cannot be told apart",
                    place=self._place,
                    remedy=f"Load the table with `cdc snapshot {self._config.name} {self._target.table}` after moving "
                    "this one away.",
                )
        return planned

    def _result(self, planned: ColumnPlan, state: DeltaState) -> TableAdoption:
        return TableAdoption(
            table=self._target.table,
            path=self._target.path,
            columns=list(planned.actions),
            rewritten=planned.rewrites,
            version_before=state.version,
        )

    def _with(self, result: TableAdoption, compared: Compared) -> TableAdoption:
        return replace(
            result,
            ranges=max(compared.buckets.count, len(compared.bad)),
            differing=len(compared.bad),
            rows=compared.rows,
            not_compared=compared.why_all,
        )

    # --- the work

    def run(self, mine: Job) -> TableAdoption:
        """Takes the table over, and brings it level."""
        try:
            result = self._continued()
            if result is None:
                with table_sessions(self._config).one() as session:
                    require_catalog(session.spark, self._config)
                    state = self._state()
                    planned = self._plan(state)
                    result = self._result(planned, state)
                    self._reshape(session, state, planned)
                    result, stamp = self._repaired(session, mine, result)
                    self._stamp(session, stamp, result.version_before)
        except CdcError as error:
            self._note(mine, error)
            raise
        except Exception as error:
            failure = explain(error, self._target.table)
            self._note(mine, failure)
            raise failure from error
        return self._finished(mine, result)

    def _note(self, mine: Job, failure: CdcError) -> None:
        """Records why the table is still parked."""
        mine.mark("hold", f"{_reason(self._config, self._request)} The last try has failed: {failure}", mine.keep_seq())

    def _continued(self) -> TableAdoption | None:
        """Looks at what a killed process has left. Returns its result if the table has owner and position, and no
        commit of anybody else lies below them; else takes the owner back, and returns None."""
        state = self._state()
        if DESTINATION_PROPERTY not in state.properties:
            return None
        record = json.loads(state.properties.get(ADOPTED_PROPERTY, "{}"))
        strange = self._strange(state, int(record.get("version", state.version)), str(record.get("id")))
        if strange or not state.applied_seq:
            _log.warning("the adoption begins anew", table=self._target.table, commits=strange)
            with table_sessions(self._config).one() as session:
                self._take_back(session, state)
            return None
        result = TableAdoption(self._target.table, self._target.path, [], rewritten=False)
        return replace(result, version_before=record.get("before"))

    def _finished(self, mine: Job, result: TableAdoption) -> TableAdoption:
        """Brings the table level, as apply would."""
        seq = position_of(self._state())
        mine.mark("retry", "The table is taken over, and the changes behind its position follow.", seq)
        self._progress("applying the changes since then")
        with table_sessions(self._config).one() as session:
            finish(session.spark, self._config, self._target, mine.comments())
        bring_level(mine, seq)
        state = self._state()
        return replace(result, done=True, delta_version=state.version, applied_seq=position_of(state))

    def _state(self) -> DeltaState:
        state = self._target.state()
        if state is None:
            raise TargetError("the Delta table is gone", place=self._place)
        return state

    # --- columns

    def _reshape(self, session: TableSession, state: DeltaState, planned: ColumnPlan) -> None:
        if not planned.changes:
            return
        self._progress("changing columns")
        before_step("columns")
        if planned.rewrites:
            self._rewrite(session, state, planned)
            return
        properties: dict[str, str] = {}
        stay = {column.was for column in planned.columns if column.was is not None}
        if not is_mapped(state) and any(column not in stay for column in planned.present):
            properties |= MAPPING
        if any(column.was is not None and column.was.type != column.type for column in planned.columns):
            properties |= WIDENING
        if properties:
            session.spark.sql(f"ALTER TABLE {self._target.sql} SET TBLPROPERTIES ({sql_properties(properties)})")
        former = {column.physical: column.name for column in planned.present}
        goals = Goals(tuple(column.goal({}) for column in planned.columns), former, {})
        alter(self._target, goals, lambda statement: session.spark.sql(statement).collect())

    def _rewrite(self, session: TableSession, state: DeltaState, planned: ColumnPlan) -> None:
        """Writes the table anew, with the same layout and properties."""
        spark, target = session.spark, self._target
        fields = json.loads(state.schema_json)["fields"]
        bound = [field["name"] for field in fields if {*field["metadata"]} & _BOUND]
        bound += [name for name in state.properties if name.startswith("delta.constraints.")]
        if bound:
            raise UnsupportedError(
                "columns have to be converted, and the table has generated columns, defaults or constraints "
                f"({', '.join(bound)}), which would not outlive that",
                place=self._place,
                remedy="Drop them first (ALTER TABLE), or convert the columns yourself.",
            )
        detail = spark.sql(f"DESCRIBE DETAIL {target.sql}").collect()[0].asDict()
        clause = ""
        if state.partition_by:
            clause = f" PARTITIONED BY ({', '.join(map(quote, state.partition_by))})"
        elif detail.get("clusteringColumns"):
            clause = f" CLUSTER BY ({', '.join(detail['clusteringColumns'])})"
        if state.description:
            clause += f" COMMENT {literal(state.description)}"
        kept = {name: value for name, value in state.properties.items() if name != MAX_COLUMN_ID}
        kept |= feature_properties(column.type for column in planned.columns)
        listed = f" TBLPROPERTIES ({sql_properties(kept)})" if kept else ""
        present = [name for name in MODE_COLUMNS[target.apply.mode] if name not in planned.mode_values]
        chosen = rewritten(planned.columns, planned.mode_values, present)
        with setting_of(spark, _UTC):
            spark.sql(
                f"CREATE OR REPLACE TABLE {target.sql} USING delta{clause}{listed} AS "  # noqa: S608 - names are quoted
                f"SELECT {chosen} FROM {target.sql} VERSION AS OF {state.version}"
            ).collect()

    # --- rows

    def _repaired(self, session: TableSession, mine: Job, result: TableAdoption) -> tuple[TableAdoption, _Stamp]:
        """Brings the rows to the state of the source at one position."""
        for attempt in range(1, ATTEMPTS + 1):
            state, files = self._state(), None
            try:
                self._progress("comparing with the source")
                compared = compare(
                    self._config,
                    self._meta,
                    session,
                    (self._target, state),
                    lambda: self._progress("waiting for capture"),
                )
                if (planned := self._plan(state, compared.schema)).changes:
                    self._reshape(session, state, planned)
                    raise SchemaChangedError("the store does not have the last DDL statement yet", place=self._place)
                result = self._with(result, compared)
                if compared.bad:
                    files = self._read(mine, compared)
                stamp, repaired = self._repair(session, mine, state, compared, files)
            except (SchemaChangedError, UnusableError) as error:
                if attempt == ATTEMPTS:
                    raise
                _log.warning("the comparison begins anew", table=self._target.table, reason=str(error))
                if files is not None:
                    files.remove()
                continue
            read = 0 if files is None else sum(record.rows for record in files.records())
            if files is not None:
                files.remove()
            return replace(result, read=read, repaired=repaired), stamp
        raise AssertionError("the last attempt returns or raises")

    def _read(self, mine: Job, compared: Compared) -> SnapshotFiles:
        """Reads the rows of the buckets that differ from the source."""
        table, source, part = self._target.table, self._meta.source(), compared.part
        assert source is not None  # adopt() has looked
        self._progress(f"reading {len(compared.bad)} of {compared.buckets.count} parts from the source")
        read = None
        if not in_process(self._config.spark):
            read = read_in_spark(acquire(self._config.spark).spark)
        parts = None if part is None else {table: part}
        outcome = take_all(self._config, [table], source, read=read, parts=parts)[table]
        if isinstance(outcome, CdcError):
            raise outcome
        wait_for_store(mine, mine.batches.reader, outcome.high_seq())
        return outcome

    def _repair(
        self, session: TableSession, mine: Job, state: DeltaState, compared: Compared, files: SnapshotFiles | None
    ) -> tuple[_Stamp, int]:
        """Writes the rows that differ. Returns the position that the table has then, and the number of keys."""
        table, schema = self._target.table, compared.schema
        low, high = compared.low_seq, compared.high_seq
        if files is not None:
            if files.info.definition != schema:
                raise SchemaChangedError("the table was altered while it was compared", place=f"table {table}")
            try:
                low = min(low, files.low_seq(mine.batches.reader, is_complete=True))
            except CdcError as error:
                if not error.retryable:
                    raise
                raise UnusableError(error.message, place=f"table {table}", remedy="Call the command again.") from error
            high = max(high, files.high_seq())
        columns = columns_of_schema(schema, self._target.policies)
        sources = require_keys(table, self._target.apply.keys, schema.primary_key, schema.column_names)
        keys = RowKeys(columns.keys(sources), {*sources} == {*schema.primary_key})
        position = load_position(mine, high)
        load = Load(self._target, None, columns, schema.primary_key, position, Rebuild(_KIND, self._id, low), schema)
        try:
            if is_reached(self._config, table, mine.batches, low, high):
                raise UnusableError(
                    "foreign keys may have changed rows while the table was compared",
                    place=f"table {table}",
                    remedy="Take the table over while the tables that it refers to do not change.",
                )
            with mine.batches.next(table, low, high, whole=True) as manifest:
                if manifest is not None and (manifest.ddl or mine.has_changes(manifest.last_seq, high)):
                    raise SchemaChangedError("a DDL statement changed the table meanwhile", place=f"table {table}")
                changes = None if manifest is None else stored_changes(session, load, manifest, keys, low)
                self._progress("writing the rows that differ")
                repaired = self._merge(session, state, compared, files, load, keys, changes)
        except CutOffError as error:
            raise UnusableError(error.message, place=f"table {table}", remedy="Call the command again.") from error
        now = self._state()
        self._require_alone(now, state.version)
        return _Stamp(position, schema, low, now.version), repaired

    def _merge(
        self,
        session: TableSession,
        state: DeltaState,
        compared: Compared,
        files: SnapshotFiles | None,
        load: Load,
        keys: RowKeys,
        changes: DataFrame | None,
    ) -> int:
        if not compared.bad and changes is None:
            return 0
        columns, names = load.columns, keys.names
        rows = state_of_snapshot(session.spark, [] if files is None else files.paths(), columns, names, changes)
        rows = self._shaped(with_variants(rows, columns.variants), state)
        types = {field.name.lower(): field.dataType for field in rows.schema.fields}
        is_part = in_buckets(compared.columns, compared.buckets, compared.bad, types)
        also, chosen = None, rows.where(is_part)
        if changes is not None:
            also = latest(changes, names).select(*[quote(name) for name in names])
            chosen = chosen.unionByName(matched(rows.where(~is_part), also, names, "left_semi"))
        before_step("rows")
        commit = Commit(
            session,
            self._target,
            state,
            state.version,
            commit_metadata({_ID: self._id, "table": self._target.table}),
            lambda: None,
            application=f"{self._target.application_id(state)}:{_KIND}",
        )
        moment = datetime.fromtimestamp(load.position.time_us / 1e6, UTC)
        nullable = replace(keys, is_primary=False)  # nobody knows whether the other tool has written rows without a key
        return replace_part(commit, chosen, is_part, nullable, (load.position.seq, moment), is_of_keys=True, also=also)

    def _shaped(self, rows: DataFrame, state: DeltaState) -> DataFrame:
        """Returns rows in the types that the Delta table has, which hold those of the source."""
        own = {field.name.lower(): field for field in rows.schema.fields}
        chosen = [field for field in schema_of(state).fields if field.name.lower() in own]
        return rows.select(*[f.col(quote(own[x.name.lower()].name)).cast(x.dataType).alias(x.name) for x in chosen])

    # --- owner and position

    def _require_alone(self, state: DeltaState, version: int) -> None:
        """Raises RetryableError if somebody else has committed to the table after a version."""
        strange = self._strange(state, version, self._id)
        if strange:
            raise RetryableError(
                f"another program has written to the table meanwhile: {', '.join(strange)}",
                place=self._place,
                remedy="Stop the tool that has written the table so far, and its maintenance; then call the command "
                "again. The table is not taken over yet.",
            )

    def _strange(self, state: DeltaState, version: int, adoption: str) -> list[str]:
        """Returns the commits after a version that are not of this adoption, in words."""
        commits = {int(commit["version"]): commit for commit in commits_since(state, self._target.table, version)}
        strange = []
        for number in range(version + 1, state.version + 1):
            commit = commits.get(number, {})
            if adoption not in str(commit.get("userMetadata")):
                strange.append(f"version {number} ({commit.get('operation', 'unknown')})")
        return strange

    def _stamp(self, session: TableSession, stamp: _Stamp, before: int | None) -> None:
        """Gives the table its owner and its position. Takes both back if somebody else has committed meanwhile."""
        state, target = self._state(), self._target
        self._require_alone(state, stamp.version)
        generation = state.generation + 1 if GENERATION_PROPERTY in state.properties else 0
        seq = stamp.position.seq
        origin = TableOrigin(
            stamp.position.server_uuid, stamp.position.epoch, seq, generation, SchemaRecord(seq, stamp.schema)
        )
        columns = columns_of_schema(stamp.schema, target.policies)
        wanted = properties_of(target, columns, stamp.schema.primary_key, origin)
        properties = {name: value for name, value in wanted.items() if name.startswith("towpath.")}
        properties[TRANSACTION_RETENTION] = wanted[TRANSACTION_RETENTION]
        properties[BEGINS_PROPERTY] = ""  # it has rows that the store's changes did not make
        properties[ADOPTED_PROPERTY] = json.dumps(
            {"id": self._id, "from": self._request.tool, "version": stamp.version, "before": before}
        )
        self._progress("stamping the position")
        before_step("owner")
        rebuild = Rebuild(_KIND, self._id, stamp.low_seq)
        with setting_of(session.spark, {METADATA: commit_metadata({_ID: self._id})}):
            session.spark.sql(f"ALTER TABLE {target.sql} SET TBLPROPERTIES ({sql_properties(properties)})").collect()
        before_step("position")
        owned = self._state()
        metadata = user_metadata(target, stamp.position, owned.generation, rebuild)
        Commit(session, target, owned, seq, metadata, lambda: None).execute(None)
        before_step("check")
        now = self._state()
        if strange := self._strange(now, stamp.version, self._id):
            self._take_back(session, now)
            raise RetryableError(
                f"another program has written to the table meanwhile: {', '.join(strange)}",
                place=self._place,
                remedy="Stop the tool that has written the table so far; then call the command again. The table is not "
                "taken over.",
            )

    def _take_back(self, session: TableSession, state: DeltaState) -> None:
        """Removes the owner of a table that has got it too early. The generation stays, so that the next one rises."""
        names = [name for name in state.properties if name.startswith("towpath.") and name != GENERATION_PROPERTY]
        listed = ", ".join(map(literal, names))
        session.spark.sql(f"ALTER TABLE {self._target.sql} UNSET TBLPROPERTIES IF EXISTS ({listed})").collect()
