"""Verification of a table: the time of ``cdc verify`` against one full scan of the source's table and of the Delta table.

A scan of the source is ``SELECT *``, of which every byte is received and every value located, and nothing else is done
(:class:`cdc.snapshot.result_set.ResultSet`). A scan of the Delta table reads every column into Spark's ``noop`` sink.
The session is warm, and the tables are in the memory of both sides. The three are timed in turn, several times; the
shortest time of each counts. The ratio is to the slower scan: verification reads both sides.

    python -m benchmarks.verify [--rows 10000000] [--wide-rows 2000000] [--cores 2] [--times 3] [--server mariadb11]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.apply import TABLE as WIDE
from benchmarks.apply import configure
from cdc import pipeline
from cdc.capture import Capture
from cdc.config import DestinationConfig
from cdc.snapshot.result_set import ResultSet
from cdc.snapshot.session import open_session
from cdc.targets import table_path
from cdc.testing.servers import Server

_NARROW = """CREATE TABLE bench.narrow (id BIGINT NOT NULL PRIMARY KEY, customer INT NOT NULL, total DECIMAL(12,2) NOT NULL,
  created DATETIME(3) NOT NULL, code VARCHAR(20) NOT NULL) ENGINE=InnoDB"""
_ROWS = {
    "narrow": """INSERT INTO bench.narrow SELECT {0} + n, n * 7 % 100000, n / 7,
  '2026-01-02 03:04:05.678' + INTERVAL n SECOND, CONCAT('code ', n) FROM bench.numbers""",
    "orders": """INSERT INTO bench.orders SELECT NULL, n * 7, 1 + n % 3, n / 7, n % 100, REPEAT(CHAR(97 + n % 26), 30),
  CONCAT('c', n), '2026-01-02 03:04:05.678' + INTERVAL n SECOND, '2026-01-02 03:04:05.678901' + INTERVAL n SECOND, n % 2,
  n / 3 FROM bench.numbers""",
}
_PART = 100_000


def fill(server: Server, rows: dict[str, int]) -> None:
    """Makes the tables, and rows in them."""
    server.execute(
        "CREATE DATABASE IF NOT EXISTS bench",
        _NARROW,
        WIDE,
        "CREATE TABLE bench.numbers (n INT NOT NULL PRIMARY KEY) ENGINE=InnoDB",
        "INSERT INTO bench.numbers VALUES (1)",
        *(f"INSERT IGNORE INTO bench.numbers SELECT n + {1 << i} FROM bench.numbers" for i in range(17)),
        f"DELETE FROM bench.numbers WHERE n > {_PART}",
    )
    for table, count in rows.items():
        server.execute(*(_ROWS[table].format(first) for first in range(0, count, _PART)))


def replicate(config: DestinationConfig) -> None:
    """Brings the rows into the lake."""
    Capture(config).run(until_current=True)
    while (lease := pipeline.fetch(config, "bench", wait_s=0)) is not None:
        pipeline.finalize(config, lease, True, pipeline.merge(config, lease))


def scan_source(config: DestinationConfig, table: str) -> None:
    """Receives every value of the source's table once."""
    with closing(open_session(config.source)) as connection:
        assert sum(block.rows for block in ResultSet(connection, f"SELECT * FROM bench.{table}")) > 0


def scan_lake(config: DestinationConfig, table: str) -> None:
    """Reads every column of the Delta table once."""
    from spark_jobs.runtime.session import acquire

    rows = acquire(config.spark).spark.read.format("delta").load(table_path(config.apply.target, "bench", table))
    rows.write.format("noop").mode("overwrite").save()


def verify(config: DestinationConfig, table: str) -> None:
    """Verifies the table. Raises RuntimeError if it is not proved."""
    report = pipeline.verify(config, [f"bench.{table}"], wait_s=5)
    if not report.ok:
        raise RuntimeError(f"not proved: {report.document()}")


def in_turn(times: int, works: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Returns the shortest of several runs of each, in seconds; one more warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(times + 1):
        for name, work in works.items():
            began = time.perf_counter()
            work()
            if turn:
                seconds[name].append(time.perf_counter() - began)
    return {name: min(found) for name, found in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--wide-rows", type=int, default=2_000_000)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--server", default="mariadb11", choices=("mariadb11", "mariadb10", "mysql9", "mysql56"))
    given = parser.parse_args()
    rows = {name: count for name, count in (("narrow", given.rows), ("orders", given.wide_rows)) if count}
    found = {}
    with (
        tempfile.TemporaryDirectory(prefix="towpath-bench-") as folder,
        Server(given.server, options=["--innodb-buffer-pool-size=1G"]) as server,
    ):
        fill(server, rows)
        config = configure(Path(folder), server, given.cores)
        replicate(config)
        for name in rows:
            works: dict[str, Callable[[], object]] = {
                "scan of the source": lambda name=name: scan_source(config, name),  # type: ignore[misc]
                "scan of the Delta table": lambda name=name: scan_lake(config, name),  # type: ignore[misc]
                "cdc verify": lambda name=name: verify(config, name),  # type: ignore[misc]
            }
            found[name] = in_turn(given.times, works)
    table = Table(
        "table", "rows", "", "seconds", "ratio to the slower scan", "goal", title=f"Verification, {given.server}"
    )
    for name, seconds in found.items():
        slower = max(value for what, value in seconds.items() if what != "cdc verify")
        for what, value in seconds.items():
            goal = "at most 2" if what == "cdc verify" else ""
            table.add_row(name, f"{rows[name]:,}", what, f"{value:.2f}", f"{value / slower:.2f}", goal)
    Console().print(table)
    Console().print(
        f"narrow has 5 columns, orders 11; {os.cpu_count()} CPUs; load of the machine: {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
