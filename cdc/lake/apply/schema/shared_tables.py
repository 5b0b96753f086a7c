"""Creates Delta tables, and lets a destination join a table that several of them share.

A shared table has the columns of all its members. A column is added, or widened, when the first of them has it; it is
never dropped, renamed or narrowed, since others may still have it as it was. What a member has recorded about the table
(generation, tracked schema, server) is kept under its own name among the table's properties; see
:func:`cdc.base.targets.properties_for`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from cdc.base.errors import TargetError
from cdc.base.log import get_logger
from cdc.base.targets import BEGINS_PROPERTY, GENERATION_PROPERTY, SINCE_PROPERTY, records_of
from cdc.lake.apply.schema.columns import WIDENING, DeltaColumn, columns_of, holds, widens
from cdc.lake.delta.sql import literal, quote
from cdc.lake.delta.tables import (
    BEFORE,
    MODE_PROPERTY,
    TableOrigin,
    Target,
    add_columns,
    create_table,
    ddl_type,
    follow_configuration,
    properties_of,
    sql_properties,
)
from cdc.lake.delta.tracked import SchemaRecord
from cdc.lake.runtime.failures import is_driver_gone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql import types as t

    from cdc.batches.manifest import Manifest
    from cdc.binlog.sql.schemas import TableSchema
    from cdc.lake.delta.log import DeltaState
    from cdc.lake.rows.columns import SourceColumns

_Step: TypeAlias = Callable[["SparkSession"], object]
_MOST_STEPS = 1_000
_CREATIONS, _CREATION_S = 4, 5.0
"""Attempts to create a table, and the time after which another member's attempt is taken for one that was killed."""
_log = get_logger(__name__)


def create(
    spark: SparkSession, target: Target, columns: SourceColumns, schema: TableSchema, manifest: Manifest
) -> DeltaState:
    """Creates the empty Delta table of a source table with this schema, or joins the shared one, and returns its state.
    A table that another process creates meanwhile is returned as well.

    Raises TargetError if the table cannot be created or joined, ConfigError if a policy leaves no key.
    """
    since_seq = max(manifest.after_seq, manifest.store_begins.seq if manifest.store_begins else 0)
    origin = TableOrigin(manifest.server_uuid, manifest.epoch, since_seq, record=SchemaRecord(since_seq, schema))
    return create_or_join(spark, target, columns, schema.primary_key, origin)


def create_or_join(
    spark: SparkSession, target: Target, columns: SourceColumns, primary: tuple[str, ...], origin: TableOrigin
) -> DeltaState:
    """As :func:`create`, for a table that is complete up to ``origin.since_seq``. ``primary``: the source's primary
    key."""
    properties = properties_of(target, columns, primary, origin)
    state = target.state_of_all()
    if state is None:
        make = _create_together if target.apply.shared else create_table
        state = make(spark, target, columns, properties)
    if not state.is_shared or state.is_joined:
        return state
    require_mode(target, state)
    ensure_columns(spark, target, columns.fields)
    follow_configuration(spark, target, target.state_of_all() or state)
    _join(spark, target, properties)
    joined = target.state()
    if joined is None:
        raise TargetError(
            "the shared Delta table was replaced while it was joined", place=f"table {target.table} at {target.path}"
        )
    return joined


def _join(spark: SparkSession, target: Target, properties: Mapping[str, str]) -> None:
    """Gives a shared table the destination's records. What a former member of this name has left there is removed, and
    its generations are not used again: the log still has their positions. Each generation takes a commit, so none has
    the number of the table's version."""
    state = target.state_of_all()
    if state is None:
        raise TargetError("the Delta table is gone", place=f"table {target.table} at {target.path}")
    records = {name: value for name, value in properties.items() if target.stored_name(name) != name}
    records |= {GENERATION_PROPERTY: str(state.version), BEGINS_PROPERTY: properties[SINCE_PROPERTY]}
    left = set(records_of(state.stored, target.member)) - {target.stored_name(name) for name in records}
    if left:
        names = ", ".join(literal(name) for name in sorted(left))
        spark.sql(f"ALTER TABLE {target.sql} UNSET TBLPROPERTIES IF EXISTS ({names})").collect()
    spark.sql(f"ALTER TABLE {target.sql} SET TBLPROPERTIES ({target.sql_properties(records)})").collect()
    _log.info("joined a shared table", table=target.table, destination=target.destination, path=target.path)


