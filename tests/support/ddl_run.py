"""Runs the corpus of DDL statements on a real server, and holds the tracker and its claims against what is there.

Every case has a database of its own. Definitions are read from information_schema before and after, rows by SELECT, and
the statements with their sql_mode from the server's binlog, so that what is read is what the server really wrote.
"""

from __future__ import annotations

import os
import re
import struct
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pymysql

from cdc.base.errors import UnsupportedDdlError
from cdc.binlog.constants import EventType
from cdc.binlog.events import QueryEvent, parse_format_description, parse_header, parse_query
from cdc.binlog.sql.changes import (
    KEEPS_COLUMNS,
    AddColumn,
    Change,
    ChangeColumn,
    Constant,
    CreateTable,
    OldRows,
    RenameTable,
    Unknown,
    UnknownEffect,
    Unsupported,
    table_of,
)
from cdc.binlog.sql.conversions import Converted, Same, value_effect
from cdc.binlog.sql.moment import Moment
from cdc.binlog.sql.schemas import ColumnSchema, Offsets, TableSchema
from cdc.binlog.sql.server import ServerVersion as SqlServer
from cdc.binlog.sql.statements import classify
from cdc.binlog.sql.track import TrackedTable, apply_changes, plan_columns
from cdc.binlog.sql.types import with_table_charset
from cdc.config import SourceConfig, TablesConfig
from cdc.lake.migration.trial import differences
from cdc.source.connection import connect
from cdc.source.schemas import read_schemas
from cdc.testing.servers import HOST, PASSWORD, USER, Server
from tests.support.ddl_conversions import agrees
from tests.support.ddl_corpus import Case
from tests.support.versions import is_unknown

MAGIC_SIZE = 4
Outcome = Literal["no effect", "followed", "snapshot", "refused"]
"""Towpath's decision about a statement: nothing is needed; the Delta table follows by the statement's text; the table
needs a new snapshot, since only the server knows the rows; the statement is not understood."""
Row = tuple[Any, ...]

UTC_OFFSETS: Offsets = ((0, 0),)
"""The own time zone of the servers of the tests."""


@dataclass
class Observed:
    """A case as it went on a server."""

    case: Case
    before: dict[str, TableSchema] = field(default_factory=dict)
    after: dict[str, TableSchema] = field(default_factory=dict)
    rows_before: dict[str, list[Row]] = field(default_factory=dict)
    rows_after: dict[str, list[Row]] = field(default_factory=dict)
    statements: list[tuple[str, int, Moment]] = field(default_factory=list)
    """Text, sql_mode and moment, from the binlog."""


@dataclass
class Verdict:
    """Towpath's decision about a case, and its errors."""

    outcome: Outcome
    reasons: list[str]
    """Why it needs a snapshot or is refused."""
    wrong: list[str]
    evidence: list[str] = field(default_factory=list)
    """The conditions that apply checks in the Delta table, and the values that it computes."""


# --- running


