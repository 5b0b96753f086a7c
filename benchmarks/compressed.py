"""Capture of a compressed binlog compared with the same changes uncompressed, on MySQL and MariaDB.

Each is read by ``cdc capture`` in its own process, several times, of which the fastest counts; the start-up, which is
that of a run with nothing to read, is subtracted. "s" are CPU seconds. "rows" compares them, "wire" the bytes received per
CPU second, and "store" the sizes of the stores. "raw" is the CPU seconds of the server's own tool with ``--raw``
(mysqlbinlog, mariadb-binlog), which stores the compressed binlog as it comes, divided by those of capture.

    python -m benchmarks.compressed [--rows 400000] [--rounds 3]
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.accounting import Run, run
from benchmarks.capture import binlog_bytes
from benchmarks.workload import create_table, values
from cdc.testing.servers import HOST, PASSWORD, USER, Server, client_tool

_OPTIONS = {
    "mysql9": ("--max-binlog-size=1G", "--cte-max-recursion-depth=100000"),
    "mariadb10": ("--max-binlog-size=1G", "--binlog-annotate-row-events=OFF"),
}
_SWITCHES = {
    "mysql9": ("SET GLOBAL binlog_transaction_compression = ON",),
    "mariadb10": ("SET GLOBAL log_bin_compress = ON", "SET GLOBAL log_bin_compress_min_len = 10"),
}
_LARGE_ROWS = 5000


@dataclass(frozen=True)
class Result:
    """A history captured: the fastest of its runs."""

    cpu_s: float
    """Without start-up."""
    binlog_bytes: int
    store_bytes: int
    peak_mb: float
    tool_s: float
    """CPU seconds of the server's own tool."""


def _fill(server: Server, kind: str, rows: int) -> None:
    """Inserts rows in transactions of 5,000, or of one."""
    server.execute(
        "CREATE DATABASE bench",
        create_table(),
        "CREATE PROCEDURE bench.small(n INT) BEGIN DECLARE i INT DEFAULT 0; WHILE i < n DO "
        f"INSERT INTO bench.orders SELECT {values('i', 200)}; SET i = i + 1; END WHILE; END",
    )
    if kind == "small":
        server.execute(f"CALL bench.small({rows})", "FLUSH BINARY LOGS")
        return
    numbers = f"WITH RECURSIVE s AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM s WHERE n < {_LARGE_ROWS})"
    limit = ["SET max_recursive_iterations = 100000"] if server.kind.name != "mysql9" else []
    server.execute(
        *limit, *[f"INSERT INTO bench.orders {numbers} SELECT {values('n', 200)} FROM s"] * (rows // _LARGE_ROWS)
    )
    server.execute("FLUSH BINARY LOGS")  # a start at the end reads the last file for its GTIDs


def _capture(server: Server, folder: Path, start: str) -> Run:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "conf").mkdir(parents=True)
    flavor = "mysql" if server.kind.name == "mysql9" else "mariadb"
    (folder / "conf" / "bench.yaml").write_text(
        f"source: {{url: '{flavor}://{USER}@{HOST}:{server.port}', password_env: BENCH_PASSWORD, server_id: 4711,"
        f" start: {start}}}\n"
        "tables: {include: ['bench\\..*']}\nstore: {path: store}\nmeta: {path: meta}\napply: {target: lake}\n"
    )
    command = [sys.executable, "-m", "cdc", "--conf-dir", str(folder / "conf"), "capture", "--until-current", "bench"]
    return run(command, BENCH_PASSWORD=PASSWORD)


def _tool(server: Server, folder: Path, file: str) -> Run:
    """Copies the server's binlog from a file on by its own tool."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    name = "mysqlbinlog" if server.kind.name == "mysql9" else "mariadb-binlog"
    where = [f"--host={HOST}", f"--port={server.port}", f"--user={USER}", f"--password={PASSWORD}"]
    options = ["--no-defaults", "--read-from-remote-server", "--raw", "--to-last-log", f"--result-file={folder}/raw-"]
    return run([*client_tool(server.kind.name, name), *options, *where, file])


def measure(server_kind: str, kind: str, rows: int, rounds: int, *, on: bool) -> Result:
    """Fills a server and captures it."""
    with (
        Server(server_kind, options=list(_OPTIONS[server_kind])) as server,
        tempfile.TemporaryDirectory(prefix="towpath-bench-") as at,
    ):
        server.execute(*(_SWITCHES[server_kind] if on else ()))
        _fill(server, kind, rows)
        folder = Path(at)
        _capture(server, folder, "earliest")  # kernels compiled, caches warm
        empty_s = min(_capture(server, folder, "now").cpu_s for _ in range(rounds))
        runs = [_capture(server, folder, "earliest") for _ in range(rounds)]
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW BINARY LOGS")
            files = [str(row[0]) for row in cursor.fetchall()]
        raw_s, idle_s = (
            min(_tool(server, folder / "raw", file).cpu_s for _ in range(rounds)) for file in (files[0], files[-1])
        )
        stored = sum(file.stat().st_size for file in (folder / "store" / "segments").glob("*.binlog"))
        cpu_s = min(run.cpu_s for run in runs) - empty_s
        return Result(max(cpu_s, 0.001), binlog_bytes(server), stored, max(run.peak_mb for run in runs), raw_s - idle_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    table = Table(title="Capture of compressed changes against the same ones uncompressed")
    for name in (
        "server",
        "transactions",
        "binlog MB",
        "compressed MB",
        "s",
        "compressed s",
        "rows",
        "wire",
        "raw",
        "store",
        "MB",
    ):
        table.add_column(name, justify="right")
    for server_kind in _OPTIONS:
        for kind in ("large", "small"):
            rows = options.rows if kind == "large" else options.rows // 8
            plain, packed = (measure(server_kind, kind, rows, options.rounds, on=on) for on in (False, True))
            table.add_row(
                server_kind,
                kind,
                f"{plain.binlog_bytes / 1e6:.0f}",
                f"{packed.binlog_bytes / 1e6:.0f}",
                f"{plain.cpu_s:.2f}",
                f"{packed.cpu_s:.2f}",
                f"{plain.cpu_s / packed.cpu_s:.2f} ×",
                f"{packed.binlog_bytes / packed.cpu_s / (plain.binlog_bytes / plain.cpu_s):.2f} ×",
                f"{packed.tool_s / packed.cpu_s:.2f} ×",
                f"{packed.store_bytes / plain.store_bytes:.2f} ×",
                f"{packed.peak_mb:.0f}",
            )
    console.print(table)


if __name__ == "__main__":
    main()
