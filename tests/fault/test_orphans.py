"""A driver that was given up goes on: it commits between another's reading of the cut and its statement, or the other
way round, with other batch boundaries. Two real drivers, stopped at that very point; each change exactly once."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from cdc.capture import Capture
from cdc.config import DestinationConfig
from cdc.targets import table_path
from cdc.testing.servers import PASSWORD, Server
from tests.fault.support import configure, require_exactly_once, wait_for
from tests.support.compare import select_rows
from tests.support.load import Load

OWNER = "airflow:apply_shop"
GIVEN_UP = {"TokenError", "BatchError"}
"""What the merge (at its end, where it renews its lease) and the ack of one whose batch was taken away say."""
TABLES = ("accounts", "lines", "journal")


class Driver:
    """A process of ``tests/fault/driver.py``."""

    def __init__(self, name: str, config: DestinationConfig) -> None:
        self.folder = config.file.parent.parent
        self.name = name
        self._log = (self.folder / f"{name}.log").open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fault.driver", str(config.file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def begin(self, *words: Any) -> None:
        """Tell it what to do, without waiting for the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """What came of it."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"driver {self.name} has ended: {(self.folder / f'{self.name}.log').read_text()[-3000:]}"
        return json.loads(line)

    def do(self, *words: Any) -> Any:
        self.begin(*words)
        return self.answer()

    def get(self, transactions: int | None, *, owner: str = OWNER, lease_s: float | None = None) -> Any:
        return self.do("get", owner, transactions, lease_s)

    def hold(self, place: Path, tables: int) -> None:
        """Begin a merge, and return when the statements of all its tables are held behind the reading of the cut."""
        self.begin("merge", str(place))
        wait_for(lambda: len(_held(place)) == tables, f"driver {self.name} at its statements")

    def stand_still(self) -> None:
        """As on a machine that is suspended: the lease is not renewed."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()


def _held(place: Path) -> list[Path]:
    return list(place.parent.glob(f"{place.name}.*.here"))


def let_go(place: Path) -> None:
    """All statements that are held there run."""
    for here in _held(place):
        here.with_suffix(".go").touch()


@dataclass
class Stage:
    """A destination with two warm drivers."""

    server: Server
    database: str
    config: DestinationConfig
    traffic: Load
    dice: random.Random
    one: Driver
    other: Driver
    folder: Path
    cases: int = 0

    def more(self, transactions: int) -> None:
        """More load, captured."""
        self.traffic.run(transactions)
        Capture(self.config).run(until_current=True)

    def place(self, name: str) -> Path:
        """A new place to hold a driver at."""
        self.cases += 1
        return self.folder / f"{name}{self.cases}"

    def drain(self, driver: Driver, transactions: int | None = None) -> None:
        """Merge and ack all that is left."""
        while driver.get(transactions) is not None:
            assert driver.do("merge", None) == "merged"
            assert driver.do("ack") == "done"

    def versions(self) -> dict[str, int]:
        """Of the Delta tables."""
        target = self.config.apply.target
        return {table: DeltaTable(table_path(target, self.database, table)).version() for table in TABLES}

    def require(self) -> None:
        require_exactly_once(self.server, self.database, self.config, self.traffic.changes)


@pytest.fixture(scope="module")
def stage(mysql9: Server, tmp_path_factory: pytest.TempPathFactory, seed: int) -> Iterator[Stage]:
    """Tables that exist and hold something."""
    patch = pytest.MonkeyPatch()
    patch.setenv("TOWPATH_TEST_PASSWORD", PASSWORD)
    dice = random.Random(f"{seed} orphans")
    database = f"orphans_{random.SystemRandom().randrange(2**32):08x}"
    mysql9.execute(f"CREATE DATABASE {database}")
    folder = tmp_path_factory.mktemp("orphans")
    config = configure(folder, mysql9, database)
    drivers = [Driver(name, config) for name in ("one", "other")]
    try:
        traffic = Load(mysql9, database, dice.getrandbits(32))
        made = Stage(mysql9, database, config, traffic, dice, drivers[0], drivers[1], folder)
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
        patch.undo()


