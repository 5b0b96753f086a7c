"""Canal's Java client against ``cdc server`` and against Canal's own server, in turn: rows per second, and CPU time.

    python -m benchmarks.canal [--rows 1000000] [--rounds 3] [--kinds large,small]

The client is Canal's own example, which looks at every value (``benchmarks/programs/canal``). Canal's server is set up
as its distribution is (``benchmarks/programs/canal_server``). Maven and javac fetch and compile both into a cache.

Both servers read the same binlog of MariaDB. Ours has captured it into a store before; Canal's reads it while its client
does, since it has no store. The measured time is from the first to the last row that the client gets. Each server
serves one more client before that is not measured, so that its code is compiled.
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
from dataclasses import replace
from pathlib import Path
from typing import Self

import psutil
import yaml
from rich.console import Console
from rich.table import Table

from benchmarks.peers import Peer, built, missing_tools
from cdc.testing.servers import HOST, PASSWORD, USER, Server, free_port


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
    one = java_client()
    return one if one.missing else replace(one, command=(*one.command[:-1], "CanalClusterReader"))


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
        while (found := re.search(r"to Canal's clients at \S+:(\d+)\.", log.read_text(errors="replace"))) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"cdc server did not start: {log.read_text(errors='replace')}")
            time.sleep(0.05)
        yield process, int(found[1])
    finally:
        process.terminate()
        process.wait(60)


def enable_canal(file: Path) -> None:
    """Adds ``server.canal.enabled`` to a configuration file."""
    document = yaml.safe_load(file.read_text())
    document["server"] = {"canal": {"enabled": True}}
    file.write_text(yaml.safe_dump(document))


def main() -> int:
    from benchmarks.capture import SMALL_STEP, TowpathCapture, filled

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000_000, help="row changes of the large transactions")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", default="large,small", help="large, small, or both")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 140)
    client = java_client()
    if client.missing:
        console.print(client.missing)
        return 0
    peer = peer_server()
    if peer.missing:
        console.print(peer.missing)
    table = Table(title="Canal's Java client")
    names = (
        "transactions",
        "server",
        "rows",
        "rows/s",
        "server, CPU s / M rows",
        "client, CPU s / M rows",
        "server, MB",
    )
    for name in (*names, "ours"):
        table.add_column(name, justify="left" if name == "server" else "right")
    for kind in options.kinds.split(","):
        rows = options.rows if kind == "large" else options.rows // 4 // SMALL_STEP * SMALL_STEP
        ours, theirs = [], []
        with ExitStack() as stack:
            server, file = stack.enter_context(filled(kind, rows))
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="towpath-bench-")))
            TowpathCapture(server, folder, None).once()
            conf = folder / "conf" / "bench.yaml"
            enable_canal(conf)
            process, port = stack.enter_context(canal_server(conf.parent, folder / "server.log"))
            if peer.missing is None:
                other = stack.enter_context(RunningPeer(peer, server, (file, 4), folder / "peer.log", "bench"))
            for round_ in range(options.rounds + 1):  # in turn, after a first one that is not measured
                ours.append(_read(client, process.pid, port, "bench", rows))
                if peer.missing is None:
                    theirs.append(_read(client, other.process.pid, other.port, "bench", rows))
                    if round_ < options.rounds:
                        other.begin_again()
        best = min(ours[1:])
        for name, runs in (("cdc server", ours), ("Canal's", theirs)):
            if not runs:
                continue
            seconds, server_cpu, client_cpu, peak = min(runs[1:])
            per_row = 1e6 / rows
            table.add_row(
                kind, name, f"{rows:,}", f"{rows / seconds:,.0f}", f"{server_cpu * per_row:.1f}",
                f"{client_cpu * per_row:.1f}", f"{peak:.0f}",
                "" if runs is ours else f"{seconds / best[0]:.1f} ×",
            )  # fmt: skip
    console.print(table)
    console.print(f"The best of {options.rounds} rounds in turn. {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}.")
    return 0


def _read(client: Peer, pid: int, port: int, destination: str, rows: int) -> tuple[float, float, float, float]:
    """Lets the client read everything, and end its subscription. Returns seconds, CPU seconds of the server (process
    ``pid``) and of the client, and the server's memory in MB."""
    watched = psutil.Process(pid)
    before, children = sum(watched.cpu_times()[:2]), os.times()
    command = [*client.command, "127.0.0.1", str(port), destination, r".*\..*", str(rows), "count"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    after = os.times()
    client_cpu = after.children_user + after.children_system - children.children_user - children.children_system
    seconds = float(done.stdout.split()[-1])
    return seconds, sum(watched.cpu_times()[:2]) - before, client_cpu, watched.memory_info().rss / 1e6


if __name__ == "__main__":
    sys.exit(main())