class CorpusRun:
    """Runs cases on a server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._connection = pymysql.connect(
            host=HOST, port=server.port, user=USER, password=PASSWORD, charset="utf8mb4", autocommit=True, conv={}
        )
        self._prefix = f"ddl{os.getpid()}_"

    def close(self) -> None:
        """Drops what was made."""
        for database in self._databases():
            self._run(f"DROP DATABASE `{database}`")
        self._connection.close()

    def observe(self, cases: Sequence[Case], *, may_refuse: bool = False) -> list[Observed]:
        """Runs the cases. Those with statements that a stand-in does not know are left out; with ``may_refuse`` also
        those with statements that the server refuses."""
        observed = {f"{self._prefix}{number}": Observed(case) for number, case in enumerate(cases)}
        for database, observed_case in observed.items():
            self._make(database, observed_case.case)
        for name, schema in self._schemas().items():
            database, _, table = name.partition(".")
            observed[database].before[table] = schema
        self._run("FLUSH BINARY LOGS")
        log = self._logs()[-1]
        unknown: set[str] = set()
        for database, observed_case in observed.items():
            observed_case.rows_before = self._rows(database, observed_case.before)
            self._run(f"USE `{database}`")
            self._run(observed_case.case.set_mode)
            for sql in observed_case.case.sql:
                try:
                    self._run(sql)
                except pymysql.MySQLError as error:
                    if may_refuse or is_unknown(self._server, error):
                        self._run(f"DROP DATABASE `{database}`")
                        unknown.add(database)
                        break
                    raise AssertionError(
                        f"{observed_case.case.name} on {self._server.kind.name}: {error}: {sql}"
                    ) from None
        assert len(unknown) < len(observed) // 4
        observed = {database: state for database, state in observed.items() if database not in unknown}
        for name, schema in self._schemas().items():
            database, _, table = name.partition(".")
            observed[database].after[table] = schema
        for database, observed_case in observed.items():
            observed_case.rows_after = self._rows(database, observed_case.after)
        for query in binlog_statements(self._server, self._logs(), log):
            if query.db in observed:
                observed[query.db].statements.append((query.sql, query.sql_mode, Moment.of(query, UTC_OFFSETS)))
        return list(observed.values())

    def _make(self, database: str, case: Case) -> None:
        self._run("SET SESSION sql_mode = 'NO_ENGINE_SUBSTITUTION'")
        self._run(f"CREATE DATABASE `{database}` CHARACTER SET utf8mb4")
        self._run(f"USE `{database}`")
        for table in case.tables:
            self._run(table.create)
            self._run(f"INSERT INTO `{table.name}` VALUES {', '.join(f'({row})' for row in table.rows)}")

    def _databases(self) -> list[str]:
        return [name for (name,) in self._select("SHOW DATABASES") if name.startswith(self._prefix)]

    def _schemas(self) -> dict[str, TableSchema]:
        os.environ.setdefault("TOWPATH_TEST_PASSWORD", PASSWORD)
        settings = SourceConfig(url=self._server.url, password_env="TOWPATH_TEST_PASSWORD", server_id=78)
        with connect(settings) as connection:
            return read_schemas(connection, TablesConfig(include=(re.escape(self._prefix) + r".*\..*",))).tables

    def _rows(self, database: str, schemas: dict[str, TableSchema]) -> dict[str, list[Row]]:
        return {
            name: self._select(f"SELECT {', '.join(map(_shown, schema.columns))} FROM `{database}`.`{name}`")
            for name, schema in schemas.items()
        }

    def _logs(self) -> list[str]:
        return [str(row[0]) for row in self._select("SHOW BINARY LOGS")]

    def _select(self, sql: str) -> list[Row]:
        with self._connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def _run(self, sql: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(sql)


def binlog_statements(server: Server, logs: Sequence[str], first: str) -> Iterator[QueryEvent]:
    """The statements in a server's binlog files from this one on."""
    for name in logs:
        if name < first:
            continue
        data, at, checksum = (server.data / name).read_bytes(), MAGIC_SIZE, False
        while at < len(data):
            header = parse_header(data[at:])
            event = data[at : at + header.length]
            if header.type == EventType.FORMAT_DESCRIPTION:
                checksum = parse_format_description(event).has_checksum
            elif header.type == EventType.QUERY:
                yield parse_query(event, checksum)
            at += header.length


def _shown(column: ColumnSchema) -> str:
    """The expression that shows a column: all digits of a float, none of the zeros of ZEROFILL."""
    name = "`" + column.name.replace("`", "``") + "`"
    if column.data_type in ("float", "double"):
        return f"{name} + 0e0"
    return f"{name} + 0" if "zerofill" in column.column_type else name


# --- judging

_COMPUTED = {
    "rounded": "rounded", "cut": "cut", "trimmed": "cut, without trailing blanks", "ordered": "members in their new order",
    "bytes": "the bytes in UTF-8", "padded": "the bytes, with zeros behind them", "day": "the day", "digits": "the day as a number",
    "text": "the text that SELECT shows", "single": "the nearest FLOAT", "double": "the nearest DOUBLE",
    "clamped": "the least or the largest number that fits", "filled": "0 or the empty text for NULL",
    "local": "the time in the session's zone", "instant": "the instant of a time in the session's zone",
}  # fmt: skip
"""The values that apply computes, by the kind of conversion."""
_LOOKED_FOR = {
    "null": "no NULL", "zero date": "no NULL", "zero": "no 0", "outside": "no number out of range",
    "longer": "no longer value", "more bytes": "no longer value", "uses": "no row with such a member",
    "not ascii": "ASCII alone",
}  # fmt: skip
"""The condition that must hold in the Delta table, by the kind of doubt."""


