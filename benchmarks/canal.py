"""Canal's Java client against ``cdc server`` and against Canal's own server, in turn: rows per second, and CPU time.

    python -m benchmarks.canal [--rows 4000000] [--rounds 3] [--kinds large,small] [--fetch-size 5120]

The client is Canal's own example, which looks at every value (``benchmarks/programs/canal``). Canal's server is set up
as its distribution is (``benchmarks/programs/canal_server``). Maven and javac fetch and compile both into a cache.

Both servers read the same binlog of MariaDB. Ours has captured it into a store before; Canal's reads it while its client
does, since it has no store. The measured time is from the first to the last row that the client gets; "warm" is the
second half of it, when the client's code is compiled, too. Each server serves one more client before that is not
measured, so that its own code is.

"recorded answers" are those of ``cdc server``, played back by a process that does nothing else
(:mod:`benchmarks.canal_recording`): as fast as this client can be on this machine.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import psutil
import yaml
from rich.console import Console
from rich.table import Table

from benchmarks.canal_recording import played, record
from benchmarks.capture import SMALL_STEP
from benchmarks.peers import Peer, built, missing_tools
from cdc.testing.servers import HOST, PASSWORD, USER, Server, free_port

_DESTINATION = "bench"
_OURS, _CANALS, _RECORDED = "cdc server", "Canal's", "recorded answers"
_MOST_RECORDED = 64
"""Answers in a recording."""
_COLUMNS = (
    "transactions",
    "server",
    "rows",
    "rows/s",
    "rows/s, warm",
    "server, CPU s / M rows",
    "client, CPU s / M rows",
    "client, warm",
    "server, MB",
    "ours, warm",
)


def java_client() -> Peer:
    """Canal's Java client. Its arguments: host, port, destination, filter, rows, mode."""
    name = "Canal's Java client"
    if missing := missing_tools(name, "mvn", "javac", "java"):
        return Peer(name, (), missing)
    steps = [
        ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib"],
        ["javac", "-cp", "lib/*", "-d", "classes", "CanalReader.java", "CanalClusterReader.java"],
    ]
    sources = ("canal/pom.xml", "canal/CanalReader.java", "canal/CanalClusterReader.java")
    try:
        folder = built("canal", sources, steps)
    except RuntimeError as error:
        return Peer(name, (), f"{name} cannot be built: {error}.")
    return Peer(name, ("java", "-Xmx2g", "-cp", f"{folder}/classes:{folder}/lib/*", "CanalReader"))


def java_cluster_client() -> Peer:
    """Canal's Java client that finds its server in ZooKeeper. Its arguments: ZooKeeper, destination, filter."""
    peer = java_client()
    return peer if peer.missing else replace(peer, command=(*peer.command[:-1], "CanalClusterReader"))


def go_client() -> Peer:
    """canal-go. Its arguments are those of :func:`java_client`."""
    name = "canal-go"
    if missing := missing_tools(name, "go"):
        return Peer(name, (), missing)
    sources = ("canal_go/go.mod", "canal_go/go.sum", "canal_go/main.go")
    try:
        folder = built("canal-go", sources, [["go", "build", "-o", "reader", "."]])
    except RuntimeError as error:
        return Peer(name, (), f"{name} cannot be built: {error}.")
    return Peer(name, (str(folder / "reader"),))


def peer_server() -> Peer:
    """Canal's own server. Its arguments: see ``CanalPeer.java``."""
    name = "Canal's server"
    if missing := missing_tools(name, "mvn", "javac", "java"):
        return Peer(name, (), missing)
    steps = [
        ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib"],
        ["javac", "-cp", "lib/*", "-d", "classes", "CanalPeer.java"],
    ]
    try:
        folder = built("canal-server", ("canal_server/pom.xml", "canal_server/CanalPeer.java"), steps)
    except RuntimeError as error:
        return Peer(name, (), f"{name} cannot be built: {error}.")
    opened = [option for part in ("lang", "util") for option in ("--add-opens", f"java.base/java.{part}=ALL-UNNAMED")]
    return Peer(name, ("java", "-Xmx2g", *opened, "-cp", f"{folder}/classes:{folder}/lib/*", "CanalPeer"))


