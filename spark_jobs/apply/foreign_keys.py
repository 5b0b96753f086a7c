"""Finds the captured tables whose rows a foreign key changed without row events.

InnoDB executes ``ON DELETE CASCADE``, ``SET NULL`` and their like by itself, and the binlog has the parent's row only.
The stored schemas name the foreign keys that act so. A deleted parent row, or one whose referenced columns changed, may
have changed rows of its children, of their children, and so on; nobody but the server knows which.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cdc.batches.manifest import schemas_of
from cdc.batches.table_batches import batches_between
from cdc.binlog.constants import HEADER_SIZE, EventType
from cdc.decode.layout import BEFORE
from cdc.decode.reader import DecodeOptions, decode_transactions
from cdc.decode.scan import table_events
from cdc.decode.transactions import ALL_TABLES, TableHistory, Transactions, open_range
from cdc.errors import NeedsSnapshotError
from cdc.patterns import exclusion
from cdc.positions import split_seq
from cdc.schemas import CHANGES_ROWS, ForeignKey, Schemas, TableSchema
from cdc.targets import split_table
from spark_jobs.source.input_splits import may_hold

if TYPE_CHECKING:
    from cdc.batches.manifest import Manifest
    from cdc.batches.table_batches import TableChanges
    from cdc.config import DestinationConfig

_FLAGS_AT = HEADER_SIZE + 6
"""The flags of a row event lie behind its header and the table's id."""
_NO_FOREIGN_KEY_CHECKS = 0x2
"""The flag of row events that were executed with ``foreign_key_checks=0``, and so without actions."""
_DELETES = (
    EventType.DELETE_ROWS_V1,
    EventType.DELETE_ROWS,
    EventType.MARIADB_DELETE_ROWS_COMPRESSED_V1,
    EventType.MARIADB_DELETE_ROWS_COMPRESSED,
)
_UPDATES = (
    EventType.UPDATE_ROWS_V1,
    EventType.UPDATE_ROWS,
    EventType.PARTIAL_UPDATE_ROWS,
    EventType.MARIADB_UPDATE_ROWS_COMPRESSED_V1,
    EventType.MARIADB_UPDATE_ROWS_COMPRESSED,
)
_SCAN_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True)
class _Change:
    """A change of parent rows: a delete, or of one of their columns (in lower case)."""

    parent: str
    column: str | None
    """None: the rows were deleted."""
    seqs: tuple[int, ...]
    """The transactions that have such changes, ascending."""


def tables_with_unlogged_changes(
    config: DestinationConfig,
    manifest: Manifest,
    schemas: Schemas | None,
    tables: Collection[str],
    applied_seq: Callable[[str], int],
) -> dict[str, NeedsSnapshotError]:
    """Returns those of the tables that the batch changes without row events, each with the error that parks it.

    ``applied_seq`` returns the position of a table: what happened up to there is in its rows. Tables whose setting
    ``foreign_keys`` is ``ignore`` are left out. Events are read only if a parent has some in the batch. Raises
    DamagedError, StorageError, UnsupportedError.
    """
    keys = {} if schemas is None or not schemas.foreign_keys else schemas.foreign_keys
    watched = [table for table in tables if table in keys and config.table_apply(table).foreign_keys != "ignore"]
    if not watched or schemas is None:
        return {}
    errors: dict[str, NeedsSnapshotError] = {}
    for child in watched:
        hidden = next((key for key in keys[child] if not config.tables.includes(*split_table(key.parent))), None)
        if hidden is not None:
            errors[child] = _hidden_parent(config, child, hidden)
    parents = sorted({key.parent for of_table in keys.values() for key in of_table}.intersection(manifest.tables))
    for parent in parents:
        if not (_reached(keys, parent, None).keys() | _reached_by_updates(keys, parent)) & set(watched):
            continue
        for change in _changes(manifest, parent, schemas.tables.get(parent), _updated_columns(keys, parent)):
            for child, key in _reached(keys, parent, change.column).items():
                seq = next((seq for seq in change.seqs if seq > applied_seq(child)), None)
                if child in watched and child not in errors and seq is not None:
                    errors[child] = _unlogged(config, child, key, change, seq)
    return errors


def require_no_unlogged_changes(
    config: DestinationConfig, table: str, batches: TableChanges, after_seq: int, until_seq: int
) -> None:
    """Raises NeedsSnapshotError if a foreign key changed rows of the table in (``after_seq``, ``until_seq``] without
    row events. For jobs on one table, whose batches have no rows of other tables."""
    parents: set[str] = set()
    for found in (batches.reader.schemas(after_seq), batches.reader.schemas(until_seq)):
        keys = {} if found is None else found[1].foreign_keys or {}
        if table not in keys or config.table_apply(table).foreign_keys == "ignore":
            continue
        hidden = next((key for key in keys[table] if not config.tables.includes(*split_table(key.parent))), None)
        if hidden is not None:
            raise _hidden_parent(config, table, hidden)
        parents |= {key.parent for of_table in keys.values() for key in of_table}
    for parent in sorted(parents):
        for manifest in batches_between(batches, parent, after_seq, until_seq, whole=True):
            errors = tables_with_unlogged_changes(config, manifest, schemas_of(manifest), [table], lambda _: after_seq)
            if errors:
                raise errors[table]


# --- which tables a change reaches


