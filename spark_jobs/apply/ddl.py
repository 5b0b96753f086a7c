"""A batch of DDL statements: what of them concerns our tables, and doing that."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from cdc.binlog.constants import EventType
from cdc.binlog.events import parse_header, parse_query
from cdc.decode.transactions import open_range
from cdc.errors import DamagedError, UnsupportedDdlError
from cdc.sql.statements import Effect, Statement, classify
from spark_jobs.apply.source_columns import own_columns_of_schema
from spark_jobs.delta.tables import WAY_OUT, Target, add_columns, record_policies, require_same_policies

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql import types as t

    from cdc.batches.manifest import ByteRange, Manifest
    from cdc.config import DestinationConfig
    from cdc.schemas import TableSchema
    from spark_jobs.delta.log import DeltaState

_HEADER_SIZE = 19
_DROPPED = re.compile(r"DROP (?:COLUMN )?(?:IF EXISTS )?(`.+`|\S+)(?: RESTRICT| CASCADE)?", re.IGNORECASE)
_MAKES_KEY = re.compile(r"\b(PRIMARY|KEY|SERIAL|AUTO_INCREMENT)\b|…", re.IGNORECASE)
"""An added column that becomes the key, or a clause too long to tell."""
_CODES = (EventType.QUERY, EventType.EXECUTE_LOAD_QUERY, EventType.MARIADB_QUERY_COMPRESSED)


def statements(ranges: tuple[ByteRange, ...]) -> Iterator[tuple[str, Statement]]:
    """The DDL statements in the ranges, as their text and what it means."""
    for part in ranges:
        found = open_range(part.path, part.offset, part.length)
        at, end = part.offset, part.offset + part.length
        while at < end:
            header = parse_header(found.buf[at : at + _HEADER_SIZE].tobytes())
            if header.length < _HEADER_SIZE or at + header.length > end:
                raise DamagedError("an event's length is impossible", place=f"{part.path}, byte {at}")
            if header.type in _CODES:
                query = parse_query(found.buf[at : at + header.length].tobytes(), found.has_checksum)
                statement = classify(query.sql, query.db, query.sql_mode)
                if statement.kind == "ddl":
                    yield query.sql, statement
            at += header.length


def effects(config: DestinationConfig, manifest: Manifest) -> list[Effect]:
    """What the batch's DDL does to included tables. Raises UnsupportedDdlError where it is not known to be harmless."""
    result: list[Effect] = []
    for sql, statement in statements(manifest.ranges):
        for effect in statement.effects:
            if effect.table is not None and not (
                config.tables.includes(*effect.table) and manifest.wants(".".join(effect.table))
            ):
                continue
            effect = _with_policies(config, effect)
            if effect.kind in ("unsupported", "replace"):
                raise _refusal(sql, effect, manifest)
            result.append(effect)
    return result


def _with_policies(config: DestinationConfig, effect: Effect) -> Effect:
    """What the effect is in the lake: none where a column comes or goes that is dropped there anyway, and an added
    column that is null there is so in all rows, whatever its default."""
    if effect.kind != "unsupported" or effect.table is None:
        return effect
    columns = config.table_apply(".".join(effect.table)).columns
    gone = _DROPPED.fullmatch(effect.clause)
    name = effect.column or (gone[1].strip("`") if gone is not None else "")
    policy = columns.get(name.lower())
    if policy is None or policy.kind not in ("drop", "null"):
        return effect
    if gone is not None:
        return replace(effect, kind="none") if policy.kind == "drop" else effect
    return effect if _MAKES_KEY.search(effect.clause) else replace(effect, kind="add_column")


def _refusal(sql: str, effect: Effect, manifest: Manifest) -> UnsupportedDdlError:
    text = " ".join(sql.split())
    shown = text if len(text) <= 300 else text[:299] + "…"
    what = f" ({effect.clause})" if effect.clause and effect.clause not in text else ""
    table = f"table {effect.table[0]}.{effect.table[1]}" if effect.table is not None else "a database"
    last = manifest.positions.last
    return UnsupportedDdlError(
        f"batch {manifest.batch} has a DDL statement that cannot be applied to {table} yet{what}: {shown}",
        place=f"{last.file}:{last.pos}",
        remedy=WAY_OUT,
    )


def add_new_columns(
    spark: SparkSession, place: Target, state: DeltaState, wanted: list[Effect], known: TableSchema | None
) -> bool:
    """Give the Delta table the columns of ADD COLUMN, in their order in the stored schema; True when there were any.

    A column that the stored schema does not have any more is added when its first rows come. Raises UnsupportedDdlError
    where a column turns out not to be null in the old rows.
    """
    if known is None:
        return False
    policies = place.policies
    columns = {c.name.lower(): c for c in known.columns}
    names = [policies.lake_name(c.name) for c in known.columns]
    there = {f.name.lower() for f in state.schema.fields}
    own = own_columns_of_schema(known, policies)
    require_same_policies(state, place, own, [c.name for c in known.columns])
    added: list[tuple[t.StructField, str]] = []
    sources: list[str] = []
    for effect in wanted:
        column = columns.get((effect.column or "").lower())
        field = own.field_of(column.name) if column is not None else None
        if column is None or field is None or field.name.lower() in there:
            continue
        null = column.nullable and (column.default or "NULL").upper() == "NULL"
        if effect.unsure_null and not null and policies.column(column.name).kind != "null":
            raise UnsupportedDdlError(
                f"the new column {column.name} is not null in the rows that were there ({column.column_type}, "
                f"default {column.default})",
                place=f"table {place.table}",
                remedy=WAY_OUT,
            )
        index = names.index(field.name)
        before = next((n for n in reversed(names[:index]) if n is not None and n.lower() in there), None)
        where = f" AFTER `{before.replace('`', '``')}`" if before is not None else " FIRST"
        added.append((field, where))
        sources.append(column.name)
        there.add(field.name.lower())
    if added:
        state = record_policies(spark, place, state, own, sources)
        add_columns(spark, place, state, added)
    return bool(added)
