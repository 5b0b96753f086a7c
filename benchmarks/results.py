"""Results of ``make bench`` as a JSON file, with the machine and the versions that they were measured with.

The file has a ``version``; :func:`load` refuses a newer one, and what it does not know. ``benchmarks/results`` keeps the
file from which ``docs/reference/performance.md`` is made.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Collection
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from benchmarks.accounting import ROOT
from benchmarks.lines import BY_NAME, FULL_ROWS, LINES, REFERENCE_S, Line, Measurement
from cdc import __version__

VERSION = 1
KEPT = ROOT / "benchmarks" / "results" / "bench.json"
"""The results that the documentation shows."""
_PACKAGES = ("pyspark", "delta-spark", "pyarrow", "numpy", "numba")


_Model = TypeVar("_Model", bound=BaseModel)


class ResultsError(Exception):
    """A file of results that cannot be used; the message says why."""


class Strict(BaseModel):
    """A part of a file of results, which refuses what it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Machine(Strict):
    """The machine of the run."""

    cpus: int
    cpu: str
    memory_gb: float
    kernel: str
    load: float
    """The load of the machine when the run began: above 0.5, others have worked beside it."""


class Results(Strict):
    """One run."""

    version: int = VERSION
    date: str
    rows: int
    """The rows of a line that says a million."""
    rounds: int
    accounting: str
    """The method by which CPU seconds were counted: ``cgroup`` or ``sampled``, see :mod:`benchmarks.accounting`."""
    seconds: float
    machine: Machine
    versions: dict[str, str]
    lines: tuple[Measurement, ...]

    def measurements(self) -> dict[str, Measurement]:
        return {line.line: line for line in self.lines}

    def pace(self) -> float | None:
        """Returns how many times as long the machine took as the one for which goals in seconds are meant, by Spark's
        own writing of the rows. None if that was not measured with all rows."""
        own = self.measurements().get("inserts")
        return None if own is None or own.other_s is None or self.rows != FULL_ROWS else own.other_s / REFERENCE_S

    def lines_here(self) -> list[Line]:
        """Returns all lines with the goals of this machine."""
        pace = self.pace()
        return list(LINES) if pace is None else [line.at_pace(pace) for line in LINES]


def render(results: Results) -> str:
    return json.dumps(results.model_dump(), indent=2, ensure_ascii=False) + "\n"


def load(file: Path) -> Results:
    """Reads a file of results. Raises ResultsError for a newer version and for anything unknown."""
    return load_as(Results, file, VERSION)


def load_as(model: type[_Model], file: Path, newest: int) -> _Model:
    """Reads a file of results of one kind; ``newest`` is the version that is known. Raises ResultsError for a newer
    version and for anything unknown."""
    try:
        document: Any = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ResultsError(f"{file} cannot be read: {error}") from None
    except ValueError as error:
        raise ResultsError(f"{file} cannot be read, since it is no JSON: {error}") from None
    version = document.get("version") if isinstance(document, dict) else None
    if not isinstance(version, int) or not 1 <= version <= newest:
        raise ResultsError(f"{file} is of format version {version}, and this checkout knows up to {newest}: update it")
    try:
        return model.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ResultsError(f"{file}: {place}: {first['msg']}") from None


def make(
    measurements: list[Measurement], *, rows: int, rounds: int, accounting: str, seconds: float, machine: Machine
) -> Results:
    """Returns the results of a run that ends now."""
    return Results(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        rows=rows,
        rounds=rounds,
        accounting=accounting,
        seconds=round(seconds, 1),
        machine=machine,
        versions=current_versions(),
        lines=tuple(Measurement(**rounded(asdict(measurement))) for measurement in measurements),
    )


def refuse_partial(old: Results | None, lines: Collection[str], rows: int) -> None:
    """Raises ResultsError if a run of these lines cannot be added to the kept results: all lines of the page have the
    same rows and versions."""
    if old is None or set(lines) >= {line.line for line in old.lines}:
        return
    now = current_versions()
    different = sorted(name for name in {*now, *old.versions} if now.get(name) != old.versions.get(name))
    if old.rows != rows:
        different.append("rows")
    if different:
        raise ResultsError(
            f"the kept results differ in {', '.join(different)}: measure all lines, or write these with --json only"
        )


def merged(old: Results | None, new: Results) -> Results:
    """Returns the new results with the old ones of lines that the new run left out; see :func:`refuse_partial`."""
    lines = {line.line: line for line in new.lines}
    if old is None or lines.keys() >= {line.line for line in old.lines}:
        return new
    lines = {line.line: line for line in old.lines} | lines
    return old.model_copy(update={"lines": tuple(lines[name] for name in BY_NAME if name in lines)})


def this_machine() -> Machine:
    """Describes the machine, as it is now."""
    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in cpuinfo if line.startswith("model name")]
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Machine(
        cpus=os.cpu_count() or 1,
        cpu=names[0] if names else platform.machine(),
        memory_gb=round(pages / 1e9, 1),
        kernel=platform.release(),
        load=round(os.getloadavg()[0], 2),
    )


def current_versions(*more: str) -> dict[str, str]:
    """Returns the versions of Towpath, Python, Java and packages. ``more``: names of further packages."""
    versions = {"towpath": __version__, "commit": _commit(), "python": platform.python_version()}
    for name in (*_PACKAGES, *more):
        versions[name] = metadata.version(name)
    java = os.environ.get("JAVA_HOME")
    command = [f"{java}/bin/java" if java else "java", "-version"]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        versions["java"] = shown.split('"')[1]
    except (OSError, subprocess.CalledProcessError, IndexError):
        versions["java"] = "none"
    return versions


def _commit() -> str:
    """Returns the checkout's commit, with a plus sign if tracked files were changed; "unknown" outside of git."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--exclude=*", "--dirty=+"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return described.stdout.strip()


def rounded(value: Any) -> Any:
    """Returns a value of JSON with all numbers to three places."""
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return round(value, 3) if isinstance(value, float) else value
