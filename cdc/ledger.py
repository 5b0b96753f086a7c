"""The ledger: whether the commits of the Delta tables hold every change, once.

Each commit of ours names its batch: the transactions in (``after_seq``, ``last_seq``]. A table has a commit only of the
batches that changed it, so the chain is joined over all tables and over the manifests of the acked batches: behind each
batch comes one whose ``after_seq`` is reached already. Where the chain is broken something was never handed out. The
store's beginning, which each commit carries, tells a broken chain from batches whose manifests were removed long ago.

Delta removes old commits. What came before those that are left is proved by the meta's record of the table: it says up
to which seq the table had everything when that was acked. ``docs/formats/user_metadata.md`` has the rules.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cdc.batches.manifest import Manifest
    from cdc.meta.state import Gap, TableRecord


@dataclass(frozen=True)
class Commit:
    """An entry of a table's ledger."""

    version: int
    batch: int
    epoch: int
    server_uuid: str
    first_seq: int
    """The table's applied position before, exclusive."""
    after_seq: int
    """Where the batch begins, exclusive. Entries of format version 1 lack it: then ``first_seq``."""
    last_seq: int
    store_begins: int | None
    generation: int


@dataclass(frozen=True)
class Table:
    """What is known of one table."""

    commits: Sequence[Commit]
    """Those of its generation that Delta still has, oldest first."""
    applied_seq: int
    since_seq: int
    """Where the table was made."""
    whole: bool
    """Delta still has all commits of the table."""
    record: TableRecord | None = None
    """The meta's."""


@dataclass
class Report:
    """The ledger of one table; ``faults`` has a sentence for each thing that is wrong."""

    entries: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """(exclusive, inclusive) seqs that are missing, and that nobody has accepted."""
    accepted: list[tuple[int, int]] = field(default_factory=list)
    """Such gaps that an operator has accepted."""
    faults: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.faults


def read_commits(history: Iterable[Mapping[str, Any]], destination: str, table: str, generation: int) -> list[Commit]:
    """The entries in a Delta table's history (``DeltaTable.history()``), oldest first; commits of others are passed
    over."""
    found = []
    for commit in history:
        try:
            entry: Any = json.loads(commit.get("userMetadata") or "null")
        except json.JSONDecodeError:
            continue  # somebody else's
        if not isinstance(entry, dict) or (entry.get("destination"), entry.get("table")) != (destination, table):
            continue
        if int(entry.get("generation", 0)) != generation:
            continue
        found.append(
            Commit(
                version=int(commit["version"]),
                batch=int(entry["batch"]),
                epoch=int(entry["epoch"]),
                server_uuid=str(entry["server_uuid"]),
                first_seq=int(entry["first_seq"]),
                after_seq=int(entry["after_seq" if "after_seq" in entry else "first_seq"]),
                last_seq=int(entry["last_seq"]),
                store_begins=entry.get("store_begins"),
                generation=generation,
            )
        )
    return sorted(found, key=lambda commit: commit.version)


