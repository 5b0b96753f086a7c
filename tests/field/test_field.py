"""Every case of the field, through the whole loop: the cases of statements on a server share one destination, and each
scenario has its own."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from cdc.batches.service import BatchService
from cdc.testing.servers import Server
from tests.field.case import Case, Scenario, Session, all_cases
from tests.support.apply import Loop
from tests.support.compare import ordered
from tests.support.ddl_loop import delta_rows, plain, shown_rows

CASES = {name: case for name, case in all_cases().items() if isinstance(case, Case)}
SCENARIOS = {name: case for name, case in all_cases().items() if isinstance(case, Scenario)}
SERVERS = ("mysql9", "mariadb11")
IN_EACH_RUN = ("mysql9", "seatunnel_12348")
"""The scenario that is no long test."""
pytestmark = pytest.mark.field


class Field:
    """The cases of statements of a server, applied."""

    def __init__(self, folder: Path, server: Server, cases: dict[str, Case]) -> None:
        self.server, self.cases = server, cases
        self.prefix = f"field{random.SystemRandom().randrange(2**24):06x}_"
        overrides = ", ".join(
            f"{self.prefix}{name}.{table}: {text}"
            for name, case in cases.items()
            for table, text in case.overrides.items()
        )
        # Spark merges rows on MariaDB, and delta-rs those that it can merge on MySQL.
        small = "" if server.kind.name == "mariadb11" else ", small_batches: {engine: deltalake, max_rows: 100000}"
        self.loop = Loop(
            folder, server, f"{self.prefix}.*", overrides=overrides, apply=f"on_error: park{small}", start="now"
        )

    def run(self) -> None:
        self.loop.capture()  # from here on
        for name in self.cases:
            self.server.execute(f"CREATE DATABASE {self.prefix}{name}")
        # The first statements of all cases, then the second ones: statements of a kind share batches.
        with ExitStack() as stack:
            sessions: dict[tuple[str, str], Any] = {}
            for row in zip_longest(*(case.statements for case in self.cases.values())):
                for name, statement in zip(self.cases, row, strict=True):
                    if statement is not None:
                        self._execute(stack, sessions, name, statement)
        self.loop.capture()
        self.loop.apply_all()
        self.parked = BatchService(self.loop.config).meta.read().subscription("apply").parked

    def close(self) -> None:
        for name in self.cases:
            self.server.execute(f"DROP DATABASE IF EXISTS {self.prefix}{name}")

    def _execute(
        self, stack: ExitStack, sessions: dict[tuple[str, str], Any], name: str, statement: str | Session
    ) -> None:
        db = f"{self.prefix}{name}"
        session, sql = (statement.name, statement.sql) if isinstance(statement, Session) else ("", statement)
        if (name, session) not in sessions:
            connection = stack.enter_context(self.server.connect())
            connection.autocommit(True)
            cursor = sessions[name, session] = stack.enter_context(connection.cursor())
            cursor.execute(f"USE {db}")
            cursor.execute("SET time_zone = '+00:00'")
        sessions[name, session].execute(sql.replace("{db}", db))

    def require(self, name: str) -> None:
        """Checks a case: SELECT, Delta and the right value are the same, or the table is parked with the sentence."""
        case, db = self.cases[name], f"{self.prefix}{name}"
        for table, wanted in case.rows.items():
            assert f"{db}.{table}" not in self.parked, self.parked[f"{db}.{table}"].reason
            right = ordered([plain(value) for value in row] for row in wanted)
            columns, rows = delta_rows(self.loop.config, db, table)
            assert rows == right, f"{table}: Delta"
            assert shown_rows(self.server, db, table) == (columns, right), f"{table}: SELECT"
        for table, sentence in case.refused.items():
            assert re.search(sentence, self.parked[f"{db}.{table}"].reason), self.parked[f"{db}.{table}"].reason
        others = {parked_name for parked_name in self.parked if parked_name.startswith(f"{db}.")} - {
            f"{db}.{refused_name}" for refused_name in case.refused
        }
        assert not others, [self.parked[parked_name].reason for parked_name in others]


@pytest.fixture(scope="module")
def fields(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Field]]:
    """The chosen cases of a server, applied when the first of them is asked for."""
    runs: dict[str, Field] = {}

    def field_of(server: str) -> Field:
        if server not in runs:
            items: list[Any] = [item for item in request.session.items if item.path == request.path]
            chosen = {item.callspec.params["name"] for item in items if item.callspec.params["server"] == server}
            cases = {name: case for name, case in CASES.items() if name in chosen}
            runs[server] = Field(tmp_path_factory.mktemp("field"), request.getfixturevalue(server), cases)
            runs[server].run()
        return runs[server]

    yield field_of
    for run in runs.values():
        run.close()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("server", "name"),
    [
        pytest.param(
            server, name, marks=[] if server == case.servers[0] == "mysql9" and number % 12 == 0 else [pytest.mark.long]
        )
        for server in SERVERS
        for number, (name, case) in enumerate(CASES.items())
        if server in case.servers
    ],
)
def test_a_report_of_the_field(fields: Callable[[str], Field], server: str, name: str) -> None:
    fields(server).require(name)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("server", "name"),
    [
        pytest.param(server, name, marks=[] if (server, name) == IN_EACH_RUN else [pytest.mark.long])
        for server in SERVERS
        for name, scenario in SCENARIOS.items()
        if server in scenario.servers
    ],
)
def test_a_scenario_of_the_field(
    request: pytest.FixtureRequest, tmp_path: Path, database: Callable[[Server], str], server: str, name: str
) -> None:
    shared: Server = request.getfixturevalue(server)
    SCENARIOS[name].run(tmp_path, shared, database(shared))
