"""The time that commands take to start, compared with importing Numba on the same machine.

    python -m benchmarks.startup [--repeats 7]

Each command runs in its own process with a warm kernel cache, except for the first capture of a fresh machine, whose
cache is empty: it compiles its kernels if they were not built ahead (``make kernels``). The first event of a capture is
taken to come when the server's list of processes has its dump, which is looked at each 5 ms. The times are the least of
several runs: CPU seconds (user and system), which hardly depend on what else the machine does, and wall seconds. The
ratio compares the CPU seconds with those of ``import numba``, which every command that ran a kernel paid before kernels
ran without it.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.accounting import ROOT, compile_sources
from benchmarks.cold import CDC
from benchmarks.lines import Measurement, Options
from benchmarks.workload import configure
from cdc.testing.servers import PASSWORD, Server


@dataclass(frozen=True)
class Cost:
    """The least of several runs."""

    cpu_s: float
    wall_s: float


@dataclass(frozen=True)
class Case:
    """A command, the wall seconds that it may take on a quiet machine, and how its end is known."""

    name: str
    command: list[str]
    goal_s: float | None = None
    until_output: bool = False
    """Whether it is over with its first line on standard output."""
    until_dump: bool = False
    """Whether it is over once the server sends it the binlog; it is stopped then."""
    fresh: bool = False
    """Whether its cache of kernels is empty."""


def cases(conf: Path, segment: Path) -> list[Case]:
    at = ["--conf-dir", str(conf)]
    return [
        Case("import numba", [sys.executable, "-c", "import numba"]),
        Case("import numpy", [sys.executable, "-c", "import numpy"]),
        Case("cdc --help", [*CDC, "--help"], 0.3),
        Case("cdc status, no lake", [*CDC, *at, "status", "bench"], 0.5),
        Case("cdc capture, first event", [*CDC, *at, "capture", "bench"], 0.7, until_dump=True),
        Case("the same, fresh machine", [*CDC, *at, "capture", "bench"], 3.0, until_dump=True, fresh=True),
        Case("cdc capture, nothing new", [*CDC, *at, "capture", "bench", "--until-current"]),
        Case("cdc decode, first row", [*CDC, "decode", str(segment), "--table", "bench.t"], 0.8, until_output=True),
    ]


def once(case: Case, server: Server) -> Cost:
    """Runs a command. Raises SystemExit if it fails."""
    environment = {**os.environ, "BENCH_PASSWORD": PASSWORD}
    with tempfile.TemporaryDirectory(prefix="towpath-kernels-") as empty:
        return _once(case, server, environment | ({"NUMBA_CACHE_DIR": empty} if case.fresh else {}))


def _once(case: Case, server: Server, environment: dict[str, str]) -> Cost:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    process = subprocess.Popen(
        case.command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    if case.until_output and not process.stdout.readline():
        raise SystemExit(f"{case.name} printed no row")
    if case.until_dump:
        _await_dump(process, server)
    wall_s = time.perf_counter() - began
    if case.until_dump:
        process.terminate()
    _, err = process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"{case.name} failed: {err.decode(errors='replace')}")
    if not (case.until_output or case.until_dump):
        wall_s = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(cpu_s, wall_s)


_DUMPS = "SELECT 1 FROM information_schema.processlist WHERE command = 'Binlog Dump'"


def _await_dump(process: subprocess.Popen[bytes], server: Server) -> None:
    """Waits until the server sends a binlog to somebody. Raises SystemExit if the process ends before."""
    with server.connect() as connection, connection.cursor() as cursor:
        while not cursor.execute(_DUMPS):
            if process.poll() is not None:
                raise SystemExit("cdc capture ended before it has read the binlog")
            time.sleep(0.005)


def _await_no_dump(server: Server) -> None:
    """Waits until the server has noticed that nobody reads its binlog: it does with the next event."""
    with server.connect() as connection, connection.cursor() as cursor:
        while cursor.execute(_DUMPS):
            cursor.execute("UPDATE bench.t SET v = uuid_short() WHERE id = 1")
            connection.commit()
            time.sleep(0.05)


def least(case: Case, repeats: int, server: Server) -> Cost:
    costs = []
    for _ in range(repeats + 1):
        _await_no_dump(server)
        costs.append(once(case, server))
    del costs[0]  # it compiles kernels and fills caches
    return Cost(min(c.cpu_s for c in costs), min(c.wall_s for c in costs))


@contextmanager
def captured() -> Iterator[tuple[Server, Path, Path]]:
    """Yields a server, the folder of a configuration, and a segment of its store."""
    with Server("mariadb10") as server, tempfile.TemporaryDirectory(prefix="towpath-bench-") as folder:
        server.execute(
            "CREATE DATABASE bench",
            "CREATE TABLE bench.t (id INT PRIMARY KEY, v VARCHAR(20))",
            "INSERT INTO bench.t VALUES (1, 'a'), (2, 'b')",
        )
        configure(Path(folder), server, 1)
        conf = Path(folder) / "conf"
        once(Case("cdc capture", [*CDC, "--conf-dir", str(conf), "capture", "bench", "--until-current"]), server)
        yield server, conf, next((Path(folder) / "store" / "segments").glob("*.binlog"))


def lines(options: Options, _: Collection[str]) -> Iterator[Measurement]:
    """The line ``first-start``: the least of the rounds."""
    with captured() as (server, conf, segment):
        warm, fresh = (least(case, options.rounds, server) for case in cases(conf, segment) if case.until_dump)
        note = f"from a checkout; {warm.wall_s:.2f} s with kernels that are there, as in a wheel"
        yield Measurement("first-start", value=fresh.wall_s, ours_s=fresh.wall_s, cpu_s=fresh.cpu_s, note=note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    compile_sources()
    table = Table(title="From the start of the process, with a warm kernel cache")
    for name in ("command", "CPU s", "wall s", "goal, wall s", "CPU against import numba"):
        table.add_column(name, justify="left" if name == "command" else "right")
    with captured() as (server, conf, segment):
        base: Cost | None = None
        for case in cases(conf, segment):
            cost = least(case, options.repeats, server)
            base = base or cost
            table.add_row(
                case.name,
                f"{cost.cpu_s:.2f}",
                f"{cost.wall_s:.2f}",
                "" if case.goal_s is None else f"{case.goal_s}",
                f"{cost.cpu_s / base.cpu_s:.2f}",
            )
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
    console.print(f"Least of {options.repeats} runs; {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}.")


if __name__ == "__main__":
    main()
