"""kill -9 of a driver around its statements: each kind of statement, of Spark and of delta-rs, in one batch.

Every table of the batch gets another statement. The driver is a process of its own, which is killed

- when all statements are planned and none has run (``planned``),
- when some tables have their commits and others have not (``half``),
- while the statements run, as soon as one has written a file (``running``),
- between the last commit and the ack (``merged``).

A driver may also be a client of a Connect server (``connect``), which goes on with what it was told. Then another driver
merges the same changes, in batches of another size. If the process is killed alone, its JVM runs on
for a moment, and its statements are orphans of those of the other driver. The cases come with ``make test-long`` and
``make test-kill``; ``make test`` kills at random moments (test_kills.py).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from deltalake import DeltaTable

from cdc.batches.service import BatchService
from cdc.cli import main as cli
from cdc.config import DestinationConfig, load
from cdc.lake.delta import files
from cdc.lake.rows import changes
from cdc.lake.runtime import connect_server, session
from cdc.testing.servers import Server, free_port
from tests.fault.held import Driver, Whom, release, statements
from tests.fault.support import wait_for, with_delta_rs
from tests.support.apply import OWNER, Loop
from tests.support.compare import ledger_faults

Database = Callable[[Server], str]

KINDS = {
    "fresh": "inserts",
    "mixed": "rewrites files",
    "scattered": "marks rows",
    "dense": "rewrites files",
    "soft": "marks rows",
    "journal": "inserts",
    "periods": "rewrites files",
    "keyless": "rewrites files",
}
"""The tables, and what Spark's statement does in each."""
BY_DELTA_RS = ("fresh", "mixed")
"""The tables that delta-rs merges if it may; others have deletion vectors, or modes and keys that it leaves to Spark."""
OVERRIDES = {
    "scattered": "{deletion_vectors: true}",
    "dense": "{deletion_vectors: true}",
    "soft": "{mode: soft_delete, deletion_vectors: true}",
    "journal": "{mode: append}",
    "periods": "{mode: scd2}",
    "keyless": "{keys: [id]}",
}
ROUNDS = 6
FILLED = 200


@dataclass(frozen=True)
class Case:
    """A kill, and the batches before and after it."""

    moment: Literal["planned", "half", "running", "merged"]
    whom: Whom
    engine: Literal["spark", "delta-rs", "connect"]
    """The engine of the killed driver. The other driver is a Spark of its own after delta-rs, else delta-rs and Spark."""
    ours: int | None
    """The transactions of the killed driver's batch."""
    theirs: int | None
    """The transactions of the next batch."""
    rest: int | None
    """The transactions of each of the batches that follow."""
    tables: tuple[str, ...] = tuple(KINDS)

    @property
    def first(self) -> list[str]:
        """The tables that have their commits in the case ``half``."""
        return list(self.tables[::2])


