"""Brings a Delta table to a state that was read as a whole: the rows of a snapshot and the changes around it, or a
table that was rebuilt beside it.

The state of a snapshot is exact at one position, ``high_seq``. Its chunks were read at different moments, all after
``low_seq`` and none after ``high_seq``. A row whose key changes between the two is taken from its last change, every
other row from its chunk; docs/decisions/0061 has the proof.

One commit replaces the table: rows, schema, properties and applied position change together.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f
from pyspark.sql import types as t

from cdc.errors import NeedsSnapshotError
from spark_jobs.apply.merge import TableMerge, read_changes
from spark_jobs.apply.rows import DELETE, latest, require_keys, with_variants
from spark_jobs.delta.log import clear_unborn
from spark_jobs.delta.sql import quote, setting_value
from spark_jobs.delta.tables import BEFORE, Origin, Target, properties_of, sql_properties
from spark_jobs.runtime.session import APP_ID, METADATA, VERSION, forget_transaction
from spark_jobs.source.columns import SourceColumns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from spark_jobs.delta.log import DeltaState


@dataclass(frozen=True)
class Position:
    """The position that a load brings a table to."""

    seq: int
    server_uuid: str
    epoch: int
    gtid: str | None = None
    time_us: int = 0
    """Commit time of the last transaction up to there, µs since 1970; 0 if it is not known."""


@dataclass(frozen=True)
class Rebuild:
    """Why a table gets a new generation; recorded in the commit's user metadata."""

    kind: str
    """``snapshot`` or ``replay``."""
    id: str
    low_seq: int | None = None


def user_metadata(target: Target, position: Position, generation: int, rebuild: Rebuild) -> str:
    """Returns the user metadata of a commit that brings a table to a position as a whole."""
    entry: dict[str, Any] = {
        "destination": target.destination,
        "batch": 0,
        "epoch": position.epoch,
        "server_uuid": position.server_uuid,
        "first_seq": position.seq,
        "after_seq": position.seq,
        "last_seq": position.seq,
        "store_begins": None,
        "generation": generation,
        "gtid": position.gtid,
        "table": target.table,
        "mode": target.apply.mode,
        "rebuild": {"kind": rebuild.kind, "id": rebuild.id, "low_seq": rebuild.low_seq},
    }
    return setting_value(json.dumps(entry, ensure_ascii=False))


@contextmanager
def transaction(
    spark: SparkSession, target: Target, position: Position, generation: int, rebuild: Rebuild
) -> Iterator[None]:
    """Lets the statement in the block carry the position of a generation."""
    from cdc.targets import application_id

    spark.conf.set(APP_ID, application_id(target.destination, target.table, generation))
    spark.conf.set(VERSION, str(position.seq))
    spark.conf.set(METADATA, user_metadata(target, position, generation, rebuild))
    try:
        yield
    finally:
        forget_transaction(spark)


def state_of_snapshot(
    spark: SparkSession,
    chunks: Sequence[str],
    columns: SourceColumns,
    keys: Sequence[str],
    changes: DataFrame | None,
) -> DataFrame:
    """Returns the table's rows at the snapshot's high position, in the shape of the Delta columns, JSON still as text.

    ``chunks``: the paths of the chunk files. ``changes``: all changes in (low, high] with their metadata columns; None
    if there are none. ``keys``: Delta names of the columns that identify a row; a table without them has no changes.
    """
    fields = columns.read_fields
    schema = t.StructType(fields)
    rows = spark.read.schema(schema).parquet(*chunks) if chunks else spark.createDataFrame([], schema)
    names = [f.col(quote(field.name)) for field in fields]
    rows = rows.select(*names)
    if changes is None:
        return rows
    last = latest(changes, keys)
    same = [f.col(f"r.{quote(key)}").eqNullSafe(f.col(f"c.{quote(key)}")) for key in keys]
    condition = same[0]
    for one in same[1:]:
        condition = condition & one
    unchanged = rows.alias("r").join(last.select(*[quote(key) for key in keys]).alias("c"), condition, "left_anti")
    return unchanged.unionByName(last.where(f.col("_op") != DELETE).select(*names))


def changes_between(merge: TableMerge, columns: SourceColumns, low_seq: int, *, is_primary: bool) -> DataFrame:
    """Returns the changes of the table in the merge's ranges after ``low_seq``; see :func:`read_changes`."""
    from spark_jobs.apply.rows import with_moved_rows

    keys = columns.keys(require_keys(merge.target.table, merge.target.apply.keys, _primary(merge), _names(merge)))
    rows = read_changes(merge, columns, low_seq, "after" if is_primary else "both")
    return rows if is_primary else with_moved_rows(rows, keys)


def _primary(merge: TableMerge) -> tuple[str, ...]:
    assert merge.layout is not None
    return merge.layout.primary_key


def _names(merge: TableMerge) -> list[str]:
    assert merge.layout is not None
    return [column.name for column in merge.layout.columns]


def replace_table(
    spark: SparkSession,
    target: Target,
    rows: DataFrame,
    properties: dict[str, str],
    position: Position,
    rebuild: Rebuild,
) -> None:
    """Makes ``rows`` the whole content of the table, in one commit that carries schema, properties and position. The
    table may exist or not."""
    from cdc.targets import GENERATION_PROPERTY

    view = f"towpath_rows_{uuid.uuid4().hex}"
    rows.createOrReplaceTempView(view)
    clear_unborn(target.path)
    try:
        with transaction(spark, target, position, int(properties[GENERATION_PROPERTY]), rebuild):
            spark.sql(
                f"CREATE OR REPLACE TABLE {target.sql} USING delta "  # noqa: S608 - names are quoted
                f"TBLPROPERTIES ({sql_properties(properties)}) AS SELECT * FROM {view}"
            )
    finally:
        spark.catalog.dropTempView(view)


@dataclass(frozen=True)
class Load:
    """A table that is brought to a state that was read as a whole."""

    target: Target
    state: DeltaState | None
    """The Delta table as it is; None if there is none."""
    columns: SourceColumns
    primary: tuple[str, ...]
    """The source's primary key."""
    position: Position
    rebuild: Rebuild
    properties: dict[str, str]
    """Properties beside the usual ones."""


def load_mirror(spark: SparkSession, load: Load, rows: DataFrame) -> None:
    """Makes the rows of :func:`state_of_snapshot` the content of an ``upsert`` table, as its next generation."""
    state, position = load.state, load.position
    generation = 0 if state is None else state.generation + 1
    origin = Origin(position.server_uuid, position.epoch, position.seq, generation)
    properties = properties_of(load.target, load.columns, load.primary, origin) | load.properties
    if state is not None and state.properties.get("delta.columnMapping.mode", "none") != "none":
        properties.setdefault("delta.columnMapping.mode", state.properties["delta.columnMapping.mode"])
    replace_table(spark, load.target, with_variants(rows, load.columns.variants), properties, position, load.rebuild)


def require_same_columns(found: SourceColumns, snapshot: SourceColumns, table: str) -> None:
    """Raises NeedsSnapshotError if the rows in the store have other columns than those that the snapshot read: the
    table changed in between."""
    ours = [(field.name, field.dataType) for field in snapshot.read_fields if field.name != BEFORE]
    theirs = [(field.name, field.dataType) for field in found.read_fields if field.name != BEFORE]
    if ours != theirs:
        raise NeedsSnapshotError(
            "the columns changed while the snapshot was taken",
            place=f"table {table}",
            remedy="The snapshot begins anew.",
        )
