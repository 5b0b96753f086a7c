"""How the files of a Delta table are laid out: partitions, clustering, and the properties that the configuration sets.

Partitions are part of a table from its beginning, so they change only when a snapshot or a replay writes the table
anew. Clustering and properties follow the configuration before the next changes are merged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import types as t

from cdc.errors import ConfigError, TargetError
from cdc.targets import CLUSTER_PROPERTY, MODE_COLUMNS
from spark_jobs.delta.sql import literal, quote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_jobs.delta.log import DeltaState
    from spark_jobs.delta.tables import Target

MOST_CLUSTER_COLUMNS = 4
"""Delta's limit."""
_PARTITION_TYPES = (t.ByteType, t.ShortType, t.IntegerType, t.LongType, t.DecimalType, t.BooleanType, t.DateType)
_ORDERED_TYPES = (
    t.ByteType, t.ShortType, t.IntegerType, t.LongType, t.DecimalType, t.FloatType, t.DoubleType, t.DateType,
    t.TimestampType, t.TimestampNTZType, t.StringType,
)  # fmt: skip
"""Types of which Delta keeps the least and the greatest value of each file."""


@dataclass(frozen=True)
class Layout:
    """Columns of a Delta table, by their names there. None: the configuration does not say."""

    partition_by: tuple[str, ...] | None = None
    cluster_by: tuple[str, ...] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the files of the table may hold any rows, in any order."""
        return not self.partition_by and not self.cluster_by

    @property
    def clause(self) -> str:
        """The clause of CREATE TABLE, with a space before it; empty for a plain table."""
        if self.partition_by:
            return f" PARTITIONED BY ({_listed(self.partition_by)})"
        return f" CLUSTER BY ({_listed(self.cluster_by)})" if self.cluster_by else ""

    @property
    def properties(self) -> dict[str, str]:
        """What the table's properties record of it."""
        return {} if self.cluster_by is None else {CLUSTER_PROPERTY: json.dumps(list(self.cluster_by))}


def layout_of(target: Target, fields: Iterable[t.StructField], former: DeltaState | None = None) -> Layout:
    """Returns the layout of a table that has these columns, as the configuration says. Where it says nothing, the table
    keeps what it had as ``former``, if it still has those columns.

    Raises ConfigError for a column that the table does not have, or that cannot serve.
    """
    apply, by_name = target.apply, {field.name.lower(): field for field in fields}

    def columns(key: str, names: Sequence[str] | None, types: tuple[type[t.DataType], ...], why: str) -> list[str]:
        found = []
        for name in names or ():
            field = by_name.get((target.policies.lake_name(name) or "").lower())
            if field is None:
                raise _wrong(target, key, f"{name}, which the Delta table does not have (it has {_names(by_name)})")
            is_operation = key == "partition_by" and field.name in MODE_COLUMNS[apply.mode] and field.name == "_op"
            if not isinstance(field.dataType, types) and not is_operation:
                raise _wrong(target, key, f"{name} of the type {field.dataType.simpleString()}; {why}")
            found.append(field.name)
        return found

    partitions = columns(
        "partition_by",
        apply.partition_by,
        _PARTITION_TYPES,
        "partitions are by whole numbers, decimals, booleans and dates, because Delta takes an empty text in a "
        "partition for NULL, and cuts moments",
    )
    clusters = columns(
        "cluster_by",
        apply.cluster_by,
        _ORDERED_TYPES,
        "clustering needs the least and the greatest value of a file, which Delta does not keep of this type",
    )
    if by_name and len(partitions) == len(by_name):
        raise _wrong(target, "partition_by", "every column of the table; one at least must be outside")
    names = {field.name for field in by_name.values()}
    return Layout(
        _kept(former, "partition_by", names) if apply.partition_by is None else tuple(partitions),
        _kept(former, "cluster_by", names) if apply.cluster_by is None else tuple(clusters),
    )


def _kept(former: DeltaState | None, key: str, names: set[str]) -> tuple[str, ...] | None:
    if former is None:
        return None
    found = former.partition_by if key == "partition_by" else clustering_of(former)
    return found if found and names.issuperset(found) else None


def clustering_of(state: DeltaState) -> tuple[str, ...]:
    """Returns the columns that Towpath has clustered the table by."""
    return tuple(json.loads(state.properties.get(CLUSTER_PROPERTY, "[]")))


def differs(state: DeltaState, target: Target, fields: Iterable[t.StructField]) -> bool:
    """Whether the table has another layout, or other properties, than the configuration says. Raises as
    :func:`layout_of`."""
    layout = layout_of(target, fields)
    return (
        (layout.partition_by is not None and list(layout.partition_by) != list(state.partition_by))
        or bool(_cluster_change(state, layout))
        or bool(_changed_properties(state, target))
    )


def follow_configuration(
    spark: SparkSession, target: Target, state: DeltaState, fields: Iterable[t.StructField]
) -> DeltaState:
    """Gives a table the clustering and the properties that the configuration says. Returns its state.

    Raises TargetError if the table has other partitions, and as :func:`layout_of`.
    """
    if target.apply.partition_by is None and target.apply.cluster_by is None and not target.apply.properties:
        return state
    layout = layout_of(target, fields)
    if layout.partition_by is not None and list(layout.partition_by) != list(state.partition_by):
        raise TargetError(
            f"the Delta table is partitioned by {_named(state.partition_by)}, and the configuration says "
            f"{_named(layout.partition_by)}",
            place=f"table {target.table} at {target.path}",
            remedy=f"Set partition_by back, or have the table written anew by `cdc replay {target.destination} "
            f"{target.table}` or, in mode upsert, by `cdc snapshot`.",
        )
    changed = _changed_properties(state, target)
    change = _cluster_change(state, layout)
    if change is not None:
        if state.partition_by:
            raise TargetError(
                f"the Delta table is partitioned by {_named(state.partition_by)}, so it cannot be clustered",
                place=f"table {target.table} at {target.path}",
                remedy=f"Write partition_by: [] beside cluster_by, and have the table written anew by `cdc replay "
                f"{target.destination} {target.table}` or, in mode upsert, by `cdc snapshot`.",
            )
        spark.sql(f"ALTER TABLE {target.sql} CLUSTER BY {change}").collect()
        changed |= layout.properties
    if not changed:
        return state
    listed = ", ".join(f"{literal(key)} = {literal(value)}" for key, value in changed.items())
    spark.sql(f"ALTER TABLE {target.sql} SET TBLPROPERTIES ({listed})").collect()
    return target.state() or state


def _cluster_change(state: DeltaState, layout: Layout) -> str | None:
    """Returns what follows ``ALTER TABLE … CLUSTER BY``; None if the table has this clustering."""
    if layout.cluster_by is None or layout.cluster_by == clustering_of(state):
        return None
    return f"({_listed(layout.cluster_by)})" if layout.cluster_by else "NONE"


def _changed_properties(state: DeltaState, target: Target) -> dict[str, str]:
    return {key: value for key, value in target.apply.properties.items() if state.properties.get(key) != value}


def _wrong(target: Target, key: str, what: str) -> ConfigError:
    return ConfigError(
        f"{key} names {what}",
        place=f"table {target.table}",
        remedy=f"Correct tables.overrides.{target.table}.{key}.",
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(quote(name) for name in names)


def _names(found: Iterable[str]) -> str:
    return ", ".join(found)


def _named(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"
