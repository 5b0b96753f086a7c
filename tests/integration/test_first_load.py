"""Statements of every kind while tables wait for their first snapshot, and while it is taken."""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cdc.base.errors import CdcError
from cdc.batches.service import BatchService
from cdc.lake import pipeline
from cdc.lake.jobs.parked import left_out
from cdc.lake.jobs.retry import retry_parked
from cdc.lake.jobs.snapshot import take_snapshots
from cdc.lake.runtime import session
from cdc.source.snapshot import positions
from cdc.testing.servers import Server
from tests.support.apply import Loop
from tests.support.capturing import capturing_from_now

Database = Callable[[Server], str]
SEEDS = int(os.environ.get("TOWPATH_FIRST_LOAD_SEEDS", "1"))
_ROUNDS = 4
_SAMPLED = 4
"""Sessions of a seed but 0, which has all."""
_MODES = ("upsert", "soft_delete", "upsert", "scd2", "upsert", "append")
_MODE_COLUMNS = ("_deleted", "_commit_time", "_seq", "_valid_from", "_valid_to", "_current")
_FORMATS = ("ROW", "MIXED", "STATEMENT")
_DDL = ("CREATE", "ALTER", "RENAME", "DROP", "TRUNCATE")
_PARTITIONS = "(PARTITION p0 VALUES LESS THAN (100), PARTITION p1 VALUES LESS THAN MAXVALUE)"


# --- what sessions do to one table: each function returns the statements of a session, in their order


def gh_ost(t: str) -> list[str]:
    return [
        f"CREATE TABLE _{t}_gho LIKE {t}",
        f"ALTER TABLE _{t}_gho ADD COLUMN w INT NOT NULL DEFAULT 3",
        f"INSERT INTO _{t}_gho (id, v) SELECT id, v FROM {t}",
        f"RENAME TABLE {t} TO _{t}_del, _{t}_gho TO {t}",
        f"INSERT INTO {t} (id, v) VALUES (101, 1)",
        f"DROP TABLE _{t}_del",
    ]


def online_schema_change(t: str) -> list[str]:
    return [
        f"CREATE TABLE _{t}_new LIKE {t}",
        f"ALTER TABLE _{t}_new MODIFY v BIGINT",
        f"CREATE TRIGGER {t}_ins AFTER INSERT ON {t} FOR EACH ROW REPLACE INTO _{t}_new (id, v) VALUES (NEW.id, NEW.v)",
        f"INSERT IGNORE INTO _{t}_new SELECT * FROM {t}",
        f"INSERT INTO {t} (id, v) VALUES (102, 2)",
        f"RENAME TABLE {t} TO _{t}_old, _{t}_new TO {t}",
        f"DROP TABLE _{t}_old",
    ]


def renamed(t: str) -> list[str]:
    return [f"RENAME TABLE {t} TO {t}_r", f"INSERT INTO {t}_r VALUES (103, 3)", f"ALTER TABLE {t}_r ADD w INT"]


def swapped(t: str) -> list[str]:
    return [
        f"CREATE TABLE {t}_b (id INT PRIMARY KEY, v VARCHAR(20))",
        f"INSERT INTO {t}_b VALUES (1, 'one')",
        f"RENAME TABLE {t} TO {t}_x, {t}_b TO {t}, {t}_x TO {t}_b",
        f"INSERT INTO {t}_b VALUES (104, 4)",
        f"DELETE FROM {t}",
    ]


def copied(t: str) -> list[str]:
    return [
        f"CREATE TABLE {t}_l LIKE {t}",
        f"INSERT INTO {t}_l SELECT * FROM {t}",
        f"ALTER TABLE {t} ADD COLUMN w INT",
        f"INSERT INTO {t}_l VALUES (105, 5)",
    ]


def selected(t: str) -> list[str]:
    return [f"CREATE TABLE {t}_s (PRIMARY KEY (id)) AS SELECT * FROM {t}", f"DELETE FROM {t}_s WHERE id = 1"]


