"""Whether the rows of a batch have the columns that the tracked schema says, and the Delta table a place for them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import types as t

from cdc.base.errors import TargetError, UnsupportedDdlError
from cdc.binlog.table_map import ColumnMeta
from cdc.decode.columns import contradiction
from cdc.lake.apply.schema.columns import columns_of, holds
from cdc.lake.rows.columns import SourceColumns, columns_of_layout, columns_of_schema

if TYPE_CHECKING:
    from cdc.binlog.sql.schemas import ColumnSchema, TableSchema
    from cdc.decode import TableLayout
    from cdc.decode.columns import Column
    from cdc.lake.delta.log import DeltaState
    from cdc.lake.delta.tables import Target

_LONGEST_SHOWN = 1000


def resolved(layout: TableLayout, schema: TableSchema) -> TableLayout:
    """Returns a layout whose columns know what the schema says and a table map does not: ``tinyint(1)``, UUID."""
    schema_columns = {column.name.lower(): column for column in schema.columns}
    columns = []
    for column in layout.columns:
        schema_column = schema_columns.get(column.name.lower())
        if schema_column is not None and _fits(column, schema_column):
            column = replace(column, declared=schema_column.data_type, column_type=schema_column.column_type.lower())
        columns.append(column)
    return replace(layout, columns=tuple(columns))


def _fits(column: Column, schema_column: ColumnSchema) -> bool:
    # Neither NULL nor the length of a text whose character set is not known tells two columns apart.
    meta = ColumnMeta(
        column.name, column.type, column.length, column.precision, column.scale, schema_column.nullable, column.unsigned
    )
    return contradiction(meta, schema_column) is None


def disagreement(target: Target, layout: TableLayout, schema: TableSchema | None) -> str | None:
    """Returns how the rows' columns differ from the tracked schema, with both; None if they agree as far as a table map
    shows. ``schema``: None if the source is known to have no such table."""
    rows = columns_of_layout(layout, target.policies)
    if schema is None:
        return f"there are rows with the columns ({_cut(_shown(rows, layout))}), and the table was dropped"
    tracked = columns_of_schema(schema, target.policies)
    names = [column.name for column in layout.columns] == [column.name for column in schema.columns]
    if names and [f.dataType for f in rows.fields] == [f.dataType for f in tracked.fields]:
        needs_key = target.apply.mode != "append" and target.apply.keys is None
        if not needs_key or layout.primary_key == schema.primary_key:
            return None
        return (
            f"the rows have the primary key ({', '.join(layout.primary_key)}), and the statements so far lead to "
            f"({', '.join(schema.primary_key)})"
        )
    listed = ", ".join(f"{column.name} {column.column_type}" for column in schema.columns)
    return (
        f"the rows have the columns ({_cut(_shown(rows, layout))}), and the statements so far lead to ({_cut(listed)})"
    )


def _shown(rows: SourceColumns, layout: TableLayout) -> str:
    kinds = {c.source.name: f.dataType.simpleString() for c, f in zip(rows.policies.columns, rows.fields, strict=True)}
    return ", ".join(f"{c.name} {c.column_type or kinds.get(c.name, '')}".rstrip() for c in layout.columns)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"


def disagreement_error(target: Target, what: str) -> UnsupportedDdlError:
    """Returns the error for rows that disagree with the tracked schema."""
    return UnsupportedDdlError(
        f"the table's columns changed without a statement that Towpath knows: {what}",
        place=f"table {target.table}",
        remedy=f"Load the table anew with `cdc snapshot {target.destination} {target.table}`, or exclude it.",
    )


def columns_there(target: Target, state: DeltaState, columns: SourceColumns) -> SourceColumns:
    """Returns those of the rows' columns that the Delta table has. Raises TargetError if it has no place for one, and
    ``schema_changes`` does not say to leave it out; UnsupportedDdlError if a mirror has a column that is none of the
    source's: it would not equal SELECT."""
    lake_columns = {column.name.lower(): column for column in columns_of(state)}
    if target.apply.schema_changes == "evolve" and target.apply.mode == "upsert":
        source_names = {field.name.lower() for field in columns.fields}
        strange = [column.name for name, column in lake_columns.items() if name not in source_names]
        missing = [field.name for field in columns.fields if field.name.lower() not in lake_columns]
        if strange and missing:
            raise TargetError(
                f"the Delta table has {_named(strange)}, and lacks {_named(missing)}: it seems that another program "
                "has renamed a column",
                place=f"table {target.table} at {target.path}",
                remedy=f"Rename it back (ALTER TABLE … RENAME COLUMN {strange[0]} TO {missing[0]}), or load the table "
                f"anew with `cdc snapshot {target.destination} {target.table}`. For another name in Delta, set "
                f"tables.overrides: {{{target.table}: {{columns: {{{missing[0]}: {{rename: {strange[0]}}}}}}}}}.",
            )
        if strange:
            raise UnsupportedDdlError(
                f"the Delta table has a column {strange[0]} that the source's rows lack",
                place=f"table {target.table} at {target.path}",
                remedy="Drop the column, or load the table anew with "
                f"`cdc snapshot {target.destination} {target.table}`.",
            )
    kept: list[str] = []
    for field in columns.fields:
        lake_column = lake_columns.get(field.name.lower())
        if lake_column is None and target.apply.schema_changes == "ignore":
            continue
        if lake_column is None or not _takes(target, lake_column.type, field.dataType):
            has = "no such column" if lake_column is None else f"a column of type {lake_column.type.simpleString()}"
            raise TargetError(
                f"the source's rows have the column {field.name} of type {field.dataType.simpleString()}, and the "
                f"Delta table has {has}: another program has changed it",
                place=f"table {target.table} at {target.path}",
                remedy="Undo that change, or load the table anew with "
                f"`cdc snapshot {target.destination} {target.table}`.",
            )
        kept.append(field.name)
    return columns if len(kept) == len(columns.fields) else columns.only(kept)


def _named(columns: list[str]) -> str:
    return f"{'a column' if len(columns) == 1 else 'the columns'} {', '.join(columns)}"


def _takes(target: Target, held: t.DataType, needed: t.DataType) -> bool:
    return holds(held, needed) or (target.apply.mode == "append" and isinstance(held, t.StringType))
