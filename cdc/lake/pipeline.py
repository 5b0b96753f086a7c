"""The three steps of a run, for ``cdc apply`` and for the DAG: fetch a batch, merge it, ack it or roll it back.

:mod:`cdc.lake.runs` takes batch after batch with these steps. The configuration says where the merge runs: in this
process (a ``local`` master), on a Spark Connect server, or under spark-submit on any other master. Files of DAGs import
this module, so that functions import what loads NumPy, PyArrow or PySpark.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from cdc.base.errors import DamagedError, MergeFailedError, StorageError
from cdc.base.log import get_logger
from cdc.batches.lease import renewed
from cdc.batches.manifest import Manifest, TableResult, schemas_of
from cdc.batches.results import with_start
from cdc.client import find_obstacle, open_batches, open_store
from cdc.lake.jobs.values import (
    Adopt,
    Diff,
    MaintainTables,
    Merge,
    ProgressT,
    Remask,
    Replay,
    ResultT,
    RetryParked,
    Snapshot,
    SparkJob,
    Verify,
)
from cdc.lake.runtime import driver, spark_settings
from cdc.lake.runtime import session as sessions
from cdc.lake.runtime.submit import DriverEndedError, SubmittedDriver

if TYPE_CHECKING:
    from cdc.base.errors import LeaseHeldError, StoreIncompleteError
    from cdc.batches.lease import Lease
    from cdc.binlog.sql.schemas import Schemas
    from cdc.config import DestinationConfig
    from cdc.lake.delta.maintenance import Maintained
    from cdc.lake.jobs.plan import JobPlan
    from cdc.lake.jobs.results import (
        CatchUp,
        ReplayResult,
        SnapshotResult,
        TableAdoption,
        TableDiff,
        TableRemask,
    )
    from cdc.lake.jobs.table_part import PartRequest
    from cdc.lake.verify.report import VerificationReport
    from cdc.meta import Gap
    from cdc.source.snapshot.progress import ProgressCallback

_submitted: SubmittedDriver | None = None
_log = get_logger(__name__)


def fetch(
    config: DestinationConfig,
    owner: str,
    until: datetime | None = None,
    wait_s: float | None = None,
) -> Lease | None:
    """Takes the next batch. Returns None if there is no transaction within ``wait_s`` (default: ``batch.max_wait_s``).

    ``until`` (with a time zone): only transactions that were committed before; None then means that all of them were
    taken. Raises StoreIncompleteError if the store has no more of them, and is not known to be complete up to
    ``until`` within ``wait_s`` (default: ``batch.until_wait_s``). Raises LeaseHeldError.
    """
    return open_batches(config, mixes=True).get(owner, wait_s=wait_s, until=until)


def fetch_following(
    config: DestinationConfig,
    owner: str,
    acked: Lease,
    until: datetime | None = None,
    wait_s: float | None = None,
) -> Lease | None:
    """Takes the batch that follows one that the caller has just acked; see :func:`fetch`. Raises TokenError if another
    process of this owner has taken it."""
    return open_batches(config, mixes=True).get_following(acked, owner, wait_s=wait_s, until=until)


def stored_seq(config: DestinationConfig) -> int:
    """Returns the seq up to which the store has the source's transactions; 0 if it is empty."""
    return open_batches(config).last_seq()


def next_seq(config: DestinationConfig) -> int | None:
    """Returns the seq of the first transaction that no batch has yet; None if there is none."""
    return open_batches(config).next_seq()


def obstacle(
    config: DestinationConfig, owner: str, until: datetime | None = None
) -> LeaseHeldError | StoreIncompleteError | None:
    """Returns the error for which :func:`fetch` would wait or end; None if nothing is in its way. Raises what reading
    store and meta raises."""
    return find_obstacle(config, owner, until)


def resume(config: DestinationConfig, batch: int, fingerprint: str) -> Lease:
    """Returns the lease that :func:`fetch` returned to another process of the same run, by its
    :attr:`Lease.fingerprint`. Raises TokenError if the batch never had it, DamagedError if the manifest is gone."""
    return open_batches(config).resume(batch, fingerprint)


