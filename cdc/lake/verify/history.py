"""Whether the store and the cursor have everything that the source executed.

With GTIDs the transactions in the store, those before its beginning and those that the source executed are compared as
sets. Without them, only the store's own files can be checked: no segment, no index entry and no binlog file may be
missing between its beginning and its end.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from cdc.base.errors import CdcError
from cdc.binlog.gtids import GtidSet, Interval, parse_state
from cdc.binlog.positions import format_seq
from cdc.lake.verify.report import HistoryReport
from cdc.lake.verify.source import SourceSnapshot
from cdc.lake.verify.store import StoreView
from cdc.store.formats.gtids import numbers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cdc.batches.manifest import Manifest
    from cdc.config import DestinationConfig
    from cdc.meta import SourceIdentity, Subscription


def check_history(
    config: DestinationConfig, identity: SourceIdentity, store: StoreView, wait_s: float, tick: Callable[[], object]
) -> HistoryReport:
    """Compares the store with the source."""
    report = HistoryReport()
    try:
        files = store.reader.check_files()
        report.faults += files.faults
        report.remarks += files.remarks
        with SourceSnapshot(config, identity) as snapshot:
            before = snapshot.position.gtids_before
            if before is None:
                report.kind = "position"
                store.wait_for(snapshot.high_seq, snapshot.position.clock_us, wait_s, tick)
                return report
            report.kind = "gtid"
            store.wait_for(snapshot.high_seq, snapshot.position.clock_us, wait_s, tick)
            flavor = snapshot.info.flavor
            stored = GtidSet()
            for entries in store.entries():
                stored |= numbers_of(entries, flavor)
            if flavor == "mysql":
                _compare_mysql(store, stored, before, snapshot.executed() or "", report)
            else:
                _compare_mariadb(store, stored, before, snapshot.executed() or "", report)
    except CdcError as error:
        report.unknown.append(str(error))
    return report


# --- GTIDs


def _begins(store: StoreView) -> tuple[str | None, bool]:
    """Returns the GTID set before the store's beginning, if it is known, and whether retention has removed
    transactions."""
    beginning = store.reader.beginning()
    return None if beginning is None else beginning.gtid, store.reader.removed_seq() > 0


def _compare_mysql(store: StoreView, stored: GtidSet, before: str, after: str, report: HistoryReport) -> None:
    """``before`` was executed before the position that the store has reached, ``after`` was executed by now."""
    text, removed = _begins(store)
    lacking = GtidSet.parse(before) - stored
    if text is not None:
        lacking = lacking - GtidSet.parse(text)
    if text is None or removed:
        # Where the store begins among a source's numbers is only known from the first one that it has.
        lacking, older = _split_older(lacking, stored)
        if older:
            why = "removed by retention" if removed else "before the store's beginning"
            report.remarks.append(f"{older.count} transactions are {why}: {older.shown()}")
    if lacking:
        report.faults.append(
            f"the source executed {lacking.count} transactions that the store lacks: {lacking.shown()}"
        )
    alien = stored - GtidSet.parse(after)
    if alien:
        report.faults.append(
            f"the store has {alien.count} transactions that the source did not execute: {alien.shown()}"
        )


def _split_older(lacking: GtidSet, stored: GtidSet) -> tuple[GtidSet, GtidSet]:
    """Separates the numbers that lie before the first stored one of their source, and those of sources of which the
    store has none."""
    firsts = {name: stored.first(name) for name, _ in lacking.sources()}
    older = GtidSet(
        {name: [(1, (1 << 62) if first is None else first - 1)] for name, first in firsts.items() if first != 1}
    )
    return lacking - older, lacking - (lacking - older)


def _compare_mariadb(store: StoreView, stored: GtidSet, before: str, after: str, report: HistoryReport) -> None:
    """MariaDB numbers transactions by domain, without gaps, and tells the last number of each server in it."""
    text, removed = _begins(store)
    domains: dict[str, list[Interval]] = {}
    for name, intervals in stored.sources():
        domains.setdefault(name.partition("-")[0], []).extend(intervals)
    numbers = GtidSet(domains)
    starts = {name.partition("-")[0]: number for name, number in _last_numbers(text or "")}
    for domain, intervals in numbers.sources():
        begins = [(starts[domain], starts[domain])] if domain in starts and not removed else []
        begins = begins if begins and begins[0][1] + 1 < intervals[0][0] else []
        holes = [(a[1] + 1, b[0] - 1) for a, b in pairwise((*begins, *intervals))]
        if holes:
            missing = GtidSet({domain: holes})
            report.faults.append(
                f"the store lacks {missing.count} numbers of the GTID domain {domain} between those that it has: "
                f"{missing.shown()}"
            )
    executed = dict(_last_numbers(after))
    for name, number in executed.items():
        last = stored.last(name)
        if last is not None and last > number:
            report.faults.append(
                f"the store has transactions of {name} up to {last}, and the source executed them up to {number}"
            )
    for name, _ in stored.sources():
        if name not in executed:
            report.faults.append(f"the store has transactions of {name}, and the source executed none of them")
    for name, number in _last_numbers(before):
        domain = name.partition("-")[0]
        reached = max(numbers.last(domain) or 0, starts.get(domain, 0))
        if number > reached and (numbers.last(domain) is not None or domain in starts):
            report.faults.append(
                f"the source executed transactions of the GTID domain {domain} up to {number}, and the store has them "
                f"up to {reached}"
            )


def _last_numbers(text: str) -> list[tuple[str, int]]:
    """Returns the last number of each ``domain-server`` in a state of MariaDB."""
    return [(name, intervals[-1][1]) for name, intervals in parse_state(text, "mariadb").sources()]


# --- the cursor


def check_cursor(
    subscription: Subscription, acked: Iterable[Manifest], report: HistoryReport, *, begins: int | None
) -> None:
    """Checks that the cursor lies where the acked batches lead to: each batch begins where the one before it ends."""
    manifests = sorted(acked, key=lambda manifest: manifest.batch)
    since = subscription.since_seq or 0
    reached = manifests[0].after_seq if manifests and manifests[0].batch > 1 else max(since, 0)
    ranges = [(m.after_seq, m.last_seq) for m in manifests]
    for after_seq, last_seq in sorted(ranges):
        if after_seq > reached:
            _missing(subscription, reached, after_seq, report)
        reached = max(reached, last_seq)
    if subscription.acked_seq > reached and (manifests or begins is not None):
        _missing(subscription, reached, subscription.acked_seq, report)
    for gap in subscription.gaps:
        whose = gap.table or "all tables"
        report.remarks.append(
            f"{whose}: the loss of the transactions after {gap.after_seq} up to {gap.until_seq} was accepted "
            f"({gap.reason})"
        )


def _missing(subscription: Subscription, after_seq: int, until_seq: int, report: HistoryReport) -> None:
    if subscription.filter is not None or subscription.has_accepted(after_seq, until_seq):
        return  # a filter moves the cursor over transactions that it leaves out
    report.faults.append(
        f"no batch has the transactions after {after_seq} ({format_seq(after_seq)}) up to {until_seq} "
        f"({format_seq(until_seq)}), and the cursor has passed them"
    )
