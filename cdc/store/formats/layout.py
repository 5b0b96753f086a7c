"""The folder of a store: its files and their names.

::

    store.json                      format and version, the destination it belongs to, where and why the store begins
    lock                            held by the one writer
    segments/EEE-FFFFFFF-OOOOOOOOOOO.binlog         epoch, file number and offset at which the segment begins
    segments/EEE-FFFFFFF-OOOOOOOOOOO.binlog.index   an entry for each transaction
    schemas/SEQ.json                information_schema as it was at a DDL statement
    tables.json                     the captured tables; their order gives the bits of the index's table mask
    checkpoint, abort               how far the store is durable; whether its writer ended in order
    damaged.json                    transactions lost to damage, after an operator accepted the loss
    capture.json                    the state that the capture process last wrote
    removed.json                    the seq up to which retention has removed transactions
    counts.json                     stats of finished segments; made anew when it is lost
    clock.log                       the time index: the source's clock at positions of its binlog
    prepared/                       XA transactions that are neither committed nor rolled back
    archive.json                    what the store knows of its archive; archive.lock guards it
    restoring.json                  there while the store is made anew from its archive
    moving.json, moved.json         there while the store is a copy that is being made, and after it was moved away
    removing.json                   there while the destination is removed
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from cdc.base import documents
from cdc.base.errors import DamagedError, IdentityError, StorageError
from cdc.base.patterns import lower_name
from cdc.binlog.positions import make_seq
from cdc.disk import files
from cdc.disk.durable import make_folder, replace_file
from cdc.disk.permissions import READ, Permissions, secure_folder

FORMAT = "towpath-store"
VERSION = 1
"""Version of the small files beside ``store.json``."""
STORE_VERSION = 2
"""Version of ``store.json``, and so of the folder as a whole. Version 2 records where the store begins."""
INDEX_SUFFIX = ".index"
STORE_FILE = "store.json"
RESTORING_FILE = "restoring.json"
"""There while the store is made anew from its archive; a restore that was killed leaves it behind."""
MOVING_FILE = "moving.json"
"""There while the store is a copy that ``cdc move`` makes, and not the destination's store yet."""
MOVED_FILE = "moved.json"
"""There after ``cdc move`` has made another folder the destination's store."""
REMOVING_FILE = "removing.json"
"""There while ``cdc remove`` removes the destination; a removal that was killed leaves it behind."""

_REMAKE = (
    "If the folder is a store of this destination, remove this file and start `cdc capture`, which writes it anew; "
    "else name another folder as store.path."
)
_NAME = re.compile(r"(\d{3})-(\d{7})-(\d{11})\.binlog")


def segments_folder(store: Path) -> Path:
    return store / "segments"


def schemas_folder(store: Path) -> Path:
    return store / "schemas"


def schema_files(folder: Path) -> list[tuple[int, Path]]:
    """Returns the files of table definitions in a folder, each with the seq after which it is in force, ascending;
    none if there is no such folder. Raises OSError."""
    if not folder.is_dir():
        return []
    return sorted((int(path.stem), path) for path in folder.glob("*.json") if path.stem.isdigit())


def segment_name(epoch: int, file_number: int, offset: int) -> str:
    return f"{epoch:03d}-{file_number:07d}-{offset:011d}.binlog"


def segment_start(path: Path) -> int | None:
    """Returns the seq at which a segment begins: every transaction in it has a larger one. None for another file."""
    match = _NAME.fullmatch(path.name)
    return make_seq(int(match[1]), int(match[2]), int(match[3])) if match else None


