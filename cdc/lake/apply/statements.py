"""The SQL of a table's statement, and the user metadata of its commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as f
from pyspark.sql import types as t

from cdc.base.targets import SOURCE_COLUMN
from cdc.decode.layout import DELETE
from cdc.lake.apply.versions import CLOSES
from cdc.lake.delta.sql import literal, quote, text_literal
from cdc.lake.delta.tables import Target, schema_of
from cdc.lake.rows.row_choice import SEEN
from cdc.lake.runtime.commit_metadata import commit_metadata

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from cdc.batches.manifest import Manifest
    from cdc.lake.delta.log import DeltaState

_SUFFIX: dict[type[t.DataType], str] = {t.ByteType: "Y", t.ShortType: "S", t.IntegerType: "", t.LongType: "L"}
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - for timestamps without a time zone
_LONGEST_BOUND = 256
"""Characters of a text that may stand in a condition."""


def key_ranges(rows: DataFrame, keys: Sequence[str]) -> list[str] | None:
    """Returns SQL conditions on ``t`` that hold for every target row that can match, for the keys with an order and
    short literals. Returns None if there are no rows."""
    kinds = {field.name: field.dataType for field in rows.schema.fields}
    columns = [f.count(f.lit(1)).alias("n")]
    for i, key in enumerate(keys):
        column = f.col(quote(key))
        columns.append(f.count(column).alias(f"n{i}"))
        columns += [
            _as_text(f.min(column), kinds[key]).alias(f"a{i}"),
            _as_text(f.max(column), kinds[key]).alias(f"b{i}"),
        ]
    extremes = rows.agg(*columns).collect()[0]
    if not extremes["n"]:
        return None
    spans = [
        [(extremes[f"a{i}"], extremes[f"b{i}"])] if extremes[f"n{i}"] == extremes["n"] else [] for i in range(len(keys))
    ]
    return range_conditions(keys, [kinds[key] for key in keys], spans)


def range_conditions(
    keys: Sequence[str], kinds: Sequence[t.DataType], spans: Sequence[Sequence[tuple[str, str]]]
) -> list[str]:
    """Returns a condition for each key whose ranges are given, in the form that :func:`key_literal` takes, and have an
    order and short literals: the key's value lies in one of its ranges."""
    conditions = []
    for key, kind, ranges in zip(keys, kinds, spans, strict=True):
        if isinstance(kind, t.BinaryType | t.FloatType | t.DoubleType):
            continue
        literals = [(key_literal(low, kind), key_literal(high, kind)) for low, high in ranges]
        conditions_of_key = [
            f"t.{quote(key)} >= {low} AND t.{quote(key)} <= {high}"
            for low, high in literals
            if low is not None and high is not None
        ]
        if conditions_of_key and len(conditions_of_key) == len(ranges):
            conditions.append(
                conditions_of_key[0] if len(conditions_of_key) == 1 else f"(({') OR ('.join(conditions_of_key)}))"
            )
    return conditions


def bound_text(value: pa.Scalar) -> str:
    """Returns a value of Arrow in the form that :func:`key_literal` takes."""
    kind = value.type
    if pa.types.is_timestamp(kind):
        if kind.tz is not None:
            return str(value.value)
        return (_EPOCH + timedelta(microseconds=value.value)).isoformat(sep=" ")
    plain = value.as_py()
    return format(plain, "f") if pa.types.is_decimal(kind) else str(plain)


def _as_text(value: Column, kind: t.DataType) -> Column:
    """Returns a key's bound in the form that :func:`key_literal` takes."""
    # The text of a timestamp would depend on the session's time zone.
    return f.unix_micros(value).cast("string") if isinstance(kind, t.TimestampType) else value.cast("string")


def key_literal(text: str, kind: t.DataType) -> str | None:
    """Returns a literal of exactly the column's type, so that Delta can compare it with the statistics of a file; None
    for a type without literals. A timestamp is given in microseconds. Texts come from the source, so their literals
    are hexadecimal."""
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
    target: Target, view: str, keys: Sequence[str], names: Sequence[str], ranges: Sequence[str], null_keys: bool
) -> str:
    """Returns the MERGE of reduced rows. ``null_keys``: keys may be null, and null equals null."""
    on = _on(target, keys, ranges, null_keys)
    values = _own({quote(n): f"s.{quote(n)}" for n in names}, target)
    changed = ", ".join(f"t.{quote(n)} = s.{quote(n)}" for n in names)
    return (
        f"MERGE INTO {target.sql} t USING {view} s ON {on} "  # noqa: S608 - names are quoted
        f"WHEN MATCHED AND s._op = {DELETE} THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {changed} "
        f"WHEN NOT MATCHED AND s._op <> {DELETE} THEN INSERT ({', '.join(values)}) "
        f"VALUES ({', '.join(values.values())})"
    )


def insert_statement(
    target: Target, view: str, keys: Sequence[str], names: Sequence[str], ranges: Sequence[str], *, marks: bool
) -> str:
    """Returns the MERGE of rows that are all new: a row that is there already is the same. ``marks``: deleted rows of
    the table stay and are marked. Decision 0071 says when this statement may be used."""
    values = {quote(name): f"s.{quote(name)}" for name in names}
    if marks:
        values |= {quote(name): f"s.{quote(name)}" for name in ("_commit_time", "_seq")} | {"`_deleted`": "false"}
    values = _own(values, target)
    return (
        f"MERGE INTO {target.sql} t USING {view} s ON {_on(target, keys, ranges, False)} "  # noqa: S608 - names are quoted
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(values)}) VALUES ({', '.join(values.values())})"
    )


