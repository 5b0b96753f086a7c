"""The folder in shared memory of a destination whose store is in memory (``store.kind: memory``).

It is made when the server begins to run the destination, empty each time, and emptied when the server ends to. A server
that was killed leaves its folder behind, at most the buffer and the transaction that was being read; the next start on
the machine empties it.
"""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from cdc.base.errors import ConfigError
from cdc.config.memory import SHARED_MEMORY, owner_lock
from cdc.disk.durable import locked, storage_errors
from cdc.meta.mixed import MixedMeta

if TYPE_CHECKING:
    from cdc.config import DestinationConfig
    from cdc.meta import Meta

_OWNER_S = 10.0
"""The time to wait for a folder that another server of this configuration has just used."""
_KEPT = ("instance.json", "server.lock")
"""Files in a meta in memory that outlast a start: an operator's stop, and the lock of the server."""


class MemoryFolder:
    """The folder of one destination, while a server runs it. Its methods wait for locks; call them in a thread."""

    def __init__(self, config: DestinationConfig) -> None:
        self._config = config
        self._run = config.store.run_folder
        self._held = ExitStack()
        self._is_owner = False

    def begin(self, meta: Meta) -> None:
        """Takes the folder, empties it, and loads what of ``meta`` is stored. Raises ConfigError if this machine has no
        such memory, LeaseHeldError if another server has the folder, and what the meta raises."""
        make_run_folder(self._config)
        self._held.enter_context(locked(owner_lock(self._run), "another cdc server", wait_s=_OWNER_S))
        self._is_owner = True
        try:
            self._empty()
            if isinstance(meta, MixedMeta):
                meta.begin()
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Empties the folder, if it is this one's, and gives it up. The meta is closed already."""
        if not self._is_owner:
            return
        try:
            self._empty()
        finally:
            self._is_owner = False
            self._held.close()

    def _empty(self) -> None:
        with storage_errors(self._run):
            for entry in self._run.iterdir():
                if entry.name == "meta":
                    for part in entry.iterdir():
                        if part.name not in _KEPT:
                            _remove(part)
                elif entry.is_dir() or entry.name == "full":
                    _remove(entry)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def make_run_folder(config: DestinationConfig) -> None:
    """Makes the folder, which no other user may read or prepare. Raises ConfigError, StorageError."""
    run = config.store.run_folder
    if not SHARED_MEMORY.is_dir():
        raise ConfigError(
            f"store.kind: memory needs shared memory in {SHARED_MEMORY}, which this machine does not have",
            remedy="Use store.kind: file; its folder may lie in a file system in memory.",
        )
    for folder in (run.parent, run):
        with storage_errors(folder):
            folder.mkdir(mode=0o700, exist_ok=True)
            stat = folder.lstat()
        if stat.st_uid != os.geteuid() or stat.st_mode & 0o077 or folder.is_symlink():
            raise ConfigError(
                "this folder belongs to somebody else, or is open to others",
                place=str(folder),
                remedy="Remove it; the server makes it anew.",
            )
