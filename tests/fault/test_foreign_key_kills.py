"""kill -9 of a driver while it commits the changes that foreign keys make: nothing lost, nothing twice.

The changes follow from the rows that the lake had before the batch. The next driver finds some tables with their commits
and others without. ``TOWPATH_KILLS`` says how often a driver is killed (once, unless ``make test-kill`` sets it).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from cdc.lake.apply.batch import MAX_PARALLEL
from cdc.testing.servers import Server
from tests.fault.held import Driver, release, statements
from tests.fault.support import wait_for
from tests.integration.test_foreign_keys_followed import KEYS, made, require_equal
from tests.support.apply import OWNER, Loop
from tests.support.compare import ledger_faults
from tests.support.foreign_keys import MODES

Database = Callable[[Server], str]
KILLS = int(os.environ.get("TOWPATH_KILLS", "1"))
TABLES = ("p", *(f"{letter}_{mode}" for letter in "cg" for mode in MODES))


def change(loop: Loop, turn: int) -> None:
    """Deletes a parent of old rows and one of new rows, and gives a third one another key."""
    new, old = 100 + turn, 1000 + turn
    loop.sql(
        f"INSERT INTO p VALUES ({new}, 'n{turn}', 0), ({old}, 'o{turn}', 0)",
        *(f"INSERT INTO c_{mode} VALUES ({new}, {new}, NULL, 'a'), ({old}, {old}, NULL, 'b')" for mode in MODES),
        *(f"INSERT INTO g_{mode} VALUES ({new}, 1, 'n{turn}', 'a'), ({old}, 1, 'o{turn}', 'b')" for mode in MODES),
        f"UPDATE p SET id = id + 5000, code = 'x{turn}' WHERE id = {old}",
        f"DELETE FROM p WHERE id = {new}",
        f"DELETE FROM p WHERE id = {5999 + turn}",
    )
    loop.capture()


def is_later(loop: Loop, table: str, version: int) -> bool:
    """Whether a table has a commit after this version."""
    return loop.version(table) > version


@pytest.mark.long
@pytest.mark.timeout(300 + 300 * KILLS)
def test_a_driver_is_killed_within_a_cascade(mariadb11: Server, tmp_path: Path, database: Database, seed: int) -> None:
    rng = random.Random(seed)
    loop = made(tmp_path, mariadb11, database(mariadb11))
    loop.sql(
        "INSERT INTO p VALUES (5999, 'first', 0)",
        *(f"INSERT INTO c_{mode} VALUES (5999, 5999, NULL, 'first')" for mode in MODES),
        *(f"INSERT INTO g_{mode} VALUES (5999, 1, 'first', NULL)" for mode in MODES),
    )
    loop.capture()
    loop.apply_all()
    for turn in range(KILLS):
        driver = Driver(f"killed{turn}", loop.config)
        try:
            change(loop, turn)
            assert driver.answer() == "ready"
            driver.get(None, owner=OWNER)
            before, place = {table: loop.version(table) for table in TABLES}, tmp_path / f"held{turn}"
            driver.hold(place, MAX_PARALLEL)
            held = sorted(statements(place))
            assert set(held) < set(TABLES), "the last one waits until another has its commit"
            first = rng.sample(held, rng.randint(1, len(held) - 1))
            release(place, first)
            for table in first:
                wait_for(partial(is_later, loop, table, before[table]), f"the commit of {table}")
            driver.kill("both")
        finally:
            driver.end()
        loop.apply_all()
        require_equal(loop)
        for letter in "cg":
            loop.changelog(f"{letter}_append")
        target, meta = loop.config.apply.target, loop.config.meta.path
        assert [fault for table in KEYS for fault in ledger_faults(target, loop.db, table, meta)] == []
