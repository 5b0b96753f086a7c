"""Replays: builds tables again from the store, up to now or up to any transaction that it keeps, without the source.

A replay begins with a snapshot that is kept in the store, or with an empty table if the store has every change of it.
It builds the new table beside the old one, and then replaces the old one in one commit, so that readers never see the
table on its way.
"""

from __future__ import annotations

import glob
import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cdc.base.errors import CdcError, CutOffError, UsageError
from cdc.base.log import get_logger
from cdc.base.targets import begins_of, split_table
from cdc.binlog.positions import format_seq
from cdc.client import open_meta, open_table_batches
from cdc.config import DestinationConfig
from cdc.config.apply import MODES, lake_uri
from cdc.config.catalog import CatalogConfig
from cdc.lake.delta.tables import target_of
from cdc.lake.jobs.catch_up import TransactionRange, catch_up
from cdc.lake.jobs.generations import load_position
from cdc.lake.jobs.job import SUBSCRIBER, Job, raise_failure, repair_job, require_included, table_sessions
from cdc.lake.jobs.load import ChangesMeanwhile, load_snapshot
from cdc.lake.jobs.part import reached_seq, replay_part, require_table_for_part, resolve_part
from cdc.lake.jobs.rebuilt import begin_generation, replace_by
from cdc.lake.jobs.results import CatchUp, ReplayResult
from cdc.lake.jobs.retry import bring_level
from cdc.lake.jobs.table_part import PartRequest
from cdc.meta import Subscription
from cdc.source.snapshot.files import SnapshotFiles
from cdc.source.snapshot.table import TableReading
from cdc.store.reader.points import find_point, require_point
from cdc.store.reader.staged import filesystem
from cdc.store.reader.store import Store

if TYPE_CHECKING:
    from cdc.lake.jobs.values import Replay

Progress = Callable[["CatchUp"], object]
BESIDE = "_towpath/replay"
"""Folder below ``apply.target`` in which tables are built again."""
_UNDER_WAY = "A replay is under way."
_log = get_logger(__name__)


@dataclass(frozen=True)
class Base:
    """The beginning of a rebuilt table: a snapshot, or an empty table, and every change after ``seq``."""

    seq: int
    snapshot: SnapshotFiles | None

    def first_seq(self) -> int:
        """Returns the seq of the first state that can be built from it."""
        return self.seq if self.snapshot is None else self.snapshot.high_seq()


def replay(config: DestinationConfig, request: Replay, progress: Progress = lambda _: None) -> list[ReplayResult]:
    """Builds tables again from the store. Returns one result per table.

    Without points the table ends level with the others. ``to``: as of that transaction; in place it is then parked,
    until a replay without ``to`` brings it back. ``from_``: nothing is built anew, and the changes after that point are
    applied once more to the table as it is. ``into``: the new table is built at ``into/DB/TABLE``, and the old one
    stays as it is. ``mode``: with ``into``, the mode of the new table. ``keys``, ``where``: only these rows of the
    present table are replaced.

    Raises UsageError for points and tables that the store does not have, CutOffError if it lacks the beginning of a
    table, LeaseHeldError, and what merges raise.
    """
    require_sensible(config, request)
    if request.into is not None:
        request = replace(request, into=lake_uri(config.file, request.into))
    points, part = _points(config, request), PartRequest.of(request.keys, request.where)
    results: list[ReplayResult] = []
    errors: dict[str, CdcError] = {}
    for table in dict.fromkeys(request.tables):
        try:
            if part is not None:
                results.append(_part(config, table, part, progress))
            elif request.into is not None:
                results.append(_into(config, table, request, points, progress))
            elif points.first is not None:
                results.append(_range(config, table, points.first, progress))
            else:
                results.append(_in_place(config, table, request, points, progress))
        except CdcError as error:
            errors[table] = error
    raise_failure("replay", errors)
    return results


@dataclass(frozen=True)
class _Points:
    """The points of a request as seqs."""

    first: int | None
    last: int | None


def _points(config: DestinationConfig, request: Replay) -> _Points:
    reader = open_table_batches(config, archived="release").reader
    first = None if request.from_ is None else find_point(reader, request.from_)
    return _Points(first, None if request.to is None else find_point(reader, request.to))


