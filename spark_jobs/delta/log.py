"""What a Delta table's log says, read without Spark: properties, schema, applied position, the ledger."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdc.errors import RetryableError, TargetError
from cdc.log import get_logger
from cdc.targets import GENERATION_PROPERTY, LEDGER_DEPTH, application_id, local_path, reader_uri

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql.types import StructType

_LOG, _STAGED = "_delta_log", "_staged_commits"
_TEMPORARY = re.compile(r"\..*\.(tmp|crc)")
"""Names of files that Spark writes beside a commit, never the commit itself."""
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
    """The table's state; None where nothing is, or only what a kill has left of the table's making. Raises TargetError
    where something else lies there, RetryableError where the log cannot be read."""
    with open_delta(path, table) as delta:
        return None if delta is None else _state(delta, path, destination, table)


def _state(delta: DeltaTable, path: str, destination: str, table: str) -> DeltaState:
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
    with open_delta(state.path, table) as delta:
        if delta is None:
            return []
        found = delta.history(max(1, delta.version() - version))
        return [commit for commit in found if int(commit.get("version", -1)) > version]


@contextmanager
def open_delta(path: str, table: str) -> Iterator[DeltaTable | None]:
    """The table for the ``deltalake`` library, for the duration of the block; None where nothing is, or only what a
    kill has left of the table's making. Raises TargetError where something else lies there, RetryableError where the
    log cannot be read."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    local = local_path(path)
    if local is not None and not _looks_like_delta(local, table):
        yield None
        return
    with reader_uri(path) as place:
        try:
            delta = DeltaTable(place)
        except TableNotFoundError:
            delta = None
        except (DeltaError, OSError) as error:
            raise RetryableError(
                f"the Delta table cannot be read: {' '.join(str(error).split())[:300]}",
                place=f"table {table} at {path}",
            ) from error
        yield delta


def _looks_like_delta(folder: Path, table: str) -> bool:
    """Raises TargetError for a file, and for a folder that holds other things than a Delta table."""
    if (folder / _LOG).is_dir() and not _is_unborn(folder):
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
    if ancestor == folder and any(entry.name != _LOG for entry in folder.iterdir()):
        raise TargetError(
            f"{folder} holds files, but is not a Delta table",
            place=f"table {table}",
            remedy="Move them away, or change apply.target.",
        )
    return False


def _is_unborn(folder: Path) -> bool:
    """Whether the log holds only what Spark writes before the first commit of a table."""
    return all(
        entry.name == _STAGED and not any(entry.iterdir()) if entry.is_dir() else _TEMPORARY.fullmatch(entry.name)
        for entry in (folder / _LOG).iterdir()
    )


def clear_unborn(path: str) -> None:
    """Remove what a kill has left of the making of a table that has no commit: Spark would take it for a table, and
    CREATE TABLE IF NOT EXISTS would do nothing. Only on this machine's disks; nothing else is removed, and nothing at
    all once there is a commit."""
    local = local_path(path)
    if local is None or not (local / _LOG).is_dir() or not _is_unborn(local):
        return
    try:
        # Files of this pattern are never part of a table. A folder that is not empty is not removed: should another
        # driver commit meanwhile, its table stays.
        for entry in (local / _LOG).iterdir():
            entry.rmdir() if entry.is_dir() else entry.unlink(missing_ok=True)
        (local / _LOG).rmdir()
    except OSError as error:
        get_logger(__name__).debug("the remains of a Delta table were not removed", path=path, reason=str(error))


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
