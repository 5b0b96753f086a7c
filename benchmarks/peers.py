"""Other programs that read a binlog, and their comparison with capture and ``cdc.stream``: ``make bench-peers``.

    python -m benchmarks.peers [--rows 1000000] [--rounds 3] [--only connector-java,debezium,…] [--kinds large,small]

Each peer reads the same binlog and counts its rows: mysql-binlog-connector-java (Debezium and many others stand on it),
Debezium embedded with large queues and without a serializer, go-mysql, and mysql-replication. Their programs are in
``benchmarks/programs``; Maven, javac and Go fetch and compile what they need into a cache. A peer whose tools are missing
is left out with a sentence. None of them writes anything, while capture verifies checksums, indexes transactions and
syncs the store. ``cdc.stream`` verifies checksums and makes a dict of each row before and after its change, or Arrow
tables; it acks each transaction, with a cursor in a file, and ``stream-file`` also writes its log.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.accounting import Run, run
from cdc.disk.cache import cache_dir
from cdc.testing.servers import HOST, PASSWORD, USER, Server

PROGRAMS = Path(__file__).with_name("programs")


@dataclass(frozen=True)
class Reading:
    """One run of a peer."""

    seconds: float
    """From the first to the last row."""
    whole: Run


@dataclass(frozen=True)
class Peer:
    """A program that counts the rows of a binlog."""

    name: str
    command: tuple[str, ...]
    missing: str | None = None
    """Why it cannot run here, as a sentence."""
    sample: int | None = None
    """The most rows that it reads: some are slower by two orders of magnitude."""

    def read(self, server: Server, file: str, rows: int) -> Reading:
        """Lets it read a binlog file of a server up to this number of rows."""
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT BINLOG_GTID_POS(%s, 4)", (file,))
            gtids = str(cursor.fetchall()[0][0])
        rows = min(rows, self.sample or rows)
        whole = run([*self.command, HOST, str(server.port), USER, PASSWORD, file, str(rows), gtids])
        return Reading(float(whole.output.split()[-1]), whole)


# --- the programs ----------------------------------------------------------------------------------------------------


def connector_java() -> Peer:
    return _java("connector-java", "ConnectorJava")


def debezium() -> Peer:
    return _java("Debezium", "DebeziumReader")


def go_mysql() -> Peer:
    name = "go-mysql"
    if missing := missing_tools(name, "go"):
        return Peer(name, (), missing)
    try:
        folder = built("go", ("go.mod", "go.sum", "main.go"), [["go", "build", "-o", "peer", "."]])
    except RuntimeError as error:
        return Peer(name, (), f"{name} cannot be built: {error}.")
    return Peer(name, (str(folder / "peer"),))


def mysql_replication() -> Peer:
    return Peer("mysql-replication", (sys.executable, str(PROGRAMS / "read_mysql_replication.py")), sample=50_000)


def stream(form: str, store: str) -> Callable[[], Peer]:
    name = f"cdc.stream, {form}" if store == "memory" else f"cdc.stream, {form}, on disk"
    return lambda: Peer(name, (sys.executable, str(PROGRAMS / "read_stream.py"), form, store))


PEERS: dict[str, Callable[[], Peer]] = {
    "stream": stream("dicts", "memory"),
    "stream-arrow": stream("arrow", "memory"),
    "stream-file": stream("dicts", "file"),
    "connector-java": connector_java,
    "debezium": debezium,
    "go-mysql": go_mysql,
    "mysql-replication": mysql_replication,
}


def _java(name: str, main_class: str) -> Peer:
    if missing := missing_tools(name, "mvn", "javac", "java"):
        return Peer(name, (), missing)
    steps = [
        ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib"],
        ["javac", "-cp", "lib/*", "-d", "classes", "ConnectorJava.java", "DebeziumReader.java"],
    ]
    try:
        folder = built("java", ("pom.xml", "ConnectorJava.java", "DebeziumReader.java"), steps)
    except RuntimeError as error:
        return Peer(name, (), f"{name} cannot be built: {error}.")
    return Peer(name, ("java", "-Xmx2g", "-cp", f"{folder}/classes:{folder}/lib/*", main_class))


def missing_tools(name: str, *tools: str) -> str | None:
    absent = [tool for tool in tools if shutil.which(tool) is None]
    return f"{name} is not compared, because {' and '.join(absent)} cannot be found." if absent else None


def built(kind: str, sources: tuple[str, ...], steps: list[list[str]]) -> Path:
    """Returns the folder in which these programs are built; builds them if they changed since. Raises RuntimeError."""
    contents = [(PROGRAMS / source).read_bytes() for source in sources]
    digest = hashlib.sha256(b"\0".join(contents)).hexdigest()[:16]
    folder = cache_dir() / "bench-peers" / f"{kind}-{digest}"
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="building-") as name:
        work = Path(name) / "work"
        work.mkdir()
        for source in sources:
            shutil.copy(PROGRAMS / source, work)
        for step in steps:
            done = subprocess.run(step, cwd=work, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                lines = (done.stdout + done.stderr).strip().splitlines() or ["it printed nothing"]
                raise RuntimeError(f"{' '.join(step[:2])} ended with code {done.returncode}, {lines[-1].strip(' .')}")
        work.rename(folder)
    return folder


# --- the comparison --------------------------------------------------------------------------------------------------


def main() -> int:
    from benchmarks.capture import SMALL_STEP, TowpathCapture, filled

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000_000, help="row changes of the large transactions")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(PEERS), help=f"some of {', '.join(PEERS)}")
    parser.add_argument("--kinds", default="large,small", help="large, small, or both")
    options = parser.parse_args()
    chosen = options.only.split(",")
    if unknown := [name for name in chosen if name not in PEERS]:
        parser.error(f"unknown peer {unknown[0]!r}; known: {', '.join(PEERS)}")
    console = Console(width=None if sys.stdout.isatty() else 140)
    peers = [PEERS[name]() for name in chosen]
    for peer in peers:
        if peer.missing:
            console.print(peer.missing)
    peers = [peer for peer in peers if peer.missing is None]
    os.environ["PYTHONPATH"] = str(PROGRAMS.parent.parent)  # for the program that uses cdc
    for kind in options.kinds.split(","):
        rows = options.rows if kind == "large" else options.rows // 4 // SMALL_STEP * SMALL_STEP
        with filled(kind, rows) as (server, file), tempfile.TemporaryDirectory(prefix="towpath-bench-") as folder:
            ours = TowpathCapture(server, Path(folder), None)
            ours.once()  # kernels compiled, caches warm
            mine: list[Run] = []
            readings: dict[str, list[Reading]] = {peer.name: [] for peer in peers}
            for _ in range(options.rounds):  # in turn
                mine.append(ours.once())
                for peer in peers:
                    if not (peer.sample and readings[peer.name]):
                        readings[peer.name].append(peer.read(server, file, rows))
        _print(console, kind, rows, peers, mine, readings)
    console.print(
        f"The best of {options.rounds} rounds in turn; mysql-replication reads a sample once. PSS of all processes. "
        f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}."
    )
    return 0


def _print(
    console: Console, kind: str, rows: int, peers: list[Peer], mine: list[Run], readings: dict[str, list[Reading]]
) -> None:
    table = Table(title=f"{rows:,} row changes in {kind} transactions")
    for name in (
        "reader",
        "rows",
        "first to last row/s",
        "whole process, rows/s",
        "CPU s / M rows",
        "MB",
        "capture's speed",
    ):
        table.add_column(name, justify="left" if name == "reader" else "right")
    best = min(mine, key=lambda reading: reading.seconds)
    table.add_row("cdc capture", f"{rows:,}", "", f"{rows / best.seconds:,.0f}", f"{best.cpu_s * 1e6 / rows:.1f}",
                  f"{best.peak_mb:.0f}", "")  # fmt: skip
    for peer in peers:
        rows_read = min(peer.sample or rows, rows)
        fastest = min(readings[peer.name], key=lambda reading: reading.whole.seconds)
        per_s = rows_read / fastest.whole.seconds
        table.add_row(
            peer.name, f"{rows_read:,}", f"{rows_read / min(r.seconds for r in readings[peer.name]):,.0f}",
            f"{per_s:,.0f}",
            f"{fastest.whole.cpu_s * 1e6 / rows_read:.1f}", f"{fastest.whole.peak_mb:.0f}",
            f"{rows / best.seconds / per_s:.2f} ×",
        )  # fmt: skip
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
