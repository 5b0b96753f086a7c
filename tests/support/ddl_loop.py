"""Runs cases of the DDL corpus through the whole loop: rows before, the statements, rows after, and Delta against SELECT.

Each case has a database of its own, and all cases of a run share one Spark session. A table whose statement is not
applied is parked, so that the others go on.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import pymysql

from cdc.batches.service import BatchService
from cdc.meta import ParkedTable
from cdc.targets import table_path
from cdc.testing.servers import Server
from spark_jobs.runtime import session
from tests.support.apply import Loop
from tests.support.compare import ordered
from tests.support.ddl_corpus import Case

OutcomeKind = Literal["equal", "snapshot", "refused", "different", "not run"]
"""``equal``: Delta shows what SELECT shows. ``snapshot``: the table waits for a snapshot. ``refused``: a policy, or the
configuration, refuses the statement. ``different``: a fault. ``not run``: the server does not take the statement."""

_ASKED = {
    "time": "CAST({} AS CHAR)", "float": "{} + 0e0", "bit": "{} + 0", "json": "CAST({} AS CHAR)",
}  # fmt: skip
"""Expressions for types that SELECT shows otherwise than Delta."""


@dataclass
class Outcome:
    """What became of a case."""

    case: Case
    kind: OutcomeKind = "equal"
    details: list[str] = field(default_factory=list)

    def note(self, kind: OutcomeKind, detail: str) -> None:
        order = ("equal", "snapshot", "refused", "not run", "different")
        self.kind = max(self.kind, kind, key=order.index)
        self.details.append(detail)


class CorpusRun:
    """The cases on one server, in databases of their own."""

    def __init__(self, folder: Path, server: Server, cases: Sequence[Case], *, apply: str = "") -> None:
        self.server = server
        self.prefix = f"ddl{random.SystemRandom().randrange(2**24):06x}"
        self.outcomes = [Outcome(case) for case in cases]
        self._gone: set[int] = set()
        """Cases that are left out of the comparison."""
        keyless = {t.name for case in cases for t in case.tables if "PRIMARY KEY" not in t.create.upper()}
        overrides = ", ".join(
            f"{self.database(i)}.{table.name}: {{mode: append}}"
            for i, one in enumerate(self.outcomes)
            for table in one.case.tables
            if table.name in keyless
        )
        settings = "on_error: park" + (f", {apply}" if apply else "")
        # Databases are named by the prefix, so one expression includes them all.
        self.loop = Loop(folder, server, f"{self.prefix}_.*", overrides=overrides, apply=settings)

    def database(self, number: int) -> str:
        return f"{self.prefix}_{number}"

    def run(self) -> list[Outcome]:
        """Runs all cases and returns their outcomes."""
        try:
            self._prepare()
            self._apply()
            self._statements()
            self._leave_out_keyless()
            self._rows_afterwards()
            self._apply()
            self._compare()
        finally:
            with self._cursor() as cursor:
                for number in range(len(self.outcomes)):
                    cursor.execute(f"DROP DATABASE IF EXISTS {self.database(number)}")
        return self.outcomes

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00'")
            yield cursor
            connection.commit()

    def _apply(self) -> None:
        self.loop.capture()
        self.loop.apply_all()

    def _prepare(self) -> None:
        with self._cursor() as cursor:
            cursor.execute("SET SESSION sql_mode = ''")
            for number, one in enumerate(self.outcomes):
                cursor.execute(f"CREATE DATABASE {self.database(number)}")
                cursor.execute(f"USE {self.database(number)}")
                for table in one.case.tables:
                    cursor.execute(table.create)
            # Definitions first, rows afterwards, so that they share two batches.
            for number, one in enumerate(self.outcomes):
                cursor.execute(f"USE {self.database(number)}")
                for table in one.case.tables:
                    for statement in table.statements[1:]:
                        cursor.execute(statement)

    def _statements(self) -> None:
        for number, one in enumerate(self.outcomes):
            with self._cursor() as cursor:
                cursor.execute(f"USE {self.database(number)}")
                cursor.execute(one.case.set_mode)
                for sql in one.case.sql:
                    try:
                        cursor.execute(sql)
                    except pymysql.MySQLError as error:
                        one.note("not run", f"{sql}: {error}")

    def _leave_out_keyless(self) -> None:
        """Removes databases with a new table that mode upsert cannot take: capture's preflight refuses it by name."""
        for number, one in enumerate(self.outcomes):
            with self._cursor() as cursor:
                known = set(self.loop.config.tables.overrides)
                for table in self._tables(cursor, number):
                    cursor.execute(
                        "SELECT 1 FROM information_schema.statistics WHERE table_schema = %s AND table_name = %s "
                        "AND index_name = 'PRIMARY'",
                        (self.database(number), table),
                    )
                    if cursor.fetchone() is None and f"{self.database(number)}.{table}" not in known:
                        one.note("refused", f"{table} has no primary key; preflight asks for keys or mode append")
                        self._gone.add(number)
                if number in self._gone:
                    cursor.execute("SET sql_log_bin = 0")
                    cursor.execute(f"DROP DATABASE {self.database(number)}")

    def _rows_afterwards(self) -> None:
        """Writes rows again, and a new one of defaults, into every table that is there now."""
        for number in range(len(self.outcomes)):
            with self._cursor() as cursor:
                cursor.execute("SET SESSION sql_mode = ''")
                for table, columns in self._tables(cursor, number).items():
                    names = ", ".join(_quoted(name) for name, _, extra in columns if "GENERATED" not in extra)
                    place = f"{self.database(number)}.{_quoted(table)}"
                    for sql in (
                        f"REPLACE INTO {place} ({names}) SELECT {names} FROM {place}",
                        f"INSERT IGNORE INTO {place} () VALUES ()",
                    ):
                        try:
                            cursor.execute(sql)
                        except pymysql.MySQLError:
                            continue  # a foreign key, a column without a default: other cases have rows afterwards

    def _tables(self, cursor: Any, number: int) -> dict[str, list[tuple[str, str, str]]]:
        """Returns the base tables of a case, each with (name, type, extra) of its columns."""
        cursor.execute(
            "SELECT c.table_name, c.column_name, c.data_type, c.extra FROM information_schema.columns c "
            "JOIN information_schema.tables t USING (table_schema, table_name) "
            "WHERE c.table_schema = %s AND t.table_type LIKE 'BASE TABLE' ORDER BY c.table_name, c.ordinal_position",
            (self.database(number),),
        )
        found: dict[str, list[tuple[str, str, str]]] = {}
        for table, name, kind, extra in cursor.fetchall():
            found.setdefault(table, []).append((name, kind.lower(), extra.upper().replace("DEFAULT_GENERATED", "")))
        return found

    # --- comparing ---------------------------------------------------------------------------------------------------

    def _compare(self) -> None:
        parked = BatchService(self.loop.config).meta.read().subscription("apply").parked
        for number, one in enumerate(self.outcomes):
            if number in self._gone:
                continue
            with self._cursor() as cursor:
                for name in sorted(parked):
                    if name.startswith(f"{self.database(number)}."):
                        self._note_parked(one, parked[name])
                for table, columns in self._tables(cursor, number).items():
                    if f"{self.database(number)}.{table}" not in parked:
                        self._compare_table(one, cursor, number, table, columns)

    @staticmethod
    def _note_parked(one: Outcome, parked: ParkedTable) -> None:
        kind: OutcomeKind = "snapshot" if parked.due == "snapshot" else "refused"
        reason = " ".join(parked.reason.split())
        named = any(" ".join(sql.split())[:40].rstrip("; ") in reason for sql in one.case.sql)
        one.note(kind if named else "different", reason if named else f"names no statement: {reason}")

    def _compare_table(
        self, one: Outcome, cursor: Any, number: int, table: str, columns: list[tuple[str, str, str]]
    ) -> None:
        names = [name for name, _, _ in columns]
        asked = ", ".join(_ASKED.get(kind, "{}").format(_quoted(name)) for name, kind, _ in columns)
        cursor.execute(f"SELECT {asked} FROM {self.database(number)}.{_quoted(table)}")
        wanted = ordered([_plain(value) for value in row] for row in cursor.fetchall())
        spark = session.acquire(self.loop.config.spark).spark
        path = table_path(self.loop.config.apply.target, self.database(number), table)
        try:
            frame = spark.read.format("delta").load(path)
        except Exception as error:  # noqa: BLE001 - Spark says in many ways that there is no table
            one.note("different", f"{table}: cannot be read: {str(error)[:200]}")
            return
        if "_op" in frame.columns:
            self._compare_changelog(one, frame, table, names)
            return
        if frame.columns != names:
            one.note("different", f"{table}: Delta has {frame.columns}, SELECT shows {names}")
            return
        found = ordered([_plain(value) for value in row] for row in frame.collect())
        if found != wanted:
            lost = list((Counter(map(repr, wanted)) - Counter(map(repr, found))).elements())
            alien = list((Counter(map(repr, found)) - Counter(map(repr, wanted))).elements())
            one.note("different", f"{table}: SELECT shows {lost[:2]}, Delta has {alien[:2]}")

    @staticmethod
    def _compare_changelog(one: Outcome, frame: Any, table: str, names: list[str]) -> None:
        """The rows of a table without a key cannot be told apart: its columns are compared."""
        if list(frame.columns)[: len(names)] != names:
            one.note("different", f"{table}: the changelog has {frame.columns}, SELECT shows {names}")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _plain(value: Any) -> Any:
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, Decimal):
        return Decimal(int(value)) if value == value.to_integral() else value.normalize()
    if isinstance(value, int) and not isinstance(value, bool):
        return Decimal(value)
    if isinstance(value, str) and value.startswith("0000-00-00"):
        return None
    return value


def counts(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Returns the number of cases with each outcome."""
    return dict(Counter(one.kind for one in outcomes))
