"""The Delta tables of a destination, and their names in a catalog.

A table is the destination's own if its property says so. A table that several destinations fill is nobody's own; one
that another destination has taken over is that one's. Both stay.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote

from cdc.base.errors import TargetError
from cdc.base.targets import (
    DESTINATION_PROPERTY,
    LOG_FOLDER,
    is_routed,
    is_shared,
    local_path,
    members_of,
)
from cdc.disk import object_stores
from cdc.disk.durable import storage_errors
from cdc.lake.delta.log import open_delta
from cdc.lifecycle.removal.plan import Part

if TYPE_CHECKING:
    from cdc.config import DestinationConfig
    from cdc.lake.delta.catalog import Name


@dataclass(frozen=True)
class LakeTable:
    """A Delta table below ``apply.target`` that the destination has to do with."""

    table: str
    """``db.table``."""
    path: str
    id: str
    """Delta's id of the table; empty: its log cannot be read."""
    owner: Literal["own", "shared", "other"]
    detail: str
    files: int = 0
    bytes: int = 0


def tables_of(config: DestinationConfig, recorded: Collection[str]) -> list[LakeTable]:
    """Returns the Delta tables below ``apply.target`` that the destination owns, shares or, by ``recorded``, has
    filled.

    ``recorded``: the tables that the meta knows. Raises StorageError, RetryableError, ConfigError.
    """
    names = {config.tables.lake_name(table) for table in recorded}
    return [
        table
        for name, path in _paths(config.apply.target)
        if (table := _look(config.name, name, path, is_recorded=name in names)) is not None
    ]


def _paths(target: str) -> Iterator[tuple[str, str]]:
    """Yields name and path of all folders in which a table may be."""
    for database in _names(target):
        for table in _names(f"{target.rstrip('/')}/{database}"):
            yield f"{unquote(database)}.{unquote(table)}", f"{target.rstrip('/')}/{database}/{table}"


def _names(path: str) -> list[str]:
    folder = local_path(path)
    if folder is None:
        names = object_stores.names_below(path)
    else:
        with storage_errors(folder):
            names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []
    return [name for name in names if name and not name.startswith((".", LOG_FOLDER))]


def _look(destination: str, name: str, path: str, *, is_recorded: bool) -> LakeTable | None:
    import pyarrow as pa

    try:
        with open_delta(path, name) as delta:
            if delta is None:
                return None
            metadata = delta.metadata()
            properties, owner = metadata.configuration, metadata.configuration.get(DESTINATION_PROPERTY)
            sizes = pa.table(delta.get_add_actions()).column("size_bytes")
            files, size = len(sizes), sum(sizes.to_pylist())
    except TargetError:  # something else than a Delta table
        return None
    if is_shared(properties) and not is_routed(properties):
        members = members_of(properties)
        if destination not in members:
            return None
        others = ", ".join(member for member in members if member != destination) or "no other destination yet"
        return LakeTable(name, path, str(metadata.id), "shared", f"shared with {others}", files, size)
    if owner == destination:
        return LakeTable(name, path, str(metadata.id), "own", "", files, size)
    if is_recorded:
        whose = f"the destination {owner}" if owner else "no destination"
        return LakeTable(name, path, str(metadata.id), "other", f"it belongs to {whose} now", files, size)
    return None


def remove_table(table: LakeTable) -> None:
    """Removes the files of a table, whatever an interrupted removal has left of them; not those of another table that
    was made in its place. Raises StorageError, RetryableError, ConfigError."""
    if _is_replaced(table):
        return
    folder = local_path(table.path)
    if folder is None:
        object_stores.remove_folder(table.path)
        return
    with storage_errors(folder):
        if folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder)
        elif folder.is_symlink():
            _empty(folder.resolve())
            folder.unlink()
        if folder.parent.is_dir() and not any(folder.parent.iterdir()):
            folder.parent.rmdir()


def _empty(folder: Path) -> None:
    if folder.is_dir():
        shutil.rmtree(folder)


def _is_replaced(table: LakeTable) -> bool:
    """Whether there is a whole table at the path that has another id."""
    try:
        with open_delta(table.path, table.table) as delta:
            return delta is not None and str(delta.metadata().id) != table.id
    except TargetError:
        return False  # files without a log: it was being removed


# --- names in a catalog


@dataclass(frozen=True)
class NamedTable:
    """A name in the catalog that leads to a table of the destination, or did."""

    name: Name
    part: Part


def entries_of(
    spark: Any,
    config: DestinationConfig,
    tables: Collection[LakeTable],
    recorded: Collection[str],
    *,
    lake: bool,
) -> list[NamedTable]:
    """Returns the names in the catalog of a Spark session for tables of the destination. ``recorded``: the tables that
    the meta knows. ``lake``: whether the tables themselves are removed. Raises CatalogUnavailableError."""
    from cdc.lake.delta.catalog import find_entry, is_same_place, name_of  # imports PySpark

    kept = {table.table: table for table in tables if table.owner != "own"}
    entries = []
    for table in sorted({*map(config.tables.lake_name, recorded), *(table.table for table in tables)}):
        name = name_of(config, table)
        entry = None if name is None else find_entry(spark, name)
        if name is None or entry is None:
            continue
        stays = ""
        if not is_same_place(entry.location, config.table_path(table)):
            stays = f"it names another place: {entry.location or 'none'}"
        elif table in kept:
            stays = kept[table].detail
        elif entry.kind == "MANAGED" and not lake:
            stays = "the catalog owns the files, so that removing the name would remove the table; --lake removes both"
        entries.append(NamedTable(name, Part("catalog entry", str(name), detail=table, stays=stays)))
    return entries
