"""What a Delta table's log says, read without Spark: properties, schema, applied position, the ledger."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdc.errors import RetryableError, TargetError
from cdc.targets import GENERATION_PROPERTY, application_id

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql.types import StructType

LEDGER_DEPTH = 50
"""Commits that are looked through for one of ours: maintenance by others may lie on top."""
TRANSACTION_RETENTION = "delta.setTransactionRetentionDuration"
KEPT_TRANSACTIONS = "interval 36500 days"
"""For ever. Set on every table that is made: the default of a Spark session may be shorter."""


@dataclass(frozen=True)
class DeltaState:
    """A Delta table at one version."""

    path: str
    version: int
    properties: dict[str, str]
    schema_json: str
    applied_seq: int
    """The seq up to which changes were applied; 0 when there were none."""
    ledger: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    """(version, user metadata) of the last commits that are ours, newest first."""
    id: str = ""
    """The table's id in Delta's metadata."""

    @property
    def generation(self) -> int:
        return int(self.properties.get(GENERATION_PROPERTY, "0"))

    @property
    def schema(self) -> StructType:
        from pyspark.sql.types import StructType

        return StructType.fromJson(json.loads(self.schema_json))

    def version_of(self, last_seq: int) -> int | None:
        """The version whose commit applied up to ``last_seq`` or beyond, the oldest such one known."""
        found = [version for version, metadata in self.ledger if int(metadata.get("last_seq", -1)) >= last_seq]
        return min(found) if found else None


def read_state(path: str, destination: str, table: str) -> DeltaState | None:
    """The table's state; None where nothing is. Raises TargetError where something else lies there."""
    delta = open_delta(path, table)
    if delta is None:
        return None
    metadata = delta.metadata()
    properties = {key: str(value) for key, value in metadata.configuration.items()}
    generation = int(properties.get(GENERATION_PROPERTY, "0"))
    applied = delta.transaction_version(application_id(destination, table, generation)) or 0
    ledger = _ledger(delta, destination, table)
    # Delta forgets transaction ids where delta.setTransactionRetentionDuration says so; the commits still know.
    known = [int(m.get("last_seq", 0)) for _, m in ledger if int(m.get("generation", 0)) == generation]
    return DeltaState(
        path=path,
        version=delta.version(),
        properties=properties,
        schema_json=delta.schema().to_json(),
        applied_seq=max([applied, *known]),
        ledger=ledger,
        id=str(metadata.id),
    )


def commits_since(state: DeltaState, table: str, version: int) -> list[dict[str, Any]]:
    """The history behind a version, newest first, each with its ``version``; what the log's cleanup has removed is not
    in it."""
    delta = open_delta(state.path, table)
    if delta is None:
        return []
    found = delta.history(max(1, delta.version() - version))
    return [commit for commit in found if int(commit.get("version", -1)) > version]


def open_delta(path: str, table: str) -> DeltaTable | None:
    """The table for the ``deltalake`` library; None where nothing is. Raises TargetError, RetryableError."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    local = local_path(path)
    if local is not None and not _looks_like_delta(local, table):
        return None
    try:
        return DeltaTable(_reader_uri(path, local))
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise RetryableError(
            f"the Delta table cannot be read: {' '.join(str(error).split())[:300]}", place=f"table {table} at {path}"
        ) from error


def local_path(path: str) -> Path | None:
    """The folder, where the path or URI names one on this machine."""
    if path.startswith("file:"):
        return Path("/" + path.removeprefix("file:").lstrip("/"))
    return None if "://" in path else Path(path)


def _looks_like_delta(folder: Path, table: str) -> bool:
    """Raises TargetError for a file, and for a folder that holds other things than a Delta table."""
    if (folder / "_delta_log").is_dir():
        return True
    ancestor = folder
    while not ancestor.exists() and ancestor != ancestor.parent:
        ancestor = ancestor.parent
    if not ancestor.is_dir():
        raise TargetError(
            f"{ancestor} is a file, not a folder",
            place=f"table {table}",
            remedy="Move it away, or change apply.target.",
        )
    if not os.access(ancestor, os.W_OK | os.X_OK):
        raise TargetError(
            f"the folder {ancestor} cannot be written",
            place=f"table {table}",
            remedy="Give this user the right to write there, or change apply.target.",
        )
    if ancestor == folder and any(folder.iterdir()):
        raise TargetError(
            f"{folder} holds files, but is not a Delta table",
            place=f"table {table}",
            remedy="Move them away, or change apply.target.",
        )
    return False


_views: list[str] = []


def _reader_uri(path: str, local: Path | None) -> str:
    """Where the ``deltalake`` library finds the table. It decodes a percent sign in a local path once too often, so
    for such a path it gets a folder of links to the log's files; those are all that is read here."""
    if local is None:
        return path.replace("%", "%25")
    if "%" not in str(local):
        return str(local)
    view = Path(tempfile.mkdtemp(prefix="towpath-log-"))
    if not _views:
        atexit.register(_remove_views)
    _views.append(str(view))
    (view / "_delta_log").mkdir()
    for file in (local / "_delta_log").iterdir():
        if file.is_file():
            (view / "_delta_log" / file.name).symlink_to(file.absolute())
    return str(view)


def _remove_views() -> None:
    for view in _views:
        shutil.rmtree(view, ignore_errors=True)


def _ledger(delta: DeltaTable, destination: str, table: str) -> list[tuple[int, dict[str, Any]]]:
    found = []
    for commit in delta.history(LEDGER_DEPTH):
        text = commit.get("userMetadata")
        if not isinstance(text, str):
            continue
        try:
            metadata = json.loads(text)
        except json.JSONDecodeError:
            continue  # somebody else's
        ours = isinstance(metadata, dict) and metadata.get("destination") == destination
        if ours and metadata.get("table") == table and "version" in commit:
            found.append((int(commit["version"]), metadata))
    return found
