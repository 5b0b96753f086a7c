"""The plan of a snapshot or a replay before it starts: rows, bytes, time, and the tables that it replaces.

The numbers of a snapshot are the source's own statistics, which may be wrong by half. Those of a replay come from the
index of the store. Times follow from earlier work on the same destination where there is some.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cdc.base.errors import UsageError
from cdc.base.targets import split_table
from cdc.base.units import human_bytes, iso_time_us
from cdc.binlog.positions import format_seq
from cdc.client import open_batches, open_table_batches
from cdc.config import DestinationConfig
from cdc.lake.delta.log import open_delta
from cdc.lake.delta.tables import target_of
from cdc.lake.jobs.job import SUBSCRIBER, require_included
from cdc.lake.jobs.replay import find_base, require_reaches, require_repeatable, require_sensible
from cdc.lake.jobs.values import Replay
from cdc.source.connection import query
from cdc.source.driver import close_now
from cdc.source.snapshot import SnapshotFiles, last_progress
from cdc.source.snapshot.session import open_session
from cdc.store.reader.points import find_point, reaches_back_to_us
from cdc.store.reader.store import Store

START_S = 15.0
"""Start of a Spark session, and the commit."""
READ_ROWS_PER_S = 100_000.0
"""Rows that a snapshot reads and loads in a second, before it has been measured."""
MERGE_BYTES_PER_S = 2e6
"""Bytes of the store that a replay applies in a second, before any large batch was merged."""
_MEASURED_BATCHES = 50
_MEASURED_BYTES = 8 << 20
"""A merge of fewer bytes tells nothing of the rate: most of its time is that of any merge."""


@dataclass(frozen=True)
class TablePlan:
    """The part of a plan that concerns one table."""

    table: str
    rows: int
    """Rows that are read from the source or from a kept snapshot, and row events that are applied, of which each holds
    one row or more."""
    bytes: int
    seconds: float
    effect: str
    """What becomes of the Delta table, in words."""


@dataclass(frozen=True)
class JobPlan:
    """The plan of a job on tables."""

    tables: tuple[TablePlan, ...]
    points: tuple[str, ...] = ()
    """Sentences about how far back the store goes, and about the transactions that the chosen points are."""

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

    def as_dict(self) -> dict[str, Any]:
        """Returns the plan for JSON."""
        return {
            "tables": [asdict(table) for table in self.tables],
            "rows": self.rows,
            "bytes": self.bytes,
            "seconds": self.seconds,
            "points": list(self.points),
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
                raise UsageError(f"the source has no table {table}", place=config.name, remedy="Check the name.")
            rows, size = int(facts[0]["row_count"] or 0), int(facts[0]["size"] or 0)
            effect = _effect("replaces", table, describe_lake(config, table))
            plans.append(TablePlan(table, rows, size, _reading_s(config, table, rows), effect))
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
    begin = None if request.from_ is None else find_point(reader, request.from_)
    end = None if request.to is None else find_point(reader, request.to)
    upto = subscription.end_of_batches() if end is None else end
    plans = []
    for table in dict.fromkeys(request.tables):
        rows = size = 0
        if begin is not None:
            first = begin
            require_repeatable(config, reader, first, table)
        else:
            base = find_base(config, table, reader, target_of(config, table).state())
            require_reaches(base, upto, table)
            first = base.seq
            for record in [] if base.snapshot is None else base.snapshot.records():
                rows, size = rows + record.rows, size + record.bytes
        reading_s = rows / READ_ROWS_PER_S
        events, stored = count_changes(reader, table, first, upto)
        now = None if request.into is not None else describe_lake(config, table)
        effect = _effect("replaces" if begin is None else "changes rows of", table, now)
        plans.append(TablePlan(table, rows + events, size + stored, round(reading_s + stored / rate, 1), effect))
    return JobPlan(tuple(plans), tuple(_points(reader, request, begin, end)))


def _points(reader: Store, request: Replay, begin: int | None, end: int | None) -> Iterator[str]:
    if (since_us := reaches_back_to_us(reader)) is not None:
        yield f"The store has the transactions since {iso_time_us(since_us)}."
    points = (request.from_, begin, "The changes begin after"), (request.to, end, "The changes end with")
    for text, seq, meaning in points:
        if seq is None:
            continue
        entry = reader.entry_at(seq)
        time = "" if entry is None else f", committed at {iso_time_us(int(entry['commit_time_us']))}"
        yield f"{meaning} transaction {seq} ({format_seq(seq)}){time}: {text}."


def _effect(deed: str, table: str, now: str | None) -> str:
    return f"creates {table}" if now is None else f"{deed} {table}: {now}"


def count_changes(reader: Store, table: str, after_seq: int, upto_seq: int) -> tuple[int, int]:
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
    """Returns the bytes of the store that recent large merges applied in a second."""
    batches = open_batches(config)
    subscription = batches.subscription(SUBSCRIBER)
    size, seconds = 0, 0.0
    for manifest in batches.acked_manifests(SUBSCRIBER, after_batch=subscription.next_batch - 1 - _MEASURED_BATCHES):
        if manifest.acked is not None and manifest.bytes >= _MEASURED_BYTES:
            size += manifest.bytes
            seconds += sum(result.seconds for result in manifest.acked.tables)
    return size / seconds if seconds > 0 else MERGE_BYTES_PER_S


# --- the lake --------------------------------------------------------------------------------------------------------


def describe_lake(config: DestinationConfig, table: str) -> str | None:
    """Returns what the Delta table is now, in words; None if there is none."""
    import pyarrow as pa

    path = config.table_path(table)
    with open_delta(path, table) as delta:
        if delta is None:
            return None
        files = pa.table(delta.get_add_actions(flatten=True))
        size = sum(files["size_bytes"].to_pylist())
        counts = files["num_records"].to_pylist() if "num_records" in files.column_names else []
        rows = f"{sum(counts):,} rows in files, " if counts and None not in counts else ""
        return f"version {delta.version()}, {rows}{human_bytes(size)}"
