"""Makes the values of columns right after a statement from a snapshot of these columns and the changes since.

Let S be the seq of the statement, and H the high position of the snapshot. A row whose key has no change in (S, H] has
the values that were read. A row that was changed has those of the image before its first change, because row images
are full. So the values are exact at S, whenever the snapshot was taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdc.base.errors import NeedsSnapshotError
from cdc.batches.manifest import schemas_of
from cdc.batches.table_batches import batches_between
from cdc.binlog.sql.changes import (
    AddColumn,
    Change,
    ChangeColumn,
    DropColumn,
    NoEffect,
    RenameColumn,
    SetDefault,
    SetTableCharset,
    SetVisible,
)
from cdc.binlog.sql.schemas import Schemas, TableSchema
from cdc.decode.layout import survey
from cdc.decode.policies import value_policies
from cdc.decode.transactions import ALL_TABLES
from cdc.lake.apply.merge import TableMerge, read_changes
from cdc.lake.apply.schema.column_reading import ColumnReading, first_changes
from cdc.lake.apply.schema.statements import DdlStatement, effect_on, read_statements, zone_of
from cdc.lake.delta.tables import target_of
from cdc.lake.rows.columns import columns_of_layout, columns_of_schema

if TYPE_CHECKING:
    from cdc.batches.manifest import Manifest
    from cdc.batches.table_batches import TableChangeReader
    from cdc.config import DestinationConfig
    from cdc.lake.delta.tables import Target
    from cdc.lake.runtime.session import TableSession, TableSessions
    from cdc.meta import UnknownColumns
    from cdc.source.snapshot.files import SnapshotFiles

_CHANGES = "changes"
"""Folder beside the chunks, with the first change of each row."""


def make_reading(
    sessions: TableSessions,
    config: DestinationConfig,
    batches: TableChangeReader,
    files: SnapshotFiles,
    unknown_columns: UnknownColumns,
) -> ColumnReading:
    """Writes the changes between the statement and the snapshot's last chunk beside the chunks, and returns the values.

    The store must be complete up to the snapshot's high position. Raises NeedsSnapshotError, without columns, if a
    later statement has changed the key or these columns, or what the changes lack; CutOffError.
    """
    info = files.info
    target, schema = target_of(config, info.table), info.definition
    whole = columns_of_schema(schema, target.policies)
    keys = whole.keys(info.key)
    names = [
        name for source_name in unknown_columns.names if (name := target.policies.lake_name(source_name)) is not None
    ]
    columns = whole.only([*keys, *names])
    reading = ColumnReading(unknown_columns.seq, unknown_columns.names, keys, columns, tuple(files.paths()))
    changes: list[str] = []
    statements: list[DdlStatement] = []
    for manifest in batches_between(batches, info.table, unknown_columns.seq, files.high_seq(), whole=True):
        if manifest.ddl:
            statements += read_statements(
                manifest.ranges, ignores_case=config.tables.ignores_case, system_zone=zone_of(manifest)
            )
            continue
        folder = files.folder.below(f"{_CHANGES}-{len(changes):06d}").uri
        with sessions.one() as session:
            if _write(session, target, manifest, files, reading, folder):
                changes.append(folder)
    was_altered = require_untouched(
        info.table, schema, statements, {name.lower() for name in (*info.key, *unknown_columns.names)}
    )
    if was_altered and changes and not info.has_row_metadata:
        raise _whole(info.table, "it was altered again, and the source's rows do not name their columns")
    return ColumnReading(unknown_columns.seq, unknown_columns.names, keys, columns, reading.chunks, tuple(changes))


def _write(
    session: TableSession,
    target: Target,
    manifest: Manifest,
    files: SnapshotFiles,
    reading: ColumnReading,
    folder: str,
) -> bool:
    """Writes the first change of each row in a manifest. Returns False if there are none."""
    schemas = schemas_of(manifest) if files.info.has_row_metadata else None
    schemas = schemas or Schemas(tables={target.table: files.info.definition})
    mask = manifest.table_mask(target.table) or ALL_TABLES
    layouts = survey(
        manifest.ranges, [target.table], schemas, lambda _: value_policies(target.apply), table_mask=mask
    ).layouts
    layout = layouts.get(target.table)
    if layout is None:
        return False
    names = [field.name for field in reading.columns.read_fields]
    columns = columns_of_layout(layout, target.policies).only(names)
    kinds = {field.name: field.dataType for field in columns.read_fields}
    if any(kinds.get(field.name) != field.dataType for field in reading.columns.read_fields):
        raise _whole(target.table, "its changes since then have other columns")
    columns = columns.exact(files.info.key)
    merge = TableMerge(session, target, manifest, layout, columns, schemas.tables.get(target.table), lambda: None)
    changes = read_changes(merge, columns, manifest.after_seq, "both")
    first_changes(changes, reading.columns, reading.keys).write.mode("overwrite").parquet(folder)
    return True


def require_untouched(table: str, now: TableSchema, statements: list[DdlStatement], names: set[str]) -> bool:
    """Raises NeedsSnapshotError if one of the statements may have changed the values or the definitions of these
    columns, or rows without row events. ``now``: the schema after all of them. Returns whether any has changed the
    table's columns at all."""
    is_computed = any(column.is_generated for column in now.columns if column.name.lower() in names)
    changed = False
    for statement in statements:
        effect = effect_on(table, statement)
        if effect is None:
            continue
        changed = True
        if effect.creates is not None or effect.drops or effect.origin != table:
            raise _whole(table, f"it was renamed, dropped or created since then: {statement.shown}")
        for change in effect.changes:
            touched = _touched(change)
            is_other = isinstance(change, ChangeColumn) and is_computed  # the column may be computed from this one
            if touched is None or is_other or touched & names:
                raise _whole(table, f"it was altered again: {statement.shown}")
    return changed


def _touched(change: Change) -> set[str] | None:
    """Returns the columns whose values or definitions a change concerns, in lower case; None if it may be any."""
    match change:
        case NoEffect() | SetDefault() | SetVisible() | SetTableCharset():
            return set()
        case AddColumn():
            return {change.column.name.lower()}
        case DropColumn():
            return {change.name.lower()}
        case RenameColumn():
            return {change.name.lower(), change.to.lower()}
        case ChangeColumn():
            return {change.name.lower(), change.column.name.lower()}
    return None


def _whole(table: str, why: str) -> NeedsSnapshotError:
    return NeedsSnapshotError(
        f"the columns that were read do not tell the values after the statement, because {why}", place=f"table {table}"
    )
