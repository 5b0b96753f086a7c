"""The processes of one pipeline: started, counted, killed and started again, and its target, read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from string import Template
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset

from benchmarks.accounting import ROOT, Tree
from cdc.testing.servers import HOST, PASSWORD, USER, Server

SETTINGS = Path(__file__).with_name("settings")
_MARK = "TOWPATH_PIPELINE"
"""Environment variable of all processes of a pipeline."""
_POLL_S = 0.05


class Pipeline(ABC):
    """One way from MySQL into a lake. Its files and commands are those of ``settings/NAME``: each file is copied into
    :attr:`folder` with its ``$variables`` filled in, and ``commands`` has a line ``NAME: COMMAND`` for each service."""

    name: ClassVar[str]
    title: ClassVar[str]
    continuous: ClassVar[bool] = True
    """Whether it follows the source; otherwise :meth:`load` copies the whole table each time."""
    fixed_columns: ClassVar[str | None] = None
    """Why a new column does not arrive by itself, as a sentence."""

    def __init__(self, source: Server, folder: Path, tree: Tree) -> None:
        self.source, self.folder, self.tree = source, folder, tree
        self.variables = {
            "folder": str(folder), "host": HOST, "port": str(source.port), "user": USER, "password": PASSWORD,
            "python": sys.executable, "cores": str(os.cpu_count() or 1),
        }  # fmt: skip
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.restarts = 0
        """Services that ended by themselves and were started again, as a supervisor does."""

    # --- what each pipeline has of its own

    @abstractmethod
    def prepare(self) -> None:
        """Fetches the programs, adds variables and calls :meth:`write_files`. This is not measured."""

    @abstractmethod
    def load(self) -> None:
        """Starts all services, or copies the table once."""

    @property
    @abstractmethod
    def target(self) -> Path:
        """The folder of the Delta table."""

    @abstractmethod
    def versions(self) -> dict[str, str]: ...

    # --- files and services

    def write_files(self) -> None:
        for file in self.files():
            if file.name != "commands":
                (self.folder / file.name).write_text(Template(file.read_text()).substitute(self.variables))

    @classmethod
    def files(cls) -> list[Path]:
        return sorted(path for path in (SETTINGS / cls.name).iterdir() if path.is_file())

    @classmethod
    def lines(cls) -> int:
        """Returns the lines that its user writes, without empty ones and comments."""
        lines = [line.strip() for file in cls.files() for line in file.read_text().splitlines()]
        return sum(bool(line) and not line.startswith(("#", '"""')) for line in lines)

    def command(self, service: str) -> str:
        lines = (SETTINGS / self.name / "commands").read_text().splitlines()
        line = next(line for line in lines if line.startswith(f"{service}: "))
        return Template(line.partition(": ")[2]).substitute(self.variables)

    def start(self, service: str) -> None:
        """Starts a service in a session of its own; its output is in a file of its name."""
        with (self.folder / f"{service}.log").open("ab") as log:
            self.running[service] = self.tree.start(
                ["setpriv", "--pdeathsig", "KILL", "sh", "-c", self.command(service)],
                env={**os.environ, _MARK: f"{self.folder}/{service}", "BENCH_PASSWORD": PASSWORD},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=ROOT,
            )

    def finish(self, service: str) -> None:
        """Runs a service to its end. Raises RuntimeError with the end of its log if it fails."""
        self.start(service)
        if code := self.running[service].wait():
            raise RuntimeError(f"{self.name}: {service} ended with code {code}: {self.log_end(service)}")
        del self.running[service]

    def kill(self, service: str) -> None:
        """Sends SIGKILL to all processes of a service at once."""
        process = self.running.pop(service)
        for pid in list(self.pids(service)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()

    def supervise(self) -> None:
        """Starts services again that have ended by themselves."""
        for service, process in list(self.running.items()):
            if process.poll() is not None:
                print(f"{self.name}: {service} ended: {self.log_end(service)}", file=sys.stderr, flush=True)
                self.restarts += 1
                self.start(service)

    def stop(self) -> None:
        for service in list(self.running):
            self.kill(service)

    def log_end(self, service: str) -> str:
        lines = (self.folder / f"{service}.log").read_text(errors="replace").strip().splitlines()
        return " / ".join(line.strip() for line in lines[-6:])[-1500:]

    def wait(self, what: str, check: Callable[[], bool], timeout_s: float = 900) -> None:
        """Waits until ``check`` holds. Raises RuntimeError after the timeout, or if a service has ended."""
        end = time.perf_counter() + timeout_s
        while not check():
            ended = [name for name, process in self.running.items() if process.poll() is not None]
            if ended or time.perf_counter() > end:
                logs = "; ".join(f"{name}: {self.log_end(name)}" for name in ended or self.running)
                raise RuntimeError(f"{self.name}: {what} has not come about: {logs}")
            time.sleep(_POLL_S)

    def pids(self, service: str = "") -> Iterator[int]:
        """Returns the processes of a service, or of all, whatever session they are in."""
        mark = f"{_MARK}={self.folder}/{service}".encode()
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                variables = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
            except OSError:
                continue  # it has ended
            if any(variable == mark or (not service and variable.startswith(mark)) for variable in variables):
                yield int(name)

    def written_mb(self) -> float:
        """Returns the megabytes that its processes have written to disks; those that have ended count for who waited
        for them, in the end for this process."""
        total = 0
        for pid in (*self.pids(), os.getpid()):
            try:
                lines = Path(f"/proc/{pid}/io").read_text().splitlines()
            except OSError:
                continue  # it has ended
            total += sum(int(line.split()[1]) for line in lines if line.startswith("write_bytes:"))
        return total / 1e6

    # --- the target

    def stamp(self) -> object:
        """Returns another value after each commit of the target."""
        try:
            return max(file for file in os.listdir(self.target / "_delta_log") if file.endswith(".json"))
        except (FileNotFoundError, ValueError):
            return None

    def read(self, condition: pc.Expression | None = None) -> pa.Table | None:
        """Returns rows of the target, None before its first commit."""
        dataset = self.dataset()
        return None if dataset is None else dataset.to_table(filter=condition)

    def count(self, condition: pc.Expression | None = None) -> int:
        dataset = self.dataset()
        return 0 if dataset is None else int(dataset.count_rows(filter=condition))

    def dataset(self) -> pa.dataset.Dataset | None:
        from deltalake import DeltaTable

        return None if self.stamp() is None else DeltaTable(str(self.target)).to_pyarrow_dataset()

    def wait_readable(self, what: str, check: Callable[[], bool], timeout_s: float = 1800) -> float:
        """Waits until ``check`` holds for the target, looking after each of its commits. Returns the monotonic seconds
        before the look that held."""
        looked: object = ""
        at = 0.0

        def changed() -> bool:
            nonlocal looked, at
            if (stamp := self.stamp()) == looked:
                return False
            looked, at = stamp, time.perf_counter()
            return check()

        self.wait(what, changed, timeout_s)
        return at