class Ledger:
    """All tables of a destination, and its acked batches as far as their manifests are kept."""

    def __init__(self, tables: Mapping[str, Table], acked: Iterable[Manifest] = (), gaps: Iterable[Gap] = ()) -> None:
        self._tables = tables
        self._acked = sorted(acked, key=lambda manifest: manifest.batch)
        self._gaps = list(gaps)
        self._oldest = min((m.after_seq for m in self._acked), default=None)
        ranges = {(m.after_seq, m.last_seq) for m in self._acked}
        ranges |= {(c.after_seq, c.last_seq) for table in tables.values() for c in table.commits}
        self._ranges = sorted(ranges)

    def check(self) -> dict[str, Report]:
        """A report for each table."""
        return {name: self._check(name, table) for name, table in self._tables.items()}

    def _check(self, name: str, table: Table) -> Report:
        report = Report(entries=len(table.commits))
        start = reached = self._proved(name, table, report)
        previous: Commit | None = None
        for commit in table.commits:
            self._require_same_history(name, previous, commit, report)
            previous = commit
            if commit.last_seq <= reached:
                report.faults.append(
                    f"{name}: batch {commit.batch} ends at {commit.last_seq}, which was reached before"
                )
            if commit.first_seq > reached:
                self._missing(name, reached, commit.first_seq, report)
            elif commit.after_seq > reached:
                self._require_chain(name, reached, commit, report)
            reached = max(reached, commit.last_seq)
        if table.applied_seq > reached:
            self._missing(name, reached, table.applied_seq, report)
        self._require_merged(name, table, start, report)
        return report

    def _proved(self, name: str, table: Table, report: Report) -> int:
        """Up to where the commits that are left need not tell: where the table was made; or, where Delta has removed
        the oldest commits, the position that the first one left found, if the meta has it on record."""
        if table.whole:
            return table.since_seq
        record = table.since_seq if table.record is None else table.record.applied_seq
        if not table.commits:
            return max(table.since_seq, record)
        found = table.commits[0].first_seq
        if record < found:
            self._missing(name, record, found, report)
        # The batches between that position and the first commit left were acked, or they would not be behind it.
        return max(found, min(table.commits[0].after_seq, record))

    def _require_same_history(self, name: str, previous: Commit | None, commit: Commit, report: Report) -> None:
        if previous is None:
            return
        if commit.epoch < previous.epoch:
            report.faults.append(f"{name}: batch {commit.batch} is of epoch {commit.epoch}, behind {previous.epoch}")
        if commit.epoch == previous.epoch and commit.server_uuid != previous.server_uuid:
            report.faults.append(
                f"{name}: batch {commit.batch} is of server {commit.server_uuid}, behind {previous.server_uuid}"
            )

    def _require_chain(self, name: str, reached: int, commit: Commit, report: Report) -> None:
        """Is every transaction between the table's position and its next batch in a batch that did not change it?"""
        at = reached
        for after_seq, last_seq in self._ranges:
            if after_seq > at:
                if after_seq >= commit.after_seq:
                    break
                at = self._hole(name, at, after_seq, commit, report)
            at = max(at, last_seq)
            if at >= commit.after_seq:
                return
        self._hole(name, at, commit.after_seq, commit, report)

    def _hole(self, name: str, after_seq: int, until_seq: int, commit: Commit, report: Report) -> int:
        """No batch is known for these transactions. Their manifests may have been removed: then the store that the
        commit came from held them."""
        is_kept = self._oldest is not None and after_seq >= self._oldest
        begins = commit.store_begins
        if is_kept or begins is None or begins > after_seq:
            self._missing(name, after_seq, until_seq, report)
        return until_seq

    def _missing(self, name: str, after_seq: int, until_seq: int, report: Report, why: str = "") -> None:
        if any(gap.covers(after_seq, until_seq, name) for gap in self._gaps):
            report.accepted.append((after_seq, until_seq))
            return
        report.gaps.append((after_seq, until_seq))
        report.faults.append(f"{name}: nothing proves what was applied between {after_seq} and {until_seq}{why}")

    def _require_merged(self, name: str, table: Table, start: int, report: Report) -> None:
        """Each acked batch that changed the table has left a commit of it, or found its changes there."""
        for manifest in self._acked:
            if manifest.acked is None or _covers(table.commits, start, manifest.after_seq, manifest.last_seq):
                continue
            results = {result.table: result for result in manifest.acked.tables}
            by_hand = not results and manifest.row_events > 0 and name in manifest.tables
            if by_hand or (name in results and (results[name].applied_seq or 0) > 0):
                how = "by hand" if by_hand else "with its changes"
                self._missing(
                    name, manifest.after_seq, manifest.last_seq, report, f"; batch {manifest.batch} was acked {how}"
                )


def _covers(commits: Sequence[Commit], reached: int, after_seq: int, last_seq: int) -> bool:
    """Whether the batches of these commits, one or several, hold all of (after_seq, last_seq] behind ``reached``."""
    at = max(reached, after_seq)
    for commit in commits:
        if commit.after_seq <= at < commit.last_seq:
            at = commit.last_seq
    return at >= last_seq
