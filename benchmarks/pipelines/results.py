"""The figures of ``make bench-pipelines`` as a JSON file, from which the page of the documentation is made."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.accounting import ROOT
from benchmarks.results import Machine, Strict, load_as

VERSION = 1
KEPT = ROOT / "benchmarks" / "results" / "pipelines.json"
"""The results that the documentation shows."""


class Work(Strict):
    """A piece of work of all processes of a pipeline, without the database."""

    rows: int
    seconds: float
    cpu_s: float
    peak_mb: float
    """As PSS."""
    written_mb: float
    """Bytes that its processes wrote to disks."""

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds


class Commits(Strict):
    """Single commits, from the commit to the readable row."""

    count: int
    median_s: float
    most_s: float


class Faults(Strict):
    """The target after SIGKILLs and an ALTER TABLE ADD COLUMN in the middle of traffic."""

    recoveries_s: dict[str, float | None]
    """The services that were killed with SIGKILL, each once, with the time until a row that was committed after that
    was readable; None if it was not within the time limit, and for copies, which are begun again by hand."""
    restarts: int
    """Services that ended by themselves and were started again; for copies, a second one after the SIGKILL, which is
    made if the first one differs from the source."""
    transactions: int
    """Transactions of the traffic."""
    settled_s: float | None
    """From the end of the traffic until the target equalled the source; None if it did not within the time limit."""
    rows: int
    """Rows of the source at the end."""
    missing: int
    wrong: int
    extra: int
    new_column: bool
    columns: tuple[str, ...] = ()
    """The columns in which wrong rows differ from the source."""


class Measured(Strict):
    """One pipeline."""

    name: str
    load_average: float
    """The load of the machine before this pipeline began."""
    versions: dict[str, str]
    lines: int
    """Lines of files and commands that a user writes."""
    processes: int
    """Processes in operation, or during a copy."""
    load: Work
    commits: Commits
    cold_commits: Commits | None = None
    """For Towpath: with a ``cdc apply`` that is started after each commit."""
    backlog: Work
    faults: Faults


class Results(Strict):
    """One run."""

    version: int = VERSION
    date: str
    seconds: float
    machine: Machine
    versions: dict[str, str]
    rows: int
    """Rows of the table when a pipeline begins."""
    changes: int
    """Changes of the backlog, half of them inserts and half updates."""
    pipelines: tuple[Measured, ...]
    skipped: dict[str, str]
    """Pipelines that were not measured, and why."""


def render(results: Results) -> str:
    return json.dumps(results.model_dump(), indent=2, ensure_ascii=False) + "\n"


def load(file: Path) -> Results:
    """Reads a file of results. Raises ResultsError for a newer version and for anything unknown."""
    return load_as(Results, file, VERSION)
