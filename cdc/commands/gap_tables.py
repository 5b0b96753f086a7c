"""A Delta table as it is now, for who accepts it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdc.errors import UsageError
from cdc.meta import TableRecord

if TYPE_CHECKING:
    from cdc.config import DestinationConfig


def look(config: DestinationConfig, table: str) -> TableRecord | None:
    """The table's record, made anew; None where there is no Delta table. Raises UsageError for a table that is not the
    destination's, TargetError and RetryableError for one that cannot be read."""
    from cdc.targets import split_table, table_path
    from spark_jobs.delta_log import read_state

    if not config.tables.includes(*split_table(table)):
        raise UsageError(
            f"{table} is not a table of {config.name}", remedy="Write it as db.table, as `cdc status` does."
        )
    state = read_state(table_path(config.apply.target, *split_table(table)), config.name, table)
    return None if state is None else TableRecord(state.generation, state.version, state.applied_seq, state.id)
