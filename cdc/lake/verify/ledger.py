"""The ledger: checks whether the commits of the Delta tables hold every change exactly once.

Each of Towpath's commits names its batch: the transactions in (``after_seq``, ``last_seq``]. A table has commits only
of batches that changed it, so the chain is joined over all tables and over the manifests of acked batches: each batch
must begin where an earlier one ended, or before. A gap in the chain means that transactions were never handed out,
unless only their manifests were removed; the store's beginning in each commit distinguishes the two.

Delta removes old commits. For those, the meta's record of the table proves up to which seq the table had everything at
its last ack. ``docs/formats/user_metadata.md`` has the rules.
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
class LedgerEntry:
    """A commit of a Delta table, as its metadata describe it."""

    version: int
    batch: int
    epoch: int
    server_uuid: str
    first_seq: int
    """The table's applied position before the commit, exclusive."""
    after_seq: int
    """The seq after which the batch begins; ``first_seq`` for entries of format version 1, which lack it."""
    last_seq: int
    store_begins: int | None
    generation: int
    rebuild: str | None = None
    """``snapshot`` or ``replay`` if the commit made the table anew: it then had everything up to ``last_seq``."""


@dataclass(frozen=True)
class TableCommits:
    """The commits and records of one table."""

    commits: Sequence[LedgerEntry]
    """The commits of its generation that Delta still has, oldest first."""
    applied_seq: int
    since_seq: int
    """The seq at which the table was created."""
    whole: bool
    """Whether Delta still has all commits of the table."""
    record: TableRecord | None = None
    """The meta's record of the table."""
    parked: bool = False
    """Whether apply leaves the table out at present, so that its changes wait in the store."""


