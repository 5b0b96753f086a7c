"""The figures of ``make bench-day``, and the page and the picture that are made from them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from statistics import median

from benchmarks.markdown import bullets, table, text
from benchmarks.results import Machine, Strict

VERSION = 1
LEAST_MINUTES = 120
"""A shorter run is not judged: what it keeps for twenty minutes is not level in its second quarter."""
_MOST_GROWTH = 1.25
"""The median of the last quarter against that of the second one, for a curve that counts as level."""


class Sample(Strict):
    """A look at the destination."""

    minute: float
    changes: int
    """Changes of rows that the shop has committed so far."""
    lag_s: float
    capture_mb: float
    apply_mb: float
    """The most memory of an apply since the sample before; 0 if none ran."""
    apply_s: float
    """The time of the last apply."""
    cpu_s: float
    """CPU seconds of all commands so far."""
    store_mb: float
    store_files: int
    meta_mb: float
    meta_files: int
    lake_mb: float
    lake_files: int
    log_files: int
    """Files of the Delta tables' logs."""


class Event(Strict):
    minute: float
    kind: str
    text: str


class Results(Strict):
    """One run."""

    version: int = VERSION
    date: str
    minutes: float
    rate: int
    machine: Machine
    versions: dict[str, str]
    proved: bool
    """Whether `cdc verify` proved everything at the end."""
    failures: tuple[str, ...]
    samples: tuple[Sample, ...]
    events: tuple[Event, ...]


@dataclass(frozen=True)
class Curve:
    """A figure over the time, which must not grow."""

    name: str
    title: str
    unit: str
    level_later: str = ""
    """Why it grows for longer than the run, as a sentence: then it is shown, and not judged."""


_VACUUM = (
    "VACUUM keeps the files of all versions that transactions of the store can be read as of, with an hour more, and counts "
    "whole hours: two hours here, as long as the run."
)
_MANIFESTS = "The meta keeps the manifests of the last 1,000 batches."
_LOGS = "Delta removes commits from its log by whole days."
CURVES = (
    Curve("lag_s", "lag of the Delta tables", "s"),
    Curve("capture_mb", "memory of capture", "MB"),
    Curve("apply_mb", "memory of an apply, at its peak", "MB"),
    Curve("apply_s", "time of an apply, whole process", "s"),
    Curve("store_mb", "store", "MB"),
    Curve("store_files", "files of the store", ""),
    Curve("meta_mb", "meta", "MB", _MANIFESTS),
    Curve("meta_files", "files of the meta", "", _MANIFESTS),
    Curve("lake_mb", "Delta tables", "MB", _VACUUM),
    Curve("lake_files", "files of the Delta tables", "", _VACUUM),
    Curve("log_files", "files of the Delta logs", "", _LOGS),
)
_LEAST_APPLY_MB = 20
"""Less is that of a process which was looked at only while it started."""


def render(results: Results) -> str:
    return json.dumps(results.model_dump(), indent=1) + "\n"


def _values(results: Results, curve: Curve) -> list[tuple[float, float]]:
    """Returns the minutes and values of a curve, without looks at which nothing ran."""
    points = [(sample.minute, float(getattr(sample, curve.name))) for sample in results.samples]
    if curve.name == "apply_mb":
        return [point for point in points if point[1] >= _LEAST_APPLY_MB]
    return [point for point in points if point[1] or curve.name == "lag_s"]


def quarters(results: Results, curve: Curve) -> tuple[float, float]:
    """Returns the medians of a curve in the second and in the last quarter."""
    points = _values(results, curve)
    quarter = results.minutes / 4
    parts = [[v for m, v in points if first <= m < first + quarter] for first in (quarter, 3 * quarter)]
    early, late = (median(part) if part else 0.0 for part in parts)
    return early, late


def grown(results: Results) -> list[str]:
    """Returns a sentence for each curve that ought to be level and has grown. A lag below a minute counts as level, and
    a run below :data:`LEAST_MINUTES` has none."""
    if results.minutes < LEAST_MINUTES:
        return []
    sentences = []
    for curve in CURVES:
        if curve.level_later:
            continue
        early, late = quarters(results, curve)
        floor = 60.0 if curve.name == "lag_s" else 0.0
        if late > max(floor, early * _MOST_GROWTH):
            sentences.append(f"{curve.title}: {early:.4g} {curve.unit} in the second quarter, {late:.4g} in the last")
    return sentences


