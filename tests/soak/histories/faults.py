"""Faults of the server, of the connection, of capture and of its disk, at moments that the seed draws."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pymysql

from tests.fault.support import RestartedCommand, wait_for
from tests.soak.histories.workload import Workload
from tests.support.proxy import Proxy

HEARTBEAT_S = 1
_DEAD_S = 3 * HEARTBEAT_S + 1.5
"""Silence after which capture has given up a connection."""
_MOST_BYTES = (2_000, 50_000, 2_000_000)
_DISK_MB = 1024
_BETWEEN_S = (0.3, 5)
_WAIT_S = 60
_RETRIED = frozenset({1, -signal.SIGKILL})
"""Exit codes after which capture is started again: a retry may help, or it was killed."""


@contextmanager
def small_disk(folder: Path) -> Iterator[Disk]:
    """Mounts a file system of its own on a folder. Takes root."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_DISK_MB}m", "none", str(folder)], check=True)
    try:
        yield Disk(folder)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


class Disk:
    """A file system that can be filled."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def fill(self, left: int) -> None:
        """Leaves about ``left`` bytes free."""
        self._resize(f"{max(4096, self._used() + left)}")

    def clear(self) -> None:
        """Frees the space."""
        self._resize(f"{_DISK_MB}m")

    def _used(self) -> int:
        done = subprocess.run(
            ["df", "-B1", "--output=used", str(self._folder)], capture_output=True, text=True, check=True
        )
        return int(done.stdout.split()[-1])

    def _resize(self, size: str) -> None:
        with suppress(subprocess.CalledProcessError):  # capture has written more meanwhile: it is full all the more
            subprocess.run(["mount", "-o", f"remount,size={size}", str(self._folder)], check=True, capture_output=True)


class Faults:
    """Causes one fault after another."""

    def __init__(self, seed: str, workload: Workload, proxy: Proxy, capture: RestartedCommand, disk: Disk) -> None:
        self._rng = random.Random(f"{seed} faults")
        self._workload, self._proxy, self._capture, self._disk = workload, proxy, capture, disk
        self._began = time.monotonic()
        self.log: list[tuple[float, str]] = []
        """The seconds since the beginning at which each fault began, and its name."""

    @property
    def counts(self) -> Counter[str]:
        return Counter(name for _, name in self.log)

    def cause(self, seconds: float) -> None:
        """Causes faults for some time, and each kind at least once."""
        end = time.monotonic() + seconds
        every = [
            self.server_killed, self.server_restarted, self.dump_killed, self.connection_cut, self.connection_stalled,
            self.capture_killed, self.capture_killed, self.disk_full,
        ]  # fmt: skip
        is_first = True
        while is_first or time.monotonic() < end:
            for fault in self._rng.sample(every, len(every)):
                time.sleep(self._rng.uniform(*_BETWEEN_S))
                fault()
                if not is_first and time.monotonic() >= end:
                    break
            is_first = False

    def require_retried(self) -> None:
        """Checks that capture has not ended with an error that says that a retry does not help."""
        codes = self._capture.codes
        assert set(codes) <= _RETRIED, f"exit codes {codes}: {self._capture.log_tail()}"

    def _note(self, name: str) -> None:
        self.require_retried()
        self.log.append((time.monotonic() - self._began, name))

    def server_killed(self) -> None:
        self._note("server killed")
        self._workload.server.kill()
        self._maybe_kill_capture()
        self._start_server()

    def server_restarted(self) -> None:
        self._note("server restarted")
        self._workload.server.halt()
        self._start_server()

    def _start_server(self) -> None:
        time.sleep(self._rng.choice((0, 0, 2)))
        self._workload.server.restart()
        self._workload.forget_lost_prepared()

    def dump_killed(self) -> None:
        self._note("dump killed")
        with self._workload.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'")
            for (thread,) in cursor.fetchall():
                with suppress(pymysql.err.OperationalError):  # it has just ended
                    cursor.execute(f"KILL {thread}")

    def connection_cut(self) -> None:
        self._note("connection cut")
        self._end_connection(stall=False)

    def connection_stalled(self) -> None:
        self._note("connection stalled")
        self._end_connection(stall=True)
        time.sleep(_DEAD_S)
        self._maybe_kill_capture()
        self._proxy.thaw()

    def _end_connection(self, *, stall: bool) -> None:
        self._proxy.end_after(self._rng.randrange(1, self._rng.choice(_MOST_BYTES)), stall=stall)
        wait_for(self._has_ended, "bytes from the server", _WAIT_S)

    def _has_ended(self) -> bool:
        self.require_retried()
        return self._proxy.has_ended

    def capture_killed(self) -> None:
        self._note("capture killed")
        self._capture.kill()

    def _maybe_kill_capture(self) -> None:
        if self._rng.random() < 0.3:
            self.capture_killed()

    def disk_full(self) -> None:
        self._note("disk full")
        self._disk.fill(self._rng.choice((0, 10_000, 300_000)))
        time.sleep(self._rng.uniform(1, 4))
        self._maybe_kill_capture()
        self._disk.clear()
