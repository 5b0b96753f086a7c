"""The rows of dropped partitions, and the statement that removes them from a Delta table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as f
from pyspark.sql.window import Window

from cdc.binlog.sql.partitions import Partitions, read_partitions
from cdc.lake.apply.schema.columns import columns_of
from cdc.lake.apply.schema.content import (
    deletes_statement,
    removal_statement,
    truncate_statement,
)
from cdc.lake.apply.schema.evidence import conditions_met
from cdc.lake.apply.schema.partitions import Unclear, condition_of
from cdc.lake.delta.present_rows import LakeVersion, loaded_seq
from cdc.lake.delta.sql import quote
from cdc.lake.runtime.session import view_of

if TYPE_CHECKING:
    from cdc.binlog.sql.changes import DropPartitions
    from cdc.binlog.sql.schemas import TableSchema
    from cdc.lake.apply.schema.lake import Lake
    from cdc.lake.apply.schema.statements import DdlStatement
    from cdc.lake.delta.log import DeltaState
    from cdc.lake.delta.tables import Target
    from cdc.lake.runtime.session import TableSession


@dataclass(frozen=True)
class Dropped:
    """A statement that dropped or truncated partitions of a table."""

    statement: DdlStatement
    change: DropPartitions
    schema: TableSchema
    """The source's schema before it."""
    clause: str | None
    """The partitions right before it; None if they are not known."""


@dataclass(frozen=True)
class RemovedRows:
    """The rows of a Delta table that were in the partitions."""

    cause: DdlStatement
    where: str | None
    """The SQL condition of the rows; None: all of them."""
    keys: tuple[str, ...] = ()
    """For ``append``: the columns in Delta by which the changelog tells its rows apart."""

    @contextmanager
    def statement(self, session: TableSession, target: Target, state: DeltaState) -> Iterator[str]:
        """Yields the statement that removes the rows, which runs in the block."""
        where = self.where
        if where is None:
            yield truncate_statement(target, self.cause, state.applied_seq)
        elif target.apply.mode != "append":
            yield removal_statement(target, self.cause, where)
        else:
            columns = [column.name for column in columns_of(state)]
            loaded = loaded_seq(state, self.cause.seq)
            version = LakeVersion(target, state.version, state.applied_seq, self.keys, loaded)
            rows = version.choose(session, columns, lambda frame: frame.where(where))
            in_order = Window.orderBy(*[f.col(quote(key)) for key in self.keys])
            with view_of(rows.withColumn("_row", (f.row_number().over(in_order) - 1).cast("long"))) as view:
                yield deletes_statement(target, self.cause, view, columns)


def removed_rows(lake: Lake, target: Target, state: DeltaState, dropped: Dropped) -> RemovedRows | None:
    """Returns the rows of the partitions; None if none of these is there. Raises Unclear if it is not certain which
    rows these are."""
    change, schema = dropped.change, dropped.schema
    if not change.names:
        return RemovedRows(dropped.statement, None)
    partitions = known_partitions(dropped.clause)
    present = [name for name in change.names if partitions.has(name)] if change.if_exists else change.names
    if not present:
        return None
    where = certain_condition(lake, target, state, schema, partitions, present)
    keys = require_distinct_rows(target, schema) if target.apply.mode == "append" else ()
    return RemovedRows(dropped.statement, where, keys)


def known_partitions(clause: str | None) -> Partitions:
    """Reads the partitions right before a statement. ``clause``: None if they are not known. Raises Unclear."""
    partitions = None if clause is None else read_partitions(clause)
    if partitions is None:
        raise Unclear("the table's partitions at this position of the binlog are not known")
    return partitions


def certain_condition(
    lake: Lake,
    target: Target,
    state: DeltaState,
    schema: TableSchema,
    partitions: Partitions,
    names: Sequence[str],
) -> str:
    """Returns the SQL condition of the rows in some partitions or subpartitions. ``schema``: the source's before the
    statement. Raises Unclear if the Delta table has a row for which it is not certain."""
    condition = condition_of(partitions, names, target, schema, columns_of(state))
    for doubt in conditions_met(lake, target, state, condition.doubts, present=False):
        raise Unclear(condition.doubts[doubt])
    return condition.where


def require_distinct_rows(target: Target, schema: TableSchema) -> tuple[str, ...]:
    """Returns the columns in Delta by which a changelog tells its rows apart. Raises Unclear if it does not."""
    sources = target.apply.keys or schema.primary_key
    keys = [key for source in sources if (key := target.policies.lake_name(source)) is not None]
    if not keys or len(keys) < len(sources) or any(target.policies.column(source).kind == "null" for source in sources):
        raise Unclear("without a key, mode append does not tell which of its rows are still at the source")
    return tuple(keys)
