"""Apply from the store to Delta: a batch of one million inserts, then a batch of one million updates of the same rows.

Then the table is replayed from the store, which takes both batches at once: the rate of its changes against that of the
first apply is to be at least 1.

Each batch is timed three times: reading (decoding into Spark's ``noop`` sink), reading and reducing to one row per key, and the
whole merge as in ``cdc apply``. The shares are the differences. The session is warm.

    python -m benchmarks.apply [--rows 1000000] [--cores 2]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from cdc.capture import Capture
from cdc.config import DestinationConfig, load
from cdc.testing.servers import HOST, PASSWORD, USER, Server

if TYPE_CHECKING:
    from cdc.batches.lease import Lease

TABLE = """CREATE TABLE bench.orders (
  id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, customer INT UNSIGNED NOT NULL, status ENUM('new','paid','sent') NOT NULL,
  total DECIMAL(12,2) NOT NULL, items SMALLINT NOT NULL, note VARCHAR(200), code CHAR(12), created DATETIME(3),
  changed TIMESTAMP(6) NULL, flag TINYINT, score DOUBLE) ENGINE=InnoDB"""
ROWS = """INSERT INTO bench.orders SELECT NULL, seq * 7, 1 + seq % 3, seq / 7, seq % 100, REPEAT(CHAR(97 + seq % 26), 30),
  CONCAT('c', seq), '2026-01-02 03:04:05.678', '2026-01-02 03:04:05.678901', seq % 2, seq / 3 FROM bench.seq_1_to_5000"""


def configure(folder: Path, server: Server, cores: int) -> DestinationConfig:
    os.environ["BENCH_PASSWORD"] = PASSWORD
    (folder / "conf").mkdir()
    file = folder / "conf" / "bench.yaml"
    file.write_text(
        f"source: {{url: 'mariadb://{USER}@{HOST}:{server.port}', password_env: BENCH_PASSWORD, server_id: 4711,"
        " start: earliest}\n"
        "tables: {include: ['bench\\..*']}\nstore: {path: store}\nmeta: {path: meta}\napply: {target: lake}\n"
        f"batch: {{max_bytes: 2147483648, max_wait_s: 0}}\nspark: {{master: 'local[{cores}]'}}\n"
    )
    return load(file)


def timed(config: DestinationConfig, lease: Lease) -> dict[str, float]:
    """Returns the seconds for reading, for reading and reducing, and for the whole merge. Acks the batch."""
    from cdc import pipeline
    from cdc.decode import layouts
    from spark_jobs.apply.merge import TableMerge, read_changes
    from spark_jobs.apply.rows import latest
    from spark_jobs.delta.tables import target_of
    from spark_jobs.runtime import session
    from spark_jobs.source.columns import columns_of_layout

    layout = layouts(lease.manifest.ranges, lease.manifest.tables)["bench.orders"]
    warm = session.acquire(config.spark)
    seconds = {}
    with warm.tables.one() as table_session:
        target = target_of(config, "bench.orders")
        columns = columns_of_layout(layout, target.policies)
        merge = TableMerge(table_session, target, lease.manifest, layout, columns, None, lambda: None)
        changes = read_changes(merge, columns, 0, "after")
        for name, rows in (("warm-up", changes.limit(1)), ("read", changes), ("reduce", latest(changes, ["id"]))):
            began = time.perf_counter()
            rows.write.format("noop").mode("overwrite").save()
            seconds[name] = time.perf_counter() - began
    began = time.perf_counter()
    results = pipeline.merge(config, lease)
    seconds["merge"] = time.perf_counter() - began
    pipeline.finalize(config, lease, True, results)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--cores", type=int, default=2)
    options = parser.parse_args()
    from cdc import pipeline

    console = Console(width=None if sys.stdout.isatty() else 160)
    table = Table(title="From the store to Delta")
    for name in ("batch", "rows", "seconds", "rows/s", "reading", "reducing", "merging", "decoding into noop, rows/s"):
        table.add_column(name, justify="right")
    changes, seconds = 0, 0.0
    with Server("mariadb10") as server, tempfile.TemporaryDirectory(prefix="towpath-bench-") as folder:
        config = configure(Path(folder), server, options.cores)
        server.execute("CREATE DATABASE bench", TABLE)
        for name, statements in (
            ("inserts", [ROWS] * (options.rows // 5000)),
            ("updates", ["UPDATE bench.orders SET total = total + 1, note = CONCAT(note, '!')"]),
        ):
            console.print(f"{name} …")
            server.execute(*statements)
            Capture(config).run(until_current=True)
            while (lease := pipeline.fetch(config, "cli:bench", wait_s=0)) is not None:
                if lease.manifest.ddl:
                    pipeline.finalize(config, lease, True, pipeline.merge(config, lease))
                    continue
                s = timed(config, lease)
                rows = options.rows
                changes, seconds = changes + rows, seconds + s["merge"]
                table.add_row(
                    name,
                    f"{rows:,}",
                    f"{s['merge']:.1f}",
                    f"{rows / s['merge']:,.0f}",
                    f"{s['read'] / s['merge']:.0%}",
                    f"{max(0.0, s['reduce'] - s['read']) / s['merge']:.0%}",
                    f"{max(0.0, s['merge'] - s['reduce']) / s['merge']:.0%}",
                    f"{rows / s['read']:,.0f}",
                )
        replays = []
        for _ in range(2):
            began = time.perf_counter()
            pipeline.replay(config, ["bench.orders"])
            replays.append(time.perf_counter() - began)
    console.print(table)
    rates = changes / seconds, changes / min(replays)
    console.print(
        f"First apply of {changes:,} changes: {seconds:.1f} s, {rates[0]:,.0f}/s. Replay: {min(replays):.1f} s, "
        f"{rates[1]:,.0f}/s, ratio {rates[1] / rates[0]:.2f} (goal: at least 1.0)."
    )
    console.print(f"One batch each, local[{options.cores}], 11 columns, warm session; {os.cpu_count()} CPUs.")


if __name__ == "__main__":
    main()
