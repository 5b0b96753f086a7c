"""The changes of one table by foreign keys, as the merge of the table takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pyspark.sql import functions as f
from pyspark.sql import types as t

from cdc.decode.layout import BEFORE, METADATA_FIELDS
from spark_jobs.delta.sql import quote
from spark_jobs.source import null_dates
from spark_jobs.source.changes import DELETE, UPDATE, local_frame
from spark_jobs.source.column_types import from_arrow_schema
from spark_jobs.source.split_reader import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from cdc.schemas import TableSchema
    from spark_jobs.apply.foreign_keys.actions import CascadedChange, Row
    from spark_jobs.delta.present_rows import PresentRows
    from spark_jobs.runtime.session import TableSession
    from spark_jobs.source.columns import SourceColumns


@dataclass(frozen=True)
class ChildTable:
    """A table that keys may change."""

    name: str
    base: PresentRows | None
    """Its rows before the changes; None: it has none."""
    columns: SourceColumns
    """All its columns."""
    schema: TableSchema
    compared: tuple[str, ...]
    """The names in Delta of the primary key, of keys' columns and of those that keys reference."""

    @cached_property
    def fields(self) -> list[t.StructField]:
        """The compared columns, as the decoder delivers them."""
        kinds = {one.name: one for one in self.columns.read_fields}
        return [kinds[name] for name in self.compared]

    @cached_property
    def types(self) -> list[pa.DataType]:
        return [one.type for one in arrow_schema(t.StructType(self.fields))]

    def place(self, source: str) -> int:
        """Returns the place of a source column among the compared ones."""
        column = self.columns.field_of(source)
        assert column is not None  # keys with other columns are not followed
        return self.compared.index(column.name)


