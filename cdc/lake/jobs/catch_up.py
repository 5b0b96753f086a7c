"""Applies the store's changes of one table, batch after batch, for a job that has the table for itself."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from cdc.base.errors import NeedsSnapshotError
from cdc.base.log import get_logger
from cdc.batches.manifest import TableResult
from cdc.lake.apply.batch import merge_tables
from cdc.lake.apply.foreign_keys.jobs import cascades_of_table, manifest_without_events
from cdc.lake.apply.foreign_keys.search import base_version
from cdc.lake.apply.prepare import prepare
from cdc.lake.delta.proof import position_of
from cdc.lake.delta.tables import target_of
from cdc.lake.jobs.results import CatchUp
from cdc.lake.runtime.session import on_demand

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdc.batches.table_batches import TableChangeReader
    from cdc.config import DestinationConfig
    from cdc.lake.apply.foreign_keys.changes import CascadedRows
    from cdc.lake.apply.schema.column_reading import ColumnReading
    from cdc.lake.delta.present_rows import LakeVersion
    from cdc.lake.runtime.session import TableSessions
    from cdc.meta import Subscription

_log = get_logger(__name__)


class TransactionRange(NamedTuple):
    """A range of transactions."""

    after_seq: int
    """Exclusive: the table is complete up to there."""
    until_seq: int
    """Inclusive."""
    reading: ColumnReading | None = None
    """The values that only the server knew after a statement in the range."""


def catch_up(
    config: DestinationConfig,
    table: str,
    batches: TableChangeReader,
    subscription: Subscription,
    sessions: TableSessions,
    span: TransactionRange,
    *,
    progress: Callable[[CatchUp], object] = lambda _: None,
    lake: DestinationConfig | None = None,
) -> CatchUp:
    """Applies the changes of a table in a span; if the table has a position in the span, those after it.

    ``config`` names the Delta table, which may be another one than the destination's; ``lake`` then names those of the
    other tables, by which foreign keys may change its rows. Raises what stopped the table:
    NeedsSnapshotError, UnsupportedError, TargetError, MergeFailedError.
    """
    alone, until_seq = one_table(config, table), span.until_seq
    target = target_of(alone, table)
    state = target.state()
    position = max(span.after_seq, position_of(state) if state is not None else 0)
    done = CatchUp(table, position)
    while position < until_seq:
        with batches.next(table, position, until_seq) as manifest:
            is_ddl = manifest is not None and manifest.ddl
            # Foreign keys may change rows between the table's own changes, which a statement ends.
            end = until_seq if manifest is None else manifest.first_seq - 1 if is_ddl else manifest.last_seq
            cascaded = _cascades(lake or config, alone, table, batches, sessions, position, end)
            if cascaded is not None and (manifest is None or is_ddl):
                manifest = manifest_without_events(batches, table, position, end)
            if manifest is None:
                break
            batch = prepare(manifest, alone, lambda: None, subscription, follows_keys=False)
            batch = replace(batch, reading=span.reading)
            if cascaded is not None:
                batch = replace(batch, cascaded={table: cascaded}, tables=(table,))
            results = merge_tables(batch, sessions) if batch.tables else []
        position = _note(done, results, manifest.last_seq, manifest.row_events, manifest.bytes, progress)
    done.level_seq = max(position, until_seq)
    return done


def _note(
    done: CatchUp,
    results: list[TableResult],
    seq: int,
    row_events: int,
    size_bytes: int,
    progress: Callable[[CatchUp], object],
) -> int:
    """Adds what a merge did. Returns the position behind it. Raises NeedsSnapshotError if the table was parked."""
    for result in results:
        if result.parked is not None:
            columns = result.parked.columns
            if columns is None:
                raise NeedsSnapshotError(result.parked.reason)
            raise NeedsSnapshotError(result.parked.reason, seq=columns.seq, columns=columns.names)
    done.level_seq = seq
    done.add(results, row_events, size_bytes)
    progress(done)
    return seq


def _cascades(
    config: DestinationConfig,
    alone: DestinationConfig,
    table: str,
    batches: TableChangeReader,
    sessions: TableSessions,
    after_seq: int,
    until_seq: int,
) -> CascadedRows | None:
    """Returns the changes of the table by foreign keys in (``after_seq``, ``until_seq``]."""
    if until_seq <= after_seq:
        return None

    def base() -> LakeVersion | None:
        version = base_version(alone, table, after_seq, target_of(alone, table).state())
        return None if version is None else replace(version, position=after_seq)

    with on_demand(sessions) as session:
        return cascades_of_table(config, table, batches, base, after_seq, until_seq, session)


def one_table(config: DestinationConfig, table: str) -> DestinationConfig:
    """Returns the configuration for a job on one table, in which an error stops the job and parks nothing."""
    apply = config.apply.model_copy(update={"on_error": "block"})
    overrides = {
        name: override.model_copy(update={"on_error": None}) for name, override in config.tables.overrides.items()
    }
    return config.model_copy(
        update={"apply": apply, "tables": config.tables.model_copy(update={"overrides": overrides})}
    )
