"""Compares a Delta table that another tool made with the source, by the sums of verify, at one position of the source.

Such a table has no position: what it lacks of the stream is a difference like any other. So the sums of its rows, as
they are, are compared with those of a consistent snapshot of the source.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cdc.base.targets import split_table
from cdc.lake.delta.tables import schema_of
from cdc.lake.jobs.columns import UnusableError
from cdc.lake.verify.buckets import Buckets, runs
from cdc.lake.verify.columns import TableColumns, table_columns
from cdc.lake.verify.compare import differing
from cdc.lake.verify.lake import LakeTable, TableRows
from cdc.lake.verify.source import SourceSnapshot
from cdc.lake.verify.store import StoreView
from cdc.source.snapshot.parts import Comparison, PartRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdc.binlog.sql.schemas import TableSchema
    from cdc.config import DestinationConfig
    from cdc.lake.delta.log import DeltaState
    from cdc.lake.delta.tables import Target
    from cdc.lake.runtime.session import TableSession
    from cdc.lake.verify.compare import BucketSum
    from cdc.meta import Meta

WAIT_S = 60.0
"""Longest wait until the store has what the source had."""
ROWS_A_RANGE = 20_000
"""Fewer rows than those of verify: all rows of a range that differs are read and compared."""


@dataclass(frozen=True)
class Compared:
    """The parts of a table that differ from the source, and the position of the source at which that is so."""

    schema: TableSchema
    """The source's definition at that moment."""
    columns: TableColumns
    buckets: Buckets
    bad: tuple[int, ...]
    """The numbers of the buckets whose rows are not known to be equal."""
    rows: int
    """Rows at the source."""
    why_all: str | None
    """Why all buckets count as differing; None if the sums were compared."""
    low_seq: int
    """The source was read with everything up to this seq."""
    high_seq: int
    """It was read without anything after this seq."""

    @property
    def part(self) -> PartRecord | None:
        """The rows of the differing buckets, for a reading of the source; None: the whole table has to be read."""
        if not self.buckets.is_ranges or len(self.bad) * 2 > self.buckets.count:
            return None
        terms = [self._range(first, last) for first, last in runs(self.bad)]
        return PartRecord(comparisons=terms[0], keys=tuple(terms[1:]))

    def _range(self, first: int, last: int) -> tuple[Comparison, ...]:
        name, borders = self.columns.keys[0].source, self.buckets.borders
        low = (">", borders[first - 1]) if first else None
        high = ("<=", borders[last]) if last < len(borders) else None
        return tuple(
            Comparison(column=name, operator=bound[0], values=(str(bound[1]),), kind="number")
            for bound in (low, high)
            if bound is not None
        )


def compare(
    config: DestinationConfig,
    meta: Meta,
    session: TableSession,
    lake: tuple[Target, DeltaState],
    tick: Callable[[], object] = lambda: None,
) -> Compared:
    """Compares a version of a Delta table with the source, and waits until the store has what the source had.

    Raises UnusableError if it has to be done again, StoreIncompleteError if capture does not follow, and as
    :class:`~cdc.lake.verify.source.SourceSnapshot`.
    """
    target, state = lake
    db, table = split_table(target.table)
    identity = meta.source()
    assert identity is not None  # the caller has looked
    with SourceSnapshot(config, identity) as snapshot:
        schema = snapshot.schema(db, table, config)
        if schema is None:
            raise UnusableError("the source has no such table any more", place=f"table {target.table}")
        whole = table_columns(schema, target.apply, is_old_mysql=snapshot.is_old_mysql)
        columns, lacking = _present(whole, state)
        snapshot.prepare(db, table, schema, columns)
        buckets = snapshot.buckets(db, table, schema, columns, ROWS_A_RANGE)
        rows = TableRows(config, session, LakeTable(target, state, target.apply.mode), columns, buckets, 0)
        source, lake_sums = _sums(snapshot, (db, table), columns, buckets, rows)
        snapshot.require_transactional(db, table)
        bad = {*differing(source, lake_sums)}
        if target.apply.mode == "soft_delete":
            bad |= rows.repeated()
        store = StoreView(config, meta)
        store.wait_for(snapshot.high_seq, snapshot.position.clock_us, WAIT_S, tick)
        begins = store.reader.beginning()
        start = max(store.reader.removed_seq(), 0 if begins is None else begins.seq)
        if start > snapshot.high_seq:
            raise UnusableError("the store begins after the comparison", place=f"table {target.table}")
        span = store.span(target.table, start, snapshot.high_seq, snapshot.position)
        if span.low_seq < span.after_seq:
            raise UnusableError(
                "a transaction was still being committed on the source when the store began",
                place=f"table {target.table}",
            )
    why_all = None
    if lacking or columns.left_out:
        names = [*lacking, *(column.lake for column in columns.left_out)]
        why_all = f"no sums tell whether the values of {', '.join(names)} are equal, so all rows are compared"
        bad = {*source, *lake_sums}
    total = sum(bucket.rows for bucket in source.values())
    return Compared(schema, columns, buckets, tuple(sorted(bad)), total, why_all, span.low_seq, span.high_seq)


def _present(columns: TableColumns, state: DeltaState) -> tuple[TableColumns, list[str]]:
    """Returns the columns that the Delta table has, and the names of those that it lacks."""
    names = {field.name.lower() for field in schema_of(state).fields}
    lacking = [column.lake for column in columns.all if column.lake.lower() not in names]
    compared, read = (
        tuple(column for column in side if column.lake.lower() in names) for side in (columns.compared, columns.read)
    )
    return replace(columns, compared=compared, read=read), lacking


def _sums(
    snapshot: SourceSnapshot, table: tuple[str, str], columns: TableColumns, buckets: Buckets, rows: TableRows
) -> tuple[dict[int, BucketSum], dict[int, BucketSum]]:
    """Returns the sums of both sides, which are read at the same time."""
    with ThreadPoolExecutor(1, thread_name_prefix="adopt-source") as pool:
        reading = pool.submit(snapshot.sums, *table, columns, buckets)
        try:
            lake_sums = rows.sums()
        except BaseException:
            snapshot.cancel()
            raise
        return reading.result(), lake_sums