def require_sensible(config: DestinationConfig, request: Replay) -> None:
    """Raises UsageError for tables that are not included, options that contradict each other, and texts that name no
    point."""
    if not request.tables:
        raise UsageError("no table is named", remedy="Give at least one, as DB.TABLE.")
    for table in request.tables:
        require_included(config, table)
    if request.from_ is not None and (request.to is not None or request.into is not None):
        raise UsageError(
            "--from fills a table in place up to now, so it takes neither --to nor --into",
            remedy="Leave out --from to build the table from its beginning.",
        )
    part = PartRequest.of(request.keys, request.where)
    others = [request.from_, request.to, request.into, request.mode]
    if part is not None and any(other is not None for other in others):
        raise UsageError(
            "--keys and --where replace rows of a table in place, as of now, so they take neither --from, --to, --into "
            "nor --mode",
            remedy="Leave out --keys and --where to take the whole table. To read rows as of a point, build the table "
            "beside with `--to P --into URI`.",
        )
    if request.mode is not None and request.into is None:
        raise UsageError(
            "--mode needs --into",
            remedy="To change the mode of the table itself, change it in the configuration, then replay the table.",
        )
    if request.mode is not None and request.mode not in MODES:
        raise UsageError(f"--mode {request.mode!r} is no mode", remedy=f"Choose from {', '.join(MODES)}.")
    for point in (request.from_, request.to):
        if point is not None:
            require_point(point)
    subscription = open_meta(config).read().subscriptions.get(SUBSCRIBER)
    if subscription is None:
        raise UsageError(
            "nothing was applied yet, so there is nothing to replay",
            place=config.name,
            remedy=f"Run `cdc apply {config.name}` first.",
        )


# --- in place --------------------------------------------------------------------------------------------------------


def _in_place(
    config: DestinationConfig, table: str, request: Replay, points: _Points, progress: Progress
) -> ReplayResult:
    began = time.monotonic()
    target = target_of(config, table)
    reader = open_table_batches(config, archived="release").reader
    base = find_base(config, table, reader, target.state())
    if points.last is not None:
        require_reaches(base, points.last, table)
    with repair_job(config, table, base.seq, _UNDER_WAY) as mine:
        upto = _end(mine, base) if points.last is None else points.last
        require_reaches(base, upto, table)
        side = _folder_beside(config, table)
        try:
            done = _build(mine, base, side, None, upto, progress)
            _replace(mine, side, upto, base)
        finally:
            _remove(side, table)
        if points.last is not None:
            mine.mark("hold", f"The table was taken back to {request.to}.", upto)
            return _result(table, began, done, base.seq, upto, target.path, base.snapshot)
        mine.mark("retry", "The table was built again, and later changes follow.", upto)
        more = bring_level(mine, upto, progress)
        done.batches, done.row_events = done.batches + more.batches, done.row_events + more.row_events
        return _result(table, began, done, base.seq, more.level_seq, target.path, base.snapshot)


def _part(config: DestinationConfig, table: str, part: PartRequest, progress: Progress) -> ReplayResult:
    """Builds the table beside, and replaces the rows of a part of the present one."""
    began = time.monotonic()
    complete = require_table_for_part(config, table)
    resolve_part(config, table, part)
    target = target_of(config, table)
    base = find_base(config, table, open_table_batches(config, archived="release").reader, target.state())
    with repair_job(config, table, min(complete, base.seq), _UNDER_WAY) as mine:
        upto, side = max(_end(mine, base), reached_seq(mine)), _folder_beside(config, table)
        try:
            done = _build(mine, base, side, None, upto, progress)
            more, differed = replay_part(mine, elsewhere(config, side, None), part, upto)
        finally:
            _remove(side, table)
        done.batches, done.row_events = done.batches + more.batches, done.row_events + more.row_events
        result = _result(table, began, done, base.seq, more.level_seq, target.path, base.snapshot)
        return replace(result, differed=differed)


def _range(config: DestinationConfig, table: str, first: int, progress: Progress) -> ReplayResult:
    """Applies the changes after a point once more to the table as it is, as its next generation."""
    began = time.monotonic()
    batches = open_table_batches(config, archived="release")
    require_repeatable(config, batches.reader, first, table)
    _require_no_ddl(Job(config, table, batches), first)
    with repair_job(config, table, first, _UNDER_WAY) as mine:
        begin_generation(table_sessions(config), config, table, load_position(mine, first))
        done = bring_level(mine, first, progress)
        return _result(table, began, done, first, done.level_seq, target_of(config, table).path, None)


def _end(mine: Job, base: Base) -> int:
    """Returns the seq that a table must reach to be level. A snapshot may lie behind every batch that was fetched."""
    return max(mine.end_of_batches(), base.first_seq())


def _require_no_ddl(mine: Job, first: int) -> None:
    """Raises UsageError if a DDL statement of the table lies behind a point: it cannot be applied twice."""
    with mine.batches.next(mine.table, first, whole=True) as manifest:
        last = manifest.last_seq if manifest is not None else first
        is_ddl = manifest is not None and manifest.ddl
    if not is_ddl:
        with mine.batches.next(mine.table, last) as manifest:
            is_ddl = manifest is not None and manifest.ddl
    if is_ddl:
        raise UsageError(
            f"a DDL statement changed table {mine.table} after that point, and it cannot be applied twice",
            remedy="Replay the whole table, without --from.",
        )


