"""The benchmarks of everything that the documentation promises, as one table: ``make bench``.

    python -m benchmarks [--only inserts,scattered] [--rows 100000] [--rounds 3] [--json FILE] [--write]

Each line compares two things that run in turn, or measures a whole process. Lines of one group share a server and are
measured by one process; groups run one after the other. The exit code is 1 if a line could not be measured although its
tools are here. A line that does not hold is no failure: it is in the table.

``--write`` (or BENCH_WRITE=1) keeps the results in ``benchmarks/results`` and makes the page of the documentation anew.
More detailed benchmarks of single parts: ``python -m benchmarks.NAME``, with NAME one of startup, capture, store,
memory_ring, decode, ways, settings, scattered, many_tables, snapshot, verify, encryption. ``python -m benchmarks.profile``
shows what the processor does during a line.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import results
from benchmarks.accounting import ROOT, Tree, compile_sources
from benchmarks.lines import BY_NAME, FULL_ROWS, GROUPS, LINES, Measurement, Options, shown, verdict
from benchmarks.results import KEPT, Results, ResultsError

_GROUPS = {
    "warm": "warm.batches",
    "transactions": "warm.transactions",
    "scattered": "warm.scattered",
    "inserts-cold": "cold.inserts_cold",
    "ten": "cold.ten_tables",
    "first-start": "startup.lines",
    "jdbc": "snapshot.jdbc_lines",
}
"""The functions of groups that are not ``lines`` in the module of the group's name."""


def group(name: str) -> Callable[[Options, Collection[str]], Iterator[Measurement]]:
    """Returns the function that measures a group's lines. Imports only what it needs."""
    module, _, function = _GROUPS.get(name, f"{name}.lines").partition(".")
    measure_lines: Callable[[Options, Collection[str]], Iterator[Measurement]] = getattr(
        import_module(f"benchmarks.{module}"), function
    )
    return measure_lines


def measure_here(name: str, options: Options, chosen: Collection[str], into: Path) -> None:
    """Measures a group in this process, and writes a line of JSON for each line of the table."""
    with into.open("a") as file:
        for measurement in group(name)(options, chosen):
            file.write(json.dumps(asdict(measurement)) + "\n")
            file.flush()


def measure(name: str, options: Options, chosen: Collection[str], console: Console) -> list[Measurement]:
    """Measures a group in a process of its own. Lines that it did not come to are skipped, with the end of its errors."""
    wanted = [line.name for line in LINES if line.group == name and line.name in chosen]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="towpath-bench-") as folder:
        into = Path(folder) / "lines"
        into.touch()
        command = [sys.executable, "-m", "benchmarks", "--group", name, "--into", str(into), "--only", ",".join(wanted)]
        for key, value in asdict(options).items():
            command += [f"--{key}", str(value)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
        measurements = [Measurement(**json.loads(line)) for line in into.read_text().splitlines()]
    measurements = [measurement for measurement in measurements if measurement.line in wanted]
    if done.returncode != 0:
        errors = [line.strip() for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        reason = f"{FAILED}: {errors[-1] if errors else f'it ended with code {done.returncode}'}"
        sys.stderr.write("".join(f"{line}\n" for line in errors[-30:]))
        missing = [line for line in wanted if line not in {measurement.line for measurement in measurements}]
        measurements += [Measurement(line, skipped=reason) for line in missing]
    console.print(f"{name}: {time.monotonic() - began:.0f} s")
    return measurements


FAILED = "It failed"


def table(done: Results) -> Table:
    """Returns the table of all lines of a run."""
    table = Table(title=f"Towpath, {done.rows:,} rows for a million" if done.rows != FULL_ROWS else "Towpath")
    for name in ("line", "work", "this run", "wanted", "held", "ours s", "other s", "CPU s", "peak MB", "notes"):
        table.add_column(
            name,
            no_wrap=name in ("line", "this run", "wanted"),
            justify="left" if name in ("line", "work", "held", "notes") else "right",
        )
    measurements = done.measurements()
    for line in done.lines_here():
        measurement = measurements.get(line.name)
        if measurement is None:
            continue
        table.add_row(
            line.name,
            line.title(done.rows),
            "–" if measurement.value is None else shown(measurement.value, line.unit),
            line.goal(),
            verdict(line, measurement),
            *(
                "" if value is None else f"{value:.2f}"
                for value in (measurement.ours_s, measurement.other_s, measurement.cpu_s)
            ),
            "" if measurement.peak_mb is None else f"{measurement.peak_mb:,.0f}",
            measurement.skipped or measurement.note,
        )
    return table


def write(done: Results, console: Console) -> None:
    """Keeps the results, and makes the documentation's page from them."""
    from benchmarks.page import write_pages

    old = results.load(KEPT) if KEPT.exists() else None
    kept = results.merged(old, done)
    KEPT.parent.mkdir(exist_ok=True)
    KEPT.write_text(results.render(kept), encoding="utf-8")
    for page in write_pages(kept):
        console.print(f"written: {page.relative_to(ROOT)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default=",".join(BY_NAME), help=f"some of {', '.join(BY_NAME)}")
    parser.add_argument("--rows", type=int, default=FULL_ROWS, help="rows of the lines that say a million (1,000,000)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds that count (3)")
    parser.add_argument("--cores", type=int, default=2, help="cores of Spark (2)")
    parser.add_argument("--json", type=Path, help="write the results into this file")
    parser.add_argument("--write", action="store_true", default=bool(os.environ.get("BENCH_WRITE")))
    parser.add_argument("--group", choices=GROUPS, help=argparse.SUPPRESS)
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    chosen = args.only.split(",")
    if unknown := [name for name in chosen if name not in BY_NAME]:
        parser.error(f"unknown line {unknown[0]!r}; known: {', '.join(BY_NAME)}")
    if args.rows < 1000:
        parser.error("--rows must be at least 1000")
    options = Options(args.rows, args.rounds, args.cores)
    if args.group:
        measure_here(args.group, options, chosen, args.into)
        return 0
    console = Console(width=None if sys.stdout.isatty() else 180)
    try:
        if args.write and KEPT.exists():
            results.refuse_partial(results.load(KEPT), chosen, options.rows)  # before minutes of work, not after
    except ResultsError as error:
        parser.error(str(error))
    compile_sources()
    machine, began = results.this_machine(), time.monotonic()
    with Tree() as tree:
        accounting = tree.how
    measured: list[Measurement] = []
    for name in GROUPS:
        if any(BY_NAME[line].group == name for line in chosen):
            measured += measure(name, options, chosen, console)
    order = list(BY_NAME)
    measured.sort(key=lambda measurement: order.index(measurement.line))
    done = results.make(
        measured,
        rows=options.rows,
        rounds=options.rounds,
        accounting=accounting,
        seconds=time.monotonic() - began,
        machine=machine,
    )
    console.print(table(done))
    console.print(
        f"{machine.cpus} CPUs ({machine.cpu}), {machine.memory_gb:.0f} GB, load at the start {machine.load}; Spark has "
        f"{options.cores} cores. CPU seconds of whole trees of processes ({accounting}), peaks as PSS. {done.seconds:.0f} s."
    )
    if args.json:
        args.json.write_text(results.render(done), encoding="utf-8")
    if args.write:
        write(done, console)
    return int(any((measurement.skipped or "").startswith(FAILED) for measurement in measured))


if __name__ == "__main__":
    sys.exit(main())
