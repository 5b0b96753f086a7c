"""DDL batches: finds the statements that concern included tables, refuses harmful ones, and adds new columns."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from cdc.binlog.constants import EventType
from cdc.binlog.events import parse_header, parse_query
from cdc.decode.transactions import open_range
from cdc.errors import DamagedError, UnsupportedDdlError
from cdc.sql.changes import (
    AddColumn,
    Change,
    CreateTable,
    DropColumn,
    NoEffect,
    Null,
    SetDefault,
    SetTableCharset,
    table_of,
)
from cdc.sql.statements import Statement, classify
from spark_jobs.delta.sql import quote
from spark_jobs.delta.tables import (
    WAY_OUT,
    Target,
    add_columns,
    record_policies,
    require_same_policies,
    schema_of,
)
from spark_jobs.source.columns import columns_of_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql import types as t

    from cdc.batches.manifest import ByteRange, Manifest
    from cdc.config import DestinationConfig
    from cdc.schemas import TableSchema
    from spark_jobs.delta.log import DeltaState

_HEADER_SIZE = 19
_MAKES_KEY = re.compile(r"\b(PRIMARY|KEY|SERIAL|AUTO_INCREMENT)\b|…", re.IGNORECASE)
"""Matches the clause of an added column that becomes a key, and a clause that was cut off."""
_CODES = (EventType.QUERY, EventType.EXECUTE_LOAD_QUERY, EventType.MARIADB_QUERY_COMPRESSED)


def statements(ranges: tuple[ByteRange, ...]) -> Iterator[tuple[str, Statement]]:
    """Yields the DDL statements in the ranges: text and classification. Raises DamagedError."""
    for one in ranges:
        segment = open_range(one.path, one.offset, one.length)
        at, end = one.offset, one.offset + one.length
        while at < end:
            header = parse_header(segment.buf[at : at + _HEADER_SIZE].tobytes())
            if header.length < _HEADER_SIZE or at + header.length > end:
                raise DamagedError("an event's length is impossible", place=f"{one.path}, byte {at}")
            if header.type in _CODES:
                query = parse_query(segment.buf[at : at + header.length].tobytes(), segment.has_checksum)
                statement = classify(query.sql, query.db, query.sql_mode)
                if statement.kind == "ddl":
                    yield query.sql, statement
            at += header.length


def changes(config: DestinationConfig, manifest: Manifest) -> list[Change]:
    """Returns the changes of the batch's DDL on included tables. Raises UnsupportedDdlError for one that cannot be
    applied."""
    result: list[Change] = []
    for sql, statement in statements(manifest.ranges):
        for change in statement.changes:
            table = table_of(change)
            if table is not None and not (config.tables.includes(*table) and manifest.wants(".".join(table))):
                continue
            change = _with_policies(config, change)
            if not _is_applied(change):
                raise _refusal(sql, change, manifest)
            result.append(change)
    return result


def _is_applied(change: Change) -> bool:
    """Whether the Delta table can follow a change."""
    if isinstance(change, AddColumn):
        return isinstance(change.old_rows, Null) or (change.unsure_null and change.column.default in (None, "NULL"))
    if isinstance(change, CreateTable):
        return not change.replaces
    return isinstance(change, NoEffect | SetDefault | SetTableCharset)


def _with_policies(config: DestinationConfig, change: Change) -> Change:
    """Returns the change of the Delta table, given the column policies. A column that is dropped there anyway has no
    effect; an added column that is nulled there is null in all rows, whatever its default."""
    if not isinstance(change, AddColumn | DropColumn) or _is_applied(change):
        return change
    columns = config.table_apply(".".join(change.table)).columns
    name = change.column.name if isinstance(change, AddColumn) else change.name
    policy = columns.get(name.lower())
    if policy is None or policy.kind not in ("drop", "null"):
        return change
    if isinstance(change, DropColumn):
        return NoEffect(change.table, clause=change.clause) if policy.kind == "drop" else change
    return change if _MAKES_KEY.search(change.clause) else replace(change, old_rows=Null())


def _refusal(sql: str, change: Change, manifest: Manifest) -> UnsupportedDdlError:
    text = " ".join(sql.split())
    shown = text if len(text) <= 300 else text[:299] + "…"
    what = f" ({change.clause})" if change.clause and change.clause not in text else ""
    named = table_of(change)
    table = f"table {named[0]}.{named[1]}" if named is not None else "a database"
    last = manifest.positions.last
    return UnsupportedDdlError(
        f"batch {manifest.batch} has a DDL statement that cannot be applied to {table} yet{what}: {shown}",
        place=f"{last.file}:{last.pos}",
        remedy=WAY_OUT,
    )


def add_new_columns(
    spark: SparkSession, target: Target, state: DeltaState, wanted: list[AddColumn], schema: TableSchema | None
) -> bool:
    """Adds the columns of ADD COLUMN to the Delta table, in the order of the stored schema. Returns whether it added
    any.

    A column that the stored schema no longer has is added with its first rows. Raises UnsupportedDdlError for a column
    that is not null in the old rows.
    """
    if schema is None:
        return False
    policies = target.policies
    columns = {c.name.lower(): c for c in schema.columns}
    names = [policies.lake_name(c.name) for c in schema.columns]
    there = {f.name.lower() for f in schema_of(state).fields}
    source = columns_of_schema(schema, policies)
    require_same_policies(state, target, source, [c.name for c in schema.columns])
    added: list[tuple[t.StructField, str]] = []
    sources: list[str] = []
    for change in wanted:
        column = columns.get(change.column.name.lower())
        field = source.field_of(column.name) if column is not None else None
        if column is None or field is None or field.name.lower() in there:
            continue
        null = column.nullable and (column.default or "NULL").upper() == "NULL"
        if change.unsure_null and not null and policies.column(column.name).kind != "null":
            raise UnsupportedDdlError(
                f"the new column {column.name} is not null in the rows that were there ({column.column_type}, "
                f"default {column.default})",
                place=f"table {target.table}",
                remedy=WAY_OUT,
            )
        index = names.index(field.name)
        before = next((n for n in reversed(names[:index]) if n is not None and n.lower() in there), None)
        where = f" AFTER {quote(before)}" if before is not None else " FIRST"
        added.append((field, where))
        sources.append(column.name)
        there.add(field.name.lower())
    if added:
        state = record_policies(spark, target, state, source, sources)
        add_columns(spark, target, state, added)
    return bool(added)
