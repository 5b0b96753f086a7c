"""Snapshots compared with the server's dump program, with Spark's JDBC source and with PyMySQL's cursor, in turn, on the
same table.

- *into Delta*: ``cdc snapshot`` as a whole. It finds borders, reads chunks over several connections, writes and syncs
  Parquet files, waits for capture, and replaces the Delta table by them. The session is warm.
- *files*: its first part, up to the synced Parquet files.
- *mysqldump* (mariadb-dump, ``--single-transaction``): writes SQL into a file that is not synced.
- *JDBC* (with ``--jdbc``): Spark reads the table by as many connections, with the server's own driver, and writes
  Parquet files. The driver comes from Maven Central.
- *PyMySQL*: fetches all rows with its default cursor, once.

The connections use TLS in all of them, as the server offers it. ``cpu`` are the seconds of this process, its JVM, its
ended children and the server together.

    python -m benchmarks.snapshot [--rows 1000000] [--rounds 3] [--parallel 2] [--server mariadb11] [--jdbc]
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.capture import ROW, TABLE
from cdc import pipeline, snapshot
from cdc.capture import Capture
from cdc.config import DestinationConfig
from cdc.testing.servers import HOST, PASSWORD, USER, Server, client_tool
from spark_jobs.runtime.jars import PACKAGE
from tests.support.snapshots import identity, write_config


def cpu_s(server: Server) -> float:
    """CPU seconds of this process, of its ended children, of its JVM, and of the server."""
    pids = [server.pid]
    for task in Path("/proc/self/task").iterdir():
        pids += [int(pid) for pid in (task / "children").read_text().split() if "java" in _command(pid)]
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    ours = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
    return ours + ticks / os.sysconf("SC_CLK_TCK")


def _command(pid: str) -> str:
    return Path(f"/proc/{pid}/comm").read_text()


def fill(server: Server, rows: int) -> None:
    """Makes the table, and rows in it."""
    numbers = " UNION ALL ".join(f"SELECT {digit} AS n" for digit in range(10))
    many = ", ".join(f"({numbers}) d{i}" for i in range(5))
    seq = f"SELECT 1 + {' + '.join(f'd{i}.n * {10**i}' for i in range(5))} AS seq FROM {many}"
    server.execute("CREATE DATABASE bench", TABLE)
    for _ in range(0, rows, 100_000):
        server.execute(f"INSERT INTO bench.orders {ROW.format(text=60)} FROM ({seq}) s")
    server.execute("ANALYZE TABLE bench.orders")


def read_by_jdbc(config: DestinationConfig, server: Server, parallel: int, folder: Path) -> None:
    """Reads the table with Spark's JDBC source into Parquet files."""
    from spark_jobs.runtime.session import acquire

    spark = acquire(config.spark).spark
    driver, more = JDBC[server.kind.name]
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT MAX(id) FROM bench.orders")
        (largest,) = cursor.fetchall()[0]
    rows = spark.read.format("jdbc").options(
        url=f"jdbc:mysql://{HOST}:{server.port}/bench?{more}",
        driver=driver,
        dbtable="orders",
        user=USER,
        password=PASSWORD,
        fetchsize="10000" if server.kind.name == "mariadb11" else str(-(2**31)),
        partitionColumn="id",
        lowerBound="1",
        upperBound=str(largest),
        numPartitions=str(parallel),
    )
    rows.load().write.mode("overwrite").parquet(str(folder / "jdbc"))


JDBC = {
    "mysql9": ("com.mysql.cj.jdbc.Driver", "sslMode=REQUIRED&connectionTimeZone=UTC"),
    "mariadb11": ("org.mariadb.jdbc.Driver", "sslMode=trust&permitMysqlScheme"),
}
PACKAGES = {"mysql9": "com.mysql:mysql-connector-j:8.4.0", "mariadb11": "org.mariadb.jdbc:mariadb-java-client:3.4.1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--server", choices=sorted(JDBC), default="mariadb11", help="mysql9 has no dump program here")
    parser.add_argument("--jdbc", action="store_true")
    options = parser.parse_args()
    with (
        Server(options.server, options=["--innodb-buffer-pool-size=1G"]) as server,
        tempfile.TemporaryDirectory(prefix="towpath-bench-", dir=os.environ.get("TMPDIR")) as folder,
    ):
        fill(server, options.rows)
        packages = {"spark.jars.packages": f"{PACKAGE},{PACKAGES[options.server]}"} if options.jdbc else {}
        config = write_config(
            server,
            Path(folder),
            r"bench\.orders",
            apply={"mode": "upsert"},
            snapshot={"parallel": options.parallel},
            spark={"master": f"local[{options.parallel}]", "conf": packages},
        )
        Capture(config).run(until_current=True)
        stop = threading.Event()
        capture = threading.Thread(target=lambda: Capture(config).run(stop))
        capture.start()
        try:
            ways = _ways(config, server, options, Path(folder))
            wall, cpu = _in_turn(ways, server, options.rounds)
        finally:
            stop.set()
            capture.join()
    _print(options, ways, wall, cpu)


def _ways(
    config: DestinationConfig, server: Server, options: argparse.Namespace, folder: Path
) -> dict[str, Callable[[], None]]:
    source = identity(server)

    def into_delta() -> None:
        (found,) = pipeline.snapshot(config, ["bench.orders"])
        assert found.rows == options.rows

    def files() -> None:
        found = snapshot.take(config, "bench.orders", source)
        assert sum(record.rows for record in found.records()) == options.rows
        found.remove()

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

    ways: dict[str, Callable[[], None]] = {"into Delta": into_delta, "files": files}
    if options.server == "mariadb11":
        ways["mariadb-dump"] = dump
    if options.jdbc:
        ways["JDBC"] = lambda: read_by_jdbc(config, server, options.parallel, folder)
    return ways | {"PyMySQL": cursor}


def _in_turn(
    ways: dict[str, Callable[[], None]], server: Server, rounds: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Returns the wall and the CPU seconds of each way. The first round warms up: kernels are compiled, caches filled."""
    wall: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, run in ways.items():
            if name == "PyMySQL" and number != 1:
                continue  # once is enough to see that it is far behind
            before, began = cpu_s(server), time.perf_counter()
            run()
            if number:
                wall[name].append(time.perf_counter() - began)
                cpu[name].append(cpu_s(server) - before)
    return wall, cpu


def _print(
    options: argparse.Namespace,
    ways: dict[str, Callable[[], None]],
    wall: dict[str, list[float]],
    cpu: dict[str, list[float]],
) -> None:
    console = Console(width=None if sys.stdout.isatty() else 120)
    base = "mariadb-dump" if "mariadb-dump" in ways else "JDBC" if "JDBC" in ways else "files"
    table = Table(
        title=f"{options.rows:,} rows of 11 columns, {options.server}, {options.parallel} connections, "
        f"{os.cpu_count()} CPUs"
    )
    for name in ("", "wall s", "rows/s", "cpu s", f"speed / {base}", "ratio of cpu", "goal"):
        table.add_column(name, justify="right")
    for name in ways:
        seconds, busy = min(wall[name]), min(cpu[name])
        table.add_row(
            name,
            f"{seconds:.2f}",
            f"{options.rows / seconds:,.0f}",
            f"{busy:.2f}",
            f"{min(wall[base]) / seconds:.2f}",
            f"{min(cpu[base]) / busy:.2f}",
            "1.0" if name == "into Delta" and base == "mariadb-dump" else "",
        )
    console.print(table)
    console.print(f"Best of {options.rounds}, in turn; the load of the machine: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
