"""A dropped partition against a DELETE of as many rows and a new snapshot, of the same table in one run.

The table has a partition for each day. In each round one day goes by DROP PARTITION and another one by DELETE; capture and
apply follow, in a warm session. The snapshot of the whole table is what a dropped partition would cost if it were not
followed.

    python -m benchmarks.partitions [--rows 10000000] [--days 100] [--rounds 3] [--cores 2]
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from statistics import median
from time import perf_counter

from rich.console import Console
from rich.table import Table

from benchmarks.accounting import Stopwatch
from benchmarks.workload import COLUMNS, LARGE_SERVER, apply, capture, destination, values
from cdc.capture import Capture
from cdc.config import DestinationConfig
from cdc.lake import pipeline
from cdc.testing.servers import Server

_FIRST_DAY = 739_000
"""TO_DAYS of the first day, in 2023."""
_CHUNK = 100_000


def _fill(server: Server, rows: int, days: int) -> None:
    parts = ", ".join(f"PARTITION d{n} VALUES LESS THAN ({_FIRST_DAY + n + 1})" for n in range(days))
    columns = COLUMNS.replace(" PRIMARY KEY", "")
    server.execute(
        f"CREATE TABLE bench.days ({columns}, day DATE NOT NULL, PRIMARY KEY (id, day)) "
        f"PARTITION BY RANGE (TO_DAYS(day)) ({parts})"
    )
    for first in range(0, rows, _CHUNK):
        number = f"({first} + seq)"
        server.execute(
            f"INSERT INTO bench.days SELECT {values('seq', key=number)}, FROM_DAYS({_FIRST_DAY} + {number} * {days} DIV "
            f"{rows + 1}) FROM bench.seq_1_to_{min(_CHUNK, rows - first)}"
        )


def _snapshot(config: DestinationConfig, rows: int) -> float:
    """Returns the seconds of ``cdc snapshot`` of the whole table."""
    stop = threading.Event()
    running = threading.Thread(target=lambda: Capture(config).run(stop))
    running.start()
    try:
        began = perf_counter()
        (load,) = pipeline.snapshot(config, ["bench.days"])
        assert load.rows == rows, f"{load.rows} rows were read instead of {rows}"
        return perf_counter() - began
    finally:
        stop.set()
        running.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--days", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {"DROP PARTITION": [], "DELETE": []}
    cpu: dict[str, list[float]] = {name: [] for name in seconds}
    with destination(options.cores, options=LARGE_SERVER) as (server, config, tree):
        _fill(server, options.rows, options.days)
        server.execute("RESET MASTER")  # the snapshot brings the rows
        Capture(config).run(until_current=True)
        loads = [_snapshot(config, options.rows)]
        print(f"{options.rows:,} rows, snapshot: {loads[0]:.1f} s", file=sys.stderr, flush=True)
        apply(config)
        for turn in range(options.rounds):
            dropped, deleted = 2 * turn, 2 * turn + 1
            for name, sql in (
                ("DELETE", f"DELETE FROM bench.days WHERE day = FROM_DAYS({_FIRST_DAY + deleted})"),
                ("DROP PARTITION", f"ALTER TABLE bench.days DROP PARTITION d{dropped}"),
            ):
                server.execute(sql)
                capture(config)
                with Stopwatch(tree) as watch:
                    apply(config)
                seconds[name].append(watch.span.seconds)
                cpu[name].append(watch.span.cpu_s)
                print(f"{name}: {watch.span.seconds:.2f} s", file=sys.stderr, flush=True)
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT COUNT(*) FROM bench.days")
            ((rows_left,),) = cursor.fetchall()
        loads.append(_snapshot(config, int(rows_left)))
    table = Table(
        title=f"{options.rows // options.days:,} of {options.rows:,} rows, {options.cores} of {os.cpu_count()} processors"
    )
    for column in ("", "s", "CPU s", "time against DELETE"):
        table.add_column(column, justify="right")
    base = median(seconds["DELETE"])
    for name, spans in seconds.items():
        table.add_row(name, f"{median(spans):.2f}", f"{median(cpu[name]):.2f}", f"{median(spans) / base:.2f}")
    table.add_row("cdc snapshot", f"{loads[1]:.2f}", "", f"{loads[1] / base:.1f}")
    Console(width=None if sys.stdout.isatty() else 120).print(table)


if __name__ == "__main__":
    main()
