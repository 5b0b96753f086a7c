"""The page ``docs/reference/comparison.md``, made from the kept results of ``make bench-pipelines``.

``python -m benchmarks.pipelines.page`` writes it anew; a test fails while it is out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

from benchmarks.accounting import ROOT
from benchmarks.markdown import bullets, table, text
from benchmarks.pipelines.peers import PEERS
from benchmarks.pipelines.results import KEPT, Measured, Results, load
from benchmarks.results import ResultsError

PAGE = ROOT / "docs" / "reference" / "comparison.md"
_QUIET = 0.5
_OURS = "towpath"

_HOW = """\
- **One after the other**, each pipeline gets a MySQL server with the same data, and a new folder on the same disk. The
  database is not counted in CPU seconds, memory and writes. The table has eleven columns: integers, DECIMAL, ENUM,
  VARCHAR, CHAR, DATETIME, TIMESTAMP and DOUBLE.
- **First load** begins with the start of the pipeline's first process and ends when all rows are readable: JVMs, broker
  and Spark start in that time.
- **One commit** is from the acknowledged commit of a new row until a reader of the Delta table finds that row. For a
  copy it is one commit and a whole copy after it.
- **Backlog**: half of the changes are inserts, half are updates, in transactions of 5,000 rows; the time runs from the
  first statement until the last change is readable, and the source executes the statements in that time.
- **Faults**: while small transactions go on, each service is killed once with SIGKILL, with all of its processes, and
  started again after a second. The table gets a column in the middle, which later transactions fill. A service that
  ends by itself is started again as well, and a copy that was killed is made again, at most twice. At the end all rows
  are compared with SELECT, in the columns that both have.
- **Lines** are those of the files and commands in `benchmarks/pipelines/settings`, without empty ones and comments.
- **Settings** are those that the documentation of each program recommends: larger batches and compression for
  Debezium and Kafka, two partitions of the topic, as many shuffle partitions and connections as cores, server-side
  cursors for JDBC, dlt's pyarrow backend, and for Towpath a warm Connect server and `small_batches`.

