"""Snapshots compared with ``mariadb-dump`` and with PyMySQL's cursor, alternating, on the same table.

A snapshot finds borders, reads chunks over several connections, converts them, writes Parquet files and syncs each.
mariadb-dump (``--single-transaction``) writes SQL into a file that is not synced. PyMySQL fetches all rows with its
default cursor. The connections use TLS in all three, as the server offers it. ``cpu`` are the seconds of both processes,
client and server, together.

    python -m benchmarks.snapshot [--rows 1000000] [--rounds 5] [--parallel 2]
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.capture import ROW, TABLE
from cdc import snapshot
from cdc.capture import Capture
from cdc.testing.servers import HOST, PASSWORD, USER, Server, client_tool
from tests.support.snapshots import identity, write_config


def cpu_s(server: Server) -> float:
    """CPU seconds of this process, of its ended children, and of the server."""
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    ours = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
    return ours + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parallel", type=int, default=2)
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 120)
    with (
        Server("mariadb11", options=["--innodb-buffer-pool-size=1G"]) as server,
        tempfile.TemporaryDirectory(prefix="towpath-bench-", dir=os.environ.get("TMPDIR")) as folder,
    ):
        server.execute("CREATE DATABASE bench", TABLE)
        server.execute(f"INSERT INTO bench.orders {ROW.format(text=60)} FROM bench.seq_1_to_{options.rows}")
        server.execute("ANALYZE TABLE bench.orders")
        config = write_config(
            server,
            Path(folder),
            r"bench\.orders",
            apply={"mode": "upsert"},
            snapshot={"parallel": options.parallel},
        )
        Capture(config).run(until_current=True)
        source = identity(server)

        def ours() -> None:
            files = snapshot.take(config, "bench.orders", source)
            assert sum(record.rows for record in files.records()) == options.rows
            files.remove()

        def dump() -> None:
            tool = [
                *client_tool("mariadb11", "mariadb-dump"), "--no-defaults", f"--host={HOST}", f"--port={server.port}",
                f"--user={USER}", f"--password={PASSWORD}", "--single-transaction", "--no-create-info",
                f"--result-file={folder}/dump.sql", "bench", "orders",
            ]  # fmt: skip
            subprocess.run(tool, check=True, capture_output=True)

        def cursor() -> None:
            with server.connect() as connection, connection.cursor() as found:
                found.execute("SELECT * FROM bench.orders")
                assert len(found.fetchall()) == options.rows

        ways: dict[str, Callable[[], None]] = {"snapshot": ours, "mariadb-dump": dump, "PyMySQL": cursor}
        ours()  # kernels compiled, caches warm
        wall: dict[str, list[float]] = {name: [] for name in ways}
        cpu: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(options.rounds):
            for name, run in ways.items():
                if name == "PyMySQL" and number:
                    continue  # once is enough to see that it is far behind
                before, began = cpu_s(server), time.perf_counter()
                run()
                wall[name].append(time.perf_counter() - began)
                cpu[name].append(cpu_s(server) - before)
    table = Table(title=f"{options.rows:,} rows of 11 columns, {options.parallel} connections, {os.cpu_count()} CPUs")
    for name in ("", "wall s", "rows/s", "cpu s", "ratio of wall time", "ratio of cpu", "goal"):
        table.add_column(name, justify="right")
    for name in ways:
        seconds, busy = statistics.median(wall[name]), statistics.median(cpu[name])
        table.add_row(
            name,
            f"{seconds:.2f}",
            f"{options.rows / seconds:,.0f}",
            f"{busy:.2f}",
            f"{statistics.median(wall['mariadb-dump']) / seconds:.2f}",
            f"{statistics.median(cpu['mariadb-dump']) / busy:.2f}",
            "1.0" if name == "snapshot" else "",
        )
    console.print(table)
    console.print("Ratios: speed relative to mariadb-dump. Medians; the load of the machine:", os.getloadavg()[0])


if __name__ == "__main__":
    main()
