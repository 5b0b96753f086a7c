"""The bytes of a store's files, for clients: only segments and table definitions, and only below the store's folder."""

from __future__ import annotations

import os
import re
from pathlib import Path

from cdc.base.errors import DamagedError, UsageError
from cdc.disk.durable import storage_errors
from cdc.disk.encryption.read import OpenContent
from cdc.store.formats import layout
from cdc.wire.protocol import MOST_BYTES

_SCHEMA = re.compile(r"\d+\.json")


def served_path(store: Path, path: str) -> Path:
    """Returns the file of a client's path: ``segments/NAME.binlog`` or ``schemas/SEQ.json``. Raises UsageError for any
    other path."""
    folder, _, name = path.partition("/")
    if folder == layout.segments_folder(store).name and layout.segment_start(Path(name)) is not None:
        if "/" not in name and "\0" not in name:
            return layout.segments_folder(store) / name
    elif folder == layout.schemas_folder(store).name and _SCHEMA.fullmatch(name):
        return layout.schemas_folder(store) / name
    raise UsageError(
        f"{path!r} is no file that is served", remedy="Ask for segments/NAME.binlog or schemas/SEQ.json of the store."
    )


def missing(path: Path) -> DamagedError:
    """Returns the error for a file that is not there."""
    return DamagedError("this file is missing in the store of the server", place=str(path))


def relative_path(store: Path, path: str) -> str:
    """Returns the path by which clients know a file of the store. A URI, which is not the server's, stays as it is.
    A manifest that was acked before the store was moved names the file in its former folder."""
    if "://" in path:
        return path
    file = Path(path)
    return file.relative_to(store).as_posix() if file.is_relative_to(store) else f"{file.parent.name}/{file.name}"


def read_bytes(path: Path, start: int | None, stop: int | None) -> bytes:
    """Returns a small file, or some of its bytes; those of an encrypted segment are decrypted. Raises UsageError if the
    range is none, DamagedError if the file is missing or shorter, StorageError, ConfigError."""
    with storage_errors(path):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise missing(path) from None
        try:
            content = OpenContent(fd, path)
            size = content.size
            first, last = (0, size) if start is None or stop is None else (start, stop)
            if not 0 <= first <= last or last - first > MOST_BYTES:
                raise UsageError(f"the range {first} to {last} is none of at most {MOST_BYTES} bytes", place=str(path))
            if last > size:
                raise DamagedError(f"has {size} bytes, and the range ends at {last}", place=str(path))
            parts, at = [], first
            while at < last:
                data = content.pread(last - at, at)
                if not data:
                    raise DamagedError(f"became shorter than {last} bytes while it was read", place=str(path))
                parts.append(data)
                at += len(data)
            return b"".join(parts)
        finally:
            os.close(fd)
