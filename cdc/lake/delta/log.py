"""Reads the log of a Delta table without Spark: version, properties, schema, applied position, ledger.

Every reader of ``_delta_log`` in Towpath goes through this module. :func:`reader_uri` is the one place that deals with
percent signs in paths, which Spark and the ``deltalake`` library take differently, and with object stores.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from cdc.base.errors import CdcError, RetryableError, TargetError, UsageError
from cdc.base.log import get_logger
from cdc.base.targets import (
    DESTINATION_PROPERTY,
    GENERATION_PROPERTY,
    LOG_FOLDER,
    application_id,
    has_percent_sign,
    is_routed,
    is_shared,
    local_path,
    members_of,
    properties_for,
    reader_of,
    split_table,
)
from cdc.lake.delta.known_tables import KnownTable, KnownTables
from cdc.lake.delta.mirrors import mirrored, read_tip
from cdc.meta import TableRecord

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from cdc.config import DestinationConfig

MANY_FILES = 1000
"""The small files of a table from which on it needs maintenance: readers and merges open each of them."""
SMALL_BYTES = 16 << 20
LEDGER_DEPTH = 50
"""Commits that are searched for those of Towpath: maintenance by others may lie on top."""
TRANSACTION_RETENTION = "delta.setTransactionRetentionDuration"
KEPT_TRANSACTIONS = "interval 36500 days"
"""Practically for ever. Set on every table that is made: the default of a Spark session may be shorter."""

_VERSION_DIGITS = 20
"""Digits of the version in the names of the log's files."""
_STAGED_COMMITS = "_staged_commits"
_TEMPORARY = re.compile(r"\..*\.(tmp|crc)")
"""Names of files that Spark writes beside a commit, never the commit itself."""
_DATA_FILE = re.compile(r"\.?part-\d{5}-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}[-.]c000\.snappy\.parquet(\.crc)?")
"""Names of files with rows, as Spark gives them. The first commit of a table is written after them."""
_LARGEST_COMMIT = 1 << 20
_FILES_ADDED = ("numTargetFilesAdded", "numAddedFiles", "numFiles", "num_target_files_added", "num_added_files")
"""Names of the metric for files that a commit added: of Spark's MERGE, UPDATE and INSERT, and of delta-rs."""
_log = get_logger(__name__)
_known_tables = KnownTables(LEDGER_DEPTH)


@dataclass(frozen=True)
class LostRows:
    """A commit whose MERGE read fewer rows than the driver had chosen for it."""

    version: int
    sent: int
    read: int

    @classmethod
    def of(cls, commit: Mapping[str, Any], metadata: Mapping[str, Any]) -> LostRows | None:
        """Compares the metrics of a commit with its user metadata. Returns None if no row was lost, or if they do not
        tell."""
        metrics = commit.get("operationMetrics") or {}
        source_rows, upserts, read = (
            metadata.get("source_rows"),
            metadata.get("source_upserts"),
            metrics.get("numSourceRows"),
        )
        if source_rows is None or upserts is None or read is None or int(read) >= int(source_rows):
            return None
        # Spark need not read the source to the end if no row of the table can match. Then all upserts are inserted.
        inserted, updated, deleted = (
            int(metrics.get(f"numTargetRows{what}", 0)) for what in ("Inserted", "Updated", "Deleted")
        )
        if inserted >= int(upserts) and not updated and not deleted:
            return None
        return cls(int(commit["version"]), int(source_rows), int(read))


