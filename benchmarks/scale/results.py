"""The figures of ``make bench-scale`` as a JSON file, from which the page of the documentation is made."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.accounting import ROOT
from benchmarks.results import Machine, Strict, load_as

VERSION = 1
KEPT = ROOT / "benchmarks" / "results" / "scale.json"
"""The results that the documentation shows."""

UNCHANGED = "a run, tables that did not change"
CHANGED = "a run, the table that changed"
"""The works among the requests that the formula on the page takes."""


class Cost(Strict):
    """A process with all that it has started."""

    seconds: float
    cpu_s: float
    peak_mb: float | None = None


class Captures(Strict):
    """The captures, each a process of its own."""

    count: int
    start_s: float
    """Until all of them read the source."""
    start_cpu_s: float
    """CPU seconds of one capture, from its start to its first idle second."""
    mb: float
    """Memory of one capture, as PSS."""
    source_mb: float
    """Memory of the database server, as RSS."""


class Parsing(Strict):
    """A DAG file that Airflow parses."""

    file: str
    dags: int
    cpu_s: float
    """Without the import of Airflow."""


class Start(Strict):
    """The start of an Airflow with all DAGs."""

    dags: int
    ready_s: float
    """Until Airflow knows all of them."""
    cpu_s: float


class Burst(Strict):
    """Runs of all destinations that begin at once."""

    runs: int
    seconds: float
    cpu_s: float
    """The usage of all processes of Airflow, less than those that it uses anyway."""


class Share(Strict):
    """A part of the whole during a window of time."""

    part: str
    processes: int
    cpu_percent: float
    """Share of one core."""
    mb: float
    """Memory at the end of the window, as PSS."""


class Window(Strict):
    """A window of time with all parts running."""

    seconds: float
    shares: tuple[Share, ...]
    slots_most: int
    """The most slots of workers that were taken or waited for at once."""
    slots_mean: float
    deferred: int
    """Tasks that waited in the triggerer."""

    def share(self, part: str) -> Share:
        return next(share for share in self.shares if share.part == part)


class Traffic(Strict):
    """The window with traffic on some destinations."""

    window: Window
    destinations: int
    transactions: int
    runs: int
    latency_median_s: float
    """From the commit at the source to the commit of the Delta table."""
    latency_most_s: float
    latency_least_s: float
    steps: dict[str, float]
    """Median seconds of the steps of that way."""


class Waiting(Strict):
    """Destinations at a server that triggers watch."""

    date: str
    destinations: int
    seconds: float
    """Duration of the look while nothing changed."""
    server_percent: float
    """Share of one core, while nothing changed."""
    triggers_percent: float
    server_mb: float
    """Memory of the server, as PSS."""
    connections: int
    """From the process that runs the triggers to the server."""
    requests_per_minute: float
    changes: int
    latency_median_s: float
    """From a transaction that is visible in its store to the event of the trigger."""
    latency_most_s: float


class Whole(Strict):
    """One destination with all tables, and one with its share of them."""

    tables: int
    few_tables: int
    status: Cost
    few_status: Cost
    page_s: float
    """The page of all destinations."""
    apply: Cost
    """``cdc apply`` of a batch that changes one table."""
    few_apply: Cost
    nothing: Cost
    """``cdc apply`` that finds nothing."""
    few_nothing: Cost
    warm_apply_s: float
    """The merge of such a batch in a process that has merged before."""
    new_tables: int
    """Tables that Spark has created in one batch,"""
    new_tables_s: float
    """and the seconds that it took."""
    ddl_s: float
    """Until capture has stored one ALTER TABLE."""
    meta_bytes: int
    few_meta_bytes: int
    schemas_bytes: int
    """A file of table schemas; each DDL statement writes one."""
    few_schemas_bytes: int
    transaction_bytes: float
    """The store's segments and indexes for a transaction with one row."""
    manifest_bytes: int
    """The manifest of a batch that changes one table."""
    lake_bytes: float
    """A Delta table after its creation."""


class Requests(Strict):
    """Requests to the object store, by method."""

    work: str
    tables: int
    counts: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.counts.values())


class Results(Strict):
    """One run."""

    version: int = VERSION
    date: str
    seconds: float
    machine: Machine
    versions: dict[str, str]
    destinations: int
    tables: int
    """Of each destination."""
    captures: Captures
    parsing: tuple[Parsing, ...]
    start: Start
    watches: Burst
    """The first runs of the capture DAGs, which watch captures from the triggerer."""
    empty_runs: Burst
    """Runs of the apply DAGs that find nothing."""
    idle: Window
    traffic: Traffic
    waiting: Waiting | None = None
    """None in files of earlier runs."""
    whole: Whole
    requests: tuple[Requests, ...]


def render(results: Results) -> str:
    return json.dumps(results.model_dump(), indent=2, ensure_ascii=False) + "\n"


def load(file: Path) -> Results:
    """Reads a file of results. Raises ResultsError for a newer version and for anything unknown."""
    return load_as(Results, file, VERSION)
