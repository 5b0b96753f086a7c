"""The rows of a table that differ between two transactions: the table is read as of each of them, and compared."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from cdc.base.errors import TargetError, UsageError
from cdc.client import open_table_batches
from cdc.config.columns import RESERVED
from cdc.lake.delta.sql import quote
from cdc.lake.delta.tables import MODE_PROPERTY, Target, target_of
from cdc.lake.jobs.as_of import read_as_of
from cdc.lake.jobs.results import RowDiff, TableDiff
from cdc.lake.rows.columns import columns_of_schema
from cdc.lake.runtime.session import acquire
from cdc.store.reader.points import find_point

if TYPE_CHECKING:
    from cdc.binlog.sql.schemas import TableSchema
    from cdc.config import DestinationConfig
    from cdc.lake.jobs.values import Diff

_BEFORE, _AFTER, _KIND, _CHANGED = "b", "a", "kind", "changed"


def diff(config: DestinationConfig, job: Diff) -> TableDiff:
    """Compares a table as of two points. Raises UsageError for a changelog and for a point that the store does not
    have, TargetError if the table cannot be read as of a point."""
    table = config.tables.name(job.table)
    target = target_of(config, table)
    batches = open_table_batches(config, archived="keep")
    before_seq, after_seq = (find_point(batches.reader, point) for point in (job.before, job.after))
    state = target.state()
    if state is None:
        raise TargetError("there is no Delta table", place=f"table {table} at {target.path}")
    mode = state.properties.get(MODE_PROPERTY, target.apply.mode)
    if mode == "append":
        raise UsageError(
            "the table is a changelog, whose rows are the changes themselves",
            place=f"table {table}",
            remedy="Read those between the two points with cdc.read_changes, or with cdc tail.",
        )
    spark = acquire(config.spark).spark
    before, after = (
        _present(read_as_of(spark, config, seq=seq, tables=[table])[table], mode) for seq in (before_seq, after_seq)
    )
    names = [name for name in after.columns if name in before.columns]
    stored = batches.reader.schemas(max(before_seq, after_seq))
    keys = _keys(target, None if stored is None else stored[1].tables.get(table))
    missing = [key for key in keys if key not in names]
    if missing:
        raise TargetError(
            f"the key's column {missing[0]} is not in the table as of both points",
            place=f"table {table} at {target.path}",
            remedy="Choose points on one side of the statement that changed it.",
        )
    joined = _joined(before, after, names, keys).persist()  # only rows that differ: the tables are read once
    try:
        counts = joined.groupBy().agg(
            *(f.count_if(f.col(_KIND) == kind).alias(kind) for kind in ("insert", "update", "delete")),
            *(f.count_if((f.col(_KIND) == "update") & f.col(_CHANGED)[i]).alias(f"c{i}") for i in range(len(names))),
        ).collect()[0]  # fmt: skip
        rows = _rows(joined, before, after, names, keys, job.limit) if job.limit else []
    finally:
        joined.unpersist()
    return TableDiff(
        table=table,
        mode=mode,
        before_seq=before_seq,
        after_seq=after_seq,
        inserted=counts["insert"],
        updated=counts["update"],
        deleted=counts["delete"],
        columns={name: counts[f"c{i}"] for i, name in enumerate(names) if counts[f"c{i}"]},
        only_before=[name for name in before.columns if name not in names],
        only_after=[name for name in after.columns if name not in names],
        rows=rows,
    )


def _keys(target: Target, schema: TableSchema | None) -> tuple[str, ...]:
    """Returns the columns of the key by their names in Delta. Only changelogs have none. Raises TargetError."""
    if schema is None:
        raise TargetError("the store does not describe the table", place=f"table {target.table}")
    columns = columns_of_schema(schema, target.policies)
    return columns.keys([key for key in target.apply.keys or schema.primary_key if columns.has(key)])


def _present(rows: DataFrame, mode: str) -> DataFrame:
    """Returns the rows that the source had, without the columns that Towpath adds."""
    if mode == "soft_delete":
        rows = rows.where(~f.col("_deleted"))
    elif mode == "scd2":
        rows = rows.where(f.col("_current"))
    return rows.select(*(_named(name) for name in rows.columns if name.lower() not in RESERVED))


def _named(name: str, side: str = "") -> Column:
    return f.col(f"{side}.{quote(name)}" if side else quote(name))


def _joined(before: DataFrame, after: DataFrame, names: Sequence[str], keys: Sequence[str]) -> DataFrame:
    """Returns the rows that differ: both sides as structs, their kind, and for each column whether it differs."""
    sides = [
        rows.select(f.struct(*map(_named, names)).alias(side), f.lit(True).alias(f"in_{side}"))
        for rows, side in ((before, _BEFORE), (after, _AFTER))
    ]
    same = reduce(lambda left, right: left & right, (_named(k, _BEFORE).eqNullSafe(_named(k, _AFTER)) for k in keys))
    changed = f.array(*(_changed(before, after, name) for name in names))
    joined = sides[0].join(sides[1], same, "full_outer").withColumn(_CHANGED, changed)
    kind = (
        f.when(f.col(f"in_{_BEFORE}").isNull(), "insert")
        .when(f.col(f"in_{_AFTER}").isNull(), "delete")
        .when(f.array_contains(_CHANGED, True), "update")
    )
    return joined.withColumn(_KIND, kind).where(f.col(_KIND).isNotNull())


def _changed(before: DataFrame, after: DataFrame, name: str) -> Column:
    """Whether a column differs. Values of types that differ, or cannot be compared, are compared as text."""
    kinds = [rows.schema[name].dataType for rows in (before, after)]
    old, new = _named(name, _BEFORE), _named(name, _AFTER)
    if kinds[0] != kinds[1] or isinstance(kinds[0], t.VariantType):
        old, new = _text(old, kinds[0]), _text(new, kinds[1])
    return ~old.eqNullSafe(new)


def _text(value: Column, kind: t.DataType) -> Column:
    return f.hex(value) if isinstance(kind, t.BinaryType) else value.cast("string")


def _rows(
    joined: DataFrame, before: DataFrame, after: DataFrame, names: Sequence[str], keys: Sequence[str], limit: int
) -> list[RowDiff]:
    """Returns some of the rows that differ, in the order of their keys."""
    order = [f.coalesce(_named(key, _AFTER), _named(key, _BEFORE)) for key in keys]
    texts = [
        f.array(*(_text(_named(name, side), rows.schema[name].dataType) for name in names)).alias(side)
        for side, rows in ((_BEFORE, before), (_AFTER, after))
    ]
    differing = []
    for row in joined.orderBy(*order).limit(limit).select(_KIND, *texts, _CHANGED).collect():
        kind = row[_KIND]
        old, new = (dict(zip(names, row[side], strict=True)) for side in (_BEFORE, _AFTER))
        shown = names
        if kind == "update":
            shown = [name for name, differs in zip(names, row[_CHANGED], strict=True) if differs]
        differing.append(
            RowDiff(
                kind=kind,
                key={name: (old if kind == "delete" else new)[name] for name in keys},
                before=None if kind == "insert" else {name: old[name] for name in shown},
                after=None if kind == "delete" else {name: new[name] for name in shown},
            )
        )
    return differing
