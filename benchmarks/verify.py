"""Verification of a table: the time of ``cdc verify`` against one full scan of the source's table and of the Delta table.

The rows are narrow: an integer key, a number, a decimal, a time and a short text. Both scans aggregate every column. The
session is warm, and the tables are in the memory of both sides.

    python -m benchmarks.verify [--rows 2000000] [--cores 2]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.apply import configure
from cdc import pipeline
from cdc.capture import Capture
from cdc.config import DestinationConfig
from cdc.targets import table_path
from cdc.testing.servers import Server

_TABLE = """CREATE TABLE bench.narrow (id BIGINT NOT NULL PRIMARY KEY, customer INT NOT NULL, total DECIMAL(12,2) NOT NULL,
  created DATETIME(3) NOT NULL, code VARCHAR(20) NOT NULL) ENGINE=InnoDB"""
_ROWS = """INSERT INTO bench.narrow SELECT seq, seq * 7 % 100000, seq / 7, '2026-01-02 03:04:05.678' + INTERVAL seq SECOND,
  CONCAT('code ', seq) FROM bench.seq_{}_to_{}"""
_COLUMNS = ("id", "customer", "total", "created", "code")
_PART = 100_000


def fill(server: Server, rows: int) -> None:
    """Makes the table."""
    server.execute("CREATE DATABASE IF NOT EXISTS bench")
    server.execute(_TABLE)
    for first in range(1, rows + 1, _PART):
        server.execute(_ROWS.format(first, min(first + _PART - 1, rows)))


def replicate(config: DestinationConfig) -> None:
    """Brings the rows into the lake."""
    Capture(config).run(until_current=True)
    while (lease := pipeline.fetch(config, "bench", wait_s=0)) is not None:
        pipeline.finalize(config, lease, True, pipeline.merge(config, lease))


def scan_source(server: Server) -> None:
    """Reads every column of the source's table once."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT COUNT(*), {', '.join(f'MAX({name})' for name in _COLUMNS)} FROM bench.narrow")
        cursor.fetchall()


def scan_lake(config: DestinationConfig) -> None:
    """Reads every column of the Delta table once."""
    from pyspark.sql import functions as f

    from spark_jobs.runtime.session import acquire

    rows = acquire(config.spark).spark.read.format("delta").load(table_path(config.apply.target, "bench", "narrow"))
    rows.agg(f.count(f.lit(1)), *[f.max(name) for name in _COLUMNS]).collect()


def verify(config: DestinationConfig) -> None:
    """Verifies the table. Raises RuntimeError if it is not proved."""
    report = pipeline.verify(config, ["bench.narrow"], wait_s=5)
    if not report.ok:
        raise RuntimeError(f"not proved: {report.document()}")


def best_of(times: int, work: Callable[[], object]) -> float:
    """Returns the shortest of several runs, in seconds; one more warms up."""
    work()
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--times", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Server("mariadb11") as server:
        fill(server, given.rows)
        config = configure(Path(folder), server, given.cores)
        replicate(config)
        found = {
            "scan of the source": best_of(given.times, lambda: scan_source(server)),
            "scan of the Delta table": best_of(given.times, lambda: scan_lake(config)),
            "cdc verify": best_of(given.times, lambda: verify(config)),
        }
    slower = max(found["scan of the source"], found["scan of the Delta table"])
    table = Table("", "seconds", "ratio to the slower scan", title=f"{given.rows:,} rows")
    for name, seconds in found.items():
        table.add_row(name, f"{seconds:.2f}", f"{seconds / slower:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