def merge(config: DestinationConfig, lease: Lease) -> list[TableResult]:
    """Merges the batch and returns one result per table. Renews the lease meanwhile, and stops the merge if it is lost.

    Raises MergeFailedError (also if the driver was killed), TokenError if the lease was lost, or the PermanentError of
    the table that failed. After an error call :func:`finalize` to roll the batch back: it stays outstanding.
    """
    # A Connect server that does not take the interrupt goes on; the check before each statement stops its merge.
    with renewed(open_batches(config), lease, config.batch.lease_s, stop, lambda: datetime.now(UTC)):
        if not _is_submitted(config):
            return run(config, Merge(lease))
        if not _needs_driver(config, lease):
            return []
        with session(config) if _submitted is None else nullcontext():
            results = run(config, Merge(lease), place=f"batch {lease.batch}")
            assert _submitted is not None
            return [with_start(result, _submitted.start_s) for result in results]


def finalize(config: DestinationConfig, lease: Lease, ok: bool, results: Any = None) -> None:
    """Acks the batch with the results of its merge, or rolls it back. Either may be repeated."""
    service, manifest = open_batches(config), lease.manifest
    if ok:
        service.ack(manifest.batch, lease.token, subscriber=manifest.subscriber, results=results)
    else:
        service.rollback(manifest.batch, lease.token, subscriber=manifest.subscriber)


def release(config: DestinationConfig, owner: str) -> list[int]:
    """Rolls back all outstanding batches of this owner, without a token, and returns their ids.

    Call this only from the owner's sole process, after a process before it was killed.
    """
    return open_batches(config).release(owner)


def acked_manifests(config: DestinationConfig, after_batch: int) -> list[Manifest]:
    """Returns the manifests of the acked batches after a batch, oldest first, as far as they are kept. Raises
    DamagedError, StorageError."""
    return open_batches(config).acked_manifests(after_batch=after_batch)


def altered_tables(before: Manifest | None, after: Manifest) -> set[str]:
    """Returns the tables of a batch of DDL statements that have other columns or another primary key after it than
    after the batch before it. If the definitions of either are not there, all its tables count."""
    try:
        old, new = None if before is None else schemas_of(before), schemas_of(after)
    except (DamagedError, StorageError) as error:
        _log.warning("the definitions of a batch cannot be read", batch=after.batch, reason=str(error))
        old = new = None
    if old is None or new is None:
        return set(after.tables)

    def shape(schemas: Schemas, table: str) -> object:
        definition = schemas.tables.get(table)
        return None if definition is None else (definition.columns, definition.primary_key)

    return {table for table in after.tables if shape(old, table) != shape(new, table)}


def recorded_tables(config: DestinationConfig) -> list[str]:
    """Returns the tables that the lake has, as the meta records them."""
    subscription = open_batches(config).meta.read().subscriptions.get("apply")
    return [] if subscription is None else sorted(subscription.tables)


def ledger(config: DestinationConfig, table: str, path: str) -> list[tuple[int, dict[str, Any]]]:
    """Returns the newest commits of this destination to the Delta table at a path: each one's version, and what its
    user metadata says (``docs/formats/user_metadata.md``). Raises TargetError, RetryableError."""
    from cdc.lake.delta.log import read_state

    state = read_state(path, config.name, table)
    return [] if state is None else list(state.ledger)


def stop() -> None:
    """Kills the driver that this process has started, and interrupts its statements on a Connect server: a running
    merge fails. Safe in signal handlers."""
    pids = [None if _submitted is None else _submitted.pid()]
    if "pyspark" in sys.modules:
        pids.append(driver.pid())
    for pid in pids:
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
    sessions.interrupt()


def _needs_driver(config: DestinationConfig, lease: Lease) -> bool:
    """Whether a batch changes a table, so that a driver has to be started for it."""
    if lease.manifest.row_events:
        return True
    from cdc.lake.jobs.merge import prepared

    return bool(prepared(config, lease).tables)


@contextmanager
def session(config: DestinationConfig) -> Iterator[None]:
    """Keeps a driver under spark-submit for all merges of the block. It is started when the first merge needs it. A
    session in this process, or on a Connect server, stays warm anyway."""
    global _submitted

    assert _submitted is None, "one session at a time"
    submitted = _submitted = SubmittedDriver(config)
    try:
        yield
    finally:
        _submitted = None
        submitted.close()


