"""The folder of a store: what lies where, and under which names.

::

    store.json                      format and version, the destination it belongs to, where and why the store begins
    lock                            held by the one writer
    segments/EEE-FFFFFFF-OOOOOOOOOOO.binlog         epoch, file number and offset at which the segment begins
    segments/EEE-FFFFFFF-OOOOOOOOOOO.binlog.index   an entry for each transaction
    schemas/SEQ.json                information_schema as it was at a DDL statement
    tables.json                     the captured tables; their order gives the bits of the index's table mask
    checkpoint, abort               how far all of it is on the disk; whether its writer ended in order
    damaged.json                    what was given up of damaged segments
    capture.json                    what the capture process last said of itself
    removed.json                    up to where retention has removed transactions
    counts.json                     what finished segments hold; worth nothing when lost
    clock.log                       what the source's clock showed at which place of its binlog
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from cdc import files
from cdc.binlog.constants import HEADER_SIZE, MAGIC
from cdc.binlog.events import parse_header
from cdc.durable import make_folder, replace_file
from cdc.errors import DamagedError, StorageError, VersionError
from cdc.permissions import READ, Permissions, secure_folder
from cdc.positions import make_seq

FORMAT = "towpath-store"
VERSION = 1
"""Of the small files beside it."""
STORE_VERSION = 2
"""Of ``store.json``, and so of the folder as a whole. 2: it says where the store begins."""
INDEX_SUFFIX = ".index"

_REMAKE = (
    "If the folder is a store of this destination, remove this file and start `cdc capture`, which writes it anew; "
    "else name another folder as store.path."
)
_NAME = re.compile(r"(\d{3})-(\d{7})-(\d{11})\.binlog")


def segments_folder(store: Path) -> Path:
    return store / "segments"


def schemas_folder(store: Path) -> Path:
    return store / "schemas"


def segment_name(epoch: int, file_number: int, offset: int) -> str:
    return f"{epoch:03d}-{file_number:07d}-{offset:011d}.binlog"


def segment_start(path: Path) -> int | None:
    """The seq at which a segment begins: every transaction in it has a larger one. None for another file."""
    match = _NAME.fullmatch(path.name)
    return make_seq(int(match[1]), int(match[2]), int(match[3])) if match else None


def segment_epoch(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else 0


def source_file_created_s(segment: Path) -> int:
    """When the source created the binlog file that a segment's events come from, by the format description at the
    segment's head; seconds since 1970. Raises StorageError."""
    try:
        with open(segment, "rb") as file:
            head = file.read(len(MAGIC) + HEADER_SIZE)
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", place=str(segment)) from None
    return parse_header(head[len(MAGIC) :]).timestamp


def index_path(segment: Path) -> Path:
    return segment.with_name(segment.name + INDEX_SUFFIX)


def list_segments(store: Path) -> list[Path]:
    """All segments, oldest first."""
    try:
        names = os.listdir(segments_folder(store))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(
            f"cannot be read: {error.strerror}",
            place=str(segments_folder(store)),
            remedy="Check store.path and its rights.",
        ) from None
    return [segments_folder(store) / name for name in sorted(n for n in names if _NAME.fullmatch(n))]


def read_json(path: Path) -> Any:
    """The document in a file, None where there is no such file. Raises DamagedError."""
    try:
        return json.loads(files.layer.read_file(path))
    except FileNotFoundError:
        return None
    except (ValueError, UnicodeDecodeError) as error:
        remedy = _REMAKE if path.name == "store.json" else None
        raise DamagedError(f"is not valid JSON: {error}", place=str(path), remedy=remedy) from None
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", place=str(path)) from None


def require_version(document: Any, path: Path) -> None:
    """Refuse a small file of a newer format version. Raises VersionError."""
    found = document.get("version") if isinstance(document, dict) else None
    known = STORE_VERSION if path.name == "store.json" else VERSION
    if isinstance(found, int) and found > known:
        raise VersionError(
            f"has format version {found}; this Towpath knows {known}",
            place=str(path),
            remedy="Use the Towpath that wrote it, or a newer one.",
        )


def create(store: Path, destination: str, permissions: Permissions = "private") -> None:
    """Make the folders, or check that they are this destination's. Raises StorageError, VersionError, DamagedError."""
    secure_folder(store, permissions, READ)
    make_folder(segments_folder(store))
    make_folder(schemas_folder(store))
    found = read_json(store / "store.json")
    if found is None:
        replace_file(
            store / "store.json",
            render({"format": FORMAT, "version": STORE_VERSION, "destination": destination, "begins": None}),
        )
        return
    check(store, found)
    if found.get("destination") != destination:
        raise DamagedError(
            f"the store belongs to the destination {found.get('destination')!r}, not to {destination!r}",
            place=str(store),
            remedy="Give each destination a store.path of its own.",
        )


def render(document: dict[str, Any]) -> bytes:
    """The content of ``store.json``."""
    return json.dumps(document, indent=2).encode() + b"\n"


def exists(store: Path) -> bool:
    """Whether a store is there; a mount point without its disk has none. Raises StorageError."""
    try:
        return (store / "store.json").is_file()
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", place=str(store)) from None


def check(store: Path, document: Any = None) -> None:
    """Refuse a store of another format or a newer version."""
    found = read_json(store / "store.json") if document is None else document
    if found is None:
        return
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise DamagedError("is not the description of a store", place=str(store / "store.json"), remedy=_REMAKE)
    if not isinstance(found.get("version"), int) or found["version"] > STORE_VERSION:
        raise VersionError(
            f"the store has format version {found.get('version')}, and this Towpath knows versions up to "
            f"{STORE_VERSION}",
            place=str(store / "store.json"),
            remedy="Use the Towpath that wrote it, or a newer one.",
        )
