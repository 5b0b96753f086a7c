"""An orphaned driver commits between another driver's reading of the applied position and its statement, or the other
way round, with other batch boundaries. Two real drivers are held at that point; each change is applied exactly once.

The drivers merge by Spark, or by delta-rs what it can merge."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from deltalake import DeltaTable

from cdc.base.targets import table_path
from cdc.capture import Capture
from cdc.config import DestinationConfig
from cdc.testing.servers import Server
from tests.fault.held import Driver, release
from tests.fault.support import configure, require_exactly_once, wait_for, with_delta_rs
from tests.support.compare import select_rows
from tests.support.load import Load

LOST_BATCH = {"TokenError", "BatchError"}
"""Errors of the merge (which renews its lease at its end) and of the ack of a driver that has lost its batch."""
TABLES = ("accounts", "lines", "journal")


@dataclass
class Setup:
    """A destination with two warm drivers."""

    server: Server
    database: str
    config: DestinationConfig
    traffic: Load
    rng: random.Random
    first: Driver
    other: Driver
    folder: Path
    cases: int = 0

    def more(self, transactions: int) -> None:
        """Runs and captures more load."""
        self.traffic.run(transactions)
        Capture(self.config).run(until_current=True)

    def place(self, name: str) -> Path:
        """Returns a new path to hold a driver at."""
        self.cases += 1
        return self.folder / f"{name}{self.cases}"

    def drain(self, driver: Driver, transactions: int | None = None) -> None:
        """Merges and acks all remaining transactions."""
        while driver.get(transactions) is not None:
            assert driver.do("merge", None) == "merged"
            assert driver.do("ack") == "done"

    def versions(self) -> dict[str, int]:
        """Returns the versions of the Delta tables."""
        target = self.config.apply.target
        return {table: DeltaTable(table_path(target, self.database, table)).version() for table in TABLES}

    def require(self) -> None:
        require_exactly_once(self.server, self.database, self.config, self.traffic.changes)


@pytest.fixture(
    scope="module",
    params=["spark and spark", "delta-rs and spark", "spark and delta-rs", "delta-rs and delta-rs"],
)
def setup(
    mysql9: Server, tmp_path_factory: pytest.TempPathFactory, seed: int, request: pytest.FixtureRequest
) -> Iterator[Setup]:
    """A destination whose tables exist and have rows, and the engines of its drivers."""
    rng = random.Random(f"{seed} orphans")
    database = f"orphans_{random.SystemRandom().randrange(2**32):08x}"
    mysql9.execute(f"CREATE DATABASE {database}")
    folder = tmp_path_factory.mktemp("orphans")
    config = configure(folder, mysql9, database)
    engines = zip(("first", "other"), request.param.split(" and "), strict=True)
    drivers = [Driver(name, with_delta_rs(config) if engine == "delta-rs" else config) for name, engine in engines]
    try:
        traffic = Load(mysql9, database, rng.getrandbits(32))
        made = Setup(mysql9, database, config, traffic, rng, drivers[0], drivers[1], folder)
        made.more(60)
        for driver in drivers:
            assert driver.answer() == "ready"
        made.drain(drivers[0])
        made.require()
        yield made
    finally:
        for driver in drivers:
            driver.end()
        mysql9.execute(f"DROP DATABASE {database}")


def take_over(setup: Setup, transactions: int) -> int:
    """The other driver takes over the first one's batch and fetches one with another boundary. Returns the number of its
    tables."""
    setup.other.get(None)
    assert setup.other.do("rollback") == "done"
    tables = setup.other.get(transactions)
    assert isinstance(tables, int)
    return tables


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(30, [7]), (25, [7, 30]), (7, [30])],
    ids=["a-shorter-one", "all-of-it-and-more", "a-longer-one"],
)
def test_others_commit_between_position_and_statement(setup: Setup, ours: int, theirs: list[int]) -> None:
    setup.more(50)
    place = setup.place("held")
    setup.first.hold(place, setup.first.get(ours))
    take_over(setup, theirs[0])
    for following in [*theirs[1:], None]:
        assert setup.other.do("merge", None) == "merged"
        assert setup.other.do("ack") == "done"
        if following is not None:
            setup.other.get(following)
    release(place)
    assert setup.first.answer() in LOST_BATCH
    assert setup.first.do("ack") in LOST_BATCH
    setup.drain(setup.other, setup.rng.choice((30, None)))
    setup.require()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("ours", "theirs"), [(30, 7), (7, 40)], ids=["a-longer-one", "a-shorter-one"])
def test_the_orphan_commits_between_the_others_position_and_statement(setup: Setup, ours: int, theirs: int) -> None:
    setup.more(50)
    place, others_place = setup.place("held"), setup.place("held")
    setup.first.hold(place, setup.first.get(ours))
    setup.other.hold(others_place, take_over(setup, theirs))
    before = setup.versions()
    release(place)
    assert setup.first.answer() in LOST_BATCH
    assert setup.versions() != before  # its statements ran all the same
    release(others_place)
    assert setup.other.answer() == "merged"
    assert setup.first.do("ack") in LOST_BATCH
    assert setup.other.do("ack") == "done"
    setup.drain(setup.other, setup.rng.choice((30, None)))
    setup.require()


@pytest.mark.timeout(600)
def test_two_statements_at_the_same_moment(setup: Setup) -> None:
    setup.more(50)
    place, others_place = setup.place("held"), setup.place("held")
    setup.first.hold(place, setup.first.get(40))
    setup.other.hold(others_place, take_over(setup, 30))
    release(place)
    release(others_place)
    # The second driver meets the first one's commit and retries, which fails without a valid token.
    assert setup.first.answer() in LOST_BATCH
    assert setup.other.answer() == "merged"
    assert setup.first.do("ack") in LOST_BATCH
    assert setup.other.do("ack") == "done"
    setup.drain(setup.other)
    setup.require()


@pytest.mark.timeout(600)
def test_an_expired_lease_is_taken_over_by_another_owner(setup: Setup) -> None:
    setup.more(30)
    place = setup.place("held")
    setup.first.hold(place, setup.first.get(30, lease_s=10))
    setup.first.suspend()
    assert setup.other.get(None, owner="airflow:another") == "LeaseHeldError"
    wait_for(lambda: setup.other.get(None, owner="airflow:another") != "LeaseHeldError", "the end of the lease")
    assert setup.other.do("merge", None) == "merged"
    assert setup.other.do("ack") == "done"
    setup.first.resume()
    release(place)
    assert setup.first.answer() in LOST_BATCH
    assert setup.first.do("ack") in LOST_BATCH
    setup.drain(setup.first)
    setup.require()


def test_spark_shows_what_select_shows(setup: Setup) -> None:
    """The rows that the orphans have left, read by Spark."""
    setup.more(20)
    setup.drain(setup.first)
    columns, expected = select_rows(setup.server, setup.database, "accounts")
    path = table_path(setup.config.apply.target, setup.database, "accounts")
    assert setup.first.do("rows", path, columns) == [repr(row) for row in expected]