@dataclass(frozen=True)
class DeltaState:
    """A Delta table at one version."""

    path: str
    version: int
    properties: dict[str, str]
    """As the destination sees them: see :func:`cdc.base.targets.properties_for`."""
    schema_json: str
    """The schema in Delta's (and Spark's) JSON."""
    applied_seq: int
    """The seq up to which changes were applied; 0 if none were."""
    ledger: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    """(version, user metadata) of the last commits of this destination, newest first."""
    id: str = ""
    """The table's id in Delta's metadata."""
    stored: dict[str, str] = field(default_factory=dict)
    """The properties as the table stores them."""
    partition_by: tuple[str, ...] = ()
    """The columns that the table is partitioned by."""
    description: str = ""
    """The table's comment."""
    lost_rows: LostRows | None = None
    """The newest known commit of this generation whose statement did not read all rows that it was given."""
    files: dict[int, int] = field(default_factory=dict)
    """The number of files that each commit of :attr:`ledger` added, by version, as far as the commits tell."""

    @property
    def generation(self) -> int:
        return int(self.properties.get(GENERATION_PROPERTY, "0"))

    @property
    def is_shared(self) -> bool:
        """Whether several destinations write the table."""
        return is_shared(self.properties)

    @property
    def is_joined(self) -> bool:
        """Whether the destination is the table's owner, or a member of a shared table."""
        return DESTINATION_PROPERTY in self.properties

    def version_of(self, last_seq: int) -> int | None:
        """Returns the oldest known version whose commit applied up to ``last_seq`` or beyond in this generation."""
        versions = [version for version, metadata in self.entries if int(metadata.get("last_seq", -1)) >= last_seq]
        return min(versions) if versions else None

    @property
    def entries(self) -> list[tuple[int, dict[str, Any]]]:
        """The part of :attr:`ledger` that is of this generation."""
        return [entry for entry in self.ledger if int(entry[1].get("generation", 0)) == self.generation]


def read_state(path: str, destination: str, table: str) -> DeltaState | None:
    """Returns the table's state, or None if there is no table, or only the remains of an interrupted creation.

    Raises TargetError if something else lies at the path, RetryableError if the log cannot be read.
    """
    with open_newest(path, table) as table_at_newest:
        return (
            None
            if table_at_newest is None
            else _state(table_at_newest.delta, table_at_newest.commits, path, destination, table)
        )


def table_record(config: DestinationConfig, table: str) -> TableRecord | None:
    """Reads a table's record from the lake; None if there is no Delta table, or none that the destination has joined.

    Raises UsageError if the table does not belong to the destination, TargetError and RetryableError if it cannot be
    read.
    """
    if not config.tables.includes(*split_table(table)):
        raise UsageError(
            f"{table} is not a table of {config.name}", remedy="Write it as db.table, as `cdc status` does."
        )
    state = read_state(config.table_path(table), config.name, table)
    if state is None or (state.is_shared and not state.is_joined):
        return None
    return TableRecord(state.generation, state.version, state.applied_seq, state.id)


def _state(delta: DeltaTable, commits: Iterable[dict[str, Any]], path: str, destination: str, table: str) -> DeltaState:
    metadata = delta.metadata()
    stored = {key: str(value) for key, value in metadata.configuration.items()}
    properties = properties_for(stored, destination, table)
    generation = int(properties.get(GENERATION_PROPERTY, "0"))
    applied = delta.transaction_version(application_id(destination, table, generation)) or 0
    commits = list(commits)
    ledger, lost = _ledger(commits, destination, table)
    ours = {version for version, _ in ledger}
    # Delta forgets transaction ids after delta.setTransactionRetentionDuration; the commits still carry the position.
    seqs = [int(m.get("last_seq", 0)) for _, m in ledger if int(m.get("generation", 0)) == generation]
    return DeltaState(
        path=path,
        version=delta.version(),
        properties=properties,
        schema_json=delta.schema().to_json(),
        applied_seq=max([applied, *seqs]),
        ledger=ledger,
        id=str(metadata.id),
        stored=stored,
        partition_by=tuple(metadata.partition_columns),
        description=str(metadata.description or ""),
        lost_rows=next((lost_rows for generation_of_loss, lost_rows in lost if generation_of_loss == generation), None),
        files={
            int(commit["version"]): count
            for commit in commits
            if commit.get("version") in ours and (count := files_added(commit)) is not None
        },
    )


def files_added(commit: Mapping[str, Any]) -> int | None:
    """Returns the number of files that a commit added, by its metrics; None if they do not tell."""
    metrics = commit.get("operationMetrics") or {}
    count = next((metrics[name] for name in _FILES_ADDED if name in metrics), None)
    return None if count is None else int(count)