def segment_epoch(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else 0


def index_path(segment: Path) -> Path:
    return segment.with_name(segment.name + INDEX_SUFFIX)


def list_segments(store: Path) -> list[Path]:
    """Returns all segments, oldest first. Raises StorageError."""
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


def read_document(path: Path, remedy: str | None = None) -> Any:
    """Returns the document in a file; None if there is no such file. ``remedy`` is that of the error for a damaged
    file. Raises DamagedError, VersionError, StorageError."""
    document = read_json(path, remedy)
    require_version(document, path)
    return document


def read_json(path: Path, remedy: str | None = None) -> Any:
    """Returns the document in a file, whatever its version; None if there is no such file. ``remedy`` as above. Raises
    DamagedError, StorageError."""
    try:
        return json.loads(files.layer.read_file(path))
    except FileNotFoundError:
        return None
    except (ValueError, UnicodeDecodeError) as error:
        remedy = _REMAKE if path.name == "store.json" else remedy
        raise DamagedError(f"is not valid JSON: {error}", place=str(path), remedy=remedy) from None
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", place=str(path)) from None


def require_version(document: Any, path: Path) -> None:
    """Raises VersionError if a file has a newer format version than this Towpath knows."""
    version = document.get("version") if isinstance(document, dict) else None
    documents.require_version(version, STORE_VERSION if path.name == "store.json" else VERSION, str(path))


def create(
    store: Path, destination: str, permissions: Permissions = "private", lower_case_table_names: int = 0
) -> None:
    """Creates the folders, or checks that an existing store belongs to this destination, and that its names of tables
    compare as ``lower_case_table_names`` says. Raises StorageError, VersionError, DamagedError, IdentityError."""
    secure_folder(store, permissions, READ)
    require_usable(store)
    make_folder(segments_folder(store))
    make_folder(schemas_folder(store))
    document = read_json(store / "store.json")
    if document is None:
        replace_file(
            store / "store.json",
            render(
                {
                    "format": FORMAT,
                    "version": STORE_VERSION,
                    "destination": destination,
                    "lower_case_table_names": lower_case_table_names,
                    "begins": None,
                }
            ),
        )
        return
    check(store, document)
    if document.get("destination") != destination:
        raise DamagedError(
            f"the store belongs to the destination {document.get('destination')!r}, not to {destination!r}",
            place=str(store),
            remedy="Give each destination a store.path of its own.",
        )
    _require_names(store, document, lower_case_table_names)


def _require_names(store: Path, document: dict[str, Any], setting: int) -> None:
    """Records how names compare, if the store does not say it or has no table yet. Raises IdentityError if they compare
    otherwise."""
    recorded = document.get("lower_case_table_names")
    if recorded == setting or (recorded is None and not setting):
        return
    tables = (read_document(store / "tables.json") or {}).get("tables", [])
    # A store of an earlier Towpath does not say it, and has the names as the server has written them.
    is_other = any(lower_name(name) != name for name in tables) if recorded is None else bool(tables)
    if is_other and bool(recorded) != bool(setting):
        raise IdentityError(
            f"the store was captured with lower_case_table_names {recorded or 0}, and tables.lower_case_table_names is "
            f"{setting}: the names of its tables would mean others",
            place=str(store),
            remedy="Give the server and the configuration the former value. If the server keeps the new one, begin a "
            "new destination.",
        )
    replace_file(store / STORE_FILE, render({**document, "lower_case_table_names": setting}))


def ignores_case(store: Path) -> bool:
    """Whether the names of tables are the same in capital and small letters, as ``store.json`` records it."""
    document = read_json(store / "store.json")
    return isinstance(document, dict) and bool(document.get("lower_case_table_names"))


def render(document: dict[str, Any]) -> bytes:
    """Returns the content of ``store.json``."""
    return json.dumps(document, indent=2).encode() + b"\n"


def exists(store: Path) -> bool:
    """Returns whether the folder holds a store; a mount point without its disk holds none. Raises StorageError."""
    try:
        return (store / "store.json").is_file()
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", place=str(store)) from None


_UNUSABLE = {
    RESTORING_FILE: (
        "this store is being restored from its archive, or a restore was cut off",
        "Run `cdc archive restore DEST` to its end; what it has copied is not copied again.",
    ),
    MOVING_FILE: (
        "this is a copy that `cdc move` makes, or a move was cut off",
        "Run `cdc move` again where the store is; what was copied is not copied again.",
    ),
    MOVED_FILE: (
        "this store was moved to {to}, and must not be written or read here any more",
        "Work there. If that copy is lost and was never used, remove moved.json here.",
    ),
    REMOVING_FILE: (
        "the destination of this store is being removed, or a removal was cut off",
        "Run `cdc remove DEST` to its end.",
    ),
}
"""Files that take a store out of use, each with what it means and what to do."""


def require_usable(store: Path) -> None:
    """Raises DamagedError if the store is incomplete, or is not the destination's store any more: it is being restored,
    moved or removed, or was moved."""
    for name, (problem, remedy) in _UNUSABLE.items():
        if (store / name).exists():
            raise DamagedError(problem.format(to=_moved_to(store)), place=str(store), remedy=remedy)


def _moved_to(store: Path) -> str:
    document = read_json(store / MOVED_FILE)
    place = document.get("to") if isinstance(document, dict) else None
    return place if isinstance(place, str) else "another place"


def check(store: Path, document: Any = None) -> None:
    """Refuses a store of another format (DamagedError) or of a newer version (VersionError), and one that is out of
    use (DamagedError, as :func:`require_usable`). A folder without a store passes."""
    require_usable(store)
    description = read_json(store / "store.json") if document is None else document
    if description is None:
        return
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise DamagedError("is not the description of a store", place=str(store / "store.json"), remedy=_REMAKE)
    if not isinstance(description.get("version"), int):
        raise DamagedError("has no format version", place=str(store / "store.json"), remedy=_REMAKE)
    require_version(description, store / "store.json")
