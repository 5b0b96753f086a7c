"""kill -9 of ``cdc snapshot`` at random moments, while its table is written to on the very keys that it reads.

``TOWPATH_KILLS`` sets the number of kills while chunks are read (``make test-kill``: five; default: one). In all cases
the load is killed once between its commit and the return of the table, and capture once while chunks are read. Done
chunks are never read again.

The writers try to change 500 rows a second. The test prints how many they changed, and holds at any speed: a kill waits
for chunks and not for seconds, and reading is throttled so that a slow machine still finds it at work.
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

import pytest

from cdc.base.targets import table_path
from cdc.batches.service import BatchService
from cdc.config import DestinationConfig
from cdc.source.snapshot import SnapshotFiles
from cdc.testing.servers import Server
from tests.fault.hot_table import CALM, HOT, HotWriter, configure, fill, set_rows_per_s
from tests.fault.support import RestartedCommand, command, run_to_success, wait_for
from tests.support.compare import ledger_faults, mirror_faults

KILLS = min(int(os.environ.get("TOWPATH_KILLS") or 1), 5)
ROWS, CHUNK_ROWS, ROWS_PER_S = 8_000, 100, 250
_LONG_S = 900.0
_WAITS = ("another snapshot or replay of table", "does not reach the position of the snapshot")
"""Refusals that end by themselves: apply brings the loaded table level at this moment, or capture is behind."""

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
    def started(self) -> bool:
        return self._process is not None

    @property
    def running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def kill(self) -> bool:
        """Kills the process. Returns False if it had ended by itself."""
        self.running.kill()
        return self.running.wait() == -signal.SIGKILL

    def resume(self) -> None:
        """Starts it again if it has ended, which is a fault unless the refusal ends by itself."""
        if self.running.poll() is not None:
            assert self.running.returncode == 1 and any(text in self.tail(600) for text in _WAITS), self.tail()
            time.sleep(1.0)
            self.start()

    def finish(self) -> None:
        """Waits for a good end."""
        deadline = time.monotonic() + _LONG_S
        while self.running.wait(_LONG_S) != 0:
            assert time.monotonic() < deadline, self.tail()
            self.resume()

    def tail(self, characters: int = 3000) -> str:
        return self._log.read_text()[-characters:]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stops the process while the block runs."""
        self.running.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.running.send_signal(signal.SIGCONT)

    def chunks(self) -> Chunks:
        """Returns the finished chunks, and when each was written."""
        return {
            f"{files.id}/{file.name}": (file.stat().st_mtime_ns, file.stat().st_size)
            for files in SnapshotFiles.find(self.config, self._database, HOT)
            for file in Path(files.folder.uri).glob("chunk-*.json")
        }

    def wait_for_chunks(self, count: int) -> None:
        """Waits until so many chunks are finished."""
        wait_for(
            lambda: len(self.chunks()) >= count or self.running.poll() is not None, f"{count} finished chunks", _LONG_S
        )
        assert self.running.poll() is None, self.tail()

    def wait_for_load(self) -> None:
        """Waits until the table is loaded."""

        def loaded() -> bool:
            self.resume()
            return self.loads() > 0

        wait_for(loaded, "the load", _LONG_S)

    def loads(self) -> int:
        """Returns the number of commits by which snapshots were loaded."""
        log = Path(table_path(self.config.apply.target, self._database, HOT)) / "_delta_log"
        return sum(r"\"kind\": \"snapshot\"" in file.read_text() for file in log.glob("*.json"))


def require_refused(config: DestinationConfig, table: str) -> None:
    """Checks that another snapshot of the table is refused."""
    other = subprocess.run(command(config, "snapshot", table), capture_output=True, check=False, timeout=_LONG_S)
    assert other.returncode == 1, other.stderr
    assert b"another snapshot or replay of table" in other.stderr and b"Traceback" not in other.stderr, other.stderr


@pytest.mark.long
@pytest.mark.timeout(2 * _LONG_S)
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
    apply = RestartedCommand(config, "apply", "--until-empty", before=lambda: time.sleep(15))
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
            least = len(snapshot.chunks()) + 1
            snapshot.wait_for_chunks(least)
            if number == 1:
                with snapshot.paused():
                    require_refused(config, snapshot.table)
                say("a second snapshot of the table was refused")
            most = max(least, ROWS / CHUNK_ROWS * 0.7 * number / KILLS)
            snapshot.wait_for_chunks(int(dice.uniform(least, most)))
            time.sleep(dice.uniform(0.0, 0.3))
            if number == KILLS:
                capture.kill()
                say("kill -9 of capture")
                time.sleep(dice.uniform(0.0, 0.5))
            chunks = snapshot.chunks()
            assert snapshot.kill(), f"it ended before the kill: {snapshot.tail()}"
            say(f"kill -9 of snapshot {number}, which had {len(chunks)} chunks")
            assert chunks.items() >= done.items(), "a finished chunk was read again"
            assert len(chunks) > len(done)
            done = chunks
        set_rows_per_s(config, 100_000)
        snapshot.start()
        snapshot.wait_for_load()
        chunks = snapshot.chunks()
        killed = snapshot.kill()
        say("kill -9 of the load after its commit" if killed else "the load was faster than its kill")
        assert chunks.items() >= done.items(), "a finished chunk was read again"
        if killed:
            parked = BatchService(config).subscription().parked
            say(f"parked: {parked.get(snapshot.table)}")
            loads = snapshot.loads()
            snapshot.start()
            rate = traffic.stop()  # so that it comes level in a bounded time on a slow machine, too
            snapshot.finish()
            say(f"the snapshot ended; {snapshot.loads() - loads} more loads")
            assert snapshot.chunks() == chunks, "a finished chunk was read again"
        assert snapshot.table not in BatchService(config).subscription().parked
    finally:
        rate = rate or traffic.stop()
        if snapshot.started:
            snapshot.kill()
        capture.stop(terminate=True)
        apply.stop(terminate=True)
    print(f"{traffic.rows} rows changed, {rate:.0f} a second")
    assert traffic.rows > 0
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
