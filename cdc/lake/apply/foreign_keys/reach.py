"""Foreign keys whose actions change rows without row events: the tables that a batch's changes of parents reach.

InnoDB executes ``ON DELETE CASCADE``, ``SET NULL`` and their like by itself, and the binlog has the parent's row only.
The stored schemas name the foreign keys that act so. A deleted parent row, or one whose referenced columns changed, may
have changed rows of its children, of their children, and so on. :mod:`.search` finds these rows in the
lake. Tables for which it cannot are parked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdc.base.errors import CdcError, NeedsSnapshotError, RetryableError
from cdc.base.patterns import exclusion
from cdc.base.targets import split_table
from cdc.binlog.positions import split_seq
from cdc.binlog.sql.schemas import CHANGES_ROWS, ForeignKey, Schemas
from cdc.decode.transactions import ALL_TABLES, TableHistory, Transactions, open_range
from cdc.lake.foreign_keys.events import ParentChange, parent_changes

if TYPE_CHECKING:
    from cdc.batches.manifest import Manifest
    from cdc.config import DestinationConfig
    from cdc.store.reader.store import Store

Keys = Mapping[str, tuple[ForeignKey, ...]]
"""Foreign keys by the table that has them, as in :class:`~cdc.binlog.sql.schemas.Schemas`."""


@dataclass(frozen=True)
class Reach:
    """The way on which a change of a parent reaches a table."""

    key: ForeignKey
    """The key of the table."""
    why: str | None
    """Why its rows cannot be followed on this way, as a clause; None if they can."""


def reached_tables(
    config: DestinationConfig,
    manifest: Manifest,
    schemas: Schemas | None,
    followed: Collection[str],
    applied_seq: Callable[[str], int],
    refusal: Callable[[str, ForeignKey, bool], str | None],
    reader: Callable[[], Store],
) -> tuple[frozenset[str], dict[str, CdcError]]:
    """Finds the tables that the batch may change without row events. Returns those whose changes can be followed, and
    for each other one the error that parks it.

    ``followed``: the captured tables that the subscriber wants and that are not parked. ``applied_seq`` returns the
    position of a table: what happened up to there is in its rows. ``refusal`` returns why the changes of a table by one
    of its keys cannot be followed, as a clause; its last argument says whether the action changes rows, or deletes
    them. ``reader`` returns the store. Tables whose setting ``foreign_keys`` is ``ignore`` are left out. Events are
    read only if a parent has some in the batch. Raises DamagedError, StorageError, UnsupportedError.
    """
    keys = {} if schemas is None or not schemas.foreign_keys else schemas.foreign_keys
    watched = [table for table in followed if table in keys and config.table_apply(table).foreign_keys != "ignore"]
    if not watched or schemas is None:
        return frozenset(), {}
    errors: dict[str, CdcError] = {}
    for child in watched:
        hidden = next((key for key in keys[child] if not config.tables.includes(*split_table(key.parent))), None)
        if hidden is not None:
            errors[child] = _hidden_parent(config, child, hidden)

    def why(child: str, key: ForeignKey, updates: bool) -> str | None:
        if child not in watched or child in errors:
            return "its rows are not known"
        if config.table_apply(child).foreign_keys == "park":
            return "foreign_keys is park"
        return refusal(child, key, updates)

    reached: dict[str, tuple[ForeignKey, ParentChange, int]] = {}
    parents = sorted({key.parent for child_keys in keys.values() for key in child_keys}.intersection(manifest.tables))
    for parent in parents:
        updated = _updated_columns(keys, parent)
        possible = {child for column in (None, *updated) for child in _reached(keys, parent, column, why)}
        if not possible & set(watched):
            continue
        history = TableHistory.always(schemas.tables.get(parent))
        for change in parent_changes(transactions_of([manifest], parent), parent, updated, history):
            for child, reach in _reached(keys, parent, change.column, why).items():
                seq = next((seq for seq in change.seqs if seq > applied_seq(child)), None)
                if child not in watched or child in errors or seq is None:
                    continue
                reached.setdefault(child, (reach.key, change, seq))
                if reach.why is not None:
                    errors[child] = _unlogged(config, child, reach.key, change, seq, reach.why)
    if reached.keys() - errors.keys():
        _add_doubts(config, keys, reached, errors, _key_doubt(reader(), manifest.last_seq))
    return frozenset(reached.keys() - errors.keys()), errors


def transactions_of(manifests: Iterable[Manifest], table: str) -> Iterator[Transactions]:
    """Yields the transactions of batches that can have rows of a table, range by range."""
    for manifest in manifests:
        mask = manifest.table_mask(table)
        mask = ALL_TABLES if mask is None else mask
        for segment in manifest.ranges:
            if table in manifest.tables and segment.may_hold(mask):
                transactions = open_range(segment.path, segment.offset, segment.length, mask)
                yield transactions.between(manifest.after_seq, manifest.last_seq)


def _add_doubts(
    config: DestinationConfig,
    keys: Keys,
    reached: Mapping[str, tuple[ForeignKey, ParentChange, int]],
    errors: dict[str, CdcError],
    doubt: _KeyDoubt | None,
) -> None:
    """Adds the errors of tables whose keys may have been others, and of those that such tables reach."""
    for child, (key, change, seq) in reached.items():
        ends = {child, *(own.parent for own in keys[child])}
        if child in errors or doubt is None or (doubt.tables is not None and not ends & doubt.tables):
            continue
        if doubt.is_passing:
            errors[child] = RetryableError(
                f"{doubt.why}, so it is not known yet which of them act on rows of {child}",
                place=f"table {child}",
                remedy="Apply again when capture has caught up.",
            )
        else:
            errors[child] = _unlogged(config, child, key, change, seq, doubt.why)
    while behind := [
        child
        for child in reached
        if child not in errors and any(own.parent in errors and own.parent in reached for own in keys[child])
    ]:
        for child in behind:
            key, change, seq = reached[child]
            errors[child] = _unlogged(config, child, key, change, seq, "the rows of a table between are not known")


@dataclass(frozen=True)
class _KeyDoubt:
    """The stored foreign keys may not be those in force for a batch."""

    tables: frozenset[str] | None
    """The tables on either end of the keys; None: all."""
    why: str
    is_passing: bool = False
    """Whether capture will find out."""


def _key_doubt(reader: Store, last_seq: int) -> _KeyDoubt | None:
    """Returns what is not certain about the foreign keys that are stored for transactions up to ``last_seq``. Capture
    reads them when the source has gone on, so they may be those behind a later statement, which it may not have read
    yet."""
    newest = reader.schemas(last_seq)
    if newest is None or newest[1].read_at is None:
        return _KeyDoubt(None, "older definitions do not say when the keys were read")
    begins, read_at = newest[0], newest[1].read_at
    if read_at <= last_seq:
        return None
    captured = reader.last_seq() or 0
    if captured < read_at:
        why = f"its foreign keys were read when the source was at seq {read_at}, and capture has read up to {captured}"
        return _KeyDoubt(None, why, is_passing=True)
    named: set[str] = set()
    at = read_at
    while (stored := reader.schemas(at)) is not None:
        for seq, tables in stored[1].key_statements.items():
            named.update(tables if last_seq < seq <= read_at else ())
        if stored[0] <= begins:
            break
        at = stored[0] - 1
    return _KeyDoubt(frozenset(named), "a later statement may have changed the keys before they were read")


# --- which tables a change reaches


def _reached(
    keys: Keys, parent: str, column: str | None, why: Callable[[str, ForeignKey, bool], str | None]
) -> dict[str, Reach]:
    """Returns the tables that a change of rows reaches, through every level. ``column``: the changed column in lower
    case; None for a delete. ``why``: as ``refusal`` of :func:`reached_tables`."""
    reached: dict[str, Reach] = {}
    waiting: list[tuple[str, str | None, str | None]] = [(parent, column, None)]
    done = set(waiting)
    while waiting:
        table, changed, unknown = waiting.pop()
        for child, child_keys in keys.items():
            for key in child_keys:
                if key.parent != table or not _acts(key, changed):
                    continue
                deletes = changed is None and key.on_delete == "CASCADE"
                clause = unknown or why(child, key, not deletes)
                if child not in reached or (clause is not None and reached[child].why is None):
                    reached[child] = Reach(key, clause)
                behind = None if clause is None else unknown or f"{clause} for {child}"
                following = {(child, None if deletes else name.lower(), behind) for name in key.columns}
                waiting += following - done
                done |= following
    return reached


def _acts(key: ForeignKey, column: str | None) -> bool:
    """Whether a key acts on a delete (None), or on a change of this column."""
    if column is None:
        return key.on_delete in CHANGES_ROWS
    return key.on_update in CHANGES_ROWS and column in (name.lower() for name in key.parent_columns)


def _updated_columns(keys: Keys, parent: str) -> set[str]:
    """Returns the columns of a parent, in lower case, whose changes keys act on."""
    acting = [key for child_keys in keys.values() for key in child_keys if key.parent == parent]
    return {name.lower() for key in acting if key.on_update in CHANGES_ROWS for name in key.parent_columns}


# --- sentences


def _unlogged(
    config: DestinationConfig, child: str, key: ForeignKey, change: ParentChange, seq: int, why: str
) -> NeedsSnapshotError:
    what = "deleted rows" if change.column is None else f"changed {change.column}"
    through = "" if key.parent == change.parent else f", through {key.parent}"
    return not_followed(config, child, key, seq, why, f"{what} of {change.parent}", through)


def not_followed(
    config: DestinationConfig,
    child: str,
    key: ForeignKey,
    seq: int,
    why: str,
    what: str = "changed rows of its parents",
    through: str = "",
) -> NeedsSnapshotError:
    """Returns the error that parks a table which a change of a parent reaches at ``seq``. ``why``: a clause that says
    why its rows cannot be followed. ``what``: the change, as a predicate of the transaction."""
    at = split_seq(seq)
    return NeedsSnapshotError(
        f"the transaction that ends in binlog file {at.file_number} at position {at.offset} {what}, and the foreign "
        f"key {key.name} ({key.actions}) changed rows of {child} with them{through}, for which the server writes no "
        f"row events; they are not followed, because {why}",
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
