"""kill -9 of capture, of apply, of the Spark driver alone, at random moments under load: nothing lost, nothing twice.

``TOWPATH_KILLS`` says how many of each there are in all (``make test-kill`` sets 10), half of them with either server.
Unless it is set, there is one of apply and one of the driver, each with one of the servers, and capture is killed with both.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from cdc.batches.service import BatchService
from cdc.config import DestinationConfig
from cdc.store.reader.reader import StoreReader
from cdc.testing.servers import Server
from tests.fault.support import (
    RestartedCommand,
    configure,
    require_exactly_once,
    run_to_success,
    set_batch_size,
    wait_for,
)
from tests.support.load import Load

KILLS = int(os.environ.get("TOWPATH_KILLS") or 0)


def kill_driver(apply: RestartedCommand) -> None:
    """Kills the JVM of the running apply. The apply must notice and end by itself."""
    killed: list[subprocess.Popen[bytes]] = []

    def kill() -> bool:
        process = apply.running()
        try:
            children = psutil.Process(process.pid).children(recursive=True)
            drivers = [child for child in children if child.name() == "java"]
            for driver in drivers:
                driver.kill()
                killed.append(process)
        except psutil.NoSuchProcess:  # ended at this moment: try the next one
            return False
        return bool(killed)

    wait_for(kill, "a Spark driver")
    wait_for(lambda: killed[0].poll() is not None, "the end of the apply whose driver was killed")
    # 0: its last batch was acked by then.
    assert killed[0].returncode in (0, 1), apply.log_tail()


class Moments:
    """Random moments for kills: those of apply and its driver partly at any time after the start, partly inside a batch."""

    def __init__(self, config: DestinationConfig, rng: random.Random) -> None:
        self._service, self._rng = BatchService(config), rng
        self._killed_batch = 0

    def wait(self, what: str) -> str:
        """Waits for the next moment and describes it."""
        if what == "capture":
            pause_s = self._rng.uniform(0.1, 3.0)
            time.sleep(pause_s)
            return f"{pause_s:.1f} s after the kill before"
        if self._rng.random() < 0.3:
            pause_s = self._rng.uniform(0.5, 14.0)  # a cold start, the first batch included
            time.sleep(pause_s)
            return f"{pause_s:.1f} s after the kill before"
        wait_for(self._merging, "a batch under way", 180)
        pause_s = self._rng.uniform(0.0, 4.0)
        time.sleep(pause_s)
        outstanding = self._service.outstanding()
        self._killed_batch = outstanding[0].batch if outstanding else self._killed_batch
        return f"{pause_s:.1f} s into a batch, {outstanding[0].batch if outstanding else 'none'} under way"

    def _merging(self) -> bool:
        """Whether a batch is outstanding that no killed process had."""
        return any(entry.batch > self._killed_batch for entry in self._service.outstanding())


def behind(config: DestinationConfig) -> int:
    """Returns the number of transactions that are not acked yet."""
    reached = BatchService(config).meta.read().subscription("apply").acked_seq
    return StoreReader(config.store.path).backlog(reached).transactions


@pytest.mark.timeout(300 + 60 * KILLS)
@pytest.mark.parametrize("kind", [pytest.param("mariadb10", marks=pytest.mark.long), "mysql9"])
def test_kills_at_random_moments_under_load(
    request: pytest.FixtureRequest, kind: str, database: Callable[[Server], str], tmp_path: Path, seed: int
) -> None:
    server: Server = request.getfixturevalue(kind)
    name = database(server)
    rng = random.Random(f"{seed} {kind}")
    config = configure(tmp_path, server, name)
    traffic = Load(server, name, rng.getrandbits(32), pause_s=0.2)
    kills = KILLS // 2 if kind == "mysql9" else KILLS - KILLS // 2
    plan = ["capture", "apply", "driver"] * kills or ["capture", "driver" if kind == "mysql9" else "apply"]
    rng.shuffle(plan)
    moments = Moments(config, rng)

    capture = RestartedCommand(config, "capture")
    apply = RestartedCommand(
        config, "apply", "--until-empty", before=lambda: set_batch_size(config, rng.choice((25, 60, 250)))
    )
    try:
        traffic.start()
        for what in plan:
            where = moments.wait(what)
            print(f"kill -9 of {what}: {where}; {traffic.transactions} transactions so far")
            if what == "capture":
                capture.kill()
            elif what == "apply":
                apply.kill()
            else:
                kill_driver(apply)
        # The load continues until capture has stored more, too.
        reader = StoreReader(config.store.path)
        before = reader.last_seq() or 0
        wait_for(lambda: (reader.last_seq() or 0) > before, "capture to continue")
    finally:
        traffic.stop()
        capture.stop(terminate=True)
    set_batch_size(config, 1000)
    run_to_success(config, "capture", "--until-current")
    # The running apply may finish the work, unless its batches are so small that a new one is faster.
    apply.stop(terminate=behind(config) > 300)
    if behind(config):
        run_to_success(config, "apply", "--until-empty")
    assert not behind(config)
    print(f"{traffic.transactions} transactions; capture ended with {capture.codes}, apply with {apply.codes}")
    # Killed, ended cleanly, or failed with an error that a retry may cure.
    assert set(capture.codes) <= {-9, 0, 1} and set(apply.codes) <= {-9, 0, 1}, apply.log_tail()
    assert apply.codes.count(-9) == plan.count("apply")
    require_exactly_once(server, name, config, traffic.changes)