@dataclass
class LedgerReport:
    """The check of one table; ``faults`` has a sentence for each fault."""

    entries: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """Missing ranges of seqs (exclusive, inclusive) that were not accepted."""
    accepted: list[tuple[int, int]] = field(default_factory=list)
    """Missing ranges that an operator has accepted."""
    faults: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether there are no faults."""
        return not self.faults


def read_commits(
    history: Iterable[Mapping[str, Any]], destination: str, table: str, generation: int
) -> list[LedgerEntry]:
    """Returns the entries in a Delta table's history (``DeltaTable.history()``), oldest first. Commits of other writers
    are ignored."""
    commits = []
    for commit in history:
        try:
            entry: Any = json.loads(commit.get("userMetadata") or "null")
        except json.JSONDecodeError:
            continue  # the commit of another writer
        if not isinstance(entry, dict) or (entry.get("destination"), entry.get("table")) != (destination, table):
            continue
        if int(entry.get("generation", 0)) != generation:
            continue
        commits.append(
            LedgerEntry(
                version=int(commit["version"]),
                batch=int(entry["batch"]),
                epoch=int(entry["epoch"]),
                server_uuid=str(entry["server_uuid"]),
                first_seq=int(entry["first_seq"]),
                after_seq=int(entry["after_seq" if "after_seq" in entry else "first_seq"]),
                last_seq=int(entry["last_seq"]),
                store_begins=entry.get("store_begins"),
                generation=generation,
                rebuild=_rebuild(entry),
            )
        )
    return sorted(commits, key=lambda commit: commit.version)


def _rebuild(entry: Mapping[str, Any]) -> str | None:
    rebuild = entry.get("rebuild")
    return str(rebuild.get("kind")) if isinstance(rebuild, dict) else None


class Ledger:
    """The tables of a destination, and its acked batches whose manifests are kept."""

    def __init__(
        self, tables: Mapping[str, TableCommits], acked: Iterable[Manifest] = (), gaps: Iterable[Gap] = ()
    ) -> None:
        self._tables = tables
        self._acked = sorted(acked, key=lambda manifest: manifest.batch)
        self._gaps = list(gaps)
        self._oldest = min((m.after_seq for m in self._acked), default=None)
        ranges = {(m.after_seq, m.last_seq) for m in self._acked}
        ranges |= {(c.after_seq, c.last_seq) for table in tables.values() for c in table.commits}
        self._ranges = sorted(ranges)

    def check(self) -> dict[str, LedgerReport]:
        """Returns a report for each table."""
        return {name: self._check(name, table) for name, table in self._tables.items()}

    def _check(self, name: str, table: TableCommits) -> LedgerReport:
        report = LedgerReport(entries=len(table.commits))
        start = reached = self._proved(name, table, report)
        previous: LedgerEntry | None = None
        for commit in table.commits:
            self._require_same_history(name, previous, commit, report)
            previous = commit
            # The table's earlier content does not matter any more.
            if commit.rebuild is not None or _begins_generation(table, commit):
                reached = commit.last_seq
                continue
            if commit.last_seq <= reached:
                report.faults.append(
                    f"{name}: batch {commit.batch} ends at {commit.last_seq}, which an earlier one had reached"
                )
            if commit.first_seq > reached:
                self._report_missing(name, reached, commit.first_seq, report)
            elif commit.after_seq > reached:
                self._require_chain(name, reached, commit, report)
            reached = max(reached, commit.last_seq)
        if table.applied_seq > reached:
            self._report_missing(name, reached, table.applied_seq, report)
        self._require_merged(name, table, start, report)
        return report

    def _proved(self, name: str, table: TableCommits, report: LedgerReport) -> int:
        """Returns the seq up to which no commit is needed as proof.

        That is where the table was created. If Delta has removed the oldest commits, it is the position at which the
        first remaining one began, if the meta's record reaches it.
        """
        if table.whole:
            return table.since_seq
        record = table.since_seq if table.record is None else table.record.applied_seq
        if not table.commits:
            return max(table.since_seq, record)
        first_seq = table.commits[0].first_seq
        if record < first_seq:
            self._report_missing(name, record, first_seq, report)
        # Batches between that position and the first remaining commit were acked: batches are acked in order.
        return max(first_seq, min(table.commits[0].after_seq, record))

    def _require_same_history(
        self, name: str, previous: LedgerEntry | None, commit: LedgerEntry, report: LedgerReport
    ) -> None:
        if previous is None:
            return
        if commit.epoch < previous.epoch:
            report.faults.append(
                f"{name}: batch {commit.batch} is of epoch {commit.epoch}, after one of epoch {previous.epoch}"
            )
        if commit.epoch == previous.epoch and commit.server_uuid != previous.server_uuid:
            report.faults.append(
                f"{name}: batch {commit.batch} is of server {commit.server_uuid}, after one of server "
                f"{previous.server_uuid}"
            )

    def _require_chain(self, name: str, reached: int, commit: LedgerEntry, report: LedgerReport) -> None:
        """Checks that all transactions between the table's position and its next batch are in batches that did not
        change it."""
        at = reached
        for after_seq, last_seq in self._ranges:
            if after_seq > at:
                if after_seq >= commit.after_seq:
                    break
                at = self._report_hole(name, at, after_seq, commit, report)
            at = max(at, last_seq)
            if at >= commit.after_seq:
                return
        self._report_hole(name, at, commit.after_seq, commit, report)

    def _report_hole(self, name: str, after_seq: int, until_seq: int, commit: LedgerEntry, report: LedgerReport) -> int:
        """Reports transactions without a known batch, unless their manifests were merely removed. In that case the
        store that the commit came from held them. Returns ``until_seq``."""
        is_kept = self._oldest is not None and after_seq >= self._oldest
        begins = commit.store_begins
        if is_kept or begins is None or begins > after_seq:
            self._report_missing(name, after_seq, until_seq, report)
        return until_seq

    def _report_missing(self, name: str, after_seq: int, until_seq: int, report: LedgerReport, why: str = "") -> None:
        if any(gap.covers(after_seq, until_seq, name) for gap in self._gaps):
            report.accepted.append((after_seq, until_seq))
            return
        report.gaps.append((after_seq, until_seq))
        report.faults.append(f"{name}: nothing proves what was applied between {after_seq} and {until_seq}{why}")

    def _require_merged(self, name: str, table: TableCommits, start: int, report: LedgerReport) -> None:
        """Checks that each acked batch that changed the table left a commit, or found its changes applied. A table that
        was parked gets its changes later, so the check begins when it is not parked any more. The result of a table
        that the batch left where it was has a position before the batch's end."""
        for manifest in self._acked:
            if manifest.acked is None or _covers(table.commits, start, manifest.after_seq, manifest.last_seq):
                continue
            results = {result.table: result for result in manifest.acked.tables}
            by_hand = not results and manifest.row_events > 0 and name in manifest.tables
            result = results.get(name)
            left_out = result is not None and result.parked is not None
            if left_out and table.parked:
                continue
            if by_hand or left_out or (result is not None and (result.applied_seq or 0) >= manifest.last_seq):
                how = "by hand" if by_hand else "without it" if left_out else "with its changes"
                self._report_missing(
                    name, manifest.after_seq, manifest.last_seq, report, f"; batch {manifest.batch} was acked {how}"
                )


def _begins_generation(table: TableCommits, commit: LedgerEntry) -> bool:
    """Whether a commit made the table's generation: a DDL statement that wrote the table anew, or with the rows of the
    table that was renamed, at its own position."""
    is_first = commit.generation > 0 or commit.version == 0
    return is_first and commit == table.commits[0] and commit.last_seq == table.since_seq


def _covers(commits: Sequence[LedgerEntry], reached: int, after_seq: int, last_seq: int) -> bool:
    """Whether the batches of these commits together hold all of (after_seq, last_seq] behind ``reached``."""
    at = max(reached, after_seq)
    for commit in commits:
        if commit.rebuild is not None:
            at = max(at, commit.last_seq)
        elif commit.after_seq <= at < commit.last_seq:
            at = commit.last_seq
    return at >= last_seq
