"""A migration with traffic: tables that are created, filled and altered in turn, applied by a cold `cdc apply`.

Each table is created and gets a few INSERTs at once; after every fifth one, an older table gets another column, and one
more row. The backlog is captured, and applied by a process of its own. The table shows its seconds, its CPU seconds and
the number of batches.

    python -m benchmarks.migration [--tables 150] [--rows 3] [--cores 2] [--mode upsert]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from benchmarks.accounting import Run, compile_sources, run
from benchmarks.cold import CDC, bare_spark
from benchmarks.lines import Measurement, Options
from benchmarks.workload import COLUMNS, capture, configure
from cdc.testing.servers import PASSWORD, Server

_ALTER_EVERY = 5
_INSERT = (
    "INSERT INTO bench.m{number:03d} (customer, status, total, items, note)"
    " VALUES ({row}, 'paid', 1.5 * {row}, {row}, 'note')"
)


def statements(tables: int, rows: int) -> list[str]:
    """Returns the statements of the backlog."""
    listed: list[str] = []
    for number in range(tables):
        listed.append(f"CREATE TABLE bench.m{number:03d} ({COLUMNS}) ENGINE=InnoDB")
        listed += [_INSERT.format(number=number, row=row) for row in range(1, rows + 1)]
        if number % _ALTER_EVERY == _ALTER_EVERY - 1:
            older = number // 2
            listed.append(f"ALTER TABLE bench.m{older:03d} ADD COLUMN c{number} INT NOT NULL DEFAULT 7")
            listed.append(_INSERT.format(number=older, row=rows + 1))
    return listed


def apply_cold(tables: int, rows: int, cores: int, mode: str) -> tuple[Run, int]:
    """Captures the backlog, and applies it by a process of its own. Returns its run, and the number of its batches."""
    with TemporaryDirectory(prefix="towpath-bench-") as folder, Server("mariadb10") as server:
        config = configure(Path(folder), server, cores, more=f", mode: {mode}")
        server.execute("CREATE DATABASE bench", *statements(tables, rows))
        capture(config)
        command = [*CDC, "--conf-dir", str(Path(folder) / "conf"), "apply", "bench", "--until-empty", "--json"]
        applied = run(command, BENCH_PASSWORD=PASSWORD)
    batches = json.loads(applied.output)["batches"]
    inserted = sum(result["inserted"] for batch in batches for result in batch["tables"])
    expected = tables * rows + tables // _ALTER_EVERY
    if inserted != expected:
        raise RuntimeError(f"cdc apply has inserted {inserted} rows instead of {expected}")
    return applied, len(batches)


def lines(options: Options, _: Collection[str]) -> Iterator[Measurement]:
    """The line ``migration``, in one round: 150 tables with three rows each, whatever ``rows`` is."""
    applied, batches = apply_cold(150, 3, options.cores, "upsert")
    with TemporaryDirectory(prefix="towpath-bench-") as folder:
        bare = run(bare_spark(options, "tables", folder, 150))
    yield Measurement(
        "migration",
        value=applied.seconds,
        ours_s=applied.seconds,
        cpu_s=applied.cpu_s,
        peak_mb=applied.peak_mb,
        floor=bare.seconds,
        note=f"{batches} batches, one round",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tables", type=int, default=150)
    parser.add_argument("--rows", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--mode", choices=("upsert", "soft_delete", "scd2", "append"), default="upsert")
    options = parser.parse_args()
    compile_sources()
    applied, batches = apply_cold(options.tables, options.rows, options.cores, options.mode)
    console = Console(width=None if sys.stdout.isatty() else 120)
    table = Table(title=f"{options.tables} new tables with {options.rows} rows each, cold, mode {options.mode}")
    for column in ("s", "CPU s", "batches", "s per table", "CPU s per table"):
        table.add_column(column, justify="right")
    each = [f"{value / options.tables:.2f}" for value in (applied.seconds, applied.cpu_s)]
    table.add_row(f"{applied.seconds:.1f}", f"{applied.cpu_s:.1f}", str(batches), *each)
    console.print(table)


if __name__ == "__main__":
    main()