@dataclass(frozen=True)
class CascadedRows:
    """The changes of one table by foreign keys."""

    child: ChildTable
    changes: list[CascadedChange]

    @property
    def schema(self) -> TableSchema:
        return self.child.schema

    def frame(
        self,
        session: TableSession,
        columns: SourceColumns | None,
        after_seq: int,
        images: Literal["after", "both"],
        events: Callable[[SourceColumns | None], DataFrame],
        *,
        counts: bool,
    ) -> DataFrame:
        """Returns the changes after a seq in the shape of :func:`~spark_jobs.apply.merge.read_changes`. ``events``
        returns the table's row events in the batch with both images."""
        changes = [change for change in self.changes if change.seq > after_seq]
        wanted = [] if columns is None else columns.read_fields
        compared = {name.lower(): place for place, name in enumerate(self.child.compared)}
        others = [one.name for one in wanted if one.name.lower() not in compared]
        rows = local_frame(session, self._table(changes), self._shape)
        if others and changes:
            rows = self._with_values(
                session, rows, changes, columns.only(others) if columns is not None else None, others, events
            )
        new, old = ([self._value(one.name, compared, prefix) for one in wanted] for prefix in ("n", "o"))
        metadata = [f.col(one.name) for one in METADATA_FIELDS]
        zero = [f.lit(0).cast("long").alias(null_dates.COLUMN)] if counts else []
        if images == "both":
            pair = [f.struct(*old).alias(BEFORE)] if wanted else []
            return rows.select(*metadata, *new, *pair, *zero)
        frame = rows.select(*metadata, *new, *zero)
        moved = rows.where((f.col("_op") == UPDATE) & f.col("_moved"))
        as_delete = [f.lit(DELETE).cast("byte").alias("_op"), *metadata[1:]]
        return frame.unionByName(moved.select(*as_delete, *old, *zero))

    def _value(self, name: str, compared: Mapping[str, int], prefix: str) -> Column:
        place = compared.get(name.lower())
        return (f.col(f"_{prefix}{place}") if place is not None else f.col(quote(name))).alias(name)

    @cached_property
    def _shape(self) -> t.StructType:
        fields = list(from_arrow_schema(pa.schema(METADATA_FIELDS)))
        fields += [t.StructField("_moved", t.BooleanType()), t.StructField("_from_seq", t.LongType())]
        fields += [t.StructField("_from_row", t.LongType())]
        for prefix in ("n", "o"):
            fields += [t.StructField(f"_{prefix}{i}", one.dataType) for i, one in enumerate(self.child.fields)]
        identity = self._identity
        fields += [t.StructField(f"_f{i}", self.child.fields[place].dataType) for i, place in enumerate(identity)]
        return t.StructType(fields)

    @property
    def _identity(self) -> list[int]:
        return [self.child.place(name) for name in self.child.schema.primary_key]

    def _table(self, changes: Sequence[CascadedChange]) -> pa.Table:
        """Returns the changes with the new (``_nI``) and old (``_oI``) values of the compared columns, and where the
        row is that each begins with: seq, ``_row`` and primary key (``_fI``)."""
        identity = self._identity
        columns: list[list[Any]] = [
            [DELETE if change.after is None else UPDATE for change in changes],
            [change.seq for change in changes],
            [change.row for change in changes],
            [change.commit_time for change in changes],
            [change.gtid for change in changes],
            [
                change.after is not None and any(change.after[i] != change.before[i] for i in identity)
                for change in changes
            ],
            [change.origin.seq for change in changes],
            [change.origin.row for change in changes],
        ]
        # The row of a delete is the old one, as in the binlog.
        columns += [[(change.after or change.before)[i] for change in changes] for i in range(len(self.child.compared))]
        columns += [[change.before[i] for change in changes] for i in range(len(self.child.compared))]
        columns += [[change.origin.identity[i] for change in changes] for i in range(len(identity))]
        schema = arrow_schema(self._shape)
        return pa.Table.from_arrays(
            [pa.array(values, one.type) for values, one in zip(columns, schema, strict=True)], schema=schema
        )

    def _with_values(
        self,
        session: TableSession,
        rows: DataFrame,
        changes: Sequence[CascadedChange],
        columns: SourceColumns | None,
        names: Sequence[str],
        events: Callable[[SourceColumns | None], DataFrame],
    ) -> DataFrame:
        """Adds the values of other columns than the compared ones: those of the row that each change begins with."""
        own = [f"_own{i}" for i in range(len(names))]
        base = [f"_base{i}" for i in range(len(names))]
        identity = self._identity
        if any(change.origin.seq == 0 for change in changes) and self.child.base is not None:
            keys = [self.child.compared[place] for place in identity]
            of_base = sorted({change.origin.identity for change in changes if change.origin.seq == 0})
            wanted = self._keys_frame(session, of_base)
            present = self.child.base.choose(session, [*keys, *names], lambda frame: _with_keys(frame, wanted, keys))
            present = _as_decoded(present, self.child.columns).toDF(*[f"_k{i}" for i in range(len(keys))], *base)
            same = f.col("_from_seq") == 0
            for i in range(len(keys)):
                same = same & f.col(f"_f{i}").eqNullSafe(f.col(f"_k{i}"))
            rows = rows.join(present, same, "left")
        else:
            rows = rows.select("*", *[f.lit(None).alias(name) for name in base])
        if any(change.origin.seq > 0 for change in changes):
            own_rows = events(columns)
            own_rows = own_rows.select(
                f.col("_seq").alias("_own_seq"),
                f.col("_row").alias("_own_row"),
                *[f.col(quote(name)).alias(other) for name, other in zip(names, own, strict=True)],
            )
            same = (f.col("_from_seq") == f.col("_own_seq")) & (f.col("_from_row") == f.col("_own_row"))
            rows = rows.join(own_rows, same, "left")
        else:
            rows = rows.select("*", *[f.lit(None).alias(name) for name in own])
        kinds = {one.name: one.dataType for one in self.child.columns.read_fields}
        kinds |= {} if columns is None else {one.name: one.dataType for one in columns.read_fields}
        values = [
            f.when(f.col("_from_seq") == 0, f.col(there)).otherwise(f.col(here)).cast(kinds[name]).alias(name)
            for name, there, here in zip(names, base, own, strict=True)
        ]
        return rows.select("*", *values)

    def _keys_frame(self, session: TableSession, identities: Sequence[Row]) -> DataFrame:
        fields = [t.StructField(f"_w{i}", self.child.fields[place].dataType) for i, place in enumerate(self._identity)]
        schema = arrow_schema(t.StructType(fields))
        arrays = [pa.array([one[i] for one in identities], schema.field(i).type) for i in range(len(fields))]
        return local_frame(session, pa.Table.from_arrays(arrays, schema=schema), t.StructType(fields))


def _with_keys(frame: DataFrame, wanted: DataFrame, keys: Sequence[str]) -> DataFrame:
    same: Column = f.lit(True)
    for i, key in enumerate(keys):
        same = same & f.col(f"r.{quote(key)}").eqNullSafe(f.col(f"w._w{i}"))
    return frame.alias("r").join(f.broadcast(wanted).alias("w"), same, "left_semi")


def _as_decoded(rows: DataFrame, columns: SourceColumns) -> DataFrame:
    """Returns rows of the lake as the decoder delivers them: VARIANT as JSON text."""
    return rows.select(
        *[
            (f.to_json(f.col(quote(name))) if name in columns.variants else f.col(quote(name))).alias(name)
            for name in rows.columns
        ]
    )