def dropped(t: str) -> list[str]:
    return [f"INSERT INTO {t} VALUES (106, 6)", f"DROP TABLE {t}"]


def created_anew(t: str) -> list[str]:
    return [
        f"DROP TABLE {t}",
        f"CREATE TABLE {t} (id INT PRIMARY KEY, z VARCHAR(10))",
        f"INSERT INTO {t} VALUES (1, 'a'), (107, 'b')",
    ]


def altered(t: str) -> list[str]:
    return [
        f"ALTER TABLE {t} ADD COLUMN w VARCHAR(9) NOT NULL DEFAULT 'x' FIRST",
        f"INSERT INTO {t} (id, v) VALUES (108, 8)",
        f"ALTER TABLE {t} DROP COLUMN v, CHANGE id id BIGINT",
        f"UPDATE {t} SET w = 'y' WHERE id < 3",
        f"ALTER TABLE {t} MODIFY w VARCHAR(9) AFTER id",
    ]


def truncated(t: str) -> list[str]:
    return [f"TRUNCATE TABLE {t}", f"INSERT INTO {t} VALUES (109, 9)"]


def exchanged(t: str) -> list[str]:
    return [
        f"CREATE TABLE {t}_p (id INT PRIMARY KEY, v INT) PARTITION BY RANGE (id) {_PARTITIONS}",
        f"INSERT INTO {t}_p VALUES (7, 70), (700, 1)",
        f"ALTER TABLE {t}_p EXCHANGE PARTITION p0 WITH TABLE {t}",
        f"INSERT INTO {t} VALUES (8, 80)",
        f"ALTER TABLE {t}_p DROP PARTITION p1",
    ]


def temporary(t: str) -> list[str]:
    return [
        "SET SESSION binlog_format = STATEMENT",
        f"CREATE TEMPORARY TABLE {t} (id INT PRIMARY KEY, q INT)",
        f"ALTER TABLE {t} ADD COLUMN r INT",
        f"INSERT INTO {t} VALUES (1, 1, 1)",
        f"TRUNCATE TABLE {t}",
        f"DROP TEMPORARY TABLE {t}",
        "SET SESSION binlog_format = ROW",
        f"INSERT INTO {t} VALUES (110, 10)",
    ]


def taken_back(t: str) -> list[str]:
    return [
        "BEGIN",
        f"INSERT INTO {t} VALUES (111, 1)",
        "SAVEPOINT s",
        f"UPDATE {t} SET v = v + 1",
        "ROLLBACK TO s",
        f"CREATE TEMPORARY TABLE {t}_q (id INT)",
        f"DELETE FROM {t} WHERE id = 2",
        "COMMIT",
        "BEGIN",
        f"DELETE FROM {t}",
        "ROLLBACK",
    ]


_STORIES = (
    gh_ost, online_schema_change, renamed, swapped, copied, selected, dropped, created_anew, altered, truncated,
    exchanged, temporary, taken_back,
)  # fmt: skip


_WITH_FORMATS_OF_THEIR_OWN = (temporary, taken_back)
_OF_A_MIGRATION = (gh_ost, swapped, dropped, renamed)
"""The statements that the test of a migration runs before the first snapshot."""


