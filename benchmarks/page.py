"""The page ``docs/reference/performance.md`` and its plot, made from the kept results.

``python -m benchmarks.page`` writes both anew; a test fails while one is out of date.
"""

from __future__ import annotations

import math
import sys
import textwrap
from html import escape
from pathlib import Path

from benchmarks.accounting import ROOT
from benchmarks.lines import FULL_ROWS, LINES, REFERENCE_S, Line, Measurement, shown, verdict
from benchmarks.results import KEPT, Results, ResultsError, load

PAGE = ROOT / "docs" / "reference" / "performance.md"
PLOT = ROOT / "docs" / "images" / "performance.svg"

_HOW = """\
## How it was measured

- Both sides of a ratio run in turn, in the same rounds, on the same rows and the same machine. The figure is the median
  of the rounds' ratios; the seconds are medians of their own. A first round, which compiles and fills caches, does not
  count. `cdc verify` and the scans beside it are the shortest of the rounds.
- The table has eleven columns: integers, DECIMAL, ENUM, VARCHAR, CHAR, DATETIME, TIMESTAMP and DOUBLE. The source is
  MariaDB on the same machine, so it takes part of the cores while it sends. The tables of the `wide` lines have 25
  columns, of nearly every type, and 1,000 rows; each batch inserts, updates and deletes rows in all of them.
- *Warm* lines run in one Spark session that has done the same before, with tables of its own for each round. *Cold*
  lines are whole processes of `cdc apply`, from their start to their end, JVM included; the store and the Delta tables
  exist, and an earlier process has filled the caches on the disk. *A bare Spark process* is PySpark with Delta and
  nothing of Towpath. It starts, reads or writes one table, and ends.
- *Spark's own* is the time in which the same session reads the same rows from Parquet files and writes them into a new
  Delta table. It finds no keys and merges nothing.
- *Debezium* is embedded, with queues of 131,072 and batches of 16,384 records, without a serializer, and its records
  are dropped. Its time is from the first to the last row, without the start of its JVM.
- *connector-java* is the library below Debezium and many others. It counts rows and writes nothing; `cdc capture`
  verifies checksums, indexes transactions and syncs its store. Both are whole processes.
- *Floor* is the figure of a program that does only what the line cannot do without, in the same rounds. For capture it
  imports the libraries that `cdc capture` needs, and the server's own C program receives the binlog. For a snapshot,
  Towpath's reader receives the rows over as many connections, and drops them. For `cdc verify` it is the source's side
  alone, for the migration a bare Spark process that creates the tables and fills each by one statement. Where the floor
  is not what is wanted, the line cannot be, on this machine.
- CPU seconds are those of all processes of Towpath together, Python workers and JVM included, the database excluded.
  {accounting}
- Peak memory is the sum over these processes of their proportional set sizes (PSS): a page that several processes share
  is counted once. It is looked at up to ten times a second, so a shorter peak is missed.

`make bench` measures all of it again and prints the same table. `make bench ARGS='--only inserts,scattered --rows
100000'` measures some lines quickly, `make bench BENCH_WRITE=1` makes this page from a new run, and `make bench-peers`
compares capture with more readers of binlogs. [Profiles](profile.md) show what the processor
does meanwhile. Times of two machines cannot be compared; their ratios can, roughly.
"""
_ACCOUNTING = {
    "cgroup": "The kernel has counted them in a cgroup, so no process is missed.",
    "sampled": "They were sampled every 50 ms; what a process uses between the last sample and its end is missing.",
}


def pages(results: Results) -> dict[Path, str]:
    """Returns the page and the plot with the texts that they must have."""
    return {PAGE: markdown(results), PLOT: plot(results)}


def write_pages(results: Results) -> list[Path]:
    """Writes the page and the plot, and returns their paths."""
    made = pages(results)
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")
    return list(made)


def markdown(results: Results) -> str:
    measurements = results.measurements()
    lines_here = [line for line in results.lines_here() if line.name in measurements]
    verdicts = [verdict(line, measurements[line.name]) for line in lines_here]
    held, missed = verdicts.count("held"), verdicts.count("not held")
    machine, versions = results.machine, results.versions
    lines = [
        "# Performance",
        "",
        "<!-- Written by `make bench BENCH_WRITE=1` from benchmarks/results: change benchmarks/page.py. -->",
        "",
        "This page shows how fast Towpath is, and how that was measured, for those who size a machine for it or change its",
        "code.",
        "",
        *_warning(results),
        *_wrapped(
            f"{held} of {held + missed} figures are what is wanted. They were measured on {results.date[:10]} with "
            f"Towpath {versions['towpath']} ({versions['commit']}), Spark {versions['pyspark']}, Delta "
            f"{versions['delta-spark']}, Python {versions['python']} and Java {versions['java']}, on {machine.cpus} CPUs "
            f"({machine.cpu}) with {machine.memory_gb:.0f} GB, whose load was {machine.load} at the start. Rounds that "
            f"count: {results.rounds}."
        ),
        "",
        *_pace(results),
        "| line | work | this run | wanted | floor | held | ours, s | other, s | CPU, s | peak, MB |",
        "|---|---|---:|---:|---:|---|---:|---:|---:|---:|",
        *(_row(line, measurements[line.name], results.rows) for line in lines_here),
        "",
        *_notes(measurements),
        "![Each figure as a multiple of what is wanted](../images/performance.svg)",
        "",
        _HOW.format(accounting=_ACCOUNTING[results.accounting]).rstrip(),
    ]
    return "\n".join(lines) + "\n"