def run(
    config: DestinationConfig,
    job: SparkJob[ResultT, ProgressT],
    progress: Callable[[ProgressT], object] = lambda _: None,
    *,
    place: str | None = None,
) -> ResultT:
    """Does a job in this process, or in a driver under spark-submit: that of :func:`session`, else one for this job
    alone. ``place``: for the message if the driver ends; the destination by default. Raises the job's errors, and
    MergeFailedError if the driver ended."""
    if not _is_submitted(config):
        return job.run(config, progress)

    if _submitted is None:
        with session(config):
            return run(config, job, progress, place=place)
    results, reports = job.types()
    try:
        answer = _submitted.run(type(job).__name__, job.arguments(), lambda now: progress(reports.validate_python(now)))
    except DriverEndedError as error:
        raise MergeFailedError(
            f"the Spark driver {error} before {job.done}",
            place=place or config.name,
            remedy="See its output above; CDC_SPARK_LOG=info shows Spark's own log.",
        ) from None
    return results.validate_python(answer)


def _is_submitted(config: DestinationConfig) -> bool:
    """Whether jobs run in a driver that this process starts by spark-submit."""
    if config.spark.remote is not None or spark_settings.is_inside_submit():
        return False
    return not spark_settings.in_process(config.spark)


def verify(
    config: DestinationConfig,
    tables: Sequence[str] | None = None,
    progress: Callable[[str], object] = lambda _: None,
    *,
    limit: int = 20,
    wait_s: float = 60.0,
    second_opinion: int = 0,
    seed: int | None = None,
) -> VerificationReport:
    """Compares the Delta tables (None: all) with the source, and the store with what the source executed.

    Nothing is written. Differences and doubts are in the report, not raised: see
    :attr:`VerificationReport.exit_code`. ``progress`` is called with what is being done. ``limit``: differing rows
    that are looked for in each table. ``wait_s``: how long to wait until capture has read what the source had at
    the start. ``second_opinion``: rows of the store that this process decodes once more with another library
    (:mod:`cdc.lake.second_opinion`), with the sample of ``seed``; 0 for none. Raises UsageError for an unknown
    table, IdentityError if nothing was captured yet, MergeFailedError if the driver ended, and what reading meta
    and store raises.
    """
    from cdc.source.connection import require_server

    require_server(config.source, "a comparison with the source")
    report = run(config, Verify(list(tables or ()), limit, wait_s), progress)
    if second_opinion:
        from cdc.lake.second_opinion.sample import of_store

        progress("decoding a sample of the store a second time")
        report.second_opinion = of_store(config, tables or (), second_opinion, seed)
    return report


# --- jobs on single tables -------------------------------------------------------------------------------------------


def has_captured(config: DestinationConfig) -> bool:
    """Whether capture has described the source's tables; without that no snapshot can be taken."""
    return open_store(config).newest_schemas() is not None


def snapshot(
    config: DestinationConfig,
    tables: Sequence[str] | None = None,
    *,
    progress: ProgressCallback | None = None,
    whole: bool = False,
    part: PartRequest | None = None,
) -> list[SnapshotResult]:
    """Fills tables (None: all that wait for a snapshot) with the rows that they have at the source, or with the values
    of single columns; see :func:`cdc.lake.jobs.snapshot.take_snapshots`. ``part``: these rows of each table alone."""
    chosen = (None, None) if part is None else (part.keys, part.where)
    job = Snapshot(None if tables is None else list(tables), whole, *chosen)
    return run(config, job, progress or (lambda _: None))


def replay(
    config: DestinationConfig,
    tables: Sequence[str],
    *,
    from_: str | None = None,
    to: str | None = None,
    into: str | None = None,
    mode: str | None = None,
    part: PartRequest | None = None,
    progress: Callable[[CatchUp], object] = lambda _: None,
) -> list[ReplayResult]:
    """Builds tables again from the store; see :func:`cdc.lake.jobs.replay.replay`. ``part``: these rows of
    each table alone."""
    chosen = (None, None) if part is None else (part.keys, part.where)
    return run(config, Replay(list(tables), from_, to, into, mode, *chosen), progress)


def plan_remask(config: DestinationConfig, tables: Sequence[str] = ()) -> list[TableRemask]:
    """Returns what :func:`remask` would do; see :func:`cdc.lake.jobs.remask.plan_remask`."""
    from cdc.lake.jobs import remask

    return remask.plan_remask(config, tables)


def remask(
    config: DestinationConfig,
    tables: Sequence[str] = (),
    *,
    vacuum: bool = False,
    progress: Callable[[TableRemask], object] = lambda _: None,
) -> list[TableRemask]:
    """Gives the values in the lake the policies of the configuration; see :func:`cdc.lake.jobs.remask.remask`."""
    return run(config, Remask(list(tables), vacuum), progress)