def state_before(path: str, destination: str, table: str, seq: int) -> DeltaState | None:
    """Returns the table at its newest version without any change after ``seq - 1``; None if there is no table, if
    Delta does not have that version any more, or if a snapshot or a replay has brought the table from an earlier
    position to one at or after ``seq``. Raises as :func:`read_state`."""
    from deltalake.exceptions import DeltaError

    with open_delta(path, table) as delta:
        if delta is None:
            return None
        commits = delta.history(LEDGER_DEPTH)
        ledger = _ledger(commits, destination, table)[0]
        later = {version: metadata for version, metadata in ledger if int(metadata["last_seq"]) >= seq}
        if later:
            first = min(later)
            if first == 0 or "rebuild" in later[first]:
                return None
            try:
                delta.load_as_version(first - 1)
            except (DeltaError, OSError, ValueError) as error:
                _log.warning("an older version of a Delta table cannot be read", table=table, reason=str(error))
                return None
        # After load_as_version, history() would still begin with the newest commit, under wrong versions.
        earlier = [commit for commit in commits if int(commit["version"]) <= delta.version()]
        state = _state(delta, earlier, path, destination, table)
        return None if state.applied_seq >= seq else state  # its commit lies beneath many of others


def has_rows(path: str, table: str) -> bool:
    """Whether the table has any file with rows."""
    with open_newest(path, table) as known_table:
        return known_table is not None and bool(known_table.delta.file_uris())


def ledger_of(commits: Iterable[dict[str, Any]], destination: str, table: str) -> list[tuple[int, dict[str, Any]]]:
    """Returns those of the commits that are of the destination, as in :attr:`DeltaState.ledger`."""
    return _ledger(commits, destination, table)[0]


def _ledger(
    commits: Iterable[dict[str, Any]], destination: str, table: str
) -> tuple[list[tuple[int, dict[str, Any]]], list[tuple[int, LostRows]]]:
    """Returns the destination's commits, as in :attr:`DeltaState.ledger`, and the commits that lost rows, each with its
    generation."""
    entries, lost = [], []
    for commit in commits:
        text = commit.get("userMetadata")
        if not isinstance(text, str):
            continue
        try:
            metadata = json.loads(text)
        except json.JSONDecodeError:
            continue  # a commit of another program
        ours = isinstance(metadata, dict) and metadata.get("destination") == destination
        if ours and metadata.get("table") == table and "version" in commit:
            entries.append((int(commit["version"]), metadata))
            if (rows := LostRows.of(commit, metadata)) is not None:
                lost.append((int(metadata.get("generation", 0)), rows))
    return entries, lost


@dataclass(frozen=True)
class TablePosition:
    """The applied position of a Delta table. If it is not known, all fields are None but ``note``, which says why."""

    applied_seq: int | None = None
    delta_version: int | None = None
    generation: int | None = None
    note: str | None = None
    reader: str | None = None
    """The readers that the table needs, in words: see :func:`cdc.base.targets.reader_of`."""
    members: tuple[str, ...] = ()
    """The destinations or source tables that have joined a shared table."""
    small_files: int = 0
    """The files below :data:`SMALL_BYTES` that compaction would join with others of their partition; 0 if there are
    fewer than :data:`MANY_FILES`."""


def read_position(path: str, destination: str, table: str) -> TablePosition:
    """Returns applied seq and version of a Delta table. A table that is absent, unreachable or not a Delta table
    raises nothing: the note says so."""
    if (folder := local_path(path)) is not None and not folder.exists():
        return TablePosition(note="not there yet")  # without loading deltalake
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError
    except ModuleNotFoundError:
        return TablePosition(note="unknown: the package deltalake is not installed")
    try:
        with reader_uri(path) as uri:
            if uri is None:
                return TablePosition(note="not there yet")
            delta = DeltaTable(uri)
            stored, protocol = delta.metadata().configuration, delta.protocol()
            properties, members = properties_for(stored, destination, table), tuple(members_of(stored))
            if is_shared(stored) and DESTINATION_PROPERTY not in properties:
                others = "source tables" if is_routed(stored) else "destinations"
                return TablePosition(note=f"has rows of other {others} only", members=members)
            generation = int(properties.get(GENERATION_PROPERTY, 0))
            applied = delta.transaction_version(application_id(destination, table, generation))
            reader = reader_of(path, properties, protocol.reader_features or ())
            return TablePosition(
                applied,
                delta.version(),
                generation,
                reader=reader,
                members=members,
                small_files=_small_files(delta),
            )
    except TableNotFoundError:
        return TablePosition(note="not there yet")
    except (DeltaError, CdcError, OSError, ValueError) as error:
        return TablePosition(note=f"cannot be read: {' '.join(str(error).split())}")