`make bench-pipelines` measures all of it again and prints this page, and with `BENCH_WRITE=1` it keeps the results and
this page. `make bench-pipelines ARGS='--only jdbc --rows 100000'` measures a part; with `BENCH_WRITE=1` and the same
numbers of rows it leaves the figures of the other pipelines as they are. Java, Maven and the package registries are
needed. Times of two machines cannot be compared."""


def markdown(results: Results) -> str:
    """Returns the page."""
    sections = (_head, _figures, _better, _faults, _notes)
    blocks = [block for section in sections for block in section(results)]
    return "\n\n".join([*blocks, "## How it was measured", _HOW]) + "\n"


def _head(results: Results) -> Iterator[str]:
    machine, versions = results.machine, results.versions
    yield "# Comparison with other pipelines"
    yield "<!-- Written by `make bench-pipelines BENCH_WRITE=1`: change benchmarks/pipelines/page.py. -->"
    yield text(
        "This page compares Towpath with the pipelines that people build from MySQL into a lake, for those who choose "
        "one. All of them read the same table of the same server on one machine, one after the other."
    )
    if machine.load > _QUIET:
        yield "!!! warning\n\n" + text(
            f"Others used the machine: its load was {machine.load:.1f}, on {machine.cpus} CPUs, when the run began. Repeat the run on a quiet machine before you rely on seconds. CPU seconds, memory, writes, lines, "
            "processes and lost rows depend little on the load."
            + ("" if _shows_seconds(results) else " Seconds are left out here; the file of results has them."),
            "    ",
            "    ",
        )
    named = {"MySQL": "9", **{name: text for peer in results.pipelines for name, text in peer.versions.items()}}
    yield text(
        f"Measured on {results.date[:10]} with Towpath {versions['towpath']} ({versions['commit']}), Spark "
        f"{versions['pyspark']}, Delta {versions['delta-spark']}, Python {versions['python']}, Java {versions['java']}, "
        f"{', '.join(f'{name} {text}' for name, text in named.items())}, on {machine.cpus} CPUs ({machine.cpu}) with "
        f"{machine.memory_gb:.0f} GB. The table has {results.rows:,} rows at the start, and the backlog "
        f"{results.changes:,} changes."
    )
    yield bullets(*(f"`{peer.name}`: {PEERS[peer.name].title}." for peer in results.pipelines))
    for name, reason in results.skipped.items():
        yield text(f"Not measured: {name}. {reason}")


def _shows_seconds(results: Results) -> bool:
    """Whether others left a core to the pipelines, so that seconds of two pipelines can be compared at all."""
    return results.machine.load < results.machine.cpus


def _figures(results: Results) -> Iterator[str]:
    peers = results.pipelines

    yield "## Figures"
    rows = [(title, *(format(get(peer), form) for peer in peers)) for title, get, form in _measures(results)]
    if _shows_seconds(results):
        for title, works in (("first load", [p.load for p in peers]), ("backlog", [p.backlog for p in peers])):
            rows.append((f"{title}, rows/s", *(f"{work.rows_per_s:,.0f}" for work in works)))
    yield table(("", *(f"`{peer.name}`" for peer in peers)), rows)
    for peer in peers:
        if peer.cold_commits is not None and _shows_seconds(results):
            yield text(
                f"With a `cdc apply` of its own for each commit, and without a Connect server, Towpath's median is "
                f"{peer.cold_commits.median_s:.1f} s, the start of the process included."
            )


_Measure = tuple[str, Callable[[Measured], float], str]


def _measures(results: Results) -> list[_Measure]:
    """Returns the figures, of which less is better, with their formats."""
    seconds: list[_Measure] = [
        ("one commit until readable, median, s", lambda peer: peer.commits.median_s, ".1f"),
        ("one commit until readable, longest, s", lambda peer: peer.commits.most_s, ".1f"),
        ("first load, s", lambda peer: peer.load.seconds, ",.1f"),
        ("backlog, s", lambda peer: peer.backlog.seconds, ",.1f"),
    ]
    others: list[_Measure] = [
        ("first load, CPU s", lambda peer: peer.load.cpu_s, ",.1f"),
        ("backlog, CPU s", lambda peer: peer.backlog.cpu_s, ",.1f"),
        ("first load, peak of memory, MB", lambda peer: peer.load.peak_mb, ",.0f"),
        ("backlog, peak of memory, MB", lambda peer: peer.backlog.peak_mb, ",.0f"),
        ("first load, written to disk, MB", lambda peer: peer.load.written_mb, ",.1f"),
        ("backlog, written to disk, MB", lambda peer: peer.backlog.written_mb, ",.1f"),
        ("processes", lambda peer: peer.processes, "d"),
        ("lines that a user writes", lambda peer: peer.lines, "d"),
    ]
    return [*(seconds if _shows_seconds(results) else []), *others]


def _better(results: Results) -> Iterator[str]:
    ours = next((peer for peer in results.pipelines if peer.name == _OURS), None)
    if ours is None:
        return
    yield "## Advantages of the others"
    lines = []
    for peer in results.pipelines:
        better = [
            f"{name} ({ours_value / value:.1f} times)" if value else name
            for name, get, _ in _measures(results)
            if (value := get(peer)) < (ours_value := get(ours)) * 0.95
        ]
        if peer is not ours:
            lines.append(f"`{peer.name}`: {', '.join(better) if better else 'in none of these figures'}.")
    yield bullets(*lines)
    yield text(
        "A copy reads the whole table each time, so it fits small tables and long intervals; it sees no state between "
        "two copies. Streams through Kafka serve further readers from the same topic, and other databases than MySQL "
        "and MariaDB."
    )


def _faults(results: Results) -> Iterator[str]:
    yield "## After SIGKILL and ALTER TABLE"
    rows = []
    for peer in results.pipelines:
        faults = peer.faults
        recoveries = ", ".join(
            service if seconds is None or not _shows_seconds(results) else f"{service} {seconds:.0f} s"
            for service, seconds in faults.recoveries_s.items()
        )
        late = [service for service, seconds in faults.recoveries_s.items() if seconds is None]
        rows.append(
            (
                f"`{peer.name}`",
                recoveries + (" (not in time)" if late and PEERS[peer.name].continuous else ""),
                f"{faults.restarts}",
                f"{faults.missing:,}",
                f"{faults.wrong:,}" + (f" (in {', '.join(faults.columns)})" if faults.columns else ""),
                f"{faults.extra:,}",
                "yes" if faults.new_column else "no",
                "–" if faults.settled_s is None else f"{faults.settled_s:.0f} s",
            )
        )
    heads = (
        "killed, and readable again after",
        "started once more",
        "missing",
        "wrong",
        "extra",
        "new column",
        "equal after",
    )
    yield table(("", *heads), rows)
    yield text(
        '"Readable again" is from the SIGKILL until a row that was committed after it was readable. "Equal after" is from '
        'the end of the traffic until all rows equalled the source. "Started once more" counts services that ended by '
        "themselves, and copies that were made a second time because the first one after the SIGKILL differed from the "
        "source. A killed copy leaves the last whole copy readable; it was begun again after the traffic."
    )


def _notes(results: Results) -> Iterator[str]:
    notes = [
        f"`{peer.name}`: {note}"
        for peer in results.pipelines
        if not peer.faults.new_column and (note := PEERS[peer.name].fixed_columns)
    ]
    if notes:
        yield bullets(*notes)


def main() -> int:
    try:
        PAGE.write_text(markdown(load(KEPT)), encoding="utf-8")
    except ResultsError as error:
        print(error, file=sys.stderr)
        return 1
    print(PAGE.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