class RunningPeer:
    """Canal's own server, with one destination, from a position of a server's binlog on."""

    def __init__(
        self, peer: Peer, server: Server, start: tuple[str, int], log: Path, destination: str = "shop"
    ) -> None:
        self.port = free_port()
        self._log = log
        self._served = 0
        source = (HOST, str(server.port), USER, PASSWORD, start[0], str(start[1]))
        command = [*peer.command, str(self.port), destination, *source, r".*\..*"]
        with log.open("wb") as out:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=out)
        self._wait()

    def _wait(self) -> None:
        self._served += 1
        deadline = time.monotonic() + 60
        while self._log.read_bytes().count(b"serving\n") < self._served:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Canal's server did not start: {self._log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)

    def begin_again(self) -> None:
        """Lets the destination begin at the position again."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"again\n")
        self.process.stdin.flush()
        self._wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(30)


@contextmanager
def canal_server(conf: Path, log: Path, port: int = 0) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Runs ``cdc server`` while the context lasts, on free ports unless one is given; yields its process and the port
    of Canal's clients."""
    command = [sys.executable, "-m", "cdc", "--conf-dir", str(conf), "server", "--http", "0", "--port", str(port)]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, "NO_COLOR": "1"})
    try:
        deadline = time.monotonic() + 120
        while (match := re.search(r"to Canal's clients at \S+:(\d+)\.", log.read_text(errors="replace"))) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"cdc server did not start: {log.read_text(errors='replace')}")
            time.sleep(0.05)
        yield process, int(match[1])
    finally:
        process.terminate()
        process.wait(60)


def enable_canal(file: Path) -> None:
    """Adds ``server.canal.enabled`` to a configuration file."""
    document = yaml.safe_load(file.read_text())
    document["server"] = {"canal": {"enabled": True}}
    file.write_text(yaml.safe_dump(document))


@dataclass(frozen=True)
class Reading:
    """One run of the client: all rows, and then its unsubscription."""

    seconds: float
    """From the first to the last row."""
    server_cpu_s: float
    client_cpu_s: float
    server_mb: float
    warm_rows: int
    """The rows after the first half, and what they took the client, whose code is compiled by then."""
    warm_s: float
    warm_cpu_s: float

    @property
    def warm_rows_per_s(self) -> float:
        return self.warm_rows / self.warm_s


def read(client: Peer, pid: int, port: int, rows: int, fetch_size: int) -> Reading:
    """Lets the client read everything from the server with this process id."""
    watched = psutil.Process(pid)
    before, children = sum(watched.cpu_times()[:2]), os.times()
    arguments = ["127.0.0.1", str(port), _DESTINATION, r".*\..*", str(rows), "count", str(fetch_size)]
    done = subprocess.run([*client.command, *arguments], capture_output=True, text=True, check=True)
    after = os.times()
    warm = re.search(r"^(\d+) rows in (\S+) s and (\S+) CPU s$", done.stdout, re.MULTILINE)
    assert warm is not None, done.stdout
    return Reading(
        float(done.stdout.split()[-1]),
        sum(watched.cpu_times()[:2]) - before,
        after.children_user + after.children_system - children.children_user - children.children_system,
        watched.memory_info().rss / 1e6,
        int(warm[1]),
        float(warm[2]),
        float(warm[3]),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=4_000_000, help="row changes of the large transactions")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", default="large,small", help="large, small, or both")
    parser.add_argument("--fetch-size", type=int, default=5 * 1024, help="of the client, in KiB of entries")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 140)
    client, peer = java_client(), peer_server()
    if client.missing:
        console.print(client.missing)
        return 0
    if peer.missing:
        console.print(peer.missing)
    table = Table(title="Canal's Java client")
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name == "server" else "right")
    remarks = []
    for kind in options.kinds.split(","):
        rows = options.rows if kind == "large" else options.rows // 4 // SMALL_STEP * SMALL_STEP
        compared = compare(kind, rows, options.rounds, options.fetch_size, client, peer)
        for name, runs in compared.runs.items():
            table.add_row(*_row(kind, name, rows, runs, compared.runs[_OURS]))
        remarks += compared.remarks(kind, rows)
    console.print(table)
    for remark in remarks:
        console.print(remark)
    console.print(f"The best of {options.rounds} rounds in turn. {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}.")
    return 0


