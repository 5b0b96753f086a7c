"""The lines of ``make bench``: what each measures, and what must hold. Their figures are :class:`Measurement`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from pydantic import ConfigDict, field_validator
from pydantic.dataclasses import dataclass as checked_dataclass

Unit = Literal["×", "s", "GB", "CPU s", "changes/s"]
FULL_ROWS = 1_000_000
"""The rows for which the goals are meant."""
REFERENCE_S = 2.4
"""The seconds in which Spark itself writes :data:`FULL_ROWS` rows from Parquet into Delta on the machine for which the
goals in seconds are meant."""


@dataclass(frozen=True)
class Line:
    """One line of the table."""

    name: str
    group: str
    """Lines of one group are measured by one process, with the same data."""
    work: str
    unit: Unit
    wanted: float | None
    """None: the figure is a price that is shown, without a goal."""
    at_most: bool = True
    """Whether the figure has to be at most what is wanted, else at least."""

    def holds(self, value: float) -> bool:
        """Returns whether a figure is what is wanted; every figure is if there is no goal."""
        if self.wanted is None:
            return True
        return value <= self.wanted if self.at_most else value >= self.wanted

    def at_pace(self, pace: float) -> Line:
        """Returns the line with the goals of a machine that takes ``pace`` times as long as the one for which they are
        meant. Ratios and memory stay as they are."""
        if self.unit not in ("s", "CPU s", "changes/s"):
            return self
        factor = 1 / pace if self.unit == "changes/s" else pace
        return replace(self, wanted=None if self.wanted is None else self.wanted * factor)

    def goal(self) -> str:
        """Returns what is wanted, like ``≤ 1.70 ×``."""
        return "" if self.wanted is None else f"{'≤' if self.at_most else '≥'} {shown(self.wanted, self.unit)}"

    def title(self, rows: int) -> str:
        """Returns the work, with the numbers of rows of a run that took ``rows`` for a million."""
        numbers = {name: _short(rows * factor) for name, factor in _FACTORS.items()}
        return self.work.format(**numbers)


_FACTORS = {"rows": 1.0, "five": 5.0, "half": 0.5, "ten": 10.0, "percent": 0.01, "quarter": 0.25}


def _short(count: float) -> str:
    """Returns 1 M for 1,000,000, and 20,000 for 20,000."""
    return f"{count / 1e6:g} M" if count >= 500_000 else f"{count:,.0f}"


def shown(value: float, unit: Unit) -> str:
    """Returns a figure with its unit."""
    if unit == "×":
        return f"{value:.2f} ×"
    if unit == "changes/s":
        return f"{value:,.0f}/s"
    return f"{value:.1f} {unit}" if value >= 10 else f"{value:.2f} {unit}"


LINES = (
    Line("inserts", "warm", "{rows} inserts, store to Delta, warm: time against Spark's own Parquet to Delta of the same "
         "rows", "×", 0.7),
    Line("updates", "warm", "{rows} updates, warm: time against the same", "×", 1.1),
    Line("inserts-cold", "inserts-cold", "{rows} inserts, store to Delta, cold process: time against a bare Spark process "
         "that writes the same rows from Parquet", "×", 1.2),
    Line("ten-cold", "ten", "1,000 changes in ten tables, cold process: time against a bare Spark process with one query "
         "of a Delta table", "×", 1.5),
    Line("ten-cold-memory", "ten", "the same: peak memory of all processes", "GB", 1.8),
    Line("ten-connect", "ten", "1,000 changes in ten tables, whole process, on a warm Connect server", "s", 2.5),
    Line("ten-deltalake", "ten", "1,000 changes in ten tables, cold process, small batches by delta-rs", "s", 2.0),
    Line("wide-upsert", "wide", "72 changes in ten tables of 25 columns, store to Delta, warm", "s", 1.5),
    Line("wide-scd2", "wide", "the same in mode scd2", "s", 2.5),
    Line("migration", "migration", "150 CREATE TABLE with three rows each and 30 ALTER TABLE, store to Delta, cold process",
         "s", 60.0),
    Line("scattered", "scattered", "{percent} scattered updates: time in {five} rows against {half} rows", "×", 1.15),
    Line("binlog", "warm", "{rows} inserts, binlog to Delta, warm: time against Debezium, tuned, reading them into nothing",
         "×", 0.5),
    Line("cpu", "warm", "CPU seconds for a million inserts, binlog to Delta, warm", "CPU s", 2.5),
    Line("transactions", "transactions", "{rows} transactions of one row in ten tables (20 % inserts, 60 % updates, 20 % "
         "deletes), binlog to Delta, warm", "changes/s", 120_000, at_most=False),
    Line("capture-large", "capture", "cdc capture, whole process, transactions of 5,000 rows: speed against connector-java "
         "counting rows", "×", 1.8, at_most=False),
    Line("capture-small", "capture", "cdc capture, whole process, transactions of one and two rows: speed against the same",
         "×", 2.5, at_most=False),
    Line("first-start", "first-start", "cdc capture on a machine whose cache of kernels is empty, up to the first event", "s",
         3.0),
    Line("snapshot", "snapshot", "cdc snapshot of {rows} rows into Delta: speed against mariadb-dump into a file", "×", 1.2,
         at_most=False),
    Line("snapshot-jdbc", "jdbc", "the same: speed against spark.read.jdbc with partitions into Delta", "×", 5.0,
         at_most=False),
    Line("replay", "warm", "replay of {rows} inserts and {rows} updates: speed against their first apply", "×", 1.3,
         at_most=False),
    Line("encrypted-capture", "encryption", "cdc capture of {rows} inserts into an encrypted store: CPU seconds against one "
         "without encryption", "×", None),
    Line("encrypted-decode", "encryption", "decoding of {rows} inserts from an encrypted store: CPU seconds against the same",
         "×", None),
    Line("verify", "verify", "cdc verify of {ten} rows: time against one scan of the slower side", "×", 1.3),
)  # fmt: skip
BY_NAME = {line.name: line for line in LINES}
GROUPS = tuple(dict.fromkeys(line.group for line in LINES))


@dataclass(frozen=True)
class Options:
    """Rows, rounds and cores of a measurement."""

    rows: int
    """The rows of a line that says a million."""
    rounds: int
    cores: int


@checked_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Measurement:
    """The result of a run for a line: a figure, or the reason why it is missing. Files of results have it as it is."""

    line: str
    value: float | None = None
    ours_s: float | None = None
    """The seconds of Towpath: the median of the rounds."""
    other_s: float | None = None
    """The seconds of the other side of a ratio."""
    cpu_s: float | None = None
    """CPU seconds of Towpath's whole tree of processes in one round."""
    peak_mb: float | None = None
    """The most memory (PSS) of that tree."""
    floor: float | None = None
    """The figure of a program that does only what the line cannot do without; see the page."""
    note: str = ""
    skipped: str | None = None
    """Why this machine has no figure, as a sentence."""

    @field_validator("line")
    @classmethod
    def _is_known(cls, line: str) -> str:
        if line not in BY_NAME:
            raise ValueError(f"{line!r} is no line of benchmarks/lines.py")
        return line


def verdict(line: Line, measurement: Measurement | None) -> str:
    """Returns whether the line holds, as a word."""
    if measurement is None:
        return "not run"
    if measurement.value is None:
        return "skipped"
    if line.wanted is None:
        return ""
    return "held" if line.holds(measurement.value) else "not held"
