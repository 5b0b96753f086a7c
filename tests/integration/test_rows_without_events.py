"""Random foreign keys, maintenance of partitions and ALTERs in strict sessions and others, side by side in one
destination: the lake has the rows of the source, or a sentence names table, statement and way out."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pymysql
import pytest

from cdc.batches.service import BatchService
from cdc.lake import pipeline
from cdc.testing.servers import Server
from tests.integration.test_partitions import Maintenance, require_equal, selected
from tests.integration.test_random_conversions import random_case
from tests.support.apply import Loop
from tests.support.capturing import capturing
from tests.support.ddl_corpus import Case
from tests.support.ddl_loop import delta_rows, shown_rows
from tests.support.foreign_keys import MODES, RandomRows, present_rows, selected_rows

SEEDS = int(os.environ.get("TOWPATH_UNLOGGED_SEEDS") or 1)
"""The number of destinations."""
ALTERED = 6
"""Tables with ALTERs in each destination."""


def _alter(server: Server, db: str, number: int, case: Case) -> list[str]:
    """Executes the statements of a case on its table. Returns those that the server took."""
    done = []
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"USE `{db}`")
        cursor.execute(case.set_mode)
        for sql in case.sql:
            statement = sql.replace("ALTER TABLE t ", f"ALTER TABLE a{number} ", 1)
            try:
                cursor.execute(statement)
                done.append(statement)
            except pymysql.MySQLError:
                break
    return done


def _parked(loop: Loop) -> dict[str, str]:
    return {name: entry.reason for name, entry in BatchService(loop.config).subscription().parked.items()}


def _run(folder: Path, server: Server, db: str, converts: bool, rng: random.Random) -> int:
    """Returns the number of tables that had to be read again."""
    mode = {f"t{number}": rng.choice(MODES) for number in range(5)}
    parts = [Maintenance(f"p{n}", random.Random(rng.random()), converts) for n in range(2)]
    for part in parts:
        mode |= {name: rng.choice(MODES) for name in part.names}
    overrides = ", ".join(f"DB.{name}: {{mode: {table_mode}}}" for name, table_mode in mode.items())
    loop = Loop(folder, server, db, overrides=overrides, apply="on_error: park", start="now")
    loop.sql(*(sql for part in parts for sql in part.create))
    rows = RandomRows(server, db, rng)
    rows.create()
    cases = [random_case(rng, number) for number in range(ALTERED)]
    loop.sql("SET sql_mode = ''", *(case.tables[0].create.replace(" t ", f" a{n} ", 1) for n, case in enumerate(cases)))
    loop.capture()
    for number, case in enumerate(cases):
        loop.sql("SET sql_mode = ''", *(f"INSERT INTO a{number} VALUES ({row})" for row in case.tables[0].rows))
    altered: dict[str, list[str]] = {}
    for turn in range(2):
        rows.change(40)
        for part in parts:
            loop.sql(*part.steps())
        if rng.random() < 0.5:
            loop.capture()  # else the source shows later definitions
        for number in range(turn, ALTERED, 2):
            altered[f"{db}.a{number}"] = _alter(server, db, number, cases[number])
        rows.change(20)
        loop.capture()
        loop.apply_all(transactions=rng.choice((None, 15, 40)))
    parked = _parked(loop)
    for name, reason in parked.items():
        words = " ".join(reason.split())
        assert name in altered, f"{name}: {words}"
        assert any(" ".join(sql.split())[:200] in words for sql in altered[name]) or "row event" in words, words
        assert f"cdc snapshot shop {name}" in words, words
    reread = [
        name for name, entry in BatchService(loop.config).subscription().parked.items() if entry.due == "snapshot"
    ]
    if reread:
        with capturing(loop.config):
            pipeline.snapshot(loop.config, reread)
        loop.capture()
        loop.apply_all()
    parked_tables = _parked(loop)
    for number in range(ALTERED):
        if f"{db}.a{number}" not in parked_tables:
            assert delta_rows(loop.config, db, f"a{number}") == shown_rows(server, db, f"a{number}"), cases[number]
    for part in parts:
        for name in (part.table, part.other, *part.made):
            if selected(loop, name)[0]:
                require_equal(loop, name, mode[name])
    for table in rows.tables:
        lake = present_rows(loop.config, db, table.name, table.primary_key)
        assert lake == selected_rows(server, db, table.name), table.name
    with capturing(loop.config):
        report = pipeline.verify(loop.config)
    wrong = [(table.table, table.checksums, table.ledger) for table in report.tables if table.state == "differs"]
    assert wrong == []
    return len(parked)


@pytest.mark.long
@pytest.mark.timeout(14400)
@pytest.mark.parametrize("kind", ["mariadb11", "mysql9", "mariadb10", "mysql56"])
def test_the_lake_has_the_rows_of_the_source(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, database: Callable[[Server], str], seed: int
) -> None:
    server: Server = request.getfixturevalue(kind)
    converts = "maria" in _version(server) and "10.5" not in _version(server)
    for number in range(SEEDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        tables_read = _run(folder, server, database(server), converts, random.Random(f"{seed} {number}"))
        print(kind, number, f"{tables_read} tables were read again", flush=True)


def _version(server: Server) -> str:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT VERSION()")
        return str((cursor.fetchone() or ("",))[0]).lower()
