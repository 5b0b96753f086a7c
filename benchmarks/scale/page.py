"""The page ``docs/reference/scale.md``, made from the kept results of ``make bench-scale``.

``python -m benchmarks.scale.page`` writes it anew; a test fails while it is out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from benchmarks.accounting import ROOT
from benchmarks.markdown import bullets, table, text
from benchmarks.results import ResultsError
from benchmarks.scale.results import CHANGED, KEPT, UNCHANGED, Cost, Requests, Results, Window, load
from cdc.base.units import human_bytes

PAGE = ROOT / "docs" / "reference" / "scale.md"
_PARTS = {
    "captures": "captures, one process each",
    "source": "MySQL, for all captures",
    "scheduler": "Airflow: scheduler",
    "tasks": "Airflow: tasks",
    "triggerer": "Airflow: triggerer",
    "dag-processor": "Airflow: DAG processor",
    "api-server": "Airflow: API server",
}
"""The parts of a window, in the order of their lines."""
_AIRFLOW = ("scheduler", "tasks", "triggerer", "dag-processor", "api-server")


def markdown(results: Results) -> str:
    """Returns the page."""
    sections = (_head, _destinations, _captures, _airflow, _waiting, _whole, _requests, _formula, _how)
    return "\n\n".join(block for section in sections for block in section(results)) + "\n"


# --- sections


def _head(results: Results) -> Iterator[str]:
    machine, versions = results.machine, results.versions
    yield "# Scale"
    yield "<!-- Written by `make bench-scale BENCH_WRITE=1` from benchmarks/results: change benchmarks/scale/page.py. -->"
    yield text(
        "This page shows the costs of many destinations and many tables, for those who size a machine for them. At its "
        "end you can compute processors, memory, slots of Airflow, sizes of files and requests to an object store for "
        "numbers of your own."
    )
    yield text(
        f"The figures are of {results.destinations} destinations with {results.tables} tables each, on {machine.cpus} "
        f"CPUs ({machine.cpu}) with {machine.memory_gb:.0f} GB. They were measured on {results.date[:10]} with Towpath "
        f"{versions['towpath']} ({versions['commit']}), Airflow {versions['apache-airflow']}, Python "
        f"{versions['python']}, deltalake {versions['deltalake']} and Spark {versions['pyspark']}."
    )
    if machine.load > 0.5:
        yield f"!!! warning\n    Others used the machine when this began (load {machine.load})."


def _destinations(results: Results) -> Iterator[str]:
    idle, traffic = results.idle, results.traffic
    busy = traffic.window
    yield f"## {results.destinations} destinations, {traffic.destinations} of them with traffic"
    yield text(
        "Each destination has a capture outside Airflow, which its capture DAG watches, and an apply DAG that changes "
        "start (`airflow: {start: data, capture: external}`, see [wait without slots](../how-to/waiting.md)). delta-rs "
        "merges small batches. All of it runs on one machine, MySQL included. 100 % is one core."
    )
    rows = []
    for part, title in _PARTS.items():
        idle_share, other = idle.share(part), busy.share(part)
        rows.append(
            (
                title,
                f"{idle_share.processes}",
                _percent(idle_share.cpu_percent),
                _percent(other.cpu_percent),
                f"{idle_share.mb:,.0f}",
            )
        )
    rows.append(
        (
            "**all**",
            f"{sum(share.processes for share in idle.shares)}",
            _percent(_cpu(idle)),
            _percent(_cpu(busy)),
            f"{sum(share.mb for share in idle.shares):,.0f}",
        )
    )
    yield table(("part", "processes", "CPU, idle", "CPU, with traffic", "memory, MB"), rows)
    yield table(
        ("", "idle", "with traffic"),
        (
            ("seconds", f"{idle.seconds:.0f}", f"{busy.seconds:.0f}"),
            ("slots of workers, most at once", f"{idle.slots_most}", f"{busy.slots_most}"),
            ("slots of workers, mean", f"{idle.slots_mean:.1f}", f"{busy.slots_mean:.1f}"),
            ("tasks that wait in the triggerer", f"{idle.deferred}", f"{busy.deferred}"),
            ("transactions committed at the source", "0", f"{traffic.transactions}"),
            ("runs of apply DAGs", "0", f"{traffic.runs}"),
            ("from commit to Delta, median", "", f"{traffic.latency_median_s:.1f} s"),
            *((f"– {step}, median", "", f"{seconds:.1f} s") for step, seconds in traffic.steps.items()),
            ("from commit to Delta, shortest", "", f"{traffic.latency_least_s:.1f} s"),
            ("from commit to Delta, longest", "", f"{traffic.latency_most_s:.1f} s"),
        ),
    )


def _captures(results: Results) -> Iterator[str]:
    captures = results.captures
    yield "## Captures"
    yield text(
        f"A capture is a process of its own. It takes {captures.mb:.0f} MB (PSS) and, while nothing changes, "
        f"{_capture_percent(results):.2f} % of a core; {captures.count} of them take "
        f"{captures.count * captures.mb / 1000:.1f} GB. "
        f"Its start takes {captures.start_cpu_s:.1f} CPU seconds, so all of them read the source after "
        f"{captures.start_s:.0f} s."
    )
    yield text(
        "The source sends its whole binlog to each capture, and keeps two connections for each: raise "
        f"`max_connections`. MySQL took {captures.source_mb:,.0f} MB with all of them."
    )


def _airflow(results: Results) -> Iterator[str]:
    start, watches, empty = results.start, results.watches, results.empty_runs
    yield "## Airflow"
    yield text(
        "The DAG processor parses each file again and again, every 30 s by default, in a process that has imported "
        "Airflow:"
    )
    rows = [(f"`{parsing.file}`", f"{parsing.dags}", f"{parsing.cpu_s:.2f}") for parsing in results.parsing]
    total = sum(parsing.dags for parsing in results.parsing), sum(parsing.cpu_s for parsing in results.parsing)
    yield table(("DAG file", "DAGs", "CPU, s"), [*rows, ("**all**", f"{total[0]}", f"{total[1]:.2f}")])
    yield bullets(
        f"Airflow knows all {start.dags} DAGs {start.ready_s:.0f} s after its start, which takes {start.cpu_s:.0f} CPU "
        "seconds.",
        f"{watches.runs} capture DAGs that begin to watch at once take {watches.seconds:.0f} s, and "
        f"{watches.cpu_s / watches.runs:.1f} CPU seconds each. A watch begins anew after `airflow.capture_for` (1 h).",
        f"{empty.runs} runs of apply DAGs that find nothing, begun at once, take {empty.seconds:.0f} s, and "
        f"{empty.cpu_s / empty.runs:.1f} CPU seconds each.",
        f"A run that merges a row takes {_run_cpu_s(results):.1f} CPU seconds: its three tasks and the scheduler's work.",
    )
    cores = 2 * results.destinations * empty.cpu_s / empty.runs / 60
    yield text(
        f"With the defaults `apply_every: 60s` and `snapshot_every: 60s`, {results.destinations} destinations would begin "
        f"{2 * results.destinations} runs a minute. Most would find nothing, and they would take {cores:.1f} cores. So let "
        "changes start the runs, and choose `apply_every` and `snapshot_every` in hours."
    )


def _waiting(results: Results) -> Iterator[str]:
    waiting = results.waiting
    if waiting is None:
        return
    yield f"## {waiting.destinations} destinations at a server"
    yield text(
        "With `start: data` and `store.kind: server` the triggerer asks [the server](../how-to/server.md) for changes "
        f"(measured on {waiting.date[:10]}, without Airflow around the triggers):"
    )
    yield table(
        ("", "measured"),
        (
            ("slots of workers", "0"),
            ("connections to the server", f"{waiting.connections}"),
            ("requests a minute, while nothing changes", f"{waiting.requests_per_minute:.0f}"),
            ("CPU of the server, while nothing changes", _percent(waiting.server_percent)),
            ("CPU of the triggers, while nothing changes", _percent(waiting.triggers_percent)),
            ("memory of the server", f"{waiting.server_mb:.0f} MB"),
            ("from a stored transaction to the event, median", f"{waiting.latency_median_s:.2f} s"),
            (
                f"from a stored transaction to the event, longest of {waiting.changes}",
                f"{waiting.latency_most_s:.2f} s",
            ),
        ),
    )


def _whole(results: Results) -> Iterator[str]:
    whole = results.whole
    yield f"## One destination with {whole.tables:,} tables"
    rows = [
        ("`cdc status`", _cost(whole.few_status), _cost(whole.status)),
        ("`cdc apply`, one table changed", _cost(whole.few_apply), _cost(whole.apply)),
        ("`cdc apply`, nothing to apply", _cost(whole.few_nothing), _cost(whole.nothing)),
        ("meta", human_bytes(whole.few_meta_bytes), human_bytes(whole.meta_bytes)),
        (
            "file of table schemas, one for each DDL statement",
            human_bytes(whole.few_schemas_bytes),
            human_bytes(whole.schemas_bytes),
        ),
    ]
    yield table(("", f"{whole.few_tables} tables", f"{whole.tables:,} tables"), rows)
    yield bullets(
        "A command is a whole process of its own.",
        f"In a process that has merged before, a batch that changes one of {whole.tables:,} tables is merged in "
        f"{whole.warm_apply_s:.2f} s.",
        f"Capture has stored one ALTER TABLE after {whole.ddl_s:.1f} s, its start and its end included: it reads the "
        "definitions of all tables.",
        f"Spark creates new tables: {whole.new_tables} in {whole.new_tables_s:.0f} s, with its start.",
        f"The [page](../how-to/page.md) of {results.destinations} destinations with {results.tables} tables each is there "
        f"after {whole.page_s:.1f} s.",
        f"The store grows by {human_bytes(round(whole.transaction_bytes))} for a transaction with one row, a Delta table "
        f"begins with {human_bytes(round(whole.lake_bytes))}, and the manifest of a batch with one table has "
        f"{human_bytes(whole.manifest_bytes)}.",
    )


def _requests(results: Results) -> Iterator[str]:
    yield "## Requests to an object store"
    yield table(
        ("work", "tables", "requests for each table", "requests"),
        [
            (
                request.work,
                f"{request.tables or ''}",
                _per_table(request),
                ", ".join(f"{method} {count}" for method, count in request.counts.items()) or "none",
            )
            for request in results.requests
        ],
    )
    yield text(
        "A run looks at tables that did not change, whether they were removed, replaced or restored: at most 500 for each "
        "batch, in turn, and each table once in 300 s. Copies of the logs on the machine make that two requests a table. "
        "If they are lost with the machine's disk, the next look at a table lists its log and reads it."
    )


def _formula(results: Results) -> Iterator[str]:
    idle, whole = results.idle, results.whole
    airflow = sum(idle.share(part).cpu_percent for part in _AIRFLOW) / 100
    memory = sum(idle.share(part).mb for part in _AIRFLOW) / 1000
    empty = results.empty_runs.cpu_s / results.empty_runs.runs
    watch = results.watches.cpu_s / results.watches.runs
    more = whole.tables - whole.few_tables
    yield "## The formula"
    yield text(
        "D destinations with T tables each; E runs an hour that find nothing, R runs an hour that merge a few rows, and S "
        "seconds of such a run; `capture_for` in seconds:"
    )
    yield table(
        ("", "formula"),
        (
            ("cores: captures, idle", f"D × {_capture_percent(results) / 100:.4f}"),
            (f"cores: Airflow with {results.start.dags} DAGs, idle", f"{airflow:.2f}"),
            ("cores: watches that begin anew", f"D × {watch:.1f} / `capture_for`"),
            ("cores: runs that find nothing", f"E × {empty:.1f} / 3600"),
            ("cores: runs that merge a few rows", f"R × {_run_cpu_s(results):.1f} / 3600"),
            ("memory: captures", f"D × {results.captures.mb:.0f} MB"),
            ("memory: Airflow while no task runs", f"{memory:.1f} GB"),
            ("slots of workers, mean", "R × S / 3600; none for waiting"),
            ("meta of a destination", f"T × {(whole.meta_bytes - whole.few_meta_bytes) / more:.0f} bytes"),
            (
                "schemas in the store of a destination",
                f"T × {(whole.schemas_bytes - whole.few_schemas_bytes) / more:.0f} bytes for each DDL statement",
            ),
            (
                "requests to an object store",
                f"R × (min(T, 500) × {_idle_requests(results):.1f} + changed tables × {_changed_requests(results)})",
            ),
        ),
    )
    yield text(
        "Merges of large batches come on top: see [performance](performance.md). A merge that needs Spark takes a JVM of "
        "1 to 3 GB for each run, unless a Connect server serves all of them."
    )


def _how(results: Results) -> Iterator[str]:
    yield "## How it was measured"
    yield bullets(
        "One MySQL 9 and an Airflow with LocalExecutor, eight workers and SQLite ran beside the captures on the same "
        "machine. The intervals of Airflow's own work are its defaults.",
        "The DAG files are those of `dags/`, all of them. Only the capture and apply DAGs are unpaused.",
        "CPU seconds come from the kernel's accounts of processes and of the children that they have waited for. Memory "
        "is PSS.",
        f"With traffic, each of {results.traffic.destinations} destinations commits a row into one of its tables, waits "
        "until the Delta table has it, and then some seconds.",
        "Spark created the Delta tables of the first destination. The others are copies of an empty one of them, with ids "
        "and owners of their own, recorded in the metas as an ack does.",
        "Requests were counted by moto, a fake S3. Spark merged the table that changed.",
        "`make bench-scale` measures all of it again, and `make bench-scale BENCH_WRITE=1` makes this page from it.",
    )


# --- figures


def _capture_percent(results: Results) -> float:
    return results.idle.share("captures").cpu_percent / results.captures.count


def _run_cpu_s(results: Results) -> float:
    """Returns the CPU seconds of Airflow for a run with changes, beyond those of an idle Airflow."""
    busy, idle = results.traffic.window, results.idle
    percent = sum(busy.share(part).cpu_percent - idle.share(part).cpu_percent for part in _AIRFLOW)
    return percent / 100 * busy.seconds / max(1, results.traffic.runs)


def _idle_requests(results: Results) -> float:
    unchanged = next(request for request in results.requests if request.work == UNCHANGED)
    return unchanged.total / unchanged.tables


def _changed_requests(results: Results) -> int:
    return next(request for request in results.requests if request.work == CHANGED).total


# --- texts


def _cpu(window: Window) -> float:
    return sum(share.cpu_percent for share in window.shares)


def _percent(value: float) -> str:
    return f"{value:.1f} %"


def _cost(cost: Cost) -> str:
    return f"{cost.seconds:.1f} s, {cost.cpu_s:.1f} CPU s"


def _per_table(requests: Requests) -> str:
    return f"{requests.total / requests.tables:.1f}" if requests.tables else ""


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