def _small_files(delta: DeltaTable) -> int:
    """Returns :attr:`TablePosition.small_files`."""
    if len(delta.file_uris()) < MANY_FILES:
        return 0
    import pyarrow as pa
    import pyarrow.compute as pc

    files = pa.table(delta.get_add_actions(flatten=True))
    small = files.filter(pc.less(files["size_bytes"], SMALL_BYTES))
    partitions = [name for name in files.schema.names if name.startswith("partition.")]
    count = small.num_rows - (len(small.group_by(partitions).aggregate([])) if partitions else 1)
    return count if count >= MANY_FILES else 0


def commits_since(state: DeltaState, table: str, version: int) -> list[dict[str, Any]]:
    """Returns the commits after a version, newest first, each with its ``version``. Commits that the log's cleanup has
    removed are missing."""
    with open_delta(state.path, table) as delta:
        if delta is None:
            return []
        commits = delta.history(max(1, delta.version() - version))
        return [commit for commit in commits if int(commit.get("version", -1)) > version]


def last_commits(state: DeltaState, table: str) -> list[dict[str, Any]]:
    """Returns the last :data:`LEDGER_DEPTH` commits, newest first, each with its ``version``. It takes as long however
    many there are."""
    with open_newest(state.path, table) as known_table:
        return [] if known_table is None else [commit for commit in known_table.commits if "version" in commit]


def ends_with(path: str, version: int, delta_id: str, transaction: tuple[str, int] | None) -> bool:
    """Whether the newest commit of a table is this version, and carries this transaction (application id, version) or,
    if None is given, the table's id. Reads one small file, of an object store in two requests; False if that is not
    enough to tell. Raises RetryableError if the object store cannot be read."""
    folder = local_path(path)
    if folder is None:
        tip = read_tip(path, version, _LARGEST_COMMIT)
        if tip is None:
            return False
        text = tip
    else:
        commit, following = (folder / LOG_FOLDER / f"{v:0{_VERSION_DIGITS}d}.json" for v in (version, version + 1))
        try:
            if following.exists() or commit.stat().st_size > _LARGEST_COMMIT:
                return False
            text = commit.read_text(encoding="utf-8")
        except OSError:
            return False
    if transaction is None:
        return delta_id in text
    try:
        actions = [json.loads(line).get("txn") or {} for line in text.splitlines() if '"txn"' in line]
    except json.JSONDecodeError:  # the commit is larger than what was read
        return False
    return any((action.get("appId"), action.get("version")) == transaction for action in actions)


# --- opening ---------------------------------------------------------------------------------------------------------


@contextmanager
def open_delta(path: str, table: str) -> Iterator[DeltaTable | None]:
    """Opens the table with the ``deltalake`` library for the duration of the block. Yields None if there is no table,
    or only the remains of an interrupted creation.

    Raises TargetError if something else lies at the path, RetryableError if the log cannot be read.
    """
    local = local_path(path)
    if local is not None and not _looks_like_delta(local, table):
        yield None
        return
    with reader_uri(path, whole=True) as uri:
        yield None if uri is None else _opened(uri, path, table)


