"""A month of runs in two tables alike, of which one is maintained each night: what their readers and merges find.

Each run merges one transaction that inserts rows, by delta-rs, which is the fastest way for so few rows. (Runs that
update the newest rows write their files anew, and leave few.) At the end the tables' files, their logs, and the seconds
of opening them, of one scan by Spark and of a merge are compared. Days follow each other at once, so that VACUUM and the
log's cleanup, which go by age, remove nothing.

    python -m benchmarks.month [--days 30] [--runs 48] [--rows 500000] [--changes 200] [--cores 2]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from deltalake import DeltaTable
from rich.console import Console
from rich.table import Table

from benchmarks.workload import LARGE_SERVER, apply, capture, count, create_table, destination, inserts, values
from cdc.base.targets import table_path
from cdc.config import DestinationConfig
from cdc.lake import pipeline
from cdc.lake.runtime.session import acquire

_TABLES = {"kept": "each night", "left": "never"}
_ROUNDS = 5


def _best(action: Callable[[], object], rounds: int = _ROUNDS) -> float:
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def _measured(config: DestinationConfig, name: str, merge_s: float) -> list[str]:
    path = Path(table_path(config.apply.target, "bench", name))
    delta = DeltaTable(path)
    actions = delta.get_add_actions(flatten=True)
    sizes = actions.column("size_bytes").to_pylist()
    log_bytes = sum(file.stat().st_size for file in (path / "_delta_log").rglob("*") if file.is_file())
    spark = acquire(config.spark).spark

    def scan() -> None:  # a new query each time: Spark would keep the last one's stages
        spark.read.format("delta").load(str(path)).agg({"total": "sum", "note": "max"}).collect()

    opened_s = _best(lambda: DeltaTable(path))
    scanned_s = _best(scan)
    cells = (len(sizes), f"{sum(sizes) / len(sizes) / 2**20:.2f}", f"{log_bytes / 2**20:.1f}", delta.version())
    return [*map(str, cells), f"{opened_s:.3f}", f"{scanned_s:.2f}", f"{merge_s:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--runs", type=int, default=48)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--changes", type=int, default=200)
    parser.add_argument("--cores", type=int, default=2)
    options = parser.parse_args()
    merges: dict[str, list[float]] = {name: [] for name in _TABLES}
    nights: list[float] = []
    more = ", small_batches: {engine: deltalake, max_rows: 10000}"
    with destination(options.cores, options=LARGE_SERVER, more=more) as (server, config, _):
        for name in _TABLES:
            server.execute(create_table(name), *inserts(name, options.rows, each=100_000))
        capture(config)
        apply(config)
        single = config.batch.model_copy(update={"max_transactions": 1})
        config = config.model_copy(update={"batch": single})
        for day in range(options.days):
            began = time.perf_counter()
            rows = f"{values('seq')} FROM bench.seq_1_to_{options.changes}"
            server.execute(*[f"INSERT INTO bench.{name} SELECT {rows}" for name in [*_TABLES] * options.runs])
            capture(config)
            while (lease := pipeline.fetch(config, "cli:bench", wait_s=0)) is not None:
                started = time.perf_counter()
                results = pipeline.merge(config, lease)
                (name,) = {result.table.partition(".")[2] for result in results}
                merges[name].append(time.perf_counter() - started)
                pipeline.finalize(config, lease, True, results)
            night = time.perf_counter()
            pipeline.maintain_tables(config, ["bench.kept"], vacuum=True)
            nights.append(time.perf_counter() - night)
            print(f"day {day + 1}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
        assert count(config, "kept") == count(config, "left")
        columns = ("maintained", "files", "MiB each", "log MiB", "version", "open s", "scan s", "merge s")
        table = Table(*columns, title=f"{options.days} days of {options.runs} runs, {options.changes} rows each")
        for name, words in _TABLES.items():
            table.add_row(words, *_measured(config, name, median(merges[name][-options.runs :])))
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
    console.print(f"A night's maintenance took {median(nights):.1f} s at the median, and {max(nights):.1f} s at most.")


if __name__ == "__main__":
    main()
