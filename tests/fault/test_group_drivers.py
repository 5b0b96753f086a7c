"""Two real drivers write one shared Delta table at once. It has no partitions, so that their rows lie in one file and
their commits are conflicts for Delta; each change is applied exactly once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import pytest
from deltalake import DeltaTable

from cdc.batches.service import BatchService
from cdc.testing.servers import Server
from tests.fault.held import OWNER, Driver, release
from tests.support.groups import TABLES, Database, Member, fill, members

LOST_BATCH = {"TokenError", "BatchError"}


@pytest.fixture
def pair(mysql9: Server, mariadb11: Server, tmp_path: Path, database: Database) -> tuple[Member, Member]:
    loops = members(mysql9, mariadb11, tmp_path, database, apply="partition_by: []")
    for loop in loops:
        loop.capture()
        fill(loop)
        loop.capture()
    return loops


@pytest.fixture
def drivers(pair: tuple[Member, Member]) -> Iterator[tuple[Driver, Driver]]:
    """Two drivers, which have created the tables and filled them at the same moment."""
    eu, us = (Driver(loop.name, loop.config) for loop in pair)
    try:
        assert eu.answer() == us.answer() == "ready"
        while [driver.get(None) for driver in (eu, us)] != [None, None]:
            for driver in (eu, us):
                driver.begin("merge", None)
            for driver in (eu, us):
                assert driver.answer() == "merged"
                assert driver.do("ack") == "done"
        for loop in pair:
            loop.require_own()
        yield eu, us
    finally:
        eu.end()
        us.end()


def change(loop: Member, turn: int) -> None:
    """Changes rows of every table, some of them by their keys, in one transaction for each table, and captures that."""
    with loop.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"USE `{loop.db}`")
        for table in TABLES:
            cursor.execute("BEGIN")
            cursor.execute(f"UPDATE {table} SET v = v + 1 WHERE id % 3 = {turn % 3}")
            cursor.execute(f"DELETE FROM {table} WHERE id = {turn}")
            cursor.execute(f"UPDATE {table} SET id = id + 1000 WHERE id = {turn + 10}")
            cursor.execute(f"INSERT INTO {table} (id, v, note) VALUES ({2000 + turn}, {turn}, 'new')")
            connection.commit()
    loop.capture()


@dataclass(frozen=True)
class Step:
    """One batch of a driver in a turn."""

    transactions: int | None = None
    """At most so many are fetched; None: all up to the next DDL statement."""
    statements: int = len(TABLES)
    """Tables that the batch changes."""


BY_TABLE = (Step(1, 1),) * len(TABLES)
"""The batches of :func:`change`, each with the changes of one table."""
AFTER_DDL = (*(Step(None, 1),) * len(TABLES), Step())
"""Batches of one DDL statement for each table, and one with the changes of all."""


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("ddl", ["TRUNCATE TABLE {}", "ALTER TABLE {} ADD COLUMN extra INT NOT NULL DEFAULT 7"])
def test_two_drivers_write_one_file(
    pair: tuple[Member, Member], drivers: tuple[Driver, Driver], tmp_path: Path, ddl: str
) -> None:
    eu, us = pair
    before = {table: DeltaTable(str(eu.path(table))).version() for table in TABLES}
    us.sql(*[ddl.format(table) for table in TABLES])
    for loop in pair:
        change(loop, 1)
    for number, statements in enumerate(zip_longest(BY_TABLE, AFTER_DDL)):
        _merge_together(drivers, statements, tmp_path / f"step{number}")
    for table in TABLES:
        assert DeltaTable(str(eu.path(table))).version() >= before[table] + 3
    assert [driver.get(None) for driver in drivers] == [None, None]
    eu.require_own()
    us.require_own(*TABLES[: 3 if "ALTER" in ddl else 4])  # old rows of a changelog lack the new column


def _merge_together(drivers: tuple[Driver, Driver], steps: Sequence[Step | None], place: Path) -> None:
    """Lets the drivers run the statements of their next batches at the same moment."""
    held: list[tuple[Driver, Path]] = []
    for driver, step in zip(drivers, steps, strict=True):
        if step is not None:
            own = place.with_name(f"{place.name}-{driver.name}")
            assert driver.get(step.transactions) is not None
            driver.hold(own, step.statements)
            held.append((driver, own))
    for _, own in held:
        release(own)
    for driver, _ in held:
        assert driver.answer() == "merged"
        assert driver.do("ack") == "done"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_an_orphaned_driver_beside_another_member(
    pair: tuple[Member, Member], drivers: tuple[Driver, Driver], tmp_path: Path
) -> None:
    eu, _ = pair
    for loop in pair:
        change(loop, 0)
        change(loop, 1)
    orphan, other = tmp_path / "orphan", tmp_path / "other"
    assert drivers[0].get(7) == drivers[1].get(None) == len(TABLES)
    drivers[0].hold(orphan, len(TABLES))
    drivers[1].hold(other, len(TABLES))
    _give_back(eu)
    eu.apply_all(3)
    release(orphan)
    release(other)
    assert drivers[0].answer() in LOST_BATCH
    assert drivers[1].answer() == "merged"
    assert drivers[1].do("ack") == "done"
    for loop in pair:
        loop.require_own()
        loop.require_proved()


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("moment", ["before its statements", "in its statements"])
def test_a_driver_is_killed_beside_another_member(pair: tuple[Member, Member], tmp_path: Path, moment: str) -> None:
    eu, us = pair
    for loop in pair:
        loop.apply_all()
        change(loop, 1)
    driver, place = Driver(us.name, us.config), tmp_path / "killed"
    try:
        assert driver.answer() == "ready"
        assert driver.get(None) == len(TABLES)
        driver.hold(place, len(TABLES))
        if moment == "in its statements":
            release(place)
        eu.apply_all()  # commits between the plans of the other's statements and their commits
        driver.kill("both")
    finally:
        driver.end()
    eu.require_own()
    _give_back(us)
    us.apply_all(3)
    for loop in pair:
        loop.require_own()
    for loop in pair:
        loop.require_proved()


def _give_back(loop: Member) -> None:
    """Rolls back the batch that a driver holds, or held when it was killed."""
    service = BatchService(loop.config)
    lease = service.get(OWNER, wait_s=0)
    assert lease is not None
    service.rollback(lease.batch, lease.token)
