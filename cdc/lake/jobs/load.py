"""Makes a Delta table equal to a snapshot: its rows, and the changes in the store around it.

The state of a snapshot is exact at one position, ``high_seq``. Its chunks were read at different moments, all after
``low_seq`` and none after ``high_seq``. A row whose key changes between the two is taken from its last change, every
other row from its chunk; docs/decisions/0062 has the proof.

One commit replaces the table: rows, schema, properties and applied position change together. Where it can, it takes
over the chunk files themselves (docs/decisions/0072).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as f
from pyspark.sql import types as t

from cdc.base.errors import NeedsSnapshotError
from cdc.base.targets import BEGINS_PROPERTY, GENERATION_PROPERTY, application_id
from cdc.binlog.sql.schemas import Schemas
from cdc.decode.layout import DELETE, survey
from cdc.decode.policies import value_policies
from cdc.decode.transactions import ALL_TABLES
from cdc.lake.apply.commit import Commit
from cdc.lake.apply.foreign_keys.jobs import cascades_of_table, manifest_without_events
from cdc.lake.apply.full_state import insert_snapshot, merge_full_state
from cdc.lake.apply.large_values import LARGE_BYTES
from cdc.lake.apply.merge import RowKeys, TableMerge, read_changes
from cdc.lake.apply.rows import latest, with_moved_rows, with_variants
from cdc.lake.apply.schema.reshape import Destined, reshape
from cdc.lake.delta.adoption import ParquetFile, Replacement, begin, make_log
from cdc.lake.delta.catalog import require_catalog
from cdc.lake.delta.layout import layout_of
from cdc.lake.delta.log import clear_unborn
from cdc.lake.delta.present_rows import matched
from cdc.lake.delta.sql import quote
from cdc.lake.delta.tables import (
    BEFORE,
    MODE_PROPERTY,
    TableOrigin,
    delta_schema,
    has_loaded,
    properties_of,
    record_policies,
    require_owner,
    require_same_policies,
    sql_properties,
    target_of,
)
from cdc.lake.delta.tracked import SchemaRecord
from cdc.lake.jobs.generations import (
    Load,
    LoadPosition,
    Rebuild,
    finish,
    kept_properties,
    replace_table,
    require_no_archive,
    user_metadata,
)
from cdc.lake.jobs.shared_rows import load_own_rows
from cdc.lake.rows.columns import SourceColumns, columns_of_layout, columns_of_schema
from cdc.lake.runtime.driver import ignore_errors

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from cdc.batches.manifest import Manifest
    from cdc.batches.table_batches import TableChangeReader
    from cdc.binlog.sql.schemas import TableComments
    from cdc.config import DestinationConfig
    from cdc.lake.apply.foreign_keys.changes import CascadedRows
    from cdc.lake.apply.schema.statements import DdlStatement
    from cdc.lake.delta.log import DeltaState
    from cdc.lake.runtime.driver_jvm import DriverJvm
    from cdc.lake.runtime.session import TableSession, TableSessions
    from cdc.source.snapshot.files import SnapshotFiles


def state_of_snapshot(
    spark: SparkSession, chunks: Sequence[str], columns: SourceColumns, keys: Sequence[str], changes: DataFrame | None
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
    unchanged = matched(rows, last.select(*[quote(key) for key in keys]), keys, "left_anti")
    return unchanged.unionByName(last.where(f.col("_op") != DELETE).select(*names))


def _properties(load: Load) -> dict[str, str]:
    """Returns the properties of the table's next generation."""
    state, position = load.state, load.position
    generation = 0 if state is None else state.generation + 1
    record = SchemaRecord(position.seq, load.schema)
    origin = TableOrigin(position.server_uuid, position.epoch, position.seq, generation, record)
    return kept_properties(state) | properties_of(load.target, load.columns, load.primary, origin)


def _adopt(
    session: TableSession, load: Load, files: SnapshotFiles, changes: DataFrame | None, keys: Sequence[str]
) -> bool:
    """Makes the chunk files themselves files of the table, and lets Spark write only the rows of those chunks in which
    a key has changed meanwhile. Returns False, and changes nothing, if Spark has to write all rows.

    ``changes``, ``keys``: as for :func:`state_of_snapshot`.
    """
    apply = load.target.apply
    if apply.shared or apply.mode != "upsert" or load.columns.variants or files.folder.local is None:
        return False
    with session.jvm() as jvm:
        return jvm is not None and _adopt_by(jvm, session.spark, load, files, changes, keys)