def judge(observed: Observed, server: SqlServer | None, database: str = "d", *, compare: bool = True) -> Verdict:
    """Returns Towpath's decision about a case, and where it contradicts the server. ``compare=False``: the case was not
    run."""
    state: dict[str, TableSchema | None] = dict(observed.before)
    verdict = Verdict("no effect", [], [])
    plans: list[tuple[str, TrackedTable, int]] = []
    unsure: set[tuple[str, str]] = set()
    for sql, sql_mode, moment in observed.statements:
        statement = classify(sql, database, sql_mode, server, moment=moment)
        if statement.kind == "unknown" or (statement.kind == "ddl" and not statement.changes):
            verdict.wrong.append(f"{observed.case.name}: {statement.kind}: {sql}")
        if statement.kind != "ddl":
            continue
        try:
            _follow(statement.changes, state, sql_mode, verdict, plans)
        except UnsupportedDdlError as error:
            verdict.outcome = "refused"
            verdict.reasons.append(str(error))
            return verdict
        unsure |= {
            (change.table[1], change.column.name)
            for change in statement.changes
            if isinstance(change, AddColumn | ChangeColumn) and change.unsure_null
        }
    if compare:
        _compare(observed, state, unsure, verdict)
        if len(observed.case.sql) == 1:
            _compare_rows(observed, plans, verdict)
            _compare_claims(observed, plans, verdict)
    for _, plan, sql_mode in plans:
        _decide(plan, sql_mode, verdict)
    return verdict


def _follow(
    changes: Sequence[Change],
    state: dict[str, TableSchema | None],
    sql_mode: int,
    verdict: Verdict,
    plans: list[tuple[str, TrackedTable, int]],
) -> None:
    by_table: dict[str, list[Change]] = defaultdict(list)
    renames = [change for change in changes if isinstance(change, RenameTable)]
    for change in changes:
        table = table_of(change)
        if table is None:
            if isinstance(change, Unsupported):
                raise UnsupportedDdlError("is not understood")
            continue
        if not isinstance(change, (*KEEPS_COLUMNS, CreateTable)) and verdict.outcome == "no effect":
            verdict.outcome = "followed"
        if isinstance(change, UnknownEffect):
            verdict.outcome = "snapshot"
            verdict.reasons.append(change.reason)
        elif isinstance(change, CreateTable):
            _create(change, state, verdict)
        elif not isinstance(change, RenameTable):
            by_table[table[1]].append(change)
    for name, table_changes in by_table.items():
        before = state.get(name)
        if before is None:
            continue
        after = apply_changes(before, table_changes)
        if after is not None:
            plans.append((name, plan_columns(before, table_changes), sql_mode))
        state[name] = after
    for rename in renames:
        if rename.table[1] in state:
            state[rename.to[1]] = state.pop(rename.table[1])


def _create(change: CreateTable, state: dict[str, TableSchema | None], verdict: Verdict) -> None:
    name = change.table[1]
    if change.if_not_exists and state.get(name) is not None:
        return
    if change.like is not None:
        state[name] = state.get(change.like[1])
        return
    if change.schema is None:
        verdict.outcome = "snapshot"
        verdict.reasons.append("the statement does not tell the table's columns")
    state[name] = with_database_charset(change.schema, "utf8mb4", None) if change.schema is not None else None


def _compare(
    observed: Observed, state: dict[str, TableSchema | None], unsure: set[tuple[str, str]], verdict: Verdict
) -> None:
    """Holds the tracked definitions against information_schema."""
    tracked = {name: schema for name, schema in state.items() if schema is not None}
    if set(tracked) != set(observed.after) and verdict.outcome != "snapshot":
        verdict.wrong.append(
            f"{observed.case.name}: tables {sorted(tracked)}, and the server has {sorted(observed.after)}"
        )
    for name, schema in tracked.items():
        if name in observed.after:
            lenient = {column for table, column in unsure if table == name}
            verdict.wrong += [
                f"{observed.case.name}: {name}: {text}" for text in differences(schema, observed.after[name], lenient)
            ]


def _compare_rows(observed: Observed, plans: list[tuple[str, TrackedTable, int]], verdict: Verdict) -> None:
    """Tables that no change concerns keep their rows."""
    planned = {name for name, _, _ in plans}
    if verdict.outcome == "snapshot" or any(
        word in sql.upper() for sql in observed.case.sql for word in ("TRUNCATE", "RENAME", "INSERT")
    ):
        return
    for name, rows in observed.rows_before.items():
        same = name in observed.after and observed.after[name].columns == observed.before[name].columns
        if same and name not in planned and Counter(rows) != Counter(observed.rows_after[name]):
            verdict.wrong.append(f"{observed.case.name}: {name}: rows changed in a statement without an effect")