def markdown(results: Results, picture: str) -> str:
    """Returns the page. ``picture``: the name of the file with :func:`plot`, beside it."""
    machine, versions, last = results.machine, results.versions, results.samples[-1]
    counts = {kind: sum(event.kind == kind for event in results.events) for kind in ("alter", "kill", "verify")}
    proved = sum(event.kind == "verify" and event.text == "everything is proved" for event in results.events)
    sentences = [*results.failures, *grown(results)]
    rows = []
    for curve in CURVES:
        early, late = quarters(results, curve)
        most = max((value for _, value in _values(results, curve)), default=0.0)
        title = f"{curve.title}{curve.unit and ', ' + curve.unit}"
        rows.append((title, f"{early:,.4g}", f"{late:,.4g}", f"{most:,.4g}"))
    blocks = [
        "# A long run",
        "<!-- Written by `make bench-day`: change benchmarks/day_page.py. -->",
        text(
            "This page shows whether anything grows over a day that should not: memory, files, lag and CPU, for those who "
            "run Towpath for months. `make bench-day` puts what happens in a day into two hours."
        ),
        text(
            f"A shop on MySQL 9 commits {results.rate} changes a second in three tables, for {results.minutes:g} minutes: "
            f"{last.changes:,} changes. Beside it {counts['alter']} ALTERs were executed, {counts['kill']} processes were "
            "killed (capture, a running apply, the server, in turn), the binlog was rotated and purged, segments went ten "
            "minutes after their ack, and `cdc maintain` ran every twenty minutes, with tables that keep old files and "
            f"logs for twenty. `cdc verify` ran {counts['verify']} times and proved everything {proved} times. Batches go to "
            "delta-rs, which has no column mapping: after its first `DROP COLUMN` a table's batches go through Spark, so that "
            "an apply takes a JVM from then on."
        ),
        text(
            f"Measured on {results.date[:10]} with Towpath {versions['towpath']} ({versions['commit']}), deltalake "
            f"{versions['deltalake']} and Python {versions['python']}, on {machine.cpus} CPUs ({machine.cpu}) with "
            f"{machine.memory_gb:.0f} GB, whose load was {machine.load} at the start. All commands together took "
            f"{last.cpu_s / (60 * results.minutes) * 100:.0f} % of a core."
        ),
        f"![Memory, files, lag and time of an apply over the run]({picture})",
        table(("figure", "median, second quarter", "median, last quarter", "most"), rows),
    ]
    if results.minutes < LEAST_MINUTES:
        blocks.append(f"The run was shorter than {LEAST_MINUTES} minutes, so no curve is judged.")
    if sentences:
        blocks.append("Not as wanted:\n\n" + bullets(*sentences))
    later: dict[str, list[str]] = {}
    for curve in CURVES:
        if curve.level_later:
            later.setdefault(curve.level_later, []).append(curve.title)
    blocks.append(
        "These grow for longer than the run, and are not judged:\n\n"
        + bullets(*(f"{', '.join(titles)}: {reason}" for reason, titles in later.items()))
    )
    blocks.append(
        text(
            "A curve counts as level if its median in the last quarter is at most 1.25 times that of the second quarter; a "
            "lag below a minute always does. An apply starts every half minute, so the lag is that long at times. The "
            "command fails if a curve grows, if a verification does not prove everything, or if a command fails that was "
            "not killed."
        )
    )
    return "\n\n".join(blocks) + "\n"


# --- the picture

_WIDTH, _PANEL, _GAP, _LEFT, _COLUMNS = 420, 96, 34, 56, 2
_STYLE = """\
  <style>
    text { font-family: Helvetica, Arial, sans-serif; font-size: 12px; fill: #1b2a33 }
    .small { font-size: 10px; fill: #4a5c66 } .line { stroke: #00897b; stroke-width: 1.3; fill: none }
    .kill { stroke: #bf360c; stroke-width: 0.7; opacity: 0.5 } .alter { stroke: #1565c0; stroke-width: 0.7; opacity: 0.5 }
    .frame { stroke: #dfe6e9; stroke-width: 1; fill: none }
  </style>"""


def plot(results: Results) -> str:
    """Returns an SVG with a small chart for each curve. Red lines are kills, blue ones ALTERs."""
    lines = -(-len(CURVES) // _COLUMNS)
    width, height = _COLUMNS * (_WIDTH + _GAP) + _GAP, lines * (_PANEL + _GAP) + 2 * _GAP
    label = "Memory, files, lag and time of an apply over the run"
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img" aria-label="{label}">'
        ),
        "  <!-- Written by benchmarks/day_page.py. -->",
        _STYLE,
        f'  <rect width="{width}" height="{height}" rx="8" fill="#fbfdfd"/>',
        (
            f'  <text class="small" x="{_GAP}" y="18">red: a process was killed · blue: ALTER TABLE · minutes 0 to '
            f"{results.minutes:g}</text>"
        ),
    ]
    for number, curve in enumerate(CURVES):
        x = _GAP + (number % _COLUMNS) * (_WIDTH + _GAP)
        y = 2 * _GAP - 10 + (number // _COLUMNS) * (_PANEL + _GAP)
        parts += _panel(results, curve, x, y)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(results: Results, curve: Curve, x: int, y: int) -> list[str]:
    points = _values(results, curve)
    most = max((value for _, value in points), default=0.0) or 1.0
    scale = (_WIDTH - _LEFT) / results.minutes

    def at(minute: float) -> float:
        return x + _LEFT + minute * scale

    marks = [
        f'  <path class="{event.kind}" d="M{at(event.minute):.1f} {y}v{_PANEL}"/>'
        for event in results.events
        if event.kind in ("kill", "alter") and event.minute <= results.minutes
    ]
    path = " ".join(
        f"{'L' if n else 'M'}{at(minute):.1f} {y + _PANEL - value / most * (_PANEL - 4):.1f}"
        for n, (minute, value) in enumerate(points)
    )
    return [
        f'  <text x="{x + _LEFT}" y="{y - 5}">{curve.title}</text>',
        f'  <rect class="frame" x="{x + _LEFT}" y="{y}" width="{_WIDTH - _LEFT}" height="{_PANEL}"/>',
        f'  <text class="small" x="{x + _LEFT - 4}" y="{y + 9}" text-anchor="end">{most:,.4g} {curve.unit}</text>',
        f'  <text class="small" x="{x + _LEFT - 4}" y="{y + _PANEL}" text-anchor="end">0</text>',
        *marks,
        f'  <path class="line" d="{path}"/>',
    ]
