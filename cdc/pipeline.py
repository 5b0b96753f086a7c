"""The three steps of a run, for ``cdc apply`` and for the DAG: fetch a batch, merge it, ack it or roll it back.

The configuration says where the merge runs: in this process (a ``local`` master), on a Spark Connect server, or under
spark-submit on any other master.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdc.batches.manifest import TableResult
from cdc.errors import MergeFailedError

if TYPE_CHECKING:
    from cdc.batches.lease import Lease
    from cdc.config import DestinationConfig
    from cdc.verify.report import Report

_submitted: subprocess.Popen[str] | None = None


def fetch(
    config: DestinationConfig,
    owner: str,
    until: datetime | None = None,
    wait_s: float | None = None,
    *,
    ahead: bool = False,
) -> Lease | None:
    """Takes the next batch. Returns None if there is no transaction within ``wait_s`` (default: ``batch.max_wait_s``).

    ``until`` (with a time zone): only transactions that were committed before; None then means that all of them were
    taken. Raises StoreIncompleteError if the store has no more of them, and is not known to be complete up to
    ``until`` within ``wait_s`` (default: ``batch.until_wait_s``). ``ahead``: the batch after the outstanding ones.
    Raises LeaseHeldError.
    """
    from cdc.batches.service import BatchService

    return BatchService(config).get(owner, wait_s=wait_s, until=until, ahead=ahead)


def resume(config: DestinationConfig, batch: int, fingerprint: str) -> Lease:
    """Returns the lease that :func:`fetch` returned to another process of the same run, by its
    :attr:`Lease.fingerprint`. Raises TokenError if the batch never had it, DamagedError if the manifest is gone."""
    from cdc.batches.service import BatchService

    return BatchService(config).resume(batch, fingerprint)


def merge(config: DestinationConfig, lease: Lease) -> list[TableResult]:
    """Merges the batch and returns one result per table. Renews the lease meanwhile, and stops the merge if it is lost.

    Raises MergeFailedError (also if the driver was killed), TokenError if the lease was lost, or the PermanentError of
    the table that failed. After an error call :func:`finalize` to roll the batch back: it stays outstanding.
    """
    from cdc.batches.lease import renewed
    from cdc.batches.service import BatchService
    from spark_jobs.runtime.session import in_process

    # A driver on a Connect server cannot be killed from here; the check before each statement stops its merge.
    with renewed(BatchService(config), lease, config.batch.lease_s, stop, lambda: datetime.now(UTC)):
        if config.spark.remote is not None or in_process(config.spark):
            return _merge_here(config, lease)
        return _submit(config, lease)


def finalize(config: DestinationConfig, lease: Lease, ok: bool, results: Any = None) -> None:
    """Acks the batch with the results of its merge, or rolls it back. Either may be repeated."""
    from cdc.batches.service import BatchService

    service, manifest = BatchService(config), lease.manifest
    if ok:
        service.ack(manifest.batch, lease.token, subscriber=manifest.subscriber, results=results)
    else:
        service.rollback(manifest.batch, lease.token, subscriber=manifest.subscriber)


def release(config: DestinationConfig, owner: str) -> list[int]:
    """Rolls back all outstanding batches of this owner, without a token, and returns their ids.

    Call this only from the owner's sole process, after a process before it was killed.
    """
    from cdc.batches.service import BatchService

    return BatchService(config).release(owner)


def stop() -> None:
    """Kills the driver that this process has started; a running merge fails. Safe in signal handlers."""
    process = _submitted
    pids = [process.pid] if process is not None and process.poll() is None else []
    if "spark_jobs.runtime.session" in sys.modules:
        from spark_jobs.runtime import driver

        pid = driver.pid()
        pids += [pid] if pid is not None else []
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def _merge_here(config: DestinationConfig, lease: Lease) -> list[TableResult]:
    from cdc.batches.parking import TableGate
    from cdc.batches.service import BatchService
    from spark_jobs.apply.prepare import prepare
    from spark_jobs.apply_batch import merge_tables
    from spark_jobs.runtime import session
    from spark_jobs.runtime.failures import explain

    service, manifest = BatchService(config), lease.manifest
    batch = prepare(
        manifest,
        config,
        lambda: _check(service, lease),
        service.subscription(manifest.subscriber),
        TableGate(service.meta, manifest.subscriber),
    )
    if not batch.tables:
        return []
    warm = session.acquire(config.spark)
    try:
        return merge_tables(batch, warm.tables)
    except Exception as error:
        # Spark, py4j and gRPC raise hundreds of exception types; the user gets one sentence.
        failure = explain(error, ", ".join(manifest.tables))
        if not isinstance(failure, MergeFailedError):
            raise failure from error
        if warm.alive() and config.spark.remote is None:
            raise failure from error
        session.discard()  # a restarted server no longer knows these sessions
        if config.spark.remote is None:
            place = f"batch {manifest.batch}"
            failure = MergeFailedError("the Spark driver ended while the batch was merged", place=place)
        raise failure from error


def _check(service: Any, lease: Lease) -> None:
    service.check(lease.manifest.batch, lease.token, subscriber=lease.manifest.subscriber)


def _submit(config: DestinationConfig, lease: Lease) -> list[TableResult]:
    """Runs the merge under spark-submit and waits for it."""
    global _submitted
    from spark_jobs import apply_batch
    from spark_jobs.runtime.driver import submit_options
    from spark_jobs.runtime.jars import spark_home
    from spark_jobs.runtime.session import settings, worker_path

    with (
        tempfile.TemporaryDirectory(prefix="towpath-") as folder,
        submit_options(settings(config.spark)) as options,
    ):
        results = Path(folder) / "results.json"
        command = [str(spark_home() / "bin" / "spark-submit"), "--master", config.spark.master, *options]
        command += [apply_batch.__file__, str(config.file)]
        command += ["--manifest", str(lease.manifest_path), "--results", str(results)]
        environment = os.environ | {
            apply_batch.TOKEN_VARIABLE: lease.token,
            "SPARK_HOME": str(spark_home()),
            "PYTHONPATH": worker_path(),
            "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=sys.stderr, text=True)
        _submitted = process
        try:
            code = process.wait()
        finally:
            _submitted = None
            if process.poll() is None:
                process.kill()
                process.wait()
        return _read_results(results, code, lease)


def _read_results(path: Path, code: int, lease: Lease) -> list[TableResult]:
    from spark_jobs.runtime.failures import from_json

    content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    error = content.get("error")
    if error is not None:
        raise from_json(error)
    if code != 0 or "results" not in content:
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        raise MergeFailedError(
            f"the Spark driver {how} before the batch was merged",
            place=f"batch {lease.manifest.batch}",
            remedy="See its output above; CDC_SPARK_LOG=info shows Spark's own log.",
        )
    return [TableResult.model_validate(item) for item in content["results"]]


def verify(
    config: DestinationConfig,
    tables: Sequence[str] | None = None,
    progress: Callable[[str], None] = lambda _: None,
    *,
    limit: int = 20,
    wait_s: float = 60.0,
) -> Report:
    """Compares the Delta tables (None: all) with the source, and the store with what the source executed.

    Nothing is written. Differences and doubts are in the report, not raised: see :attr:`Report.exit_code`. ``progress``
    is called with what is being done. ``limit``: differences that are looked for in each table. ``wait_s``: how long to
    wait until capture has read what the source had at the start. Raises UsageError for an unknown table, IdentityError
    if nothing was captured yet, MergeFailedError if Spark cannot be used, and what reading meta and store raises.
    """
    from cdc.verify.run import Options
    from cdc.verify.run import verify as run
    from spark_jobs.runtime import session

    options = Options(limit, wait_s)
    from spark_jobs.verify import SparkLake

    warm = session.acquire(config.spark)
    return run(config, SparkLake(config, warm.tables), tables or (), options, progress)
