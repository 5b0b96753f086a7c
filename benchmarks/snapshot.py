"""Snapshots compared with the server's dump program, with Spark's JDBC source and with PyMySQL's cursor, in turn, on the
same table.

- *into Delta*: ``cdc snapshot`` as a whole. It finds borders, reads chunks over several connections, writes and syncs
  Parquet files, waits for capture, and replaces the Delta table by them. The session is warm.
- *files*: its first part, up to the synced Parquet files.
- *received*: the rows are received over as many connections, and dropped.
- *mysqldump* (mariadb-dump, ``--single-transaction``): writes SQL into a file that is not synced.
- *JDBC* (with ``--jdbc``): Spark reads the table by as many connections, with the server's own driver, and writes
  a Delta table. The driver comes from Maven Central.
- *PyMySQL*: fetches all rows with its default cursor, once.

The connections use TLS in all of them, as the server offers it. ``cpu`` are the seconds of this process with
its JVM, of all that it starts, and of the server together.

    python -m benchmarks.snapshot [--rows 1000000] [--rounds 3] [--parallel 2] [--server mariadb11] [--jdbc]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.accounting import Span, Stopwatch, Tree
from benchmarks.lines import Measurement, Options
from benchmarks.workload import create_table, values
from cdc.capture import Capture
from cdc.config import DestinationConfig
from cdc.lake import pipeline
from cdc.lake.runtime.jars import delta_packages
from cdc.source import snapshot
from cdc.source.snapshot.result_set import ResultSet
from cdc.source.snapshot.session import open_session
from cdc.testing.servers import HOST, PASSWORD, USER, Server, client_tool
from tests.support.snapshots import identity, write_config


def fill(server: Server, rows: int) -> None:
    """Makes the table, and rows in it."""
    numbers = " UNION ALL ".join(f"SELECT {digit} AS n" for digit in range(10))
    many = ", ".join(f"({numbers}) d{i}" for i in range(5))
    seq = f"SELECT 1 + {' + '.join(f'd{i}.n * {10**i}' for i in range(5))} AS seq FROM {many}"
    server.execute("CREATE DATABASE bench", create_table())
    for first in range(0, rows, 100_000):
        server.execute(
            f"INSERT INTO bench.orders SELECT {values('seq', 60)} FROM ({seq}) s LIMIT {min(100_000, rows - first)}"
        )
    server.execute("ANALYZE TABLE bench.orders")


def _largest(server: Server) -> int:
    """Returns the greatest id of the table."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT MAX(id) FROM bench.orders")
        return int(cursor.fetchall()[0][0])


def read_by_jdbc(config: DestinationConfig, server: Server, parallel: int, folder: Path) -> None:
    """Reads the table with Spark's JDBC source into a Delta table."""
    from cdc.lake.runtime.session import acquire

    spark = acquire(config.spark).spark
    driver, more = JDBC[server.kind.name]
    rows = spark.read.format("jdbc").options(
        url=f"jdbc:mysql://{HOST}:{server.port}/bench?{more}",
        driver=driver,
        dbtable="orders",
        user=USER,
        password=PASSWORD,
        fetchsize="10000" if server.kind.name == "mariadb11" else str(-(2**31)),
        partitionColumn="id",
        lowerBound="1",
        upperBound=str(_largest(server)),
        numPartitions=str(parallel),
    )
    rows.load().write.format("delta").mode("overwrite").save(str(folder / "jdbc"))


JDBC = {
    "mysql9": ("com.mysql.cj.jdbc.Driver", "sslMode=REQUIRED&connectionTimeZone=UTC"),
    "mariadb11": ("org.mariadb.jdbc.Driver", "sslMode=trust&permitMysqlScheme"),
}
PACKAGES = {"mysql9": "com.mysql:mysql-connector-j:8.4.0", "mariadb11": "org.mariadb.jdbc:mariadb-java-client:3.4.1"}


@dataclass(frozen=True)
class Setup:
    """The subject of the measurement: this table, with the snapshots' number of connections, on this kind of server."""

    rows: int
    parallel: int = 2
    server: str = "mariadb11"
    jdbc: bool = False


@contextmanager
def ready(setup: Setup, server: Server) -> Iterator[dict[str, Callable[[], None]]]:
    """Fills the table, captures meanwhile, and yields each way to read it."""
    with tempfile.TemporaryDirectory(prefix="towpath-bench-", dir=os.environ.get("TMPDIR")) as folder:
        fill(server, setup.rows)
        packages = (
            {"spark.jars.packages": f"{delta_packages().names[0]},{PACKAGES[setup.server]}"} if setup.jdbc else {}
        )
        config = write_config(
            server,
            Path(folder),
            r"bench\.orders",
            apply={"mode": "upsert"},
            snapshot={"parallel": setup.parallel},
            spark={"master": f"local[{setup.parallel}]", "conf": packages},
        )
        Capture(config).run(until_current=True)
        stop = threading.Event()
        capture = threading.Thread(target=lambda: Capture(config).run(stop))
        capture.start()
        try:
            yield _ways(config, server, setup, Path(folder))
        finally:
            stop.set()
            capture.join()


