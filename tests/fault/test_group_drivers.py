"""Two real drivers write one shared Delta table at once. It has no partitions, so that their rows lie in one file and
their commits are conflicts for Delta; each change is applied exactly once."""

from __future__ import annotations

from collections.abc import Iterator
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
    found = members(mysql9, mariadb11, tmp_path, database, apply="partition_by: []")
    for loop in found:
        loop.capture()
        fill(loop)
        loop.level()
    return found


@pytest.fixture
def drivers(pair: tuple[Member, Member]) -> Iterator[tuple[Driver, Driver]]:
    eu, us = (Driver(loop.name, loop.config) for loop in pair)
    try:
        assert eu.answer() == us.answer() == "ready"
        yield eu, us
    finally:
        eu.end()
        us.end()


def change(loop: Member, turn: int) -> None:
    """Changes rows of every table, some of them by their keys, and captures that."""
    for table in TABLES:
        loop.sql(f"UPDATE {table} SET v = v + 1 WHERE id % 3 = {turn % 3}", f"DELETE FROM {table} WHERE id = {turn}")
        loop.sql(f"UPDATE {table} SET id = id + 1000 WHERE id = {turn + 10}")
        loop.sql(f"INSERT INTO {table} (id, v, note) VALUES ({2000 + turn}, {turn}, 'new')")
    loop.capture()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_two_drivers_write_one_file(
    pair: tuple[Member, Member], drivers: tuple[Driver, Driver], tmp_path: Path
) -> None:
    eu, us = pair
    for turn in range(4):
        if turn == 1:
            us.sql(*[f"TRUNCATE TABLE {table}" for table in TABLES])
        if turn == 2:
            eu.sql(*[f"ALTER TABLE {table} ADD COLUMN extra INT NOT NULL DEFAULT 7" for table in TABLES])
        before = {table: DeltaTable(str(eu.path(table))).version() for table in TABLES}
        places = []
        for loop, driver in zip(pair, drivers, strict=True):
            change(loop, turn)
            places.append(tmp_path / f"{loop.name}{turn}")
            assert driver.get(None) == len(TABLES)
            driver.hold(places[-1], len(TABLES))
        for place in places:
            release(place)
        for driver in drivers:
            assert driver.answer() == "merged"
            assert driver.do("ack") == "done"
        for table in TABLES:
            assert DeltaTable(str(eu.path(table))).version() >= before[table] + 2
        eu.require_own("mirror", "marked", "history")
        us.require_own()
    for loop in pair:
        loop.require_own("mirror", "marked", "history")
        loop.require_proved()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_an_orphaned_driver_beside_another_member(
    pair: tuple[Member, Member], drivers: tuple[Driver, Driver], tmp_path: Path
) -> None:
    eu, us = pair
    for loop in pair:
        change(loop, 0)
    orphan, other = tmp_path / "orphan", tmp_path / "other"
    assert drivers[0].get(14) == drivers[1].get(None) == len(TABLES)
    drivers[0].hold(orphan, len(TABLES))
    drivers[1].hold(other, len(TABLES))
    BatchService(eu.config).rollback(*_lease(eu))
    eu.apply_all(9)
    release(orphan)
    release(other)
    assert drivers[0].answer() in LOST_BATCH
    assert drivers[1].answer() == "merged"
    assert drivers[1].do("ack") == "done"
    for loop in pair:
        loop.require_own()
    change(us, 1)
    assert drivers[1].get(None) == len(TABLES)
    drivers[1].hold(tmp_path / "killed", len(TABLES))
    drivers[1].kill("both")
    change(eu, 1)
    eu.apply_all()
    BatchService(us.config).rollback(*_lease(us))
    us.apply_all(5)
    for loop in pair:
        loop.require_own()
        loop.require_proved()


def _lease(loop: Member) -> tuple[int, str]:
    """Takes over the batch of a driver that was killed."""
    lease = BatchService(loop.config).get(OWNER, wait_s=0)
    assert lease is not None
    return lease.batch, lease.token
