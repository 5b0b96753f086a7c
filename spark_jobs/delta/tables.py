"""Delta tables: creating them empty, adding columns, and refusing those that are not this destination's."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import types as t

from cdc.errors import IdentityError, TargetError, UnsupportedDdlError
from cdc.positions import split_seq
from cdc.targets import (
    DESTINATION_PROPERTY,
    GENERATION_PROPERTY,
    NEEDS_MAPPING,
    SINCE_PROPERTY,
    application_id,
    split_table,
    table_path,
)
from spark_jobs.apply.column_types import literal, quote, shown
from spark_jobs.apply.source_columns import OwnColumns, Policies
from spark_jobs.delta.log import KEPT_TRANSACTIONS, TRANSACTION_RETENTION, DeltaState, clear_unborn, read_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cdc.batches.manifest import Manifest
    from cdc.config import ApplyConfig, DestinationConfig

MODE_PROPERTY = "towpath.mode"
UUID_PROPERTY = "towpath.server_uuid"
EPOCH_PROPERTY = "towpath.epoch"
COLUMNS_PROPERTY = "towpath.columns"
"""What policies have made of which columns, as JSON: {source's name in lower case: label}."""

BEFORE = "_before"
_APPEND = (
    t.StructField("_op", t.StringType()),
    t.StructField("_seq", t.LongType()),
    t.StructField("_row", t.LongType()),
    t.StructField("_commit_time", t.TimestampType()),
    t.StructField("_gtid", t.StringType()),
)
OWN_NAMES = frozenset({*(f.name for f in _APPEND), BEFORE})
_STATS_COLUMNS = 32
"""Columns for which Delta keeps statistics unless told otherwise; what prunes must be among them."""

WAY_OUT = (
    "Change the Delta table by hand accordingly, then skip this batch with `cdc batch get` and `cdc batch ack`; "
    "or exclude the table."
)


_BY_HAND = "Change the Delta table by hand accordingly; the batch is then taken again. Or exclude the table."

_WIDER: dict[type[t.DataType], tuple[type[t.DataType], ...]] = {
    t.ByteType: (t.ShortType, t.IntegerType, t.LongType),
    t.ShortType: (t.IntegerType, t.LongType),
    t.IntegerType: (t.LongType,),
    t.FloatType: (t.DoubleType,),
}


@dataclass(frozen=True)
class Target:
    """A table of the source and its place in the lake."""

    table: str
    path: str
    apply: ApplyConfig
    destination: str
    policies: Policies

    @property
    def sql(self) -> str:
        """The table for Spark's SQL."""
        return f"delta.{quote(self.path)}"

    def state(self) -> DeltaState | None:
        return read_state(self.path, self.destination, self.table)

    def application_id(self, state: DeltaState) -> str:
        return application_id(self.destination, self.table, state.generation)


def target(config: DestinationConfig, table: str) -> Target:
    """Where ``db.table`` lies, and what becomes of its changes. Raises ConfigError where the key of hash is missing."""
    db, name = split_table(table)
    apply, override = config.table_apply(table), config.tables.overrides.get(table)
    policies = Policies.of(table, apply, (override.columns or ()) if override is not None else ())
    return Target(table, table_path(config.apply.target, db, name), apply, config.name, policies)


def delta_schema(own: list[t.StructField], mode: str) -> t.StructType:
    """All columns of the Delta table in this mode."""
    if mode != "append":
        return t.StructType(list(own))
    return t.StructType([*own, *_APPEND, t.StructField(BEFORE, t.StructType(list(own)))])


def create(
    spark: SparkSession, place: Target, columns: OwnColumns, primary: tuple[str, ...], manifest: Manifest
) -> DeltaState:
    """Make the empty Delta table, and return its state; one that another process makes meanwhile will do as well.

    Raises TargetError where that is not possible, ConfigError where a policy leaves no key.
    """
    mode, own = place.apply.mode, columns.fields
    # Keys that are not there at all are refused, with better words, once there are rows.
    keys = () if mode == "append" else columns.keys([k for k in place.apply.keys or primary if columns.has(k)])
    schema = delta_schema(own, mode)
    properties = {
        DESTINATION_PROPERTY: place.destination,
        GENERATION_PROPERTY: "0",
        MODE_PROPERTY: mode,
        UUID_PROPERTY: manifest.server_uuid,
        EPOCH_PROPERTY: str(manifest.epoch),
        SINCE_PROPERTY: str(max(manifest.after_seq, manifest.store_begins.seq if manifest.store_begins else 0)),
        TRANSACTION_RETENTION: KEPT_TRANSACTIONS,
    }
    if columns.labels:
        properties[COLUMNS_PROPERTY] = _json(columns.labels)
    if any(NEEDS_MAPPING & set(f.name) for f in own):
        properties["delta.columnMapping.mode"] = "name"
    needed = len(own) + 2 if mode == "append" else max((_index(own, k) + 1 for k in keys), default=0)
    if needed > _STATS_COLUMNS:
        properties["delta.dataSkippingNumIndexedCols"] = str(needed)
    listed_columns = ", ".join(f"{quote(f.name)} {_ddl(f.dataType)}" for f in schema.fields)
    listed = ", ".join(f"{literal(key)} = {literal(value)}" for key, value in properties.items())
    clear_unborn(place.path)
    try:
        spark.sql(f"CREATE TABLE IF NOT EXISTS {place.sql} ({listed_columns}) USING delta TBLPROPERTIES ({listed})")
    except Exception as error:
        state = place.state()
        if state is not None:
            return state
        from spark_jobs.runtime.failures import explain

        raise explain(error, place.table) from error
    state = place.state()
    if state is None:
        raise TargetError(
            "the Delta table is not there after it was made",
            place=f"table {place.table} at {place.path}",
            remedy="Check that this process and Spark see the same files under apply.target, and that no empty folder "
            "_delta_log lies there: after a kill in an object store it has to be removed by hand.",
        )
    return state


def _index(own: list[t.StructField], name: str) -> int:
    return next((i for i, f in enumerate(own) if f.name.lower() == name.lower()), 0)


def _ddl(kind: t.DataType) -> str:
    """A type for CREATE TABLE, names of struct fields quoted."""
    if isinstance(kind, t.StructType):
        return "STRUCT<" + ", ".join(f"{quote(f.name)}: {_ddl(f.dataType)}" for f in kind.fields) + ">"
    return kind.simpleString()


def require_ownership(state: DeltaState, place: Target, manifest: Manifest) -> None:
    """Raises TargetError for a table of somebody else or of another mode, IdentityError for another source's batch."""
    where = f"table {place.table} at {place.path}"
    owner = state.properties.get(DESTINATION_PROPERTY)
    if owner != place.destination:
        whose = "was not made by Towpath" if owner is None else f"belongs to the destination {owner!r}"
        raise TargetError(
            f"the Delta table {whose}",
            place=where,
            remedy="Move it away, or give this destination another apply.target.",
        )
    mode = state.properties.get(MODE_PROPERTY, place.apply.mode)
    if mode != place.apply.mode:
        raise TargetError(
            f"the Delta table was made in mode {mode}, the configuration says {place.apply.mode}",
            place=where,
            remedy=f"Set the mode back to {mode}, or move the table away to have it made anew.",
        )
    epoch, uuid = split_seq(state.applied_seq).epoch, None
    if state.ledger:
        epoch = max(epoch, int(state.ledger[0][1].get("epoch", 0)))
        uuid = state.ledger[0][1].get("server_uuid")
    else:
        epoch = max(epoch, int(state.properties.get(EPOCH_PROPERTY, "0")))
        uuid = state.properties.get(UUID_PROPERTY)
    if manifest.epoch < epoch:
        raise IdentityError(
            f"the batch is of epoch {manifest.epoch}, but the table has changes of epoch {epoch} already",
            place=where,
            remedy="Apply the store that holds the later history, or rebuild the table.",
        )
    if manifest.epoch == epoch and uuid and manifest.server_uuid and uuid != manifest.server_uuid:
        raise IdentityError(
            f"the batch comes from server {manifest.server_uuid}, but the table from server {uuid}",
            place=where,
            remedy="Give the other server a destination and a target of its own.",
        )


def recorded_policies(state: DeltaState) -> dict[str, str]:
    """What policies have made of the table's columns so far; see :data:`COLUMNS_PROPERTY`."""
    found: dict[str, str] = json.loads(state.properties.get(COLUMNS_PROPERTY, "{}"))
    return found


def _json(labels: dict[str, str]) -> str:
    return json.dumps(labels, ensure_ascii=False, sort_keys=True)


def require_same_policies(state: DeltaState, place: Target, columns: OwnColumns, names: Iterable[str]) -> None:
    """Raises TargetError where a column that is in the Delta table, or was left out of it, was treated otherwise than
    the configuration wants now: its old rows and its new ones would not be of one kind. ``names``: the source's."""
    recorded = recorded_policies(state)
    there = {f.name.lower() for f in state.schema.fields}
    for name in names:
        was, now = recorded.get(name.lower()), columns.labels.get(name.lower(), "")
        if was is None:
            in_lake = {name.lower(), (place.policies.lake_name(name) or name).lower()}
            was = "" if in_lake & there else now  # a column that is yet to come may be treated in any way
        if was != now:
            raise TargetError(
                f"the column {name} was treated by the policy {was or 'keep'} when the Delta table was made, now the "
                f"configuration says {now or 'keep'}",
                place=f"table {place.table} at {place.path}",
                remedy="Set the policy (columns, types, the key) back, or move the table away to have it made anew.",
            )


def record_policies(
    spark: SparkSession, place: Target, state: DeltaState, columns: OwnColumns, names: Iterable[str]
) -> DeltaState:
    """Keep in the table what becomes of the source's columns of these names, which may be new. Before they are added: a
    table whose columns are there without that would look as if its policies had changed."""
    recorded = recorded_policies(state)
    labels = {name.lower(): columns.labels[name.lower()] for name in names if name.lower() in columns.labels}
    if labels.items() <= recorded.items():
        return state
    text = literal(_json(recorded | labels))
    spark.sql(f"ALTER TABLE {place.sql} SET TBLPROPERTIES ({literal(COLUMNS_PROPERTY)} = {text})")
    return place.state() or state


def evolve(
    spark: SparkSession, place: Target, state: DeltaState, columns: OwnColumns, later: Iterable[str]
) -> DeltaState:
    """Add columns that the source's rows have and the Delta table lacks; they are null in the rows there.

    The stored schema, whose columns ``later`` names, may be newer than the batch, and the table may have been made from
    it: a column that the rows lack and the schema has is still to be added, and a type that is wider than theirs still
    to be changed, by a DDL statement that will be judged when it comes. Raises UnsupportedDdlError for any other
    difference.
    """
    there = {f.name.lower(): f for f in state.schema.fields}
    where = f"table {place.table} at {place.path}"
    missing: list[tuple[t.StructField, str]] = []
    previous = ""
    own = columns.fields
    for column in own:
        found = there.get(column.name.lower())
        if found is None:
            missing.append((column, f" AFTER {quote(previous)}" if previous else " FIRST"))
        elif not _holds(found.dataType, column.dataType):
            raise UnsupportedDdlError(
                f"the column {column.name} is {shown(found.dataType)} in the Delta table and "
                f"{shown(column.dataType)} in the source's rows",
                place=where,
                remedy=_BY_HAND,
            )
        previous = column.name
    names = {c.name.lower() for c in own} | {name.lower() for name in later}
    for name, old in there.items():
        if name not in names and old.name not in OWN_NAMES:
            raise UnsupportedDdlError(
                f"the Delta table has a column {old.name} that the source's rows lack", place=where, remedy=_BY_HAND
            )
    if not missing:
        return state
    add_columns(spark, place, state, missing)
    return place.state() or state


def _holds(wide: t.DataType, narrow: t.DataType) -> bool:
    """Can a column of the one type hold every value of the other, as it is?"""
    if isinstance(wide, t.DecimalType) and isinstance(narrow, t.DecimalType):
        return wide.scale == narrow.scale and wide.precision >= narrow.precision
    return wide == narrow or isinstance(wide, _WIDER.get(type(narrow), ()))


def add_columns(
    spark: SparkSession, place: Target, state: DeltaState, columns: list[tuple[t.StructField, str]]
) -> None:
    """ALTER TABLE ADD COLUMNS; each with its place (``FIRST``, ``AFTER x``, or empty)."""
    mapped = state.properties.get("delta.columnMapping.mode", "none") != "none"
    if not mapped and any(NEEDS_MAPPING & set(f.name) for f, _ in columns):
        spark.sql(
            f"ALTER TABLE {place.sql} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name', "
            "'delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '5')"
        )
    parts = [f"{quote(f.name)} {_ddl(f.dataType)}{where}" for f, where in columns]
    if place.apply.mode == "append":
        parts += [f"{BEFORE}.{quote(f.name)} {_ddl(f.dataType)}" for f, _ in columns]
    spark.sql(f"ALTER TABLE {place.sql} ADD COLUMNS ({', '.join(parts)})")
