"""The statement that removes the rows of dropped partitions from a Delta table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdc.sql.partitions import read_partitions
from spark_jobs.apply.schema.columns import columns_of
from spark_jobs.apply.schema.content import (
    deleted_rows_statement,
    position_statement,
    removal_statement,
    truncate_statement,
)
from spark_jobs.apply.schema.partitions import Condition, Unclear, condition_of

if TYPE_CHECKING:
    from cdc.schemas import TableSchema
    from cdc.sql.changes import DropPartitions
    from spark_jobs.apply.schema.statements import DdlStatement
    from spark_jobs.delta.log import DeltaState
    from spark_jobs.delta.tables import Target
    from spark_jobs.runtime.session import TableSession


@dataclass(frozen=True)
class Dropped:
    """A statement that dropped or truncated partitions of a table."""

    by: DdlStatement
    change: DropPartitions
    schema: TableSchema
    """The source's schema before it."""
    clause: str | None
    """The partitions right before it; None if they are not known."""


def removal(session: TableSession, target: Target, state: DeltaState, dropped: Dropped) -> str:
    """Returns the statement that removes the rows of the partitions. Raises Unclear if it is not certain which rows
    these are."""
    by, change, schema = dropped.by, dropped.change, dropped.schema
    if not change.names:
        return truncate_statement(target, by, state.applied_seq)
    partitions = None if dropped.clause is None else read_partitions(dropped.clause)
    if partitions is None:
        raise Unclear("the table's partitions at this position of the binlog are not known")
    there = [name for name in change.names if partitions.has(name)] if change.if_exists else change.names
    if not there:
        return position_statement(target)
    condition = condition_of(partitions, there, target, schema, columns_of(state))
    _require_clear(session, target, state, condition)
    if target.apply.mode != "append":
        return removal_statement(target, by, condition.where)
    sources = target.apply.keys or schema.primary_key
    keys = [key for source in sources if (key := target.policies.lake_name(source)) is not None]
    if not keys or len(keys) < len(sources) or any(target.policies.column(one).kind == "null" for one in sources):
        raise Unclear("without a key, mode append does not tell which of its rows are still at the source")
    loaded = [int(m["last_seq"]) for _, m in state.ledger if (m.get("rebuild") or {}).get("kind") == "snapshot"]
    columns = [column.name for column in columns_of(state)]
    return deleted_rows_statement(target, by, columns, keys, max(loaded, default=0), condition.where)


def _require_clear(session: TableSession, target: Target, state: DeltaState, condition: Condition) -> None:
    """Raises Unclear if the table has rows for which the condition is not certain."""
    own = "" if target.own_rows is None else f" AND {target.own_rows}"
    for doubt, reason in condition.doubts.items():
        found = session.spark.sql(
            f"SELECT 1 FROM {target.sql} VERSION AS OF {state.version} WHERE ({doubt}){own} LIMIT 1"  # noqa: S608
        )
        if found.collect():
            raise Unclear(reason)
