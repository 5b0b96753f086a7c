"""Gives mirrors the constraints of their source tables: NOT NULL, and the primary key as a property.

Delta has no statement that makes a column NOT NULL once the table exists, and none for primary keys. NOT NULL is
therefore set by a transaction of Delta that changes the schema alone, after a query has proved that no row has a null
there; any commit in between makes it fail. It is reached through Py4J, and not on a Spark Connect server.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdc.base.errors import TargetError
from cdc.lake.delta.sql import quote
from cdc.lake.delta.tables import schema_of, sql_properties
from cdc.lake.delta.transaction import delta_action, delta_log, metadata_of, scala_seq
from cdc.lake.rows.columns import columns_of_schema
from cdc.lake.runtime.driver_jvm import DriverJvm
from cdc.lake.runtime.failures import ConcurrentCommitError
from cdc.lake.runtime.private_pyspark import java_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cdc.binlog.sql.schemas import TableSchema
    from cdc.decode import TableLayout
    from cdc.lake.delta.log import DeltaState
    from cdc.lake.delta.tables import Target

PRIMARY_KEY_PROPERTY = "towpath.primary_key"
"""Delta table property: the source's primary key by the names of columns in Delta, as a JSON list. Nothing enforces
it, but a mirror equals a table that does."""


@dataclass(frozen=True)
class ConstraintChanges:
    """The changes to be made in a table."""

    loosened: tuple[str, ...]
    """Columns that may be null from now on."""
    tightened: tuple[str, ...]
    """Columns that may not be null any more."""
    key: str
    """The new value of :data:`PRIMARY_KEY_PROPERTY`."""
    is_other_key: bool


def follows_constraints(
    state: DeltaState, target: Target, schema: TableSchema | None, layout: TableLayout | None = None
) -> bool:
    """Whether the table has the source's constraints. ``schema``: the source's; None if it is not known. ``layout``: of
    rows that are to be merged; a column that may be null there must not be NOT NULL."""
    return _changes(state, target, schema, layout) is None


def follow_constraints(
    spark: SparkSession,
    target: Target,
    state: DeltaState,
    schema: TableSchema | None,
    layout: TableLayout | None = None,
) -> DeltaState:
    """Gives the table the source's constraints, and returns its state. Arguments as for :func:`follows_constraints`.

    Raises TargetError if a column has nulls that the source forbids, ConcurrentCommitError if another writer has
    committed meanwhile.
    """
    changes = _changes(state, target, schema, layout)
    if changes is None:
        return state
    if changes.loosened:
        parts = ", ".join(f"{quote(name)} DROP NOT NULL" for name in changes.loosened)
        spark.sql(f"ALTER TABLE {target.sql} ALTER COLUMN {parts}").collect()
    if changes.is_other_key:
        properties = sql_properties({PRIMARY_KEY_PROPERTY: changes.key})
        spark.sql(f"ALTER TABLE {target.sql} SET TBLPROPERTIES ({properties})").collect()
    state = target.state() or state
    if changes.tightened:
        _tighten(spark, target, state, changes.tightened)
        state = target.state() or state
    return state


def _changes(
    state: DeltaState, target: Target, schema: TableSchema | None, layout: TableLayout | None
) -> ConstraintChanges | None:
    if schema is None or not target.apply.constraints:
        return None
    columns = columns_of_schema(schema, target.policies)
    open_ones = {column.name.lower() for column in schema.columns if column.nullable}
    open_ones |= {column.name.lower() for column in layout.columns if column.nullable} if layout is not None else set()
    required = {
        column.field.name.lower()
        for column in columns.policies.columns
        if column.source.name.lower() not in open_ones
        and column.policy.kind != "null"
        and column.field.name not in columns.dates
    }
    fields = schema_of(state).fields
    loosened = tuple(field.name for field in fields if not field.nullable and field.name.lower() not in required)
    tightened = tuple(field.name for field in fields if field.nullable and field.name.lower() in required)
    names = {field.name.lower(): field.name for field in fields}
    key = [names.get((target.policies.lake_name(name) or "").lower()) for name in schema.primary_key]
    text = json.dumps(key if None not in key else [], ensure_ascii=False)
    is_other_key = state.properties.get(PRIMARY_KEY_PROPERTY, "[]") != text
    if not loosened and not tightened and not is_other_key:
        return None
    return ConstraintChanges(loosened, tightened, text, is_other_key)


def _tighten(spark: SparkSession, target: Target, state: DeltaState, names: Collection[str]) -> None:
    """Makes columns NOT NULL, by a commit that follows the version of ``state``."""
    where = " OR ".join(f"{quote(name)} IS NULL" for name in names)
    is_null = ", ".join(f"{quote(name)} IS NULL" for name in names)
    # Files whose statistics have no null are not read.
    query = f"SELECT {is_null} FROM {target.sql} VERSION AS OF {state.version} WHERE {where} LIMIT 1"  # noqa: S608
    rows = spark.sql(query).collect()
    if rows:
        wrong = [name for name, has_null in zip(names, rows[0], strict=True) if has_null]
        raise TargetError(
            f"the column {', '.join(wrong)} is NOT NULL at the source, and has nulls in the Delta table",
            place=f"table {target.table} at {target.path}",
            remedy=f"Ask `cdc verify {target.destination} {target.table}` what differs, and load the table anew with "
            f"`cdc snapshot {target.destination} {target.table}`.",
        )
    jvm = DriverJvm.of(spark)
    with jvm.active():
        txn = delta_log(jvm, target.path).startTransaction()
        if int(txn.readVersion()) != state.version:
            raise ConcurrentCommitError("another writer has committed to the table", place=f"table {target.table}")
        before, metadata = txn.metadata(), metadata_of(txn)
        schema = json.loads(metadata["schemaString"])
        for field in schema["fields"]:
            field["nullable"] = field["nullable"] and field["name"] not in names
        metadata["schemaString"] = json.dumps(schema)
        after = delta_action(jvm.view, {"metaData": metadata})
        txn.updateMetadata(after, False)
        txn.readWholeTable()  # so that every other commit is a conflict
        update = java_class(jvm.view, "org.apache.spark.sql.delta.DeltaOperations$UpdateSchema")
        txn.commit(scala_seq(jvm.view), update(before.schema(), after.schema()))
