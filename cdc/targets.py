"""Where a table's Delta files lie, and the id under which its applied position is committed."""

from __future__ import annotations

import string
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from cdc.errors import CdcError, ConfigError, UsageError

DESTINATION_PROPERTY = "towpath.destination"
"""Delta table property: the destination that owns the table."""
SINCE_PROPERTY = "towpath.since_seq"
"""Delta table property: where the table was made; it was complete, being empty, up to this seq."""
GENERATION_PROPERTY = "towpath.generation"
"""Delta table property: rises with every rebuild of the table, since Delta's transaction versions never shrink."""

_PLAIN = frozenset((string.ascii_letters + string.digits + "_$-").encode())
_LOG_FOLDER = "_delta_log"
"""A folder of this name makes the one above it a Delta table."""
LEDGER_DEPTH = 50
"""Commits that are looked through for one of ours: maintenance by others may lie on top."""
_DIGITS = 20
"""Of a version in the names of the log's files."""
NEEDS_MAPPING = frozenset(" ,;{}()\n\t=")
"""Characters in a column's name for which Delta needs column mapping, since Parquet refuses them."""


def encode_name(name: str) -> str:
    """A database's or table's name as a folder: percent-encoded (UTF-8) outside ``[A-Za-z0-9_$-]``; ``_delta_log`` is
    ``%5Fdelta_log``."""
    if name.lower() == _LOG_FOLDER:
        return "%5F" + name[1:]
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in name.encode("utf-8"))


def table_path(target: str, db: str, table: str) -> str:
    """``{target}/{db}/{table}``; ``target`` is a folder or a URI, with or without a slash at its end."""
    if not target or not db or not table:
        raise UsageError(f"a table's path needs target, database and table, not {target!r}, {db!r}, {table!r}")
    return f"{target.rstrip('/')}/{encode_name(db)}/{encode_name(table)}"


def application_id(dest: str, table: str, generation: int = 0) -> str:
    """The application id of Delta's ``txn`` action for ``db.table``, whose version is the applied seq.

    Spark replaces ``${name}`` in the setting that carries it, so a ``${`` of the names is written ``$%7B``.
    """
    return f"towpath:{dest}:{table}:{generation}".replace("${", "$%7B")


def split_table(name: str) -> tuple[str, str]:
    """``db.table`` → ``(db, table)``, cut at the first dot."""
    db, _, table = name.partition(".")
    if not (db and table):
        raise UsageError(f"{name!r} is not the name of a table", remedy="Write it as db.table.")
    return db, table


def local_path(path: str) -> Path | None:
    """The folder, where a path or a URI of Spark's names one on this machine. As for Hadoop, no percent sign in it is
    an escape."""
    if path.startswith("file:"):
        return Path("/" + path.removeprefix("file:").lstrip("/"))
    return None if "://" in path else Path(path)


@contextmanager
def reader_uri(path: str, *, rows: bool = False) -> Iterator[str]:
    """Where the ``deltalake`` library finds the table that Spark finds at ``path``, for the duration of the block.

    For Spark a percent sign is a character like any other, in a folder's name as in an object's key. ``deltalake``
    takes it for an escape once too often, whatever form the path is given in. So it is shown such a table in a
    temporary folder: with a link to the log in it and, with ``rows``, to the data; of a table in an object store with a
    copy of the log's newest files. Raises ConfigError where nothing here can read that store, OSError.
    """
    local = local_path(path)
    if "%" not in (path if local is None else str(local.absolute())):
        yield path if local is None else str(local)
        return
    with TemporaryDirectory(prefix="cdc-") as folder:
        if local is None:
            _copy_log(path, Path(folder))
            yield folder
            return
        names = [entry.name for entry in local.iterdir()] if rows and local.is_dir() else [_LOG_FOLDER]
        for name in names:
            (Path(folder) / name).symlink_to((local / name).absolute())
        yield folder


