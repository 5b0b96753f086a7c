"""Settings of Spark and Delta for the statement: each is measured against none, in turn, in one warm session.

Each round changes a few rows of many small tables, and rows all over one large table. The table shows the best seconds
and CPU seconds of all processes, the jobs that Spark ran, and the files that the tables have at the end; every setting
has tables of its own.

    python -m benchmarks.settings [--tables 10] [--rows 300000] [--rounds 3] [--cores 2] [--only NAME,NAME]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest import mock

from rich.console import Console
from rich.table import Table

from benchmarks.ways import merged
from benchmarks.workload import LARGE_SERVER, capture, create_table, destination, inserts

if TYPE_CHECKING:
    from cdc.config import DestinationConfig
    from cdc.lake.apply.commit import Commit, MergeStats

SETTINGS: dict[str, dict[str, str]] = {
    "none": {},
    "not adaptive": {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "1"},
    "optimised writes": {"spark.databricks.delta.optimizeWrite.enabled": "true"},
    "no broadcast": {"spark.sql.autoBroadcastJoinThreshold": "-1"},
    "broadcast of all": {"spark.sql.autoBroadcastJoinThreshold": "1g"},
}
"""The settings that are compared, by name. They hold while the statement runs."""


@contextmanager
def during_statements(settings: Mapping[str, str]) -> Iterator[None]:
    """Lets the statements of merges in the block run with these settings."""
    from cdc.lake.apply import commit

    execute = commit.Commit.execute

    def with_settings(self: Commit, statement: str) -> MergeStats:
        conf = self.session.spark.conf
        before = {key: conf.get(key, None) for key in settings}
        for key, value in settings.items():
            conf.set(key, value)
        try:
            return execute(self, statement)
        finally:
            for key, former in before.items():
                conf.unset(key) if former is None else conf.set(key, former)

    with mock.patch.object(commit.Commit, "execute", with_settings):
        yield


def jobs(config: DestinationConfig) -> int:
    """Returns the number of jobs that Spark has run so far."""
    from cdc.lake.runtime.session import acquire

    store = acquire(config.spark).spark.sparkContext._jsc.sc().statusStore()
    return int(store.jobsList(None).head().jobId()) + 1


def files(config: DestinationConfig, names: list[str]) -> int:
    """Returns the number of files of these tables."""
    from deltalake import DeltaTable

    from cdc.base.targets import table_path

    return sum(len(DeltaTable(table_path(config.apply.target, "bench", name)).file_uris()) for name in names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tables", type=int, default=10)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--only", default=",".join(SETTINGS), help=f"some of {', '.join(SETTINGS)}")
    options = parser.parse_args()
    chosen = options.only.split(",")
    if unknown := [name for name in chosen if name not in SETTINGS]:
        parser.error(f"unknown settings {unknown[0]!r}; known: {', '.join(SETTINGS)}")
    small = {name: [f"small{i}_{number}" for i in range(options.tables)] for number, name in enumerate(chosen)}
    large = {name: [f"large_{number}"] for number, name in enumerate(chosen)} if options.rows else {}
    table = Table(title="Settings of the statement")
    for column in ("work", "settings", "s", "CPU s", "jobs", "files"):
        table.add_column(column, justify="left" if column in ("work", "settings") else "right")
    with destination(options.cores, options=LARGE_SERVER) as (server, config, tree):
        for names in small.values():
            server.execute(
                *(
                    f"CREATE TABLE bench.{small_table} (id INT AUTO_INCREMENT PRIMARY KEY, v INT)"
                    for small_table in names
                )
            )
        for (table_name,) in large.values():
            server.execute(create_table(table_name), *inserts(table_name, options.rows, each=50_000))
        capture(config)
        merged(config, tree, window=False)
        for work, tables in (("small tables", small), ("one large table", large)):
            best: dict[str, tuple[float, float, int]] = {}
            for turn in range(options.rounds + 1 if tables else 0):  # the first one compiles, and does not count
                for name in chosen:
                    for table_name in tables[name]:
                        if work == "small tables":
                            server.execute(f"INSERT INTO bench.{table_name} (v) VALUES (1), (2), (3)")
                            server.execute(f"UPDATE bench.{table_name} SET v = v + 1 WHERE id <= 2")
                        else:
                            server.execute(f"UPDATE bench.{table_name} SET total = total + 1 WHERE id % 100 = {turn}")
                    capture(config)
                    before = jobs(config)
                    with during_statements(SETTINGS[name]):
                        seconds, cpu_s = merged(config, tree, window=False)
                    measured = (seconds, cpu_s, jobs(config) - before)
                    print(f"{work}, {name}: {seconds:.2f} s, {cpu_s:.2f} CPU s", file=sys.stderr, flush=True)
                    if turn:
                        least = best.get(name, measured)
                        best[name] = min(measured[0], least[0]), min(measured[1], least[1]), measured[2]
            for name, (seconds, cpu_s, count) in best.items():
                table.add_row(
                    work, name, f"{seconds:.2f}", f"{cpu_s:.2f}", str(count), str(files(config, tables[name]))
                )
    Console(width=None if sys.stdout.isatty() else 120).print(table)


if __name__ == "__main__":
    main()
