"""Begins generations of Delta tables: each has an applied position of its own, which may be earlier than the last."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cdc.base.errors import UnsupportedError
from cdc.base.targets import GENERATION_PROPERTY, application_id
from cdc.lake.apply.schema.properties import kept_statements
from cdc.lake.delta.catalog import register
from cdc.lake.delta.comments import follow_comments
from cdc.lake.delta.constraints import follow_constraints
from cdc.lake.delta.layout import layout_of
from cdc.lake.delta.log import clear_unborn
from cdc.lake.delta.sql import quote
from cdc.lake.delta.tables import Target, ddl_type, sql_properties
from cdc.lake.delta.tracked import tracked_schema
from cdc.lake.rows.columns import SourceColumns
from cdc.lake.runtime.commit_metadata import commit_metadata
from cdc.lake.runtime.session import transaction, view_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from cdc.binlog.sql.schemas import TableComments, TableSchema
    from cdc.config import DestinationConfig
    from cdc.lake.apply.schema.statements import DdlStatement
    from cdc.lake.delta.log import DeltaState
    from cdc.lake.jobs.job import Job


MAX_COLUMN_ID = "delta.columnMapping.maxColumnId"
"""A property that Delta alone sets."""


@dataclass(frozen=True)
class LoadPosition:
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
    """``snapshot``, ``replay`` or ``remask``."""
    id: str
    low_seq: int | None = None


@dataclass(frozen=True)
class Load:
    """A table that is brought to a state that was read as a whole."""

    target: Target
    state: DeltaState | None
    """The Delta table as it is; None if there is none."""
    columns: SourceColumns
    primary: tuple[str, ...]
    """The source's primary key."""
    position: LoadPosition
    rebuild: Rebuild
    schema: TableSchema
    """The source's schema at the position."""
    statements: Sequence[DdlStatement] = ()
    """The DDL statements that the load overtakes, if they are known."""


def user_metadata(target: Target, position: LoadPosition, generation: int, rebuild: Rebuild) -> str:
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
    return commit_metadata(entry)


def carrying(
    spark: SparkSession, target: Target, position: LoadPosition, generation: int, rebuild: Rebuild
) -> AbstractContextManager[None]:
    """Lets the statement in the block carry the position of a generation."""
    application = application_id(target.destination, target.table, generation)
    return transaction(spark, application, position.seq, user_metadata(target, position, generation, rebuild))


def replace_table(
    spark: SparkSession,
    target: Target,
    rows: DataFrame,
    properties: dict[str, str],
    position: LoadPosition,
    rebuild: Rebuild,
    state: DeltaState | None,
) -> None:
    """Makes ``rows`` the whole content of the table, in one commit that carries schema, properties and position.
    ``state``: the table as it is; None if there is none."""
    clear_unborn(target.path)
    generation = int(properties[GENERATION_PROPERTY])
    # A type that was sent to Spark Connect is `string collate UTF8_BINARY` there, which Delta would write into its log
    # and other readers refuse. A type in SQL is plain.
    names = ", ".join(f"CAST({quote(x.name)} AS {ddl_type(x.dataType)}) AS {quote(x.name)}" for x in rows.schema.fields)
    with view_of(rows) as view, carrying(spark, target, position, generation, rebuild):
        spark.sql(
            f"CREATE OR REPLACE TABLE {target.sql} USING delta"  # noqa: S608 - names are quoted
            f"{layout_of(target, rows.schema.fields, state).clause} "
            f"TBLPROPERTIES ({sql_properties(properties)}) AS SELECT {names} FROM {view}"
        )


def kept_properties(state: DeltaState | None) -> dict[str, str]:
    """Returns the properties that somebody else gave a table, and that a new generation keeps."""
    properties = {} if state is None else state.properties
    return {key: value for key, value in properties.items() if not key.startswith("towpath.") and key != MAX_COLUMN_ID}


def require_no_archive(state: DeltaState, target: Target) -> None:
    """Raises UnsupportedError for a table in mode ``upsert`` that keeps rows of partitions which the source has
    dropped: a new generation would not have them."""
    kept = kept_statements(state)
    if kept and target.apply.on_drop_partition == "keep" and target.apply.mode == "upsert":
        raise UnsupportedError(
            "the Delta table keeps rows of partitions that the source has dropped (on_drop_partition: keep), the last "
            f"ones by {kept[-1]['statement']}, and writing it anew would remove them",
            place=f"table {target.table} at {target.path}",
            remedy="Copy the table (CREATE TABLE … AS SELECT), set on_drop_partition for it to another value "
            "(tables.overrides), and run the command again.",
        )


def finish(spark: SparkSession, config: DestinationConfig, target: Target, comments: TableComments | None) -> None:
    """Gives a table that was just loaded the source's comments and constraints, and its name in the catalog."""
    state = target.state()
    if state is not None:
        state = follow_comments(spark, target, state, comments)
        follow_constraints(spark, target, state, tracked_schema(state))
        register(spark, config, target)


def load_position(mine: Job, seq: int) -> LoadPosition:
    """Returns what a load records of a position: identity of the source, GTID and time of the last transaction."""
    source = mine.batches.meta.source()
    assert source is not None  # the store has transactions
    reader = mine.batches.reader
    begins, last = reader.beginning(), reader.entry_at(seq)
    time_us, gtid = 0 if begins is None else begins.time_us, None
    if last is not None:
        end = reader.commit_position(last)
        time_us, gtid = end.commit_time_us or time_us, end.gtid
    identity = source.of_seq(seq)
    return LoadPosition(seq, identity.server_uuid, identity.epoch, gtid, time_us)
