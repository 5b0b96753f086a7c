"""A process with a Spark driver, from the side of the test that controls it: it holds statements, and kills."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import psutil

from cdc.config import DestinationConfig
from tests.fault.support import wait_for

OWNER = "airflow:apply_shop"
Whom = Literal["both", "process", "JVM", "client"]
"""A client has no JVM of its own: its statements run on a Connect server."""


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
        self._jvms: list[psutil.Process] = []

    def begin(self, *words: Any) -> None:
        """Sends a command without waiting for the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """Returns the answer to the last command."""
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
        """Begins a merge and returns when the statements of all its tables are held."""
        self.begin("merge", str(place))
        wait_for(lambda: len(_held(place)) == tables, f"driver {self.name} at its statements")

    def suspend(self) -> None:
        """Suspends the process, so that its lease is not renewed."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self, whom: Whom) -> None:
        """Kills with -9. A JVM whose process is killed alone goes on with its statements until it notices."""
        self._jvms = [
            child for child in psutil.Process(self._process.pid).children(recursive=True) if child.name() == "java"
        ]
        assert bool(self._jvms) != (whom == "client"), f"{len(self._jvms)} JVMs to kill"
        if whom in ("both", "JVM"):
            _kill(self._jvms)
        if whom != "JVM":
            self._process.kill()
            assert self._process.wait() == -signal.SIGKILL

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        _kill(self._jvms)
        self._log.close()


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, 30)


def _held(place: Path) -> list[Path]:
    return list(place.parent.glob(f"{place.name}.*.here"))


def statements(place: Path) -> dict[str, str]:
    """Returns the statements that are held there, by table without the database."""
    return {marker.stem.rpartition(".")[2]: marker.read_text().strip() for marker in _held(place)}


def release(place: Path, tables: Collection[str] | None = None) -> None:
    """Lets the statements run that are held there: those of these tables, or all."""
    for marker in _held(place):
        if tables is None or marker.stem.rpartition(".")[2] in tables:
            marker.with_suffix(".go").touch()
