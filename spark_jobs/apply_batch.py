"""Apply one batch to its Delta tables: all tables side by side, each in a session of its own.

Run by :mod:`cdc.pipeline` in its own process, or as a program by spark-submit::

    spark-submit … spark_jobs/apply_batch.py CONF_FILE --manifest PATH --results PATH      (token in $TOWPATH_TOKEN)
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cdc.batches.manifest import Manifest, TableResult
from cdc.errors import CdcError, MergeFailedError, TokenError, UnsupportedDdlError
from cdc.log import get_logger
from cdc.meta.state import Subscription
from cdc.targets import split_table
from spark_jobs.apply import ddl
from spark_jobs.apply.large_values import LARGE_BYTES
from spark_jobs.apply.merge import Job, merge_table
from spark_jobs.apply.source_columns import (
    OwnColumns,
    own_columns_of_layout,
    own_columns_of_schema,
    value_policies,
)
from spark_jobs.delta.proof import prove, prove_idle
from spark_jobs.delta.tables import (
    Target,
    create,
    evolve,
    record_policies,
    recorded_policies,
    require_ownership,
    require_same_policies,
    target,
)
from spark_jobs.runtime.failures import explain, is_concurrent, is_driver_gone
from spark_jobs.runtime.session import TableSessions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cdc.config import DestinationConfig
    from cdc.decode import TableLayout
    from cdc.schemas import Schemas, TableSchema
    from cdc.sql.statements import Effect
    from spark_jobs.delta.log import DeltaState

MAX_PARALLEL = 8
_ATTEMPTS = 4
TOKEN_VARIABLE = "TOWPATH_TOKEN"
_log = get_logger(__name__)


@dataclass(frozen=True)
class Plan:
    """What a batch asks for."""

    config: DestinationConfig
    manifest: Manifest
    check: Callable[[], None]
    layouts: dict[str, TableLayout]
    """Of the tables with rows in the batch."""
    schemas: Schemas | None
    effects: list[Effect] = field(default_factory=list)
    tables: tuple[str, ...] = ()
    """Those to look after: with rows, named by the DDL, or not in the lake yet."""
    large: frozenset[str] = frozenset()
    """Those that may have values of many megabytes."""
    subscription: Subscription = field(default_factory=Subscription)
    """What the meta knows of the reader, and of the tables as of its last ack."""

    def known(self, table: str) -> TableSchema | None:
        """The table as the stored schemas describe it."""
        return self.schemas.tables.get(table) if self.schemas is not None else None


def run(
    spark: SparkSession,
    manifest: Manifest,
    config: DestinationConfig,
    *,
    check: Callable[[], None],
    subscription: Subscription,
) -> list[TableResult]:
    """Apply a batch; one result per table, in the tables' order.

    ``subscription``: the reader as the meta knows it, with the lake as of its last ack. ``check`` raises when the batch
    is not this process's to merge (any more); it is called before each statement. When a table fails, the others are
    finished first. Raises the table's own PermanentError, else MergeFailedError.
    """
    plan = make_plan(manifest, config, check, subscription)
    with closing(TableSessions(spark, config.spark.remote)) as sessions:
        return run_plan(plan, sessions)


def make_plan(
    manifest: Manifest, config: DestinationConfig, check: Callable[[], None], subscription: Subscription
) -> Plan:
    """Read what the batch holds, and look at the tables that it does not change; needs no Spark. Raises
    UnsupportedDdlError for a statement that cannot be applied, TargetError for a table that lies behind what was
    acked."""
    from cdc.decode.layout import survey

    check()
    schemas = _schemas(manifest)
    effects = ddl.effects(config, manifest) if manifest.ddl else []
    # One that was excluded since the batch was made is left alone: the way out for a table that cannot be applied.
    wanted = tuple(table for table in manifest.tables if _is_included(config, table))
    seen = survey(manifest.ranges, wanted, schemas, lambda table: value_policies(config.table_apply(table)))
    found = seen.layouts
    tables = [t for t in wanted if t in found or manifest.ddl]
    if schemas is not None and (manifest.after_seq == 0 or manifest.ddl):
        # A table that is included exists in the lake, even when it is empty.
        tables += [
            t
            for t in sorted(schemas.tables)
            if t not in tables and manifest.wants(t) and config.tables.includes(*split_table(t))
        ]
    for table in tables:
        target(config, table)  # so that a key that is missing is told before Spark is started
    if schemas is not None:
        _tell_of_idle_policies(config, schemas)
    large = frozenset(table for table, size in seen.largest_event_bytes.items() if size > LARGE_BYTES)
    prove_idle(config, manifest, subscription, tables)
    return Plan(config, manifest, check, found, schemas, effects, tuple(tables), large, subscription)


def _is_included(config: DestinationConfig, table: str) -> bool:
    return config.tables.includes(*split_table(table))


def _tell_of_idle_policies(config: DestinationConfig, schemas: Schemas) -> None:
    """A policy of ``apply.columns`` holds where a table has the column; one that holds nowhere may be misspelt."""
    there = {column.name.lower() for table in schemas.tables.values() for column in table.columns}
    idle = sorted(set(config.apply.columns) - there)
    if idle and schemas.tables:
        _log.warning("no table has a column that apply.columns names", columns=", ".join(idle))


def _schemas(manifest: Manifest) -> Schemas | None:
    from cdc.schemas import Schemas
    from cdc.store.reader.staged import local_copy

    if manifest.schema_path is None:
        return None
    with local_copy(manifest.schema_path) as path:
        return Schemas.load(path)


def run_plan(plan: Plan, sessions: TableSessions) -> list[TableResult]:
    """Do what :func:`make_plan` found; see :func:`run`."""
    if not plan.tables:
        return []
    failures: dict[str, CdcError] = {}
    causes: dict[str, BaseException] = {}
    results: dict[str, TableResult] = {}
    pool = ThreadPoolExecutor(min(len(plan.tables), MAX_PARALLEL), thread_name_prefix="merge")
    try:
        futures: dict[Future[TableResult | None], str] = {
            pool.submit(_one_table, plan, sessions, table): table for table in plan.tables
        }
        wait(futures)
        for future, table in futures.items():
            error = future.exception()
            if error is not None:
                failures[table], causes[table] = explain(error, table), error
            elif (result := future.result()) is not None:
                results[table] = result
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    if failures:
        _raise(failures, causes)
    return [results[table] for table in plan.tables if table in results]


def _raise(failures: dict[str, CdcError], causes: dict[str, BaseException]) -> None:
    """One error for the batch: that of a table where trying again will not help, else the first one."""
    for table, error in failures.items():
        if len(failures) > 1:
            _log.error("table failed", table=table, reason=str(error))
    for table, error in failures.items():
        if not error.retryable:
            raise _named(error, table) from causes[table]
    table, error = next(iter(failures.items()))
    if isinstance(error, MergeFailedError):
        raise error from causes[table]
    raise MergeFailedError(str(error), place=f"table {table}") from causes[table]


def _named(error: CdcError, table: str) -> CdcError:
    """The error with the table's name in it."""
    if table in str(error) or isinstance(error, TokenError | UnsupportedDdlError):
        return error
    place = f"table {table}" if error.place is None else f"table {table}, {error.place}"
    return type(error)(error.message, place=place, remedy=error.remedy)


