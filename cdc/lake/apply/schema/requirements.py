"""Checks of a planned table before it is changed: values are known, rows can be told apart, the layout stays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from cdc.base.errors import ConfigError
from cdc.base.targets import MODE_COLUMNS, SOURCE_COLUMN
from cdc.lake.apply.schema.columns import columns_of
from cdc.lake.apply.schema.refusals import refusal, unknown
from cdc.lake.delta.layout import clustering_of
from cdc.lake.delta.tables import require_same_policies
from cdc.lake.rows.columns import columns_of_schema

if TYPE_CHECKING:
    from cdc.binlog.sql.schemas import TableSchema
    from cdc.lake.apply.schema.plan import TableEvolution
    from cdc.lake.apply.schema.statements import DdlStatement
    from cdc.lake.delta.log import DeltaState
    from cdc.lake.delta.tables import Target


def require_recorded_policies(
    target: Target, state: DeltaState, schema: TableSchema, names: Iterable[str] | None = None
) -> None:
    """Raises TargetError if one of these columns (None: all) is in the table by another policy than the configuration
    says: what follows would record the new policy for rows that have the old one, or mix both."""
    columns = columns_of_schema(schema, target.policies)
    require_same_policies(state, target, columns, schema.column_names if names is None else names)


def require_known(target: Target, planned: TableEvolution, statement: DdlStatement) -> None:
    """Raises NeedsSnapshotError if only the server knows values of rows after the statement."""
    reasons = [*planned.unknown, *planned.unknown_new]
    if reasons:
        raise unknown(target, statement, "; ".join(dict.fromkeys(reasons)))


def require_keys(
    target: Target, before: TableSchema, after: TableSchema, planned: TableEvolution, statement: DdlStatement
) -> None:
    """Raises ConfigError if the table's rows cannot be told apart any more."""
    apply = target.apply
    if apply.mode == "append":
        return
    keys = apply.keys or after.primary_key
    names = {column.name.lower() for column in after.columns}
    lost = [key for key in keys if key.lower() not in names]
    if not keys or lost:
        what = f"takes the column {', '.join(lost)}" if lost else "takes the primary key"
        message = f"the statement {what}, so mode {apply.mode} cannot tell the table's rows apart any more"
        if not keys and not before.primary_key:
            message = f"the table has no primary key, so mode {apply.mode} cannot tell its rows apart"
        raise ConfigError(
            f"{message}: {statement.shown}",
            place=f"table {target.table}",
            remedy="Give it keys: [...] (columns that identify a row) under tables.overrides, or exclude it; or, "
            f"if it got a primary key later, run `cdc snapshot {target.destination} {target.table}`.",
        )
    lake = {column.name.lower() for column in planned.columns}
    for key in keys:
        name = target.policies.lake_name(key)
        if name is not None and name.lower() not in lake:
            policy = f"schema_changes: {apply.schema_changes}"
            raise refusal(target, statement, f"puts the column {key} into the key", policy)


def require_layout(target: Target, state: DeltaState, planned: TableEvolution, statement: DdlStatement) -> None:
    """Raises ConfigError if a column goes by which the table is laid out, NeedsSnapshotError if one of its
    partitions' columns gets another type: Delta changes neither in place."""
    kept = {c.was.name: c for c in planned.columns if c.was is not None}
    ours = (*MODE_COLUMNS[target.apply.mode], SOURCE_COLUMN)
    types = {column.name: column.type for column in columns_of(state)}
    for key, names in (("partition_by", state.partition_by), ("cluster_by", clustering_of(state))):
        lost = [name for name in names if name not in kept and name not in ours]
        if lost:
            raise ConfigError(
                f"the statement takes the column {', '.join(lost)}, which the Delta table has in {key}: "
                f"{statement.shown}",
                place=f"table {target.table}",
                remedy=f"Write tables.overrides.{target.table}.{key} without it, and have the table written anew: "
                f"`cdc snapshot {target.destination} {target.table}`.",
            )
        changed = [name for name in names if name in kept and kept[name].type != types[name]]
        if changed and key == "partition_by":
            raise unknown(target, statement, f"it changes the type of {', '.join(changed)}, which partitions the table")