def _create_together(
    spark: SparkSession, target: Target, columns: SourceColumns, properties: Mapping[str, str]
) -> DeltaState:
    """As :func:`cdc.lake.delta.tables.create_table`, where other members may create the table at this moment. Spark
    takes the log's folder for a table before that has its first commit, and what a killed driver leaves looks alike."""
    for attempt in range(1, _CREATIONS + 1):
        try:
            return create_table(spark, target, columns, properties)
        except Exception as error:
            if attempt == _CREATIONS or is_driver_gone(error):
                raise
            _log.info("the table is perhaps being created by another member", table=target.table, attempt=attempt)
        until = time.monotonic() + _CREATION_S * (0.5 + random.random())  # at random, so that two do not keep step
        while time.monotonic() < until:
            state = target.state_of_all()
            if state is not None:
                return state
            time.sleep(0.2)
    raise AssertionError("the loop returns or raises")


def require_mode(target: Target, state: DeltaState) -> None:
    """Raises TargetError if a shared table is in another mode than the configuration says."""
    mode = state.properties.get(MODE_PROPERTY)
    if mode != target.apply.mode:
        raise TargetError(
            f"the shared Delta table is in mode {mode}, the configuration says {target.apply.mode}",
            place=f"table {target.table} at {target.path}",
            remedy=f"Set the mode back to {mode}, or lead the tables elsewhere (tables.route)."
            if target.is_routed
            else "Write the same mode for all destinations that share the table, or give this one another "
            "apply.target.",
        )


def ensure_columns(
    spark: SparkSession, target: Target, fields: Sequence[t.StructField], check: Callable[[], object] = lambda: None
) -> None:
    """Adds the columns that a shared table lacks, and widens those that cannot hold a value of the source's type.

    Each step follows from what the table is at that moment, since other members may change it meanwhile. ``check`` is
    called before each step. Raises TargetError for a column whose type does not lead to the source's one.
    """
    for _ in range(_MOST_STEPS):
        state = target.state_of_all()
        if state is None:
            raise TargetError("the Delta table is gone", place=f"table {target.table} at {target.path}")
        step = _next(target, state, fields)
        if step is None:
            return
        check()
        try:
            step(spark)
        except Exception:
            now = target.state_of_all()
            if now is None or now.version == state.version:
                raise
            _log.info("another commit came first; looking at the columns again", table=target.table)
    raise AssertionError("each step brings the table nearer to its columns")


def _next(
    target: Target, state: DeltaState, fields: Sequence[t.StructField]
) -> Callable[[SparkSession], object] | None:
    """Returns the next step; None if the table has the columns."""
    lake_columns = columns_of(state)
    names = {column.name.lower(): column for column in lake_columns}
    for level, prefix in ((names, ""), ({c.name.lower(): c for c in columns_of(state, before=True)}, f"{BEFORE}.")):
        for field in fields:
            column = level.get(field.name.lower())
            if column is not None and not holds(column.type, field.dataType):
                return _widening(target, column, field.dataType, prefix)
    missing = [field for field in fields if field.name.lower() not in names]
    if not missing:
        return None
    places = [lake_columns[-1].name if lake_columns else "", *(field.name for field in missing)]
    added = [(field, f" AFTER {quote(place)}" if place else "") for field, place in zip(missing, places, strict=False)]
    return lambda spark: add_columns(spark, target, state, added)


def require_widens(target: Target, column: DeltaColumn, kind: t.DataType) -> None:
    """Raises TargetError if a column of a shared table cannot be widened to this type."""
    if not widens(column.type, kind):
        raise TargetError(
            f"the source's column {column.name} has the type {kind.simpleString()}, and the shared Delta table has it "
            f"as {column.type.simpleString()}, which cannot become that",
            place=f"table {target.table} at {target.path}",
            remedy="Change the column at the source, or lead the table elsewhere (tables.route)."
            if target.is_routed
            else "Give the column another name for this destination (columns: {NAME: {rename: …}} under "
            "tables.overrides), change it at the source, or give the destination another apply.target.",
        )


def _widening(target: Target, column: DeltaColumn, kind: t.DataType, prefix: str) -> _Step:
    require_widens(target, column, kind)

    def widen(spark: SparkSession) -> None:
        spark.sql(f"ALTER TABLE {target.sql} SET TBLPROPERTIES ({sql_properties(WIDENING)})").collect()
        spark.sql(f"ALTER TABLE {target.sql} ALTER COLUMN {prefix}{quote(column.name)} TYPE {ddl_type(kind)}").collect()

    return widen
