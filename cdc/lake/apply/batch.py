"""Applies one batch to its Delta tables, several tables in parallel, each in a session of its own.

:mod:`cdc.lake.pipeline` calls :func:`prepare` and :func:`merge_tables` in its own process; under spark-submit
:mod:`cdc.lake.serve` calls :func:`run`.

The way of a batch: :func:`run`, :func:`~cdc.lake.apply.prepare.prepare`, :func:`merge_tables`, and for each table
:func:`apply_table`, which creates and alters the Delta table and leaves the rows to
:func:`cdc.lake.apply.merge.merge_table`.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from cdc.base.errors import (
    BatchError,
    CatalogUnavailableError,
    CdcError,
    ConfigError,
    LeaseHeldError,
    MergeFailedError,
    MetaUnavailableError,
    NeedsSnapshotError,
    TokenError,
    UnsupportedDdlError,
)
from cdc.base.log import get_logger
from cdc.base.targets import split_table
from cdc.batches.manifest import Parking, TableResult
from cdc.batches.results import joined, with_start
from cdc.lake.apply import ddl
from cdc.lake.apply.foreign_keys.search import CascadeSearch, base_version
from cdc.lake.apply.merge import TableMerge, merge_table
from cdc.lake.apply.prepare import PreparedBatch, note_fault
from cdc.lake.apply.schema.agreement import columns_there
from cdc.lake.apply.schema.requirements import require_recorded_policies
from cdc.lake.apply.small_batches import merge_small
from cdc.lake.delta.catalog import register, require_catalog, unknown
from cdc.lake.delta.comments import follow_comments, follows_comments
from cdc.lake.delta.constraints import follow_constraints, follows_constraints
from cdc.lake.delta.proof import prove
from cdc.lake.delta.tables import follow_configuration, follows_configuration, require_ownership, target_of
from cdc.lake.delta.tracked import tracked_schema
from cdc.lake.rows.columns import columns_of_schema
from cdc.lake.runtime.failures import SHARED_ATTEMPTS, again_if_concurrent, explain, is_driver_gone
from cdc.lake.runtime.phases import in_phase, measured_phases
from cdc.lake.runtime.session import TableSessions, on_demand
from cdc.meta.state import UnknownColumns

if TYPE_CHECKING:
    from cdc.binlog.sql.schemas import TableComments
    from cdc.lake.delta.log import DeltaState
    from cdc.lake.delta.present_rows import LakeVersion
    from cdc.lake.delta.tables import Target
    from cdc.lake.runtime.session import TableSession

MAX_PARALLEL = 8
Sessions: TypeAlias = TableSessions | Callable[[], TableSessions]
"""The sessions for a batch, or a function that starts Spark for them; it may be called for each table."""
_ATTEMPTS = 4
_log = get_logger(__name__)


# --- all tables ------------------------------------------------------------------------------------------------------


def merge_tables(batch: PreparedBatch, sessions: Sessions) -> list[TableResult]:
    """Applies a prepared batch. Returns one result per table, in the order of the tables.

    If ``sessions`` is a function, it is called when a table needs Spark: with ``apply.small_batches.engine: deltalake``
    there may be none. If a table fails, the others are finished first, and the table is parked if its configuration
    says so. Raises the table's own PermanentError, else MergeFailedError.
    """
    if not batch.tables and not batch.reached:
        return _noted(batch)
    is_small = batch.config.apply.small_batches.engine == "deltalake"
    if is_small and importlib.util.find_spec("deltalake") is None:
        raise ConfigError(
            "the package deltalake is not installed",
            place="apply.small_batches",
            remedy="Install towpath[spark], or remove apply.small_batches.",
        )
    started_s = 0.0
    if not isinstance(sessions, TableSessions) and not is_small:
        began = time.monotonic()
        sessions = sessions()
        started_s = time.monotonic() - began
    if isinstance(sessions, TableSessions):
        with sessions.one() as session:
            require_catalog(session.spark, batch.config)
    if batch.reached:
        batch = with_cascades(batch, sessions)
    noted = _noted(batch)
    if not batch.tables:
        return noted
    failures: dict[str, CdcError] = {}
    causes: dict[str, BaseException] = {}
    results: dict[str, TableResult] = {}

    def fail(table: str, error: BaseException) -> None:
        failure = explain(error, table)
        parking = parking_of(batch, table, failure, is_gone=is_driver_gone(error))
        if parking is None:
            failures[table], causes[table] = failure, error
        else:
            results[table] = TableResult(table=table, parked=parking)

    pool = ThreadPoolExecutor(min(len(batch.tables), MAX_PARALLEL), thread_name_prefix="merge")
    try:
        futures: dict[Future[TableResult | None], str] = {
            pool.submit(_apply_with_retries, batch, sessions, table): table for table in batch.tables
        }
        wait(futures)
        for future, table in futures.items():
            error = future.exception()
            if error is not None:
                fail(table, error)
            elif (result := future.result()) is not None:
                results[table] = with_start(result, started_s)
        if isinstance(sessions, TableSessions):
            without = {*failures, *(table for table, result in results.items() if result.parked is not None)}
            for table, error in _register(batch, sessions, without).items():
                fail(table, error)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    if failures:
        _raise(failures, causes)
    return noted + [results[table] for table in dict.fromkeys((*batch.tables, *results)) if table in results]


def _noted(batch: PreparedBatch) -> list[TableResult]:
    """Returns the results of tables that need no work."""
    return [*(TableResult(table=table, released=True) for table in batch.released), *batch.idle]


def with_cascades(batch: PreparedBatch, sessions: Sessions) -> PreparedBatch:
    """Finds the changes that foreign keys make without row events. Returns the batch with them; tables whose changes
    could not be found are to be parked."""
    config, manifest, schemas = batch.config, batch.manifest, batch.schemas
    assert schemas is not None  # it names the keys

    def base(table: str) -> LakeVersion | None:
        target = target_of(config, table)
        state = target.state()
        prove(target, state, manifest, batch.subscription, created_here=False, is_idle=True)
        return base_version(config, table, manifest.after_seq, state)

    with on_demand(sessions) as session:
        search = CascadeSearch(config, lambda _: [manifest], manifest.last_seq, schemas, session, base)
        cascaded = search.run(batch.reached)
    faults = dict(batch.faults)
    for table, error in search.errors.items():
        note_fault(config, table, error, faults)
    tables = tuple(dict.fromkeys((*batch.tables, *sorted(cascaded), *sorted(search.errors))))
    idle = tuple(idle_table for idle_table in batch.idle if idle_table.table not in tables)
    return replace(batch, cascaded=cascaded, faults=faults, tables=tables, idle=idle)


def _register(batch: PreparedBatch, sessions: TableSessions, without: set[str]) -> dict[str, BaseException]:
    """Registers all tables that are there in the configured catalog, except some. Returns the errors of tables."""
    if batch.config.apply.catalog.name is None:
        return {}
    errors: dict[str, BaseException] = {}
    tables = dict.fromkeys((*batch.tables, *sorted(batch.subscription.tables)))
    targets: list[Target] = []
    for table in tables:
        if table in without or table in batch.subscription.parked:
            continue
        if not batch.config.tables.includes(*split_table(table)):
            continue
        try:
            targets.append(target_of(batch.config, table))
        except CdcError as error:
            errors[table] = error
    with sessions.one() as session:
        for target in unknown(session.spark, batch.config, targets):
            try:
                if target.state() is not None:
                    register(session.spark, batch.config, target)
            except CdcError as error:
                errors[target.table] = error
    return errors


def parking_of(batch: PreparedBatch, table: str, error: CdcError, *, is_gone: bool) -> Parking | None:
    """Returns how a table is parked that could not be applied; None if the error must fail the batch. ``is_gone``: the
    driver has ended, which says nothing about the table."""
    if isinstance(error, NeedsSnapshotError):
        columns = UnknownColumns.of(error)  # the changes before the statement and after it are still needed with them
        keep_seq = None if columns is None else batch.manifest.after_seq
        return Parking(due="snapshot", reason=str(error), keep_seq=keep_seq, columns=columns)
    others = BatchError | LeaseHeldError | MetaUnavailableError | CatalogUnavailableError
    is_ours = not is_gone and not isinstance(error, others)
    if not is_ours or batch.config.table_apply(table).on_error == "block":
        return None
    return Parking(due="retry", reason=str(error), keep_seq=batch.manifest.after_seq)


def _raise(failures: dict[str, CdcError], causes: dict[str, BaseException]) -> None:
    """Raises one error for the batch: that of a table where a retry does not help, else the first one."""
    for table, error in failures.items():
        if len(failures) > 1:
            _log.error("table failed", table=table, reason=str(error))
    for table, error in failures.items():
        if not error.retryable:
            raise _with_table(error, table) from causes[table]
    table, error = next(iter(failures.items()))
    if isinstance(error, MergeFailedError):
        raise error from causes[table]
    raise MergeFailedError(str(error), place=f"table {table}") from causes[table]


def _with_table(error: CdcError, table: str) -> CdcError:
    """Returns the error with the table's name in it."""
    if table in str(error) or isinstance(error, TokenError | UnsupportedDdlError):
        return error
    place = f"table {table}" if error.place is None else f"table {table}, {error.place}"
    return type(error)(error.message, place=place, remedy=error.remedy)


