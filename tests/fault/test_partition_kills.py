"""kill -9 of a driver while it commits statements about partitions: nothing lost, nothing twice.

DROP PARTITION changes one table, EXCHANGE PARTITION two, whose rows each takes from the other one. ``TOWPATH_KILLS`` says
how often a driver is killed (once, unless ``make test-kill`` sets it).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from cdc.testing.servers import Server
from tests.fault.held import Driver, release, statements
from tests.fault.support import wait_for
from tests.fault.test_foreign_key_kills import is_later
from tests.integration.test_partitions import require_equal
from tests.support.apply import OWNER, Loop
from tests.support.compare import ledger_faults
from tests.support.foreign_keys import MODES

Database = Callable[[Server], str]
KILLS = int(os.environ.get("TOWPATH_KILLS", "1"))


@pytest.mark.long
@pytest.mark.timeout(300 + 300 * KILLS)
def test_a_driver_is_killed_within_a_statement_about_partitions(
    mariadb11: Server, tmp_path: Path, database: Database, seed: int
) -> None:
    rng = random.Random(seed)
    modes = {f"p_{mode}": mode for mode in MODES} | {f"x_{mode}": MODES[n - 1] for n, mode in enumerate(MODES)}
    overrides = ", ".join(f"DB.{name}: {{mode: {mode}}}" for name, mode in modes.items())
    loop = Loop(tmp_path, mariadb11, database(mariadb11), overrides=overrides)
    for name in modes:
        parts = " PARTITION BY RANGE (y) (PARTITION p0 VALUES LESS THAN (0))" if name.startswith("p_") else ""
        loop.sql(f"CREATE TABLE {name} (id INT, y INT, v INT, PRIMARY KEY (id, y)){parts}")
    loop.capture()
    loop.apply_all()
    for turn in range(KILLS):
        mode = rng.choice(MODES)
        table, other = f"p_{mode}", f"x_{mode}"
        exchanges = rng.random() < 0.6
        loop.sql(
            f"ALTER TABLE {table} ADD PARTITION (PARTITION q{turn} VALUES LESS THAN ({10 * turn + 10}))",
            f"INSERT INTO {table} VALUES ({turn}, {10 * turn + 1}, 0), ({turn + 1000}, {10 * turn + 2}, 1)",
            f"DELETE FROM {other}",
            f"INSERT INTO {other} VALUES ({turn}, {10 * turn + 1}, 2), ({turn + 2000}, {10 * turn + 3}, 3)",
            f"UPDATE {table} SET v = v + 10",
        )
        loop.capture()
        loop.apply_all()
        sql = f"EXCHANGE PARTITION q{turn} WITH TABLE {other}" if exchanges else f"DROP PARTITION q{turn}"
        loop.sql(f"ALTER TABLE {table} {sql}", f"INSERT INTO {other} VALUES ({turn + 3000}, 5, 4)")
        loop.capture()
        driver = Driver(f"killed{turn}", loop.config)
        try:
            assert driver.answer() == "ready"
            driver.get(None, owner=OWNER)
            changed = [table, other] if exchanges else [table]
            before, place = {name: loop.version(name) for name in changed}, tmp_path / f"held{turn}"
            driver.hold(place, len(changed))
            assert sorted(statements(place)) == sorted(changed)
            first = rng.sample(changed, rng.randint(0, len(changed)))  # one, both or none have their commits
            release(place, first)
            for name in first:
                wait_for(partial(is_later, loop, name, before[name]), f"the commit of {name}")
            driver.kill("both")
        finally:
            driver.end()
        loop.apply_all()
        for name, mode_of_table in modes.items():
            require_equal(loop, name, mode_of_table)
        target, meta = loop.config.apply.target, loop.config.meta.path
        assert [fault for name in modes for fault in ledger_faults(target, loop.db, name, meta)] == []
