"""Canal's Java client against ``cdc server``: rows per second, and CPU time of both.

    python -m benchmarks.canal [--rows 1000000] [--rounds 3] [--kinds large,small]

The client is Canal's own example, which looks at every value (``benchmarks/programs/canal``); Maven and javac fetch and
compile what it needs into a cache. The store is captured before; the measured time is from the first to the last row
that the client gets.
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
from contextlib import contextmanager
from pathlib import Path

import psutil
import yaml
from rich.console import Console
from rich.table import Table

from benchmarks.peers import Peer, built, missing_tools


def java_client() -> Peer:
    """Canal's Java client. Its arguments: host, port, destination, filter, rows, mode."""
    name = "Canal's Java client"
    if missing := missing_tools(name, "mvn", "javac", "java"):
        return Peer(name, (), missing)
    steps = [
        ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib"],
        ["javac", "-cp", "lib/*", "-d", "classes", "CanalReader.java"],
    ]
    try:
        folder = built("canal", ("canal/pom.xml", "canal/CanalReader.java"), steps)
    except RuntimeError as error:
        return Peer(name, (), f"{name} cannot be built: {error}.")
    return Peer(name, ("java", "-Xmx2g", "-cp", f"{folder}/classes:{folder}/lib/*", "CanalReader"))


@contextmanager
def canal_server(conf: Path, log: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Runs ``cdc server`` on free ports while the context lasts; yields its process and the port of Canal's clients."""
    command = [sys.executable, "-m", "cdc", "--conf-dir", str(conf), "server", "--http", "0", "--port", "0"]
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
    table = Table(title="Canal's Java client against cdc server")
    for name in ("transactions", "rows", "rows/s", "server, CPU s / M rows", "client, CPU s / M rows", "server, MB"):
        table.add_column(name, justify="right")
    for kind in options.kinds.split(","):
        rows = options.rows if kind == "large" else options.rows // 4 // SMALL_STEP * SMALL_STEP
        with filled(kind, rows) as (server, _), tempfile.TemporaryDirectory(prefix="towpath-bench-") as folder:
            TowpathCapture(server, Path(folder), None).once()
            conf = Path(folder) / "conf" / "bench.yaml"
            enable_canal(conf)
            with canal_server(conf.parent, Path(folder) / "server.log") as (process, port):
                best = min(_read(client, process, port, conf.stem, rows) for _ in range(options.rounds))
        seconds, server_cpu, client_cpu, peak = best
        per_row = 1e6 / rows
        table.add_row(
            kind, f"{rows:,}", f"{rows / seconds:,.0f}", f"{server_cpu * per_row:.1f}", f"{client_cpu * per_row:.1f}",
            f"{peak:.0f}",
        )  # fmt: skip
    console.print(table)
    return 0


def _read(
    client: Peer, server: subprocess.Popen[bytes], port: int, destination: str, rows: int
) -> tuple[float, float, float, float]:
    """Lets the client read everything, and end its subscription. Returns seconds, CPU seconds of the server and of the client, and the server's
    memory in MB."""
    watched = psutil.Process(server.pid)
    before, children = sum(watched.cpu_times()[:2]), os.times()
    command = [*client.command, "127.0.0.1", str(port), destination, r".*\..*", str(rows), "count"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    after = os.times()
    client_cpu = after.children_user + after.children_system - children.children_user - children.children_system
    seconds = float(done.stdout.split()[-1])
    return seconds, sum(watched.cpu_times()[:2]) - before, client_cpu, watched.memory_info().rss / 1e6


if __name__ == "__main__":
    sys.exit(main())
