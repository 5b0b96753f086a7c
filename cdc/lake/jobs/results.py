"""The results of jobs on single tables. They are also read where there is no Spark."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from cdc.batches.manifest import TableResult


@dataclass
class CatchUp:
    """The result of a catch-up."""

    table: str
    level_seq: int
    """The table has all changes up to this seq."""
    batches: int = 0
    row_events: int = 0
    bytes: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    seconds: float = 0.0

    def add(self, results: list[TableResult], row_events: int, size: int) -> None:
        """Adds the results of one batch."""
        self.batches += 1
        self.row_events += row_events
        self.bytes += size
        for result in results:
            self.inserted += result.inserted
            self.updated += result.updated
            self.deleted += result.deleted
            self.seconds += result.seconds


@dataclass(frozen=True)
class ReplayResult:
    """A table that was built again; the keys of ``cdc replay --json``."""

    table: str
    rows: int
    """Row events that were applied, and rows of the snapshot that the replay began with."""
    bytes: int
    chunks: int
    """Batches."""
    seconds: float
    first_seq: int
    last_seq: int
    path: str
    """The URI of the Delta table."""
    differed: int | None = None
    """Of a part of the table: the keys whose rows differed from those in the store; None: the whole table."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class SnapshotResult:
    """A table that was filled; the keys of ``cdc snapshot --json``."""

    table: str
    rows: int
    bytes: int
    chunks: int
    seconds: float
    first_seq: int
    """Every row was read after this position."""
    last_seq: int
    """The position at which the table equalled the source, before the catch-up."""
    changes: int
    """Row events of this table that were applied after it."""
    applied_seq: int
    """The table's position now."""
    reread: int = 0
    """The number of times that the snapshot began anew."""
    columns: tuple[str, ...] | list[str] | None = None
    """The source's names of the columns that were read beside the key; empty: a killed process had read and merged them
    before; None: all columns."""
    differed: int | None = None
    """Of a part of the table: the keys whose rows differed from the source's; None: the whole table was filled."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class RowDiff:
    """A row that differs between two transactions. Values are texts, bytes in hexadecimal digits."""

    kind: Literal["insert", "update", "delete"]
    key: dict[str, str | None]
    before: dict[str, str | None] | None
    """The whole row, or the columns that an update changed; None for an insert."""
    after: dict[str, str | None] | None
    """None for a delete."""


@dataclass(frozen=True)
class TableDiff:
    """How a table differs between two transactions."""

    table: str
    mode: str
    before_seq: int
    after_seq: int
    inserted: int
    updated: int
    deleted: int
    columns: dict[str, int]
    """The number of updated rows in which each column differs."""
    only_before: list[str]
    """Columns that the table has as of the first point only. They are not compared."""
    only_after: list[str]
    rows: list[RowDiff]
    """Some of the rows, in the order of their keys."""

    def as_dict(self) -> dict[str, Any]:
        """Returns the result as JSON."""
        return asdict(self)


@dataclass(frozen=True)
class ChangedColumn:
    """A column that gets another policy."""

    column: str
    """The source's name."""
    was: str
    """The policy by which the lake has it."""
    now: str
    """That of the configuration."""


@dataclass(frozen=True)
class Remains:
    """A place that still has values which the new policy hides."""

    what: str
    place: str
    until: str
    """When they go, or what removes them, as a sentence."""


@dataclass(frozen=True)
class TableRemask:
    """A table whose values in the lake do not have the policies of the configuration; the keys of ``cdc remask
    --json``."""

    table: str
    columns: list[ChangedColumn]
    way: Literal["lake", "store", "source"] | None
    """Where the new values come from: the present rows in the lake, the store by a replay, the source by a snapshot;
    None if there is no way."""
    why: list[str]
    """Why they do not come from the lake, or why there is no way, as clauses."""
    remains: list[Remains]
    done: bool = False
    """Whether the table was rewritten."""
    seconds: float = 0.0
    delta_version: int | None = None
    """The version of the Delta table afterwards."""
    applied_seq: int | None = None
    files_deleted: int | None = None
    """Files that VACUUM has deleted; None if it did not run."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class AdoptedColumn:
    """A column of another tool's table that does not stay as it is."""

    column: str
    """The name in the Delta table."""
    was: str | None
    """Its type; None: it is added."""
    now: str | None
    """Its type afterwards; None: it is dropped."""
    action: str
    """What is done with it, and why."""


@dataclass(frozen=True)
class TableAdoption:
    """A Delta table of another tool that is taken over; the keys of ``cdc adopt --json``."""

    table: str
    path: str
    columns: list[AdoptedColumn]
    rewritten: bool
    """Whether its rows are written anew, because a column is converted."""
    ranges: int | None = None
    """Parts of the table that were compared; None: it was not compared."""
    differing: int | None = None
    """Ranges whose rows differ from those of the source."""
    rows: int | None = None
    """Rows at the source."""
    read: int = 0
    """Rows that were read from the source."""
    repaired: int = 0
    """Keys whose rows differed, and were written."""
    not_compared: str | None = None
    """Why there was no comparison, as a clause."""
    done: bool = False
    """Whether the table was taken over."""
    seconds: float = 0.0
    version_before: int | None = None
    """The last version of the other tool."""
    delta_version: int | None = None
    applied_seq: int | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