def adopt(
    config: DestinationConfig,
    table: str,
    *,
    tool: str,
    dropped: Sequence[str] = (),
    dry_run: bool = False,
    progress: Callable[[str], object] = lambda _: None,
) -> TableAdoption:
    """Takes over a Delta table that another tool has made; see :func:`cdc.lake.jobs.adopt.adopt`."""
    return run(config, Adopt(table, tool, list(dropped), dry_run), progress)


def diff(config: DestinationConfig, table: str, before: str, after: str, *, limit: int = 20) -> TableDiff:
    """Compares a table as of two points of the store; see :func:`cdc.lake.jobs.diff.diff`."""
    return run(config, Diff(table, before, after, limit))


def retry_parked(config: DestinationConfig, lease: Lease | None = None) -> list[CatchUp]:
    """Tries the tables again that were parked because of an error; see :func:`cdc.lake.jobs.retry.retry_parked`.
    ``lease``: the batch that waits meanwhile; it is renewed as in :func:`merge`."""
    from cdc.lake.jobs import parked

    if not parked.waiting_tables(config):
        return []
    if lease is None:
        return run(config, RetryParked())
    with renewed(open_batches(config), lease, config.batch.lease_s, stop, lambda: datetime.now(UTC)):
        return run(config, RetryParked())


def require_none_left_out(config: DestinationConfig, say: Callable[[str], None]) -> None:
    """See :func:`cdc.lake.jobs.parked.require_none_left_out`."""
    from cdc.lake.jobs import parked

    parked.require_none_left_out(config, say)


def plan_snapshot(config: DestinationConfig, tables: Sequence[str]) -> JobPlan:
    """Returns what a snapshot of these tables would do; see :func:`cdc.lake.jobs.plan.plan_snapshot`."""
    from cdc.lake.jobs import plan

    return plan.plan_snapshot(config, tables)


def plan_replay(
    config: DestinationConfig,
    tables: Sequence[str],
    *,
    from_: str | None = None,
    to: str | None = None,
    into: str | None = None,
    mode: str | None = None,
) -> JobPlan:
    """Returns what a replay would do; see :func:`cdc.lake.jobs.plan.plan_replay`."""
    from cdc.lake.jobs import plan

    return plan.plan_replay(config, Replay(list(tables), from_, to, into, mode))


def find_loss(config: DestinationConfig, tables: Sequence[str]) -> dict[str, Any]:
    """Returns what would be given up, as JSON; see :func:`cdc.lake.jobs.losses.find_loss`."""
    from cdc.lake.jobs import losses

    return losses.find_loss(config, tables).as_dict()


def accept_loss(config: DestinationConfig, loss: Mapping[str, Any]) -> list[Gap]:
    """Accepts what :func:`find_loss` has returned; see :func:`cdc.lake.jobs.losses.accept_loss`."""
    from cdc.lake.jobs import losses

    return losses.accept_loss(config, losses.Loss.of_document(loss))


def maintain(
    config: DestinationConfig,
    tables: Sequence[str] = (),
    *,
    dry_run: bool = False,
    store_only: bool = False,
    vacuum: bool = True,
    progress: Callable[[Maintained], object] = lambda _: None,
) -> dict[str, Any]:
    """Removes from the store what nobody needs any more, and maintains Delta tables (all of them if none are given);
    see :func:`cdc.lake.jobs.maintain.maintain` and :func:`cdc.lake.jobs.maintain_tables.maintain_tables`. Returns the
    document of ``cdc maintain --json``."""
    from cdc.lake.jobs import maintain

    document = maintain.maintain(config, dry_run=dry_run)
    leaves = dry_run or store_only
    done = [] if leaves else maintain_tables(config, tables, vacuum=vacuum, progress=progress)
    return {**document, "tables": [maintained.as_dict() for maintained in done]}


def maintain_tables(
    config: DestinationConfig,
    tables: Sequence[str] = (),
    *,
    vacuum: bool = True,
    progress: Callable[[Maintained], object] = lambda _: None,
) -> list[Maintained]:
    """Compacts, clusters and vacuums Delta tables; see :func:`cdc.lake.jobs.maintain_tables.maintain_tables`."""
    return run(config, MaintainTables(list(tables), vacuum), progress)
