"""Asks a server about the statements of a migration: it executes them on empty tables with the real definitions."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from cdc.base.errors import CdcError, SourceRefusedError, UsageError
from cdc.binlog.sql.changes import TableName
from cdc.binlog.sql.schemas import TableSchema, quoted_members
from cdc.binlog.sql.server import LATEST, ServerVersion
from cdc.binlog.sql.statements import classify
from cdc.binlog.sql.tokens import MODE_ANSI_QUOTES, MODE_NO_BACKSLASH_ESCAPES
from cdc.config import SYSTEM_SCHEMAS, TablesConfig
from cdc.lake.migration.rewrite import Rewriter, UntriedError, parents_of, require_triable, tokens_of
from cdc.lake.migration.scratch import Connect, Scratch, scratch_schemas
from cdc.lake.migration.script import bits_of, names_of
from cdc.source.connection import query, quoted, server_of
from cdc.source.schemas import read_schema
from cdc.source.server import Connection

if TYPE_CHECKING:
    from cdc.binlog.sql.schemas import ColumnSchema
    from cdc.lake.migration.planner import Session, StatementVerdict
    from cdc.lake.migration.rewrite import ScratchStatement

Outcome = Literal["executed", "rejected", "not tried"]
_ALGORITHMS = (("INSTANT", ("",)), ("NOCOPY", ("NONE", "SHARED")), ("INPLACE", ("NONE", "SHARED", "EXCLUSIVE")),
               ("COPY", ("NONE", "SHARED", "EXCLUSIVE")))  # fmt: skip
"""Each algorithm with its locks, in the order in which servers choose. NOCOPY is MariaDB's."""
_OTHER_ALGORITHM = frozenset({1800, 1801, 1845, 1846})
"""The server does not know the algorithm or lock, or cannot execute the statement with it."""
_SYNTAX = 1064
_NO_TABLE = frozenset({1049, 1146})
_CHILDREN = """
SELECT DISTINCT TABLE_SCHEMA AS db, TABLE_NAME AS tab FROM information_schema.KEY_COLUMN_USAGE
WHERE REFERENCED_TABLE_SCHEMA = %s AND REFERENCED_TABLE_NAME = %s
"""
_EVERY_TABLE = TablesConfig(include=(".*",))
_QUOTING = MODE_ANSI_QUOTES | MODE_NO_BACKSLASH_ESCAPES
_WIDTH = re.compile(r"^((?:tiny|small|medium|big)?int|year)\(\d+\)")


@dataclass(frozen=True)
class Answer:
    """The answer of the server to a statement."""

    outcome: Outcome
    reason: str = ""
    """Why it was rejected, in the server's words, or not tried."""
    algorithm: str | None = None
    """For ALTER TABLE, CREATE INDEX and DROP INDEX: ``INSTANT``, ``NOCOPY``, ``INPLACE`` or ``COPY``; None if the
    statement names its own, or the server does not tell."""
    lock: str | None = None
    """``NONE``, ``SHARED`` or ``EXCLUSIVE``; None with ``INSTANT``, which takes none."""
    differences: tuple[str, ...] = ()
    """The differences between the definition on the server and the one that the plan expects."""


@dataclass(frozen=True)
class Trial:
    """The answers of the server to a migration."""

    place: str
    version: str
    answers: tuple[Answer, ...]
    """One for each statement."""
    remarks: tuple[str, ...]

    @property
    def rejects(self) -> bool:
        """Whether the server rejects a statement."""
        return any(answer.outcome == "rejected" for answer in self.answers)

    @property
    def differs(self) -> bool:
        """Whether a definition is not the expected one."""
        return any(answer.differences for answer in self.answers)


@dataclass(frozen=True)
class ServerToAsk:
    """A server, and where the definitions come from that it does not have."""

    connect: Connect
    source: Connect | None = None
    """Connects to the destination's source, if that is another server."""

    def version(self) -> ServerVersion:
        """Returns the server's flavor and version. Raises what connecting raises."""
        with self.connect() as connection:
            return ServerVersion.parse(_version_text(connection)) or LATEST


