"""Scattered changes in a large table against those in a table of a tenth of its size, with deletion vectors and without.

Each round updates 10,000 rows all over each table, so that every file has some, and merges them; tables and ways take
turns in one warm session. The table shows the best seconds, and how many times longer the large table takes.

    python -m benchmarks.scattered [--rows 5000000] [--changes 10000] [--rounds 3] [--cores 2]
"""

from __future__ import annotations

import argparse
import sys

from rich.console import Console
from rich.table import Table

from benchmarks.ways import merged
from benchmarks.workload import LARGE_SERVER, capture, create_table, destination, inserts

_WAYS = {"files": "rewriting files", "vectors": "deletion vectors"}
_CHUNK = 100_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--changes", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    options = parser.parse_args()
    sizes = {"small": options.rows // 10, "large": options.rows}
    best: dict[tuple[str, str], tuple[float, float]] = {}
    listed = ", ".join(f"bench.{size}_vectors: {{deletion_vectors: true}}" for size in sizes)
    with destination(options.cores, options=LARGE_SERVER, tables=f", overrides: {{{listed}}}") as (
        server,
        config,
        tree,
    ):
        for size, rows in sizes.items():
            for way in _WAYS:
                name = f"{size}_{way}"
                server.execute(create_table(name), *inserts(name, rows, each=_CHUNK))
                capture(config)
                merged(config, tree, window=False)
                print(f"{name}: {rows:,} rows", file=sys.stderr, flush=True)
        for turn in range(options.rounds):
            for size, rows in sizes.items():
                for way in _WAYS:
                    server.execute(
                        f"UPDATE bench.{size}_{way} t JOIN bench.seq_1_to_{options.changes} s "
                        f"ON t.id = s.seq * {rows // options.changes} - {turn} SET t.total = t.total + 1"
                    )
                    capture(config)
                    measured = merged(config, tree, window=False)
                    least = best.get((size, way), measured)
                    best[size, way] = min(measured[0], least[0]), min(measured[1], least[1])
                    print(
                        f"{size}, {_WAYS[way]}: {measured[0]:.2f} s, {measured[1]:.2f} CPU s",
                        file=sys.stderr,
                        flush=True,
                    )
    table = Table(title=f"{options.changes:,} scattered updates")
    for column in ("way", *(f"{rows:,} rows, s" for rows in sizes.values()), "ratio", "CPU s", "CPU s", "ratio"):
        table.add_column(column, justify="right")
    for way, words in _WAYS.items():
        small, large = best["small", way], best["large", way]
        cells = [f"{x:.2f}" for i in range(2) for x in (small[i], large[i], large[i] / small[i])]
        table.add_row(words, *cells)
    Console(width=None if sys.stdout.isatty() else 120).print(table)


if __name__ == "__main__":
    main()
