"""The plan of a snapshot or a replay before it starts: rows, bytes, time, and the tables that it replaces.

The numbers of a snapshot are the source's own statistics, which may be wrong by half. Those of a replay come from the
index of the store. Times follow from earlier work on the same destination where there is some.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cdc.base.errors import UsageError
from cdc.base.targets import split_table, table_path
from cdc.base.units import human_bytes
from cdc.client import open_batches, open_table_batches
from cdc.config import DestinationConfig
from cdc.lake.delta.log import open_delta
from cdc.lake.delta.tables import target_of
from cdc.lake.jobs.job import SUBSCRIBER, require_included
from cdc.lake.jobs.replay import find_base, require_reaches, require_repeatable, require_sensible
from cdc.lake.jobs.values import Replay
from cdc.snapshot import SnapshotFiles, last_progress
from cdc.snapshot.session import open_session
from cdc.source.connection import query
from cdc.source.driver import close_now
from cdc.store.reader.points import find_point
from cdc.store.reader.store import Store

START_S = 15.0
"""Start of a Spark session, and the commit."""
READ_ROWS_PER_S = 100_000.0
"""Rows that a snapshot reads and loads in a second, before it has been measured."""
MERGE_ROWS_PER_S = 20_000.0
"""Row events that a replay applies in a second, before any batch was merged."""
_MEASURED_BATCHES = 50


@dataclass(frozen=True)
class TablePlan:
    """The part of a plan that concerns one table."""

    table: str
    rows: int
    """Rows that are read from the source or from a kept snapshot, and row events that are applied."""
    bytes: int
    seconds: float
    now: str | None
    """The Delta table that is replaced or changed; None if there is none, or it stays as it is."""


@dataclass(frozen=True)
class JobPlan:
    """The plan of a job on tables."""

    tables: tuple[TablePlan, ...]

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.tables)

    @property
    def bytes(self) -> int:
        return sum(table.bytes for table in self.tables)

    @property
    def seconds(self) -> float:
        """The time of all tables, one after the other, with one start of Spark."""
        return round(START_S + sum(table.seconds for table in self.tables), 1)

    @property
    def replaces(self) -> tuple[str, ...]:
        """A phrase for each table that is replaced or changed."""
        return tuple(f"{table.table}: {table.now}" for table in self.tables if table.now is not None)

    def as_dict(self) -> dict[str, Any]:
        """Returns the plan for JSON."""
        return {
            "tables": [asdict(table) for table in self.tables],
            "rows": self.rows,
            "bytes": self.bytes,
            "seconds": self.seconds,
            "replaces": list(self.replaces),
        }


# --- snapshots -------------------------------------------------------------------------------------------------------


def plan_snapshot(config: DestinationConfig, tables: Sequence[str]) -> JobPlan:
    """Returns what a snapshot of these tables would do, by the statistics of the source. Raises UsageError for a table
    that is not included, or that the source does not have, and what connecting to it raises."""
    for table in tables:
        require_included(config, table)
    plans = []
    connection = open_session(config.source)
    try:
        for table in dict.fromkeys(tables):
            facts = query(
                connection,
                "SELECT TABLE_ROWS AS row_count, DATA_LENGTH AS size FROM information_schema.TABLES "
                "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND TABLE_TYPE <> 'VIEW'",
                split_table(table),
            )
            if not facts:
                raise UsageError(f"the source has no table {table}", place=config.name)
            rows, size = int(facts[0]["row_count"] or 0), int(facts[0]["size"] or 0)
            plans.append(TablePlan(table, rows, size, _reading_s(config, table, rows), _lake(config, table)))
    finally:
        close_now(connection)
    return JobPlan(tuple(plans))


def _reading_s(config: DestinationConfig, table: str, rows: int) -> float:
    """Returns how long a table will take, by its last snapshot if there is one."""
    last = last_progress(SnapshotFiles.find(config, *split_table(table)))
    rate = last.rows_per_s if last is not None and last.rows_per_s > 0 else READ_ROWS_PER_S
    if config.snapshot.max_rows_per_s is not None:
        rate = min(rate, config.snapshot.max_rows_per_s)
    return round(rows / rate, 1)


# --- replays ---------------------------------------------------------------------------------------------------------


def plan_replay(config: DestinationConfig, request: Replay) -> JobPlan:
    """Returns what a replay would do. Raises what the replay itself would refuse: UsageError, CutOffError."""
    require_sensible(config, request)
    batches = open_table_batches(config)
    reader, subscription = batches.reader, batches.meta.read().subscription(SUBSCRIBER)
    rate = _merge_rate(config)
    plans = []
    for table in dict.fromkeys(request.tables):
        upto = subscription.end_of_batches() if request.to is None else find_point(reader, request.to)
        rows = size = 0
        if request.from_ is not None:
            first = find_point(reader, request.from_)
            require_repeatable(config, reader, first, table)
        else:
            base = find_base(config, table, reader, target_of(config, table).state())
            require_reaches(base, upto, table)
            first = base.seq
            for record in [] if base.snapshot is None else base.snapshot.records():
                rows, size = rows + record.rows, size + record.bytes
        reading_s = rows / READ_ROWS_PER_S
        events, stored = _changes(reader, table, first, upto)
        now = None if request.into is not None else _lake(config, table)
        plans.append(TablePlan(table, rows + events, size + stored, round(reading_s + events / rate, 1), now))
    return JobPlan(tuple(plans))


def _changes(reader: Store, table: str, after_seq: int, upto_seq: int) -> tuple[int, int]:
    """Returns the row events and bytes of the transactions that may have rows of a table. Tables that share a bit of
    the mask, and other tables in the same transactions, are counted too."""
    bit = reader.table_mask(table)
    if not bit:  # capture has not met it
        return 0, 0
    mask = np.uint64(bit)
    events = size = 0
    for entries in reader.all_entries(after_seq, upto_seq):
        ours = entries[(entries["table_mask"] & mask) != 0]
        events += int(ours["row_events"].sum())
        size += int(ours["length"].sum())
    return events, size


def _merge_rate(config: DestinationConfig) -> float:
    """Returns the rows that recent merges changed in a second."""
    batches = open_batches(config)
    subscription = batches.subscription(SUBSCRIBER)
    rows, seconds = 0, 0.0
    for manifest in batches.acked_manifests(SUBSCRIBER, after_batch=subscription.next_batch - 1 - _MEASURED_BATCHES):
        for result in () if manifest.acked is None else manifest.acked.tables:
            rows += result.inserted + result.updated + result.deleted
            seconds += result.seconds
    return rows / seconds if rows > 1000 and seconds > 0 else MERGE_ROWS_PER_S


# --- the lake --------------------------------------------------------------------------------------------------------


def _lake(config: DestinationConfig, table: str) -> str | None:
    """Returns what the Delta table is now, in words; None if there is none."""
    import pyarrow as pa

    path = table_path(config.apply.target, *split_table(table))
    with open_delta(path, table) as delta:
        if delta is None:
            return None
        files = pa.table(delta.get_add_actions(flatten=True))
        size = sum(files["size_bytes"].to_pylist())
        counts = files["num_records"].to_pylist() if "num_records" in files.column_names else []
        rows = f"{sum(counts):,} rows in files, " if counts and None not in counts else ""
        return f"version {delta.version()}, {rows}{human_bytes(size)}"
