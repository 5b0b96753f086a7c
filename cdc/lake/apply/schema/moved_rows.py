"""The rows that EXCHANGE PARTITION and CONVERT PARTITION move between two tables, as one of them merges them.

Both Delta tables are read as they were right before the statement, whichever of them has the statement's position
already: see decision 0132.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
from pyspark.sql import functions as f
from pyspark.sql.window import Window

from cdc.decode.layout import BEFORE, DELETE, INSERT, METADATA_FIELDS
from cdc.lake.apply.schema.columns import columns_of
from cdc.lake.apply.schema.evidence import conditions_met
from cdc.lake.apply.schema.partition_removal import certain_condition, known_partitions, require_distinct_rows
from cdc.lake.apply.schema.partitions import Unclear
from cdc.lake.apply.schema.refusals import unknown
from cdc.lake.apply.schema.requirements import require_recorded_policies
from cdc.lake.delta.present_rows import LakeVersion, as_decoded, loaded_seq
from cdc.lake.delta.sql import quote
from cdc.lake.delta.tracked import record_in_force
from cdc.lake.rows import null_dates
from cdc.lake.rows.column_types import from_arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from cdc.binlog.sql.changes import MovePartition
    from cdc.binlog.sql.schemas import TableSchema
    from cdc.lake.apply.schema.lake import Lake
    from cdc.lake.apply.schema.statements import DdlStatement
    from cdc.lake.delta.log import DeltaState
    from cdc.lake.delta.tables import Target
    from cdc.lake.rows.columns import SourceColumns
    from cdc.lake.runtime.session import TableSession

_ADDED_ROW = 1 << 30
"""The ``_row`` of the first row that comes: above those of rows that go, without the bit of a foreign key's change."""


@dataclass(frozen=True)
class SomeRows:
    """Rows of a table right before a statement."""

    target: Target
    state: DeltaState
    """The table before the statement."""
    schema: TableSchema
    where: str | None = None
    """The condition of the rows; None for all of them."""

    def require_certain(self) -> None:
        """Raises Unclear if the Delta table does not tell the rows that the source had."""
        in_delta = {column.name.lower() for column in columns_of(self.state)}
        names = [self.target.policies.lake_name(column.name) for column in self.schema.columns]
        lost = [name for name in names if name is not None and name.lower() not in in_delta]
        if lost:
            raise Unclear(f"the Delta table of {self.target.table} does not have {', '.join(lost)}")
        if self.target.apply.mode == "append":
            require_distinct_rows(self.target, self.schema)

    def in_partition(self, lake: Lake, clause: str | None, name: str) -> SomeRows:
        """Returns those of the rows that lie in a partition or subpartition. ``clause``: the table's partitions before
        the statement; None if they are not known. Raises Unclear if it is not certain which rows these are."""
        partitions = known_partitions(clause)
        where = certain_condition(lake, self.target, self.state, self.schema, partitions, [name])
        return replace(self, where=where)

    def require_all(self, lake: Lake, condition: str) -> None:
        """Raises Unclear for a row of the table that does not fulfil a condition."""
        if conditions_met(lake, self.target, self.state, [f"NOT coalesce({condition}, false)"]):
            raise Unclear(f"rows of {self.target.table} lie outside of the partition, and the server did not look")

    def frame(self, session: TableSession, columns: SourceColumns, statement: DdlStatement) -> DataFrame:
        """Returns the rows with these columns, as the decoder delivers them."""
        names, loaded = [field.name for field in columns.read_fields], loaded_seq(self.state, statement.seq)
        lake = LakeVersion(self.target, self.state.version, self.state.applied_seq, self.keys, loaded)
        rows = lake.choose(session, names, lambda frame: frame if self.where is None else frame.where(self.where))
        decoded = as_decoded(rows.toDF(*names), columns.variants)
        return decoded.select(
            *[f.col(quote(field.name)).cast(field.dataType).alias(field.name) for field in columns.read_fields]
        )

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns in Delta that identify a row."""
        names = map(self.target.policies.lake_name, self.target.apply.keys or self.schema.primary_key)
        return tuple(name for name in names if name is not None)


@dataclass(frozen=True)
class MovedRows:
    """The changes of one table by a statement that moves rows between two tables."""

    statement: DdlStatement
    schema: TableSchema
    """The source's schema of the table."""
    gone: SomeRows | None
    """The rows that left the table."""
    added: SomeRows | None
    """The rows that came."""
    is_numbered: bool
    """Whether each change needs a ``_row`` of its own."""

    def frame(
        self,
        session: TableSession,
        columns: SourceColumns | None,
        after_seq: int,
        images: Literal["after", "both"],
        events: Callable[[SourceColumns | None], DataFrame],
        *,
        counts: bool,
    ) -> DataFrame:
        """Returns the changes in the shape of :func:`~cdc.lake.apply.merge.read_changes`: a delete for each row that
        left, then an insert for each that came. There are no ``events``."""
        assert columns is not None  # the table has all columns of its source
        frames = [
            self._changes(session, rows, op, columns, images, counts=counts)
            for rows, op in ((self.gone, DELETE), (self.added, INSERT))
            if rows is not None
        ]
        return frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])

    def _changes(
        self,
        session: TableSession,
        rows: SomeRows,
        op: int,
        columns: SourceColumns,
        images: Literal["after", "both"],
        *,
        counts: bool,
    ) -> DataFrame:
        names = [quote(field.name) for field in columns.read_fields]
        first = 0 if op == DELETE else _ADDED_ROW
        number = f.lit(first)
        if self.is_numbered:
            keys = {quote(key) for key in rows.keys}
            in_order = Window.orderBy(*[f.col(name) for name in names if name in keys or not keys <= {*names}])
            number = f.row_number().over(in_order) + (first - 1)
        values = {
            "_op": f.lit(op),
            "_seq": f.lit(self.statement.seq),
            "_row": number,
            "_commit_time": f.timestamp_micros(f.lit(round(self.statement.commit_time.timestamp() * 1_000_000))),
            "_gtid": f.lit(self.statement.gtid),
        }
        metadata = [
            values[field.name].cast(field.dataType).alias(field.name)
            for field in from_arrow_schema(pa.schema(METADATA_FIELDS))
        ]
        image = f.struct(*names)
        pair = [image if op == DELETE else f.when(f.lit(False), image)] if images == "both" and names else []
        zero = [f.lit(0).cast("long").alias(null_dates.COLUMN)] if counts else []
        frame = rows.frame(session, columns, self.statement)
        return frame.select(*metadata, *names, *[column.alias(BEFORE) for column in pair], *zero)


