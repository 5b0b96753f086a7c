"""The ledgers of the Delta tables, read without Spark and checked by :class:`cdc.lake.verify.ledger.Ledger`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from cdc.base.targets import (
    DESTINATION_PROPERTY,
    GENERATION_PROPERTY,
    SINCE_PROPERTY,
    application_id,
    is_shared,
    properties_for,
)
from cdc.lake.delta.log import open_delta
from cdc.lake.verify.ledger import Ledger, LedgerReport, TableCommits, read_commits
from cdc.lake.verify.report import LedgerResult

if TYPE_CHECKING:
    from cdc.batches.manifest import Manifest
    from cdc.config import DestinationConfig
    from cdc.meta import Subscription


def table_history(config: DestinationConfig, table: str, subscription: Subscription) -> TableCommits | None:
    """Returns the commits of a Delta table; None if there is no table, or if it is shared and the destination has not
    joined it. Raises TargetError, RetryableError."""
    with open_delta(config.table_path(table), table) as delta:
        if delta is None:
            return None
        properties = properties_for(delta.metadata().configuration, config.name, table)
        if is_shared(properties) and DESTINATION_PROPERTY not in properties:
            return None
        generation = int(properties.get(GENERATION_PROPERTY, "0"))
        history = delta.history()
        applied = delta.transaction_version(application_id(config.name, table, generation))
        return TableCommits(
            commits=read_commits(history, config.name, table, generation),
            applied_seq=applied or 0,
            since_seq=int(properties.get(SINCE_PROPERTY, "0")),
            whole=any(commit.get("version") == 0 for commit in history),
            record=subscription.table(table),
            parked=table in subscription.parked,
        )


def check_ledgers(
    histories: dict[str, TableCommits], acked: Iterable[Manifest], subscription: Subscription
) -> dict[str, LedgerResult]:
    """Checks the commits of the tables together, because batches are joined over all of them."""
    reports = Ledger(histories, acked, subscription.gaps).check()
    return {name: _result(report) for name, report in reports.items()}


def _result(report: LedgerReport) -> LedgerResult:
    return LedgerResult(report.ok, report.entries, report.gaps, report.accepted, report.faults)


def base_of(history: TableCommits) -> int:
    """Returns the seq of the last snapshot in the table's generation; 0 if it has none. A replay keeps all rows, or
    builds them again."""
    return max((commit.last_seq for commit in history.commits if commit.rebuild == "snapshot"), default=0)
