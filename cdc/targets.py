"""Where a table's Delta files lie, and the id under which its applied position is committed."""

from __future__ import annotations

import string
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit
from urllib.request import url2pathname

from cdc.errors import UsageError

DESTINATION_PROPERTY = "towpath.destination"
"""Delta table property: the destination that owns the table."""
SINCE_PROPERTY = "towpath.since_seq"
"""Delta table property: where the table was made; it was complete, being empty, up to this seq."""
GENERATION_PROPERTY = "towpath.generation"
"""Delta table property: rises with every rebuild of the table, since Delta's transaction versions never shrink."""

_PLAIN = frozenset((string.ascii_letters + string.digits + "_$-").encode())


def encode_name(name: str) -> str:
    """A database's or table's name as a folder: percent-encoded (UTF-8) outside ``[A-Za-z0-9_$-]``."""
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in name.encode("utf-8"))


def table_path(target: str, db: str, table: str) -> str:
    """``{target}/{db}/{table}``; ``target`` is a folder or a URI, with or without a slash at its end."""
    if not target or not db or not table:
        raise UsageError(f"a table's path needs target, database and table, not {target!r}, {db!r}, {table!r}")
    return f"{target.rstrip('/')}/{encode_name(db)}/{encode_name(table)}"


def application_id(dest: str, table: str, generation: int = 0) -> str:
    """The application id of Delta's ``txn`` action for ``db.table``, whose version is the applied seq."""
    return f"towpath:{dest}:{table}:{generation}"


def split_table(name: str) -> tuple[str, str]:
    """``db.table`` → ``(db, table)``, cut at the first dot."""
    db, _, table = name.partition(".")
    if not (db and table):
        raise UsageError(f"{name!r} is not the name of a table", remedy="Write it as db.table.")
    return db, table


@dataclass(frozen=True)
class TablePosition:
    """How far a Delta table is. All None, with a ``note`` saying why, where that cannot be told."""

    applied_seq: int | None = None
    delta_version: int | None = None
    generation: int | None = None
    note: str | None = None


def read_position(path: str, dest: str, table: str) -> TablePosition:
    """Read applied seq and version of a Delta table through the ``deltalake`` package, without Spark. Never raises
    for a table that is absent, unreachable or not a Delta table: the note says so."""
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError
    except ModuleNotFoundError:
        return TablePosition(note="unknown: the package deltalake is not installed")
    try:
        with _readable(path) as place:
            delta = DeltaTable(place)
            generation = int(delta.metadata().configuration.get(GENERATION_PROPERTY, 0))
            applied = delta.transaction_version(application_id(dest, table, generation))
            return TablePosition(applied, delta.version(), generation)
    except TableNotFoundError:
        return TablePosition(note="not there yet")
    except (DeltaError, OSError, ValueError) as error:
        return TablePosition(note=f"cannot be read: {' '.join(str(error).split())}")


@contextmanager
def _readable(path: str) -> Iterator[str]:
    """``deltalake`` takes a percent sign in a local path for an escape, and looks into another folder: it is
    shown the log of such a table in a folder with a plain name."""
    if path.startswith("file:"):
        path = url2pathname(urlsplit(path).path)
    if "%" not in path or "://" in path:
        yield path
        return
    with TemporaryDirectory(prefix="cdc-") as folder:
        (Path(folder) / "_delta_log").symlink_to(Path(path).absolute() / "_delta_log")
        yield folder
