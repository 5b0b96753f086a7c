"""Many small tables in one batch: the seconds per table, and where they go.

Each round changes a few rows of every table, so that one batch has all tables, and merges it in a warm session. The
first round creates the tables.

    python -m benchmarks.many_tables [--tables 500] [--columns 1] [--rounds 3] [--cores 2] [--engine spark] [--mode upsert]

Columns are of many types from the second on. With the engine deltalake, delta-rs merges them, and no session of Spark is started.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.ways import merged
from benchmarks.workload import capture, destination

_STEPS = {
    "cdc.lake.delta.tables": ("read_state",),
    "cdc.lake.apply.merge": ("make_plan", "planned_frame"),
    "cdc.lake.apply.commit": ("Commit.execute",),
}
"""The functions whose seconds are shown, by module."""
_VALUES = {
    "VARCHAR(50)": "'abc'", "DECIMAL(12,2)": "1.5", "DATETIME(3)": "'2026-01-02 03:04:05.678'", "BIGINT UNSIGNED": "7",
    "TIMESTAMP(6) NULL": "'2026-01-02 03:04:05.678901'", "DOUBLE": "2.5", "DATE": "'2026-01-01'", "TEXT": "'text'",
    "ENUM('a','b','c')": "'b'", "SET('x','y')": "'x'", "BLOB": "'blob'", "TIME": "'01:02:03'", "YEAR": "2026",
    "BIT(8)": "b'101'", "VARBINARY(20)": "'vb'", "CHAR(10)": "'def'", "DECIMAL(30,10)": "2.25", "FLOAT": "0.5",
}  # fmt: skip
"""Types of the columns after the first, which repeat, with a value of each."""


def timed(seconds: dict[str, float], name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that adds its seconds, of all threads together, to ``seconds``."""

    @wraps(work)
    def run(*given: Any, **options: Any) -> Any:
        began = time.perf_counter()
        try:
            return work(*given, **options)
        finally:
            seconds[name] += time.perf_counter() - began

    return run


def watch() -> dict[str, float]:
    """Lets the steps of a merge add their seconds to the result."""
    import importlib

    seconds: dict[str, float] = defaultdict(float)
    for module, names in _STEPS.items():
        for name in names:
            owner: Any = importlib.import_module(module)
            *outer, last = name.split(".")
            for attribute in outer:
                owner = getattr(owner, attribute)
            setattr(owner, last, timed(seconds, name, getattr(owner, last)))
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tables", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--engine", choices=("spark", "deltalake"), default="spark")
    parser.add_argument("--columns", type=int, default=1)
    parser.add_argument("--mode", choices=("upsert", "soft_delete", "scd2", "append"), default="upsert")
    options = parser.parse_args()
    kinds = list(itertools.islice(itertools.cycle(_VALUES), options.columns - 1))
    columns = "".join(f", c{number} {kind}" for number, kind in enumerate(kinds))
    row = f"(NULL, 1{''.join(f', {_VALUES[kind]}' for kind in kinds)})"
    names = [f"bench.small{i:04d}" for i in range(options.tables)]
    console = Console(width=None if sys.stdout.isatty() else 120)
    table = Table(
        title=f"{options.tables} small tables of {options.columns + 1} columns in one batch, by {options.engine}"
    )
    for column in ("round", "s", "s per table", "CPU s per table"):
        table.add_column(column, justify="right")
    more = f", mode: {options.mode}"
    if options.engine == "deltalake":
        more += ", small_batches: {engine: deltalake, max_rows: 100000}"
    with destination(options.cores, more=more) as (server, config, tree):
        server.execute(*(f"CREATE TABLE {name} (id INT AUTO_INCREMENT PRIMARY KEY, v INT{columns})" for name in names))
        seconds = watch()
        for turn in range(options.rounds):
            server.execute(*(f"INSERT INTO {name} VALUES {row}, {row}, {row}" for name in names))
            server.execute(*(f"UPDATE {name} SET v = v + 1 WHERE id <= 2" for name in names))
            capture(config)
            seconds.clear()
            wall, cpu = merged(config, tree, window=False)
            table.add_row(str(turn + 1), f"{wall:.1f}", *(f"{x / options.tables:.3f}" for x in (wall, cpu)))
            print(f"round {turn + 1}: {wall:.1f} s, {cpu:.1f} CPU s", file=sys.stderr, flush=True)
    console.print(table)
    steps = ", ".join(f"{name} {1000 * value / options.tables:.1f}" for name, value in seconds.items())
    console.print(f"Last round, ms per table, summed over threads: {steps}.")


if __name__ == "__main__":
    main()