def _one_table(plan: Plan, sessions: TableSessions, table: str) -> TableResult | None:
    """Make, change and fill one table; once more when another driver committed to it at the same moment."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return _try_table(plan, sessions, table)
        except Exception as error:
            if attempt == _ATTEMPTS or not is_concurrent(error) or is_driver_gone(error):
                raise
            _log.info("another commit came first; trying again", table=table, attempt=attempt)
            time.sleep(0.2 * attempt)
    raise AssertionError("the loop returns or raises")


def _try_table(plan: Plan, sessions: TableSessions, table: str) -> TableResult | None:
    place = target(plan.config, table)
    layout = plan.layouts.get(table)
    named = table in plan.manifest.tables and (layout is not None or plan.manifest.ddl)
    state = place.state()
    if state is not None:
        require_ownership(state, place, plan.manifest)
    prove(place, state, plan.manifest, plan.subscription, created_here=plan.manifest.ddl and named)
    if state is not None and not named:
        return None
    began = time.monotonic()
    with sessions.one() as session:
        made = state is None
        own = own_columns_of_layout(layout, place.policies) if layout is not None else None
        state = _prepared(plan, session.spark, place, state, own)
        if state is None:
            return None
        if not named:
            seconds = round(time.monotonic() - began, 3)
            return _made(table, state, seconds) if made else None
        known, is_large = plan.known(table), table in plan.large
        result = merge_table(Job(session, place, plan.manifest, layout, own, known, plan.check, is_large), state)
    return result.model_copy(update={"seconds": round(time.monotonic() - began, 3)})


def _made(table: str, state: DeltaState, seconds: float) -> TableResult:
    """The result of a table that was made, and has no changes yet."""
    return TableResult(
        table=table,
        delta_version=state.version,
        delta_id=state.id,
        applied_seq=state.applied_seq,
        generation=state.generation,
        seconds=seconds,
    )


def _prepared(
    plan: Plan, spark: SparkSession, place: Target, state: DeltaState | None, own: OwnColumns | None
) -> DeltaState | None:
    """The table, existing and with all columns that the batch needs (``own``: those of its rows, where it has any);
    None where nothing is known of it yet."""
    known, layout = plan.known(place.table), plan.layouts.get(place.table)
    names = [column.name for column in layout.columns] if layout is not None else []
    later = [column.name for column in known.columns] if known is not None else []
    if names or later:
        place.policies.require_there([*names, *later, *(recorded_policies(state) if state is not None else ())])
    if state is None:
        first = own
        if first is None and known is not None:
            first = own_columns_of_schema(known, place.policies)
        if first is None:
            return None
        primary = layout.primary_key if layout is not None else known.primary_key if known is not None else ()
        plan.check()
        state = create(spark, place, first, primary, plan.manifest)
        require_ownership(state, place, plan.manifest)
    if own is not None:
        require_same_policies(state, place, own, names)
    added = [e for e in plan.effects if e.kind == "add_column" and e.table == _split(place, e)]
    if added and ddl.add_new_columns(spark, place, state, added, known):
        state = place.state() or state
    if own is not None and state.applied_seq < plan.manifest.last_seq:
        state = record_policies(spark, place, state, own, names)
        state = evolve(spark, place, state, own, [n for n in map(place.policies.lake_name, later) if n is not None])
    return state


def _split(place: Target, effect: Effect) -> tuple[str, str] | None:
    """The effect's own (database, table) when it is of this table."""
    if effect.table is not None and ".".join(effect.table) == place.table:
        return effect.table
    return None