def _adopt_by(
    jvm: DriverJvm,
    spark: SparkSession,
    load: Load,
    files: SnapshotFiles,
    changes: DataFrame | None,
    keys: Sequence[str],
) -> bool:
    target, columns = load.target, load.columns
    chunks = [ParquetFile.read(path) for path in files.paths()]
    properties, schema = _properties(load), delta_schema(columns.fields, target.apply.mode)
    if not layout_of(target, schema.fields, load.state).is_plain:
        return False
    clear_unborn(target.path)
    version = -1 if load.state is None else load.state.version
    adoption = begin(jvm, Replacement(target.path, version, schema, properties), chunks)
    if adoption is None:
        return False
    with _cached(changes):
        changed = set()
        if changes is not None:
            changed = _changed_files(spark, [chunk.path for chunk in chunks], columns, keys, changes)
        whole = [chunk for chunk in chunks if Path(chunk.path).name not in changed]
        if 2 * sum(chunk.footer.num_rows for chunk in whole) < sum(chunk.footer.num_rows for chunk in chunks):
            return False
        make_log(target.path)
        adoption.add_files(whole)
        if changes is not None:
            others = [chunk.path for chunk in chunks if Path(chunk.path).name in changed]
            rows = state_of_snapshot(spark, others, columns, keys, changes)
            adoption.add_rows(_initial_rows(rows, schema, load.position))
    generation = int(properties[GENERATION_PROPERTY])
    metadata = user_metadata(target, load.position, generation, load.rebuild)
    adoption.commit(application_id(target.destination, target.table, generation), load.position.seq, metadata)
    return True


@contextmanager
def _cached(rows: DataFrame | None) -> Iterator[None]:
    """Keeps rows in Spark's cache inside the block, so that they are read once."""
    if rows is None:
        yield
        return
    rows.persist()
    try:
        yield
    finally:
        ignore_errors(rows.unpersist)


def _changed_files(
    spark: SparkSession, paths: Sequence[str], columns: SourceColumns, keys: Sequence[str], changes: DataFrame
) -> set[str]:
    """Returns the names of the chunk files that have a row whose key is among the changes."""
    rows = spark.read.schema(t.StructType(columns.read_fields)).parquet(*paths)
    file = f"_file_{uuid.uuid4().hex}"
    named = rows.select(*[quote(key) for key in keys], rows.metadataColumn("_metadata")["file_name"].alias(file))
    changed_rows = matched(named, changes.select(*[quote(key) for key in keys]).distinct(), keys, "left_semi")
    return {row[0] for row in changed_rows.select(file).distinct().collect()}


def require_same_columns(stored: SourceColumns, snapshot: SourceColumns, table: str) -> None:
    """Raises NeedsSnapshotError if the rows in the store have other columns than those that the snapshot read: the
    table changed in between."""
    ours = [(field.name, field.dataType) for field in snapshot.read_fields if field.name != BEFORE]
    theirs = [(field.name, field.dataType) for field in stored.read_fields if field.name != BEFORE]
    if ours != theirs:
        raise NeedsSnapshotError(
            "the columns changed while the snapshot was taken",
            place=f"table {table}",
            remedy="The snapshot begins anew.",
        )


def is_loaded(config: DestinationConfig, files: SnapshotFiles) -> bool:
    """Whether a snapshot is what the table was last made from: its load was killed after the commit."""
    state = target_of(config, files.info.table).state()
    if state is None:
        return False
    if state.is_shared:  # others may have committed so much since that the log's last commits do not tell
        return has_loaded(state, files.id)
    rebuilds = [m["rebuild"]["id"] for _, m in state.ledger if m["generation"] == state.generation and m.get("rebuild")]
    return files.id in rebuilds


def is_behind(config: DestinationConfig, table: str, seq: int) -> bool:
    """Whether a table may be brought to a position: it has no changes after it, or does not exist."""
    state = target_of(config, table).state()
    return state is None or state.applied_seq <= seq


