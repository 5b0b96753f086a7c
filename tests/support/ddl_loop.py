"""Runs cases of the DDL corpus through the whole loop: rows before, the statements, rows after, and Delta against SELECT.

Each case has a database of its own, many cases share a destination, and all share one Spark session. A table whose
statement is not applied is parked, so that the others go on. Tables with their first rows are written without Spark.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pymysql
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql.types import StructField

from cdc.base.targets import table_path
from cdc.batches.service import BatchService
from cdc.binlog.sql.changes import NoEffect
from cdc.binlog.sql.schemas import TableSchema
from cdc.binlog.sql.server import ServerVersion as SqlServer
from cdc.binlog.sql.statements import classify
from cdc.config import DestinationConfig
from cdc.config.tables import ApplyOverrides
from cdc.lake import pipeline
from cdc.lake.delta.log import reader_uri
from cdc.lake.rows.column_types import to_arrow
from cdc.meta import ParkedTable
from cdc.source.schemas import read_schemas
from cdc.source.server import describe
from cdc.testing.servers import Server
from tests.support.apply import Loop
from tests.support.capturing import capturing
from tests.support.compare import ordered
from tests.support.ddl_corpus import Case
from tests.support.ddl_fill import fill

OutcomeKind = Literal["equal", "columns", "snapshot", "refused", "different", "not run"]
"""``equal``: Delta shows what SELECT shows; ``columns``: it does so once a snapshot has read the key and some columns.
``snapshot``: the table waits for a snapshot of all columns. ``refused``: a policy, or the
configuration, refuses the statement. ``different``: a fault. ``not run``: the server does not take the statement."""

ASKED = {
    "time": "CAST({} AS CHAR)", "float": "{} + 0e0", "bit": "{} + 0", "json": "CAST({} AS CHAR)",
    "enum": "CAST({} AS CHAR)", "set": "CAST({} AS CHAR)",
}  # fmt: skip
"""Expressions for types that SELECT shows otherwise than Delta."""


@dataclass
class Outcome:
    """The outcome of a case."""

    case: Case
    kind: OutcomeKind = "equal"
    details: list[str] = field(default_factory=list)

    def note(self, kind: OutcomeKind, detail: str) -> None:
        order = ("equal", "columns", "snapshot", "refused", "not run", "different")
        self.kind = max(self.kind, kind, key=order.index)
        self.details.append(detail)


class CorpusRun:
    """Some cases on one server, in databases of their own that share a destination.

    ``known``: outcomes of earlier runs, by what Spark was given. A case that would give it the same again takes the
    outcome from there: see :meth:`_fingerprint`.
    """

    def __init__(self, folder: Path, server: Server, cases: Sequence[Case], known_outcomes: dict[str, Outcome]) -> None:
        self.server = server
        self.prefix = f"ddl{random.SystemRandom().randrange(2**24):06x}"
        self.outcomes = [Outcome(case) for case in cases]
        self._known = known_outcomes
        self._seen: list[dict[str, Any]] = [{} for _ in cases]
        """The observations of each case on its way."""
        self._same: dict[int, Outcome] = {}
        """Cases whose outcome is that of another one."""
        self._first: dict[str, TableSchema] = {}
        """The tables' first definitions, by ``db.table``."""
        self._has_metadata = True
        overrides = ", ".join(
            f"{self.database(i)}.{table.name}: {{mode: append}}"
            for i, outcome in enumerate(self.outcomes)
            for table in outcome.case.tables
            if "PRIMARY KEY" not in table.create.upper()
        )
        # Databases are named by the prefix, so one expression includes them all.
        self.loop = Loop(folder, server, f"{self.prefix}_.*", overrides=overrides, apply="on_error: park", start="now")

    def database(self, number: int) -> str:
        return f"{self.prefix}_{number}"

    def run(self) -> None:
        """Runs all cases."""
        try:
            self.loop.capture()  # from here on
            self._prepare()
            self._observe("before")
            self.loop.capture()
            filled = BatchService(self.loop.config).last_seq()
            self._statements()
            self._observe("between")
            self._rows_afterwards()
            self._observe("after")
            self.loop.capture()
            self._append_to_keyless()
            self._leave_out_known()
            fill(self.loop.config, filled, self._first)
            self.loop.apply_all()
            self._read_columns()
            self._compare()
        finally:
            with self._cursor() as cursor:
                for number in range(len(self.outcomes)):
                    cursor.execute(f"DROP DATABASE IF EXISTS {self.database(number)}")

    def settle(self) -> list[Outcome]:
        """Returns the outcomes, once all runs that share ``known`` have ended."""
        for number, other in self._same.items():
            details = "; ".join(other.details)
            self.outcomes[number].note(other.kind, f"the same as {other.case.name}: {details}")
        return self.outcomes

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00'")
            yield cursor
            connection.commit()

    def _prepare(self) -> None:
        with self._cursor() as cursor:
            self._has_metadata = describe(cursor.connection).has_row_metadata
            cursor.execute("SET SESSION sql_mode = ''")
            for number, outcome in enumerate(self.outcomes):
                cursor.execute(f"CREATE DATABASE {self.database(number)}")
                cursor.execute(f"USE {self.database(number)}")
                for table in outcome.case.tables:
                    cursor.execute(table.create)
            # Definitions first, rows afterwards, so that they share two batches.
            for number, outcome in enumerate(self.outcomes):
                cursor.execute(f"USE {self.database(number)}")
                for table in outcome.case.tables:
                    for statement in table.statements[1:]:
                        cursor.execute(statement)

    def _statements(self) -> None:
        for number, outcome in enumerate(self.outcomes):
            with self._cursor() as cursor:
                cursor.execute(f"USE {self.database(number)}")
                cursor.execute(outcome.case.set_mode)
                for sql in outcome.case.sql:
                    try:
                        cursor.execute(sql)
                    except pymysql.MySQLError as error:
                        outcome.note("not run", f"{sql}: {error}")
                    if len(outcome.case.sql) > 1 and not self._has_metadata:
                        self.loop.capture()  # where the binlog names no columns, capture has to be level before DDL

    def _rows_afterwards(self) -> None:
        """Writes a row again, and a new one of defaults, into every table that is there now. The other rows stay as the
        statements have left them."""
        with self._cursor() as cursor:
            cursor.execute("SET SESSION sql_mode = ''")
            for number in range(len(self.outcomes)):
                for table, columns in self._tables(cursor, number).items():
                    names = ", ".join(quoted(name) for name, _, extra in columns if "GENERATED" not in extra)
                    place = f"{self.database(number)}.{quoted(table)}"
                    for sql in (
                        f"REPLACE INTO {place} ({names}) SELECT {names} FROM {place} LIMIT 1",
                        f"INSERT IGNORE INTO {place} () VALUES ()",
                    ):
                        try:
                            cursor.execute(sql)
                        except pymysql.MySQLError:
                            continue  # a foreign key, a column without a default: other cases have rows afterwards
                        cursor.connection.commit()

    def _tables(self, cursor: Any, number: int) -> dict[str, list[tuple[str, str, str]]]:
        """Returns the base tables of a case, each with (name, type, extra) of its columns."""
        cursor.execute(
            "SELECT c.table_name, c.column_name, c.data_type, c.extra FROM information_schema.columns c "
            "JOIN information_schema.tables t USING (table_schema, table_name) "
            "WHERE c.table_schema = %s AND t.table_type IN ('BASE TABLE', 'SYSTEM VERSIONED') ORDER BY c.table_name, c.ordinal_position",
            (self.database(number),),
        )
        columns: dict[str, list[tuple[str, str, str]]] = {}
        for table, name, kind, extra in cursor.fetchall():
            columns.setdefault(table, []).append((name, kind.lower(), extra.upper().replace("DEFAULT_GENERATED", "")))
        return columns

    def _append_to_keyless(self) -> None:
        """Gives new tables without a primary key the mode that takes them."""
        for number, outcome in enumerate(self.outcomes):
            old = {table.name for table in outcome.case.tables}
            for table, schema in self._seen[number]["after"]["schemas"].items():
                if not schema["primary_key"] and table not in old:
                    self.loop.config.tables.overrides[f"{self.database(number)}.{table}"] = ApplyOverrides(
                        mode="append"
                    )

    # --- cases that give Spark the same ------------------------------------------------------------------------------

    def _observe(self, moment: str) -> None:
        """Notes definitions and rows of all cases."""
        with self._cursor() as cursor:
            schemas = read_schemas(cursor.connection, self.loop.config.tables).tables
            if moment == "before":
                self._first = dict(schemas)
            by_number: list[dict[str, Any]] = [{} for _ in self.outcomes]
            for name, schema in schemas.items():
                db, _, table = name.partition(".")
                by_number[int(db.rpartition("_")[2])][table] = _comparable(schema)
            for number in range(len(self.outcomes)):
                rows = {
                    table: self._select(cursor, number, table, columns)
                    for table, columns in self._tables(cursor, number).items()
                }
                self._seen[number][moment] = {"schemas": by_number[number], "rows": rows}

    def _fingerprint(self, number: int) -> str:
        """Returns a text that is the same for two cases only if apply is given the same: definitions, rows before,
        between and after, and the statements' changes. Only statements without effect are the same as others; any
        other case can be the same only as itself on another server. Left out is what apply does not read: collations,
        defaults, and the display widths of integers."""
        case = self.outcomes[number].case
        server = SqlServer.parse(self._version())
        effects: list[str] = []
        for sql in case.sql:
            statement = classify(sql, "d", case.sql_mode, server)
            if statement.kind != "ddl" or any(not isinstance(change, NoEffect) for change in statement.changes):
                effects += [case.name, _WIDTH.sub(r"\1", repr(statement.changes)), *case.modes]
        content = [effects, self._has_metadata, self._seen[number]]
        return hashlib.sha256(json.dumps(content, default=repr, sort_keys=True).encode()).hexdigest()

    def _version(self) -> str:
        with self._cursor() as cursor:
            cursor.execute("SELECT VERSION()")
            return str(cursor.fetchone()[0])

    def _leave_out_known(self) -> None:
        """Excludes the cases that take the outcome of another one."""
        for number, outcome in enumerate(self.outcomes):
            if outcome.kind != "not run":
                other = self._known.setdefault(self._fingerprint(number), outcome)
                if other is not outcome:
                    self._same[number] = other
        if self._same:
            self.loop.exclude(rf"{self.prefix}_({'|'.join(map(str, self._same))})\..*")

    # --- values that only the server knows ---------------------------------------------------------------------------

    def _read_columns(self) -> None:
        """Reads single columns where that is enough, and notes it, again as long as a later statement needs it."""
        while True:
            parked = BatchService(self.loop.config).meta.read().subscription("apply").parked
            due = {
                name: parked_table for name, parked_table in sorted(parked.items()) if parked_table.columns is not None
            }
            if not due:
                return
            with capturing(self.loop.config):
                results = {result.table: result for result in pipeline.snapshot(self.loop.config, list(due))}
            self.loop.capture()
            self.loop.apply_all()
            for number, case in enumerate(self.outcomes):
                for name, record in due.items():
                    if name.startswith(f"{self.database(number)}."):
                        self._note_parked(case, record)
                        if case.kind == "snapshot" and results[name].columns:
                            case.kind = "columns"

    # --- comparing ---------------------------------------------------------------------------------------------------

    def _compare(self) -> None:
        parked = BatchService(self.loop.config).meta.read().subscription("apply").parked
        for number, outcome in enumerate(self.outcomes):
            if number in self._same:
                continue
            for name in sorted(parked):
                if name.startswith(f"{self.database(number)}."):
                    self._note_parked(outcome, parked[name])
            with self._cursor() as cursor:
                tables = self._tables(cursor, number)
            for table, columns in tables.items():
                if f"{self.database(number)}.{table}" not in parked:
                    self._compare_table(outcome, number, table, [name for name, _, _ in columns])

    def _select(self, cursor: Any, number: int, table: str, columns: list[tuple[str, str, str]]) -> list[Any]:
        """Returns the rows of a table at the source, as Delta shows them."""
        asked = ", ".join(ASKED.get(kind, "{}").format(quoted(name)) for name, kind, _ in columns)
        cursor.execute(f"SELECT {asked} FROM {self.database(number)}.{quoted(table)}")
        return ordered([plain(value) for value in row] for row in cursor.fetchall())

    @staticmethod
    def _note_parked(outcome: Outcome, parked: ParkedTable) -> None:
        kind: OutcomeKind = "snapshot" if parked.due == "snapshot" else "refused"
        reason = " ".join(parked.reason.split())
        named = any(" ".join(sql.split())[:40].rstrip("; ") in reason for sql in outcome.case.sql)
        # A value that the table's key does not take, a server that names no columns, or a table whose definition is
        # refused, whatever the statement was.
        by_row = any(
            why in reason
            for why in (", row event at ", "does not hold the names of its columns", "the table is system-versioned")
        )
        outcome.note(
            kind if named or by_row else "different", reason if named or by_row else f"names no statement: {reason}"
        )

    def _compare_table(self, outcome: Outcome, number: int, table: str, names: list[str]) -> None:
        expected = self._seen[number]["after"]["rows"][table]
        path = table_path(self.loop.config.apply.target, self.database(number), table)
        try:
            delta = read_delta(path)
        except DeltaError as error:
            outcome.note("different", f"{table}: cannot be read: {str(error)[:200]}")
            return
        if "_op" in delta.column_names:
            if delta.column_names[: len(names)] != names:  # its rows cannot be told apart
                outcome.note("different", f"{table}: the changelog has {delta.column_names}, SELECT shows {names}")
            return
        if delta.column_names != names:
            outcome.note("different", f"{table}: Delta has {delta.column_names}, SELECT shows {names}")
            return
        columns = [column.to_pylist() for column in delta.columns]
        rows = ordered([plain(value) for value in row] for row in zip(*columns, strict=True))
        if rows != expected:
            lost = list((Counter(map(repr, expected)) - Counter(map(repr, rows))).elements())
            alien = list((Counter(map(repr, rows)) - Counter(map(repr, expected))).elements())
            outcome.note("different", f"{table}: SELECT shows {lost[:2]}, Delta has {alien[:2]}")