# --- as a program ------------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Apply the batch of a manifest; writes ``{"results": […]}`` or ``{"error": {…}}`` to the results file."""
    parser = argparse.ArgumentParser(prog="apply_batch.py", description="Apply one batch to its Delta tables.")
    parser.add_argument("conf_file", type=Path)
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    arguments = parser.parse_args(argv)
    try:
        results = _main(arguments.conf_file, arguments.manifest)
    except CdcError as error:
        content: dict[str, object] = {"class": type(error).__name__, "message": error.message}
        content |= {"place": error.place, "remedy": error.remedy}
        arguments.results.write_text(json.dumps({"error": content}), encoding="utf-8")
        return error.exit_code
    arguments.results.write_text(
        json.dumps({"results": [result.model_dump(mode="json") for result in results]}), encoding="utf-8"
    )
    return 0


def _main(conf_file: Path, manifest_path: Path) -> list[TableResult]:
    from cdc.batches.manifest_files import load_manifest
    from cdc.batches.service import BatchService
    from cdc.config import load
    from spark_jobs.runtime.session import from_submit

    config = load(conf_file)
    manifest = load_manifest(manifest_path)
    token = os.environ.get(TOKEN_VARIABLE, "")
    service = BatchService(config)
    spark = from_submit()
    try:
        return run(
            spark,
            manifest,
            config,
            check=lambda: _check(service, manifest, token),
            subscription=service.subscription(manifest.subscriber),
        )
    finally:
        spark.stop()


def _check(service: object, manifest: Manifest, token: str) -> None:
    from cdc.batches.service import BatchService

    assert isinstance(service, BatchService)
    service.check(manifest.batch, token, subscriber=manifest.subscriber)


if __name__ == "__main__":
    sys.exit(main())
