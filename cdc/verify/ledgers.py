"""The ledgers of the Delta tables, read without Spark and checked by :class:`cdc.ledger.Ledger`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from cdc.batches.manifest_files import ManifestFiles, load_manifest
from cdc.errors import DamagedError
from cdc.ledger import Ledger, LedgerReport, TableHistory, read_commits
from cdc.targets import GENERATION_PROPERTY, SINCE_PROPERTY, application_id, split_table, table_path
from cdc.verify.report import LedgerResult
from spark_jobs.delta.log import open_delta

if TYPE_CHECKING:
    from cdc.batches.manifest import Manifest
    from cdc.config import DestinationConfig
    from cdc.meta import Subscription


def acked_manifests(config: DestinationConfig, subscriber: str) -> list[Manifest]:
    """Returns the manifests of the acked batches that are kept, oldest first. Raises DamagedError, StorageError."""
    files = ManifestFiles(config.meta.path)
    found = []
    for batch in files.ids(subscriber):
        path = files.path(subscriber, batch)
        try:
            manifest = load_manifest(path)
        except DamagedError:
            if path.exists():
                raise
            continue  # an ack has removed it meanwhile: only the newest are kept
        if manifest.acked is not None:
            found.append(manifest)
    return found


def table_history(config: DestinationConfig, table: str, known: Subscription) -> TableHistory | None:
    """Returns the commits of a Delta table; None if there is no table. Raises TargetError, RetryableError."""
    with open_delta(table_path(config.apply.target, *split_table(table)), table) as delta:
        if delta is None:
            return None
        properties = delta.metadata().configuration
        generation = int(properties.get(GENERATION_PROPERTY, "0"))
        history = delta.history()
        applied = delta.transaction_version(application_id(config.name, table, generation))
        return TableHistory(
            commits=read_commits(history, config.name, table, generation),
            applied_seq=applied or 0,
            since_seq=int(properties.get(SINCE_PROPERTY, "0")),
            whole=any(commit.get("version") == 0 for commit in history),
            record=known.table(table),
            parked=table in known.parked,
        )


def check_ledgers(
    histories: dict[str, TableHistory], acked: Iterable[Manifest], known: Subscription
) -> dict[str, LedgerResult]:
    """Checks the commits of the tables together, because batches are joined over all of them."""
    found = Ledger(histories, acked, known.gaps).check()
    return {name: _result(report) for name, report in found.items()}


def _result(report: LedgerReport) -> LedgerResult:
    return LedgerResult(report.ok, report.entries, report.gaps, report.accepted, report.faults)


def base_of(history: TableHistory) -> int:
    """Returns the seq at which the table was made anew last, in its generation; 0 if it was not."""
    return max((commit.last_seq for commit in history.commits if commit.rebuild is not None), default=0)