# --- one table -------------------------------------------------------------------------------------------------------


def _apply_with_retries(batch: PreparedBatch, sessions: Sessions, table: str) -> TableResult | None:
    """Applies the batch to one table, again if another driver committed to it at the same moment."""

    def work() -> TableResult | None:
        return apply_table(batch, sessions, table)

    target = target_of(batch.config, table)
    if not target.apply.shared:
        return again_if_concurrent(work, table, _ATTEMPTS)
    return again_if_concurrent(work, table, SHARED_ATTEMPTS, target.columns_of_all)


def apply_table(batch: PreparedBatch, sessions: Sessions, table: str) -> TableResult | None:
    """Proves, creates, alters and fills one table. Returns None if there was nothing to do, or the table is parked."""
    with batch.enter(table) as parked:
        if parked is not None:
            _log.info("parked table left out", table=table, due=parked.due)
            return None
        with measured_phases() as times:
            results = [_apply_table(part, sessions, table) for part in batch.parts(table)]
    result = joined([result for result in results if result is not None])
    if result is None:
        return None
    phases = times.seconds()
    seconds = sum(seconds for phase, seconds in phases.items() if phase != "start")
    return result.model_copy(update={"seconds": round(seconds, 3), "phases": phases})


def _apply_table(batch: PreparedBatch, sessions: Sessions, table: str) -> TableResult | None:
    fault = batch.faults.get(table)
    if fault is not None:
        raise fault
    target = target_of(batch.config, table)
    changes = batch.changes(table)
    state = target.state()
    if state is not None:
        require_ownership(state, target, batch.manifest)
    elif _awaits_first_snapshot(batch, table):
        if not changes or ddl.ends(batch.statements, table):
            return None
        raise NeedsSnapshotError(
            "the table was there before capture began, and has not been loaded yet",
            place=f"table {table}",
            remedy=f"Run `cdc snapshot {batch.config.name}`.",
        )
    created_here = (batch.manifest.ddl and changes) or batch.creates(table)
    prove(target, state, batch.manifest, batch.subscription, created_here=created_here)
    if state is not None and not changes:
        return None
    follows = state is None or follows_configuration(state, target)
    comments = None if batch.schemas is None else batch.schemas.comments_of(table)
    # No table with constraints: they and small batches exclude each other.
    may_be_small = follows and batch.config.apply.small_batches.engine == "deltalake" and table not in batch.cascaded
    if may_be_small and (state is None or follows_comments(state, target, comments)):
        merged = merge_small(batch, target, state)
        if merged is not None:
            return merged
    if not isinstance(sessions, TableSessions):
        with in_phase("start"):
            sessions = sessions()
    with sessions.one() as session:
        created = state is None
        if state is not None and not follows:
            batch.check()
            state = follow_configuration(session.spark, target, state)
        ready = ddl.make_ready(batch, session, target, state)
        if ready is None:
            return None
        ready = replace(ready, state=_described(batch, session, target, ready, comments))
        if ready.is_untouched and batch.statements and ready.layout is None:
            return None
        if ready.has_position:
            result = result_of(table, ready.state)
        elif changes:
            unlogged, columns = ready.moved or batch.cascaded.get(table), ready.columns
            if columns is None and unlogged is not None:
                require_recorded_policies(target, ready.state, unlogged.schema)
                columns = columns_there(target, ready.state, columns_of_schema(unlogged.schema, target.policies))
            merge = TableMerge(
                session=session,
                target=target,
                manifest=batch.manifest,
                layout=ready.layout,
                columns=columns,
                unlogged=unlogged,
                schema=ready.schema,
                check=batch.check,
                is_large=batch.is_large(table),
            )
            result = merge_table(merge, ready.state)
        elif created:
            result = result_of(table, ready.state)
        else:
            return None
    return result


def _described(
    batch: PreparedBatch, session: TableSession, target: Target, ready: ddl.ReadyTable, comments: TableComments | None
) -> DeltaState:
    """Gives the table the source's comments and constraints, before its rows are merged. Returns its state."""
    state, layout = ready.state, ready.layout
    if not follows_comments(state, target, comments):
        batch.check()
        state = follow_comments(session.spark, target, state, comments)
    schema = tracked_schema(state) if target.apply.constraints else None
    if not follows_constraints(state, target, schema, layout):
        batch.check()
        state = follow_constraints(session.spark, target, state, schema, layout)
    return state


def _awaits_first_snapshot(batch: PreparedBatch, table: str) -> bool:
    """Whether a table without a Delta table has rows at the source that are not in the store."""
    never_loaded = batch.subscription.table(table) is None
    return batch.config.source.start == "snapshot" and never_loaded and not batch.creates(table)


def result_of(table: str, state: DeltaState) -> TableResult:
    """Returns the result of a table that was created, or changed by a statement, and has no rows in the batch."""
    return TableResult(
        table=table,
        delta_version=state.version,
        delta_id=state.id,
        applied_seq=state.applied_seq,
        generation=state.generation,
    )