@dataclass(frozen=True)
class ChangesMeanwhile:
    """The changes in the store from the position of which a snapshot's chunks have everything."""

    lake: DestinationConfig
    """Names the Delta tables of other tables."""
    batches: TableChangeReader
    """The changes of all tables, by which foreign keys may have changed rows of the snapshot's."""
    manifest: Manifest | None
    """The table's own changes after :attr:`low_seq`; None if there are none."""
    low_seq: int


@dataclass(frozen=True)
class _ChunkRows:
    """The rows of a snapshot's chunks, which were read at different moments after the position."""

    paths: Sequence[str]
    columns: SourceColumns
    position: int

    def choose(
        self, session: TableSession, columns: Sequence[str], matches: Callable[[DataFrame], DataFrame]
    ) -> DataFrame:
        schema = t.StructType(self.columns.read_fields)
        rows = session.spark.read.schema(schema).parquet(*self.paths) if self.paths else None
        rows = session.spark.createDataFrame([], schema) if rows is None else rows
        return matches(rows).select(*[f.col(quote(name)) for name in columns])


def load_snapshot(
    sessions: TableSessions,
    config: DestinationConfig,
    files: SnapshotFiles,
    meanwhile: ChangesMeanwhile,
    position: LoadPosition,
    statements: Sequence[DdlStatement] = (),
    comments: TableComments | None = None,
) -> None:
    """Makes a Delta table equal to the source at the high position of a snapshot, in one commit.

    ``meanwhile``: the changes up to the position. ``statements``: the DDL statements between the table's position and
    that of the snapshot, if the store still has them. ``comments``: the source's; None if they are not known.

    Raises NeedsSnapshotError if the table's columns changed in between, TargetError for a table of another owner.
    """
    table = files.info.table
    target = target_of(config, table)
    state = target.state()
    if state is not None:
        require_owner(state, target)
        require_no_archive(state, target)
    schema = files.info.definition
    columns = columns_of_schema(schema, target.policies)
    target.policies.require_there(schema.column_names)
    load = Load(
        target=target,
        state=state,
        columns=columns,
        primary=schema.primary_key,
        position=position,
        rebuild=Rebuild("snapshot", files.id, meanwhile.low_seq),
        schema=schema,
        statements=statements,
    )
    sources = files.info.key
    keys = RowKeys(columns.keys(sources) if sources else (), set(sources) == set(schema.primary_key))
    with sessions.one() as session:
        require_catalog(session.spark, config)
        changes, _ = changes_meanwhile(session, load, files, meanwhile, keys)
        if not _adopt(session, load, files, changes, keys.names):
            rows = state_of_snapshot(session.spark, files.paths(), columns, keys.names, changes)
            load_state(session, load, rows, keys)
        finish(session.spark, config, target, comments)


def changes_meanwhile(
    session: TableSession, load: Load, files: SnapshotFiles, meanwhile: ChangesMeanwhile, keys: RowKeys
) -> tuple[DataFrame | None, bool]:
    """Returns the changes of a snapshot's table up to the load's position with those by foreign keys, None if there are
    none; and whether foreign keys have made some. Raises as :func:`load_snapshot`."""
    # Executing an action again on a row that was read behind it changes nothing.
    table, low_seq, manifest = load.target.table, meanwhile.low_seq, meanwhile.manifest
    rows_read = _ChunkRows(files.paths(), load.columns, low_seq)
    cascaded = None
    if load.primary and keys.is_primary:
        cascaded = cascades_of_table(
            meanwhile.lake,
            table,
            meanwhile.batches,
            lambda: rows_read,
            low_seq,
            load.position.seq,
            lambda: session,
            is_exact=False,
        )
    if manifest is None and cascaded is not None:
        manifest = manifest_without_events(meanwhile.batches, table, low_seq, load.position.seq)
    changes = None if manifest is None else stored_changes(session, load, manifest, keys, low_seq, cascaded)
    return changes, cascaded is not None


