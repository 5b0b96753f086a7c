"""``make bench-pipelines``: measures the pipelines one after the other, and makes the page of them.

python -m benchmarks.pipelines [--only towpath,debezium,…] [--rows 1000000] [--changes 400000] [--write]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import results as machines
from benchmarks.pipelines import page, source
from benchmarks.pipelines.peers import PEERS, UNAVAILABLE
from benchmarks.pipelines.phases import Sizes, measure
from benchmarks.pipelines.results import KEPT, Results, load, render
from cdc.testing.servers import Server


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default=",".join(PEERS), help=f"some of {', '.join(PEERS)}")
    parser.add_argument("--rows", type=int, default=Sizes.rows, help="rows of the table at the start")
    parser.add_argument("--changes", type=int, default=Sizes.changes, help="changes of the backlog")
    parser.add_argument("--commits", type=int, default=Sizes.commits, help="single commits")
    parser.add_argument("--json", type=Path, help="write the results into this file")
    parser.add_argument("--write", action="store_true", default=bool(os.environ.get("BENCH_WRITE")))
    return parser


def main() -> int:
    parser = arguments()
    options = parser.parse_args()
    if unknown := [name for name in options.only.split(",") if name not in PEERS]:
        parser.error(f"unknown pipeline {unknown[0]!r}; known: {', '.join(PEERS)}")
    machine, began = machines.this_machine(), time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s: {text}", file=sys.stderr, flush=True)

    kept = load(KEPT) if options.write and KEPT.exists() else None
    sizes = Sizes(options.rows, options.changes, options.commits)
    measured = (
        {}
        if kept is None or (kept.rows, kept.changes) != (sizes.rows, sizes.changes)
        else {p.name: p for p in kept.pipelines}
    )
    if kept is not None and measured:
        machine = max(kept.machine, machine, key=lambda machine: machine.load)
    skipped = dict(UNAVAILABLE)

    def publish() -> str:
        """Keeps the figures up to now, and returns the page of them."""
        left_out = {peer.title: "It was not part of the run." for name, peer in PEERS.items() if name not in measured}
        results = Results(
            date=datetime.now(UTC).isoformat(timespec="seconds"), seconds=time.monotonic() - began, machine=machine,
            versions=machines.current_versions("deltalake"), rows=sizes.rows, changes=sizes.changes,
            pipelines=tuple(measured[name] for name in PEERS if name in measured), skipped=left_out | skipped,
        )  # fmt: skip
        results = Results.model_validate(machines.rounded(results.model_dump()))
        for file in (*([options.json] if options.json else []), *([KEPT] if options.write else [])):
            file.write_text(render(results), encoding="utf-8")
        text = page.markdown(results)
        if options.write:
            page.PAGE.write_text(text, encoding="utf-8")
        return text

    with tempfile.TemporaryDirectory(prefix="towpath-bench-") as folder:
        server = Server("mysql9", options=source.OPTIONS).start()
        try:
            source.fill(server, sizes.rows)
            server.halt()
            filled = Path(folder) / "data"
            server.copy_data(filled)
            for name in options.only.split(","):
                server.replace_data(filled)
                server.restart()
                say(f"{name} begins")
                try:
                    measured[name] = measure(PEERS[name], server, sizes, say)
                except (LookupError, RuntimeError) as error:  # the page says so, and the next one is measured
                    skipped[PEERS[name].title] = str(error)
                server.kill()
                publish()
        finally:
            server.stop()
    print(publish())
    return 1 if skipped.keys() - UNAVAILABLE.keys() else 0


if __name__ == "__main__":
    sys.exit(main())