@contextmanager
def open_newest(path: str, table: str) -> Iterator[KnownTable | None]:
    """Opens the table at its newest version for the duration of the block, which must not load another one. Of a table
    that this process has read before, only newer commits are read. Yields and raises as :func:`open_delta`."""
    local = local_path(path)
    if local is None:
        with mirrored(path, LEDGER_DEPTH) as mirror:
            if mirror is None:
                yield None
                return
            folder = mirror
            with _known_tables.newest(
                folder, folder / LOG_FOLDER, lambda: _opened(str(folder), path, table)
            ) as known_table:
                yield known_table
        return
    if has_percent_sign(path):
        with open_delta(path, table) as delta:
            yield None if delta is None else KnownTable(delta, delta.history(LEDGER_DEPTH), None)
        return

    def read() -> DeltaTable | None:
        return _opened(str(local), path, table) if _looks_like_delta(local, table) else None

    with _known_tables.newest(local, local / LOG_FOLDER, read) as known_table:
        yield known_table


def _opened(uri: str, path: str, table: str) -> DeltaTable | None:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        return DeltaTable(uri)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise RetryableError(
            f"the Delta table cannot be read: {' '.join(str(error).split())[:300]}",
            place=f"table {table} at {path}",
        ) from error


@contextmanager
def reader_uri(path: str, *, rows: bool = False, whole: bool = False) -> Iterator[str | None]:
    """Yields the folder in which the ``deltalake`` library finds the log of the table that Spark finds at ``path``;
    valid inside the block. Yields None if there is no table in an object store.

    Spark takes a percent sign in a path as it is, and ``deltalake`` decodes it once too often, however the path is
    written. Such a table is therefore shown to ``deltalake`` in a temporary folder: with a link to the log and, with
    ``rows``, to the data. Of a table in an object store it is a copy of the log, with ``whole`` of all of it. Raises as
    :func:`cdc.lake.delta.mirrors.mirrored`, and OSError.
    """
    local = local_path(path)
    if local is None:
        with mirrored(path, LEDGER_DEPTH, whole=whole) as mirror:
            yield None if mirror is None else str(mirror)
        return
    if not has_percent_sign(path):
        yield str(local)
        return
    with TemporaryDirectory(prefix="cdc-") as folder:
        names = [entry.name for entry in local.iterdir()] if rows and local.is_dir() else [LOG_FOLDER]
        for name in names:
            (Path(folder) / name).symlink_to((local / name).absolute())
        yield folder


def _looks_like_delta(folder: Path, table: str) -> bool:
    """Raises TargetError for a file, and for a folder that holds anything but a Delta table."""
    if (folder / LOG_FOLDER).is_dir() and not _is_unborn(folder):
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
    begun = (folder / LOG_FOLDER).is_dir()  # with files of a load that was killed before its commit
    if ancestor == folder and any(
        entry.name != LOG_FOLDER and not (begun and _DATA_FILE.fullmatch(entry.name)) for entry in folder.iterdir()
    ):
        raise TargetError(
            f"{folder} holds files, but is not a Delta table",
            place=f"table {table}",
            remedy="Move them away, or change apply.target.",
        )
    return False


def _is_unborn(folder: Path) -> bool:
    """Whether the log holds only what Spark writes before the first commit of a table."""
    return all(
        entry.name == _STAGED_COMMITS and not any(entry.iterdir())
        if entry.is_dir()
        else _TEMPORARY.fullmatch(entry.name)
        for entry in (folder / LOG_FOLDER).iterdir()
    )


def clear_unborn(path: str) -> None:
    """Removes the remains of a creation that was killed before the table's first commit.

    Spark would take them for a table, and CREATE TABLE IF NOT EXISTS would do nothing. Removes only on this machine's
    disks, and nothing at all once there is a commit.
    """
    local = local_path(path)
    if local is None or not (local / LOG_FOLDER).is_dir() or not _is_unborn(local):
        return
    try:
        # Files of this pattern are never part of a table. rmdir refuses a folder that is not empty: if another driver
        # commits meanwhile, its table stays.
        for entry in (local / LOG_FOLDER).iterdir():
            entry.rmdir() if entry.is_dir() else entry.unlink(missing_ok=True)
        (local / LOG_FOLDER).rmdir()
    except OSError as error:
        _log.debug("the remains of an interrupted table creation were not removed", path=path, reason=str(error))
