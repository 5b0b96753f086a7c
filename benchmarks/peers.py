"""Capture compared with mysql-binlog-connector-java, which reads the same binlog and counts its rows: whole processes.

    python -m benchmarks.peers [--bytes 250000000] [--pairs 3]

Debezium and many other readers stand on connector-java. It is fetched from Maven Central by ``mvn`` and compiled by
``javac``; without these tools nothing is compared, and a sentence says so. It writes nothing, while capture verifies
checksums, indexes transactions and syncs the store. Both include the start of their process.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.capture import TowpathCapture, add_last, binlog_bytes, fill, measured
from cdc.testing.servers import HOST, PASSWORD, USER, Server

PACKAGE = "com.zendesk:mysql-binlog-connector-java:0.30.1"
SOURCE = Path(__file__).with_name("ConnectorJava.java")


def compiled(folder: Path) -> str:
    """Fetches the library and compiles the reader into a folder. Returns the class path."""
    fetch = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={PACKAGE}", f"-DoutputDirectory={folder}"]
    subprocess.run(fetch, check=True, cwd=folder)
    subprocess.run(["javac", "-cp", f"{folder}/*", "-d", str(folder), str(SOURCE)], check=True)
    return f"{folder}:{folder}/*"


def rows_of(server: Server) -> int:
    """The row changes in the binlog: each row of the table was inserted, and those of small transactions updated."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM bench.orders")
        return int(cursor.fetchone()[0])  # type: ignore[index]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--bytes", type=int, default=250_000_000, help="minimal size of the binlog")
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 120)
    missing = [tool for tool in ("mvn", "javac", "java") if shutil.which(tool) is None]
    if missing:
        console.print(f"Nothing is compared: {', '.join(missing)} is not installed.")
        return 0
    table = Table(title="Whole processes: cdc capture, and connector-java counting rows")
    for name in ("transactions", "binlog MB", "ours s", "connector-java s", "ratio of speeds", "goal"):
        table.add_column(name, justify="right")
    for kind, per_row, goal in (("large", 1.0, "1.5"), ("small", 1.5, "1.0")):
        with (
            Server("mariadb10", options=["--max-binlog-size=1G", "--binlog-annotate-row-events=OFF"]) as server,
            tempfile.TemporaryDirectory(prefix="towpath-bench-", dir=os.environ.get("TMPDIR")) as name,
        ):
            folder = Path(name)
            classes = compiled(folder)
            fill(server, kind, options.bytes)
            size, rows = binlog_bytes(server), int(rows_of(server) * per_row)
            ours = TowpathCapture(server, folder / "ours", add_last(server))
            with server.connect() as connection, connection.cursor() as cursor:
                cursor.execute("SHOW BINARY LOGS")
                first = str(cursor.fetchall()[0][0])
            java = ["java", "-cp", classes, "ConnectorJava", HOST, str(server.port), USER, PASSWORD, first, str(rows)]
            ours.once()  # kernels compiled, caches warm
            measured(java)
            pairs = [(ours.once()[0], measured(java)[0]) for _ in range(options.pairs)]
            mine, other = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
            ratio = statistics.median(theirs / own for own, theirs in pairs)
            table.add_row(kind, f"{size / 1e6:.0f}", f"{mine:.2f}", f"{other:.2f}", f"{ratio:.2f}", f"≥ {goal}")
    console.print(table)
    console.print(f"Medians of {options.pairs} alternating pairs; {os.cpu_count()} CPUs.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
