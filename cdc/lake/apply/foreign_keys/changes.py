"""The changes of one table by foreign keys, as the merge of the table takes them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pyspark.sql import functions as f
from pyspark.sql import types as t

from cdc.decode.layout import BEFORE, DELETE, METADATA_FIELDS, UPDATE
from cdc.lake.delta.present_rows import as_decoded, matched
from cdc.lake.delta.sql import quote
from cdc.lake.rows import null_dates
from cdc.lake.rows.changes import local_frame
from cdc.lake.rows.column_types import from_arrow_schema
from cdc.lake.rows.split_reader import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from cdc.binlog.sql.schemas import TableSchema
    from cdc.lake.delta.present_rows import PresentRows
    from cdc.lake.foreign_keys.actions import CascadedChange, Row
    from cdc.lake.rows.columns import SourceColumns
    from cdc.lake.runtime.session import TableSession


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
        kinds = {field.name: field for field in self.columns.read_fields}
        return [kinds[name] for name in self.compared]

    @cached_property
    def types(self) -> list[pa.DataType]:
        return [field.type for field in arrow_schema(t.StructType(self.fields))]

    def frame_of(
        self, session: TableSession, names: Sequence[str], places: Sequence[int], values: Collection[Row]
    ) -> DataFrame:
        """Returns values of some of the compared columns as a DataFrame with these names."""
        fields = [t.StructField(name, self.fields[place].dataType) for name, place in zip(names, places, strict=True)]
        schema, ordered = arrow_schema(t.StructType(fields)), sorted(values)
        arrays = [pa.array([row[i] for row in ordered], field.type) for i, field in enumerate(schema)]
        return local_frame(session, pa.Table.from_arrays(arrays, schema=schema), t.StructType(fields))

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
        """Returns the changes after a seq in the shape of :func:`~cdc.lake.apply.merge.read_changes`. ``events``
        returns the table's row events in the batch with both images."""
        changes = [change for change in self.changes if change.seq > after_seq]
        read_fields = [] if columns is None else columns.read_fields
        compared = {name.lower(): place for place, name in enumerate(self.child.compared)}
        others = [field.name for field in read_fields if field.name.lower() not in compared]
        rows = local_frame(session, self._table(changes), self._shape)
        if columns is not None and others and changes:
            rows = self._with_values(session, rows, changes, columns.only(others), events)
        new, old = ([self._value(field.name, compared, prefix) for field in read_fields] for prefix in ("n", "o"))
        metadata = [f.col(field.name) for field in METADATA_FIELDS]
        zero = [f.lit(0).cast("long").alias(null_dates.COLUMN)] if counts else []
        if images == "both":
            pair = [f.struct(*old).alias(BEFORE)] if read_fields else []
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
            fields += [t.StructField(f"_{prefix}{i}", field.dataType) for i, field in enumerate(self.child.fields)]
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
            [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)], schema=schema
        )

    def _with_values(
        self,
        session: TableSession,
        rows: DataFrame,
        changes: Sequence[CascadedChange],
        columns: SourceColumns,
        events: Callable[[SourceColumns | None], DataFrame],
    ) -> DataFrame:
        """Adds the values of other columns than the compared ones: those of the row that each change begins with."""
        kinds = {field.name: field.dataType for field in columns.read_fields}
        in_events, in_base = ([f"_{prefix}{i}" for i in range(len(kinds))] for prefix in ("event", "base"))
        if any(change.origin.seq == 0 for change in changes) and self.child.base is not None:
            keys = [self.child.compared[place] for place in self._identity]
            identities = self.child.frame_of(
                session, keys, self._identity, {change.origin.identity for change in changes if change.origin.seq == 0}
            )
            present = self.child.base.choose(
                session, [*keys, *kinds], lambda frame: matched(frame, f.broadcast(identities), keys, "left_semi")
            )
            present = as_decoded(present, self.child.columns.variants).toDF(
                *[f"_k{i}" for i in range(len(keys))], *in_base
            )
            same = f.col("_from_seq") == 0
            for i in range(len(keys)):
                same = same & f.col(f"_f{i}").eqNullSafe(f.col(f"_k{i}"))
            rows = rows.join(present, same, "left")
        else:
            rows = rows.select("*", *[f.lit(None).alias(name) for name in in_base])
        if any(change.origin.seq > 0 for change in changes):
            own = events(columns).select(
                f.col("_seq").alias("_own_seq"),
                f.col("_row").alias("_own_row"),
                *[f.col(quote(name)).alias(other) for name, other in zip(kinds, in_events, strict=True)],
            )
            same = (f.col("_from_seq") == f.col("_own_seq")) & (f.col("_from_row") == f.col("_own_row"))
            rows = rows.join(own, same, "left")
        else:
            rows = rows.select("*", *[f.lit(None).alias(name) for name in in_events])
        is_base = f.col("_from_seq") == 0
        values = [
            f.when(is_base, f.col(base)).otherwise(f.col(event)).cast(kind).alias(name)
            for (name, kind), base, event in zip(kinds.items(), in_base, in_events, strict=True)
        ]
        return rows.select("*", *values)