def soft_delete_statement(
    target: Target, view: str, keys: Sequence[str], names: Sequence[str], ranges: Sequence[str], null_keys: bool
) -> str:
    """Returns the MERGE of reduced rows into a table whose deleted rows stay and are marked.

    A deleted row keeps the values that it had. One that was inserted and deleted within the batch is inserted as
    deleted, as it would be by two batches; one that was never there is not.
    """
    on = _on(target, keys, ranges, null_keys)
    values = {quote(name): f"s.{quote(name)}" for name in (*names, "_commit_time", "_seq")}
    values["_deleted"] = f"(s._op = {DELETE})"
    changed = ", ".join(f"t.{name} = {value}" for name, value in values.items())
    values = _own(values, target)
    return (
        f"MERGE INTO {target.sql} t USING {view} s ON {on} "  # noqa: S608 - names are quoted
        f"WHEN MATCHED THEN UPDATE SET {changed} "
        f"WHEN NOT MATCHED AND s.{SEEN} THEN INSERT ({', '.join(values)}) VALUES ({', '.join(values.values())})"
    )


def scd2_statement(
    target: Target,
    view: str,
    keys: Sequence[str],
    names: Sequence[str],
    conditions: Sequence[str],
    null_keys: bool,
    *,
    corrects: bool = False,
) -> str:
    """Returns the MERGE of versions, by key and ``_seq``: it inserts the new ones and closes the open ones.
    ``corrects``: a new version that is there already gets its values once more."""
    on = _on(target, keys, ["t._seq = s._seq", *conditions], null_keys)
    columns = [quote(name) for name in (*names, "_valid_from", "_valid_to", "_current", "_seq")]
    inserted = _own({name: f"s.{name}" for name in columns}, target)
    values = ", ".join(f"t.{quote(name)} = s.{quote(name)}" for name in names)
    corrected = f"WHEN MATCHED AND NOT s.{CLOSES} THEN UPDATE SET {values} " if corrects else ""
    return (
        f"MERGE INTO {target.sql} t USING {view} s ON {on} "  # noqa: S608 - names are quoted
        f"{corrected}WHEN MATCHED THEN UPDATE SET t._valid_to = s._valid_to, t._current = s._current "
        f"WHEN NOT MATCHED AND NOT s.{CLOSES} THEN INSERT ({', '.join(inserted)}) "
        f"VALUES ({', '.join(inserted.values())})"
    )


def _on(target: Target, keys: Sequence[str], conditions: Sequence[str], null_keys: bool) -> str:
    equal = "<=>" if null_keys else "="
    return " AND ".join(
        [f"t.{quote(k)} {equal} s.{quote(k)}" for k in keys] + list(conditions) + own_conditions(target)
    )


def own_conditions(target: Target) -> list[str]:
    """Returns the SQL condition on ``t`` that holds for the destination's own rows of a shared table; none for a table
    with one owner."""
    return [] if target.own_rows is None else [f"t.{target.own_rows}"]


def _own(values: dict[str, str], target: Target) -> dict[str, str]:
    """Adds to the SQL of an inserted row's values, by column, that the row is the destination's."""
    return {**values, quote(SOURCE_COLUMN): literal(target.member)} if target.apply.shared else values


def append_statement(target: Target, view: str, state: DeltaState) -> str:
    """Returns the insert-only MERGE, in which a change that is there already matches itself. Only files after the
    applied position are read."""
    names = [quote(field.name) for field in schema_of(state).fields]
    values = _own({name: f"s.{name}" for name in names}, target)
    conditions = ["t._seq = s._seq", "t._row = s._row", f"t._seq > {state.applied_seq}L", *own_conditions(target)]
    return (
        f"MERGE INTO {target.sql} t USING {view} s "  # noqa: S608 - names are quoted
        f"ON {' AND '.join(conditions)} "
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(values)}) VALUES ({', '.join(values.values())})"
    )


def empty_statement(target: Target) -> str:
    """Returns a MERGE of no rows, which still commits the position."""
    nothing = f"(SELECT * FROM {target.sql} WHERE false)"  # noqa: S608
    return f"MERGE INTO {target.sql} t USING {nothing} s ON false WHEN MATCHED THEN DELETE"


@dataclass(frozen=True)
class SourceRows:
    """How many rows the source of a MERGE has."""

    rows: int
    upserts: int
    """Those of them that leave a row."""


def user_metadata(
    manifest: Manifest, target: Target, previous_seq: int, generation: int = 0, source: SourceRows | None = None
) -> str:
    """Returns the commit's user metadata, its entry in the ledger; see docs/formats/user_metadata.md. ``source``: the
    rows of the statement's source, if they are counted."""
    entry: dict[str, Any] = {
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
        "table": target.table,
        "mode": target.apply.mode,
    }
    if source is not None:
        entry |= {"source_rows": source.rows, "source_upserts": source.upserts}
    return commit_metadata(entry)