def try_migration(
    server: ServerToAsk, verdicts: Sequence[StatementVerdict], stored: Mapping[str, TableSchema], tables: TablesConfig
) -> Trial:
    """Has a server execute the statements of a plan in scratch schemas. ``stored``: the definitions that the plan began
    with, by ``db.table``. Raises UsageError, SourceRefusedError, SourceUnavailableError."""
    with ExitStack() as stack:
        connection = stack.enter_context(server.connect())
        real = _Definitions(connection, server.source, stack)
        cases = [_case(verdict, tables) for verdict in verdicts]
        names = list(dict.fromkeys(name for case in cases for name in case.names))
        copied = real.read(names)
        databases = dict.fromkeys(db for db, _ in (*names, *copied))
        if not databases:
            answers = tuple(Answer("not tried", case.why_not) for case in cases)
            return Trial(server_of(connection), real.version_text, answers, ())
        scratch = stack.enter_context(scratch_schemas(server.connect, {db: real.charset_of(db) for db in databases}))
        run = _Run(scratch, tables, stored)
        run.copy(copied)
        answers = tuple(map(run.answer, cases))
        return Trial(scratch.place, real.version_text, answers, (*real.remarks, *scratch.remarks, *run.remarks))


@dataclass(frozen=True)
class _Case:
    """A statement, and whether it is tried."""

    verdict: StatementVerdict
    tables: tuple[TableName, ...] = ()
    """The tables that it names."""
    parents: tuple[TableName, ...] = ()
    """The tables that its foreign keys reference."""
    why_not: str = ""

    @property
    def names(self) -> tuple[TableName, ...]:
        return self.tables + self.parents


def _case(verdict: StatementVerdict, tables: TablesConfig) -> _Case:
    if verdict.error:
        return _Case(verdict, why_not=verdict.error)
    sql, session = verdict.statement.sql, verdict.session
    statement = classify(sql, session.database, session.sql_mode, session.server, ignores_case=tables.ignores_case)
    try:
        names = require_triable(statement)
    except UntriedError as error:
        return _Case(verdict, why_not=f"it {error}")
    parents = parents_of(tokens_of(sql, session.sql_mode, session.server), names[0][0])
    system = next((db for db, _ in (*names, *parents) if db.lower() in SYSTEM_SCHEMAS), None)
    if system is not None:
        return _Case(verdict, why_not=f"it names a table of {system}, which belongs to the server")
    return _Case(verdict, tuple(names), tuple(parents))


class _Definitions:
    """The real tables: those of the server that is asked, and of the source for what that lacks."""

    def __init__(self, server: Connection, source: Connect | None, stack: ExitStack) -> None:
        self._server, self._connect, self._stack = server, source, stack
        self._source: Connection | None = None
        self.version_text = _version_text(server)
        self._version = ServerVersion.parse(self.version_text) or LATEST
        self.remarks: list[str] = []
        query(server, _PLAIN)

    def read(self, names: Collection[TableName]) -> dict[TableName, str]:
        """Returns the CREATE TABLE of tables, of those whose foreign keys lead to them, and of all their parents. Those
        that do not exist are missing."""
        todo = sorted(names)
        for db, table in tuple(todo):
            for connection in self._connections():
                todo += [(str(row["db"]), str(row["tab"])) for row in query(connection, _CHILDREN, (db, table))]
        created: dict[TableName, str] = {}
        seen: set[TableName] = set()
        while todo:
            name = todo.pop()
            if name not in seen:
                seen.add(name)
                text = self._created(name)
                if text is not None:
                    created[name] = text
                    todo += parents_of(tokens_of(text, 0, self._version), name[0])
        return created

    def charset_of(self, database: str) -> str:
        """Returns the character set and collation of a database, as clauses of CREATE DATABASE; empty if there is no
        such database yet."""
        sql = "SELECT DEFAULT_CHARACTER_SET_NAME AS cs, DEFAULT_COLLATION_NAME AS coll FROM information_schema.SCHEMATA"
        for connection in self._connections():
            for row in query(connection, f"{sql} WHERE SCHEMA_NAME = %s", (database,)):
                return f"CHARACTER SET {row['cs']} COLLATE {row['coll']}"
        return ""

    def _created(self, name: TableName) -> str | None:
        for connection in self._connections():
            try:
                rows = query(connection, f"SHOW CREATE TABLE {quoted(name[0])}.{quoted(name[1])}")
            except SourceRefusedError as error:
                code = getattr(error.__cause__, "args", (0,))[0]
                if code not in _NO_TABLE:
                    raise
                continue
            if "Create Table" in rows[0]:  # a view has none
                return str(rows[0]["Create Table"])
        return None

    def _connections(self) -> Iterator[Connection]:
        """Yields the server, and then the source if it can be reached."""
        yield self._server
        if self._source is None and self._connect is not None:
            try:
                self._source = self._stack.enter_context(self._connect())
            except CdcError as error:
                self.remarks.append(
                    f"Tables that {server_of(self._server)} does not have count as missing, because the source cannot "
                    f"be asked: {error.message}."
                )
            else:
                self._require_alike(self._source)
                query(self._source, _PLAIN)
            self._connect = None
        if self._source is not None:
            yield self._source

    def _require_alike(self, source: Connection) -> None:
        version = ServerVersion.parse(_version_text(source)) or LATEST
        if version.mariadb != self._version.mariadb:
            raise UsageError(
                "one of the server and the destination's source is MariaDB, and the other is MySQL",
                place=f"server {server_of(self._server)}",
                remedy="Name a server of the source's kind, best of its version.",
            )


