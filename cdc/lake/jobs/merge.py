"""The merge of a batch in the Spark session of this process, or in its session on a Spark Connect server."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from cdc.base.errors import MergeFailedError
from cdc.batches.manifest import TableResult
from cdc.batches.parking import TableGate
from cdc.client import open_batches
from cdc.lake.apply.batch import merge_tables
from cdc.lake.apply.prepare import PreparedBatch, prepare
from cdc.lake.runtime import session
from cdc.lake.runtime.failures import explain

if TYPE_CHECKING:
    from cdc.batches.lease import Lease
    from cdc.config import DestinationConfig


def merge(config: DestinationConfig, lease: Lease) -> list[TableResult]:
    """Merges the batch of a lease. Returns one result per table, in the order of the tables. Raises the table's own
    PermanentError, else MergeFailedError."""
    manifest, batch = lease.manifest, prepared(config, lease)
    warm: list[session.WarmSession] = []
    starting = threading.Lock()

    def sessions() -> session.TableSessions:
        # Once for the batch, whose bytes count once, and whose driver must not be replaced under its tables.
        with starting:
            if not warm:
                warm.append(session.acquire(config.spark, manifest.bytes))
            return warm[0].tables

    try:
        return merge_tables(batch, sessions)
    except Exception as error:
        # Spark, py4j and gRPC raise hundreds of exception types; the user gets one sentence.
        failure = explain(error, ", ".join(manifest.tables))
        if not isinstance(failure, MergeFailedError):
            raise failure from error
        if not warm or (warm[-1].alive() and config.spark.remote is None):
            raise failure from error
        session.discard()  # a restarted server no longer knows these sessions
        if config.spark.remote is None:
            place = f"batch {manifest.batch}"
            failure = MergeFailedError("the Spark driver ended while the batch was merged", place=place)
        raise failure from error


def prepared(config: DestinationConfig, lease: Lease) -> PreparedBatch:
    """Returns the batch of a lease with what its tables need. The merge asks before each statement whether the lease is
    still held."""
    service, manifest = open_batches(config), lease.manifest

    def check() -> object:
        return service.check(manifest.batch, lease.token, subscriber=manifest.subscriber)

    gate = TableGate(service.meta, manifest.subscriber)
    return prepare(manifest, config, check, service.subscription(manifest.subscriber), gate)
