"""``python -m tests.support.type_matrix``: runs the matrix, and renders ``docs/types.md``."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from cdc.testing.servers import Server
from tests.support.type_matrix import page
from tests.support.type_matrix.run import Run, applied, decoded

_SHOWN = 40
SPARK: dict[str, object] = {
    "master": "local[2]",
    "conf": {
        "spark.driver.memory": "1g",
        # Each table is read and written once. Compiling code for hundreds of columns would take longer than its rows.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    },
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.type_matrix", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"one of {', '.join(page.TITLES)}; default: all")
    parser.add_argument("--decoder", action="store_true", help="stop at the decoder: no capture, no Spark")
    parser.add_argument("--write", type=Path, metavar="FILE", help="render the page into this file; needs all kinds")
    options = parser.parse_args(arguments)
    kinds = options.kinds or list(page.TITLES)
    if options.write and set(kinds) != set(page.TITLES):
        parser.error("--write needs all servers: give no KIND")
    runs = [_run(kind, options.decoder) for kind in kinds]
    if any(run.result.faults for run in runs):
        return 1
    if options.write:
        options.write.write_text(page.render(runs), encoding="utf-8")
    return 0


def _run(kind: str, decoder: bool) -> Run:
    began = time.monotonic()
    with Server(kind) as server, tempfile.TemporaryDirectory(prefix="towpath-matrix-") as folder:
        run = decoded(server) if decoder else applied(server, Path(folder), SPARK)
    columns = sum(len(table.columns) for table in run.tables)
    print(
        f"{page.TITLES[kind]} {run.catalog.version}: {run.result.total} values of {columns} columns in {len(run.tables)}"
        f" tables, {len(run.result.faults)} faults, {time.monotonic() - began:.1f} s",
        flush=True,
    )
    for fault in run.result.faults[:_SHOWN]:
        print(f"  {fault}", flush=True)
    return run


if __name__ == "__main__":
    sys.exit(main())