@dataclass(frozen=True)
class Compared:
    """The runs of each server, by its name, and the CPU time of the capture before."""

    runs: dict[str, list[Reading]]
    capture_cpu_s: float

    def remarks(self, kind: str, rows: int) -> list[str]:
        """Returns what the table does not tell, as sentences."""
        before = self.capture_cpu_s * 1e6 / rows
        remarks = [
            f"{kind}: cdc capture took {before:.1f} CPU s for a million rows before; Canal's server reads as it serves."
        ]
        if _CANALS in self.runs:
            most = max(run.warm_rows_per_s for run in self.runs[_RECORDED])
            theirs = max(run.warm_rows_per_s for run in self.runs[_CANALS])
            remarks.append(
                f"{kind}: this client reads at most {most:,.0f} rows/s here, whatever serves it, so no server can be "
                f"more than {most / theirs:.1f} times as fast as Canal's."
            )
        return remarks


def compare(kind: str, rows: int, rounds: int, fetch_size: int, client: Peer, peer: Peer) -> Compared:
    """Lets the client read from each server in turn, after a first round that is not measured."""
    from benchmarks.capture import TowpathCapture, filled

    with ExitStack() as stack:
        server, file = stack.enter_context(filled(kind, rows))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="towpath-bench-")))
        captured = TowpathCapture(server, folder, None).once()
        conf = folder / "conf" / f"{_DESTINATION}.yaml"
        enable_canal(conf)
        process, port = stack.enter_context(canal_server(conf.parent, folder / "server.log"))
        record(port, _DESTINATION, fetch_size, _MOST_RECORDED, folder / "recording")
        player, player_port = stack.enter_context(played(folder / "recording"))
        servers = {_OURS: (process.pid, port), _RECORDED: (player.pid, player_port)}
        other = None
        if peer.missing is None:
            other = stack.enter_context(RunningPeer(peer, server, (file, 4), folder / "peer.log", _DESTINATION))
            servers[_CANALS] = other.process.pid, other.port
        runs: dict[str, list[Reading]] = {name: [] for name in servers}
        for round_ in range(rounds + 1):
            for name, (pid, at) in servers.items():
                reading = read(client, pid, at, rows, fetch_size)
                if round_:
                    runs[name].append(reading)
            if other is not None and round_ < rounds:
                other.begin_again()
        return Compared(runs, captured.cpu_s)


def _row(kind: str, name: str, rows: int, runs: list[Reading], ours: list[Reading]) -> list[str]:
    best, warm = min(runs, key=lambda run: run.seconds), max(runs, key=lambda run: run.warm_rows_per_s)
    faster = max(run.warm_rows_per_s for run in ours) / warm.warm_rows_per_s
    return [
        kind, name, f"{rows:,}", f"{rows / best.seconds:,.0f}", f"{warm.warm_rows_per_s:,.0f}",
        f"{best.server_cpu_s * 1e6 / rows:.1f}", f"{best.client_cpu_s * 1e6 / rows:.1f}",
        f"{warm.warm_cpu_s * 1e6 / warm.warm_rows:.1f}", f"{best.server_mb:.0f}",
        "" if runs is ours else f"{faster:.2f} ×",
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