def _ways(config: DestinationConfig, server: Server, setup: Setup, folder: Path) -> dict[str, Callable[[], None]]:
    source = identity(server)

    def into_delta() -> None:
        (loaded,) = pipeline.snapshot(config, ["bench.orders"])
        assert loaded.rows == setup.rows

    def files() -> None:
        taken = snapshot.take(config, "bench.orders", source)
        assert sum(record.rows for record in taken.records()) == setup.rows
        taken.remove()

    def dump() -> None:
        tool = [
            *client_tool("mariadb11", "mariadb-dump"), "--no-defaults", f"--host={HOST}", f"--port={server.port}",
            f"--user={USER}", f"--password={PASSWORD}", "--single-transaction", "--no-create-info",
            f"--result-file={folder}/dump.sql", "bench", "orders",
        ]  # fmt: skip
        subprocess.run(tool, check=True, capture_output=True)

    def cursor() -> None:
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT * FROM bench.orders")
            assert len(cursor.fetchall()) == setup.rows

    def received() -> None:
        step = -(-_largest(server) // setup.parallel)
        with ThreadPoolExecutor(setup.parallel) as pool:
            assert sum(pool.map(lambda part: _received(config, part * step, step), range(setup.parallel))) == setup.rows

    ways: dict[str, Callable[[], None]] = {"into Delta": into_delta, "files": files, "received": received}
    if setup.server == "mariadb11":
        ways["mariadb-dump"] = dump
    if setup.jdbc:
        ways["JDBC"] = lambda: read_by_jdbc(config, server, setup.parallel, folder)
    return ways | {"PyMySQL": cursor}


def _received(config: DestinationConfig, after: int, step: int) -> int:
    """Receives the rows with ids of this range by one connection, and drops them. Returns their number."""
    query = f"SELECT * FROM bench.orders WHERE id > {after} AND id <= {after + step}"
    with closing(open_session(config.source)) as connection:
        return sum(block.rows for block in ResultSet(connection, query))


def _in_turn(ways: dict[str, Callable[[], None]], tree: Tree, rounds: int) -> dict[str, list[Span]]:
    """Measures each way in each round. The first round warms up: kernels are compiled, caches filled."""
    spans: dict[str, list[Span]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            if name == "PyMySQL" and number != 1:
                continue  # once is enough to see that it is far behind
            with Stopwatch(tree) as watch:
                way()
            if number:
                spans[name].append(watch.span)
    return spans


def lines(options: Options, _: Collection[str]) -> Iterator[Measurement]:
    """The line ``snapshot``. The server is not counted."""
    yield _against("snapshot", "mariadb-dump", Setup(options.rows, options.cores), options.rounds)


def jdbc_lines(options: Options, _: Collection[str]) -> Iterator[Measurement]:
    """The line ``snapshot-jdbc``."""
    yield _against("snapshot-jdbc", "JDBC", Setup(options.rows, options.cores, jdbc=True), options.rounds)


def _against(line: str, other: str, setup: Setup, rounds: int) -> Measurement:
    with Server(setup.server, options=_SERVER) as server, Tree(join=True) as tree, ready(setup, server) as ways:
        spans = _in_turn({name: ways[name] for name in ("into Delta", other, "received")}, tree, rounds)
        ours, theirs, received = spans["into Delta"], spans[other], spans["received"]
        return Measurement(
            line,
            value=median(span.seconds / own.seconds for own, span in zip(ours, theirs, strict=True)),
            ours_s=median(span.seconds for span in ours),
            other_s=median(span.seconds for span in theirs),
            cpu_s=median(span.cpu_s for span in ours),
            peak_mb=tree.peak_mb(*ours),
            floor=median(span.seconds / own.seconds for own, span in zip(received, theirs, strict=True)),
            note=f"{setup.parallel} connections",
        )


_SERVER = ("--innodb-buffer-pool-size=1G",)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--server", choices=sorted(JDBC), default="mariadb11", help="mysql9 has no dump program here")
    parser.add_argument("--jdbc", action="store_true")
    options = parser.parse_args()
    setup = Setup(options.rows, options.parallel, options.server, options.jdbc)
    with Tree(join=True) as tree, Server(setup.server, options=_SERVER) as server, ready(setup, server) as ways:
        _print(options, _in_turn(ways, tree, options.rounds))


def _print(options: argparse.Namespace, spans: dict[str, list[Span]]) -> None:
    wall = {name: [span.seconds for span in runs] for name, runs in spans.items()}
    cpu = {name: [span.cpu_s for span in runs] for name, runs in spans.items()}
    console = Console(width=None if sys.stdout.isatty() else 120)
    base = "mariadb-dump" if "mariadb-dump" in spans else "JDBC" if "JDBC" in spans else "files"
    table = Table(
        title=f"{options.rows:,} rows of 11 columns, {options.server}, {options.parallel} connections, "
        f"{os.cpu_count()} CPUs"
    )
    for name in ("", "wall s", "rows/s", "cpu s", f"speed / {base}", "ratio of cpu"):
        table.add_column(name, justify="right")
    for name in spans:
        seconds, busy = min(wall[name]), min(cpu[name])
        table.add_row(
            name,
            f"{seconds:.2f}",
            f"{options.rows / seconds:,.0f}",
            f"{busy:.2f}",
            f"{min(wall[base]) / seconds:.2f}",
            f"{min(cpu[base]) / busy:.2f}",
        )
    console.print(table)
    console.print(f"Best of {options.rounds}, in turn; the load of the machine: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
