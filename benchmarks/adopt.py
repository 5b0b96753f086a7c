"""The takeover of a Delta table that differs from the source in one row of a hundred, in turn with a snapshot of it.

The differences are in one range of keys (an outage of the other tool), or scattered over the whole table. ``equal``
has none, and is compared alone: both sides sum up all rows, which is the least that a takeover costs. ``cpu`` are the
seconds of this process with its JVM, and of the server.

    python -m benchmarks.adopt [--rows 2000000] [--rounds 2] [--server mariadb11] [--kinds equal range scattered]
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks.accounting import Span, Stopwatch, Tree
from benchmarks.snapshot import fill
from cdc.capture import Capture
from cdc.config import DestinationConfig
from cdc.lake import pipeline
from cdc.lake.runtime.session import acquire
from cdc.testing.servers import Server
from tests.support.capturing import capturing
from tests.support.snapshots import write_config

TABLE = "bench.orders"
_PROPERTIES = "destination generation mode server_uuid epoch since_seq source_schema primary_key begins_seq columns"


@contextmanager
def destination(server: Server, folder: Path) -> Iterator[DestinationConfig]:
    """Yields a destination with an empty lake, whose capture runs."""
    spark = {"master": "local[2]", "conf": {"spark.driver.memory": "2g"}}
    config = write_config(server, folder, r"bench\.orders", apply={"mode": "upsert"}, spark=spark)
    Capture(config).run(until_current=True)
    with capturing(config):
        yield config


def damage(config: DestinationConfig, kind: str) -> None:
    """Makes the Delta table one of another tool, and changes, deletes and repeats some of its rows."""
    spark, place = acquire(config.spark).spark, f"{config.apply.target}/bench/orders"
    path, table = f"delta.`{place}`", spark.read.format("delta").load(place)
    names = ", ".join(f"'towpath.{name}'" for name in _PROPERTIES.split())
    spark.sql(f"ALTER TABLE {path} UNSET TBLPROPERTIES IF EXISTS ({names})")
    if kind == "equal":
        return
    key, other = table.columns[0], next(name for name, kind in table.dtypes if kind == "string")
    chosen = f"{key} % 100 = 7"
    if kind == "range":  # ids have gaps
        first, last = table.approxQuantile(key, [0.5, 0.51], 0.0005)
        chosen = f"{key} >= {int(first)} AND {key} < {int(last)}"
    spark.sql(f"INSERT INTO {path} SELECT * FROM {path} WHERE {chosen} AND {key} % 10 = 7 AND {key} % 3 = 0")
    spark.sql(f"DELETE FROM {path} WHERE {chosen} AND {key} % 3 = 1")
    spark.sql(f"UPDATE {path} SET {other} = concat({other}, 'x') WHERE {chosen} AND {key} % 3 = 2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--server", default="mariadb11")
    parser.add_argument("--kinds", nargs="+", default=["equal", "range", "scattered"])
    options = parser.parse_args()
    spans: dict[str, list[Span]] = {kind: [] for kind in ("snapshot", *options.kinds)}
    with (
        Tree(join=True) as tree,
        tempfile.TemporaryDirectory(prefix="towpath-bench-", dir=os.environ.get("TMPDIR")) as folder,
        Server(options.server, options=("--innodb-buffer-pool-size=1G",)) as server,
    ):
        fill(server, options.rows)
        for number in range(options.rounds + 1):  # the first round warms up
            for kind, measured in spans.items():
                home = Path(folder) / f"{kind}{number}"
                with destination(server, home) as config:
                    if kind != "snapshot":
                        shutil.copytree(Path(folder) / f"snapshot{number}" / "lake", home / "lake")
                        damage(config, kind)
                    with Stopwatch(tree) as watch:
                        if kind == "snapshot":
                            pipeline.snapshot(config, [TABLE])
                        else:
                            result = pipeline.adopt(config, TABLE, tool="other", dry_run=kind == "equal")
                    if kind != "snapshot":
                        print(
                            f"{kind}: {result.differing} of {result.ranges} parts, {result.read} rows read, "
                            f"{result.repaired} keys repaired",
                            flush=True,
                        )
                    if number:
                        measured.append(watch.span)
                        print(f"{kind}: {watch.span.seconds:.1f} s, {watch.span.cpu_s:.1f} s of CPU", flush=True)
    whole = spans.pop("snapshot")
    for kind, measured in spans.items():
        wall = median(own.seconds / other.seconds for own, other in zip(measured, whole, strict=True))
        cpu = median(own.cpu_s / other.cpu_s for own, other in zip(measured, whole, strict=True))
        print(f"{kind}: {wall:.2f} of the time of a snapshot, {cpu:.2f} of its CPU seconds")
    print(f"{options.rows:,} rows; the load of the machine: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