def take_over(stage: Stage, transactions: int) -> int:
    """The other driver takes the first one's batch away and gets one with a border of its own; its tables."""
    stage.other.get(None)
    assert stage.other.do("rollback") == "done"
    tables = stage.other.get(transactions)
    assert isinstance(tables, int)
    return tables


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(30, [7]), (25, [7, 30]), (7, [30])],
    ids=["a-shorter-one", "all-of-it-and-more", "a-longer-one"],
)
def test_others_commit_between_the_cut_and_the_statement(stage: Stage, ours: int, theirs: list[int]) -> None:
    stage.more(50)
    place = stage.place("held")
    stage.one.hold(place, stage.one.get(ours))
    take_over(stage, theirs[0])
    for following in [*theirs[1:], None]:
        assert stage.other.do("merge", None) == "merged"
        assert stage.other.do("ack") == "done"
        if following is not None:
            stage.other.get(following)
    let_go(place)
    assert stage.one.answer() in GIVEN_UP
    assert stage.one.do("ack") in GIVEN_UP
    stage.drain(stage.other, stage.dice.choice((30, None)))
    stage.require()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("ours", "theirs"), [(30, 7), (7, 40)], ids=["a-longer-one", "a-shorter-one"])
def test_the_orphan_commits_between_the_others_cut_and_statement(stage: Stage, ours: int, theirs: int) -> None:
    stage.more(50)
    place, others_place = stage.place("held"), stage.place("held")
    stage.one.hold(place, stage.one.get(ours))
    stage.other.hold(others_place, take_over(stage, theirs))
    before = stage.versions()
    let_go(place)
    assert stage.one.answer() in GIVEN_UP
    assert stage.versions() != before  # its statements ran all the same
    let_go(others_place)
    assert stage.other.answer() == "merged"
    assert stage.one.do("ack") in GIVEN_UP
    assert stage.other.do("ack") == "done"
    stage.drain(stage.other, stage.dice.choice((30, None)))
    stage.require()


@pytest.mark.timeout(600)
def test_two_statements_at_the_same_moment(stage: Stage) -> None:
    stage.more(50)
    place, others_place = stage.place("held"), stage.place("held")
    stage.one.hold(place, stage.one.get(40))
    stage.other.hold(others_place, take_over(stage, 30))
    let_go(place)
    let_go(others_place)
    # Whoever comes second meets the first one's commit and tries again, which without a valid token ends.
    assert stage.one.answer() in GIVEN_UP
    assert stage.other.answer() == "merged"
    assert stage.one.do("ack") in GIVEN_UP
    assert stage.other.do("ack") == "done"
    stage.drain(stage.other)
    stage.require()


@pytest.mark.timeout(600)
def test_an_expired_lease_is_taken_over_by_another_owner(stage: Stage) -> None:
    stage.more(30)
    place = stage.place("held")
    stage.one.hold(place, stage.one.get(30, lease_s=10))
    stage.one.stand_still()
    assert stage.other.get(None, owner="airflow:another") == "LeaseHeldError"
    wait_for(lambda: stage.other.get(None, owner="airflow:another") != "LeaseHeldError", "the end of the lease")
    assert stage.other.do("merge", None) == "merged"
    assert stage.other.do("ack") == "done"
    stage.one.go_on()
    let_go(place)
    assert stage.one.answer() in GIVEN_UP
    assert stage.one.do("ack") in GIVEN_UP
    stage.drain(stage.one)
    stage.require()


def test_spark_shows_what_select_shows(stage: Stage) -> None:
    """What the orphans left, read by Spark itself."""
    stage.more(20)
    stage.drain(stage.one)
    columns, expected = select_rows(stage.server, stage.database, "accounts")
    path = table_path(stage.config.apply.target, stage.database, "accounts")
    assert stage.one.do("rows", path, columns) == [repr(row) for row in expected]
