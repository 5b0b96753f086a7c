"""Ways into Spark: the key plan and tasks of mapInArrow, against the window over the data source, in turn.

Batches of inserts, of updates and of a few changes in ten tables are merged by the one way and by the other, in one
warm session. The table shows the best seconds of each, and CPU seconds of all processes, which other work on the machine
changes less.

    python -m benchmarks.ways [--rows 300000] [--rounds 3] [--cores 2]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from rich.console import Console
from rich.table import Table

from benchmarks.workload import TRANSACTION_ROWS, capture, create_table, destination, values

if TYPE_CHECKING:
    from benchmarks.accounting import Tree
    from cdc.config import DestinationConfig
    from cdc.lake.rows.input_splits import InputSplit
    from cdc.lake.rows.split_reader import SplitReader
    from cdc.lake.runtime.session import TableSession


ROWS = f"INSERT INTO bench.orders SELECT {values('seq')} FROM bench.seq_1_to_{TRANSACTION_ROWS}"


@contextmanager
def by_window(ranges: Sequence[Any]) -> Iterator[None]:
    """Lets merges inside the block read the data source and reduce by a window."""
    from cdc.lake.apply import merge
    from cdc.lake.rows.data_source import register

    def frame(session: TableSession, reader: SplitReader, _splits: Sequence[InputSplit]) -> Any:
        options = {
            "table": reader.table, "images": reader.images, "columns": reader.columns, "values": reader.values,
            "after_seq": str(reader.after_seq), "upto_seq": str(reader.upto_seq),
            "schema": None if reader.schema is None else reader.schema.model_dump_json(),
            "ranges": json.dumps([byte_range.model_dump() for byte_range in ranges]),
        }  # fmt: skip
        given = {name: value for name, value in options.items() if value is not None}
        return session.spark.read.format(register(session.spark)).schema(reader.fields).options(**given).load()

    with mock.patch.object(merge, "make_plan", return_value=None), mock.patch.object(merge, "changes_frame", frame):
        yield


def merged(config: DestinationConfig, tree: Tree, *, window: bool) -> tuple[float, float]:
    """Merges everything that the store has. Returns the seconds of the merges with rows, and their CPU seconds."""
    from cdc.lake import pipeline

    seconds = cpu = 0.0
    while (lease := pipeline.fetch(config, "cli:bench", wait_s=0)) is not None:
        began, used = time.perf_counter(), tree.cpu_s()
        if window:
            with by_window(lease.manifest.ranges):
                results = pipeline.merge(config, lease)
        else:
            results = pipeline.merge(config, lease)
        if lease.manifest.row_events:
            seconds += time.perf_counter() - began
            cpu += tree.cpu_s() - used
        pipeline.finalize(config, lease, True, results)
    return seconds, cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    options = parser.parse_args()
    small = [f"small{i}" for i in range(10)]
    work = {
        f"{options.rows:,} inserts": [ROWS] * (options.rows // TRANSACTION_ROWS),
        f"{options.rows:,} updates": [
            f"UPDATE bench.orders SET total = total + 1, note = CONCAT(note, '!') WHERE id <= {options.rows}"
        ],
        "1,000 changes in ten tables": [
            f"INSERT INTO bench.{name} SELECT NULL, seq FROM bench.seq_1_to_100" for name in small
        ],
    }
    table = Table(title="The key plan against the window over the data source")
    for column in ("batch", "window, s", "plan, s", "ratio", "window, CPU s", "plan, CPU s", "ratio"):
        table.add_column(column, justify="right")
    with destination(options.cores) as (server, config, tree):
        server.execute(create_table())
        server.execute(*(f"CREATE TABLE bench.{name} (id INT AUTO_INCREMENT PRIMARY KEY, v INT)" for name in small))
        for name, statements in work.items():
            best: dict[bool, tuple[float, float]] = {}
            for _ in range(options.rounds):
                for window in (True, False):
                    server.execute(*statements)
                    capture(config)
                    measured = merged(config, tree, window=window)
                    least = best.get(window, measured)
                    best[window] = min(measured[0], least[0]), min(measured[1], least[1])
                    word = "window" if window else "plan"
                    print(f"{name}, {word}: {measured[0]:.2f} s, {measured[1]:.2f} CPU s", file=sys.stderr, flush=True)
            row = [name]
            for i in range(2):
                row += [f"{best[True][i]:.2f}", f"{best[False][i]:.2f}", f"{best[False][i] / best[True][i]:.2f}"]
            table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 120).print(table)


if __name__ == "__main__":
    main()
