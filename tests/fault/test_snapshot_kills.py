"""kill -9 of ``cdc snapshot`` at random moments, while its table is written to on the very keys that it reads.

``TOWPATH_KILLS`` sets the number of kills while chunks are read (``make test-kill``: five at least; default: one). In
all cases the load is killed once between its commit and the return of the table, and capture once while chunks are
read. Done chunks are never read again.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from cdc.batches.service import BatchService
from cdc.config import DestinationConfig
from cdc.snapshot import SnapshotFiles
from cdc.targets import table_path
from cdc.testing.servers import Server
from tests.fault.hot_table import CALM, HOT, HotWriter, configure, fill
from tests.fault.support import RestartedCommand, command, run_to_success, wait_for
from tests.support.compare import ledger_faults, mirror_faults

KILLS = min(int(os.environ.get("TOWPATH_KILLS") or 1), 5)
ROWS, CHUNK_ROWS, ROWS_PER_S = 20_000, 250, 800
_LONG_S = 600.0

Chunks = dict[str, tuple[int, int]]


class Snapshot:
    """``cdc snapshot`` of the hot table, as a process that a test kills."""

    def __init__(self, config: DestinationConfig, database: str) -> None:
        self.config, self._database = config, database
        self.table = f"{database}.{HOT}"
        self._log = config.file.parent.parent / "snapshot.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command(self.config, "snapshot", self.table), stdout=log, stderr=log)

    @property
    def running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def kill(self) -> bool:
        """Kills the process. Returns False if it had ended by itself."""
        self.running.kill()
        return self.running.wait() == -signal.SIGKILL

    def finish(self) -> None:
        """Waits for a good end."""
        assert self.running.wait(_LONG_S) == 0, self.tail()

    def tail(self) -> str:
        return self._log.read_text()[-3000:]

    def chunks(self) -> Chunks:
        """Returns the finished chunks, and when each was written."""
        return {
            f"{files.id}/{file.name}": (file.stat().st_mtime_ns, file.stat().st_size)
            for files in SnapshotFiles.find(self.config, self._database, HOT)
            for file in Path(files.folder.uri).glob("chunk-*.json")
        }

    def wait_for_chunks(self, count: int) -> None:
        """Waits until so many chunks are finished, or the process has ended."""
        wait_for(
            lambda: len(self.chunks()) >= count or self.running.poll() is not None, f"{count} finished chunks", _LONG_S
        )

    def loads(self) -> int:
        """Returns the number of commits by which snapshots were loaded."""
        log = Path(table_path(self.config.apply.target, self._database, HOT)) / "_delta_log"
        return sum(r"\"kind\": \"snapshot\"" in file.read_text() for file in log.glob("*.json"))


@contextmanager
def refused(config: DestinationConfig, table: str, log: IO[bytes]) -> Iterator[None]:
    """Checks that another snapshot of the table is refused while the block runs."""
    other = subprocess.Popen(command(config, "snapshot", table), stdout=log, stderr=subprocess.PIPE)
    yield
    _, said = other.communicate(timeout=120)
    assert other.returncode == 1, said
    assert b"another snapshot or replay of table" in said and b"Traceback" not in said, said


@pytest.mark.timeout(1200 + 300 * KILLS)
@pytest.mark.parametrize("kind", ["mysql9", pytest.param("mariadb11", marks=pytest.mark.long)])
def test_killed_snapshots_of_a_hot_table_equal_select(
    request: pytest.FixtureRequest, kind: str, database: Callable[[Server], str], tmp_path: Path, seed: int
) -> None:
    server: Server = request.getfixturevalue(kind)
    name = database(server)
    dice = random.Random(f"{seed} snapshot {kind}")
    fill(server, name, ROWS)
    config = configure(tmp_path, server, name, chunk_rows=CHUNK_ROWS, rows_per_s=ROWS_PER_S)
    run_to_success(config, "capture", "--until-current")
    capture = RestartedCommand(config, "capture")
    apply = RestartedCommand(config, "apply", "--until-empty", before=lambda: time.sleep(5))
    traffic = HotWriter(server, name, 2 * ROWS, dice.getrandbits(32))
    snapshot = Snapshot(config, name)
    began, rate = time.monotonic(), 0.0

    def say(what: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {what}; {traffic.rows} rows changed")

    try:
        done: Chunks = {}
        for number in range(1, KILLS + 1):
            snapshot.start()
            # Each kill finds the snapshot at work: after a share of the chunks that are left.
            left = len(snapshot.chunks()) + 1, ROWS // CHUNK_ROWS * 0.9 * number / KILLS
            snapshot.wait_for_chunks(int(left[0]))
            if number == 1:
                with (tmp_path / "second.log").open("ab") as log, refused(config, snapshot.table, log):
                    say("a second snapshot of the table")
            snapshot.wait_for_chunks(int(dice.uniform(left[0], max(left))))
            time.sleep(dice.uniform(0.0, 0.3))
            if number == KILLS:
                capture.kill()
                say("kill -9 of capture")
                time.sleep(dice.uniform(0.0, 0.5))
            found = snapshot.chunks()
            assert snapshot.kill(), f"it ended before the kill: {snapshot.tail()}"
            say(f"kill -9 of snapshot {number}, which had {len(found)} chunks")
            assert found.items() >= done.items(), "a finished chunk was read again"
            done = found
        snapshot.start()
        wait_for(lambda: snapshot.loads() > 0 or snapshot.running.poll() is not None, "the load", _LONG_S)
        found = snapshot.chunks()
        killed = snapshot.kill()
        say("kill -9 of the load after its commit" if killed else "the load was faster than its kill")
        assert found.items() >= done.items(), "a finished chunk was read again"
        assert len(found) > len(done)
        if killed:
            parked = BatchService(config).subscription().parked
            say(f"parked: {parked.get(snapshot.table)}")
            loads = snapshot.loads()
            snapshot.start()
            time.sleep(1.0)
            rate = traffic.stop()  # so that it comes level in a bounded time on a slow machine, too
            snapshot.finish()
            say(f"the snapshot ended; {snapshot.loads() - loads} more loads")
            assert snapshot.chunks() == found, "a finished chunk was read again"
        assert snapshot.table not in BatchService(config).subscription().parked
    finally:
        rate = rate or traffic.stop()
        if snapshot._process is not None:
            snapshot.kill()
        capture.stop(terminate=True)
        apply.stop(terminate=True)
    print(f"{traffic.rows} rows changed, {rate:.0f} a second")
    run_to_success(config, "capture", "--until-current")
    run_to_success(config, "snapshot")  # the table that nobody has asked for yet
    run_to_success(config, "apply", "--until-empty")
    assert not BatchService(config).subscription().parked
    assert set(capture.codes) <= {-9, 0, 1} and set(apply.codes) <= {0, 1}, apply.log_tail()
    faults = []
    for table in (HOT, CALM):
        faults += mirror_faults(server, config.apply.target, name, table)
        faults += ledger_faults(config.apply.target, name, table, config.meta.path)
    assert not faults, f"{len(faults)} faults:\n" + "\n".join(faults[:20])
