"""The files of one version of a Delta table, with what the log says of them, and their digests.

Only the log and the files are read, by the ``deltalake`` library and by fsspec.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from cdc.base.errors import DamagedError, TargetError
from cdc.base.targets import LOG_FOLDER, local_path
from cdc.disk.object_stores import filesystem, reading
from cdc.lake.delta.log import open_delta, reader_uri

if TYPE_CHECKING:
    from deltalake import DeltaTable

_CHUNK_BYTES = 1 << 20
_PARALLEL = 4
_VECTORS = "deletion_vector_"
"""The names of files with deletion vectors begin with it."""


@dataclass(frozen=True)
class DataFile:
    """A Parquet file of a table, as the log of one version describes it."""

    path: str
    """Relative to the table's folder, or a URI."""
    size_bytes: int
    rows: int | None
    """The rows in the file, those that are marked as deleted included; None without statistics."""
    partition: Mapping[str, str | None]
    """The values of the partition columns, which the file itself does not hold."""
    keys: Mapping[str, tuple[str, str]]
    """The least and the greatest value of columns of the key, where the log has them."""
    deleted_rows: int = 0
    deleted_sha256: str | None = None
    """The SHA-256 of the numbers of the rows that a deletion vector marks, as little-endian integers of 64 bits."""


@dataclass(frozen=True)
class TableVersion:
    """One version of a Delta table."""

    path: str
    delta_id: str
    version: int
    newest_version: int
    schema_sha256: str
    """The SHA-256 of Delta's schema as JSON, with sorted keys and without white space."""
    files: Mapping[str, DataFile]


def read_version(path: str, table: str, version: int, keys: Iterable[str] = ()) -> TableVersion:
    """Returns a version of the table ``db.table`` at a path. ``keys``: the columns of its key.

    Raises TargetError if the table or the version is not there any more, DamagedError for a deletion vector that cannot
    be read, RetryableError if the log cannot be read.
    """
    from deltalake.exceptions import DeltaError

    place = f"table {table} at {path}"
    with open_delta(path, table) as delta:
        if delta is None:
            raise TargetError("there is no Delta table", place=place)
        newest_version = delta.version()
        try:
            delta.load_as_version(version)
        except (DeltaError, OSError) as error:
            raise TargetError(
                f"version {version} cannot be read any more; the newest is {newest_version}: "
                f"{' '.join(str(error).split())[:200]}",
                place=place,
                remedy="Delta removes the log of old versions after delta.logRetentionDuration.",
            ) from error
        schema = json.loads(delta.schema().to_json())
        rows = pa.table(delta.get_add_actions(flatten=True)).to_pylist()
        metadata, protocol = delta.metadata(), delta.protocol()
    names = _physical_names(schema, keys)
    has_vectors = "deletionVectors" in (protocol.reader_features or ())
    deleted = _deleted_rows(path, table, version) if has_vectors else {}
    files = {}
    for row in rows:
        name = unquote(row["path"])  # the log has it percent-encoded
        files[name] = _data_file(name, row, names, deleted.get(name))
    digest = sha256(json.dumps(schema, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    return TableVersion(path, str(metadata.id), version, newest_version, digest, files)


def _physical_names(schema: Mapping[str, Any], keys: Iterable[str]) -> dict[str, str]:
    """Returns the columns of the key by the names that statistics have, which column mapping may have changed."""
    fields = {field["name"].lower(): field for field in schema["fields"]}
    names = {}
    for key in keys:
        field = fields.get(key.lower())
        if field is not None:
            names[str(field["metadata"].get("delta.columnMapping.physicalName", field["name"]))] = str(field["name"])
    return names


def _data_file(path: str, row: Mapping[str, Any], names: Mapping[str, str], deleted: bytes | None) -> DataFile:
    partition = {name.partition(".")[2]: _text(value) for name, value in row.items() if name.startswith("partition.")}
    keys = {}
    for physical, name in names.items():
        least, greatest = _text(row.get(f"min.{physical}")), _text(row.get(f"max.{physical}"))
        if least is not None and greatest is not None:
            keys[name] = (least, greatest)
    return DataFile(
        path,
        int(row["size_bytes"]),
        row["num_records"],
        partition,
        keys,
        0 if deleted is None else len(deleted) // 8,
        None if deleted is None else sha256(deleted).hexdigest(),
    )


def _text(value: Any) -> str | None:
    return None if value is None else value.hex() if isinstance(value, bytes) else str(value)


# --- deletion vectors ------------------------------------------------------------------------------------------------


def _deleted_rows(path: str, table: str, version: int) -> dict[str, bytes]:
    """Returns the numbers of the deleted rows of each file that has some, as little-endian integers of 64 bits."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    with _with_vectors(path) as folder:
        try:
            delta = DeltaTable(folder, version=version)
            return {name: rows.astype("<i8").tobytes() for name, rows in _marked(delta, folder) if len(rows)}
        except (DeltaError, OSError, ValueError) as error:
            raise DamagedError(
                f"the deletion vectors of version {version} cannot be read: {' '.join(str(error).split())[:200]}",
                place=f"table {table} at {path}",
            ) from error


def _marked(delta: DeltaTable, folder: str) -> Iterator[tuple[str, np.ndarray[Any, np.dtype[np.int64]]]]:
    for batch in pa.RecordBatchReader.from_stream(delta.deletion_vectors()):
        names, kept = batch.column("filepath").to_pylist(), batch.column("selection_vector")
        for name, rows in zip(names, kept, strict=True):
            is_kept = np.asarray(rows.values)
            yield unquote(name).removeprefix("file://").removeprefix(f"{folder}/"), np.flatnonzero(~is_kept)


@contextmanager
def _with_vectors(path: str) -> Iterator[str]:
    """Yields a folder with the log of a table and its deletion vectors, valid inside the block."""
    if local_path(path) is not None:
        with reader_uri(path, rows=True) as folder:
            yield str(folder)
        return
    with reader_uri(path, whole=True) as mirror, TemporaryDirectory(prefix="cdc-") as folder:
        (Path(folder) / LOG_FOLDER).symlink_to(Path(str(mirror)) / LOG_FOLDER)
        files, place = filesystem(path)
        with reading(path):
            for name in files.find(place):
                relative = str(name).removeprefix(place.rstrip("/") + "/")
                if relative.rpartition("/")[2].startswith(_VECTORS):
                    copy = Path(folder) / relative
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    copy.write_bytes(files.cat_file(name))
        yield folder


# --- digests ---------------------------------------------------------------------------------------------------------


def digests(path: str, names: Iterable[str]) -> Iterator[tuple[str, str | None]]:
    """Yields the SHA-256 of these files of a table, None for one that is not there. Several are read at a time. Raises
    RetryableError if an object store cannot be read, OSError."""
    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="digest") as pool:
        yield from pool.map(lambda name: (name, _digest(path, name)), names)


def _digest(path: str, name: str) -> str | None:
    uri = name if "://" in name else f"{path}/{name}"
    local = local_path(uri)
    digest = sha256()
    try:
        if local is not None:
            with local.open("rb") as file:
                _feed(digest, file)
        else:
            files, place = filesystem(uri)
            with reading(uri), files.open(place, "rb") as file:
                _feed(digest, file)
    except FileNotFoundError:
        return None
    return digest.hexdigest()


def _feed(digest: Any, file: Any) -> None:
    while chunk := file.read(_CHUNK_BYTES):
        digest.update(chunk)