class _Run:
    """Executes statements in scratch schemas."""

    def __init__(self, scratch: Scratch, tables: TablesConfig, stored: Mapping[str, TableSchema]) -> None:
        self._scratch, self._tables, self._stored = scratch, tables, stored
        self._by_name = {tables.name(db): schema for db, schema in scratch.by_database.items()}
        schemas = frozenset(scratch.by_database.values())
        self._rewriter = Rewriter(scratch.version, self._schema_of, schemas)
        self._uncopied: dict[TableName, str] = {}
        self._unknown: set[str] = set()
        """Tables whose stored definition is not the server's."""
        self.remarks: list[str] = []

    def _schema_of(self, database: str) -> str | None:
        return self._by_name.get(self._tables.name(database))

    def copy(self, created: Mapping[TableName, str]) -> None:
        """Makes empty tables with the definitions of the real ones."""
        self._execute("SET SESSION foreign_key_checks = 0, sql_mode = ''")
        for (db, table), sql in created.items():
            schema = self._by_name[self._tables.name(db)]
            self._execute(f"USE {quoted(schema)}")
            try:
                failure = self._execute(self._rewriter.rewritten(sql, 0, schema).sql)
                reason = None if failure is None else _in_words(failure)
            except UntriedError as error:
                reason = f"it {error}"
            if reason is not None:
                reason = f"the definition of {db}.{table} cannot be copied: {self._originals(reason)}"
                self._uncopied[self._named((db, table))] = reason
            else:
                self._compare_stored(db, table, schema)
        self._execute("SET SESSION foreign_key_checks = 1")

    def _compare_stored(self, db: str, table: str, schema: str) -> None:
        name = f"{self._tables.name(db)}.{self._tables.name(table)}"
        stored = self._stored.get(name)
        actual = read_schema(self._scratch.connection, _EVERY_TABLE, schema, table)
        if stored is None or actual is None:
            return
        texts = differences(stored, actual, across_versions=True)
        if texts:
            self._unknown.add(name)
            self.remarks.append(
                f"The stored definition of {name} is not the server's ({texts[0]}). Its statements are executed, but "
                "what they leave is not compared. Run `cdc capture --until-current` first."
            )

    def answer(self, case: _Case) -> Answer:
        """Executes a statement, with the best algorithm that the server accepts."""
        answer = Answer("not tried", case.why_not) if case.why_not else self._tried(case)
        names = {f"{db}.{table}" for db, table in case.tables}
        not_followed = {table.table for table in case.verdict.tables if table.kind in ("refused", "wrong")}
        self._unknown |= not_followed if answer.outcome == "executed" else names
        if answer.outcome != "executed":
            return replace(answer, reason=self._originals(answer.reason))
        return replace(answer, differences=tuple(self._differences(case)))

    def _tried(self, case: _Case) -> Answer:
        session = case.verdict.session
        uncopied = next((self._uncopied[name] for name in map(self._named, case.names) if name in self._uncopied), None)
        if uncopied is not None:
            return Answer("not tried", uncopied)
        database = self._schema_of(session.database) or next(iter(self._scratch.by_database.values()))
        try:
            rewritten = self._rewriter.rewritten(case.verdict.statement.sql, session.sql_mode, database)
        except UntriedError as error:
            return Answer("not tried", f"it {error}")
        self._execute(f"USE {quoted(database)}")
        failure = self._settle(session)
        return self._executed(rewritten) if failure is None else Answer("not tried", failure)

    def _settle(self, session: Session) -> str | None:
        """Makes the session that of a statement. Returns why that is not possible."""
        zone = session.time_zone.replace("\\", "").replace("'", "''")
        failure = self._execute(f"SET SESSION sql_mode = '{names_of(session.sql_mode)}', time_zone = '{zone}'")
        if failure is not None:
            return f"the server does not take its session: {_in_words(failure)}"
        actual = str(query(self._scratch.connection, "SELECT @@SESSION.sql_mode AS mode")[0]["mode"])
        if (bits_of(actual) ^ session.sql_mode) & _QUOTING:  # ORACLE brings ANSI_QUOTES with it
            return f"its quotes mean something else on the server, whose sql_mode is {actual} then: write all modes"
        return None

    def _named(self, name: TableName) -> TableName:
        return self._tables.name(name[0]), self._tables.name(name[1])

    def _executed(self, statement: ScratchStatement) -> Answer:
        for algorithm, locks in _ALGORITHMS:
            for lock in locks:
                failure: tuple[int, str] | None = None
                for sql in statement.variants(algorithm, lock):
                    failure = self._execute(sql)
                    if failure is None:
                        return Answer("executed", algorithm=algorithm, lock=lock or None)
                    if failure[0] != _SYNTAX:
                        break
                if failure is None or failure[0] not in _OTHER_ALGORITHM:
                    return self._executed_as_is(statement)
        return self._executed_as_is(statement)

    def _executed_as_is(self, statement: ScratchStatement) -> Answer:
        failure = self._execute(statement.sql)
        return Answer("executed") if failure is None else Answer("rejected", _in_words(failure))

    def _differences(self, case: _Case) -> Iterator[str]:
        """Yields where the definitions on the server are not those that the plan has."""
        for db, table in case.tables:
            name, schema = f"{db}.{table}", self._schema_of(db)
            if name in self._unknown or schema is None or not self._tables.includes(db, table):
                continue
            expected = case.verdict.definitions.get(name, _MISSING)
            if expected is None:  # only a server tells it
                continue
            actual = read_schema(self._scratch.connection, _EVERY_TABLE, schema, table)
            if expected is _MISSING or actual is None:
                if expected is not _MISSING or actual is not None:
                    yield f"{name} is {'there' if actual is not None else 'not there'} on the server"
                continue
            for text in differences(expected, actual, across_versions=True):
                yield f"{name}: {text}"

    def _execute(self, sql: str) -> tuple[int, str] | None:
        return self._scratch.execute(sql)

    def _originals(self, text: str) -> str:
        """Returns a text of the server with the names of the real databases."""
        for database, schema in reversed(tuple(self._scratch.by_database.items())):  # _12 before _1
            text = text.replace(schema, database)
        return text