def load_state(session: TableSession, load: Load, rows: DataFrame, keys: RowKeys) -> None:
    """Brings a table to the state that ``rows`` are: in the shape of the Delta columns, JSON as text.

    A mirror is replaced. The other modes keep the history that they have: the differences are merged, or the rows are
    inserted beside the changes. A table that does not exist, or has another mode, is made from the rows.
    """
    state, mode = load.state, load.target.apply.mode
    rows = with_variants(rows, load.columns.variants)
    if load.target.apply.shared:
        load_own_rows(session, load, rows, keys)
        return
    moment = datetime.fromtimestamp(load.position.time_us / 1e6, UTC)
    if state is None or mode == "upsert" or state.properties.get(MODE_PROPERTY) != mode:
        shaped = _initial_rows(rows, delta_schema(load.columns.fields, mode), load.position)
        replace_table(session.spark, load.target, shaped, _properties(load), load.position, load.rebuild, state)
        return
    state = _next_generation(session.spark, load, state)
    metadata = user_metadata(load.target, load.position, state.generation, load.rebuild)
    commit = Commit(session, load.target, state, load.position.seq, metadata, lambda: None)
    if mode == "append":
        insert_snapshot(commit, rows, moment, load.position.gtid)
    else:
        merge_full_state(commit, rows, keys, moment)


def _initial_rows(rows: DataFrame, schema: t.StructType, position: LoadPosition) -> DataFrame:
    """Returns rows with the metadata columns that they have in a table that begins with them."""
    time = f.timestamp_micros(f.lit(position.time_us).cast("long"))
    values: dict[str, Column] = {
        "_op": f.lit("snapshot"),
        "_seq": f.lit(position.seq),
        "_row": f.monotonically_increasing_id(),
        "_commit_time": time,
        "_gtid": f.lit(position.gtid),
        "_deleted": f.lit(False),
        "_valid_from": time,
        "_valid_to": f.lit(None),
        "_current": f.lit(True),
        BEFORE: f.lit(None),
    }
    own = set(rows.columns)
    return rows.select(
        *[
            (f.col(quote(field.name)) if field.name in own else values.get(field.name, f.lit(None)))
            .cast(field.dataType)
            .alias(field.name)
            for field in schema.fields
        ]
    )


def _next_generation(spark: SparkSession, load: Load, state: DeltaState) -> DeltaState:
    """Gives the table the columns that the snapshot has, records the source's schema, and begins the next generation:
    its position may be the one that the table has already, and must not be skipped."""
    record = SchemaRecord(load.position.seq, load.schema)
    require_same_policies(state, load.target, load.columns, load.schema.column_names)  # the history stays as it is
    state = record_policies(spark, load.target, state, load.columns, load.schema.column_names)
    to = Destined(load.schema, load.position.server_uuid, load.position.epoch, load.statements)
    state = reshape(spark, load.target, state, to)
    changed = {GENERATION_PROPERTY: str(state.generation + 1), record.name: record.to_json(), BEGINS_PROPERTY: ""}
    spark.sql(f"ALTER TABLE {load.target.sql} SET TBLPROPERTIES ({sql_properties(changed)})")
    return load.target.state() or state


def stored_changes(
    session: TableSession,
    load: Load,
    manifest: Manifest,
    keys: RowKeys,
    low_seq: int,
    cascaded: CascadedRows | None = None,
) -> DataFrame | None:
    """Returns the changes of a manifest after ``low_seq``, and those by foreign keys; None if it has no rows of the
    table."""
    target, schema = load.target, load.schema
    contents = survey(
        manifest.ranges,
        [target.table],
        Schemas(tables={target.table: schema}),
        lambda _: value_policies(target.apply),
        table_mask=manifest.table_mask(target.table) or ALL_TABLES,
    )
    layout = contents.layouts.get(target.table)
    columns = load.columns
    if layout is not None:
        columns = columns_of_layout(layout, target.policies)
        require_same_columns(columns, load.columns, target.table)
    elif cascaded is None:
        return None
    merge = TableMerge(
        session=session,
        target=target,
        manifest=manifest,
        layout=layout,
        columns=columns,
        schema=schema,
        check=lambda: None,
        is_large=contents.largest_event_bytes.get(target.table, 0) > LARGE_BYTES,
        unlogged=cascaded,
    )
    rows = read_changes(merge, columns, low_seq, "after" if keys.is_primary else "both")
    return rows if keys.is_primary else with_moved_rows(rows, keys.names)