CASES = [
    Case("half", "both", "spark", None, 4, None, ("scattered", "mixed", "fresh", "journal")),
    Case("planned", "both", "spark", 4, None, 3),
    Case("half", "both", "spark", 5, 3, 2),
    Case("running", "both", "spark", None, 2, None),
    Case("running", "process", "spark", 5, 3, None),
    Case("running", "JVM", "spark", None, 4, 3),
    Case("merged", "both", "spark", 4, None, 2),
    Case("half", "process", "delta-rs", 4, None, 2),
    Case("running", "both", "delta-rs", None, 3, None),
    Case("merged", "process", "delta-rs", 5, 2, None),
    Case("half", "client", "connect", None, 4, 2),
    Case("running", "client", "connect", 5, 3, None),
]
"""The first one is the quickest."""


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of any size are large enough to mark their rows."""
    monkeypatch.setattr(files, "SCATTERED_BYTES", 1)


@pytest.fixture
def port() -> Iterator[int]:
    """The port of a Connect server, which is stopped at the end."""
    port = free_port()
    yield port
    session.discard()
    connect_server.stop(port)
    shutil.rmtree(connect_server.folder_of(port), ignore_errors=True)


def fill(loop: Loop, tables: Collection[str]) -> None:
    """Makes the tables, with rows in all but two."""
    rows = ", ".join(f"({i}, 'old')" for i in range(FILLED))
    for table in tables:
        loop.sql(
            f"CREATE TABLE {table} (id INT NOT NULL, v VARCHAR(20){'' if table == 'keyless' else ', PRIMARY KEY (id)'})"
        )
        if table not in ("fresh", "journal"):
            loop.sql(f"INSERT INTO {table} VALUES {rows}")
    loop.capture()
    loop.apply_all()
    for table in {"scattered", "dense", "soft"}.intersection(tables):
        DeltaTable(str(loop.path(table))).alter.set_table_properties({"delta.enableDeletionVectors": "true"})


def change(loop: Loop, tables: Collection[str]) -> None:
    """Commits the changes, a transaction for each round. Only the last one changes a row of the table ``fresh``."""
    with loop.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"USE `{loop.db}`")
        for turn in range(ROUNDS):
            cursor.execute("BEGIN")
            for table in tables:
                for statement in _changes(table, turn):
                    cursor.execute(statement)
            connection.commit()
    loop.capture()


def _changes(table: str, turn: int) -> list[str]:
    new = 1000 + turn
    if table == "dense":
        return [f"UPDATE dense SET v = '{turn}' WHERE id >= {turn}"]
    if table == "journal":
        return [
            f"INSERT INTO journal VALUES ({turn}, 'new'), ({new}, 'new')",
            f"UPDATE journal SET v = '{new}' WHERE id = 0",
            f"DELETE FROM journal WHERE id = {new - 2}",
        ]
    turn_statements = [f"INSERT INTO {table} VALUES ({new}, 'new')"]
    if table == "fresh":
        return turn_statements + (["UPDATE fresh SET v = 'changed' WHERE id = 1000"] if turn == ROUNDS - 1 else [])
    turn_statements.append(f"UPDATE {table} SET v = '{turn}' WHERE id IN (7, {turn})")
    if turn:
        turn_statements.append(f"UPDATE {table} SET v = 'again' WHERE id = {new - 1}")
        turn_statements.append(f"DELETE FROM {table} WHERE id = {100 + turn}")
    if turn == 3:
        turn_statements.append(f"DELETE FROM {table} WHERE id = {new}")
        turn_statements.append(f"INSERT INTO {table} VALUES (101, 'back')")
        turn_statements.append(f"UPDATE {table} SET id = 5000 WHERE id = 50")
    return turn_statements


def kinds(case: Case) -> dict[str, str]:
    """Returns what the statements of the killed driver do."""
    kind_by_table = {table: KINDS[table] for table in case.tables}
    if case.ours is None:
        kind_by_table["fresh"] = "rewrites files"  # one of its rows changes
    if case.engine == "delta-rs":
        kind_by_table |= dict.fromkeys(BY_DELTA_RS, "delta-rs")
    return kind_by_table


def written(loop: Loop, tables: Collection[str]) -> set[str]:
    """Returns the files of the tables but those of their logs."""
    return {f"{table}/{name}" for table in tables for name in os.listdir(loop.path(table)) if name != "_delta_log"}


def versions(loop: Loop, tables: Collection[str]) -> dict[str, int]:
    return {table: loop.version(table) for table in tables}


def expected_journal() -> list[tuple[str, int]]:
    journal: list[tuple[str, int]] = []
    for turn in range(ROUNDS):
        journal += [("insert", turn), ("insert", 1000 + turn), ("update", 0)]
        journal += [("delete", 998 + turn)] if turn > 1 else []
    return journal


def expected_periods() -> dict[int, list[tuple[str, bool]]]:
    """Returns the values of all versions of the rows that change, and which are current."""
    values: dict[int, list[tuple[str, bool]]] = {}

    def put(key: int, value: str | None) -> None:
        periods = [(old, False) for old, _ in values.get(key, [("old", True)] if key < FILLED else [])]
        values[key] = periods if value is None else [*periods, (value, True)]

    for turn in range(ROUNDS):
        for key in {7, turn}:
            put(key, str(turn))
        if turn != 3:  # inserted and deleted in one transaction
            put(1000 + turn, "new")
        if turn:
            if turn != 4:
                put(999 + turn, "again")
            put(100 + turn, None)
        if turn == 3:
            put(101, "back")
            put(50, None)
            put(5000, "old")
    return values


def require_exactly_once(loop: Loop, tables: Collection[str]) -> None:
    """Compares the tables with SELECT, or with the changes that were made, and checks their ledgers."""
    for table in {"fresh", "mixed", "scattered", "dense", "keyless"}.intersection(tables):
        loop.require_equal(table)
    if "soft" in tables:
        soft = loop.delta("soft", "id, v, _deleted")
        assert [{"id": row["id"], "v": row["v"]} for row in soft if not row["_deleted"]] == loop.select("soft")
        assert [row["id"] for row in soft if row["_deleted"]] == [50, 102, 103, 104, 105, 1003]
    if "journal" in tables:
        assert loop.changelog("journal") == expected_journal()
    if "periods" in tables:
        periods: dict[int, list[tuple[str, bool]]] = {}
        for row in loop.delta("periods", "id, v, _current", "id, _seq"):
            periods.setdefault(row["id"], []).append((row["v"], row["_current"]))
        unchanged: dict[int, list[tuple[str, bool]]] = {key: [("old", True)] for key in range(FILLED)}
        assert periods == unchanged | expected_periods()
    target, meta = loop.config.apply.target, loop.config.meta.path
    faults = [fault for table in tables for fault in ledger_faults(target, loop.db, table, meta)]
    assert not faults, "\n".join(faults)


def with_connect(config: DestinationConfig, port: int) -> DestinationConfig:
    """Starts a Connect server at the port, and returns the configuration that uses it."""
    file = config.file.parent.with_name("connect") / config.file.name
    file.parent.mkdir()
    text = config.file.read_text(encoding="utf-8").replace("{master:", f"{{remote: 'sc://localhost:{port}', master:")
    file.write_text(text, encoding="utf-8")
    assert cli.main(["--conf-dir", str(file.parent), "spark", "start", config.name, "--port", str(port)]) == 0
    loaded = load(file)
    assert (loaded.store.path, loaded.apply.target) == (config.store.path, config.apply.target)
    return loaded


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "case",
    CASES,
    ids=lambda case: f"{case.moment}-{case.whom}-{case.engine}-{len(case.tables)}",
)
def test_a_driver_is_killed_around_its_statements(
    case: Case, mysql9: Server, tmp_path: Path, database: Database, port: int
) -> None:
    overrides = ", ".join(f"DB.{table}: {words}" for table, words in OVERRIDES.items() if table in case.tables)
    loop = Loop(tmp_path, mysql9, database(mysql9), overrides=overrides)
    tables, by_spark, by_delta_rs = case.tables, loop.config, with_delta_rs(loop.config)
    configs = {"spark": by_spark, "delta-rs": by_delta_rs}
    if case.engine == "connect":
        configs["connect"] = with_connect(by_spark, port)
    driver = Driver("killed", configs[case.engine])
    try:
        fill(loop, tables)
        change(loop, tables)
        assert driver.answer() == "ready"
        # Half of the cases read the changes by tasks of Spark.
        small = 0 if case.ours is None and case.engine != "delta-rs" else changes.SMALL_BYTES
        assert driver.do("limits", small, 1) == "done"
        assert driver.get(case.ours, owner=OWNER) == len(tables)
        before, had, place = versions(loop, tables), written(loop, tables), tmp_path / "held"
        driver.hold(place, len(tables))
        assert statements(place) == kinds(case)
        if case.moment == "half":
            release(place, case.first)
            wait_for(lambda: all(loop.version(table) > before[table] for table in case.first), "the commits")
        elif case.moment != "planned":
            release(place)
        if case.moment == "merged":
            assert driver.answer() == "merged"
        elif case.moment == "running":
            wait_for(lambda: bool(written(loop, tables) - had), "a file of a statement")
        driver.kill(case.whom)
        if case.whom == "JVM":
            assert driver.answer() == "MergeFailedError"
        committed = {table for table, version in versions(loop, tables).items() if version > before[table]}
        if case.moment != "running":
            assert committed == {"planned": set(), "half": {*case.first}, "merged": {*tables}}[case.moment]
        print(f"killed with commits of {', '.join(sorted(committed)) or 'no table'}")
        loop.config = by_spark if case.engine == "delta-rs" else by_delta_rs
        lost = loop.fetch()
        BatchService(loop.config).rollback(lost.batch, lost.token)
        loop.apply(case.theirs)
        loop.apply_all(case.rest)
        require_exactly_once(loop, tables)
    finally:
        driver.end()