class Source:
    """Sessions that change a database at once, in an order that a seed tells. Those that do not set their binlog's
    format run each DDL statement in another one. ``any_letters``: statements spell the names of tables in letters of
    either case."""

    def __init__(
        self, loop: Loop, seed: int, any_letters: bool = False, stories: Sequence[Callable[[str], list[str]]] = _STORIES
    ) -> None:
        self.loop, self.chance, self.any_letters = loop, random.Random(seed), any_letters
        # MySQL before 8.0 refuses two of them where transactions have GTIDs.
        is_old = loop.server.kind.name in ("mysql56", "mysql57")
        stories = [story for story in stories if not (is_old and story in (selected, taken_back))]
        if seed:
            stories = random.Random(seed).sample(stories, _SAMPLED)
        self.tables = {f"t{number}": story for number, story in enumerate(stories)}
        self.done: list[str] = []
        self.error: BaseException | None = None

    def create(self) -> None:
        for t in self.tables:
            self.loop.sql(f"CREATE TABLE {t} (id INT PRIMARY KEY, v INT)", f"INSERT INTO {t} VALUES (1, 10), (2, 20)")

    def run(self, pause_s: float) -> None:
        """Runs all statements; :attr:`error` is what ended them early."""
        sessions: list[tuple[Any, Iterator[str], bool]] = []
        try:
            for t, story in self.tables.items():
                connection = self.loop.server.connect()
                connection.cursor().execute(f"USE `{self.loop.db}`")
                sessions.append((connection, iter(story(t)), story not in _WITH_FORMATS_OF_THEIR_OWN))
            while sessions:
                at = self.chance.randrange(len(sessions))
                connection, statements, any_format = sessions[at]
                statement = next(statements, None)
                if statement is None:
                    connection.close()
                    sessions.pop(at)
                    continue
                self.done.append(statement)
                self._execute(connection, statement, any_format)
                time.sleep(self.chance.random() * pause_s)
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.error = error

    def _execute(self, connection: Any, statement: str, any_format: bool) -> None:
        cursor = connection.cursor()
        if any_format:
            of_ddl = self.chance.choice(_FORMATS)
            cursor.execute(f"SET SESSION binlog_format = {of_ddl if statement.startswith(_DDL) else 'ROW'}")
        if self.any_letters:
            statement = re.sub(r"\b_?t\d+\w*", self._respell, statement)
        cursor.execute(statement)

    def _respell(self, name: re.Match[str]) -> str:
        return "".join(self.chance.choice((letter.lower(), letter.upper())) for letter in name.group())

    def list_tables(self) -> Iterator[str]:
        with self.loop.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s", self.loop.db)
            yield from sorted(name for (name,) in cursor.fetchall())


def bring_level(loop: Loop) -> None:
    """Does what an operator does: captures, applies, and takes the snapshots that are asked for."""
    for _ in range(_ROUNDS):
        loop.capture()
        loop.apply_all()
        retry_parked(loop.config)
        take_snapshots(loop.config)
        if not left_out(loop.config):
            break
    loop.capture()
    loop.apply_all()


def require_all_equal(loop: Loop, source: Source) -> None:
    assert left_out(loop.config) == []
    with session.acquire(loop.config.spark, 0).tables.one() as table_session:  # other readers do not know widened types
        for table in source.list_tables():
            frame = table_session.spark.read.format("delta").load(str(loop.path(table)))
            current = {"soft_delete": "NOT _deleted", "scd2": "_current"}.get(loop.config.apply.mode)
            if loop.config.apply.mode != "append":  # verify folds the changes
                rows = frame.where(current or "true").drop(*_MODE_COLUMNS).orderBy("id").collect()
                assert [row.asDict() for row in rows] == loop.select(table, "id"), table
    report = pipeline.verify(loop.config, None, wait_s=10)
    shown = "\n".join(str(table) for table in report.tables)
    if loop.config.apply.mode == "append":  # columns that were added later are left out of the proof
        assert report.exit_code < 2, shown
        assert not any(table.unknown for table in report.tables), shown
    else:
        assert report.exit_code == 0, shown


@pytest.fixture(scope="module")
def ignoring_case() -> Iterator[Callable[[str], Server]]:
    """Starts a server whose names of tables ignore case, once for each kind."""
    with ExitStack() as stack:
        servers: dict[str, Server] = {}

        def start(kind: str) -> Server:
            if kind not in servers:
                servers[kind] = stack.enter_context(Server(kind, options=["--lower-case-table-names=1"]))
            return servers[kind]

        yield start


