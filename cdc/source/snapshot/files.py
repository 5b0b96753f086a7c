"""The files of a snapshot: their folder on a local disk or at a URI, and what they say (``docs/formats/snapshot.md``).

A chunk's Parquet file is written beside, synced and renamed, then its record likewise; so a record means that the rows
are there. Nothing is changed afterwards.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ValidationError

from cdc.base.documents import require_version
from cdc.base.errors import ConfigError, DamagedError, UsageError
from cdc.base.targets import encode_name
from cdc.config import DestinationConfig
from cdc.disk import files as file_layer
from cdc.disk.durable import make_folder, replace_file, storage_errors, sync_folder
from cdc.disk.permissions import READ, secure_folder
from cdc.source.snapshot import positions
from cdc.source.snapshot.keys import Key
from cdc.source.snapshot.records import FORMAT_VERSION, ChunkRecord, Loaded, SnapshotInfo
from cdc.store.reader.staged import fetch_errors, filesystem
from cdc.store.reader.store import Store

INFO = "snapshot.json"
PROGRESS = "progress.json"
LOADED = "loaded.json"
_LOCAL = "file://"
_COPY_BYTES = 1 << 20
_Model = TypeVar("_Model", bound=BaseModel)


# ---------------------------------------------------------------- folders


@dataclass
class NewFile:
    """A file that is being written."""

    path: Path
    """The path on this machine to which the caller writes."""
    name: str = ""
    """The name that it gets."""


class Folder:
    """A folder at a local path or a URI of fsspec."""

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")
        local = self.uri.removeprefix(_LOCAL)
        self._path = None if "://" in local else Path(local)

    @property
    def local(self) -> Path | None:
        """The path on this machine; None for a URI."""
        return self._path

    def name(self, file: str) -> str:
        """The path or URI of a file, as Spark reads it."""
        return str(self._path / file) if self._path is not None else f"{self.uri}/{file}"

    def below(self, name: str) -> Folder:
        return Folder(f"{self.uri}/{name}")

    def make(self) -> None:
        """Creates the folder. Raises StorageError, ConfigError."""
        if self._path is not None:
            make_folder(self._path)

    def names(self) -> list[str]:
        """Returns the names in the folder, sorted; none if it does not exist. Raises StorageError."""
        if self._path is not None:
            with storage_errors(self._path):
                try:
                    return sorted(os.listdir(self._path))
                except FileNotFoundError:
                    return []
        fs, path = filesystem(self.uri)
        try:
            with fetch_errors(self.uri):
                fs.invalidate_cache(path)
                return sorted(str(listed).rstrip("/").rpartition("/")[2] for listed in fs.ls(path, detail=False))
        except DamagedError:  # no such folder
            return []

    def read(self, file: str) -> bytes | None:
        """Returns a small file's content; None if there is none. Raises StorageError."""
        if self._path is not None:
            with storage_errors(self._path / file):
                try:
                    return (self._path / file).read_bytes()
                except FileNotFoundError:
                    return None
        fs, path = filesystem(self.name(file))
        try:
            with fetch_errors(self.name(file)):
                return cast(bytes, fs.cat_file(path))
        except DamagedError:
            return None

    def write(self, file: str, data: bytes, *, durable: bool = True) -> None:
        """Writes a small file, whole or not at all. Raises StorageError, ConfigError."""
        if self._path is not None:
            replace_file(self._path / file, data, durable=durable)
            return
        fs, path = filesystem(self.name(file))
        with fetch_errors(self.name(file)):
            fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            fs.pipe_file(path, data)

    @contextmanager
    def new_file(self) -> Iterator[NewFile]:
        """Yields a file to write, whose name is to be set before the block ends. Then it is in the folder, synced;
        after an exception it is gone. Raises StorageError, ConfigError."""
        unique = f".{secrets.token_hex(8)}.new"
        if self._path is not None:
            temporary = self._path / unique
            new = NewFile(temporary)
            with storage_errors(temporary):
                try:
                    file_layer.layer.close(file_layer.layer.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
                    yield new
                    fd = file_layer.layer.open(temporary, os.O_RDONLY)
                    try:
                        file_layer.layer.fsync(fd)
                    finally:
                        file_layer.layer.close(fd)
                    file_layer.layer.replace(temporary, self._path / new.name)
                    sync_folder(self._path)
                except BaseException:
                    with suppress(OSError):  # the first error counts; the file goes with its folder
                        file_layer.layer.unlink(temporary)
                    raise
            return
        with tempfile.TemporaryDirectory(prefix="towpath-snapshot-") as scratch:
            new = NewFile(Path(scratch) / unique)
            file_layer.layer.close(file_layer.layer.open(new.path, os.O_WRONLY | os.O_CREAT))
            yield new
            fs, target = filesystem(self.name(new.name))
            with fetch_errors(self.name(new.name)):
                fs.makedirs(target.rpartition("/")[0], exist_ok=True)
                fs.put_file(str(new.path), target)

    def digest(self, file: str) -> tuple[int, str] | None:
        """Returns a file's size and SHA-256; None if there is no such file. Raises StorageError."""
        digest, size = hashlib.sha256(), 0
        try:
            with self._open(file) as source:
                while data := source.read(_COPY_BYTES):
                    digest.update(data)
                    size += len(data)
        except DamagedError:
            return None
        return size, digest.hexdigest()

    @contextmanager
    def _open(self, file: str) -> Iterator[IO[bytes]]:
        name = self.name(file)
        with fetch_errors(name):
            if self._path is not None:
                with open(name, "rb") as source:
                    yield source
                return
            fs, path = filesystem(name)
            with cast(IO[bytes], fs.open(path, "rb")) as opened:
                yield opened

    def remove(self) -> None:
        """Removes the folder and everything in it; it may be gone already. Raises StorageError."""
        if self._path is not None:
            with storage_errors(self._path), suppress(FileNotFoundError):
                shutil.rmtree(self._path)
            return
        fs, path = filesystem(self.uri)
        try:
            with fetch_errors(self.uri):
                fs.rm(path, recursive=True)
        except DamagedError:
            return


def snapshots_folder(config: DestinationConfig) -> Folder:
    """Returns the folder of all snapshots of a destination: in its store, or at ``store.stage`` if that is set."""
    if config.store.stage is not None:
        return Folder(f"{config.store.stage.rstrip('/')}/{config.name}/snapshots")
    if config.store.kind == "server":
        raise ConfigError(
            "store.stage is not set, and chunks of snapshots need a place that this machine and Spark's executors see",
            place=str(config.file),
            remedy="Set store.stage to a URI like s3://bucket/stage, or to file:///folder if Spark runs here only.",
        )
    return Folder(str(config.store.path / "snapshots"))


def table_folder(config: DestinationConfig, db: str, name: str) -> Folder:
    """Returns the folder of a table's snapshots."""
    return snapshots_folder(config).below(encode_name(db)).below(encode_name(name))


# ---------------------------------------------------------------- one snapshot


class SnapshotFiles:
    """A snapshot of one table."""

    def __init__(self, folder: Folder, info: SnapshotInfo) -> None:
        self.folder = folder
        self.info = info

    @property
    def id(self) -> str:
        return self.folder.uri.rpartition("/")[2]

    @classmethod
    def create(cls, config: DestinationConfig, info: SnapshotInfo) -> SnapshotFiles:
        """Begins a snapshot in a folder of its own. Raises StorageError, ConfigError."""
        above = table_folder(config, info.db, info.name)
        if above.local is not None:
            secure_folder(Path(cast(Path, snapshots_folder(config).local)), config.store.permissions, READ)
        folder = above.below(f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}")
        folder.make()
        folder.write(INFO, info.model_dump_json(indent=1).encode() + b"\n")
        return cls(folder, info)

    @classmethod
    def open(cls, folder: Folder | str) -> SnapshotFiles:
        """Opens a snapshot by its folder. Raises DamagedError, VersionError, StorageError."""
        folder = Folder(folder) if isinstance(folder, str) else folder
        data = folder.read(INFO)
        if data is None:
            raise DamagedError(
                "this snapshot has no snapshot.json",
                place=folder.uri,
                remedy="Remove the folder; the table is read again.",
            )
        return cls(folder, _parse(SnapshotInfo, data, folder.name(INFO)))

    @classmethod
    def find(cls, config: DestinationConfig, db: str, name: str) -> list[SnapshotFiles]:
        """Returns the snapshots of a table, oldest first. What a killed process left without a description is skipped.
        Raises DamagedError, VersionError, StorageError."""
        above = table_folder(config, db, name)
        folders = [above.below(ident) for ident in above.names()]
        return [cls.open(folder) for folder in folders if INFO in folder.names()]

    def records(self, segment: int | None = None) -> list[ChunkRecord]:
        """Returns the records of the chunks that were read (of one segment), in order, as far as each continues the one
        before it. Raises DamagedError."""
        records: list[ChunkRecord] = []
        for name in self.folder.names():
            if name.startswith("chunk-") and name.endswith(".json"):
                if segment is not None and not name.startswith(f"chunk-{segment:03d}-"):
                    continue
                data = self.folder.read(name)
                if data is not None:
                    records.append(_parse(ChunkRecord, data, self.folder.name(name)))
        records.sort(key=lambda record: (record.segment, record.number))
        return [
            record
            for number, segment in enumerate(self.info.segments)
            for record in _chain([record for record in records if record.segment == number], segment.after)
        ]

    def is_complete(self) -> bool:
        """Whether every segment has been read to its end."""
        ended = {record.segment for record in self.records() if record.last}
        return len(ended) == len(self.info.segments)

    def is_sound(self, record: ChunkRecord) -> bool:
        """Whether a chunk's Parquet file is there, and unchanged."""
        return self.folder.digest(record.file) == (record.bytes, record.sha256)

    def paths(self) -> list[str]:
        """Returns the paths or URIs of the Parquet files that have rows; of an empty table, of one without rows."""
        records = self._all()
        chosen = [record for record in records if record.rows] or records[:1]
        return [self.folder.name(record.file) for record in chosen]

    def batches(self, record: ChunkRecord) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a chunk. Raises DamagedError, StorageError."""
        with self.folder._open(record.file) as source:
            yield from pq.ParquetFile(source).iter_batches()

    # --- positions

    def high_seq(self) -> int:
        """Returns H, up to which the store must be complete before the snapshot is loaded. See
        :func:`cdc.source.snapshot.positions.high_seq`."""
        return positions.high_seq(self.info.epoch, [record.high.value() for record in self._all()])

    def low_seq(self, reader: Store, *, is_complete: bool = False) -> int:
        """Returns L; see :func:`cdc.source.snapshot.positions.low_seq`."""
        lows = [record.low.mark() for record in self._all()]
        return positions.low_seq(reader, self.info.epoch, lows, is_complete=is_complete)

    def is_exact(self, reader: Store, *, is_complete: bool = False) -> bool:
        """Whether the snapshot shows the table at exactly :meth:`high_seq`, which a table without a key needs. Call it
        when the store is complete up to there. ``is_complete``: see :meth:`low_seq`."""
        if all(record.is_exact for record in self._all()) and len({record.high for record in self._all()}) == 1:
            return True
        low, high = self.low_seq(reader, is_complete=is_complete), self.high_seq()
        return not positions.may_have_changed(reader, self.info.table, low, high)

    def _all(self) -> list[ChunkRecord]:
        records = self.records()
        if not self.is_complete():
            raise UsageError(f"the snapshot {self.folder.uri} is not complete")
        return records

    # --- loaded

    def loaded(self) -> Loaded | None:
        """Returns the positions with which the snapshot was loaded; None if it was not loaded yet."""
        data = self.folder.read(LOADED)
        return None if data is None else _parse(Loaded, data, self.folder.name(LOADED))

    def mark_loaded(self, low_seq: int, high_seq: int) -> None:
        """Records that the snapshot was loaded. It is kept so that the table can be built again from it, and is not
        continued any more."""
        content = Loaded(low_seq=low_seq, high_seq=high_seq)
        self.folder.write(LOADED, content.model_dump_json(indent=1).encode() + b"\n")

    # --- changes

    def remove(self) -> None:
        """Removes the snapshot. Raises StorageError."""
        self.folder.remove()

    def write_progress(self, content: dict[str, Any]) -> None:
        """Replaces ``progress.json``."""
        self.folder.write(PROGRESS, json.dumps(content, indent=1).encode() + b"\n", durable=False)

    def read_progress(self) -> dict[str, Any] | None:
        """Returns the content of ``progress.json``; None if there is none, or it is being written."""
        data = self.folder.read(PROGRESS)
        try:
            return None if data is None else cast(dict[str, Any], json.loads(data))
        except ValueError:
            return None


def _chain(records: list[ChunkRecord], after: Key | None) -> list[ChunkRecord]:
    chain: list[ChunkRecord] = []
    for record in records:
        if record.number != len(chain) + 1 or record.after != after:
            break
        chain.append(record)
        after = record.upto
    return chain


def digest_of(path: Path) -> tuple[int, str]:
    """Returns the size and SHA-256 of a local file."""
    with path.open("rb") as source:
        digest = hashlib.file_digest(source, "sha256")
        return source.tell(), digest.hexdigest()


def unfinished(config: DestinationConfig) -> list[SnapshotFiles]:
    """Returns the snapshots of all tables that are not loaded yet, by table."""
    return [snapshot for snapshot in all_snapshots(config) if snapshot.loaded() is None]


def all_snapshots(config: DestinationConfig) -> list[SnapshotFiles]:
    """Returns the snapshots of all tables, by table."""
    above = snapshots_folder(config)
    tables = [db.below(name) for db_name in above.names() for db in (above.below(db_name),) for name in db.names()]
    snapshots = [
        SnapshotFiles.open(folder)
        for table in tables
        for folder in (table.below(ident) for ident in table.names())
        if INFO in folder.names()
    ]
    return sorted(snapshots, key=lambda snapshot: snapshot.info.table)


def remove_useless(config: DestinationConfig, removed_seq: int) -> list[str]:
    """Removes loaded snapshots from which no table can be built again, because retention has removed changes behind
    them: those up to ``removed_seq``. Returns their tables."""
    removed = []
    for files in all_snapshots(config):
        loaded = files.loaded()
        if loaded is not None and loaded.low_seq < removed_seq:
            files.remove()
            removed.append(files.info.table)
    return removed


def newest(snapshots: Sequence[SnapshotFiles]) -> SnapshotFiles | None:
    """Returns the newest of some snapshots of a table."""
    return max(snapshots, key=lambda snapshot: snapshot.id, default=None)


def _parse(model: type[_Model], data: bytes, place: str) -> _Model:
    try:
        require_version(json.loads(data)["version"], FORMAT_VERSION, place)
        return model.model_validate_json(data)
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        raise DamagedError(
            f"is not a file of a snapshot: {type(error).__name__}",
            place=place,
            remedy="Remove the snapshot's folder; the table is read again.",
        ) from None