def shown_rows(server: Server, db: str, table: str) -> tuple[list[str], list[Any]]:
    """Returns the columns and rows of a table at the source, as Delta shows them."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(
            "SELECT column_name, data_type FROM information_schema.columns "
            "WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
            (db, table),
        )
        columns = [(str(name), str(kind).lower()) for name, kind in cursor.fetchall()]
        asked = ", ".join(ASKED.get(kind, "{}").format(quoted(name)) for name, kind in columns)
        cursor.execute(f"SELECT {asked} FROM {quoted(db)}.{quoted(table)}")
        return [name for name, _ in columns], ordered([plain(value) for value in row] for row in cursor.fetchall())


def delta_rows(config: DestinationConfig, db: str, table: str) -> tuple[list[str], list[Any]]:
    """Returns the columns and rows of a Delta table, as :func:`shown_rows` does."""
    delta = read_delta(table_path(config.apply.target, db, table))
    rows = zip(*(column.to_pylist() for column in delta.columns), strict=True)
    return delta.column_names, ordered([plain(value) for value in row] for row in rows)


def read_delta(path: str) -> pa.Table:
    """Returns the rows of a Delta table of the tests from its files, by the physical names and the present types of its
    columns: Spark takes two seconds for each table."""
    with reader_uri(path, rows=True) as folder:
        return _read_files(DeltaTable(str(folder)))


def _read_files(table: DeltaTable) -> pa.Table:
    fields = json.loads(table.schema().to_json())["fields"]
    properties = table.metadata().configuration
    assert properties.get("delta.enableDeletionVectors", "false") == "false"
    parts = []
    for uri in table.file_uris():
        file = pq.read_table(unquote(uri.removeprefix("file://")))
        columns = {}
        for column in fields:
            kind = to_arrow(StructField.fromJson(column).dataType)
            physical = column.get("metadata", {}).get("delta.columnMapping.physicalName", column["name"])
            is_in_file = physical in file.column_names
            nulls = pa.nulls(len(file), kind)
            is_nested = pa.types.is_struct(kind)
            columns[column["name"]] = file[physical].cast(kind) if is_in_file and not is_nested else nulls
        parts.append(pa.table(columns))
    names = [column["name"] for column in fields]
    return pa.concat_tables(parts) if parts else pa.table({name: pa.nulls(0) for name in names})


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def plain(value: Any) -> Any:
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, datetime):
        return value.replace(tzinfo=None)
    if isinstance(value, Decimal):
        return Decimal(int(value)) if value == value.to_integral() else value.normalize()
    if isinstance(value, int) and not isinstance(value, bool):
        return Decimal(value)
    if isinstance(value, str) and value.startswith("0000-00-00"):
        return None
    return value


_WIDTH = re.compile(r"\b(smallint|mediumint|int|bigint|tinyint(?!\(1\)))\(\d+\)")


def _comparable(schema: TableSchema) -> dict[str, Any]:
    """Returns what apply reads of a definition."""
    columns = [
        {
            "name": column.name,
            "data_type": column.data_type,
            "column_type": _WIDTH.sub(r"\1", column.column_type),
            "nullable": column.nullable,
            "extra": column.extra.upper().replace("DEFAULT_GENERATED", "").strip(),
            "charset": column.charset,
        }
        for column in schema.columns
    ]
    return {"columns": columns, "primary_key": schema.primary_key, "charset": schema.charset}


def counts(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Returns the number of cases with each outcome."""
    return dict(Counter(outcome.kind for outcome in outcomes))