def _compare_claims(observed: Observed, plans: list[tuple[str, TrackedTable, int]], verdict: Verdict) -> None:
    """Holds what is claimed of old rows against SELECT."""
    removes = any(word in sql.upper() for sql in observed.case.sql for word in ("TRUNCATE", "DROP PARTITION"))
    if len(plans) != 1 or removes or verdict.outcome == "snapshot":
        return
    ((name, plan, sql_mode),) = plans
    before = observed.rows_before[name]
    # The table may have been renamed by the statement; it is the only one then.
    after = observed.rows_after.get(name) or next((rows for rows in observed.rows_after.values()), [])
    if len(after) != len(before):
        verdict.wrong.append(f"{observed.case.name}: {name} has {len(after)} rows, before {len(before)}")
    names = [column.name for column in observed.before[name].columns]
    same: list[tuple[int, int]] = []
    for index, column in enumerate(plan.columns):
        shown = [row[index] for row in after]
        if column.old is None:
            if not isinstance(column.old_rows, Unknown) and not all(
                _is(v, column.old_rows, column.column) for v in shown
            ):
                verdict.wrong.append(
                    f"{observed.case.name}: {column.column.name} shows {shown}, claimed {column.old_rows}"
                )
            continue
        was = names.index(column.old.name)
        effect = value_effect(column.old, column.column, sql_mode, zone_offset_s=0)
        if isinstance(effect, Converted) or (not isinstance(effect, Unknown) and effect.unless):
            continue  # test_conversions_in_delta.py and test_ddl_corpus.py try these
        if isinstance(effect, Same):
            same.append((was, index))
        elif not isinstance(effect, Unknown) and not _all_agree(effect, [row[was] for row in before], shown):
            verdict.wrong.append(f"{observed.case.name}: {column.old.name}: values changed, claimed {effect}")
    mine = Counter(tuple(row[old] for old, _ in same) for row in before)
    theirs = Counter(tuple(row[new] for _, new in same) for row in after)
    if mine != theirs:
        verdict.wrong.append(f"{observed.case.name}: {name}: values changed: {mine - theirs} became {theirs - mine}")


def _decide(plan: TrackedTable, sql_mode: int, verdict: Verdict) -> None:
    """A value that only the server knows needs a snapshot."""
    for column in plan.columns:
        effect: object = column.old_rows
        if column.old is not None:
            effect = value_effect(column.old, column.column, sql_mode, zone_offset_s=0)
        if isinstance(effect, Unknown):
            verdict.outcome = "snapshot"
            verdict.reasons.append(f"{column.column.name}: {effect.reason}")
        elif isinstance(effect, Converted):
            verdict.evidence.append(f"{column.column.name}: {_COMPUTED[effect.to]}")
        for doubt in getattr(effect, "unless", ()):
            verdict.evidence.append(f"{column.column.name}: {_LOOKED_FOR[doubt.kind]}, as {doubt.reason}")


def _all_agree(effect: Any, old: list[Any], new: list[Any]) -> bool:
    left = list(new)
    for value in old:
        match = next((other for other in left if agrees(effect, value, other)), left)
        if match is left:
            return False
        left.remove(match)
    return True


def _is(value: Any, expected: OldRows | None, column: ColumnSchema) -> bool:
    if not isinstance(expected, Constant):
        return value is None
    if isinstance(expected.value, bytes) or value is None:
        return bool(value == expected.value)
    if column.data_type == "float":
        return struct.pack("<f", float(expected.value)) == struct.pack("<f", float(value))
    if column.data_type == "double":
        return float(expected.value) == float(value)
    return bool(value == expected.value)


def with_database_charset(schema: TableSchema, charset: str | None, collation: str | None) -> TableSchema:
    """Returns a new table's definition if its database has this default: ``CreateTable.schema`` leaves it open."""
    if schema.charset is not None or charset is None:
        return schema
    columns = tuple(with_table_charset(column, charset, collation) for column in schema.columns)
    return schema.model_copy(update={"columns": columns, "charset": charset, "collation": collation})
