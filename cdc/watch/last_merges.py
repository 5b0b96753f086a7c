"""The last merge of each table and the last run, from the manifests of acked batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cdc.base.run_identity import RunIdentity
from cdc.base.units import iso_time
from cdc.batches.results import add_phases, counted, phases_of, phases_text

if TYPE_CHECKING:
    from cdc.batches.manifest import Manifest, TableResult
    from cdc.batches.protocol import Batches

MOST_BATCHES = 200
"""The newest acked batches that are looked at."""


def newest_acked(batches: Batches, most: int = MOST_BATCHES) -> list[Manifest]:
    """Returns the manifests of the newest acked batches of apply, oldest first. Raises DamagedError, StorageError,
    PeerUnavailableError."""
    subscription = batches.meta.read().subscriptions.get("apply")
    if subscription is None:
        return []
    return batches.acked_manifests(after_batch=max(0, subscription.next_batch - 1 - most))


def last_merges(acked: Iterable[Manifest]) -> dict[str, dict[str, Any]]:
    """Returns the last merge that each table had, by ``db.table``, for JSON."""
    merges: dict[str, dict[str, Any]] = {}
    for manifest in acked:
        for result in _merged(manifest):
            assert manifest.acked is not None
            merges[result.table] = {
                "batch": manifest.batch,
                "acked": iso_time(manifest.acked.time),
                "inserted": result.inserted,
                "updated": result.updated,
                "deleted": result.deleted,
                "seconds": result.seconds,
                "phases": result.phases,
            }
    return merges


def last_run(acked: Sequence[Manifest]) -> dict[str, Any] | None:
    """Returns the sums of the run that acked the newest of these batches, for JSON; None without batches. Where the run
    is not known, it is that batch alone."""
    if not acked:
        return None
    key = _key(acked[-1])
    mine = [manifest for manifest in acked if _key(manifest) == key]
    phases: dict[str, float] = {}
    for manifest in mine:
        add_phases(phases, phases_of(_merged(manifest)))
    results = [result for manifest in mine for result in _merged(manifest)]
    newest = mine[-1].acked
    assert newest is not None
    run = newest.run or mine[-1].run
    return {
        "run": None if run is None else run.document,
        "acked": iso_time(newest.time),
        "batches": len(mine),
        "row_events": sum(manifest.row_events for manifest in mine),
        "rows": sum(result.inserted + result.updated + result.deleted for result in results),
        "phases": {phase: round(seconds, 3) for phase, seconds in phases.items()},
    }


def _merged(manifest: Manifest) -> list[TableResult]:
    """Returns the results of tables that the batch was merged into."""
    results = () if manifest.acked is None else manifest.acked.tables
    return [result for result in results if result.parked is None and not result.idle and not result.released]


def _key(manifest: Manifest) -> Any:
    """Returns what the batches of one run have in common, and no others."""
    acked = manifest.acked
    run = None if acked is None else acked.run or manifest.run
    if run is None or (run.run_id is None and run.started is None):
        return manifest.batch
    return (run.dag_id, run.run_id) if run.run_id is not None else (run.host, run.command, run.started)


def merge_text(merge: Mapping[str, Any]) -> str:
    """Returns a text like ``1,203 inserted, 317 updated, 0 deleted, 2.1 s``."""
    rows = ", ".join(f"{merge[word]:,} {word}" for word in ("inserted", "updated", "deleted"))
    return f"{rows}, {merge['seconds']:.1f} s"


def run_text(run: Mapping[str, Any]) -> str:
    """Returns a text like ``12 batches, 4,711 rows; Spark start 6.2 s, merge 1.4 s``."""
    sums = f"{counted(run['batches'], 'batch', 'batches')}, {counted(run['rows'], 'row', 'rows')}"
    phases = phases_text(run["phases"])
    identity = RunIdentity.of_document(run["run"])
    return "; ".join(part for part in (sums, phases, "" if identity is None else str(identity)) if part)