@pytest.mark.parametrize(
    "mode", ["upsert", *(pytest.param(mode, marks=pytest.mark.long) for mode in ("soft_delete", "append", "scd2"))]
)
def test_a_migration_before_the_first_snapshot_needs_nothing_of_its_helpers(
    mode: str, mysql9: Server, tmp_path: Path, database: Database
) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9), start="snapshot", apply=f"on_error: park, mode: {mode}")
    source = Source(loop, 0, stories=_OF_A_MIGRATION)
    source.create()
    loop.capture()
    source.run(0)
    assert source.error is None
    loop.capture()
    take_snapshots(loop.config)
    loop.apply_all()
    assert [entry.table.partition(".")[2] for entry in left_out(loop.config)] == []
    loop.capture()
    subscription = BatchService(loop.config).subscription()
    assert set(subscription.tables) >= {f"{loop.db}.{table}" for table in source.list_tables()}
    if mode == "upsert":
        require_all_equal(loop, source)


@pytest.mark.long
def test_a_statement_just_before_the_snapshot_of_a_server_without_gtids(
    mysql56: Server, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshot needs the changes of a margin before it, and a statement in there ended it after five attempts
    within a second."""
    monkeypatch.setattr(positions, "MARGIN_S", 10.0)
    loop = Loop(tmp_path, mysql56, database(mysql56), start="snapshot", apply="on_error: park")
    loop.sql("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1)")
    loop.capture()
    time.sleep(11)  # until the beginning of the store is behind the margin
    loop.sql("ALTER TABLE t ADD w INT DEFAULT 7", "INSERT INTO t VALUES (2, 2, 2)")
    loop.capture()
    take_snapshots(loop.config)
    loop.apply_all()
    assert left_out(loop.config) == []
    loop.require_equal("t")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kind", "left_out", "seed"),
    [
        pytest.param("mysql9", _OF_A_MIGRATION, 0, id="mysql9-some-0", marks=pytest.mark.long),
        *(
            pytest.param(kind, (), seed, id=f"{kind}-{seed}", marks=pytest.mark.long)
            for kind in ("mysql9", "mariadb11", "mariadb10", "mysql56")
            for seed in range(SEEDS)
        ),
    ],
)
def test_statements_while_the_first_snapshot_is_taken(
    kind: str,
    left_out: Sequence[Callable[[str], list[str]]],
    seed: int,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    database: Database,
    ignoring_case: Callable[[str], Server],
) -> None:
    any_letters = seed % 4 == 3
    server: Server = ignoring_case(kind) if any_letters else request.getfixturevalue(kind)
    mode = _MODES[seed % len(_MODES)]
    engine = "deltalake, max_rows: 10000" if seed % 5 in (1, 2) else "spark"
    print(f"{server.kind.name}, seed {seed}: mode {mode}, engine {engine}, any letters {any_letters}")
    loop = Loop(
        tmp_path,
        server,
        database(server),
        start="snapshot",
        apply=f"on_error: park, mode: {mode}, small_batches: {{engine: {engine}}}",
        tables="lower_case_table_names: 1" if any_letters else "",
    )
    source = Source(loop, seed, any_letters, [story for story in _STORIES if story not in left_out])
    chance = random.Random(seed + 1000)
    source.create()
    refused: list[str] = []
    with capturing_from_now(loop.config):
        writer = threading.Thread(target=source.run, args=(chance.choice((0.05, 0.3)),))
        writer.start()
        while writer.is_alive():
            try:
                chance.choice((loop.apply_all, lambda: take_snapshots(loop.config)))()
            except CdcError as error:  # a table was altered, renamed or dropped while it was read: it is read again
                refused.append(str(error))
            time.sleep(chance.random())
        writer.join()
    assert source.error is None, source.done
    assert len(source.done) == sum(len(story(t)) for t, story in source.tables.items())
    print("\n".join(refused))
    bring_level(loop)
    require_all_equal(loop, source)
