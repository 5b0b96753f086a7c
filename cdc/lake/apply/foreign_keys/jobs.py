"""The changes by foreign keys for jobs on one table, whose batches have no rows of other tables: snapshot, replay,
catch-up, and views as of a transaction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cdc.base.errors import NeedsSnapshotError
from cdc.base.targets import split_table
from cdc.batches.manifest import schemas_of
from cdc.batches.table_batches import batches_between
from cdc.lake.apply.foreign_keys.reach import reached_tables
from cdc.lake.apply.foreign_keys.search import CascadeSearch
from cdc.lake.delta.present_rows import LakeVersion
from cdc.lake.delta.tables import target_of
from cdc.source.foreign_keys import refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdc.batches.manifest import Manifest
    from cdc.batches.table_batches import TableChangeReader
    from cdc.binlog.sql.schemas import Schemas
    from cdc.config import DestinationConfig
    from cdc.lake.apply.foreign_keys.changes import CascadedRows
    from cdc.lake.apply.foreign_keys.reach import Keys
    from cdc.lake.delta.present_rows import PresentRows
    from cdc.lake.runtime.session import TableSession


def is_reached(
    config: DestinationConfig, table: str, batches: TableChangeReader, after_seq: int, until_seq: int
) -> bool:
    """Whether foreign keys may have changed rows of the table in (``after_seq``, ``until_seq``] without row events, or
    nobody can tell. Raises DamagedError, StorageError, CutOffError."""
    stored = _keys_between(config, table, batches, after_seq, until_seq)
    if stored is None:
        return False
    reached, errors = _reached(config, table, batches, stored, after_seq, until_seq)
    return table in reached or table in errors


def cascades_of_table(
    config: DestinationConfig,
    table: str,
    batches: TableChangeReader,
    base: Callable[[], PresentRows | None],
    after_seq: int,
    until_seq: int,
    session: Callable[[], TableSession],
    *,
    is_exact: bool = True,
) -> CascadedRows | None:
    """Returns the changes of a table by foreign keys in (``after_seq``, ``until_seq``]; None if there are none.

    ``config`` names the Delta tables of the destination. ``base`` returns the rows of the table as of ``after_seq``, or
    None if it has none; it is called if a parent has changes. ``is_exact``: as for
    :class:`~cdc.lake.apply.foreign_keys.search.CascadeSearch`. Raises NeedsSnapshotError if they cannot be found,
    RetryableError if capture has to go on first, DamagedError, StorageError, CutOffError.
    """
    stored = _keys_between(config, table, batches, after_seq, until_seq)
    if stored is None:
        return None
    reached, errors = _reached(config, table, batches, stored, after_seq, until_seq)
    if table in errors:
        raise errors[table]
    if table not in reached:
        return None
    versions: dict[str, LakeVersion | None] = {}
    begins = after_seq
    others = sorted(ancestors_of(stored.foreign_keys or {}, table) & (stored.foreign_keys or {}).keys() - {table})
    if others:
        begins, versions = _common_versions(config, batches, others, after_seq)
    followed = {table, *versions}

    def changes(name: str) -> Iterator[Manifest]:
        for manifest in batches_between(batches, name, begins, until_seq, whole=True):
            if not manifest.ddl:
                yield manifest
            elif name in versions:
                raise NeedsSnapshotError(
                    f"foreign keys change its rows through {name}, which a statement has altered meanwhile",
                    place=f"table {table}",
                    remedy=f"Run `cdc snapshot {config.name} {table}`.",
                )

    search = CascadeSearch(
        config,
        changes,
        until_seq,
        stored,
        session,
        lambda name: base() if name == table else versions[name],
        is_exact,
    )
    cascaded = search.run(followed).get(table)
    if table in search.errors:
        raise search.errors[table]
    return cascaded


def manifest_without_events(batches: TableChangeReader, table: str, after_seq: int, until_seq: int) -> Manifest:
    """Returns a batch for changes of a table by foreign keys alone. It is made from one of a parent."""
    stored = batches.reader.schemas(until_seq)
    keys = {} if stored is None else stored[1].foreign_keys or {}
    for parent in sorted(ancestors_of(keys, table)):
        for manifest in batches_between(batches, parent, after_seq, until_seq, whole=True):
            return manifest.model_copy(
                update={"tables": (table,), "ranges": (), "row_events": 0, "ddl": False, "last_seq": until_seq}
            )
    raise AssertionError("a parent of the table had changes a moment ago")


def _keys_between(
    config: DestinationConfig, table: str, batches: TableChangeReader, after_seq: int, until_seq: int
) -> Schemas | None:
    """Returns the definitions that hold in a range, if foreign keys may change the table there; else None."""
    if config.table_apply(table).foreign_keys == "ignore":
        return None
    ends = [stored[1] for seq in (after_seq, until_seq) if (stored := batches.reader.schemas(seq)) is not None]
    if not any(table in (stored.foreign_keys or {}) for stored in ends):
        return None
    first, last = (
        {} if definitions.foreign_keys is None else definitions.foreign_keys for definitions in (ends[0], ends[-1])
    )
    for name in ancestors_of(first, table) | ancestors_of(last, table):
        if first.get(name, ()) != last.get(name, ()):
            raise NeedsSnapshotError(
                f"the foreign keys of {name}, which lead to its rows, changed between seq {after_seq} and {until_seq}",
                place=f"table {table}",
                remedy=f"Run `cdc snapshot {config.name} {table}`.",
            )
    return ends[-1]


def ancestors_of(keys: Keys, table: str) -> set[str]:
    """Returns a table, and all tables whose changes may reach it."""
    names, waiting = {table}, [table]
    while waiting:
        parents = {key.parent for key in keys.get(waiting.pop(), ())} - names
        names |= parents
        waiting += parents
    return names


def _reached(
    config: DestinationConfig, table: str, batches: TableChangeReader, stored: Schemas, after_seq: int, until_seq: int
) -> tuple[set[str], dict[str, Exception]]:
    """Looks for changes of parents, as :func:`~cdc.lake.apply.foreign_keys.reach.reached_tables`."""
    keys = stored.foreign_keys or {}
    ancestors = ancestors_of(keys, table)
    reached: set[str] = set()
    errors: dict[str, Exception] = {}
    for parent in sorted(ancestors):
        if not config.tables.includes(*split_table(parent)):
            continue  # a parent that is not captured is named without a look at its changes
        for manifest in batches_between(batches, parent, after_seq, until_seq, whole=True):
            if manifest.ddl:
                continue
            also, faults = reached_tables(
                config,
                manifest,
                schemas_of(manifest),
                sorted(ancestors & keys.keys()),
                lambda _: after_seq,
                lambda child, key, updates: refusal(config, stored, child, key, updates),
                lambda: batches.reader,
            )
            reached |= also
            errors |= faults
    return reached, errors


def _common_versions(
    config: DestinationConfig, batches: TableChangeReader, tables: list[str], after_seq: int
) -> tuple[int, dict[str, LakeVersion | None]]:
    """Returns versions of tables that are all exact at one position, the newest one up to ``after_seq``, and that
    position. Raises NeedsSnapshotError if the lake has none."""
    acked = batches.meta.read().subscription("apply").acked_seq
    spans: dict[str, list[tuple[int, int, LakeVersion]]] = {}
    for table in tables:
        target = target_of(config, table)
        state = target.state()
        if state is None:
            continue
        spans[table] = [(state.applied_seq, max(acked, state.applied_seq), LakeVersion.of(target, state))]
        for version, entry in sorted(state.entries, key=lambda commit: -commit[0]):
            before = int(entry["first_seq"])
            spans[table].append((before, int(entry["after_seq"]), LakeVersion.of(target, state, version - 1, before)))
    ends = sorted({min(end, after_seq) for span in spans.values() for begin, end, _ in span if begin <= after_seq})
    for position in reversed(ends):
        chosen = {
            table: next((lake for begin, end, lake in span if begin <= position <= end), None)
            for table, span in spans.items()
        }
        if len(chosen) == len(tables) and None not in chosen.values():
            return position, dict(chosen)
    raise NeedsSnapshotError(
        f"foreign keys change its rows through {', '.join(tables)}, and the lake does not have their rows as of seq "
        f"{after_seq}",
        place=f"table {tables[0]}",
        remedy="Load the tables together: run `cdc snapshot` for all of them while no parent is deleted.",
    )
