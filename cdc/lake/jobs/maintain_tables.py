"""Maintenance of the Delta tables of a destination, beside apply: compaction, clustering and VACUUM."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from cdc.base.errors import CdcError, LeaseHeldError
from cdc.base.targets import split_table
from cdc.batches.parking import job_lock
from cdc.client import open_meta, open_store
from cdc.lake.jobs.job import SUBSCRIBER, raise_failure, require_included, table_sessions

if TYPE_CHECKING:
    from cdc.config import DestinationConfig
    from cdc.lake.delta.maintenance import Maintained

_MARGIN_H = 1.0
"""Added to the age of the store's first transaction: clocks differ, and apply follows its source."""


def maintain_tables(
    config: DestinationConfig,
    tables: Sequence[str] = (),
    *,
    vacuum: bool = True,
    progress: Callable[[Maintained], object] = lambda _: None,
) -> list[Maintained]:
    """Compacts, clusters and vacuums Delta tables. ``tables``: all that apply knows if none are given.

    VACUUM keeps every version that ``read_as_of`` may need for a transaction that the store still has. A table on which
    a snapshot or a replay works is left out, with a note. Raises UsageError for a table that is not included; if
    tables fail, the others are finished first, and the error of one of them is raised.
    """
    for table in tables:
        require_included(config, table)
    meta = open_meta(config)
    records = meta.read().subscription(SUBSCRIBER).tables
    names = list(dict.fromkeys(tables)) or [
        table for table in sorted(records) if config.tables.includes(*split_table(table))
    ]
    names = list({config.table_path(table): table for table in reversed(names)}.values())[::-1]  # each Delta table once
    if not names:
        return []
    from cdc.lake.delta.maintenance import Maintained, maintain_table

    needed_for_h = kept_for_h(config)
    maintained: list[Maintained] = []
    errors: dict[str, CdcError] = {}
    for table in names:
        try:
            with job_lock(meta, table):
                done = maintain_table(table_sessions(config), config, table, vacuum=vacuum, needed_for_h=needed_for_h)
        except LeaseHeldError as error:
            done = Maintained(table, note=str(error))
        except CdcError as error:
            errors[table] = error
            continue
        maintained.append(done)
        progress(done)
    raise_failure("maintenance", errors)
    return maintained


def kept_for_h(config: DestinationConfig) -> float:
    """Returns the age of the store's oldest transaction in hours: from there on, tables can be read as of any."""
    reader = open_store(config)
    if not reader.exists():
        return 0.0
    first = reader.first_seq()
    entry = None if first is None else reader.entry_at(first)
    if entry is None:
        return 0.0
    return max(0.0, time.time() - int(entry["commit_time_us"]) / 1e6) / 3600 + _MARGIN_H