def _copy_log(path: str, folder: Path) -> None:
    """The newest files of a table's log in an object store: the last checkpoint, and the commits from
    :data:`LEDGER_DEPTH` before it on. Copies nothing where there is no table."""
    try:
        from fsspec.core import url_to_fs

        files, place = url_to_fs(path)
    except (ImportError, ValueError) as error:
        raise ConfigError(
            f"a table with a percent sign in its path cannot be read: {error}",
            place=path,
            remedy="Install towpath[stage] and what speaks the URI's protocol: s3fs for s3://, gcsfs for gs://.",
        ) from None
    log = f"{place.rstrip('/')}/{_LOG_FOLDER}"
    # Listings of earlier looks are kept by the library, and this table may have grown since.
    files.invalidate_cache()
    try:
        names = [str(found).rpartition("/")[2] for found in files.ls(log, detail=False)]
    except FileNotFoundError:
        return
    checkpoints = [int(name[:_DIGITS]) for name in names if ".checkpoint" in name and name[:_DIGITS].isdecimal()]
    first = max(checkpoints, default=0) - LEDGER_DEPTH
    (folder / _LOG_FOLDER).mkdir()
    for name in names:
        if name == "_last_checkpoint" or (name[:_DIGITS].isdecimal() and int(name[:_DIGITS]) >= first):
            (folder / _LOG_FOLDER / name).write_bytes(files.cat_file(f"{log}/{name}"))


@dataclass(frozen=True)
class TablePosition:
    """How far a Delta table is. All None, with a ``note`` saying why, where that cannot be told."""

    applied_seq: int | None = None
    delta_version: int | None = None
    generation: int | None = None
    note: str | None = None
    reader: str | None = None
    """Which readers it needs: :data:`PLAIN_READER`, or see :func:`reader_of`."""


def read_position(path: str, dest: str, table: str) -> TablePosition:
    """Read applied seq and version of a Delta table through the ``deltalake`` package, without Spark. Never raises
    for a table that is absent, unreachable or not a Delta table: the note says so."""
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError
    except ModuleNotFoundError:
        return TablePosition(note="unknown: the package deltalake is not installed")
    try:
        with reader_uri(path) as place:
            delta = DeltaTable(place)
            properties, protocol = delta.metadata().configuration, delta.protocol()
            generation = int(properties.get(GENERATION_PROPERTY, 0))
            applied = delta.transaction_version(application_id(dest, table, generation))
            reader = reader_of(path, properties, protocol.reader_features or ())
            return TablePosition(applied, delta.version(), generation, reader=reader)
    except TableNotFoundError:
        return TablePosition(note="not there yet")
    except (DeltaError, CdcError, OSError, ValueError) as error:
        return TablePosition(note=f"cannot be read: {' '.join(str(error).split())}")


PLAIN_READER = "any reader of Delta"
MAPPING_READER = "Spark, or a reader with column mapping such as deltalake's QueryBuilder (to_pandas shows only nulls)"
_SPARK_FEATURES = {
    "typeWidening": "type widening",
    "typeWidening-preview": "type widening",
    "variantType": "variants",
    "variantType-preview": "variants",
}


def reader_of(path: str, properties: Mapping[str, str], features: Collection[str] = ()) -> str:
    """Which readers a Delta table needs, in words; ``features`` are those that its protocol asks of readers."""
    for feature, name in _SPARK_FEATURES.items():
        if feature in features:
            return f"Spark, or another reader with {name}"
    local = local_path(path)
    if "%" in (path if local is None else str(local.absolute())):
        return "Spark (deltalake takes the percent sign in the path for an escape)"
    if properties.get("delta.columnMapping.mode", "none") != "none":
        return MAPPING_READER
    if "deletionVectors" in features:
        return "Spark, or a reader with deletion vectors such as deltalake's QueryBuilder"
    return PLAIN_READER


def expected_reader(path: str, columns: Collection[str]) -> str:
    """The same for a table that is yet to be made, of columns of these names."""
    mapped = any(NEEDS_MAPPING & set(name) for name in columns)
    return reader_of(path, {"delta.columnMapping.mode": "name"} if mapped else {})
