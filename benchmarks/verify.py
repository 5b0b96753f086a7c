"""Verification of a table: the time of ``cdc verify`` against one full scan of the source's table and of the Delta table.

A scan of the source is ``SELECT *``, of which every byte is received and every value located, and nothing else is done
(:class:`cdc.source.snapshot.result_set.ResultSet`). A scan of the Delta table reads every column into Spark's ``noop`` sink.
The session is warm, and the tables are in the memory of both sides. The three are timed in turn, several times; the
shortest time of each counts. The ratio is to the slower scan: verification reads both sides.

    python -m benchmarks.verify [--rows 10000000] [--wide-rows 2000000] [--cores 2] [--times 3] [--server mariadb11]
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from unittest import mock

from rich.console import Console
from rich.table import Table

from benchmarks.accounting import Span, Stopwatch, Tree
from benchmarks.lines import Measurement, Options
from benchmarks.workload import apply, capture, configure, create_table
from cdc.base.targets import table_path
from cdc.config import DestinationConfig
from cdc.lake import pipeline
from cdc.lake.verify.compare import BucketSum
from cdc.lake.verify.lake import TableRows
from cdc.source.snapshot.result_set import ResultSet
from cdc.source.snapshot.session import open_session
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
        create_table(),
        "CREATE TABLE bench.numbers (n INT NOT NULL PRIMARY KEY) ENGINE=InnoDB",
        "INSERT INTO bench.numbers VALUES (1)",
        *(f"INSERT IGNORE INTO bench.numbers SELECT n + {1 << i} FROM bench.numbers" for i in range(17)),
        f"DELETE FROM bench.numbers WHERE n > {_PART}",
    )
    for table, count in rows.items():
        for first in range(0, count, _PART):
            server.execute(f"{_ROWS[table].format(first)} WHERE n <= {count - first}")


def scan_source(config: DestinationConfig, table: str) -> None:
    """Receives every value of the source's table once."""
    with closing(open_session(config.source)) as connection:
        assert sum(block.rows for block in ResultSet(connection, f"SELECT * FROM bench.{table}")) > 0


def scan_lake(config: DestinationConfig, table: str) -> None:
    """Reads every column of the Delta table once."""
    from cdc.lake.runtime.session import acquire

    rows = acquire(config.spark).spark.read.format("delta").load(table_path(config.apply.target, "bench", table))
    rows.write.format("noop").mode("overwrite").save()


def verify(config: DestinationConfig, table: str) -> None:
    """Verifies the table. Raises RuntimeError if it is not proved."""
    report = pipeline.verify(config, [f"bench.{table}"], wait_s=5)
    if not report.ok:
        raise RuntimeError(f"not proved: {report.document()}")


def verify_source(config: DestinationConfig, table: str, sums: list[dict[int, BucketSum]]) -> None:
    """Verifies the table with these sums of the lake's side, which are computed in the first call."""
    compute = TableRows.sums

    def known(rows: TableRows, without: Sequence[str] = ()) -> dict[int, BucketSum]:
        if not sums:
            sums.append(compute(rows, without))
        return sums[0]

    with mock.patch.object(TableRows, "sums", known):
        verify(config, table)


_SOURCE, _LAKE, _VERIFY = "scan of the source", "scan of the Delta table", "cdc verify"
_ALONE = "the source's side of cdc verify"


def in_turn(config: DestinationConfig, table: str, times: int, tree: Tree) -> dict[str, list[Span]]:
    """Scans and verifies a table in turn; one more round warms up."""
    sums: list[dict[int, BucketSum]] = []
    works: dict[str, Callable[[], object]] = {
        _SOURCE: lambda: scan_source(config, table),
        _LAKE: lambda: scan_lake(config, table),
        _VERIFY: lambda: verify(config, table),
        _ALONE: lambda: verify_source(config, table, sums),
    }
    spans: dict[str, list[Span]] = {name: [] for name in works}
    for turn in range(times + 1):
        for name, work in works.items():
            with Stopwatch(tree) as watch:
                work()
            if turn:
                spans[name].append(watch.span)
    return spans


@contextmanager
def replicated(kind: str, rows: dict[str, int], cores: int) -> Iterator[tuple[DestinationConfig, Tree]]:
    """Yields a destination whose lake has these tables, and the tree of this process, without the server."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="towpath-bench-"))
        server = stack.enter_context(Server(kind, options=["--innodb-buffer-pool-size=1G"]))
        fill(server, rows)
        config = configure(Path(folder), server, cores)
        tree = stack.enter_context(Tree(join=True))
        capture(config)
        apply(config)
        yield config, tree


def lines(options: Options, _: Collection[str]) -> Iterator[Measurement]:
    """The line ``verify``: ten times as many rows as other lines have, of five columns."""
    with replicated("mariadb11", {"narrow": 10 * options.rows}, options.cores) as (config, tree):
        spans = in_turn(config, "narrow", options.rounds, tree)
        seconds = {name: min(span.seconds for span in runs) for name, runs in spans.items()}
        slower = max(_SOURCE, _LAKE, key=lambda name: seconds[name])
        yield Measurement(
            "verify",
            value=seconds[_VERIFY] / seconds[slower],
            ours_s=seconds[_VERIFY],
            other_s=seconds[slower],
            cpu_s=min(span.cpu_s for span in spans[_VERIFY]),
            peak_mb=tree.peak_mb(*spans[_VERIFY]),
            floor=seconds[_ALONE] / seconds[slower],
            note=f"best of the rounds; the slower side is the {slower}",
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--wide-rows", type=int, default=2_000_000)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--server", default="mariadb11", choices=("mariadb11", "mariadb10", "mysql9", "mysql56"))
    args = parser.parse_args()
    rows = {name: count for name, count in (("narrow", args.rows), ("orders", args.wide_rows)) if count}
    with replicated(args.server, rows, args.cores) as (config, tree):
        spans = {name: in_turn(config, name, args.times, tree) for name in rows}
    seconds_by_table = {
        table: {name: min(span.seconds for span in many) for name, many in by_name.items()}
        for table, by_name in spans.items()
    }
    table = Table(
        "table", "rows", "", "seconds", "ratio to the slower scan", "goal", title=f"Verification, {args.server}"
    )
    for name, seconds in seconds_by_table.items():
        slower = max(value for what, value in seconds.items() if what != _VERIFY)
        for what, value in seconds.items():
            goal = "at most 2" if what == _VERIFY else ""
            table.add_row(name, f"{rows[name]:,}", what, f"{value:.2f}", f"{value / slower:.2f}", goal)
    Console().print(table)
    Console().print(
        f"narrow has 5 columns, orders 11; {os.cpu_count()} CPUs; load of the machine: {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
