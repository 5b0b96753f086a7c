"""Snapshots: fills tables with the rows that they have at the source, beside the running capture and apply.

The chunks of all tables are read first (:mod:`cdc.source.snapshot`). Then each table is loaded: once the store has
everything up to the position of its last chunk, one commit makes the Delta table equal to the source at that position,
and the catch-up takes it from there to the others.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from cdc.base.errors import (
    CdcError,
    CutOffError,
    IdentityError,
    NeedsSnapshotError,
    RetryableError,
    SchemaChangedError,
    StoreIncompleteError,
    UsageError,
)
from cdc.base.log import get_logger
from cdc.base.targets import split_table
from cdc.base.validation import there_is
from cdc.batches import parking
from cdc.batches.table_batches import batches_between
from cdc.client import open_batches, open_meta, open_store
from cdc.config import DestinationConfig
from cdc.lake.apply.schema.statements import DdlStatement, read_statements, zone_of
from cdc.lake.delta.proof import position_of as reached
from cdc.lake.delta.tables import target_of
from cdc.lake.jobs.columns import TooEarlyError, UnusableError, asks_for_more, merge_columns, merge_rest, note_unknown
from cdc.lake.jobs.generations import load_position, require_no_archive
from cdc.lake.jobs.job import SUBSCRIBER, Job, job, raise_failure, repair_job, require_included, table_sessions
from cdc.lake.jobs.load import ChangesMeanwhile, is_behind, is_loaded, load_snapshot
from cdc.lake.jobs.part import MoreRowsError, load_part, require_table_for_part, resolve_part
from cdc.lake.jobs.read_snapshot import read_in_spark
from cdc.lake.jobs.results import CatchUp, SnapshotResult
from cdc.lake.jobs.retry import bring_level
from cdc.lake.jobs.table_part import PartRequest
from cdc.lake.runtime.session import acquire
from cdc.lake.runtime.spark_settings import in_process
from cdc.meta import ParkedTable, UnknownColumns
from cdc.source.connection import connect, require_server
from cdc.source.schemas import is_dropped
from cdc.source.server import clock_and_position
from cdc.source.snapshot import SnapshotFiles, take_all
from cdc.source.snapshot.files import remove_useless
from cdc.source.snapshot.parts import PartRecord
from cdc.source.snapshot.progress import ProgressCallback
from cdc.source.snapshot.taking import wait_for_margin
from cdc.store.reader.store import Store

ATTEMPTS = 5
"""The number of times that a snapshot begins anew because the table changed while it was read."""
STORE_WAIT_S = 60.0
"""The time that a load waits for capture to reach the position of the last chunk."""
_log = get_logger(__name__)


def due_tables(config: DestinationConfig) -> list[str]:
    """Returns the tables that wait for a snapshot: those that are parked for one, and, with ``start: snapshot``, those
    that were never loaded."""
    state = open_meta(config).read()
    subscription = state.subscriptions.get(SUBSCRIBER)
    parked = {} if subscription is None else subscription.parked
    due = {table for table, parked_table in parked.items() if parked_table.due == "snapshot"}
    if config.source.start == "snapshot":
        loaded = set() if subscription is None else set(subscription.tables)
        due |= {table for table in _source_tables(config) if table not in loaded and table not in parked}
    return sorted(table for table in due if config.tables.includes(*split_table(table)))


def _source_tables(config: DestinationConfig) -> list[str]:
    """Returns the included tables that the source had when capture last looked. Raises UsageError if it never did."""
    newest = open_store(config).newest_schemas()
    if newest is None:
        raise UsageError(
            "nothing was captured yet, and a snapshot needs the changes that happen while it is taken",
            place=config.name,
            remedy=f"Start `cdc capture {config.name}` first, and leave it running.",
        )
    return sorted(newest[1].tables)


def take_snapshots(
    config: DestinationConfig,
    tables: Sequence[str] | None = None,
    *,
    progress: ProgressCallback | None = None,
    whole: bool = False,
    part: PartRequest | None = None,
) -> list[SnapshotResult]:
    """Takes snapshots of these tables (None: of all that are due) and loads them. Returns one result per table.

    Of a table that waits for the values of some columns, these are read beside the key; with ``whole`` all columns.
    ``part``: only these rows of each table are read, and replaced.

    A table that fails stays parked, and the others are finished first; then its error is raised. Called again after a
    kill, it continues: chunks that were read are not read again. Raises UsageError, LeaseHeldError (another job works
    on a table), and what reading and loading raise.
    """
    if part is not None and (whole or not tables):
        raise UsageError(
            "--keys and --where choose rows of tables that are named, and do not go with --whole",
            remedy="Name the tables, and leave out --whole.",
        )
    require_server(config.source, "a snapshot")
    identity = open_meta(config).source()
    config = config.at_server(None if identity is None else identity.address)
    source_tables = _source_tables(config)
    errors: dict[str, CdcError] = {}
    if tables is None:
        due = due_tables(config)
        names = [table for table in due if table in source_tables]
        errors = _release_dropped(config, [table for table in due if table not in source_tables])
    else:
        names = list(dict.fromkeys(tables))
    for table in names:
        require_included(config, table)
        if table not in source_tables:
            raise UsageError(
                f"the source has no table {table}",
                place=config.name,
                remedy=there_is(table, source_tables),
            )
    if not names:
        raise_failure("snapshot", errors)
        return []
    complete = {}
    if part is not None:
        for table in names:
            complete[table] = require_table_for_part(config, table)
            resolve_part(config, table, part)
    remove_useless(config, open_store(config).removed_seq())
    require_subscriber(config)
    results: list[SnapshotResult] = []
    with ExitStack() as stack:
        asked = tables is not None
        jobs = {}
        for table in names:
            if part is None:
                parked_job = _snapshot_job(config, table, asked=asked, whole=whole)
            else:
                keep_seq = min(complete[table], safe_low(open_store(config)))
                parked_job = repair_job(config, table, keep_seq, "A part of the table is being loaded.")
            jobs[table] = stack.enter_context(parked_job)
        left, reread = [] if part is None else [*names], dict.fromkeys(names, 0)
        more: dict[str, list[Sequence[Any]]] = {table: [] for table in names}
        for table in names if part is None else ():
            files, began = _loaded_before(jobs[table]), time.monotonic()
            try:
                if files is not None:
                    results.append(_follow(jobs[table], files, 0, began))
                elif (merged := _merged_before(jobs[table], began)) is not None:
                    results.append(merged)
                else:
                    _require_no_archive(jobs[table])
                    left.append(table)
            except NeedsSnapshotError:
                left.append(table)
            except CdcError as error:
                errors[table] = error
        while left:
            again: list[str] = []
            in_margin = False
            columns = {
                table: unknown_columns for table in left if (unknown_columns := jobs[table].columns()) is not None
            }
            parts = {}
            if part is not None:
                parts = {table: resolve_part(config, table, part).with_keys(more[table]).record for table in left}
            for table, outcome in _read(config, left, (columns, parts), progress).items():
                try:
                    if isinstance(outcome, CdcError):
                        raise outcome
                    results.append(_load(jobs[table], outcome, reread[table], part))
                except CdcError as error:
                    if isinstance(error, MoreRowsError):
                        more[table] += error.keys
                    if not _begins_anew(error, of_columns=table in columns):
                        errors[table] = error
                        continue
                    try:
                        if table in columns:
                            note_unknown(jobs[table], error)
                            _require_no_archive(jobs[table])
                    except CdcError as refusal:
                        errors[table] = refusal
                        continue
                    reread[table] += 1
                    if reread[table] >= ATTEMPTS:
                        errors[table] = error
                        continue
                    _log.warning("the snapshot of a table begins anew", table=table, reason=str(error))
                    if not isinstance(outcome, CdcError):
                        in_margin = in_margin or _may_be_older(error, outcome)
                        if outcome.loaded() is None:
                            outcome.remove()
                    again.append(table)
            if in_margin:
                wait_for_margin(time.time() * 1e6, "a table was altered a moment ago")
            left = again
        for table, failure in errors.items():
            if table in jobs:
                jobs[table].note(failure)
    raise_failure("snapshot", errors)
    order = {name: number for number, name in enumerate(names)}
    return sorted(results, key=lambda result: order[result.table])


def _may_be_older(error: CdcError, files: SnapshotFiles) -> bool:
    """Whether the statement that a snapshot met may have been there before it. A server without GTIDs does not tell, so
    the snapshot needs the changes of a margin before it."""
    return isinstance(error, SchemaChangedError | TooEarlyError) and files.info.method == "margin"


def _begins_anew(error: CdcError, *, of_columns: bool) -> bool:
    """Whether the snapshot of a table is taken again after an error. ``of_columns``: whether it read columns alone, so
    that the whole table may be read instead."""
    again = isinstance(error, SchemaChangedError | NeedsSnapshotError | UnusableError)
    return again or (of_columns and asks_for_more(error))


def _loaded_before(mine: Job) -> SnapshotFiles | None:
    """Returns the snapshot that a killed process has loaded without bringing the table level; None if there is none."""
    record = mine.record()
    if record is None or record.loaded is None:
        return None
    loaded = [files for files in SnapshotFiles.find(mine.config, *split_table(mine.table)) if files.id == record.loaded]
    return loaded[0] if loaded and loaded[0].loaded() is not None else None


def _release_dropped(config: DestinationConfig, tables: Sequence[str]) -> dict[str, CdcError]:
    """Removes the records of parked tables that the source has dropped, once apply is behind the statement. Their Delta
    tables stay as they are. Returns an error for each table that capture does not know, although it may be there."""
    newest, meta = open_store(config).newest_schemas() if tables else None, open_meta(config)
    if newest is None or meta.read().subscription(SUBSCRIBER).position() < newest[0]:
        return {}

    errors: dict[str, CdcError] = {}
    with closing(connect(config.source)) as conn:
        for table in tables:
            try:
                if not is_dropped(conn, *split_table(table)):
                    raise UsageError(
                        "it is there, and capture does not know it: the user could not see it when capture looked",
                        place=f"table {table}",
                        remedy=f"Restart `cdc capture {config.name}`, which reads the definitions.",
                    )
            except CdcError as error:
                errors[table] = error
                continue
            with parking.job_lock(meta, table):
                parking.release_parked(meta, SUBSCRIBER, table)
            _log.info("parked table released, as the source has dropped it", table=table)
    return errors


def require_subscriber(config: DestinationConfig) -> None:
    """Adds the subscriber ``apply`` if there is none yet, so that tables can be parked."""
    service = open_batches(config)
    if SUBSCRIBER not in service.meta.read().subscriptions:
        service.subscribe(SUBSCRIBER)


@contextmanager
def _snapshot_job(config: DestinationConfig, table: str, *, asked: bool, whole: bool) -> Iterator[Job]:
    meta = open_meta(config)
    before = meta.read().subscription(SUBSCRIBER).parked.get(table)
    if before is not None and (before.due == "snapshot" or before.loaded is not None):
        record = before.model_copy(update={"columns": None}) if whole else before
    else:
        reason = "a snapshot was asked for" if asked else "the table was never loaded"
        record = ParkedTable(due="snapshot", reason=reason, since=datetime.now(UTC), keep_seq=None)
    with job(config, table, record) as mine:
        if record.loaded is None:
            # The chunks of a snapshot that is continued need the changes since it began.
            low = safe_low(mine.batches.reader)
            mine.keep_from(low if record.keep_seq is None else min(low, record.keep_seq))
        yield mine


def safe_low(reader: Store) -> int:
    """Returns a seq that surely lies before every position of a snapshot that begins now, and that retention has not
    removed: the beginning of the last but one segment."""
    starts = reader.segment_starts()
    return max(reader.removed_seq(), starts[-2] if len(starts) > 1 else 0)


# --- reading ---------------------------------------------------------------------------------------------------------


def _read(
    config: DestinationConfig,
    tables: Sequence[str],
    chosen: tuple[Mapping[str, UnknownColumns], Mapping[str, PartRecord]],
    progress: ProgressCallback | None,
) -> dict[str, SnapshotFiles | CdcError]:
    source = open_meta(config).source()
    assert source is not None  # there is a store

    read = None
    if not in_process(config.spark):  # executors are elsewhere, perhaps many; else threads of this process read
        read = read_in_spark(acquire(config.spark).spark)
    columns, parts = chosen
    names = {table: unknown_columns.names for table, unknown_columns in columns.items()}
    return take_all(config, tables, source, progress=progress, read=read, columns=names, parts=parts)


# --- loading ---------------------------------------------------------------------------------------------------------


def _require_no_archive(mine: Job) -> None:
    """Raises UnsupportedError before anything is read, if the load would be refused."""
    target = target_of(mine.config, mine.table)
    state = target.state()
    if state is not None and mine.columns() is None:
        require_no_archive(state, target)


def _load(mine: Job, files: SnapshotFiles, reread: int, part: PartRequest | None) -> SnapshotResult:
    """Loads the chunks of a table, or of a part of it, catches up, and unparks it."""
    began = time.monotonic()
    reader = mine.batches.reader
    high = files.high_seq()
    wait_for_store(mine, reader, high)
    try:
        low = files.low_seq(reader, is_complete=True)
    except StoreIncompleteError:
        raise
    except (IdentityError, RetryableError) as error:
        # A transaction that was being committed when capture or the snapshot began; the next chunks are later.
        raise UnusableError(error.message, place=f"table {mine.table}", remedy="Take the snapshot again.") from error
    if part is not None:
        done, seq, differed = load_part(mine, files, part, low)
        result = replace(_result(mine, files, (low, seq), done, reread, began), differed=differed)
        files.remove()
        return result
    unknown_columns = mine.columns()
    if unknown_columns is not None:
        done = merge_columns(mine, files, unknown_columns, low)
        result = _result(mine, files, (low, high), done, reread, began)
        files.remove()  # no table can be built from it
        return result
    mine.keep_from(low)
    if not is_loaded(mine.config, files):
        _replace(mine, files, low, high)
    files.mark_loaded(low, high)
    # From here on each run of apply can bring the table level, if this job is killed.
    mine.mark("retry", "The snapshot is loaded, and the changes behind it follow.", high, loaded=files.id)
    _remove_older(mine, files)
    return _follow(mine, files, reread, began)


def _replace(mine: Job, files: SnapshotFiles, low: int, high: int) -> None:
    """Makes the Delta table equal to the source at the last position of the chunks."""
    reader = mine.batches.reader
    if not is_behind(mine.config, mine.table, high):
        raise UnusableError("the table has later changes than the chunks", place=f"table {mine.table}")
    if not files.info.key and not files.is_exact(reader, is_complete=True):
        raise UnusableError(
            "the table has no key, and it changed while it was read, so that its rows cannot be matched to the changes",
            place=f"table {mine.table}",
            remedy="Take its snapshot while the table is not written to.",
        )
    statements = _overtaken(mine, high)
    try:
        with mine.batches.next(mine.table, low, high, whole=True) as manifest:
            if manifest is not None and (manifest.ddl or _has_more(mine, manifest.last_seq, high)):
                raise SchemaChangedError(
                    "a DDL statement changed the table while its snapshot was taken", place=f"table {mine.table}"
                )
            position = load_position(mine, high)
            sessions = table_sessions(mine.config)
            meanwhile = ChangesMeanwhile(mine.config, mine.batches, manifest, low)
            load_snapshot(sessions, mine.config, files, meanwhile, position, statements, mine.comments())
    except CutOffError as error:
        raise UnusableError(error.message, place=f"table {mine.table}", remedy="Take the snapshot again.") from error


def _overtaken(mine: Job, high: int) -> list[DdlStatement]:
    """Returns the DDL statements between the position of a table that keeps its history and that of its snapshot; none
    if the store does not have all of them any more."""
    target = target_of(mine.config, mine.table)
    state = target.state()
    if state is None or target.apply.mode == "upsert":
        return []
    statements: list[DdlStatement] = []
    ignores_case = mine.config.tables.ignores_case
    try:
        for manifest in batches_between(mine.batches, mine.table, reached(state), high, whole=True):
            if manifest.ddl:
                zone = zone_of(manifest)
                statements += read_statements(manifest.ranges, ignores_case=ignores_case, system_zone=zone)
    except CutOffError as error:
        _log.info("columns are followed by their names alone", table=mine.table, reason=error.message)
        return []
    return statements


def _follow(mine: Job, files: SnapshotFiles, reread: int, began: float) -> SnapshotResult:
    """Brings a table level that was loaded from a snapshot, and unparks it."""
    loaded = files.loaded()
    assert loaded is not None  # the callers have looked
    try:
        done = bring_level(mine, loaded.high_seq)
    except NeedsSnapshotError as error:
        columns = UnknownColumns.of(error)
        mine.mark("snapshot", str(error), None if columns is None else loaded.high_seq, columns=columns)
        raise
    return _result(mine, files, (loaded.low_seq, loaded.high_seq), done, reread, began)


def _merged_before(mine: Job, began: float) -> SnapshotResult | None:
    """Brings a table level whose columns a killed process has merged. Returns None if there are none."""
    done = merge_rest(mine)
    return None if done is None else _result(mine, None, (done.level_seq, done.level_seq), done, 0, began)


def _result(
    mine: Job, files: SnapshotFiles | None, bounds: tuple[int, int], done: CatchUp, reread: int, began: float
) -> SnapshotResult:
    """Returns what was done. ``files``: what was read; None: nothing. ``bounds``: the positions between which it was
    read."""
    records, columns = ([], ()) if files is None else (files.records(), files.info.columns)
    low, high = bounds
    state = target_of(mine.config, mine.table).state()
    return SnapshotResult(
        table=mine.table,
        rows=sum(record.rows for record in records),
        bytes=sum(record.bytes for record in records),
        chunks=len(records),
        seconds=round(time.monotonic() - began, 3),
        first_seq=low,
        last_seq=high,
        changes=done.row_events,
        applied_seq=high if state is None else max(state.applied_seq, high),
        reread=reread,
        columns=columns,
    )


def _remove_older(mine: Job, files: SnapshotFiles) -> None:
    """Removes the snapshots that the table was loaded from before."""
    for older_files in SnapshotFiles.find(mine.config, files.info.db, files.info.name):
        if older_files.id < files.id:
            older_files.remove()


def _has_more(mine: Job, after_seq: int, until_seq: int) -> bool:
    """Whether the store has more of the table up to a position: a DDL statement ended the selection."""
    with mine.batches.next(mine.table, after_seq, until_seq) as manifest:
        return manifest is not None


def wait_for_store(mine: Job, reader: Store, high: int) -> None:
    """Waits until the store has every transaction up to a position. Raises StoreIncompleteError."""
    deadline = time.monotonic() + STORE_WAIT_S
    clock_us: int | None = None
    begins = reader.beginning()
    first = 0 if begins is None else begins.seq
    while max(reader.last_seq() or 0, first) < high:
        if clock_us is None:
            # What the source has at this moment lies behind the snapshot. Once the store is complete up to it, the
            # rest up to the position was nothing of ours.
            with connect(mine.config.source) as connection:
                clock_us = clock_and_position(connection).time_us
        if reader.complete_until_us() >= clock_us:
            return
        if time.monotonic() > deadline:
            capture = reader.capture_state()
            running = capture is not None and capture.running
            raise StoreIncompleteError(
                f"the store of {mine.config.name} does not reach the position of the snapshot of {mine.table} yet",
                place=mine.config.store.place,
                remedy="Capture is behind: call the command again, which reads no chunk again."
                if running
                else f"Capture is not running: start `cdc capture {mine.config.name}`, then call the command again. No "
                "chunk is read again.",
            )
        time.sleep(0.1)
