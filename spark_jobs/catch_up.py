"""Applies the store's changes of one table, batch after batch, for a job that has the table for itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cdc.batches.manifest import TableResult
from cdc.errors import NeedsSnapshotError
from cdc.log import get_logger
from spark_jobs.apply.foreign_keys import require_no_unlogged_changes
from spark_jobs.apply.prepare import prepare
from spark_jobs.apply_batch import merge_tables
from spark_jobs.delta.proof import position_of
from spark_jobs.delta.tables import target_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdc.batches.table_batches import TableChanges
    from cdc.config import DestinationConfig
    from cdc.meta import Subscription
    from spark_jobs.runtime.session import TableSessions

_log = get_logger(__name__)


@dataclass
class CatchUp:
    """What a catch-up did."""

    table: str
    level_seq: int
    """The table has all changes up to this seq."""
    batches: int = 0
    row_events: int = 0
    bytes: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    seconds: float = 0.0
    results: list[TableResult] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Returns the values as JSON, without the results of the batches."""
        return {name: value for name, value in vars(self).items() if name != "results"}

    def add(self, results: list[TableResult], row_events: int, size: int) -> None:
        """Adds the results of one batch."""
        self.batches += 1
        self.row_events += row_events
        self.bytes += size
        for one in results:
            self.inserted += one.inserted
            self.updated += one.updated
            self.deleted += one.deleted
            self.seconds += one.seconds


def catch_up(
    config: DestinationConfig,
    table: str,
    batches: TableChanges,
    subscription: Subscription,
    sessions: TableSessions,
    *,
    after_seq: int,
    until_seq: int,
    progress: Callable[[CatchUp], None] = lambda _: None,
) -> CatchUp:
    """Applies the changes of a table after ``after_seq``, or after its own position if that lies behind it, up to
    ``until_seq``.

    ``config`` names the Delta table, which may be another one than the destination's. Raises what stopped the table:
    NeedsSnapshotError, UnsupportedError, TargetError, MergeFailedError.
    """
    alone = one_table(config, table)
    state = target_of(alone, table).state()
    position = max(after_seq, position_of(state) if state is not None else 0)
    done = CatchUp(table, position)
    require_no_unlogged_changes(alone, table, batches, position, until_seq)
    while position < until_seq:
        with batches.next(table, position, until_seq) as manifest:
            if manifest is None:
                break
            found = prepare(manifest, alone, lambda: None, subscription)
            results = merge_tables(found, sessions) if found.tables else []
        for one in results:
            if one.parked is not None:
                raise NeedsSnapshotError(one.parked.reason)
        position = manifest.last_seq
        done.level_seq = position
        done.add(results, manifest.row_events, manifest.bytes)
        progress(done)
    done.level_seq = max(position, until_seq)
    return done


def one_table(config: DestinationConfig, table: str) -> DestinationConfig:
    """Returns the configuration for a job on one table, in which an error stops the job and parks nothing."""
    apply = config.apply.model_copy(update={"on_error": "block"})
    overrides = {name: one.model_copy(update={"on_error": None}) for name, one in config.tables.overrides.items()}
    return config.model_copy(
        update={"apply": apply, "tables": config.tables.model_copy(update={"overrides": overrides})}
    )