def _replace(mine: Job, side: str, upto: int, base: Base) -> None:
    built = elsewhere(mine.config, side, None)
    begins = base.seq if base.snapshot is None else None
    sessions = table_sessions(mine.config)
    replace_by(sessions, mine.config, built, mine.table, load_position(mine, upto), begins, mine.comments())


# --- beside ----------------------------------------------------------------------------------------------------------


def _into(config: DestinationConfig, table: str, request: Replay, points: _Points, progress: Progress) -> ReplayResult:
    assert request.into is not None
    began = time.monotonic()
    side_config = elsewhere(config, request.into, request.mode)
    target = target_of(side_config, table)
    if target.state() is not None:
        raise UsageError(
            "a Delta table is there already",
            place=target.path,
            remedy="Give --into another folder, or move the table away.",
        )
    mine = Job(config, table, open_table_batches(config, archived="release"))
    reader = mine.batches.reader
    base = find_base(config, table, reader, target_of(config, table).state())
    upto = _end(mine, base) if points.last is None else points.last
    require_reaches(base, upto, table)
    done = _build(mine, base, request.into, request.mode, upto, progress)
    return _result(table, began, done, base.seq, upto, target.path, base.snapshot)


def elsewhere(config: DestinationConfig, target: str, mode: str | None) -> DestinationConfig:
    """Returns the configuration with another ``apply.target``, no catalog and, if given, one mode for all tables."""
    update: dict[str, Any] = {"target": target, "catalog": CatalogConfig()}
    tables = config.tables
    if mode is not None:
        update["mode"] = mode
        overrides = {name: override.model_copy(update={"mode": None}) for name, override in tables.overrides.items()}
        tables = tables.model_copy(update={"overrides": overrides})
    return config.model_copy(update={"apply": config.apply.model_copy(update=update), "tables": tables})


def _build(mine: Job, base: Base, folder: str, mode: str | None, upto: int, progress: Progress) -> CatchUp:
    """Builds a table at ``folder/DB/TABLE`` up to a seq."""
    side_config = elsewhere(mine.config, folder, mode)
    sessions = table_sessions(mine.config)
    after = base.first_seq()
    if base.snapshot is not None:
        with mine.batches.next(mine.table, base.seq, after, whole=True) as manifest:
            meanwhile = ChangesMeanwhile(mine.config, mine.batches, manifest, base.seq)
            load_snapshot(sessions, side_config, base.snapshot, meanwhile, load_position(mine, after))
    return catch_up(
        side_config,
        mine.table,
        mine.batches,
        Subscription(),
        sessions,
        TransactionRange(after, upto),
        progress=progress,
        lake=mine.config,
    )


def _folder_beside(config: DestinationConfig, table: str) -> str:
    """Returns a new folder to build the table in, after removing those of replays that were killed."""
    target = config.apply.target.rstrip("/")
    # Other members of a group may build the same table at this moment, each its own rows.
    whose = f"{config.name}:{table}" if config.apply.shared else table
    stem = f"{BESIDE}-{hashlib.sha256(whose.encode()).hexdigest()[:12]}"
    fs, path = _filesystem(target)
    for left in fs.glob(f"{glob.escape(path.rstrip('/'))}/{stem}-*"):
        fs.rm(left, recursive=True)
        _log.info("the copy of a replay that was killed is removed", table=table, folder=left)
    # The name is new, so that a driver of the killed replay cannot write into it.
    return f"{target}/{stem}-{secrets.token_hex(6)}"


def _filesystem(folder: str) -> tuple[Any, str]:
    return filesystem(folder if "://" in folder else f"file://{folder}")


def _remove(side: str, table: str) -> None:
    """Removes a table that was built beside. Failures are logged: the files are in nobody's way."""
    try:
        fs, path = _filesystem(side)
        fs.rm(path, recursive=True)
    except FileNotFoundError:
        return
    except (OSError, CdcError) as error:
        _log.warning("the copy of a replay was not removed", table=table, folder=side, reason=str(error))


# --- from what -------------------------------------------------------------------------------------------------------


