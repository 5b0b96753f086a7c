"""Gives a table that keeps its history the columns of a source schema that it has not followed to.

A snapshot may overtake DDL statements: the table still has the columns from before them, and the rows of the snapshot
have those from after them. Where the statements are known, they tell which column is which; else equal names do. The
snapshot brings the present rows, so only the history needs old values: a value becomes what Spark makes of it in the
new type, or null if there is no such value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import types as t

from cdc.base.errors import UnsupportedDdlError
from cdc.base.log import get_logger
from cdc.base.targets import application_id
from cdc.binlog.sql.changes import Unknown
from cdc.binlog.sql.conversions import Converted
from cdc.lake.apply.schema.columns import DeltaColumn, columns_of
from cdc.lake.apply.schema.content import rewrite_statement
from cdc.lake.apply.schema.lineage import Followed, effect_of, follow
from cdc.lake.apply.schema.plan import PlannedColumn, plan
from cdc.lake.apply.schema.properties import properties_after
from cdc.lake.apply.schema.statements import DdlStatement, effect_on
from cdc.lake.delta.proof import position_of
from cdc.lake.delta.sql import quote
from cdc.lake.delta.tables import TableOrigin, Target, add_columns, ddl_type
from cdc.lake.delta.tracked import SchemaRecord, tracked_schema
from cdc.lake.runtime.commit_metadata import commit_metadata
from cdc.lake.runtime.session import transaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cdc.binlog.sql.schemas import TableSchema
    from cdc.lake.delta.log import DeltaState

_log = get_logger(__name__)


@dataclass(frozen=True)
class Destined:
    """A source schema, and how a table came to it."""

    schema: TableSchema
    server_uuid: str
    epoch: int
    statements: Sequence[DdlStatement] = ()
    """The DDL statements on the way, if the store still has them."""


def reshape(spark: SparkSession, target: Target, state: DeltaState, to: Destined) -> DeltaState:
    """Gives the table the columns of ``to.schema``, and keeps its rows and its position. Returns its state.

    New columns are added in place. For all else the table is written anew, by one commit of its next generation. Raises
    UnsupportedDdlError if the table's policy does not allow the columns.
    """
    lake_columns, before = columns_of(state), tracked_schema(state)
    planned = plan(target, lake_columns, _followed(target.table, before, to), before or to.schema, to.schema)
    if planned.refused:
        policy = target.apply.schema_changes
        raise UnsupportedDdlError(
            f"the source's table has changed since the Delta table was level: it {' and '.join(planned.refused)}, "
            f"which schema_changes: {policy} does not allow",
            place=f"table {target.table}",
            remedy="Change schema_changes for the table (tables.overrides) if its Delta table may follow; or exclude "
            "it (tables.exclude).",
        )
    if not planned.changes(lake_columns):
        return state
    if _only_adds(planned.columns, lake_columns):
        names = ["", *(column.name for column in planned.columns)]
        places = [f" AFTER {quote(name)}" if name else " FIRST" for name in names]
        missing = [
            (t.StructField(column.name, column.type), place)
            for column, place in zip(planned.columns, places, strict=False)
            if column.was is None
        ]
        add_columns(spark, target, state, missing)
    else:
        _rewrite(spark, target, state, to, [_with_value(spark, column) for column in planned.columns])
    return target.state() or state


def _followed(table: str, before: TableSchema | None, to: Destined) -> list[Followed]:
    """Returns the columns of the schema, each with the one that it was."""
    earlier = to.schema if before is None else before
    names = _names(table, earlier, to.statements)
    old = {column.name.lower(): column for column in earlier.columns}
    followed = []
    for column in to.schema.columns:
        was = old.get(names.get(column.name.lower(), column.name.lower()) or "")
        effect = None if was is None else effect_of(was, column, 0)
        if effect is not None and not isinstance(effect, Unknown) and (effect.unless or isinstance(effect, Converted)):
            effect = Unknown("older rows keep their values")
        followed.append(Followed(column, was, effect, Unknown("the snapshot has overtaken the statement")))
    return followed


def _names(table: str, before: TableSchema, statements: Iterable[DdlStatement]) -> dict[str, str | None]:
    """Returns the names that columns had before the statements, by those after them, in lower case; None for new
    columns. Empty if the statements do not tell."""
    now, names = before, {column.name.lower(): column.name.lower() for column in before.columns}
    names_before: dict[str, str | None] = dict(names)
    for statement in statements:
        effect = effect_on(table, statement)
        if effect is None:
            continue
        if effect.creates is not None or effect.origin != table:
            return {}
        try:
            now, columns = follow(now, effect.changes, statement.sql_mode, statement.zone_offset_s)
        except UnsupportedDdlError as error:
            _log.info("columns are followed by their names alone", table=table, reason=error.message)
            return {}
        names_before = {
            c.column.name.lower(): None if c.old is None else names_before.get(c.old.name.lower()) for c in columns
        }
    return names_before


def _only_adds(columns: Sequence[PlannedColumn], lake_columns: Sequence[DeltaColumn]) -> bool:
    """Whether all columns stay as they are, and others come."""
    stay = [(c.name, c.type, c.value) for c in columns if c.was is not None]
    return stay == [(c.name, c.type, None) for c in lake_columns] and all(
        c.was is not None or c.value is None for c in columns
    )


def _with_value(spark: SparkSession, column: PlannedColumn) -> PlannedColumn:
    """Returns the column with a value for old rows, whatever its old type."""
    if column.was is None or column.value is not None or column.was.type == column.type:
        return column
    old_type, new_type = ddl_type(column.was.type), ddl_type(column.type)
    try:
        spark.sql(f"SELECT try_cast(CAST(NULL AS {old_type}) AS {new_type})").schema  # noqa: B018 - only analysed
    except AnalysisException:
        _log.warning("old values of the history become null", column=column.name, old=old_type, new=new_type)
        return replace(column, value=lambda _: "NULL")
    return replace(column, value=lambda old: f"try_cast({old} AS {new_type})")


def _rewrite(
    spark: SparkSession, target: Target, state: DeltaState, to: Destined, columns: Sequence[PlannedColumn]
) -> None:
    stay = {column.was.name for column in columns if column.was is not None}
    gone = [column.name for column in columns_of(state) if column.name not in stay]
    _log.warning("the table's history is written anew with other columns", table=target.table, dropped=gone)
    position, generation = position_of(state), state.generation + 1
    origin = TableOrigin(to.server_uuid, to.epoch, position, generation, SchemaRecord(position, to.schema))
    properties = properties_after(target, columns, to.schema, origin, (state, state))
    application = application_id(target.destination, target.table, generation)
    with transaction(spark, application, position, commit_metadata()):
        spark.sql(rewrite_statement(target, columns, properties, state)).collect()