_MISSING = TableSchema(columns=(), primary_key=())
_PLAIN = "SET SESSION sql_mode = ''"


def _version_text(connection: Connection) -> str:
    return str(query(connection, "SELECT VERSION() AS version")[0]["version"])


def _in_words(failure: tuple[int, str]) -> str:
    return f"{failure[1].rstrip('.')} (error {failure[0]})"


def differences(
    expected: TableSchema, actual: TableSchema, unsure: Collection[str] = (), *, across_versions: bool = False
) -> list[str]:
    """Returns where a definition that was followed differs from the server's. ``unsure``: columns of which the
    statement does not tell whether they may be NULL. ``across_versions``: widths of integers and the name of UTF-8 with
    three bytes, which depend on the server's version, do not count."""
    if expected.column_names != actual.column_names:
        return [f"columns {_listed(expected.column_names)}, and the server has {_listed(actual.column_names)}"]
    normal = _of_any_version if across_versions else str
    texts = []
    if expected.primary_key != actual.primary_key:
        texts.append(f"key {_listed(expected.primary_key)}, and the server has {_listed(actual.primary_key)}")
    if expected.charset is not None and normal(expected.charset) != normal(str(actual.charset)):
        texts.append(f"character set {expected.charset}, and the server has {actual.charset}")
    for mine, theirs in zip(expected.columns, actual.columns, strict=True):
        for key in ("data_type", "column_type", "nullable", "charset", "collation", "extra"):
            a, b = _comparable(mine, key), _comparable(theirs, key)
            if (key == "collation" and a is None) or (key == "nullable" and mine.name in unsure):
                continue
            if a != b and not (isinstance(a, str) and isinstance(b, str) and normal(a) == normal(b)):
                texts.append(f"{mine.name} has the {key} {_shown(a)}, and on the server {_shown(b)}")
    return texts


def _of_any_version(text: str) -> str:
    """Returns a type, a character set or a collation as every version of a server names it."""
    return text if text == "tinyint(1)" else _WIDTH.sub(r"\1", text.replace("utf8mb3", "utf8"))


def _listed(names: Collection[str]) -> str:
    return ", ".join(names) or "none"


def _shown(value: Any) -> str:
    return ", ".join(sorted(value)) or "none" if isinstance(value, set | tuple) else str(value)


def _comparable(column: ColumnSchema, key: str) -> Any:
    value = getattr(column, key)
    if key == "column_type" and column.data_type in ("enum", "set"):
        return quoted_members(value)
    if key in ("charset", "collation"):
        return None if value == "binary" else value  # of an ENUM; only some servers name it
    if key == "extra":
        words = value.lower().replace("default_generated", "")
        return {word for word in ("auto_increment", "generated", "invisible") if word in words}
    return value
