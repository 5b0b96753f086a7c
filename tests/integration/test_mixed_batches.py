"""DDL statements and rows in one batch: every table has its statement at its own position, and its rows behind it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import cdc
from cdc.base.errors import CdcError
from cdc.batches.lease import Lease
from cdc.batches.service import BatchService
from cdc.lake import pipeline
from cdc.lake.apply import commit
from cdc.lake.apply.schema import spark_lake
from cdc.lake.runtime import session
from cdc.store.reader.batch_builder import Limits
from cdc.testing.servers import Server
from tests.support.apply import OWNER, Killed, Loop

Database = Callable[[Server], str]
CREATE = "CREATE TABLE {} (id INT PRIMARY KEY, v VARCHAR(20))"
SEED = 157
HISTORY = ("_seq", "_row")


@pytest.fixture(autouse=True)
def _hooks() -> Iterator[None]:
    yield
    spark_lake.before_step = lambda table, step: None
    commit.before_statement = lambda table: None


@pytest.fixture
def loop(tmp_path: Path, mysql9: Server, database: Database) -> Loop:
    return Loop(tmp_path, mysql9, database(mysql9))


def applied(loop: Loop, limits: Limits) -> list[Lease]:
    """Applies everything. Returns the batches."""
    leases: list[Lease] = []
    while (lease := BatchService(loop.config, mixes=True).get(OWNER, limits=limits, wait_s=0)) is not None:
        pipeline.finalize(loop.config, lease, True, pipeline.merge(loop.config, lease))
        leases.append(lease)
    return leases


def test_each_table_is_exact_at_each_moment_of_the_batch(loop: Loop) -> None:
    loop.sql(CREATE.format("old"), "INSERT INTO old VALUES (1, 'a')")
    loop.capture()
    loop.apply_all()
    loop.sql(CREATE.format("new"), "INSERT INTO new VALUES (1, 'b')")
    first = loop.capture_seq()
    loop.sql("ALTER TABLE old ADD COLUMN w INT DEFAULT 7", "INSERT INTO new VALUES (2, 'c')")
    altered = loop.capture_seq()
    loop.sql("INSERT INTO old VALUES (2, 'd', 8)", "UPDATE new SET v = 'x'", "CREATE INDEX i ON new (v)")
    loop.capture()
    [lease] = applied(loop, Limits())
    assert (lease.manifest.version, lease.manifest.mixed, lease.manifest.ddl) == (2, True, True)
    loop.require_equal("old")
    loop.require_equal("new")
    ends = [entry["last_seq"] for _, entry in pipeline.ledger(loop.config, f"{loop.db}.old", str(loop.path("old")))]
    assert max(ends) == lease.manifest.last_seq
    assert first < sorted(ends)[-2] < altered  # the statement has its own position
    spark = session.acquire(loop.config.spark).spark
    for seq, old, new in (
        (first, [(1, "a")], [(1, "b")]),
        (altered, [(1, "a", 7)], [(1, "b"), (2, "c")]),
        (lease.manifest.last_seq, [(1, "a", 7), (2, "d", 8)], [(1, "x"), (2, "x")]),
    ):
        frames = cdc.read_as_of(spark, loop.config, seq=seq)
        assert sorted(map(tuple, frames[f"{loop.db}.old"].collect())) == old
        assert sorted(map(tuple, frames[f"{loop.db}.new"].collect())) == new


@pytest.mark.long
def test_an_index_between_the_first_rows_of_a_table_loses_none(
    tmp_path: Path, mysql9: Server, database: Database
) -> None:
    db = database(mysql9)
    mysql9.execute(f"CREATE TABLE {db}.a (id INT PRIMARY KEY, v VARCHAR(20))")
    loop = Loop(tmp_path, mysql9, db)
    loop.sql("INSERT INTO a VALUES (1, 'a')", "CREATE INDEX i ON a (v)", "INSERT INTO a VALUES (2, 'b')")
    loop.capture()
    assert [lease.manifest.mixed for lease in applied(loop, Limits())] == [True]
    loop.require_equal("a")


@pytest.mark.long
def test_a_statement_that_cannot_be_applied_parks_its_table_alone(
    tmp_path: Path, mysql9: Server, database: Database
) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9), apply="on_error: park")
    loop.sql(CREATE.format("a"), CREATE.format("b"), "INSERT INTO a VALUES (1, 'a')", "INSERT INTO b VALUES (1, 'b')")
    loop.capture()
    loop.apply_all()
    loop.sql(
        "INSERT INTO b VALUES (2, 'b')",
        "ALTER TABLE a ADD COLUMN n INT NOT NULL UNIQUE AUTO_INCREMENT",
        "ALTER TABLE b ADD COLUMN w INT",
        "INSERT INTO a VALUES (2, 'a', 9)",
        CREATE.format("c"),
        "INSERT INTO c VALUES (1, 'c')",
    )
    loop.sql("INSERT INTO b VALUES (3, 'b', 1)")
    loop.capture()
    assert [lease.manifest.mixed for lease in applied(loop, Limits())] == [True, True]
    assert list(BatchService(loop.config).subscription().parked) == [f"{loop.db}.a"]
    loop.require_equal("b")
    loop.require_equal("c")
    pipeline.snapshot(loop.config, [f"{loop.db}.a"])
    assert not BatchService(loop.config).subscription().parked
    loop.require_equal("a")


@pytest.mark.long
def test_a_batch_by_the_older_rule_is_merged_first(loop: Loop) -> None:
    loop.sql(CREATE.format("a"), "INSERT INTO a VALUES (1, 'a')", "ALTER TABLE a ADD COLUMN w INT", CREATE.format("b"))
    loop.sql("INSERT INTO b VALUES (1, 'b')", "INSERT INTO a VALUES (2, 'a', 2)")
    loop.capture()
    older = BatchService(loop.config).get(OWNER, wait_s=0)
    assert older is not None
    leases = applied(loop, Limits())
    assert (leases[0].batch, leases[0].manifest.transactions) == (older.batch, 1)
    assert [lease.manifest.mixed for lease in leases] == [False, False, True]
    loop.require_equal("a")
    loop.require_equal("b")


@pytest.mark.long
def test_foreign_keys_that_change_rows_keep_statements_apart(
    tmp_path: Path, mariadb11: Server, database: Database
) -> None:
    loop = Loop(tmp_path, mariadb11, database(mariadb11))
    loop.sql(
        CREATE.format("parent"),
        "CREATE TABLE child (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE)",
        "INSERT INTO parent VALUES (1, 'a'), (2, 'b')",
        "INSERT INTO child VALUES (1, 1), (2, 2)",
        "ALTER TABLE parent ADD COLUMN w INT",
        "DELETE FROM parent WHERE id = 1",
    )
    loop.capture()
    assert not any(lease.manifest.mixed for lease in applied(loop, Limits()))
    loop.require_equal("parent")
    loop.require_equal("child")


class _Source:
    """A random history of tables, with statements that need no look at the rows."""

    def __init__(self, rng: random.Random, tables: int) -> None:
        self._rng = rng
        self._waiting = [f"t{number}" for number in range(tables)]
        self.columns: dict[str, list[str]] = {}
        self._number = 0

    def take(self, table: str) -> None:
        """Takes a table as created."""
        self._waiting.remove(table)
        self.columns[table] = ["v"]

    def step(self) -> str:
        self._number += 1
        number, draw = self._number, self._rng.random()
        if not self.columns or (self._waiting and draw < 0.25):
            table = self._waiting[-1]
            self.take(table)
            return CREATE.format(table)
        table = self._rng.choice(sorted(self.columns))
        columns = self.columns[table]
        if draw < 0.35:
            columns.append(f"c{number}")
            return f"ALTER TABLE {table} ADD COLUMN c{number} INT DEFAULT {number}"
        if draw < 0.4 and len(columns) > 1:
            gone = columns.pop()
            return f"ALTER TABLE {table} DROP COLUMN {gone}"
        if draw < 0.43:
            return f"CREATE INDEX i{number} ON {table} (v)"
        if draw < 0.46:
            return f"TRUNCATE TABLE {table}"
        if draw < 0.48:
            return f"CREATE TABLE IF NOT EXISTS {table} (other INT)"
        if draw < 0.8:
            return f"INSERT INTO {table} (id, v) VALUES ({number}, 'row {number}')"
        if draw < 0.9:
            return f"UPDATE {table} SET v = 'at {number}' WHERE id % 3 = {number % 3}"
        return f"DELETE FROM {table} WHERE id % 5 = {number % 5}"


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [SEED, SEED + 1])
def test_random_histories_with_kills(seed: int, tmp_path: Path, mysql9: Server, database: Database) -> None:
    """The mirrors equal the source, and the histories those of another destination whose batches are not mixed."""
    rng, db = random.Random(seed), database(mysql9)
    source = _Source(rng, 6)
    for table in ("t3", "t4"):  # they are there before capture begins
        mysql9.execute(f"CREATE TABLE {db}.{table} (id INT PRIMARY KEY, v VARCHAR(20))")
        source.take(table)
    overrides = "DB.t0: {mode: append}, DB.t1: {mode: soft_delete}, DB.t2: {mode: scd2}"
    mixing, apart = (
        Loop(tmp_path, mysql9, db, name=name, target=f"lake-{name}", overrides=overrides) for name in ("a", "b")
    )
    mixed = 0
    for _ in range(2):
        mixing.sql(*(source.step() for _ in range(24)))
        mixing.capture()
        mixed += _apply_with_kills(mixing, rng)
    assert mixed > 1
    apart.capture()
    while (lease := BatchService(apart.config).get(OWNER, wait_s=0)) is not None:
        assert not lease.manifest.mixed
        pipeline.finalize(apart.config, lease, True, pipeline.merge(apart.config, lease))
    for table in sorted(source.columns):
        order = "_seq, _row" if table == "t0" else "1"
        assert mixing.delta(table, order=order) == apart.delta(table, order=order)
        if table not in ("t0", "t1", "t2"):
            mixing.require_equal(table)


def _apply_with_kills(loop: Loop, rng: random.Random) -> int:
    """Applies everything, with a kill before a random step of most batches. Returns the number of mixed batches."""
    mixed = failures = 0
    while True:
        limits = Limits(max_transactions=rng.choice([None, 4, 9]))
        lease = BatchService(loop.config, mixes=True).get(OWNER, limits=limits, wait_s=0)
        if lease is None:
            return mixed
        left = rng.randrange(6)

        def die(table: str, step: str = "") -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed(table)

        spark_lake.before_step, commit.before_statement = die, die
        try:
            results = pipeline.merge(loop.config, lease)
        except CdcError:
            failures += 1
            assert failures < 60
            if rng.random() < 0.5:  # the transactions come again, perhaps in other batches
                pipeline.release(loop.config, OWNER)
            continue
        finally:
            left = 0
        mixed += lease.manifest.mixed
        pipeline.finalize(loop.config, lease, True, results)
