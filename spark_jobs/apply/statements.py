"""The text of a merge's statement, its entry in the ledger, and rows in the shape that it takes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as f
from pyspark.sql import types as t

from spark_jobs.apply.column_types import literal, quote, text_literal
from spark_jobs.apply.reduce import DELETE
from spark_jobs.delta.tables import BEFORE, OWN_NAMES, Target

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from cdc.batches.manifest import Manifest
    from spark_jobs.delta.log import DeltaState

_SUFFIX: dict[type[t.DataType], str] = {t.ByteType: "Y", t.ShortType: "S", t.IntegerType: "", t.LongType: "L"}
_LONGEST_BOUND = 256


def with_variants(rows: DataFrame, variants: frozenset[str]) -> DataFrame:
    """JSON's text as VARIANT, in these columns and in ``_before``. The last step, since such values have no order, and
    most of the rows may be gone by then."""
    if not variants:
        return rows
    columns = []
    for name in rows.columns:
        column = f.col(quote(name))
        if name in variants:
            column = f.parse_json(column)
        elif name == BEFORE:
            for inner in sorted(variants):
                text = f.col(f"{BEFORE}.{quote(inner)}")
                column = column.withField(quote(inner), f.parse_json(text))
        columns.append(column.alias(name))
    return rows.select(*columns)


def key_ranges(rows: DataFrame, keys: Sequence[str]) -> list[str] | None:
    """SQL conditions on ``t`` that hold for every target row which can match, for the keys that have an order and short
    literals; None when there are no rows at all."""
    kinds = {field.name: field.dataType for field in rows.schema.fields}
    columns = [f.count(f.lit(1)).alias("n")]
    for i, key in enumerate(keys):
        column = f.col(quote(key))
        columns.append(f.count(column).alias(f"n{i}"))
        columns += [
            _as_text(f.min(column), kinds[key]).alias(f"a{i}"),
            _as_text(f.max(column), kinds[key]).alias(f"b{i}"),
        ]
    comparable = [k for k in keys if not isinstance(kinds[k], t.BinaryType | t.FloatType | t.DoubleType)]
    found = rows.agg(*columns).collect()[0]
    if not found["n"]:
        return None
    conditions = []
    for i, key in enumerate(keys):
        if key not in comparable or found[f"n{i}"] != found["n"]:
            continue
        low, high = key_literal(found[f"a{i}"], kinds[key]), key_literal(found[f"b{i}"], kinds[key])
        if low is not None and high is not None:
            conditions.append(f"t.{quote(key)} >= {low} AND t.{quote(key)} <= {high}")
    return conditions


def _as_text(value: Column, kind: t.DataType) -> Column:
    """A bound of a key as :func:`key_literal` takes it."""
    # As a text, a timestamp would depend on the session's time zone.
    return f.unix_micros(value).cast("string") if isinstance(kind, t.TimestampType) else value.cast("string")


def key_literal(text: str, kind: t.DataType) -> str | None:
    """A literal of exactly the column's type, so that Delta can compare it with a file's statistics; None for a type
    without one. Texts, which are the source's, stand in it in hexadecimal digits; a timestamp is given in microseconds.
    """
    for number, suffix in _SUFFIX.items():
        if isinstance(kind, number):
            return f"{text}{suffix}"
    if isinstance(kind, t.StringType):
        return text_literal(text) if len(text) <= _LONGEST_BOUND else None
    if isinstance(kind, t.DateType):
        return f"DATE{literal(text)}"
    if isinstance(kind, t.TimestampNTZType):
        return f"TIMESTAMP_NTZ{literal(text)}"
    if isinstance(kind, t.TimestampType):
        return f"timestamp_micros({int(text)}L)"
    return f"CAST({literal(text)} AS {kind.simpleString()})" if isinstance(kind, t.DecimalType) else None


def upsert_statement(
    place: Target, view: str, keys: Sequence[str], names: Sequence[str], ranges: Sequence[str], null_keys: bool
) -> str:
    """The MERGE of reduced rows. ``null_keys``: keys may be null, and a null is then equal to a null."""
    equal = "<=>" if null_keys else "="
    on = " AND ".join([f"t.{quote(k)} {equal} s.{quote(k)}" for k in keys] + list(ranges))
    columns = ", ".join(quote(n) for n in names)
    values = ", ".join(f"s.{quote(n)}" for n in names)
    changed = ", ".join(f"t.{quote(n)} = s.{quote(n)}" for n in names)
    return (
        f"MERGE INTO {place.sql} t USING {view} s ON {on} "  # noqa: S608 - names are quoted
        f"WHEN MATCHED AND s._op = {DELETE} THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {changed} "
        f"WHEN NOT MATCHED AND s._op <> {DELETE} THEN INSERT ({columns}) VALUES ({values})"
    )


def append_rows(changes: DataFrame, schema: t.StructType, before: t.DataType) -> DataFrame:
    """Changes with both images in the shape of an ``append`` table: all its columns, in its order."""
    own = {c.lower() for c in changes.columns} - OWN_NAMES
    assert isinstance(before, t.StructType)
    columns = []
    for field in schema.fields:
        if field.name == "_op":
            word = f.when(f.col("_op") == DELETE, "delete").when(f.col("_op") == 1, "insert").otherwise("update")
            columns.append(word.alias("_op"))
        elif field.name == BEFORE:
            fields = [
                (f.col(f"{BEFORE}.{quote(b.name)}") if b.name.lower() in own else f.lit(None))
                .cast(b.dataType)
                .alias(b.name)
                for b in before.fields
            ]
            columns.append(f.when(f.col(BEFORE).isNotNull(), f.struct(*fields)).alias(BEFORE))
        elif field.name in OWN_NAMES or field.name.lower() in own:
            columns.append(f.col(quote(field.name)))
        else:
            columns.append(f.lit(None).cast(field.dataType).alias(field.name))
    return changes.select(*columns)


def append_statement(place: Target, view: str, state: DeltaState) -> str:
    """The insert-only MERGE: a change that is there already finds itself. Only files beyond the cut are looked at."""
    names = [quote(field.name) for field in state.schema.fields]
    return (
        f"MERGE INTO {place.sql} t USING {view} s "  # noqa: S608 - names are quoted
        f"ON t._seq = s._seq AND t._row = s._row AND t._seq > {state.applied_seq}L "
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(names)}) VALUES ({', '.join('s.' + n for n in names)})"
    )


def empty_statement(place: Target) -> str:
    """A MERGE of no rows, which still commits the position."""
    nothing = f"(SELECT * FROM {place.sql} WHERE false)"  # noqa: S608
    return f"MERGE INTO {place.sql} t USING {nothing} s ON false WHEN MATCHED THEN DELETE"


def user_metadata(manifest: Manifest, place: Target, previous_seq: int, generation: int = 0) -> str:
    """The commit's entry in the ledger; see docs/formats/user_metadata.md."""
    entry = {
        "destination": manifest.destination,
        "batch": manifest.batch,
        "epoch": manifest.epoch,
        "server_uuid": manifest.server_uuid,
        "first_seq": previous_seq,
        "after_seq": manifest.after_seq,
        "last_seq": manifest.last_seq,
        "store_begins": None if manifest.store_begins is None else manifest.store_begins.seq,
        "generation": generation,
        "gtid": manifest.positions.last.gtid,
        "table": place.table,
        "mode": place.apply.mode,
    }
    return for_settings(json.dumps(entry, ensure_ascii=False))


def for_settings(json_text: str) -> str:
    """The same JSON document as the value of a setting: Spark replaces ``${name}`` in such values whenever it reads
    them, whatever spark.sql.variable.substitute says."""
    return json_text.replace("${", "\\u0024{")
