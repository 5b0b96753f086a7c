"""Many destinations on one machine, measured: ``make bench-scale``.

    python -m benchmarks.scale [--destinations 100] [--tables 50] [--active 5] [--seconds 240] [--json FILE] [--write]

One MySQL server; a capture for each destination; all of them in one Airflow, where captures are watched and changes are
waited for in the triggerer; small traffic on some. Beside that, one destination with all tables, and the requests to an
object store. ``--write`` (or BENCH_WRITE=1) keeps the results in ``benchmarks/results`` and makes the page of the
documentation anew. It takes about a quarter of an hour, and 12 GB of memory.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from benchmarks import results as machines
from benchmarks.accounting import Run, run
from benchmarks.scale import page, waiting
from benchmarks.scale.airflow import Airflow, parsing
from benchmarks.scale.processes import Look, pss_mb
from benchmarks.scale.results import KEPT, Captures, Cost, Requests, Results, Whole, render
from benchmarks.scale.workload import CDC, INSERT, SERVER, WHOLE, Destinations, merge_all
from cdc.base.targets import split_table, table_path
from cdc.capture import Capture
from cdc.config import DestinationConfig
from cdc.store.formats.layout import schemas_folder, segments_folder
from cdc.testing.servers import Server
from cdc.watch.page.board import Board


def measure_captures(destinations: Destinations) -> Captures:
    """Starts all captures."""
    destinations.warm_up()
    start_s = destinations.start_captures()
    time.sleep(5)
    pids = [capture.pid for capture in destinations.captures]
    cpu_s = Look().usage(pids).cpu_s
    return Captures(
        count=len(pids),
        start_s=start_s,
        start_cpu_s=cpu_s / len(pids),
        mb=pss_mb(pids) / len(pids),
        source_mb=psutil.Process(destinations.server.pid).memory_info().rss / 1e6,
    )


def cost(done: Run) -> Cost:
    return Cost(seconds=done.seconds, cpu_s=done.cpu_s, peak_mb=done.peak_mb)


def command(destinations: Destinations, name: str, *words: str) -> Cost:
    """Runs a command of ``cdc`` in a process of its own, for the second time."""
    line = [*CDC, "--conf-dir", str(destinations.file(name).parent), words[0], name, *words[1:]]
    run(line)
    return cost(run(line))


def measure_whole(destinations: Destinations, new_tables_s: float) -> Whole:
    """Measures the destination with all tables, and one with few. Airflow does not run, and the captures do not read."""
    few, config = destinations.config(destinations.names[-1]), destinations.config(WHOLE)
    table, few_table = destinations.table_names(0)[0], destinations.table_names(destinations.count - 1)[0]

    def applied(target: DestinationConfig, changed: str) -> Cost:
        runs = []
        for _ in range(2):
            change(destinations, target, changed)
            done = run([*CDC, "--conf-dir", str(target.file.parent), "apply", target.name, "--json"])
            (batch,) = json.loads(done.output)["batches"]
            if [applied_table["table"] for applied_table in batch["tables"]] != [changed]:
                raise RuntimeError(f"cdc apply has changed other tables than {changed}: {batch['tables']}")
            runs.append(done)
        return cost(runs[-1])

    for changed_config in (config, few):  # what came meanwhile
        Capture(changed_config).run(until_current=True)
        merge_all(changed_config)
    apply, few_apply = applied(config, table), applied(few, few_table)
    warm = []
    for _ in range(3):
        change(destinations, config, table)
        warm.append(merge_all(config))
    nothing, few_nothing = (command(destinations, destination.name, "apply") for destination in (config, few))
    before = stored_bytes(config)
    destinations.server.execute(*[INSERT.format(table)] * 200)
    Capture(config).run(until_current=True)
    transaction_bytes = (stored_bytes(config) - before) / 200
    began = time.monotonic()
    destinations.server.execute(f"ALTER TABLE {table} ADD COLUMN more INT")
    Capture(config).run(until_current=True)
    ddl_s = time.monotonic() - began
    began = time.monotonic()
    rows = Board(wait_s=120).rows([destinations.file(name) for name in destinations.names])
    page_s = time.monotonic() - began
    if errors := [row.error for row in rows if row.error]:
        raise RuntimeError(f"the page has errors: {errors[0]}")
    lake = Path(table_path(few.apply.target, *split_table(destinations.table_names(destinations.count - 1)[1])))
    return Whole(
        tables=destinations.count * destinations.tables,
        few_tables=destinations.tables,
        status=command(destinations, WHOLE, "status", "--json"),
        few_status=command(destinations, few.name, "status", "--json"),
        page_s=page_s,
        apply=apply,
        few_apply=few_apply,
        nothing=nothing,
        few_nothing=few_nothing,
        warm_apply_s=min(warm),
        new_tables=destinations.tables,
        new_tables_s=new_tables_s,
        ddl_s=ddl_s,
        meta_bytes=size(config.meta.path / "meta.json"),
        few_meta_bytes=size(few.meta.path / "meta.json"),
        schemas_bytes=largest(schemas_folder(config.store.path)),
        few_schemas_bytes=largest(schemas_folder(few.store.path)),
        transaction_bytes=transaction_bytes,
        manifest_bytes=size(max((few.meta.path / "manifests").rglob("*.json"))),
        lake_bytes=float(sum(size(file) for file in lake.rglob("*") if file.is_file())),
    )


def change(destinations: Destinations, config: DestinationConfig, table: str) -> None:
    """Commits a row, and captures it."""
    destinations.server.execute(INSERT.format(table))
    Capture(config).run(until_current=True)


def size(file: Path) -> int:
    return file.stat().st_size


def largest(folder: Path) -> int:
    return max(size(file) for file in folder.glob("*.json"))


def stored_bytes(config: DestinationConfig) -> int:
    return sum(size(file) for file in segments_folder(config.store.path).iterdir())


def requests(tables: int) -> tuple[Requests, ...]:
    done = run([sys.executable, "-m", "benchmarks.scale.requests", "--tables", str(tables)])
    return tuple(Requests.model_validate(load) for load in json.loads(done.output.splitlines()[-1]))


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    """Measures all parts, one after the other."""
    results: dict[str, Any] = {"destinations": options.destinations, "tables": options.tables}
    results["requests"] = requests(options.s3_tables)
    say(f"requests: {results['requests']}")
    results["waiting"] = waiting.measure(options.destinations, options.idle_seconds, 40)
    say(f"destinations at a server: {results['waiting']}")
    with (
        tempfile.TemporaryDirectory(prefix="towpath-scale-") as folder,
        Server("mysql9", options=SERVER) as server,
    ):
        destinations = Destinations(Path(folder), server, options.destinations, options.tables)
        destinations.prepare()
        say("databases, tables and configurations are there")
        results["parsing"] = list(parsing(destinations.conf))
        say("DAG files are parsed")
        airflow = Airflow(Path(folder) / "airflow", destinations)
        try:
            results["captures"] = measure_captures(destinations)
            say(f"{options.destinations} captures read: {results['captures']}")
            new_tables_s = destinations.make_tables()
            say("Delta tables are there")
            results["start"] = airflow.begin()
            say(f"Airflow has its DAGs: {results['start']}")
            before, began = airflow.cpu_s(), time.monotonic()
            time.sleep(20)
            idle_cores = (airflow.cpu_s() - before) / (time.monotonic() - began)
            results["watches"] = airflow.burst("capture", options.destinations, idle_cores)
            say(f"captures are watched: {results['watches']}")
            results["empty_runs"] = airflow.burst("apply", options.destinations, idle_cores)
            say(f"runs that found nothing: {results['empty_runs']}")
            results["idle"] = airflow.window(options.idle_seconds)
            say(f"idle: {results['idle']}")
            results["traffic"] = airflow.traffic(options.active, options.seconds, options.pause)
            say(f"traffic: {results['traffic']}")
        finally:
            airflow.stop()
            destinations.stop_captures()
        results["whole"] = measure_whole(destinations, new_tables_s)
        say(f"one destination with all tables: {results['whole']}")
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--destinations", type=int, default=100)
    parser.add_argument("--tables", type=int, default=50, help="tables of each destination (50)")
    parser.add_argument("--active", type=int, default=5, help="destinations with traffic (5)")
    parser.add_argument("--seconds", type=float, default=240, help="duration of the traffic (240)")
    parser.add_argument("--pause", type=float, default=15, help="seconds between two commits of a destination (15)")
    parser.add_argument("--idle-seconds", type=float, default=60, help="duration of the look at an idle system (60)")
    parser.add_argument("--s3-tables", type=int, default=500, help="tables in the object store (500)")
    parser.add_argument("--json", type=Path, help="write the results into this file")
    parser.add_argument("--write", action="store_true", default=bool(os.environ.get("BENCH_WRITE")))
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    machine, began = machines.this_machine(), time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s: {text}", file=sys.stderr, flush=True)

    results = measure(options, say)
    done = Results(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - began, 1),
        machine=machine,
        versions=machines.current_versions("apache-airflow", "deltalake"),
        **results,
    )
    done = Results.model_validate(machines.rounded(done.model_dump()))
    console.print(page.markdown(done), markup=False, soft_wrap=True)
    if options.json:
        options.json.write_text(render(done), encoding="utf-8")
    if options.write:
        KEPT.write_text(render(done), encoding="utf-8")
        page.PAGE.write_text(page.markdown(done), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