def _warning(results: Results) -> list[str]:
    reasons = []
    if results.rows != FULL_ROWS:
        reasons.append(f"with {results.rows:,} rows instead of {FULL_ROWS:,}, for which the wanted figures are meant")
    if results.machine.load > 0.5:
        reasons.append(f"while others used the machine (load {results.machine.load})")
    if not reasons:
        return []
    return ["!!! warning", *_wrapped(f"This was a trial run {', and '.join(reasons)}.", "    ", "    "), ""]


def _pace(results: Results) -> list[str]:
    pace = results.pace()
    if pace is None:
        return []
    text = (
        f"Goals in seconds, CPU seconds and changes per second are meant for a machine on which Spark itself writes "
        f"{FULL_ROWS:,} rows from Parquet into Delta in {REFERENCE_S} s. This one took {pace * REFERENCE_S:.2f} s in the "
        f"same run, so its goals are {pace:.2f} times as long. Ratios and memory have the same goals everywhere."
    )
    return [*_wrapped(text), ""]


def _wrapped(text: str, first: str = "", following: str = "") -> list[str]:
    return textwrap.wrap(text, 120, initial_indent=first, subsequent_indent=following, break_on_hyphens=False)


def _row(line: Line, measurement: Measurement, rows: int) -> str:
    cells = [
        f"`{line.name}`",
        line.title(rows),
        "–" if measurement.value is None else shown(measurement.value, line.unit),
        line.goal(),
        "" if measurement.floor is None else shown(measurement.floor, line.unit),
        verdict(line, measurement),
        *(
            "" if value is None else f"{value:.2f}"
            for value in (measurement.ours_s, measurement.other_s, measurement.cpu_s)
        ),
        "" if measurement.peak_mb is None else f"{measurement.peak_mb:,.0f}",
    ]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _notes(measurements: dict[str, Measurement]) -> list[str]:
    notes = []
    for line in LINES:
        measurement = measurements.get(line.name)
        if measurement is not None and (measurement.skipped or measurement.note):
            notes += _wrapped(f"- `{line.name}`: {measurement.skipped or measurement.note}", "", "  ")
    return [*notes, ""] if notes else []


# --- the plot --------------------------------------------------------------------------------------------------------

_WIDTH, _LEFT, _RIGHT, _TOP, _STEP, _BAR = 860, 300, 90, 64, 30, 16
_DECADE = 230.0
"""Pixels for a factor of ten."""
_STYLE = """\
  <style>
    text { font-family: Helvetica, Arial, sans-serif; font-size: 13px; fill: #1b2a33 }
    .small { font-size: 12px; fill: #4a5c66 }
    .held { fill: #00897b } .not { fill: #bf360c }
    .wanted { stroke: #37474f; stroke-width: 1.4; stroke-dasharray: 4 3 } .grid { stroke: #dfe6e9; stroke-width: 1 }
  </style>"""


def plot(results: Results) -> str:
    """Returns an SVG with a bar for each figure: how many times better or worse than wanted it is, on a logarithmic
    scale. Bars to the right are better."""
    measurements = results.measurements()
    bars = [
        (line, measurement.value, _better(line, measurement.value))
        for line in results.lines_here()
        if line.wanted is not None and (measurement := measurements.get(line.name)) is not None and measurement.value
    ]
    height = _TOP + _STEP * len(bars) + 40
    center = (_LEFT + _WIDTH - _RIGHT) / 2
    label = "Each figure as a multiple of what is wanted; bars to the right are better"
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
            f'role="img" aria-label="{label}">'
        ),
        "  <!-- Written by benchmarks/page.py. -->",
        _STYLE,
        f'  <rect width="{_WIDTH}" height="{height}" rx="8" fill="#fbfdfd"/>',
        f'  <text class="small" x="{center}" y="24" text-anchor="middle">worse than wanted · wanted · better</text>',
    ]
    for factor in (0.2, 0.5, 1, 2, 5):
        x = center + _offset(factor)
        style = "wanted" if factor == 1 else "grid"
        parts.append(f'  <path class="{style}" d="M{x:.1f} 52V{height - 28}"/>')
        parts.append(f'  <text class="small" x="{x:.1f}" y="46" text-anchor="middle">{factor:g} ×</text>')
    for number, (line, value, factor) in enumerate(bars):
        parts += _bar(line, value, factor, _TOP + _STEP * number, center)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _better(line: Line, value: float) -> float:
    """Returns how many times better than wanted a figure is."""
    assert line.wanted is not None
    return line.wanted / value if line.at_most else value / line.wanted


def _offset(factor: float) -> float:
    """Returns the pixels from the middle, at most to the edge."""
    return max(-_DECADE, min(_DECADE, _DECADE * math.log10(factor)))


def _bar(line: Line, value: float, factor: float, y: int, center: float) -> list[str]:
    offset = _offset(factor)
    left, width = min(center, center + offset), max(1.0, abs(offset))
    style = "held" if line.holds(value) else "not"
    return [
        f'  <text x="{_LEFT - 70}" y="{y + 13}" text-anchor="end">{escape(line.name)}</text>',
        f'  <rect class="{style}" x="{left:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}" rx="2"/>',
        (
            f'  <text class="small" x="{_WIDTH - _RIGHT + 74}" y="{y + 13}" text-anchor="end">'
            f"{escape(shown(value, line.unit))}</text>"
        ),
    ]


def main() -> int:
    try:
        written = write_pages(load(KEPT))
    except ResultsError as error:
        print(error, file=sys.stderr)
        return 1
    for path in written:
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