def _reached(keys: Mapping[str, tuple[ForeignKey, ...]], parent: str, column: str | None) -> dict[str, ForeignKey]:
    """Returns the tables that a change of rows reaches, through every level, each with the key that reaches it.
    ``column``: the changed column in lower case; None for a delete."""
    found: dict[str, ForeignKey] = {}
    waiting: list[tuple[str, str | None]] = [(parent, column)]
    done = set(waiting)
    while waiting:
        table, changed = waiting.pop()
        for child, of_child in keys.items():
            for key in of_child:
                if key.parent != table or not _acts(key, changed):
                    continue
                found.setdefault(child, key)
                deletes = changed is None and key.on_delete == "CASCADE"
                following = {(child, None)} if deletes else {(child, name.lower()) for name in key.columns}
                waiting += following - done
                done |= following
    return found


def _acts(key: ForeignKey, column: str | None) -> bool:
    """Whether a key acts on a delete (None), or on a change of this column."""
    if column is None:
        return key.on_delete in CHANGES_ROWS
    return key.on_update in CHANGES_ROWS and column in (name.lower() for name in key.parent_columns)


def _updated_columns(keys: Mapping[str, tuple[ForeignKey, ...]], parent: str) -> set[str]:
    """Returns the columns of a parent, in lower case, whose changes keys act on."""
    acting = [key for of_table in keys.values() for key in of_table if key.parent == parent]
    return {name.lower() for key in acting if key.on_update in CHANGES_ROWS for name in key.parent_columns}


def _reached_by_updates(keys: Mapping[str, tuple[ForeignKey, ...]], parent: str) -> set[str]:
    return {child for column in _updated_columns(keys, parent) for child in _reached(keys, parent, column)}


# --- the changes of a parent


def _changes(manifest: Manifest, parent: str, schema: TableSchema | None, columns: set[str]) -> Iterator[_Change]:
    """Yields the deletes of a table's rows in the batch, and the changes of these columns."""
    mask = manifest.table_mask(parent)
    mask = ALL_TABLES if mask is None else mask
    history = TableHistory.always(schema)
    for one in manifest.ranges:
        if not may_hold(one, mask):
            continue
        transactions = open_range(one.path, one.offset, one.length, mask).between(manifest.after_seq, None)
        deletes: set[int] = set()
        updates: set[tuple[int, int]] = set()  # the seq and the ordinal of each event with an action
        names: set[str] = set()
        for run in table_events(transactions, parent, _SCAN_BYTES, history):
            flags = transactions.buf[run.origin + _FLAGS_AT]
            acts = (flags & _NO_FOREIGN_KEY_CHECKS) == 0
            seqs = transactions.entries["seq"][run.tx].astype(np.int64)
            deletes.update(seqs[acts & np.isin(run.type, _DELETES)].tolist())
            is_update = acts & np.isin(run.type, _UPDATES)
            updates.update(zip(seqs[is_update].tolist(), run.ordinal[is_update].tolist(), strict=True))
            names.update(column.name for column in run.layout.columns if column.name.lower() in columns)
        if deletes:
            yield _Change(parent, None, tuple(sorted(deletes)))
        if updates and names:
            yield from _updates(transactions, parent, history, sorted(names), updates)


def _updates(
    transactions: Transactions,
    parent: str,
    history: TableHistory,
    names: list[str],
    updates: set[tuple[int, int]],
) -> Iterator[_Change]:
    """Yields the changes of these columns by these events."""
    found: dict[str, set[int]] = {}
    options = DecodeOptions(images="both", columns=names)
    for batch in decode_transactions(transactions, table=parent, options=options, history=history):
        rows = batch.select(["_op", "_seq", "_row", *names, BEFORE]).to_pylist()
        for row in rows:
            before, seq = row[BEFORE], row["_seq"]
            if before is None or (seq, row["_row"] >> 32) not in updates:
                continue
            for name in names:
                if row[name] != before[name]:
                    found.setdefault(name.lower(), set()).add(seq)
    for name, seqs in sorted(found.items()):
        yield _Change(parent, name, tuple(sorted(seqs)))


# --- sentences


def _unlogged(config: DestinationConfig, child: str, key: ForeignKey, change: _Change, seq: int) -> NeedsSnapshotError:
    at = split_seq(seq)
    what = "deleted rows" if change.column is None else f"changed {change.column}"
    through = "" if key.parent == change.parent else f", through {key.parent}"
    return NeedsSnapshotError(
        f"the transaction that ends in binlog file {at.file_number} at position {at.offset} {what} of {change.parent}, "
        f"and the foreign key {key.name} ({key.actions}) changed rows of {child} with them{through}, for which the "
        "server writes no row events",
        place=f"table {child}",
        remedy=f"Run `cdc snapshot {config.name} {child}`; or exclude it ({exclusion(child)}); or set "
        f"tables.overrides.{child} to {{foreign_keys: ignore}} if its Delta table may keep such rows as they were.",
    )


def _hidden_parent(config: DestinationConfig, child: str, key: ForeignKey) -> NeedsSnapshotError:
    return NeedsSnapshotError(
        f"its foreign key {key.name} ({key.actions}) changes its rows without row events when rows of {key.parent} "
        "change, and that table is not captured, so that nobody can tell when",
        place=f"table {child}",
        remedy=f"Capture {key.parent} too (tables.include), and run `cdc snapshot {config.name} {child}`; or exclude "
        f"{child} ({exclusion(child)}); or set tables.overrides.{child} to {{foreign_keys: ignore}} if its Delta table "
        "may keep such rows as they were.",
    )
