"""The folders of a store and a meta: which files in them are Towpath's, and how they are removed.

Nothing else is removed, whatever the configuration names: a mount point keeps its ``lost+found``, and a folder that is
no store loses nothing.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cdc.batches.lease import OWNER_LOCK_NAME
from cdc.capture.own_store import OWNER_FILE
from cdc.copies.archive.reader import FOLDER as ARCHIVED_FOLDER
from cdc.copies.standby import reconcile, role
from cdc.disk.durable import storage_errors, sync_folder
from cdc.meta import file as meta_file
from cdc.server import stops
from cdc.store.formats import archive_record, checkpoint, gtids, index, layout, missing, prepared

LOCK = "lock"
STORE_NAMES = frozenset(
    {
        "segments", "schemas", "tables.json", "capture.json", "clock.log", "snapshots",
        layout.RESTORING_FILE, layout.MOVING_FILE, layout.MOVED_FILE, checkpoint.FILE_NAME, checkpoint.ABORT_NAME,
        missing.DAMAGED_FILE, missing.REMOVED_FILE, missing.LOCK_NAME, index.STATS_FILE, gtids.GTIDS_FILE,
        prepared.FOLDER, archive_record.FILE_NAME, archive_record.LOCK_NAME, ARCHIVED_FOLDER, OWNER_FILE,
        role.EPOCH_FILE, role.STATUS_FILE, reconcile.FOLDER,
        layout.STORE_FILE, layout.REMOVING_FILE, LOCK,
    }
)  # fmt: skip
"""The names in the folder of a store."""
_STORE_LAST = (layout.STORE_FILE, LOCK, layout.REMOVING_FILE)
"""These are removed last, in this order: as long as anything is left, the store is out of use."""
META_NAMES = frozenset(
    {
        meta_file.FILE_NAME, meta_file.HOLDER_NAME, meta_file.LOCKS_FOLDER, meta_file.SERVER_LOCK_NAME, "manifests",
        OWNER_LOCK_NAME, stops.FILE_NAME, meta_file.LOCK_NAME,
    }
)  # fmt: skip
"""The names in the folder of a meta."""
_TEMPORARY = re.compile(r"\.(.+)\.new")


@dataclass(frozen=True)
class OwnFolder:
    """A folder in which some names are Towpath's."""

    path: Path
    names: frozenset[str]
    last: tuple[str, ...] = ()

    @classmethod
    def of_store(cls, path: Path) -> OwnFolder:
        return cls(path, STORE_NAMES, _STORE_LAST)

    @classmethod
    def of_meta(cls, path: Path) -> OwnFolder:
        return cls(path, META_NAMES)

    def own(self) -> list[Path]:
        """Returns Towpath's files and folders in it, in the order in which they are removed. Raises StorageError."""
        own = [path for path in self._all() if self._is_own(path.name)]
        return sorted(own, key=lambda path: (self.last.index(path.name) + 1 if path.name in self.last else 0, path))

    def others(self) -> list[str]:
        """Returns the names of everything else in it. Raises StorageError."""
        return [path.name for path in self._all() if not self._is_own(path.name)]

    def links(self) -> list[Path]:
        """Returns those of Towpath's names that are symbolic links: only the links are removed."""
        return [path for path in self.own() if path.is_symlink()]

    def size(self) -> tuple[int, int]:
        """Returns the number of Towpath's files in it, and their bytes. Raises StorageError."""
        count = size = 0
        for path in self.own():
            for file in _files(path):
                try:
                    size += file.lstat().st_size
                except FileNotFoundError:  # removed meanwhile
                    continue
                count += 1
        return count, size

    def remove(self) -> None:
        """Removes Towpath's files, and the folder if nothing else is in it. A call that was killed is made up for by
        another one. Raises StorageError, ConfigError."""
        for path in self.own():
            with storage_errors(path):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
                if path.name in self.last:
                    sync_folder(self.path)
        if not self.path.is_dir() or any(self.path.iterdir()) or self.path.is_symlink() or self.path.is_mount():
            return
        with storage_errors(self.path):
            self.path.rmdir()
            sync_folder(self.path.parent)

    def _is_own(self, name: str) -> bool:
        temporary = _TEMPORARY.fullmatch(name)
        return (name if temporary is None else temporary[1]) in self.names

    def _all(self) -> list[Path]:
        with storage_errors(self.path):
            try:
                return sorted(self.path / name for name in os.listdir(self.path))
            except FileNotFoundError:
                return []


def _files(path: Path) -> Iterator[Path]:
    if path.is_symlink() or not path.is_dir():
        yield path
        return
    for folder, _, names in os.walk(path):
        for name in names:
            yield Path(folder, name)


def set_aside_stores(store: Path) -> list[Path]:
    """Returns the stores that a server of several has set aside beside its own."""
    name = re.compile(re.escape(store.name) + r"\.(aside|removed-[0-9a-f]{8})")
    with storage_errors(store.parent):
        if not store.parent.is_dir():
            return []
        return sorted(path for path in store.parent.iterdir() if name.fullmatch(path.name) and path.is_dir())