def rows_before(lake: Lake, target: Target, other: Target | None, name: str, statement: DdlStatement) -> SomeRows:
    """Returns all rows of another table right before a statement. ``other``: None if it is parked or not captured.
    Raises NeedsSnapshotError or UnsupportedDdlError for ``target``, whose rows come from there or go there."""
    if other is None:
        raise unknown(target, statement, f"rows come from {name} or go there, which is parked or not captured")
    state = lake.state_before(other, statement.seq)
    record = None if state is None else record_in_force(state, before=statement.seq)
    if state is None or record is None or record.schema is None:
        raise unknown(target, statement, f"rows come from {name} or go there, whose rows are not in the lake")
    if not target.policies.treats_alike(other.policies):
        raise unknown(target, statement, f"the table {name} has other policies")
    require_recorded_policies(other, state, record.schema)
    return SomeRows(other, state, record.schema)


def moved_rows(
    lake: Lake,
    target: Target,
    statement: DdlStatement,
    change: MovePartition,
    own: SomeRows | None,
    other: SomeRows,
    clauses: Mapping[str, str],
) -> MovedRows:
    """Returns the changes of a table by a statement. ``own``: its rows before the statement; None if it is new.
    ``clauses``: the partitions of tables right before it, by ``db.table``. Raises NeedsSnapshotError or
    UnsupportedDdlError if it is not certain which rows move."""
    part = None
    partitioned, loose = (own, other) if change.is_partitioned else (other, own)
    try:
        if change.partition is not None and partitioned is not None:
            part = partitioned.in_partition(lake, clauses.get(partitioned.target.table), change.partition)
        if not change.validates and loose is not None and part is not None and part.where is not None:
            loose.require_all(lake, part.where)
        gone, added = (part, loose) if change.is_partitioned else (loose, part)
        for rows in (gone, added):
            if rows is not None:
                rows.require_certain()
    except Unclear as reason:
        raise unknown(target, statement, str(reason)) from None
    schema = other.schema if own is None else own.schema
    return MovedRows(statement, schema, gone, added, is_numbered=target.apply.mode == "append")
