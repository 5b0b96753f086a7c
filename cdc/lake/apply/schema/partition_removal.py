"""The statement that removes the rows of dropped partitions from a Delta table."""

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


@contextmanager
def removal(session: TableSession, target: Target, state: DeltaState, dropped: Dropped) -> Iterator[str | None]:
    """Yields the statement that removes the rows of the partitions, which runs in the block; None if none of them is
    there. Raises Unclear if it is not certain which rows these are."""
    statement, change, schema = dropped.statement, dropped.change, dropped.schema
    if not change.names:
        yield truncate_statement(target, statement, state.applied_seq)
        return
    partitions = known_partitions(dropped.clause)
    present = [name for name in change.names if partitions.has(name)] if change.if_exists else change.names
    if not present:
        yield None
        return
    where = certain_condition(session, target, state, schema, partitions, present)
    if target.apply.mode != "append":
        yield removal_statement(target, statement, where)
        return
    keys = require_distinct_rows(target, schema)
    columns = [column.name for column in columns_of(state)]
    lake = LakeVersion(target, state.version, state.applied_seq, keys, loaded_seq(state, statement.seq))
    rows = lake.choose(session, columns, lambda frame: frame.where(where))
    in_order = Window.orderBy(*[f.col(quote(key)) for key in keys])
    with view_of(rows.withColumn("_row", (f.row_number().over(in_order) - 1).cast("long"))) as view:
        yield deletes_statement(target, statement, view, columns)


def known_partitions(clause: str | None) -> Partitions:
    """Reads the partitions right before a statement. ``clause``: None if they are not known. Raises Unclear."""
    partitions = None if clause is None else read_partitions(clause)
    if partitions is None:
        raise Unclear("the table's partitions at this position of the binlog are not known")
    return partitions


def certain_condition(
    session: TableSession,
    target: Target,
    state: DeltaState,
    schema: TableSchema,
    partitions: Partitions,
    names: Sequence[str],
) -> str:
    """Returns the SQL condition of the rows in some partitions or subpartitions. ``schema``: the source's before the
    statement. Raises Unclear if the Delta table has a row for which it is not certain."""
    condition = condition_of(partitions, names, target, schema, columns_of(state))
    for doubt in conditions_met(session.spark, target, state, condition.doubts, present=False):
        raise Unclear(condition.doubts[doubt])
    return condition.where


def require_distinct_rows(target: Target, schema: TableSchema) -> tuple[str, ...]:
    """Returns the columns in Delta by which a changelog tells its rows apart. Raises Unclear if it does not."""
    sources = target.apply.keys or schema.primary_key
    keys = [key for source in sources if (key := target.policies.lake_name(source)) is not None]
    if not keys or len(keys) < len(sources) or any(target.policies.column(source).kind == "null" for source in sources):
        raise Unclear("without a key, mode append does not tell which of its rows are still at the source")
    return tuple(keys)
