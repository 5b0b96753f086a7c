"""Plans the statements of a migration one after the other, by the code that apply runs."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from cdc.base.errors import CdcError, NeedsSnapshotError, UnsupportedDdlError
from cdc.base.targets import GENERATION_PROPERTY, split_table
from cdc.batches.manifest import Manifest, Position, Positions
from cdc.binlog.events import QueryEvent
from cdc.binlog.sql.changes import (
    Change,
    CreateTable,
    DropDatabase,
    DropTable,
    RenameTable,
    TableName,
    table_of,
)
from cdc.binlog.sql.moment import Moment
from cdc.binlog.sql.schemas import KnownPartitions, TableSchema
from cdc.binlog.sql.server import LATEST, ServerVersion
from cdc.binlog.sql.statements import Statement, classify
from cdc.binlog.sql.track import apply_changes
from cdc.binlog.sql.types import with_table_charset
from cdc.capture.alter_search import UnstoredNumbers
from cdc.capture.partition_history import PartitionHistory
from cdc.capture.statement_filter import StatementFilter
from cdc.lake.apply.ddl import require_configured, require_known_tables
from cdc.lake.apply.rows import require_keys
from cdc.lake.apply.schema.evolve import Surroundings
from cdc.lake.apply.schema.statements import DdlStatement, TableEffect, effect_on
from cdc.lake.apply.shared_evolution import evolution_of
from cdc.lake.delta.tables import Target, target_of
from cdc.lake.delta.tracked import records
from cdc.lake.migration.lake_tables import LakeTable
from cdc.lake.migration.planned_lake import PlannedLake, Step, planned_state
from cdc.lake.migration.script import ScriptStatement, sql_mode_set_by, time_zone_set_by

if TYPE_CHECKING:
    from cdc.binlog.sql.schemas import Schemas
    from cdc.config import DestinationConfig
    from cdc.lake.delta.log import DeltaState

Kind = Literal["none", "rows", "in place", "rewrite", "snapshot", "refused", "wrong"]
"""``none``: the Delta table stays as it is. ``rows``: the statement changes rows, which come by the stream. ``in
place``: the Delta table follows by its log, or without writing rows that stay. ``rewrite``: it follows, and rows are
written anew. ``snapshot``: rows or columns must be read from the source beside the stream. ``refused``: apply or
capture refuses the statement. ``wrong``: the statement cannot be planned, because its text or its table is wrong."""
ORDER: tuple[Kind, ...] = ("none", "rows", "in place", "rewrite", "snapshot", "refused", "wrong")
"""From the lightest to the gravest."""
_WORK: dict[Step, str] = {
    "create": "an empty Delta table is made",
    "fill": "old rows get their values by an UPDATE",
    "rewrite": "the table is written anew from its own rows",
    "remove": "rows are removed, marked or closed",
    "empty": "all rows are removed",
    "move": "the rows of a partition come or go, as the merge of the batch",
}
_LONGEST_SHOWN = 300
_IF_EXISTS = re.compile(r"\s*ALTER\s+(?:ONLINE\s+|IGNORE\s+)*TABLE\s+IF\s+EXISTS\b", re.IGNORECASE)


@dataclass(frozen=True)
class TableVerdict:
    """What a statement does to one table."""

    table: str
    """``db.table``."""
    mode: str | None
    """The mode of the Delta table; None if the table is not captured."""
    kind: Kind
    reason: str = ""
    """Why, or what is done, as a sentence or a clause."""
    remedy: str = ""
    columns: tuple[str, ...] = ()
    """For ``snapshot``: the columns that it reads beside the key; empty: the whole table."""
    steps: tuple[Step, ...] = ()
    unless: TableVerdict | None = None
    """The verdict if a row fulfils one of :attr:`conditions`; None if the verdict does not depend on rows."""
    conditions: tuple[str, ...] = ()
    """What only the rows tell: SQL conditions over the Delta table."""
    before: DeltaState | None = None
    """The Delta table before the statement; None if it is new, or not captured."""
    after: DeltaState | None = None
    """The Delta table after it, or after the snapshot that it needs."""

    @property
    def gravest(self) -> Kind:
        """The kind in the worse case."""
        return self.kind if self.unless is None else max(self.kind, self.unless.kind, key=ORDER.index)


@dataclass(frozen=True)
class Session:
    """The session in which a migration runs, as far as the effect of its statements depends on it."""

    server: ServerVersion
    sql_mode: int
    database: str = ""
    time_zone: str = "SYSTEM"


@dataclass(frozen=True)
class StatementVerdict:
    """What a statement does to all tables."""

    statement: ScriptStatement
    verb: str
    tables: tuple[TableVerdict, ...]
    remark: str = ""
    """For a statement that concerns no table."""
    error: str = ""
    """Why the statement cannot be planned."""
    session: Session = field(default_factory=lambda: Session(LATEST, 0))
    """The session in which it runs."""
    definitions: Mapping[str, TableSchema | None] = field(default_factory=dict)
    """All tables after it, by ``db.table``; None: only a server tells it."""

    @property
    def kind(self) -> Kind:
        """The gravest verdict."""
        if self.error:
            return "wrong"
        return max((table.gravest for table in self.tables), key=ORDER.index, default="none")


def _no_table(target: Target) -> LakeTable | None:
    return None


@dataclass
class Planner:
    """The tables of a destination on their way through a migration."""

    config: DestinationConfig
    schemas: Schemas
    """The definitions before the migration."""
    session: Session
    lake_table: Callable[[Target], LakeTable | None] = _no_table
    """Returns the Delta table of a target; None if it is not there, or not at hand."""
    seq: int = 0
    """The seq behind which the migration comes."""
    waiting: Collection[str] = ()
    """The tables that wait for their first snapshot, by ``db.table``: apply leaves them out until then."""
    lake: dict[str, LakeTable] = field(default_factory=dict)
    """The Delta tables of the statements so far, by ``db.table``."""

    def __post_init__(self) -> None:
        self.tables: dict[str, TableSchema | None] = dict(self.schemas.tables)
        """The definitions after the statements so far, by ``db.table``; None: only a server tells it."""
        self._states: dict[str, DeltaState] = {}
        self._empty: set[str] = set()
        self._begun: set[str] = set()
        self._database, self._sql_mode = self.session.database, self.session.sql_mode
        self._time_zone = self.session.time_zone
        numbers = UnstoredNumbers()
        for table in self.tables:
            numbers.number(table)
        self._filter = StatementFilter(self.config.tables, numbers)
        self._filter.engine_of = self.schemas.engine_of
        self._partitions = PartitionHistory(self.config.tables, lambda names: ({}, 0))
        self._partitions.definitions = {
            name: KnownPartitions(clause=partitions.clause)
            for name, partitions in (self.schemas.partitions or {}).items()
        }
        self._zone = self.schemas.system_zone or ((0, 0),)
        self._errors: dict[str, CdcError] = {}

    def run(self, statements: Iterable[ScriptStatement]) -> list[StatementVerdict]:
        """Returns the verdict of each statement, after those before it."""
        verdicts = [self.plan(statement) for statement in statements]
        return [replace(v, tables=tuple(map(self._with_keys, v.tables))) for v in verdicts]

    def _with_keys(self, verdict: TableVerdict) -> TableVerdict:
        """Refuses a table that was created, and whose rows apply cannot tell apart once the migration has ended."""
        schema, apply = self.tables.get(verdict.table), self.config.table_apply(verdict.table)
        if "create" not in verdict.steps or schema is None or apply.mode == "append":
            return verdict
        try:
            require_keys(verdict.table, apply.keys, schema.primary_key, schema.column_names)
        except CdcError as error:
            return replace(verdict, kind="refused", reason=error.message, remedy=error.remedy or "")
        return verdict

    def plan(self, script: ScriptStatement) -> StatementVerdict:
        """Returns the verdict of the next statement."""
        session = Session(self.session.server, self._sql_mode, self._database, self._time_zone)
        return replace(self._plan(script), session=session, definitions=self.tables)

    def _plan(self, script: ScriptStatement) -> StatementVerdict:
        self.seq += 1
        sql = script.sql
        statement = classify(
            sql,
            self._database,
            self._sql_mode,
            self.session.server,
            ignores_case=self.config.tables.ignores_case,
            moment=self._moment(),
        )
        if statement.kind == "dml":
            return StatementVerdict(script, statement.verb, tuple(self._rows(statement)))
        if statement.kind in ("other", "transaction"):
            self._database = _database_of(sql) or self._database if statement.verb == "USE" else self._database
            self._sql_mode = sql_mode_set_by(sql, self._sql_mode, self.session.sql_mode)
            self._time_zone = time_zone_set_by(sql, self._time_zone, self.session.time_zone)
            return StatementVerdict(script, statement.verb, (), "it defines no table")
        if statement.kind == "unknown":
            return StatementVerdict(script, statement.verb, (), error="it is no statement that Towpath understands")
        if any(not db for db, _ in statement.tables):
            return StatementVerdict(
                script, statement.verb, (), error="its table has no database: write USE before it, or give --database"
            )
        return self._plan_ddl(script, replace(statement, changes=tuple(map(_as_logged, statement.changes))))

    # --- one statement ---------------------------------------------------------------------------------------------

    def _plan_ddl(self, script: ScriptStatement, statement: Statement) -> StatementVerdict:
        names = self._named(statement)
        captured = [name for name in names if self._is_captured(name)]
        for name in captured:
            self._begin(name)
        try:
            self._filter.statement(self._event(script.sql), f"line {script.line}")
            require_known_tables(statement, _shown(script.sql), f"line {script.line}", self.config.name)
        except CdcError as error:
            refused = tuple(self._verdict(name, _refused(error)) for name in captured)
            return StatementVerdict(script, statement.verb, refused, "" if refused else error.message)
        zone_offset_s = self._moment().zone_offset_s
        ddl = DdlStatement(self.seq, script.sql, self._sql_mode, statement, datetime.now(UTC), None, zone_offset_s)
        self._partitions.follow(self.seq, statement.changes)
        tables = self._followed(ddl)
        outcomes = {name: self._outcome(name, ddl, tables.get(name)) for name in captured}
        verdicts = tuple(
            self._verdict(name, outcomes[name].verdict, outcomes[name].state)
            if name in outcomes
            else TableVerdict(name, None, "none", "the table is not captured")
            for name in names
        )
        self.tables = tables
        for name, outcome in outcomes.items():
            self._take(name, outcome)
        return StatementVerdict(script, statement.verb, verdicts, "" if names else "it changes no table")

    def _outcome(self, name: str, statement: DdlStatement, after: TableSchema | None) -> _Outcome:
        effect = effect_on(name, statement)
        state = self._states.get(name)
        if effect is None:
            return _Outcome(_NO_EFFECT, state, name in self._empty)
        if name in self.waiting and effect.creates is None:
            return _Outcome(_WAITS, state, is_empty=False)
        origin = effect.origin if effect.creates is None else None
        if effect.drops and name not in self.tables:
            return _Outcome(_NO_EFFECT, state, is_empty=False)
        if origin is not None and origin not in self.tables and not _tolerates_missing(statement):
            what = f"the table {origin} is not in the stored schemas: capture has not seen it"
            return _Outcome(_Verdict("wrong", what, _UNKNOWN_TABLE), None, is_empty=False)
        if origin is not None and self.tables.get(origin, _NO_COLUMNS) is None and not effect.drops:
            what = f"the columns of {origin} come from a query, and only a server tells them"
            return _Outcome(_Verdict("wrong", what), state, is_empty=False)
        begun = self._errors.get(origin or name)
        if begun is not None and state is None and effect.creates is None:
            return _Outcome(_refused(begun), None, is_empty=False)
        best, best_lake = self._attempt(name, statement, effect, after, assumes=False)
        if best_lake.open:
            worst, _ = self._attempt(name, statement, effect, after, assumes=True)
            if (worst.kind, worst.reason) != (best.kind, best.reason):
                best = replace(best, unless=worst, conditions=tuple(best_lake.open))
        if best.kind in ("snapshot", "refused"):
            return self._after_failure(name, best, after)
        target = target_of(self.config, name)
        return _Outcome(best, best_lake.state(target), best_lake.is_empty(name))

    def _attempt(
        self, name: str, statement: DdlStatement, effect: TableEffect, after: TableSchema | None, *, assumes: bool
    ) -> tuple[_Verdict, PlannedLake]:
        lake = PlannedLake(self._states, self._empty, self._answer, assumes=assumes)
        state = self._states.get(name)
        try:
            target = target_of(self.config, name)
            if after is not None and not effect.drops:
                require_configured(target, state, None, after)
            surroundings = self._surroundings(lake, statement, effect, name, after)
            evolved = evolution_of(target, surroundings, state).run([statement])
            if evolved.moved is not None:
                lake.steps.append("move")
        except NeedsSnapshotError as error:
            return _Verdict("snapshot", error.message, error.remedy or "", columns=tuple(error.columns)), lake
        except CdcError as error:
            return _refused(error), lake
        steps = tuple(dict.fromkeys(lake.steps))
        kind: Kind = "rewrite" if {"fill", "rewrite"} & set(steps) else "in place" if steps else "none"
        texts = [_WORK[step] for step in steps if step in _WORK]
        if effect.drops:
            texts.insert(
                0, "the source's table has another name now" if effect.is_renamed else "the source's table is gone"
            )
            texts += ["the Delta table stays as it is"] if steps == ("alter",) else []
        return _Verdict(kind, "; ".join(texts), steps=steps), lake

    def _surroundings(
        self, lake: PlannedLake, statement: DdlStatement, effect: TableEffect, name: str, after: TableSchema | None
    ) -> Surroundings:
        creates = effect.creates
        brings_rows = creates is not None and creates.has_rows and not self.config.table_apply(name).shared
        is_new = creates is not None or effect.origin != name

        def other(table: str) -> Target | None:
            return target_of(self.config, table) if self._is_captured(table) else None

        return Surroundings(
            lake=lake,
            manifest=_manifest(self.config.name, statement.seq),
            check=lambda: None,
            stored={name: after} if is_new and after is not None else {},
            other=other,
            dropped_partitions=self._partitions.dropped,
            lake_name=self.config.tables.lake_name,
            rows_follow=(after or _NO_COLUMNS) if brings_rows else None,
        )

    def _after_failure(self, name: str, verdict: _Verdict, after: TableSchema | None) -> _Outcome:
        """Returns the table as the snapshot, or another way out, will leave it."""
        state = None
        if after is not None:
            try:
                state = planned_state(target_of(self.config, name), after, self.seq)
                before = self._states.get(name)
                if before is not None:
                    generation = {GENERATION_PROPERTY: str(before.generation + 1)}
                    state = replace(state, properties={**state.properties, **generation})
            except CdcError as error:
                self._errors[name] = error
        return _Outcome(verdict, state, name in self._empty)

    def _take(self, name: str, outcome: _Outcome) -> None:
        self._empty.discard(name)
        if outcome.is_empty:
            self._empty.add(name)
        if outcome.state is None:
            self._states.pop(name, None)
        else:
            self._states[name] = outcome.state

    def _verdict(self, name: str, verdict: _Verdict, after: DeltaState | None = None) -> TableVerdict:
        apply = self.config.table_apply(name)
        before = self._states.get(name)

        def table_verdict(part: _Verdict) -> TableVerdict:
            unless = None if part.unless is None else table_verdict(part.unless)
            return TableVerdict(
                name, apply.mode, part.kind, part.reason, part.remedy, part.columns, part.steps, unless,
                part.conditions, before, after,
            )  # fmt: skip

        return table_verdict(verdict)

    # --- definitions -----------------------------------------------------------------------------------------------

    def _begin(self, table: str) -> None:
        """Looks at the Delta table when a statement names it first."""
        schema = self.schemas.tables.get(table)
        if table in self._begun or schema is None:
            return
        self._begun.add(table)
        try:
            target = target_of(self.config, table)
            existing = self.lake_table(target)
            state = planned_state(target, schema, 0) if existing is None else existing.state_with(target, schema)
        except CdcError as error:
            self._errors[table] = error
            return
        self._states[table] = state
        if existing is not None:
            newest = max([state.applied_seq, *(record.seq for record in records(state))])
            self.seq = max(self.seq, newest + 1)
            self.lake[table] = existing
            if existing.rows == 0:
                self._empty.add(table)

    def _answer(self, target: Target, state: DeltaState, condition: str) -> bool | None:
        """What the statistics tell of a table that no statement has changed yet."""
        existing = self.lake.get(target.table)
        return None if existing is None or state is not existing.state else existing.answer(target, condition)

    def _followed(self, statement: DdlStatement) -> dict[str, TableSchema | None]:
        """Returns the definitions of all tables after a statement. Those that it contradicts stay as they are: apply
        says why."""
        tables = dict(self.tables)
        by_table: dict[str, list[Change]] = {}
        for change in statement.statement.changes:
            if isinstance(change, DropDatabase):
                tables = {name: schema for name, schema in tables.items() if split_table(name)[0] != change.db}
                continue
            table = table_of(change)
            if table is None:
                continue
            name = _joined(table)
            if isinstance(change, RenameTable):
                if name in tables:
                    tables[_joined(change.to)] = tables.pop(name)
            elif isinstance(change, DropTable):
                tables.pop(name, None)
            elif isinstance(change, CreateTable):
                self._create(change, name, tables)
            else:
                by_table.setdefault(name, []).append(change)
        renames = {_joined(c.table): _joined(c.to) for c in statement.statement.changes if isinstance(c, RenameTable)}
        for origin, changes in by_table.items():
            name = renames.get(origin, origin)
            schema = tables.get(name)
            if schema is not None:
                with suppress(UnsupportedDdlError):
                    tables[name] = apply_changes(schema, changes)
        return tables

    def _create(self, change: CreateTable, name: str, tables: dict[str, TableSchema | None]) -> None:
        if tables.get(name) is not None and change.if_not_exists and not change.replaces:
            return
        schema = change.schema if change.like is None else tables.get(_joined(change.like))
        if schema is not None and schema.charset is None:
            schema = self._with_charset(schema, change.table[0])
        tables[name] = schema

    def _with_charset(self, schema: TableSchema, database: str) -> TableSchema:
        """Returns a new table's definition with the default of its database, for which that of its other tables
        stands."""
        others = [s for name, s in self.tables.items() if s is not None and split_table(name)[0] == database]
        charset, collation = next(((s.charset, s.collation) for s in others if s.charset), ("utf8mb4", None))
        columns = tuple(with_table_charset(column, charset or "utf8mb4", collation) for column in schema.columns)
        return schema.model_copy(update={"columns": columns, "charset": charset, "collation": collation})

    # --- names -----------------------------------------------------------------------------------------------------

    def _named(self, statement: Statement) -> list[str]:
        """Returns the tables that a statement names, or whose database it drops."""
        names = [_joined(table) for table in statement.tables]
        for change in statement.changes:
            if isinstance(change, DropDatabase):
                names += sorted(name for name in self.tables if split_table(name)[0] == change.db)
        return list(dict.fromkeys(names))

    def _is_captured(self, name: str) -> bool:
        return self.config.tables.includes(*split_table(name))

    def _rows(self, statement: Statement) -> Iterator[TableVerdict]:
        for table in statement.tables:
            name = _joined(table)
            if self._is_captured(name):
                mode = self.config.table_apply(name).mode
                self._empty.discard(name)
                yield TableVerdict(name, mode, "rows", "its rows come by the stream")
            else:
                yield TableVerdict(name, None, "none", "the table is not captured")

    def _moment(self) -> Moment:
        server = self.session.server
        tells_defaults = server.version >= ((10, 10, 0) if server.mariadb else (8, 0, 0))
        return Moment(int(time.time()), 0, self._time_zone, True if tells_defaults else None, self._zone)

    def _event(self, sql: str) -> QueryEvent:
        return QueryEvent(self._database, sql, int(time.time()), 1, 0, self._sql_mode)


@dataclass(frozen=True)
class _Verdict:
    """A verdict without its table."""

    kind: Kind
    reason: str = ""
    remedy: str = ""
    columns: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    unless: _Verdict | None = None
    conditions: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Outcome:
    """A verdict, and the Delta table afterwards."""

    verdict: _Verdict
    state: DeltaState | None
    is_empty: bool


_NO_EFFECT = _Verdict("none")
_WAITS = _Verdict("none", "the table waits for its first snapshot, which reads it as it is then")
_NO_COLUMNS = TableSchema(columns=(), primary_key=())
_UNKNOWN_TABLE = "Run `cdc capture` until it has seen the table, or correct the name."


def _as_logged(change: Change) -> Change:
    """Returns a change as the binlog of a server with ``binlog_format=ROW`` has it: rows of a query come as rows."""
    if isinstance(change, CreateTable) and change.selects:
        return replace(change, selects=False, has_rows=True)
    return change


def _tolerates_missing(statement: DdlStatement) -> bool:
    """Whether the statement does nothing to a table that is not there."""
    changes = statement.statement.changes
    return _IF_EXISTS.match(statement.sql) is not None or any(
        isinstance(change, RenameTable) and change.if_exists for change in changes
    )


def _refused(error: CdcError) -> _Verdict:
    return _Verdict("refused", error.message, error.remedy or "")


def _joined(table: TableName) -> str:
    return f"{table[0]}.{table[1]}"


def _shown(sql: str) -> str:
    text = " ".join(sql.split())
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"


def _database_of(sql: str) -> str:
    return sql.strip().rstrip(";").split(None, 1)[1].strip().strip("`") if len(sql.split()) > 1 else ""


def _manifest(destination: str, seq: int) -> Manifest:
    """Returns the batch in which apply would get the statement."""
    position = Position(file="", pos=0)
    return Manifest(
        destination=destination, subscriber="apply", batch=0, epoch=0, server_uuid="", after_seq=seq - 1,
        first_seq=seq, last_seq=seq, transactions=1, row_events=0, bytes=0, ddl=True, tables=(), schema_path=None,
        ranges=(), positions=Positions(first=position, last=position),
    )  # fmt: skip
