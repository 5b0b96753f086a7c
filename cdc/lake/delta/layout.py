"""Chooses how the files of a Delta table are laid out: partitions and clustering, as the configuration says."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import types as t

from cdc.base.errors import ConfigError
from cdc.base.targets import CLUSTER_PROPERTY, SOURCE_COLUMN
from cdc.lake.delta.sql import quote

if TYPE_CHECKING:
    from cdc.lake.delta.log import DeltaState
    from cdc.lake.delta.tables import Target

_COUNTED = (t.ByteType, t.ShortType, t.IntegerType, t.LongType, t.DecimalType, t.DateType)
_TYPES: Mapping[str, tuple[tuple[type[t.DataType], ...], str]] = {
    "partition_by": (
        (*_COUNTED, t.BooleanType),
        (
            "partitions are by whole numbers, decimals, booleans and dates, because Delta takes an empty text in a "
            "partition for NULL, and cuts moments"
        ),
    ),
    "cluster_by": (
        (*_COUNTED, t.FloatType, t.DoubleType, t.TimestampType, t.TimestampNTZType, t.StringType),
        "clustering needs the least and the greatest value of a file, which Delta does not keep of this type",
    ),
}
"""The types of columns that can serve, and why not others."""


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
        """The table's properties that record it."""
        return {} if self.cluster_by is None else {CLUSTER_PROPERTY: json.dumps(list(self.cluster_by))}


def layout_of(target: Target, fields: Iterable[t.StructField], former: DeltaState | None = None) -> Layout:
    """Returns the layout of a table that has these columns, as the configuration says. Where it says nothing, the table
    keeps what it had as ``former``, if it still has those columns.

    Raises ConfigError for a column that the table does not have, or that cannot serve.
    """
    by_name = {field.name.lower(): field for field in fields}
    partition_by = target.apply.partition_by
    if partition_by is None and target.apply.shared and not target.apply.cluster_by:
        partition_by = (SOURCE_COLUMN,)  # so that the members' merges read and write files of their own
    partitions = _columns(target, "partition_by", partition_by, by_name)
    clusters = _columns(target, "cluster_by", target.apply.cluster_by, by_name)
    if partitions and len(partitions) == len(by_name):
        raise _wrong(target, "partition_by", "every column of the table; one at least must be outside")
    if former is not None:
        names = {field.name for field in by_name.values()}
        partitions = _kept(former.partition_by, names) if partitions is None else partitions
        clusters = _kept(clustering_of(former), names) if clusters is None else clusters
    return Layout(partitions, clusters)


def _columns(
    target: Target, key: str, names: Sequence[str] | None, by_name: Mapping[str, t.StructField]
) -> tuple[str, ...] | None:
    """Returns the columns of a key of the configuration; None if it says nothing. ``by_name``: the table's columns, by
    their names in lower case."""
    if names is None:
        return None
    types, why = _TYPES[key]
    columns = []
    for name in names:
        field = by_name.get((target.policies.lake_name(name) or "").lower())
        if field is None:
            listed = ", ".join(by_name)
            raise _wrong(target, key, f"{name}, which the Delta table does not have (it has {listed})")
        is_operation = target.apply.mode == "append" and field.name == "_op"
        is_source = target.apply.shared and field.name == SOURCE_COLUMN
        is_never_empty = is_operation or is_source
        if not isinstance(field.dataType, types) and not is_never_empty:
            raise _wrong(target, key, f"{name} of the type {field.dataType.simpleString()}; {why}")
        columns.append(field.name)
    return tuple(columns)


def _kept(columns: tuple[str, ...], names: set[str]) -> tuple[str, ...] | None:
    return columns if columns and names.issuperset(columns) else None


def clustering_of(state: DeltaState) -> tuple[str, ...]:
    """Returns the columns that Towpath has clustered the table by."""
    return tuple(json.loads(state.properties.get(CLUSTER_PROPERTY, "[]")))


def _wrong(target: Target, key: str, what: str) -> ConfigError:
    return ConfigError(
        f"{key} names {what}",
        place=f"table {target.table}",
        remedy=f"Correct tables.overrides.{target.table}.{key}.",
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(quote(name) for name in names)
