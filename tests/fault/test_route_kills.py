"""SIGKILL of ``cdc apply`` in batches that change several shards of one Delta table."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from cdc.testing.servers import Server
from tests.fault.support import SPARK, command, run_to_success, wait_for
from tests.support.shards import Database, Shards

KILLS = 4


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_kills_between_the_commits_of_shards(mysql9: Server, tmp_path: Path, database: Database, seed: int) -> None:
    rng = random.Random(seed)
    shards = Shards(
        tmp_path, mysql9, database, kinds=("mirror", "log"), overrides="lake.log: {mode: append}", spark=SPARK
    )
    shards.capture()
    shards.fill()
    killed = 0
    for number in range(KILLS):
        values = ", ".join(f"({1000 + number * 10 + i}, {i}, 'more')" for i in range(10))
        for name in shards.all_names:
            shards.sql(f"INSERT INTO {name} VALUES {values}", f"UPDATE {name} SET v = v + 1 WHERE id % 4 = {number}")
            shards.sql(f"DELETE FROM {name} WHERE id = {number}")
        shards.capture()
        killed += _kill_after(shards, rng.randrange(1, 6), rng.uniform(0, 0.3))
    assert killed >= KILLS // 2, "too many runs ended before they were killed"
    run_to_success(shards.config, "apply", "--until-empty")
    shards.require_union()
    shards.require_proved()


def _kill_after(shards: Shards, commits: int, pause_s: float) -> bool:
    """Runs apply, and kills it some time after so many commits. Returns whether it still ran."""
    before = _commits(shards)
    with (shards.config.file.parent / "apply.log").open("ab") as log:
        process = subprocess.Popen(command(shards.config, "apply", "--until-empty"), stdout=log, stderr=log)
    wait_for(lambda: _commits(shards) >= before + commits or process.poll() is not None, "commits of shards", 280)
    time.sleep(pause_s)
    process.kill()
    process.wait()
    assert process.returncode in (-signal.SIGKILL, 0)
    return process.returncode == -signal.SIGKILL


def _commits(shards: Shards) -> int:
    return sum(len(list(shards.path(kind).glob("_delta_log/*.json"))) for kind in shards.kinds)