def find_base(config: DestinationConfig, table: str, reader: Store, state: Any) -> Base:
    """Returns what a table can be built from. Raises CutOffError if the store has neither all of its changes nor a
    snapshot with all changes after it, UsageError if there is no such table."""
    kept = _kept_seq(reader)
    for files in reversed(SnapshotFiles.find(config, *split_table(table))):
        loaded = files.loaded()
        if loaded is not None and loaded.low_seq >= kept and has_policies_of(config, files):
            return Base(loaded.low_seq, files)
    begins = None if state is None else begins_of(state.properties)
    if begins is not None and begins >= kept:
        return Base(begins, None)
    if state is not None and begins is None:
        raise CutOffError(
            f"the store has no snapshot of table {table} by the present policies with all changes after it, and the "
            "table cannot be made from its changes alone: it took over rows of another table, or of a snapshot",
            place=config.store.place,
            remedy=f"Run `cdc snapshot {config.name} {table}`, which reads the table from the source.",
        )
    _require_exists(config, table, reader, state)
    raise CutOffError(
        f"the store has no snapshot of table {table}, and not all of its changes: it begins after "
        f"{kept} ({format_seq(kept)})",
        place=config.store.place,
        remedy=f"Run `cdc snapshot {config.name} {table}`, which reads the table from the source.",
    )


def _require_exists(config: DestinationConfig, table: str, reader: Store, state: Any) -> None:
    """Raises UsageError if neither the source nor the lake has the table."""
    newest = reader.newest_schemas()
    if state is None and newest is not None and table not in newest[1].tables:
        raise UsageError(
            f"there is no table {table}: the source had none when capture last looked, and there is no Delta table",
            place=config.name,
            remedy="Check the name.",
        )


def has_policies_of(config: DestinationConfig, files: SnapshotFiles) -> bool:
    """Whether the rows of a snapshot have the policies that the configuration says now. Raises ConfigError for a policy
    that does not fit."""
    info = files.info
    settings = TableReading.of(config, info.db, info.name, info.definition).settings()
    free = {"exact", "zero_dates"}  # which rows are refused, and not what the others hold
    now, was = ({k: v for k, v in values.items() if k not in free} for values in (settings["values"], info.values))
    return bool(settings["policies"] == info.policies and now == was)


def _kept_seq(reader: Store) -> int:
    """Returns the seq behind which the store has all transactions."""
    begins = reader.beginning()
    return max(reader.removed_seq(), begins.seq if begins is not None else 0)


def require_kept(reader: Store, seq: int, table: str) -> None:
    """Raises CutOffError if the store lacks changes of the table behind a seq."""
    kept = _kept_seq(reader)
    if seq < kept:
        raise CutOffError(
            f"the store has no changes of table {table} before {kept} ({format_seq(kept)})",
            place=reader.place,
            remedy="Give a later point.",
        )


def require_repeatable(config: DestinationConfig, reader: Store, first: int, table: str) -> None:
    """Raises UsageError or CutOffError if the changes after a seq cannot be applied once more to the table as it is."""
    require_kept(reader, first, table)
    if config.table_apply(table).mode == "scd2":
        raise UsageError(
            "the versions of a row (mode: scd2) follow from all of its changes, so a part cannot be applied once more",
            place=f"table {table}",
            remedy="Replay the whole table, without --from.",
        )
    state = target_of(config, table).state()
    _require_exists(config, table, reader, state)
    if state is None:
        raise UsageError(
            "there is no Delta table yet to which changes could be applied once more",
            place=f"table {table}",
            remedy="Replay the whole table, without --from.",
        )
    subscription = open_meta(config).read().subscription(SUBSCRIBER)
    # A table that is not parked has all of its changes up to the cursor, even if its last one was long before.
    applied = state.applied_seq if table in subscription.parked else max(state.applied_seq, subscription.position())
    if applied < first:
        # To go on behind that point would leave changes out.
        raise UsageError(
            f"the table has no changes after {applied} ({format_seq(applied)}) yet, so those up to "
            f"{first} ({format_seq(first)}) would be left out",
            place=f"table {table}",
            remedy="Give an earlier point, or apply what is waiting first.",
        )


def require_reaches(base: Base, upto: int, table: str) -> None:
    """Raises CutOffError if a point lies before the first state that can be built from a base."""
    first = base.first_seq()
    if upto < first:
        raise CutOffError(
            f"table {table} can be built from {first} ({format_seq(first)}) on, and {upto} ({format_seq(upto)}) lies "
            "before that",
            remedy="Give a later point.",
        )


def _result(
    table: str, began: float, done: CatchUp, first: int, last: int, path: str, snapshot: SnapshotFiles | None
) -> ReplayResult:
    records = [] if snapshot is None else snapshot.records()
    return ReplayResult(
        table=table,
        rows=done.row_events + sum(record.rows for record in records),
        bytes=done.bytes + sum(record.bytes for record in records),
        chunks=done.batches + len(records),
        seconds=round(time.monotonic() - began, 3),
        first_seq=first,
        last_seq=last,
        path=path,
    )
